"""What a corruption does to pixels together: blurring them and moving them, of one image (H, W, C) in float64.

What lies beyond the border is black where an image has one channel, as it is around digits, and mirrored otherwise; filters mirror it
always.
"""

from functools import lru_cache

import numpy as np
from scipy import ndimage

_FINE = 16  # points along a pixel's side that tell how much of it a disk covers
_REACH = 3  # standard deviations along a path of motion
_SMOOTH_PX = 4.0


def blurred(image: np.ndarray, sigma: float) -> np.ndarray:
    """By a Gaussian of `sigma` pixels."""
    return np.asarray(ndimage.gaussian_filter(image, (sigma, sigma, 0), mode="mirror"))


def filtered(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Convolved with a kernel (K, K) channel by channel, K odd."""
    return np.asarray(ndimage.convolve(image, kernel[..., np.newaxis], mode="mirror"))


@lru_cache
def disk(radius: float) -> np.ndarray:
    """A kernel (K, K) of sum 1: how much of each pixel lies within `radius` pixels of the middle."""
    side = 2 * int(np.ceil(radius + 0.5)) - 1
    points = (np.arange(side * _FINE) + 0.5) / _FINE - side / 2
    inside = np.add.outer(points**2, points**2) <= radius**2
    covered: np.ndarray = inside.reshape(side, _FINE, side, _FINE).mean(axis=(1, 3))
    return covered / covered.sum()


def path(sigma: float, degrees: float) -> np.ndarray:
    """A kernel (K, K) of sum 1: half a Gaussian of `sigma` pixels from the middle along a straight line, each point shared among the four
    pixels around it."""
    steps = np.arange(int(np.ceil(_REACH * sigma)) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    middle = len(steps)
    rows, columns = middle + steps * np.sin(np.radians(degrees)), middle + steps * np.cos(np.radians(degrees))
    return _linear(rows, 2 * middle + 1).T @ (weights[:, np.newaxis] / weights.sum() * _linear(columns, 2 * middle + 1))


def zoomed(image: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """The mean of the image enlarged by each of these factors, all at least 1, about its middle."""
    rows, columns = (_enlarging(size, tuple(factors)) for size in image.shape[:2])
    return np.asarray((rows @ image.transpose(2, 0, 1)[:, np.newaxis] @ columns.swapaxes(1, 2)).mean(axis=1).transpose(1, 2, 0))


def pixelated(image: np.ndarray, share: float) -> np.ndarray:
    """Shrunk to int(share * side) pixels a side, each the mean of what it covers, and back by repeating them."""
    rows, columns = (_boxes(size, int(share * size)) for size in image.shape[:2])
    small = rows @ image.transpose(2, 0, 1) @ columns.T
    back = [((np.arange(size) + 0.5) * few / size).astype(int) for size, few in zip(image.shape[:2], small.shape[1:], strict=True)]
    return np.asarray(small.transpose(1, 2, 0)[np.ix_(*back)])


def clouds(shape: tuple[int, int], decay: float, draw: np.random.Generator) -> np.ndarray:
    """A random height map (H, W) that reaches from 0 to 1: octaves of noise, from 2 cells a side to nearly as many as there are pixels,
    each `decay` times weaker than the one twice as coarse."""
    octaves = range(1, int(np.log2(max(shape))) + 1)
    field = np.zeros(shape)
    for octave in octaves:
        rows, columns = (_linear(np.linspace(0, 2**octave, size), 2**octave + 1) for size in shape)
        field += rows @ draw.uniform(-1, 1, (2**octave + 1,) * 2) @ columns.T / decay**octave
    return np.asarray((field - field.min()) / np.ptp(field))


def shaken(image: np.ndarray, most: float, draw: np.random.Generator) -> np.ndarray:
    """Each pixel from another place, by a random smooth field whose longest shift is of `most` pixels (Simard et al. 2003, "Best Practices
    for Convolutional Neural Networks Applied to Visual Document Analysis")."""
    field = ndimage.gaussian_filter(draw.uniform(-1, 1, (2, *image.shape[:2])), (0, _SMOOTH_PX, _SMOOTH_PX))
    field *= most / np.hypot(*field).max()
    return _from(image, np.indices(image.shape[:2]) + field)


def rotated(image: np.ndarray, degrees: float) -> np.ndarray:
    """Turned anticlockwise about the middle."""
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return _moved(image, [[cosine, sine], [-sine, cosine]])


def translated(image: np.ndarray, down: float, right: float) -> np.ndarray:
    """Shifted by so many pixels."""
    return _from(image, np.indices(image.shape[:2]) - np.reshape((down, right), (2, 1, 1)))


def sheared(image: np.ndarray, columns: float) -> np.ndarray:
    """Each row shifted to the right by `columns` pixels per row that it lies below the middle."""
    return _moved(image, [[1, 0], [-columns, 1]])


def scaled(image: np.ndarray, factor: float) -> np.ndarray:
    """Enlarged, or shrunk by a factor below 1, about the middle."""
    return _moved(image, [[1 / factor, 0], [0, 1 / factor]])


def _moved(image: np.ndarray, matrix: list[list[float]]) -> np.ndarray:
    """What is seen at a place (row, column) from the middle comes from `matrix` times that place."""
    middle = (np.reshape(image.shape[:2], (2, 1, 1)) - 1) / 2
    return _from(image, np.tensordot(matrix, np.indices(image.shape[:2]) - middle, 1) + middle)


def _from(image: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The image at places (2, H, W), by linear interpolation."""
    beyond = "grid-constant" if image.shape[-1] == 1 else "mirror"
    channels = [ndimage.map_coordinates(channel, places, order=1, mode=beyond) for channel in np.moveaxis(image, -1, 0)]
    return np.stack(channels, axis=-1)


@lru_cache
def _enlarging(size: int, factors: tuple[float, ...]) -> np.ndarray:
    """Matrices (factors, size, size) that enlarge along an axis about its middle."""
    middle = (size - 1) / 2
    return np.stack([_linear((np.arange(size) - middle) / factor + middle, size) for factor in factors])


def _linear(places: np.ndarray, size: int) -> np.ndarray:
    """A matrix (len(places), size) that reads `size` points at places between them, by linear interpolation."""
    return np.maximum(0, 1 - np.abs(places[:, np.newaxis] - np.arange(size)))


@lru_cache
def _boxes(size: int, few: int) -> np.ndarray:
    """A matrix (few, size) whose rows are the means of equal parts of `size` pixels."""
    edges, pixels = np.linspace(0, size, few + 1)[:, np.newaxis], np.arange(size)
    covered = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
    return np.maximum(0, covered) * few / size
