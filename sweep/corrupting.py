"""Corrupted images by a row of `sweep.corruptions`, each image on its own."""

import io
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from PIL import Image

from sweep import mutating, warping
from sweep.corruptions import ROWS

_ENLARGEMENTS = 11
_MUD = {1: (63,), 3: (63, 42, 20)}  # of 255
_MUD_SMOOTH_PX = 2.0
_FUZZ_SIGMA = 0.1


def corrupt(name: str, settings: Mapping[str, Any], images: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Corrupted images, float32 (N, H, W, C) in [0, 1] at 8-bit values, as the data sets have them.

    `settings` come from `resolve`, `images` are such images too, and `index` int64 (N,) says which of the test set they are. What is drawn
    for an image depends on the seed, its place and the corruption's name alone: not on its companions, nor on the severity, of which more
    is mostly more of the same. Equal arguments give equal results with equal versions of `DISTRIBUTIONS`.

    Raises ValueError where these are no images, have another number of channels than the corruption is for, or there isn't one place for
    each.
    """
    row = ROWS[name]
    if images.ndim != 4 or not np.all((images >= 0) & (images <= 1)):
        raise ValueError(f"corruption {name} is for images (N, H, W, C) in [0, 1], and these inputs of shape {images.shape} are none")
    channels = images.shape[-1]
    if channels not in row.grades:
        raise ValueError(f"corruption {name} is for images of {' or '.join(map(str, row.channels))} channels, and these have {channels}")
    if index.shape != (len(images),):
        raise ValueError(f"corruption {name}: there are {len(images)} images, but places of shape {index.shape}")
    level, change = row.grades[channels].levels[settings["severity"] - 1], CHANGES[name]
    corrupted = np.empty(images.shape, np.float32)
    for number, place in enumerate(index):
        draw = np.random.default_rng((settings["seed"], int(place), zlib.crc32(name.encode())))
        corrupted[number] = mutating.whole(change(images[number].astype(np.float64), level, draw))
    return corrupted / np.float32(255)


def _gaussian_noise(image: np.ndarray, sigma: float, draw: np.random.Generator) -> np.ndarray:
    return image + draw.normal(0, sigma, image.shape)


def _shot_noise(image: np.ndarray, photons: float, draw: np.random.Generator) -> np.ndarray:
    return draw.poisson(image * photons) / photons


def _impulse_noise(image: np.ndarray, share: float, draw: np.random.Generator) -> np.ndarray:
    chosen = draw.permutation(image.size)[: int(share * image.size)]
    noisy = image.copy()
    noisy.flat[chosen[::2]], noisy.flat[chosen[1::2]] = 1, 0
    return noisy


def _speckle_noise(image: np.ndarray, sigma: float, draw: np.random.Generator) -> np.ndarray:
    return image * (1 + draw.normal(0, sigma, image.shape))


def _gaussian_blur(image: np.ndarray, sigma: float, draw: np.random.Generator) -> np.ndarray:
    return warping.blurred(image, sigma)


def _defocus_blur(image: np.ndarray, radius: float, draw: np.random.Generator) -> np.ndarray:
    return warping.filtered(image, warping.disk(radius))


def _motion_blur(image: np.ndarray, sigma: float, draw: np.random.Generator) -> np.ndarray:
    return warping.filtered(image, warping.path(sigma, draw.uniform(-45, 45)))


def _zoom_blur(image: np.ndarray, largest: float, draw: np.random.Generator) -> np.ndarray:
    return warping.zoomed(image, np.linspace(1, largest, _ENLARGEMENTS))


def _fog(image: np.ndarray, level: tuple[float, float], draw: np.random.Generator) -> np.ndarray:
    """Thick fog is no brighter than the image's brightest value. The sources' clouds get weaker by the square of what they call decay."""
    strength, decay = level
    brightest = image.max()
    fog = strength * warping.clouds(image.shape[:2], decay**2, draw)[..., np.newaxis]
    return (image + fog) * brightest / (brightest + strength)


def _spatter(image: np.ndarray, share: float, draw: np.random.Generator) -> np.ndarray:
    """Mud where a smooth random field is highest."""
    height, width, channels = image.shape
    field = warping.blurred(draw.normal(size=(height, width, 1)), _MUD_SMOOTH_PX)
    muddy = np.argsort(field, axis=None)[height * width - int(share * height * width) :]
    spattered = image.copy()
    spattered.reshape(-1, channels)[muddy] = np.divide(_MUD[channels], 255)
    return spattered


def _brightness(image: np.ndarray, more: float, draw: np.random.Generator) -> np.ndarray:
    """Hue and saturation stay where all channels are multiplied alike, and black has none."""
    value = image.max(axis=-1, keepdims=True)
    brighter = np.minimum(value + more, 1)
    return np.where(value > 0, image * brighter / np.where(value > 0, value, 1), brighter)


def _contrast(image: np.ndarray, factor: float, draw: np.random.Generator) -> np.ndarray:
    mean = image.mean(axis=(0, 1))
    return mean + factor * (image - mean)


def _saturate(image: np.ndarray, factors: tuple[float, float], draw: np.random.Generator) -> np.ndarray:
    """Value and hue stay where all channels' distances from the value are multiplied alike, and none gets below 0."""
    value, least = image.max(axis=-1, keepdims=True), image.min(axis=-1, keepdims=True)
    most = value / np.maximum(value - least, 1e-9)  # a saturation of 1
    return value - (value - image) * np.minimum(draw.choice(factors), most)


def _pixelate(image: np.ndarray, share: float, draw: np.random.Generator) -> np.ndarray:
    return warping.pixelated(image, share)


def _jpeg_compression(image: np.ndarray, quality: int, draw: np.random.Generator) -> np.ndarray:
    pixels, file = mutating.whole(image).astype(np.uint8), io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(file, "JPEG", quality=quality)
    with Image.open(file) as compressed:
        return np.asarray(compressed).reshape(image.shape) / 255


def _elastic_transform(image: np.ndarray, most: float, draw: np.random.Generator) -> np.ndarray:
    return warping.shaken(image, most, draw)


def _rotate(image: np.ndarray, degrees: float, draw: np.random.Generator) -> np.ndarray:
    return warping.rotated(image, degrees * draw.choice((-1, 1)))


def _translate(image: np.ndarray, pixels: tuple[float, float], draw: np.random.Generator) -> np.ndarray:
    return warping.translated(image, *(draw.permutation(pixels) * draw.choice((-1, 1), 2)))


def _shear(image: np.ndarray, columns: float, draw: np.random.Generator) -> np.ndarray:
    return warping.sheared(image, columns * draw.choice((-1, 1)))


def _scale(image: np.ndarray, factor: float, draw: np.random.Generator) -> np.ndarray:
    return warping.scaled(image, factor)


def _tensorfuzz(image: np.ndarray, bound: float, draw: np.random.Generator) -> np.ndarray:
    return image + np.clip(draw.normal(0, _FUZZ_SIGMA, image.shape), -bound, bound)


def _deephunter(image: np.ndarray, share: float, draw: np.random.Generator) -> np.ndarray:
    bounds = ROWS["deephunter"].grades[image.shape[-1]].bounds
    return mutating.mutated(image, share, bounds, draw).mutant


CHANGES: dict[str, Callable[[np.ndarray, Any, np.random.Generator], np.ndarray]] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "speckle_noise": _speckle_noise,
    "gaussian_blur": _gaussian_blur,
    "defocus_blur": _defocus_blur,
    "motion_blur": _motion_blur,
    "zoom_blur": _zoom_blur,
    "fog": _fog,
    "spatter": _spatter,
    "brightness": _brightness,
    "contrast": _contrast,
    "saturate": _saturate,
    "pixelate": _pixelate,
    "jpeg_compression": _jpeg_compression,
    "elastic_transform": _elastic_transform,
    "rotate": _rotate,
    "translate": _translate,
    "shear": _shear,
    "scale": _scale,
    "tensorfuzz": _tensorfuzz,
    "deephunter": _deephunter,
}
