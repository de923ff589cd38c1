"""What a model takes and gives, as every format says it to the core."""

INPUT_TYPES = ("float32", "int32", "int64")


def details(path, inputs, outputs, operators, beside=()):
    """What `inspect` returns (`sweep.contracts`), of lists of {"name", "shape", "dtype"}: shapes with the batch axis and None for a free
    axis, or None where the file does not say. `beside` names further files, in the same folder, that belong to the model.

    Raises ValueError that names the file where it doesn't have one input of a known type whose first axis is a batch, free or of one.
    """
    if len(inputs) != 1:
        named = ", ".join(entry["name"] for entry in inputs) or "none"
        raise ValueError("{} has {} inputs ({}); a model is run here with one".format(path, len(inputs), named))
    if not outputs:
        raise ValueError("{} has no output".format(path))
    (given,) = inputs
    if given["dtype"] is not None and given["dtype"] not in INPUT_TYPES:
        raise ValueError("{} takes {}; inputs are {} here".format(path, given["dtype"], " or ".join(INPUT_TYPES)))
    batch = _batch(path, given)
    whole = len(outputs) == 1 and outputs[0]["shape"] is not None and None not in outputs[0]["shape"][1:]
    return {
        "inputs": list(inputs),
        "outputs": list(outputs),
        "input_shape": None if given["shape"] is None else list(given["shape"][1:]),
        "input_dtype": given["dtype"],
        "output_shape": list(outputs[0]["shape"][1:]) if whole else None,
        "batch": batch,
        "operators": dict(sorted(operators.items())),
        "beside": sorted(beside),
    }


def _batch(path, given):
    """1 where the file fixes the batch at that, None where it is free."""
    if given["shape"] is None:
        return None
    if not given["shape"] or given["shape"][0] not in (None, 1):
        text = "{}: the first axis of {} must be a batch, free or of 1; its shape is {}"
        raise ValueError(text.format(path, given["name"], shown(given["shape"])))
    return given["shape"][0]


def shown(shape):
    """A shape for a message: `(?, 28, 28)`."""
    return "({})".format(", ".join("?" if size is None else str(size) for size in shape))


def dimensions(sizes):
    """A list of sizes with None for what is no positive whole number."""
    return [int(size) if isinstance(size, int) and size > 0 else None for size in sizes]
