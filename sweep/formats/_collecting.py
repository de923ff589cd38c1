"""What a model computes on the way, from whatever runs it up to given tensors."""

import numpy as np

_CHUNK = 32  # inputs at once: a network's tensors together may be a hundred times its input


def collected(run, names, inputs, batch):
    """What `run` gives under these names, of floating point and with an axis of the inputs, which comes first: float32 (N, ...) by name.

    `batch` is how many inputs `run` takes at once, None for any number; with 1, a tensor's first axis is the inputs' if it has one place.
    """
    if batch == 1:
        axes = [0 if found.shape[:1] == (1,) else None for found in run(inputs[:1])]
    else:
        one, two = run(inputs[:1]), run(np.repeat(inputs[:1], 2, axis=0))
        axes = [_changed(*shapes) for shapes in zip((found.shape for found in one), (found.shape for found in two))]
    size, kept = batch or _CHUNK, {}
    for start in range(0, len(inputs), size):
        for name, axis, found in zip(names, axes, run(inputs[start:start + size])):
            if axis is not None and found.dtype.kind == "f":
                kept.setdefault(name, []).append(np.moveaxis(found, axis, 0).astype(np.float32))
    return {name: np.concatenate(parts) for name, parts in kept.items()}


def _changed(one, two):
    """The axis that has twice the places for twice the inputs."""
    return next((axis for axis, (first, second) in enumerate(zip(one, two)) if second == 2 * first != 0), None)
