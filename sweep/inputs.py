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


def read_test_inputs(data, indices):
    """Test inputs at `indices` (increasing) of a data set as workers get it: its `folder`, or in their place those of `corrupted`. Raises
    ValueError for one that was not corrupted."""
    if "corrupted" not in data:
        return read_inputs(data["folder"], "test", indices)
    held = np.load(os.path.join(data["corrupted"], "index.npy"), allow_pickle=False)
    places = np.minimum(np.searchsorted(held, indices), len(held) - 1)
    if not np.array_equal(held[places], indices):
        raise ValueError("test inputs are asked for that were not corrupted")
    return read_inputs(data["corrupted"], "test", places)


def read_labels(folder, part, indices=None):
    """Labels of `train` or `test`, all or those at `indices`, int64 (N,)."""
    stored = _array(folder, "y_" + part)
    return np.array(stored if indices is None else stored[indices])


def _array(folder, name):
    return np.load(os.path.join(str(folder), name + ".npy"), mmap_mode="r", allow_pickle=False)
