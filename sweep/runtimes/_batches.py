"""Running a model over many inputs, batch by batch."""

import numpy as np


def predict(run, inputs, batch_size, dtype):
    """Outputs float32 (N, ...) of N >= 1 inputs (N, ...), where `run` takes a batch of at most batch_size of them.

    Raises ValueError for a batch size below 1 or no input, and TypeError for inputs of another type than the model's: a silent cast would
    hide a wrong input.
    """
    if batch_size < 1:
        raise ValueError("batch_size is {}, not at least 1".format(batch_size))
    if inputs.dtype != np.dtype(dtype):
        raise TypeError("inputs are {}, and the model takes {}".format(inputs.dtype, dtype))
    if not len(inputs):
        raise ValueError("there is no input")
    first = run(inputs[:batch_size])
    if len(inputs) <= batch_size:
        return first  # a single image takes some 15 us, of which the loop and its copy would be a tenth
    outputs = np.empty((len(inputs),) + first.shape[1:], np.float32)
    outputs[:batch_size] = first
    for start in range(batch_size, len(inputs), batch_size):
        outputs[start:start + batch_size] = run(inputs[start:start + batch_size])
    return outputs


def joined(outputs):
    """One array of a model's outputs: as it is where there is one, else each flattened to (N, k) and side by side."""
    if len(outputs) == 1:
        return outputs[0]
    return np.concatenate([np.asarray(output, np.float32).reshape(len(output), -1) for output in outputs], axis=1)
