"""Pictures among the artifacts of stages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = 8
INCHES, DPI = 1.4, 100
HALF_GREY = 0.5


def adversarial(path: Path, made: Mapping[str, Any]) -> None:
    """A PNG of the first adversarial images, where there are fewer filled up with those that withstood: image, what was added (times so
    much that the largest change is black or white), adversarial image, with the answers.

    `made` has label, before, after (logits), clean and adversarial (N, H, W, 1 or 3) in [0, 1].
    """
    from matplotlib.figure import Figure  # late: half a second that only attacks need

    label, clean, other = (np.asarray(made[name]) for name in ("label", "clean", "adversarial"))
    before, after = (np.asarray(made[name]).argmax(axis=1) for name in ("before", "after"))
    shown = np.argsort(~((before == label) & (after != label)), kind="stable")[:COLUMNS]
    largest = float(np.abs(other[shown] - clean[shown]).max())
    rows = (clean, HALF_GREY + (other - clean) * (HALF_GREY / largest if largest else 0), other)
    figure = Figure(figsize=(INCHES * len(shown), INCHES * len(rows) * 1.15), dpi=DPI, layout="constrained")
    axes = figure.subplots(len(rows), len(shown), squeeze=False)
    for column, at in enumerate(shown):
        titles = (f"{label[at]}, said {before[at]}", f"x {HALF_GREY / largest:.3g}" if largest else "nothing", f"said {after[at]}")
        for place, images, title in zip(axes[:, column], rows, titles, strict=True):
            image = np.clip(images[at], 0, 1)
            place.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            place.set_title(title, fontsize=8)
            place.set_axis_off()
    figure.savefig(path)
