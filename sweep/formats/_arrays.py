"""Arrays into a model and out of it, batch by batch."""

import numpy as np


def predict(run, inputs, batch_size, dtype):
    """Outputs (N, ...) of N >= 1 inputs (N, ...), where `run` takes a batch of at most batch_size of them.

    Raises ValueError for a batch size below 1 or no input, and TypeError for inputs of another type than the model's: a silent cast would
    hide a wrong input.
    """
    if batch_size < 1:
        raise ValueError("batch_size is {}, not at least 1".format(batch_size))
    if inputs.dtype != np.dtype(dtype):
        raise TypeError("inputs are {}, and the model takes {}".format(inputs.dtype, np.dtype(dtype)))
    if not len(inputs):
        raise ValueError("there is no input")
    outputs = [run(inputs[start:start + batch_size]) for start in range(0, len(inputs), batch_size)]
    return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)


def joined(outputs, count, dtype=np.float32):
    """One array of a model's outputs for `count` inputs: as it is where there is one, else each flattened to (N, k) and side by side.

    Raises ValueError for an output that does not have a value for each input.
    """
    outputs = [np.asarray(output, dtype) for output in outputs]
    for output in outputs:
        if not output.ndim or len(output) != count:
            raise ValueError("an output of shape {} for {} inputs has no batch axis".format(output.shape, count))
    return outputs[0] if len(outputs) == 1 else np.concatenate([output.reshape(count, -1) for output in outputs], axis=1)
