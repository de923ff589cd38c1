"""Random networks with weights as training leaves them, and inputs for them."""

from typing import Any, NamedTuple

import numpy as np

from sweep import initial, reference
from sweep import layers as neutral

EXAMPLES = 12


class Drawn(NamedTuple):
    """A network, its canonical weights (float32) and inputs: images (N, H, W, C) in [0, 1], or token ids (N, T)."""

    layers: list[dict[str, Any]]
    weights: dict[str, np.ndarray]
    inputs: np.ndarray


def draw(random, framework: str) -> Drawn:
    family = [_convolutional, _convolutional, _residual, _words, _recurrent][random.randint(5)]
    layers = family(random, framework)
    inputs = token_ids(random, layers[0]) if layers[0]["kind"] == "tokens" else images(random, layers[0]["shape"])
    return Drawn(layers, trained(random, layers, again(random, layers[0])), inputs)


def again(random, first):
    return token_ids(random, first) if first["kind"] == "tokens" else images(random, first["shape"])


def images(random, shape):
    """Blobs on a dim, noisy ground."""
    height, width, channels = shape
    rows, columns = np.mgrid[:height, :width]
    images = random.uniform(0, 0.2, (EXAMPLES, height, width, channels))
    for image in images:
        for _ in range(3):
            centre, size = random.uniform(0, 1, 2) * (height, width), random.uniform(1, 3)
            blob = np.exp(-((rows - centre[0]) ** 2 + (columns - centre[1]) ** 2) / (2 * size**2))
            image += blob[:, :, None] * random.uniform(0, 0.8, channels)
    return np.clip(images, 0, 1).astype(np.float32)


def token_ids(random, first):
    """Ids with some padding, token 0, at the end or the start."""
    length = first["shape"][0]
    ids = random.randint(1, first["vocabulary"], (EXAMPLES, length))
    at_the_end = random.randint(2)
    for row in ids:
        few = random.randint(0, length // 2 + 1)
        if few:
            row[slice(-few, None) if at_the_end else slice(0, few)] = 0
    return ids.astype(np.int32)


def trained(random, layers, inputs):
    """Kernels drawn as the list says, with uneven filters; biases, betas and gammas off their neutral values; moving statistics near
    what the layer reads, from other inputs than those that are judged."""
    weights = initial.weights(layers, random.randint(2**31))
    sizes = neutral.parameters(layers)
    values: dict[str, np.ndarray] = {}
    for layer in layers:
        name, kind = layer["name"], layer["kind"]
        given = [values[source] for source in layer["inputs"]] or [inputs.astype(np.float64) if kind == "input" else inputs]
        if kind in ("conv2d", "conv1d"):
            weights[f"{name}/kernel"] = weights[f"{name}/kernel"] * np.exp(random.normal(0, 0.5, sizes[f"{name}/kernel"][-1:]))
        if kind == "embedding":
            weights[f"{name}/kernel"] = weights[f"{name}/kernel"] * 10
        if kind == "batch_norm":
            axes = tuple(range(given[0].ndim - 1))
            mean, variance = given[0].mean(axes), given[0].var(axes)
            drawn = {
                "gamma": random.uniform(0.5, 1.5, mean.shape), "beta": random.normal(0, 0.4, mean.shape),
                "mean": mean + random.normal(0, 0.2, mean.shape) * np.sqrt(variance),
                "variance": variance * np.exp(random.normal(0, 0.3, mean.shape)) + 1e-6,
            }
            weights.update({f"{name}/{parameter}": array for parameter, array in drawn.items()})
        for parameter in ("bias", "recurrent_bias"):
            if f"{name}/{parameter}" in sizes:
                start = weights[f"{name}/{parameter}"]
                weights[f"{name}/{parameter}"] = start + random.normal(0, 0.3, start.shape)
        weights = {key: np.asarray(array, np.float32) for key, array in weights.items()}
        values[name] = reference.apply(layer, reference.own_weights(layer, weights), *given)
    return weights


class _Names:
    """Layers added one after another, each reading the last unless told."""

    def __init__(self, first):
        self.layers, self.counts = [first], {}

    @property
    def last(self):
        return self.layers[-1]["name"]

    @property
    def shape(self):
        return neutral.shapes(self.layers)[self.last]

    def add(self, make, *arguments, source=None, **options):
        self.counts[make.__name__] = self.counts.get(make.__name__, 0) + 1
        name = f"{make.__name__}{self.counts[make.__name__]}"
        sources = source if isinstance(source, tuple) else (source or self.last,)
        self.layers.append(make(name, *sources, *arguments, **options))
        return name


def _padding(random, window, size, stride):
    """None, the same on both sides, or the uneven one that keeps ceil(size / stride)."""
    choice = random.randint(3)
    if choice == 2:
        return [neutral.same_padding(extent, window, stride) for extent in size]
    return [(choice * (window // 2),) * 2 for _ in size]


def _image_start(random):
    channels = int(random.choice([1, 3, 3]))
    made = _Names(neutral.image_input(int(random.randint(9, 15)), int(random.randint(9, 15)), channels))
    if random.randint(3):
        made.add(neutral.normalize, list(random.uniform(0.1, 0.5, channels)), list(random.uniform(0.2, 0.5, channels)))
    return made


def _convolve(random, made, filters=None, normed=None):
    kernel, stride = int(random.choice([2, 3, 3, 5])), int(random.choice([1, 1, 2]))
    size = made.shape[:2]
    padding = _padding(random, kernel, size, stride)
    if min((extent + sum(side) - kernel) // stride + 1 for extent, side in zip(size, padding)) < 3:
        kernel, stride, padding = 3, 1, [(1, 1), (1, 1)]
    filters = filters or int(random.choice([made.shape[-1], 4, 6, 8]))
    made.add(neutral.conv2d, filters, kernel, stride, padding)
    if random.randint(2) if normed is None else normed:
        made.add(neutral.batch_norm, epsilon=float(random.choice([1e-3, 1e-5, 2e-5])), momentum=0.9)


def _pool(random, made):
    make = [neutral.max_pool, neutral.average_pool][random.randint(2)]
    size, stride = int(random.choice([2, 3])), int(random.choice([1, 2]))
    padding = _padding(random, size, made.shape[:2], stride) if size == 3 else [(0, 0), (0, 0)]
    if min((extent + sum(side) - size) // stride + 1 for extent, side in zip(made.shape[:2], padding)) >= 2:
        made.add(make, size, stride, padding)


def _end(random, made):
    if len(made.shape) > 1:
        made.add(neutral.global_max_pool if random.randint(3) == 0 else neutral.flatten)
    width = made.shape[0]
    for _ in range(random.randint(0, 3)):
        made.add(neutral.dense, width if random.randint(2) and width < 40 else int(random.randint(5, 12)))
        if random.randint(2):
            made.add(neutral.relu)
        width = made.shape[0]
    made.add(neutral.dense, int(random.randint(4, 9)))
    return made.layers


def _convolutional(random, _framework):
    made = _image_start(random)
    for _ in range(random.randint(1, 4)):
        _convolve(random, made)
        if random.randint(4):
            made.add(neutral.relu)
        if random.randint(2):
            _pool(random, made)
    return _end(random, made)


def _residual(random, _framework):
    made = _image_start(random)
    _convolve(random, made, 4)
    made.add(neutral.relu)
    for _ in range(random.randint(1, 3)):
        start = made.last
        for _ in range(2):
            made.add(neutral.conv2d, made.shape[-1], 3, 1, ((1, 1), (1, 1)))
            made.add(neutral.batch_norm, epsilon=float(random.choice([1e-3, 1e-5])), momentum=0.9)
            if made.counts["batch_norm"] % 2:
                made.add(neutral.relu)
        made.add(neutral.add, source=(made.last, start))
        made.add(neutral.relu)
    _pool(random, made)
    return _end(random, made)


def _text_start(random):
    vocabulary = int(random.randint(15, 40))
    made = _Names(neutral.tokens(int(random.randint(8, 16)), vocabulary))
    made.add(neutral.embedding, vocabulary, int(random.randint(4, 9)))
    return made


def _words(random, _framework):
    """Convolutions of several widths over words, side by side."""
    made = _text_start(random)
    source, ends = made.last, []
    filters = int(random.randint(3, 7))
    for _ in range(random.randint(1, 4)):
        kernel, stride = int(random.randint(2, 5)), int(random.choice([1, 1, 2]))
        padding = _padding(random, kernel, made.shape[:1], stride)[0] if source == made.last else (0, 0)
        made.add(neutral.conv1d, filters, kernel, stride, padding, source=source)
        if random.randint(2):
            made.add(neutral.batch_norm, epsilon=float(random.choice([1e-3, 1e-5])), momentum=0.9)
        if random.randint(3):
            made.add(neutral.relu)
        ends.append(made.add(neutral.global_max_pool))
    if len(ends) > 1:
        made.add(neutral.concatenate, source=tuple(ends))
    return _end(random, made)


def _recurrent(random, framework):
    made = _text_start(random)
    for index in range(random.randint(1, 3)):
        units = int(random.choice([made.shape[-1], 5, 7]))
        gate = "hard_sigmoid" if framework == "tensorflow" and random.randint(4) == 0 else "sigmoid"
        sequences = bool(random.randint(2)) if index else True
        if random.randint(2):
            made.add(neutral.lstm, units, sequences, gate)
        else:
            made.add(neutral.gru, units, sequences, gate, framework == "pytorch" or bool(random.randint(2)))
        if not sequences:
            break
    return _end(random, made)
