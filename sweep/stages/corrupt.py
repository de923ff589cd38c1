"""Corrupted test images in the place of a data set's own."""

import os

import numpy as np

from sweep import corrupting
from sweep.inputs import read_inputs
from sweep.stages.models import indices


def run(settings, data, out):
    """Write `x_test.npy`, uint8 (N, H, W, C), laid out as a prepared data set's, and which test images they are in `index.npy`."""
    chosen = indices(settings["examples"], data)
    images = read_inputs(data["folder"], "test", chosen)
    images = corrupting.corrupt(settings["corruption"], settings["corruption_settings"], images, chosen)
    np.save(os.path.join(out, "x_test.npy"), np.rint(images * 255).astype(np.uint8))
    np.save(os.path.join(out, "index.npy"), chosen)
    return {"metrics": {"corrupted_n": len(chosen)}}
