"""Images and labels of a prepared data set, for workers: NumPy only."""

import os

import numpy as np


def load(folder, part, indices=None):
    """Images of `train` or `test`, all or those at `indices`, float32 (N, H, W, C) in [0, 1]. Reads only what is asked for."""
    stored = _array(folder, "x_" + part)
    images = np.array(stored if indices is None else stored[indices], dtype=np.float32)
    images /= np.float32(255)
    return images


def labels(folder, part, indices=None):
    """Labels of `train` or `test`, all or those at `indices`, int64 (N,)."""
    stored = _array(folder, "y_" + part)
    return np.array(stored if indices is None else stored[indices])


def _array(folder, name):
    return np.load(os.path.join(str(folder), name + ".npy"), mmap_mode="r", allow_pickle=False)
