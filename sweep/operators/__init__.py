"""Single operators as small models: what each is by definition, over which parameters it may be asked for, and how it may go wrong.

A **probe** is one operator with one choice of parameters, as JSON: {"operator", "parameters", "seed"}. It fully says the model, its weights
and its inputs, which are alike where it has {"alike": true}: then no calibration on them, whatever its rule, takes one for the other's
outlier. Each module offers:

    PARAMETERS      {name: values}, the simplest value first, from the operator's own definition; a probe has a value for each
    valid(parameters)                               whether the definition gives a meaning to this combination
    inputs(parameters, rng)                         float32 (BATCH, ...), channels last
    weights(parameters, rng)                        {name: float32 array}; none for most operators
    reference(parameters, weights, inputs)          the right output (BATCH, ...) in the dtype of its arguments, from the definition
    magnitude(parameters, weights, inputs)          shaped like the output: the sum of the absolute values of what is added up, or what
                                                    else rounding is relative to
    roundings(parameters)                           how many roundings of that size the definition makes one after another
    deviations(parameters, weights, inputs, observed)
                                                    yields (fault, detail, compute): `compute()` is the output of a known way to get it
                                                    wrong, or None where it can't be what was observed. The simpler first

and some of these:

    steps(parameters)                               how many tensors of the definition a fully quantized graph rounds to steps, if not one
    span(parameters, weights, inputs)               (low, high) that such a tensor may have besides the output's own range: what kernels
                                                    fix for all inputs, or what is multiplied after it was rounded
    slack(parameters, weights, inputs)              shaped like the output: what the rounding of coordinates, which is no rounding of
                                                    values, may add
"""
