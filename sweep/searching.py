"""A search for inputs near given ones on which two models disagree, by their answers and the first one's margin alone.

Quantization moves a decision boundary by little, so that a model and its quantized copy disagree on inputs near it, of which a test set has
few. From each input the search changes one square of pixels at a time, and keeps a change where the source's margin (the largest logit less
the second) falls: differential testing (DiffChaser, Xie et al. 2019) with the moves of a score-based attack (Andriushchenko et al. 2020).
Every pixel stays within eps of where it was, as the bounds of mutated test inputs are (TensorFuzz, Odena et al. 2019). The same number of
equally bounded changes at random, without the margin, is what the search is held against.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Predict = Callable[[np.ndarray], np.ndarray]

SQUARES = (0.5, 0.05)  # sides of squares as shares of the image's, at the first round and at the last


class Found(NamedTuple):
    """What searches came to."""

    inputs: np.ndarray  # (N, H, W, C), the last of each
    round: np.ndarray  # (N,), the first at which the models disagreed: 0 for the image itself, -1 for none
    queries: int  # inputs that the two models were asked for together


def disagreements(
    source: Predict, deployed: Predict, x: np.ndarray, eps: float, rounds: int, seed: int, guided: bool = True
) -> Found:
    """Search from every image of x, float32 (N, H, W, C) in [0, 1].

    `source` and `deployed` take images to logits (N, classes). A search ends where they disagree. Unguided, every change is kept. Equal
    arguments give equal results.
    """
    random = np.random.RandomState(seed)
    logits = source(x)
    margin, found = _margins(logits), np.where(logits.argmax(axis=1) != deployed(x).argmax(axis=1), 0, -1)
    inputs, queries = x.copy(), 2 * len(x)
    for number in range(1, rounds + 1):
        left = np.flatnonzero(found < 0)
        if not len(left):
            break
        side = SQUARES[0] + (SQUARES[1] - SQUARES[0]) * (number - 1) / max(rounds - 1, 1)
        tried = _changed(random, inputs[left], x[left], eps, side)
        logits = source(tried)
        better = _margins(logits) < margin[left] if guided else np.ones(len(left), bool)
        kept = left[better]
        queries += len(left) + len(kept)
        if len(kept):
            inputs[kept], margin[kept] = tried[better], _margins(logits[better])
            found[kept[logits[better].argmax(axis=1) != deployed(tried[better]).argmax(axis=1)]] = number
    return Found(inputs, found, queries)


def _changed(random: np.random.RandomState, inputs: np.ndarray, around: np.ndarray, eps: float, side: float) -> np.ndarray:
    """Each image with one square of its own set to an end of the ball, each channel to one at random."""
    count, height, width, channels = inputs.shape
    size = max(1, round(side * min(height, width)))
    tops, lefts = random.randint(height - size + 1, size=count), random.randint(width - size + 1, size=count)
    signs = random.choice(np.array([-1, 1], np.float32), (count, 1, 1, channels))
    changed = inputs.copy()
    for image, base, top, left, sign in zip(changed, around, tops, lefts, signs, strict=True):
        place = np.s_[top : top + size, left : left + size]
        image[place] = np.clip(base[place] + np.float32(eps) * sign, 0, 1)
    return changed


def _margins(logits: np.ndarray) -> np.ndarray:
    second, first = np.partition(logits, -2, axis=1)[:, -2:].T
    return np.asarray(first - second)
