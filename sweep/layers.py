"""The neutral description of a network: a list of layers that every framework builds natively.

A layer is a plain dict, so that it crosses the border to a worker as JSON:

    {"kind": "conv2d", "name": "conv1", "inputs": ["input"], "filters": 6, ...}

The first layer is the input (`input` for images, `tokens` for texts); each further one names the layers it reads. The last one gives
logits.

Canonical weights are float32 arrays by `layer/parameter`, in these layouts whatever a framework uses inside:

    conv2d       kernel (height, width, in, out), bias (out,)       cross-correlation, no kernel flip
    conv1d       kernel (width, in, out), bias (out,)               likewise
    dense        kernel (in, out), bias (out,)                      rows in the order of a height-width-channel flatten
    batch_norm   gamma, beta, mean, variance, each (channels,)      mean and variance are not trained
    embedding    kernel (vocabulary, units)
    lstm         kernel (in, 4 x units), recurrent_kernel (units, 4 x units), bias (4 x units,)      gates i, f, g, o
    gru          kernel (in, 3 x units), recurrent_kernel (units, 3 x units), bias (3 x units,)      gates z, r, h
                 and, where the reset comes after the product, recurrent_bias (3 x units,)

Sizes are written out: padding is explicit ((top, bottom), (left, right)), so no framework's notion of `same` is needed.

Some fields may be None, which leaves them to the recipe: `resolved` fills them.
"""

BATCH_NORM_STATE = ("mean", "variance")
AGREED = {
    "batch_norm": {"epsilon": 1e-3, "momentum": 0.99},
    "lstm": {"recurrent_activation": "sigmoid"},
    "gru": {"recurrent_activation": "sigmoid", "reset_after": True},
}
"""What a field that a list leaves open is, by kind, where the recipe asks for equal formulas."""


def resolved(layers, recipe, own):
    """A copy of the list without None: what a framework takes by itself (its FACTS["own"]) under `defaults`, else AGREED."""
    fill = own if recipe == "defaults" else AGREED
    return [
        dict(layer, **{key: value for key, value in fill.get(layer["kind"], {}).items() if key in layer and layer[key] is None})
        for layer in layers
    ]


def image_input(height, width, channels, name="input"):
    """The input: float32 (N, height, width, channels) in [0, 1]."""
    return {"kind": "input", "name": name, "inputs": [], "shape": [height, width, channels]}


def tokens(length, vocabulary, name="input"):
    """The input of a text network: token ids int32 (N, length), each from 0 to vocabulary - 1."""
    return {"kind": "tokens", "name": name, "inputs": [], "shape": [length], "vocabulary": vocabulary}


def normalize(name, source, mean, std):
    """(x - mean) / std per channel, so that normalisation is part of the model and eps means the same everywhere."""
    return {"kind": "normalize", "name": name, "inputs": [source], "mean": list(mean), "std": list(std)}


def conv2d(name, source, filters, kernel, stride=1, padding=((0, 0), (0, 0)), initializer="glorot_uniform"):
    """Cross-correlation with a square kernel and a bias; zero padding is explicit. `initializer` holds for the kernel where the recipe
    asks for equal formulas: `glorot_uniform` (Glorot & Bengio 2010) or `he_normal` (He et al. 2015, truncated at two deviations)."""
    return {"kind": "conv2d", "name": name, "inputs": [source], "filters": filters, "kernel": kernel, "stride": stride,
            "padding": [list(side) for side in padding], "initializer": initializer}


def conv1d(name, source, filters, kernel, stride=1, padding=(0, 0), initializer="glorot_uniform"):
    """Cross-correlation along the steps of a sequence (N, steps, channels), and a bias; `padding` is zeros (before, after)."""
    return {"kind": "conv1d", "name": name, "inputs": [source], "filters": filters, "kernel": kernel, "stride": stride,
            "padding": list(padding), "initializer": initializer}


def embedding(name, source, vocabulary, units, initializer="uniform"):
    """One row of a table per token: (N, steps) to (N, steps, units). No token is masked. `uniform` is from -0.05 to 0.05."""
    return {"kind": "embedding", "name": name, "inputs": [source], "vocabulary": vocabulary, "units": units, "initializer": initializer}


def lstm(name, source, units, return_sequences=False, recurrent_activation=None, initializer="glorot_uniform"):
    """Long short-term memory (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000), from zero states:

        i, f, o = s(x K + h R + b) of each gate;  g = tanh(x K + h R + b);  c = f c + i g;  h = o tanh(c)

    (N, steps, in) to (N, units), or (N, steps, units) for `return_sequences`. `recurrent_activation` is s: `sigmoid`, or
    `hard_sigmoid`, which is 0.2 x + 0.5 cut to [0, 1].
    """
    return {"kind": "lstm", "name": name, "inputs": [source], "units": units, "return_sequences": return_sequences,
            "recurrent_activation": recurrent_activation, "initializer": initializer}


def gru(name, source, units, return_sequences=False, recurrent_activation=None, reset_after=None, initializer="glorot_uniform"):
    """Gated recurrent unit (Cho et al. 2014), from a zero state:

        z, r = s(x K + b + h R + d) of each gate;  h = z h + (1 - z) c
        c = tanh(x K + b + r (h R + d))    where the reset comes after the product (as cuDNN has it)
        c = tanh(x K + b + (r h) R)        where it comes before, and then there is no d

    b is `bias` and d is `recurrent_bias`. Shapes and `recurrent_activation` as in `lstm`.
    """
    return {"kind": "gru", "name": name, "inputs": [source], "units": units, "return_sequences": return_sequences,
            "recurrent_activation": recurrent_activation, "reset_after": reset_after, "initializer": initializer}


def dense(name, source, units, initializer="glorot_uniform"):
    """Matrix product and bias."""
    return {"kind": "dense", "name": name, "inputs": [source], "units": units, "initializer": initializer}


def batch_norm(name, source, epsilon=None, momentum=None):
    """Batch normalisation over all axes but the channel (Ioffe & Szegedy 2015). `momentum` is the share of the old moving statistic
    that is kept."""
    return {"kind": "batch_norm", "name": name, "inputs": [source], "epsilon": epsilon, "momentum": momentum}


def relu(name, source):
    return {"kind": "relu", "name": name, "inputs": [source]}


def max_pool(name, source, size=2, stride=2, padding=((0, 0), (0, 0))):
    """Maximum over square windows; padding never is the maximum, and a remainder at the edge is dropped."""
    return {"kind": "max_pool", "name": name, "inputs": [source], "size": size, "stride": stride,
            "padding": [list(side) for side in padding]}


def average_pool(name, source, size=2, stride=2, padding=((0, 0), (0, 0))):
    """Mean over square windows; padding does not count, and a remainder at the edge is dropped."""
    return {"kind": "average_pool", "name": name, "inputs": [source], "size": size, "stride": stride,
            "padding": [list(side) for side in padding]}


def global_max_pool(name, source):
    """Maximum over all axes but the channel: (N, ..., channels) to (N, channels)."""
    return {"kind": "global_max_pool", "name": name, "inputs": [source]}


def flatten(name, source):
    """(N, height, width, channels) to (N, features), the channel fastest."""
    return {"kind": "flatten", "name": name, "inputs": [source]}


def add(name, left, right):
    """Elementwise sum of two layers of equal shape."""
    return {"kind": "add", "name": name, "inputs": [left, right]}


def concatenate(name, *sources):
    """Several layers side by side along the last axis."""
    return {"kind": "concatenate", "name": name, "inputs": list(sources)}


def same_padding(size, kernel, stride):
    """The (before, after) zeros that keep ceil(size / stride) outputs, the odd one after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return (total // 2, total - total // 2)


def shapes(layers):
    """Output shape of each layer by name, without the batch axis.

    Raises ValueError where two layers have one name, an input is no layer before, a size is no whole number, two inputs of a sum differ, an
    input is smaller than a window or has other axes than the layer reads, or a kind is unknown.
    """
    found = {}
    for layer in layers:
        if layer["kind"] not in _OUTPUT_SHAPE:
            raise ValueError("there is no layer of kind {!r}".format(layer["kind"]))
        if layer["name"] in found:
            raise ValueError("two layers are called {}".format(layer["name"]))
        for name in layer["inputs"]:
            if name not in found:
                raise ValueError("{} reads {}, which is no layer before it".format(layer["name"], name))
        for field in ("filters", "units", "kernel", "stride", "size", "vocabulary"):
            if field in layer and not (isinstance(layer[field], int) and layer[field] > 0):
                raise ValueError("{} of {} is {!r} and must be a whole number above 0".format(field, layer["name"], layer[field]))
        inputs = [found[name] for name in layer["inputs"]]
        found[layer["name"]] = _OUTPUT_SHAPE[layer["kind"]](layer, *inputs)
    return found


def parameters(layers):
    """Canonical parameter shapes by `layer/parameter`, in the order of the list; batch_norm's moving statistics included."""
    sizes, found = shapes(layers), {}
    for layer in layers:
        if layer["kind"] in _PARAMETERS:
            for parameter, shape in _PARAMETERS[layer["kind"]](layer, sizes[layer["inputs"][0]][-1]):
                found[layer["name"] + "/" + parameter] = shape
    return found


def count(layers):
    """How many numbers `parameters` holds, moving statistics included (as Keras counts a network's total)."""
    total = 0
    for shape in parameters(layers).values():
        size = 1
        for extent in shape:
            size *= extent
        total += size
    return total


def _window(layer, shape, kernel):
    if len(shape) != 3:
        raise ValueError("{} reads images and gets {}".format(layer["name"], shape))
    sizes = tuple((size + sum(pad) - kernel) // layer["stride"] + 1 for size, pad in zip(shape[:2], layer["padding"]))
    if min(sizes) < 1:
        raise ValueError("{} reads windows of {} from {} x {}".format(layer["name"], kernel, *shape[:2]))
    return sizes


def _steps(layer, shape):
    if len(shape) != 2:
        raise ValueError("{} reads sequences and gets {}".format(layer["name"], shape))
    return shape[0]


def _conv1d(layer, shape):
    steps = (_steps(layer, shape) + sum(layer["padding"]) - layer["kernel"]) // layer["stride"] + 1
    if steps < 1:
        raise ValueError("{} reads windows of {} from {} steps".format(layer["name"], layer["kernel"], shape[0]))
    return (steps, layer["filters"])


def _dense(layer, shape):
    if len(shape) != 1:
        raise ValueError("{} reads vectors and gets {}".format(layer["name"], shape))
    return (layer["units"],)


def _embedding(layer, shape):
    if len(shape) != 1:
        raise ValueError("{} reads token ids and gets {}".format(layer["name"], shape))
    return shape + (layer["units"],)


def _recurrent(layer, shape):
    steps = _steps(layer, shape)
    return (steps, layer["units"]) if layer["return_sequences"] else (layer["units"],)


def _side_by_side(layer, *shapes):
    if len({shape[:-1] for shape in shapes}) > 1:
        raise ValueError("{} puts {} side by side".format(layer["name"], " and ".join(map(str, shapes))))
    return shapes[0][:-1] + (sum(shape[-1] for shape in shapes),)


def _sum(layer, left, right):
    if left != right:
        raise ValueError("{} adds {} to {}".format(layer["name"], right, left))
    return left


def _product(shape):
    size = 1
    for extent in shape:
        size *= extent
    return size


def _unchanged(_layer, shape):
    return shape


def _pooled(layer, shape):
    return _window(layer, shape, layer["size"]) + (shape[2],)


_OUTPUT_SHAPE = {
    "input": lambda layer: tuple(layer["shape"]),
    "tokens": lambda layer: tuple(layer["shape"]),
    "normalize": _unchanged,
    "conv2d": lambda layer, shape: _window(layer, shape, layer["kernel"]) + (layer["filters"],),
    "conv1d": _conv1d,
    "dense": _dense,
    "batch_norm": _unchanged,
    "embedding": _embedding,
    "lstm": _recurrent,
    "gru": _recurrent,
    "relu": _unchanged,
    "max_pool": _pooled,
    "average_pool": _pooled,
    "global_max_pool": lambda layer, shape: shape[-1:],
    "flatten": lambda _layer, shape: (_product(shape),),
    "add": _sum,
    "concatenate": _side_by_side,
}
KINDS = tuple(_OUTPUT_SHAPE)


def _gates(layer, channels, gates):
    wide = gates * layer["units"]
    return [("kernel", (channels, wide)), ("recurrent_kernel", (layer["units"], wide)), ("bias", (wide,))]


_PARAMETERS = {
    "conv2d": lambda layer, channels: [
        ("kernel", (layer["kernel"], layer["kernel"], channels, layer["filters"])), ("bias", (layer["filters"],))
    ],
    "conv1d": lambda layer, channels: [("kernel", (layer["kernel"], channels, layer["filters"])), ("bias", (layer["filters"],))],
    "dense": lambda layer, channels: [("kernel", (channels, layer["units"])), ("bias", (layer["units"],))],
    "batch_norm": lambda layer, channels: [(parameter, (channels,)) for parameter in ("gamma", "beta") + BATCH_NORM_STATE],
    "embedding": lambda layer, _channels: [("kernel", (layer["vocabulary"], layer["units"]))],
    "lstm": lambda layer, channels: _gates(layer, channels, 4),
    "gru": lambda layer, channels: (
        _gates(layer, channels, 3) + ([("recurrent_bias", (3 * layer["units"],))] if layer["reset_after"] else [])
    ),
}
