"""A network as a row of `sweep.quantization` rounds it, computed in float64 but for that: what the row by itself costs.

Weights are rounded once. Activations are rounded where a layer's output is stored: not between a layer and the batch norm or relu that
alone reads it, which runtimes fuse. Ranges are those of the inputs at hand, so nothing is cut; accumulations are exact.

    int4, int8, ...     weights: symmetric steps, by output channel or for the tensor. Activations int8: 255 steps from the least to the
                        largest, zero among them, int16: symmetric; a pool's output keeps the steps of its input. `dynamic`: the range
                        of each input apart, where a product reads it
    uint8, uint16, ...  every parameter: equal steps from its least to its largest
    float16, bfloat16   every parameter and every stored activation to the nearest, ties to even
"""

from collections import namedtuple

import numpy as np

from sweep import reference

Arithmetic = namedtuple("Arithmetic", "weights activations dynamic granularity rounding")
Arithmetic.__new__.__defaults__ = ("nearest",)
"""Types by name, whether the ranges of activations are taken anew for every input, what has a scale of its own (`channel`, `tensor`,
`matrix_channel`: a channel of a matrix and else the tensor, or so many inputs of a channel in a matrix), and whether steps of unsigned
weights are the `nearest` or the one `down`."""
BLOCK = 32  # inputs, where a row says no more than that a block has a scale

PRODUCTS = ("conv2d", "conv1d", "dense", "lstm", "gru")
POOLS = ("max_pool", "average_pool")  # whose output keeps the steps of what they read
_FUSED = ("batch_norm", "relu")
_KERNELS = ("kernel", "recurrent_kernel")
HALF = ("float16", "bfloat16")


def arithmetic(row, options):
    """Of a row of `sweep.quantization.ROWS` and its options, as far as they say. Unsigned weights have one range for a tensor else, signed
    ones one for each output channel."""
    weights = "uint{}".format(options["bits"]) if "bits" in options else row.weights
    granularity = options.get("granularity", "tensor" if weights.startswith("uint") else "channel")
    granularity = BLOCK if granularity == "block" else granularity
    if options.get("group_size", 0) > 0:
        granularity = options["group_size"]
    rounding = options.get("rounding", "nearest")
    return Arithmetic(weights, row.activations.split(" ")[0], row.kind == "dynamic", granularity, rounding)


def logits(layers, weights, inputs, how, chunk=32):
    """Outputs float64 (N, ...) of the last layer under an Arithmetic, of inputs as `sweep.reference.logits` takes them."""
    rounded, stored = rounded_weights(layers, weights, how), stored_layers(layers)
    parts = [inputs[start:start + chunk] for start in range(0, len(inputs), chunk)]
    limits = {}
    if how.activations.startswith("int") and not how.dynamic:
        for part in parts:
            for name, values in reference.layer_outputs(layers, weights, part).items():
                low, high = limits.get(name, (0.0, 0.0))  # zero is a step: padding and relu give it
                limits[name] = min(low, float(values.min())), max(high, float(values.max()))
        for layer in layers:
            if layer["kind"] in POOLS:
                limits[layer["name"]] = limits[layer["inputs"][0]]
    with np.errstate(over="ignore", invalid="ignore"):  # where float16 has no number
        return np.concatenate([_run(layers, rounded, part, how, stored, limits) for part in parts])


def _run(layers, rounded, inputs, how, stored, limits):
    values = {}
    for layer in layers:
        texts = layer["kind"] == "tokens"
        given = [values[name] for name in layer["inputs"]] or [np.asarray(inputs, None if texts else np.float64)]
        if how.dynamic and layer["kind"] in PRODUCTS:
            given = [each_rounded(array) for array in given]
        result = applied(layer, reference.own_weights(layer, rounded), given, how)
        if how.activations in HALF or layer["name"] in limits:
            result = activation(result, how.activations, limits.get(layer["name"])) if layer["name"] in stored and not texts else result
        values[layer["name"]] = result
    return values[layers[-1]["name"]]


def applied(layer, own, given, how):
    """A layer's output before it is stored. A normalisation is two operators, whose constants and whose difference are integers too."""
    if layer["kind"] != "normalize" or how.dynamic or not how.activations.startswith("int"):
        return reference.apply(layer, own, *given)
    mean, factor = np.asarray(layer["mean"], np.float64), 1 / np.asarray(layer["std"], np.float64)
    mean, factor = (_steps(constant, np.abs(constant).max() / (2 ** (bits(how.activations) - 1) - 1)) for constant in (mean, factor))
    centred = given[0] - mean
    return activation(centred, how.activations, (min(float(centred.min()), 0.0), max(float(centred.max()), 0.0))) * factor


def stored_layers(layers):
    """Names of the layers whose outputs are stored: all but those that a single batch norm or relu reads."""
    readers = {}
    for layer in layers:
        for name in layer["inputs"]:
            readers.setdefault(name, []).append(layer["kind"])
    return {layer["name"] for layer in layers if not (len(readers.get(layer["name"], ())) == 1 and readers[layer["name"]][0] in _FUSED)}


def activation(values, kind, limits):
    """Activations rounded to the type `kind`; integers between the `limits`, beyond which they are cut."""
    if kind in HALF:
        return half(values, kind)
    low, high = limits
    if kind == "int16":
        return _steps(np.clip(values, low, high), max(-low, high) / (2 ** 15 - 1))
    scale = (high - low) / (2 ** bits(kind) - 1)
    return _steps(np.clip(values, low, high), scale)


def each_rounded(values):
    """Every input's activations in 255 steps of its own range."""
    axes = tuple(range(1, values.ndim))
    low, high = np.minimum(values.min(axis=axes, keepdims=True), 0), np.maximum(values.max(axis=axes, keepdims=True), 0)
    return _steps(values, (high - low) / 255)


def rounded_weights(layers, weights, how):
    """Parameters by canonical name, float64, as the deployed file holds them."""
    scales = _folded(layers, weights)
    found = {}
    for name, array in weights.items():
        owner, _, parameter = name.rpartition("/")
        array = np.asarray(array, np.float64)
        if how.weights in HALF:
            array = half(array, how.weights)
        elif how.weights.startswith("uint"):
            by_channel = how.granularity == "channel" and parameter in _KERNELS
            axes = tuple(range(array.ndim - 1)) if by_channel else None
            array = _between(array, bits(how.weights), axes, np.floor if how.rounding == "down" else np.rint)
        elif how.weights.startswith("int") and parameter in _KERNELS:
            folded = array * scales.get(owner, 1.0)
            steps = _steps(folded, _largest_magnitudes(folded, how.granularity) / (2 ** (bits(how.weights) - 1) - 1))
            array = np.divide(steps, scales.get(owner, 1.0), out=array.copy(), where=scales.get(owner, np.ones(1)) != 0)
        found[name] = array
    return found


def _folded(layers, weights):
    """What the batch norm that alone reads a layer multiplies its output channels by, by name of that layer: converters put it into the
    kernel before they take its range."""
    readers = {}
    for layer in layers:
        for name in layer["inputs"]:
            readers.setdefault(name, []).append(layer)
    found = {}
    for name, reading in readers.items():
        if len(reading) == 1 and reading[0]["kind"] == "batch_norm":
            own = reference.own_weights(reading[0], weights)
            found[name] = own["gamma"] / np.sqrt(own["variance"] + reading[0]["epsilon"])
    return found


def bits(kind):
    """How many bits an integer type has, by its name."""
    return int(kind.replace("uint", "").replace("int", ""))


def _largest_magnitudes(values, granularity):
    """Of what has a scale of its own, in a shape that goes with the values'."""
    magnitudes = np.abs(values)
    if granularity == "tensor" or (granularity == "matrix_channel" and values.ndim != 2):
        return magnitudes.max()
    if granularity in ("channel", "matrix_channel") or values.ndim != 2:
        return magnitudes.max(axis=tuple(range(values.ndim - 1)), keepdims=True)
    starts = np.arange(0, len(values), granularity)
    return np.repeat(np.maximum.reduceat(magnitudes, starts, axis=0), granularity, axis=0)[:len(values)]


def _between(values, count, axes, rounded):
    if not values.size:
        return values
    low, high = values.min(axis=axes, keepdims=True), values.max(axis=axes, keepdims=True)
    return low + _steps(values - low, (high - low) / (2 ** count - 1), rounded)


def _steps(values, scale, rounded=np.rint):
    """The nearest multiples of scale; as they are where it is 0, which has a range of nothing but zeros."""
    scale = np.asarray(scale, np.float64)
    return np.where(scale > 0, rounded(values / np.where(scale > 0, scale, 1)) * scale, values)


def half(values, kind):
    """float64 rounded to float16 (infinite beyond its range) or to bfloat16."""
    if kind == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float64)
    whole = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    odd = (whole >> np.uint64(16)) & np.uint64(1)
    return ((whole + np.uint64(0x7FFF) + odd) >> np.uint64(16) << np.uint64(16)).astype(np.uint32).view(np.float32).astype(np.float64)
