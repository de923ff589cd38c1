"""Corruptions are rows of a table: what of an image changes, how much at severities 1 to 5, and what bounds it so that the label stays.

    check(name, overrides)              is this valid, before any work
    resolve(name, overrides)            every setting of a cell's corruption, as JSON

`sweep.corrupting` changes the images; whoever plans a sweep reads the table without NumPy and SciPy.

Sources: CIFAR-10-C (Hendrycks & Dietterich 2019, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", the
values of its authors' generator for 32x32 colour images) and MNIST-C (Mu & Gilmer 2019, "MNIST-C: A Robustness Benchmark for Computer
Vision", the same for 28x28 grey ones). Of MNIST-C's levels one per corruption is its default, at which its images were made and a digit
stays clear: where further levels go far beyond, those here end at the default. `chosen` is what this table adds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweep.rules import Integer, Rule, alternatives, parsed

DISTRIBUTIONS = ("numpy", "scipy", "pillow")
"""The packages that draw, filter and compress; their versions are part of what a corruption is."""
SEVERITIES = 5
GREY, COLOUR = 1, 3
"""Channels of an image."""
BOUNDS = {
    "psnr_db": "the least peak signal-to-noise ratio of an image to the original",
    "contrast": "the least factor by which differences between values shrink; under fog of an image that has some white",
    "linf": "the largest change of any value, in [0, 1] units",
    "value": "the largest change of the brightest of a pixel's channels, in [0, 1] units",
    "share": "the largest share of values (impulse noise) or of pixels that change",
    "degrees": "the largest rotation about the image's middle, either way",
    "shift_px": "the largest shift of any pixel, in pixels along an axis",
    "shear": "the largest shift of a row per row of distance from the middle, either way",
    "shrink": "the least factor by which the content gets smaller about the middle",
    "enlarge": "the largest factor by which it gets larger",
    "alpha": "the largest share of values that may change by anything; where more do, `beta` holds",
    "beta": "the largest change of any value, in [0, 1] units, where more than `alpha` of them change",
}
"""What keeps an image's label, and how it is measured. Every row has some of these, which hold at its severest level but for the rounding
to 8 bits; the least ratios hold on the images of MNIST, Fashion-MNIST and CIFAR-10."""

Level = float | tuple[float, ...]


@dataclass(frozen=True)
class Grades:
    """A corruption of images of so many channels: its levels at severities 1 to 5, and what holds at all of them."""

    levels: tuple[Level, ...]
    source: str
    bounds: Mapping[str, float]  # by keys of BOUNDS


@dataclass(frozen=True)
class Corruption:
    """One corruption. Equal settings and places in the test set give equal images."""

    name: str
    level: str  # what a level is, with its unit
    drawn: bool  # whether the seed matters: what draws nothing is repeated for nothing
    grades: Mapping[int, Grades]  # by the number of channels

    @property
    def channels(self) -> tuple[int, ...]:
        """Of which numbers of channels images may be."""
        return tuple(self.grades)


def _both(levels: tuple[Level, ...], source: str, bounds: Mapping[str, float]) -> dict[int, Grades]:
    return dict.fromkeys((GREY, COLOUR), Grades(levels, source, bounds))


def _each(grey: Grades, colour: Grades) -> dict[int, Grades]:
    return {GREY: grey, COLOUR: colour}


_MNIST_C, _CIFAR_C = "MNIST-C", "CIFAR-10-C"
_ALL = (
    # Noise
    Corruption("gaussian_noise", "standard deviation of what is added", True, _each(
        Grades((0.08, 0.12, 0.18, 0.26, 0.38), _MNIST_C, {"psnr_db": 9.0}),
        Grades((0.04, 0.06, 0.08, 0.09, 0.1), _CIFAR_C, {"psnr_db": 19.0}),
    )),
    Corruption("shot_noise", "photons that make a value of 1, Poisson distributed", True, _each(
        Grades((60, 25, 12, 5, 3), _MNIST_C, {"psnr_db": 9.0}),
        Grades((500, 250, 100, 75, 50), _CIFAR_C, {"psnr_db": 17.0}),
    )),
    Corruption("impulse_noise", "share of values that turn white or black by halves", True, _each(
        Grades((0.03, 0.06, 0.09, 0.13, 0.17), f"{_MNIST_C} to its default 0.17, the fourth of its levels; the fourth here is chosen",
               {"share": 0.17}),
        Grades((0.01, 0.02, 0.03, 0.05, 0.07), _CIFAR_C, {"share": 0.07}),
    )),
    Corruption("speckle_noise", "standard deviation of what is added, as a share of the value", True, _each(
        Grades((0.15, 0.2, 0.35, 0.45, 0.6), _MNIST_C, {"psnr_db": 9.0}),
        Grades((0.06, 0.1, 0.12, 0.16, 0.2), _CIFAR_C, {"psnr_db": 15.0}),
    )),
    # Blur
    Corruption("gaussian_blur", "standard deviation, pixels", False, _each(
        Grades((0.4, 0.6, 0.8, 1.1, 1.5), f"chosen, below {_MNIST_C}'s default 2, which leaves little of a narrow 4", {"psnr_db": 11.0}),
        Grades((0.4, 0.6, 0.7, 0.8, 1.0), _CIFAR_C, {"psnr_db": 18.0}),
    )),
    Corruption("defocus_blur", "radius of the disk, pixels", False, _each(
        Grades((0.9, 1.3, 1.7, 2.1, 2.5), f"chosen, below {_MNIST_C}'s default 3, which leaves little of a narrow 4", {"psnr_db": 11.0}),
        Grades((0.8, 1.0, 1.2, 1.4, 1.6), f"chosen: disks as wide as {_CIFAR_C}'s kernels, most of which are no disks at this size",
               {"psnr_db": 18.0}),
    )),
    Corruption("motion_blur", "standard deviation along a path at -45 to 45 degrees, pixels", True, _each(
        Grades((1.0, 1.5, 2.0, 2.5, 3.0), f"chosen, to {_MNIST_C}'s default", {"psnr_db": 9.0}),
        Grades((1.0, 1.5, 2.0, 2.25, 2.5), f"{_CIFAR_C}; the fourth is chosen, since it differs from the third by its reach alone",
               {"psnr_db": 13.0}),
    )),
    Corruption("zoom_blur", "largest of eleven enlargements that are averaged", False, _each(
        Grades((1.1, 1.15, 1.2, 1.25, 1.3), f"{_MNIST_C}; eleven is chosen", {"enlarge": 1.3}),
        Grades((1.05, 1.1, 1.15, 1.2, 1.25), f"{_CIFAR_C}; eleven is chosen", {"enlarge": 1.25}),
    )),
    # Weather and dirt. Clouds are octaves of smoothed noise, for the sources' diamonds and squares
    Corruption("fog", "brightness of the thickest fog, and the root of how much weaker clouds of half the size are", True, _each(
        Grades(((0.5, 3.0), (0.75, 3.0), (1.0, 2.5), (1.5, 2.0), (2.0, 2.0)), f"chosen, to the second of {_MNIST_C}'s levels",
               {"contrast": 1 / 3.0}),
        Grades(((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)), _CIFAR_C, {"contrast": 1 / 2.5}),
    )),
    Corruption("spatter", "share of pixels under mud", True, _both(
        (0.02, 0.04, 0.06, 0.08, 0.1), f"chosen; the mud's colour is {_MNIST_C}'s and {_CIFAR_C}'s", {"share": 0.1},
    )),
    # Light and colour
    Corruption("brightness", "what is added to the value of hue, saturation and value", False, _each(
        Grades((0.1, 0.2, 0.3, 0.4, 0.5), _MNIST_C, {"linf": 0.5}),
        Grades((0.05, 0.1, 0.15, 0.2, 0.3), _CIFAR_C, {"linf": 0.3}),
    )),
    Corruption("contrast", "factor of the distance from each channel's mean", False, _each(
        Grades((0.4, 0.3, 0.2, 0.15, 0.1), f"{_MNIST_C} to its default 0.1, the fourth of its levels; the fourth here is chosen",
               {"contrast": 0.1}),
        Grades((0.75, 0.5, 0.4, 0.3, 0.15), _CIFAR_C, {"contrast": 0.15}),
    )),
    Corruption("saturate", "factor of the saturation, one of two by chance", True, {
        COLOUR: Grades(((0.7, 1.25), (0.5, 1.5), (0.3, 1.75), (0.2, 2.0), (0.1, 2.5)),
                       f"chosen, between {_CIFAR_C}'s 0.1 and 2.5, of which some add a cast too", {"value": 0.0}),
    }),
    # Digital
    Corruption("pixelate", "share of the pixels of a side that are left", False, _each(
        Grades((0.8, 0.7, 0.6, 0.45, 0.4), f"chosen, to {_MNIST_C}'s default", {"psnr_db": 11.0}),
        Grades((0.95, 0.9, 0.85, 0.75, 0.65), _CIFAR_C, {"psnr_db": 17.0}),
    )),
    Corruption("jpeg_compression", "quality", False, _each(
        Grades((25, 18, 15, 10, 7), _MNIST_C, {"psnr_db": 15.0}),
        Grades((80, 65, 58, 50, 40), _CIFAR_C, {"psnr_db": 22.0}),
    )),
    # Place and shape. What lies beyond the border is black of grey images and mirrored of others, as in the two sources
    Corruption("elastic_transform", "largest shift, pixels, in a field smoothed over 4 pixels (Simard et al. 2003)", True, _both(
        (0.6, 1.0, 1.4, 1.8, 2.2), "chosen", {"shift_px": 2.2},
    )),
    Corruption("rotate", "degrees, either way", True, _both(
        (6, 12, 18, 24, 30), f"chosen, to 30 (Engstrom et al. 2019); {_MNIST_C}'s default is 23", {"degrees": 30},
    )),
    Corruption("translate", "pixels along the two axes, in either order and either way", True, _both(
        ((1, 0), (1, 1), (2, 1), (2, 2), (3, 3)), f"chosen, to {_MNIST_C}'s default (and Engstrom et al. 2019)",
        {"shift_px": 3},
    )),
    Corruption("shear", "columns per row from the middle, either way", True, _both(
        (0.08, 0.16, 0.24, 0.32, 0.4), f"chosen, to {_MNIST_C}'s default", {"shear": 0.4},
    )),
    Corruption("scale", "factor of the size", False, _both(
        (0.94, 0.88, 0.82, 0.76, 0.7), f"chosen, to {_MNIST_C}'s default", {"shrink": 0.7},
    )),
    # Fuzzers' mutations, without the search for coverage
    Corruption("tensorfuzz", "largest change of a value by normal noise of 0.1", True, _both(
        (10 / 255, 20 / 255, 30 / 255, 40 / 255, 50 / 255),
        "TensorFuzz (Odena et al. 2019, its code: 0.2 on images in [-1, 1], cut at a bound); the bounds are chosen", {"linf": 50 / 255},
    )),
    Corruption("deephunter", "share of the bounds that one to five mutations, at most one of them affine, may use", True, _both(
        (0.2, 0.4, 0.6, 0.8, 1.0),
        "DeepHunter (Xie et al. 2019, equation 1; alpha, beta, shift and scale of its code, turns and shears cut to these)",
        {"alpha": 0.02, "beta": 0.2, "degrees": 30, "shift_px": 3, "shear": 0.4, "shrink": 0.7, "enlarge": 1.1},
    )),
)
ROWS = {corruption.name: corruption for corruption in _ALL}
_RULES: dict[str, Rule] = {"severity": Integer(1, SEVERITIES), "seed": Integer(0, 2**32 - 1)}
_DEFAULTS = {"severity": 3, "seed": 0}


def check(name: str, settings: Mapping[str, Any]) -> None:
    """Whether these overrides are valid for a corruption. Raises ValueError that names the key, the value and what would be valid."""
    _parse(name, settings)


def resolve(name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a corruption, as JSON: the overrides, else the defaults. Raises ValueError as `check` does."""
    return {**_DEFAULTS, **_parse(name, overrides)}


def _parse(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    if name not in ROWS:
        raise ValueError(f"there is no corruption {name!r}{alternatives(name, ROWS)}")
    return parsed("corruption", name, settings, _RULES)
