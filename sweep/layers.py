"""The neutral description of a network: a list of layers that every framework builds natively.

A layer is a plain dict, so that it crosses the border to a worker as JSON:

    {"kind": "conv2d", "name": "conv1", "inputs": ["input"], "filters": 6, ...}

The first layer is the input; each further one names the layers it reads. The last one gives logits.

Canonical weights are float32 arrays by `layer/parameter`, in these layouts whatever a framework uses inside:

    conv2d       kernel (height, width, in, out), bias (out,)       cross-correlation, no kernel flip
    dense        kernel (in, out), bias (out,)                      rows in the order of a height-width-channel flatten
    batch_norm   gamma, beta, mean, variance, each (channels,)      mean and variance are not trained

Sizes are written out: padding is explicit ((top, bottom), (left, right)), so no framework's notion of `same` is needed.
"""

BATCH_NORM_STATE = ("mean", "variance")


def image_input(height, width, channels, name="input"):
    """The input: float32 (N, height, width, channels) in [0, 1]."""
    return {"kind": "input", "name": name, "inputs": [], "shape": [height, width, channels]}


def normalize(name, source, mean, std):
    """(x - mean) / std per channel, so that normalisation is part of the model and eps means the same everywhere."""
    return {"kind": "normalize", "name": name, "inputs": [source], "mean": list(mean), "std": list(std)}


def conv2d(name, source, filters, kernel, stride=1, padding=((0, 0), (0, 0)), initializer="glorot_uniform"):
    """Cross-correlation with a square kernel and a bias; zero padding is explicit. `initializer` holds for the kernel where the recipe
    asks for equal formulas: `glorot_uniform` (Glorot & Bengio 2010) or `he_normal` (He et al. 2015, truncated at two deviations)."""
    return {"kind": "conv2d", "name": name, "inputs": [source], "filters": filters, "kernel": kernel, "stride": stride,
            "padding": [list(side) for side in padding], "initializer": initializer}


def dense(name, source, units, initializer="glorot_uniform"):
    """Matrix product and bias."""
    return {"kind": "dense", "name": name, "inputs": [source], "units": units, "initializer": initializer}


def batch_norm(name, source, epsilon=None, momentum=None):
    """Batch normalisation over all axes but the channel (Ioffe & Szegedy 2015).

    `momentum` is the share of the old moving statistic that is kept. None leaves either to the framework (recipe `defaults`);
    `resolve` of a framework writes the value it takes.
    """
    return {"kind": "batch_norm", "name": name, "inputs": [source], "epsilon": epsilon, "momentum": momentum}


def relu(name, source):
    return {"kind": "relu", "name": name, "inputs": [source]}


def max_pool(name, source, size=2, stride=2):
    """Maximum over square windows, no padding; a remainder at the edge is dropped."""
    return {"kind": "max_pool", "name": name, "inputs": [source], "size": size, "stride": stride}


def average_pool(name, source, size=2, stride=2):
    """Mean over square windows, no padding; a remainder at the edge is dropped."""
    return {"kind": "average_pool", "name": name, "inputs": [source], "size": size, "stride": stride}


def flatten(name, source):
    """(N, height, width, channels) to (N, features), the channel fastest."""
    return {"kind": "flatten", "name": name, "inputs": [source]}


def add(name, left, right):
    """Elementwise sum of two layers of equal shape."""
    return {"kind": "add", "name": name, "inputs": [left, right]}


def same_padding(size, kernel, stride):
    """The (before, after) zeros that keep ceil(size / stride) outputs, the odd one after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return (total // 2, total - total // 2)


def shapes(layers):
    """Output shape of each layer by name, without the batch axis.

    Raises ValueError where two inputs of a sum differ, an input is smaller than a window, or a kind is unknown.
    """
    found = {}
    for layer in layers:
        if layer["kind"] not in _OUTPUT_SHAPE:
            raise ValueError("there is no layer of kind {!r}".format(layer["kind"]))
        inputs = [found[name] for name in layer["inputs"]]
        found[layer["name"]] = _OUTPUT_SHAPE[layer["kind"]](layer, *inputs)
    return found


def parameters(layers):
    """Canonical parameter shapes by `layer/parameter`, in the order of the list; batch_norm's moving statistics included."""
    sizes, found = shapes(layers), {}
    for layer in layers:
        name = layer["name"]
        if layer["kind"] == "conv2d":
            channels = sizes[layer["inputs"][0]][-1]
            found[name + "/kernel"] = (layer["kernel"], layer["kernel"], channels, layer["filters"])
            found[name + "/bias"] = (layer["filters"],)
        elif layer["kind"] == "dense":
            found[name + "/kernel"] = (sizes[layer["inputs"][0]][-1], layer["units"])
            found[name + "/bias"] = (layer["units"],)
        elif layer["kind"] == "batch_norm":
            for parameter in ("gamma", "beta") + BATCH_NORM_STATE:
                found[name + "/" + parameter] = (sizes[name][-1],)
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


def _window(layer, shape, kernel, padding=((0, 0), (0, 0))):
    sizes = tuple((size + sum(pad) - kernel) // layer["stride"] + 1 for size, pad in zip(shape[:2], padding))
    if min(sizes) < 1:
        raise ValueError("{} reads windows of {} from {} x {}".format(layer["name"], kernel, *shape[:2]))
    return sizes


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
    "normalize": _unchanged,
    "conv2d": lambda layer, shape: _window(layer, shape, layer["kernel"], layer["padding"]) + (layer["filters"],),
    "dense": lambda layer, _shape: (layer["units"],),
    "batch_norm": _unchanged,
    "relu": _unchanged,
    "max_pool": _pooled,
    "average_pool": _pooled,
    "flatten": lambda _layer, shape: (_product(shape),),
    "add": _sum,
}
KINDS = tuple(_OUTPUT_SHAPE)
