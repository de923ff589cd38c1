"""Where a model parts from the network that it was to compute, and by which fault.

The neutral list and the canonical weights state the network; `sweep.reference` computes it in float64. Of a suspect we have the outputs
of its layers, and each layer run alone on what the reference's would read. A layer whose output is wrong for its own inputs, by more than
rounding, is where they part: a layer that only hands on what it got wrong isn't. If it is wrong alone too, the fault is in the layer,
else in what it reads. `sweep.hypotheses` recomputes it with every known fault, and the one that gives the suspect's numbers names it.
"""

import numpy as np

from sweep.diagnosis._case import Case
from sweep.diagnosis._deployed import judge as judge_deployed
from sweep.diagnosis._tensors import judge as judge_tensors

__all__ = ["judge", "judge_deployed", "judge_tensors"]


def judge(layers, weights, inputs, outputs, alone, dtype="float32"):
    """Rows of every layer and the verdict, as JSON.

    `inputs` (N, ...) are the network's; `outputs` are the suspect's by layer name, channels last; `alone`, by name too or None, are each
    layer's on the reference's inputs of that layer, cast to `dtype`, the suspect's.

        {"dtype", "examples", "layers": [row], "verdict": {"faulty", "layer", "layer_kind", "fault", "evidence", "explains", "also",
        "others"}}

    A row has `layer`, `kind`, and as floats or None where there is none:

        difference_max    largest absolute difference from the float64 reference
        relative          that over the reference's largest absolute value, `ulps` likewise in units in its last place
        change_rate       (d - e) / (e + 1e-7), d the layer's difference_max, e the largest of the layers it reads: the R of LEMON
                          (FSE 2020) with the largest difference in place of the mean, as Muffin (ICSE 2022) has it
        residual          largest difference from the right output for the suspect's own inputs
        causal            the same for the reference's inputs, the layer alone
        tolerance, causal_tolerance     what rounding explains of either

    and `faulty`, `out_of_range`. In the verdict `fault` is a row of `sweep.hypotheses`, or `swapped_layers`, `wiring`, `overflow`,
    `shape`, `unknown`; `explains` is the residual that is left under that hypothesis, `also` what agrees as well, `others` further layers.
    """
    with np.errstate(all="ignore"):
        return Case(layers, weights, inputs, outputs, alone, dtype).judged()
