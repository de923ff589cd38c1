"""Single operators (`sweep.operators`) as JAX functions: run, and written in the formats that models are exported in."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import unflatten_dict
from jax import lax

from sweep.frameworks import _jax_layers
from sweep.operators import _probe as probing
from sweep.operators import activation, conv_transpose2d, gru, lstm, rearrange

FAMILIES = {
    "conv2d": [],
    "depthwise_conv2d": [],
    "conv_transpose2d": [],
    "max_pool": [{"dilation_height": [1], "dilation_width": [1], "ceil_mode": [False]}],
    "average_pool": [{"ceil_mode": [False]}],
    "resize_nearest": [{"coordinates": ["half_pixel"]}],
    "resize_bilinear": [{"coordinates": ["half_pixel"]}],
    "batch_norm": [],
    "softmax": [],
    "reduce": [],
    "activation": [],
    "dense": [],
    "lstm": [],
    "gru": [],
    "pad": [],
    "rearrange": [],
}
"""The operators, each with what JAX has a way to ask for (`sweep.probing.draw.Ways`)."""

_IMAGES = ("NHWC", "HWIO", "NHWC")


def run(probe, inputs):
    """The output in JAX itself, float32 (N, ...)."""
    weights, _inputs = probing.arrays_of(probe)
    return np.asarray(jax.jit(_BUILD[probe["operator"]](probe["parameters"], weights))(inputs))


def export(probes, target, folders):
    """For each probe in turn the name of what was written into its folder, or the exception that came of it."""
    for probe, folder in zip(probes, folders):
        try:
            yield _WRITE[target](probe, Path(folder))
        except Exception as error:  # the tools' exceptions have no common root
            yield error


def _native(probe, folder):
    weights, inputs = probing.arrays_of(probe)
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch") + inputs.shape[1:], np.float32)
    exported = jax.export.export(jax.jit(_BUILD[probe["operator"]](probe["parameters"], weights)))(shape)
    (folder / "model.stablehlo").write_bytes(exported.serialize())
    return "model.stablehlo"


def _onnx(probe, folder):
    from sweep.frameworks import _jax_onnx

    weights, inputs = probing.arrays_of(probe)
    if probe["operator"] in _LAYERS:
        layer = _LAYERS[probe["operator"]].layer(probe["parameters"])
        named = {"{}/{}".format(layer["name"], name): array for name, array in weights.items()}

        def compute(values):
            return _jax_onnx.recurrent(layer, named, values)
    else:
        compute = _BUILD[probe["operator"]](probe["parameters"], weights)
    _jax_onnx.write(compute, inputs.shape[1:], np.float32, folder / "model.onnx")
    return "model.onnx"


def _xla_saved_model(probe, folder):
    from sweep.frameworks import _jax_saved_model

    weights, inputs = probing.arrays_of(probe)
    compute = _BUILD[probe["operator"]](probe["parameters"], weights)
    _jax_saved_model.write(lambda _variables, values: compute(values), {}, inputs.shape[1:], np.float32, folder / "saved_model")
    return "saved_model"


_WRITE = {"native": _native, "onnx": _onnx, "xla_saved_model": _xla_saved_model}


def _spatial(parameters, name):
    return parameters[name + "_height"], parameters[name + "_width"]


def _padding(parameters):
    if parameters["padding"] in ("valid", "same"):
        return parameters["padding"].upper()
    return tuple(tuple(side) for side in parameters["padding"])


def _with_bias(weights, compute):
    return (lambda x: compute(x) + weights["bias"]) if "bias" in weights else compute


def _convolution(parameters, weights, groups):
    return _with_bias(weights, lambda x: lax.conv_general_dilated(
        x, weights["kernel"], _spatial(parameters, "stride"), _padding(parameters), rhs_dilation=_spatial(parameters, "dilation"),
        dimension_numbers=_IMAGES, feature_group_count=groups,
    ))


def _conv_transpose2d(parameters, weights):
    return _with_bias(weights, lambda x: lax.conv_general_dilated(
        x, weights["kernel"][::-1, ::-1], (1, 1), conv_transpose2d.sides_of_the_spread(parameters),
        lhs_dilation=_spatial(parameters, "stride"), rhs_dilation=_spatial(parameters, "dilation"), dimension_numbers=_IMAGES,
    ))


def _placed(parameters):
    return {
        "window_shape": _spatial(parameters, "window"), "strides": _spatial(parameters, "stride"), "padding": _padding(parameters),
    }


def _max_pool(parameters, _weights):
    return lambda x: nn.max_pool(x, **_placed(parameters))


def _average_pool(parameters, _weights):
    counted = parameters["count_include_pad"]
    return lambda x: nn.avg_pool(x, count_include_pad=counted, **_placed(parameters)).astype(x.dtype)  # it counts in JAX's default dtype


def _resize(method):
    def build(parameters, _weights):
        size = parameters["new_height"], parameters["new_width"], parameters["channels"]
        return lambda x: jax.image.resize(x, (x.shape[0],) + size, method, antialias=False)

    return build


def _batch_norm(parameters, weights):
    module = nn.BatchNorm(use_running_average=True, epsilon=parameters["epsilon"], dtype=jnp.float32, param_dtype=jnp.float32)
    variables = {"params": {"scale": weights["gamma"], "bias": weights["beta"]},
                 "batch_stats": {"mean": weights["mean"], "var": weights["variance"]}}
    return lambda x: module.apply(variables, x)


def _softmax(parameters, _weights):
    function = jax.nn.log_softmax if parameters["logarithm"] else jax.nn.softmax
    return lambda x: function(x, axis=parameters["axis"])


def _reduce(parameters, _weights):
    function = getattr(jnp, parameters["function"])
    return lambda x: function(x, axis=tuple(parameters["axes"]), keepdims=parameters["keepdims"])


def _activation(parameters, _weights):
    return {
        "leaky_relu": lambda x: jax.nn.leaky_relu(x, activation.LEAK),
        "tanh": jnp.tanh,
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    }.get(parameters["function"]) or getattr(jax.nn, parameters["function"])


_LAYERS = {"lstm": lstm, "gru": gru}


def _recurrent(kind):
    def build(parameters, weights):
        layer = _LAYERS[kind].layer(parameters)
        module, variables = _jax_layers.module(layer, jnp.float32, fast_variance=False), {}
        for name, array in weights.items():
            places = _jax_layers.paths(kind, name)
            variables.update(zip(places, np.split(array, len(places), axis=-1)))
        bound = {"params": unflatten_dict(variables)}
        return lambda x: module.apply(bound, x) if layer["return_sequences"] else module.apply(bound, x)[:, -1]

    return build


def _pad(parameters, _weights):
    sides = ((0, 0),) + tuple(tuple(side) for side in parameters["padding"]) + ((0, 0),)
    options = {"constant_values": parameters["constant"]} if parameters["mode"] == "constant" else {}
    return lambda x: jnp.pad(x, sides, parameters["mode"], **options)


def _rearrange(parameters, _weights):
    function, axis = parameters["function"], parameters["axis"]
    if function == "transpose":
        return lambda x: jnp.transpose(x, rearrange.order(parameters))
    if function == "reshape":
        return lambda x: jnp.reshape(x, (x.shape[0],) + tuple(rearrange.new_shape(parameters)))
    before = (slice(None),) * axis
    if function == "slice":
        return lambda x: x[before + (slice(1, None, 2),)]
    cut = rearrange.halves(parameters)
    return lambda x: jnp.concatenate([x[before + (slice(cut, None),)], x[before + (slice(None, cut),)]], axis)


_BUILD = {
    "conv2d": lambda parameters, weights: _convolution(parameters, weights, parameters["groups"]),
    "depthwise_conv2d": lambda parameters, weights: _convolution(parameters, weights, parameters["channels"]),
    "conv_transpose2d": _conv_transpose2d,
    "max_pool": _max_pool,
    "average_pool": _average_pool,
    "resize_nearest": _resize("nearest"),
    "resize_bilinear": _resize("linear"),
    "batch_norm": _batch_norm,
    "softmax": _softmax,
    "reduce": _reduce,
    "activation": _activation,
    "dense": lambda _parameters, weights: _with_bias(weights, lambda x: jnp.dot(x, weights["kernel"])),
    "lstm": _recurrent("lstm"),
    "gru": _recurrent("gru"),
    "pad": _pad,
    "rearrange": _rearrange,
}
