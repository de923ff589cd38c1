"""The faults: each has forms, functions that make a suspect of a drawn network and a layer of it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sweep import layers as neutral

from . import operators

CONVOLUTIONS, RECURRENT, POOLS = ("conv2d", "conv1d"), ("lstm", "gru"), ("max_pool", "average_pool")
BOTH = ("pytorch", "tensorflow")


class Unsuitable(Exception):
    """The fault can't be had by this layer."""


class Form(NamedTuple):
    """`perform(random, network, layer)` gives the arguments of `run` that make the suspect."""

    perform: Callable
    kinds: tuple[str, ...]
    frameworks: tuple[str, ...] = BOTH


FAULTS: dict[str, list[Form]] = {}


def form(fault, *kinds, frameworks=BOTH):
    def register(function):
        FAULTS.setdefault(fault, []).append(Form(function, kinds, frameworks))
        return function

    return register


def _weights(network, layer, **changed):
    """The network's weights but for some of the layer's; a function is given the right ones."""
    weights = dict(network.weights)
    for parameter, value in changed.items():
        name = f"{layer['name']}/{parameter}"
        value = value(weights[name]) if callable(value) else value
        if value.shape != weights[name].shape:
            raise Unsuitable
        weights[name] = np.ascontiguousarray(value, dtype=np.float32)
    return {"weights": weights}


def _list(network, layer, weights=None, **fields):
    """The network's list but for some fields of the layer. What doesn't fit any more is unsuitable."""
    changed = [dict(each, **fields) if each is layer else each for each in network.layers]
    return _suspect(network, changed, weights)


def _suspect(network, changed, weights=None):
    weights = weights or network.weights
    try:
        if {name: tuple(shape) for name, shape in neutral.parameters(changed).items()} != {k: v.shape for k, v in weights.items()}:
            raise Unsuitable
        sizes = neutral.shapes(changed)
    except (ValueError, KeyError):
        raise Unsuitable from None
    if any(len(each["mean"]) != sizes[each["inputs"][0]][-1] for each in changed if each["kind"] == "normalize"):
        raise Unsuitable
    return {"layers": changed, "weights": weights}


def _instead(layer, function):
    return {"instead": {layer["name"]: function}}


def _own(network, layer):
    return {key.rpartition("/")[2]: array for key, array in network.weights.items() if key.rpartition("/")[0] == layer["name"]}


def _shape_before(network, layer):
    return neutral.shapes(network.layers)[layer["inputs"][0]]


@form("kernel_flip", *CONVOLUTIONS)
def flipped(random, network, layer):
    spatial = [0, 1] if layer["kind"] == "conv2d" else [0]
    if random.randint(2):
        spatial = [int(random.choice(spatial))]
    return _weights(network, layer, kernel=lambda kernel: np.flip(kernel, spatial))


@form("transposed_kernel", "dense")
def transposed_dense(_random, network, layer):
    return _weights(network, layer, kernel=lambda kernel: kernel.T)


@form("transposed_kernel", "dense", *CONVOLUTIONS)
def reshaped_kernel(_random, network, layer):
    """Numbers kept as (out, in, ...), loaded without moving them."""
    return _weights(network, layer, kernel=lambda kernel: np.moveaxis(np.moveaxis(kernel, -1, 0), -1, 1).reshape(kernel.shape))


@form("transposed_kernel", *CONVOLUTIONS)
def transposed_convolution(random, network, layer):
    axes = [(0, 2, 1)] if layer["kind"] == "conv1d" else [(0, 1, 3, 2), (1, 0, 2, 3), (1, 0, 3, 2)]
    return _weights(network, layer, kernel=lambda kernel: kernel.transpose(axes[random.randint(len(axes))]))


@form("flatten_order", "dense")
def rows_of_another_flattening(random, network, layer):
    """A kernel made for features in channel-height-width order, or the reverse."""
    source = next(each for each in network.layers if each["name"] == layer["inputs"][0])
    shape = _shape_before(network, source) if source["kind"] == "flatten" else ()
    if len(shape) < 2:
        raise Unsuitable

    def rows(kernel):
        if random.randint(2):
            return np.moveaxis(kernel.reshape(*shape, -1), -2, 0).reshape(kernel.shape)
        return np.moveaxis(kernel.reshape(shape[-1], *shape[:-1], -1), 0, -2).reshape(kernel.shape)

    return _weights(network, layer, kernel=rows)


@form("flatten_order", "flatten")
def flattened_channels_first(_random, _network, layer):
    return _instead(layer, operators.flatten_channels_first)


@form("channel_order", "conv2d")
def reversed_input_channels(_random, network, layer):
    return _weights(network, layer, kernel=lambda kernel: kernel[:, :, ::-1])


@form("channel_order", "input")
def blue_first(_random, _network, layer):
    return _instead(layer, lambda images, own: own(images[..., ::-1].copy()))


@form("channel_order", "input")
def channels_last_read_as_first(_random, _network, layer):
    return _instead(layer, operators.reinterpreted)


@form("gate_order", *RECURRENT)
def gates_swapped(random, network, layer):
    own, gates = _own(network, layer), 4 if layer["kind"] == "lstm" else 3
    order = random.permutation(gates)
    blocks = {key: array.reshape(*array.shape[:-1], gates, -1)[..., order, :].reshape(array.shape) for key, array in own.items()}
    return _weights(network, layer, **blocks)


@form("missing_bias", *CONVOLUTIONS, "dense", *RECURRENT)
def no_bias(_random, network, layer):
    return _weights(network, layer, bias=np.zeros_like)


@form("recurrent_bias", "gru")
def recurrent_bias_scaled(random, network, layer):
    if not layer["reset_after"]:
        raise Unsuitable
    return _weights(network, layer, recurrent_bias=lambda bias: bias * random.choice([0, 0.5, 2]))


@form("recurrent_bias", *RECURRENT)
def bias_loaded_twice(_random, network, layer):
    return _weights(network, layer, bias=lambda bias: 2 * bias)


@form("recurrent_bias", "gru")
def biases_exchanged(_random, network, layer):
    own = _own(network, layer)
    if not layer["reset_after"]:
        raise Unsuitable
    return _weights(network, layer, bias=own["recurrent_bias"], recurrent_bias=own["bias"])


@form("forget_bias", "lstm")
def unit_forget_bias_again(random, network, layer):
    units = layer["units"]
    added = np.where(np.arange(4 * units) // units == 1, random.choice([1, 1, -1]), 0)
    return _weights(network, layer, bias=lambda bias: bias + added)


@form("epsilon", "batch_norm")
def another_epsilon(random, network, layer):
    well_known = [epsilon for epsilon in (1e-3, 1e-5, 1e-4, 1e-6, 2e-5) if epsilon != layer["epsilon"]]
    return _list(network, layer, epsilon=float(random.choice([*well_known, 10 ** random.uniform(-5, -1)])))


@form("epsilon", "batch_norm")
def epsilon_outside_the_root(_random, network, layer):
    own = _own(network, layer)
    return _instead(layer, lambda values, own_=own, **_: operators.norm_with_epsilon_outside(values, own_, layer["epsilon"]))


@form("batch_statistics", "batch_norm")
def in_training_mode(_random, network, layer):
    own = _own(network, layer)
    return _instead(layer, lambda values, **_: operators.norm_in_training(values, own, layer["epsilon"]))


@form("gamma_fixed", "batch_norm")
def gamma_of_one(_random, network, layer):
    return _weights(network, layer, gamma=np.ones_like)


@form("beta_ignored", "batch_norm")
def no_beta(_random, network, layer):
    return _weights(network, layer, beta=np.zeros_like)


@form("variance_as_deviation", "batch_norm")
def deviation_read_from_the_variance(_random, network, layer):
    return _weights(network, layer, variance=np.square)


@form("statistics_ignored", "batch_norm")
def fresh_statistics(_random, network, layer):
    return _weights(network, layer, mean=np.zeros_like, variance=np.ones_like)


@form("swapped_parameters", "batch_norm")
def gamma_for_beta(_random, network, layer):
    own = _own(network, layer)
    return _weights(network, layer, gamma=own["beta"], beta=own["gamma"])


@form("padding_side", *CONVOLUTIONS, *POOLS)
def sides_swapped(_random, network, layer):
    padding = layer["padding"]
    swapped = list(padding[::-1]) if layer["kind"] == "conv1d" else [list(side[::-1]) for side in padding]
    return _list(network, layer, padding=swapped)


@form("padding_side", *CONVOLUTIONS, *POOLS)
def made_symmetric(_random, network, layer):
    """As a framework does that knows one number for both sides."""
    half = layer.get("kernel", layer.get("size")) // 2
    padding = [half, half] if layer["kind"] == "conv1d" else [[half, half]] * 2
    sides = [layer["padding"]] if layer["kind"] == "conv1d" else layer["padding"]
    if not any(map(sum, sides)) or padding == layer["padding"] or neutral.shapes(network.layers) != neutral.shapes(
        [dict(each, padding=padding) if each is layer else each for each in network.layers]
    ):
        raise Unsuitable
    return _list(network, layer, padding=padding)


@form("padding_missing", *CONVOLUTIONS, *POOLS)
def valid(_random, network, layer):
    return _list(network, layer, padding=[0, 0] if layer["kind"] == "conv1d" else [[0, 0], [0, 0]])


@form("padding_values", *CONVOLUTIONS)
def padded_by_mirror_or_edge(random, network, layer):
    if not np.any(layer["padding"]):
        raise Unsuitable
    own, mode = _own(network, layer), str(random.choice(["replicate", "reflect"]))
    return _instead(layer, lambda values, **_: operators.convolution_padded_by(values, own, layer, mode))


@form("stride_offset", *CONVOLUTIONS, *POOLS)
def windows_start_later(_random, _network, layer):
    if np.any(layer["padding"]) or layer["stride"] == 1:
        raise Unsuitable
    return _instead(layer, operators.from_the_second_place)


@form("pool_edge_count", *POOLS)
def padding_counted(_random, _network, layer):
    if not np.any(layer["padding"]):
        raise Unsuitable
    return _instead(layer, lambda values, **_: operators.pool_with_zeros(values, layer))


@form("pool_kind", *POOLS)
def the_other_pool(_random, network, layer):
    return _list(network, layer, kind=POOLS[layer["kind"] == "max_pool"])


@form("pool_kind", "global_max_pool")
def global_mean(_random, _network, layer):
    return _instead(layer, operators.global_mean)


@form("activation", "relu")
def another_activation(random, _network, layer):
    slope = float(random.uniform(0.02, 0.5))
    functions = [operators.ACTIVATIONS[name] for name in sorted(operators.ACTIVATIONS)] + [operators.leaky(slope)]
    function = functions[random.randint(len(functions))]
    return _instead(layer, lambda values, **_: operators.computed(function, values))


@form("activation", "dense", "batch_norm", *CONVOLUTIONS)
def an_activation_more(random, network, layer):
    name = str(random.choice(["relu", "tanh", "sigmoid"]))
    if layer is network.layers[-1] and random.randint(2):
        name = "softmax"
    return _instead(layer, lambda values, own: operators.computed(operators.FURTHER[name], own(values)))


@form("activation", *RECURRENT, frameworks=("tensorflow",))
def the_other_sigmoid(_random, network, layer):
    other = "hard_sigmoid" if layer["recurrent_activation"] == "sigmoid" else "sigmoid"
    return _list(network, layer, recurrent_activation=other)


def _stepwise(network, layer, **options):
    own = _own(network, layer)
    return _instead(layer, lambda values, **_: operators.recurrent(values, own, layer, **options))


@form("activation", *RECURRENT)
def another_recurrent_activation(random, network, layer):
    return _stepwise(network, layer, **[{"gate": "hardsigmoid"}, {"squash": "relu"}, {"squash": "sigmoid"}][random.randint(3)])


@form("reset_after", "gru", frameworks=("tensorflow",))
def reset_elsewhere_by_the_list(_random, network, layer):
    """As a framework does that has the other formula and is given what weights it takes."""
    name, units, own = layer["name"], layer["units"], _own(network, layer)
    weights = dict(network.weights)
    if layer["reset_after"]:
        weights[f"{name}/bias"] = own["bias"] + own["recurrent_bias"]
        del weights[f"{name}/recurrent_bias"]
    else:
        weights[f"{name}/recurrent_bias"] = np.zeros(3 * units, np.float32)
    return _list(network, layer, weights, reset_after=not layer["reset_after"])


@form("reset_after", "gru")
def reset_elsewhere_by_steps(_random, network, layer):
    return _stepwise(network, layer, reset_after=not layer["reset_after"])


@form("update_gate", "gru")
def update_gate_inverted(_random, network, layer):
    if layer["recurrent_activation"] != "sigmoid":
        raise Unsuitable
    return _stepwise(network, layer, inverted=True)


@form("masked_token", *RECURRENT)
def padded_steps_skipped(_random, network, layer):
    return _stepwise(network, layer, keep=network.inputs != 0)


@form("masked_token", "embedding")
def padding_embedded_as_zeros(_random, network, layer):
    return _weights(network, layer, kernel=lambda kernel: kernel * (np.arange(len(kernel)) > 0)[:, None])


@form("embedding_offset", "embedding")
def shifted_table(random, network, layer):
    by = int(random.choice([1, -1]))
    return _weights(network, layer, kernel=lambda kernel: np.roll(kernel, by, axis=0))


@form("reversed_sequence", *RECURRENT)
def read_backwards(_random, _network, layer):
    return _instead(layer, lambda values, own: own(values[:, ::-1].copy()))


@form("returned_step", *RECURRENT)
def first_step(_random, network, layer):
    if layer["return_sequences"]:
        raise Unsuitable
    return _stepwise(network, layer, at=0)


@form("concatenation_order", "concatenate")
def inputs_swapped(random, network, layer):
    return _list(network, layer, inputs=[layer["inputs"][at] for at in random.permutation(len(layer["inputs"]))])


@form("branch", "add", "concatenate")
def one_branch_twice(random, network, layer):
    return _list(network, layer, inputs=[layer["inputs"][random.randint(len(layer["inputs"]))]] * len(layer["inputs"]))


@form("branch", "add")
def one_branch_lost(random, _network, layer):
    at = random.randint(2)
    return _instead(layer, lambda *values, **_: values[at])


@form("swapped_layers", "conv2d", "conv1d", "batch_norm", "relu", "average_pool", "max_pool", "normalize", "dense")
def neighbours_swapped(_random, network, layer):
    """With the only reader of the layer, which reads nothing else."""
    readers = [each for each in network.layers if layer["name"] in each["inputs"]]
    if len(readers) != 1 or len(readers[0]["inputs"]) != 1:
        raise Unsuitable
    second = readers[0]
    sources = {layer["name"]: [second["name"]], second["name"]: layer["inputs"]}
    changed = []
    for each in network.layers:
        inputs = sources.get(each["name"]) or [layer["name"] if name == second["name"] else name for name in each["inputs"]]
        changed.append(dict(each, inputs=inputs))
    first_at, second_at = network.layers.index(layer), network.layers.index(second)
    changed[first_at], changed[second_at] = changed[second_at], changed[first_at]
    if changed[-1]["name"] != network.layers[-1]["name"]:
        raise Unsuitable
    order = [each["name"] for each in changed]
    if any(order.index(name) > order.index(each["name"]) for each in changed for name in each["inputs"]):
        raise Unsuitable
    return _suspect(network, changed)


@form("wiring", *CONVOLUTIONS, "batch_norm", "relu", "dense", *POOLS)
def reads_another_layer(random, network, layer):
    """One that comes earlier and is of the same shape."""
    sizes, earlier = neutral.shapes(network.layers), network.layers[: network.layers.index(layer)]
    source = layer["inputs"][0]
    others = [each["name"] for each in earlier if sizes[each["name"]] == sizes[source] and each["name"] != source]
    if not others:
        raise Unsuitable
    return _list(network, layer, inputs=[others[random.randint(len(others))]])


@form("normalization", "normalize")
def other_constants(random, network, layer):
    mean, std = np.array(layer["mean"]), np.array(layer["std"])
    one = np.ones_like(std)
    choices = [(0 * mean, one), (mean + mean * std, std**2), (mean / 255, std / 255), (mean * 255, std * 255), (0 * mean, std), (mean, one)]
    mean, std = choices[random.randint(len(choices))]
    return _list(network, layer, mean=mean.tolist(), std=std.tolist())


@form("input_scale", "input")
def input_of_another_range(random, _network, layer):
    factor, offset = [(255, 0), (1 / 255, 0), (2, -1)][random.randint(3)]
    return _instead(layer, lambda images, own: own(images * np.float32(factor) + np.float32(offset)))


@form("left_out", "batch_norm")
def handed_through(_random, _network, layer):
    return _instead(layer, lambda values, **_: values)


@form("bias_scaled", *CONVOLUTIONS, "dense")
def bias_added_twice(_random, network, layer):
    return _weights(network, layer, bias=lambda bias: 2 * bias)


@form("scale", *CONVOLUTIONS, "dense", "embedding", "average_pool")
def multiplied(random, _network, layer):
    factor = np.float32(random.choice([0.5, 1 / 255, 255, random.uniform(0.8, 1.2)]))
    return _instead(layer, lambda values, own: own(values) * factor)


@form("clipping", *CONVOLUTIONS, "dense", "batch_norm", "add")
def saturated(random, _network, layer):
    share = float(random.uniform(1, 5))

    def cut(*values, own):
        right = own(*values)
        return np.clip(right, *np.percentile(right, [share, 100 - share]).astype(right.dtype))

    return _instead(layer, cut)


@form("reduced_precision", *CONVOLUTIONS, "dense", *RECURRENT, "embedding")
def weights_of_half_precision(random, network, layer):
    rounded = operators.ROUNDED[["float16", "bfloat16"][random.randint(2)]]
    return _weights(network, layer, **{name: rounded(array) for name, array in _own(network, layer).items()})


@form("reduced_precision", *CONVOLUTIONS, "dense")
def computed_in_half_precision(random, network, layer):
    dtype = ["float16", "bfloat16"][random.randint(2)]
    return _instead(layer, lambda values, **_: operators.linear(values, _own(network, layer), layer, dtype))


@form("overflow", *CONVOLUTIONS, "dense", "batch_norm")
def beyond_the_largest_number(random, _network, layer):
    share = float(random.uniform(90, 99.9))

    def overflown(values, own):
        right = own(values)
        return np.where(right >= np.percentile(right, share), np.float32([np.inf, np.nan][random.randint(2)]), right)

    return _instead(layer, overflown)


@form("unknown", *CONVOLUTIONS, "dense", "embedding", *RECURRENT)
def noise(random, network, layer):
    return _weights(network, layer, kernel=lambda kernel: kernel + random.normal(0, 0.05 * kernel.std(), kernel.shape))
