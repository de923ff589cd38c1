"""DeepHunter's chains of mutations (Xie et al. 2019, "DeepHunter: A Coverage-Guided Fuzz Testing Framework for Deep Neural Networks"):
each changes an image a little, and a whole chain stays within bounds that keep the label."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from sweep import warping

_MUTATIONS, _TRIES = 5, 50
# How far a mutation of pixel values goes at the whole of the bounds. Contrast and brightness are as in the authors' code, blur and noise
# are chosen: theirs turn most of a small image into something else, and would be undone by the bounds
_DARKER, _LIGHTER = 0.5, 1.2  # factors
_BRIGHTER = 20 / 255
_BLUR_PX = 0.5  # the whole chain's come to 1.1 at most
_NOISE = 0.1
_ROUNDING = 1e-9


class Chain(NamedTuple):
    """Where a chain ends, at 8-bit values. `reference` is the image after the chain's affine mutation alone, if it has one."""

    mutant: np.ndarray
    reference: np.ndarray


def whole(image: np.ndarray) -> np.ndarray:
    """What is in [0, 1], or is cut to it, as whole numbers from 0 to 255; halves go to the even one, whatever the last bits."""
    return np.rint(np.round(np.clip(image, 0, 1) * 255, 4))


def mutated(image: np.ndarray, share: float, bounds: Mapping[str, float], draw: np.random.Generator) -> Chain:
    """One to five mutations of an image (H, W, C) in [0, 1], at most one of them affine, all within a share of the bounds.

    A mutation that would leave the bounds isn't taken, and another one is drawn; after 50 draws the chain ends as it is.
    """
    chain, kinds = Chain(_rounded(image), _rounded(image)), len(_ON_PIXELS) + len(_AFFINE)
    left = draw.integers(1, _MUTATIONS + 1)
    for _ in range(_TRIES):
        kind = draw.integers(kinds)
        if kind < len(_ON_PIXELS):
            after = Chain(_rounded(_ON_PIXELS[kind](chain.mutant, share, draw)), chain.reference)
        else:
            move, extent = _AFFINE[kind - len(_ON_PIXELS)], draw.uniform(-share, share, 2)
            after = Chain(*(_rounded(move(each, extent, bounds)) for each in chain))
        if _within(after, share * bounds["alpha"], share * bounds["beta"]):
            chain, left = after, left - 1
            kinds = kinds if kind < len(_ON_PIXELS) else len(_ON_PIXELS)
        if not left:
            break
    return chain


def _within(chain: Chain, alpha: float, beta: float) -> bool:
    """Equation 1: few values changed, by anything, or all by little."""
    change = np.abs(chain.mutant - chain.reference)
    return bool(np.count_nonzero(change) <= alpha * change.size or change.max() <= beta + _ROUNDING)


def _rounded(image: np.ndarray) -> np.ndarray:
    return whole(image) / 255


def _contrast(image: np.ndarray, share: float, draw: np.random.Generator) -> np.ndarray:
    return image * draw.uniform(1 - share * (1 - _DARKER), 1 + share * (_LIGHTER - 1))


def _brightness(image: np.ndarray, share: float, draw: np.random.Generator) -> np.ndarray:
    return image + share * draw.uniform(-_BRIGHTER, _BRIGHTER)


def _blur(image: np.ndarray, share: float, draw: np.random.Generator) -> np.ndarray:
    return warping.blurred(image, share * draw.uniform(0, _BLUR_PX))


def _noise(image: np.ndarray, share: float, draw: np.random.Generator) -> np.ndarray:
    return image + draw.normal(0, share * draw.uniform(0, _NOISE), image.shape)


def _translation(image: np.ndarray, extent: np.ndarray, bounds: Mapping[str, float]) -> np.ndarray:
    return warping.translated(image, *(extent * bounds["shift_px"]))


def _rotation(image: np.ndarray, extent: np.ndarray, bounds: Mapping[str, float]) -> np.ndarray:
    return warping.rotated(image, extent[0] * bounds["degrees"])


def _shearing(image: np.ndarray, extent: np.ndarray, bounds: Mapping[str, float]) -> np.ndarray:
    return warping.sheared(image, extent[0] * bounds["shear"])


def _scaling(image: np.ndarray, extent: np.ndarray, bounds: Mapping[str, float]) -> np.ndarray:
    furthest = bounds["enlarge"] if extent[0] > 0 else bounds["shrink"]
    return warping.scaled(image, 1 + abs(extent[0]) * (furthest - 1))


_ON_PIXELS: tuple[Callable[[np.ndarray, float, np.random.Generator], np.ndarray], ...] = (_contrast, _brightness, _blur, _noise)
_AFFINE: tuple[Callable[[np.ndarray, np.ndarray, Mapping[str, float]], np.ndarray], ...] = (_translation, _rotation, _shearing, _scaling)
