"""Inputs and labels of a prepared data set, for workers: NumPy only."""

import os

import numpy as np

UNLABELLED = -2
"""In the place of a label where a user's own inputs have none; no class and no `metrics.NO_PREDICTION`."""


def read_inputs(folder, part, indices=None):
    """Inputs of `train` or `test`, all or those at `indices`: images float32 (N, H, W, C) in [0, 1], token ids int32 (N, T), or a
    user's own as they are.

    Reads only what is asked for.
    """
    stored = _array(folder, "x_" + part)
    chosen = stored if indices is None else stored[indices]
    if stored.dtype != np.uint8:
        return np.array(chosen)
    images = np.array(chosen, dtype=np.float32)
    images /= np.float32(255)
    return images


def read_labels(folder, part, indices=None):
    """Labels of `train` or `test`, all or those at `indices`, int64 (N,)."""
    stored = _array(folder, "y_" + part)
    return np.array(stored if indices is None else stored[indices])


def _array(folder, name):
    return np.load(os.path.join(str(folder), name + ".npy"), mmap_mode="r", allow_pickle=False)
