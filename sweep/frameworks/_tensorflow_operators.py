"""Single operators (`sweep.operators`) as TensorFlow functions: run, and written in the formats that models are exported in."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from sweep.frameworks import _tensorflow_layers as layers
from sweep.operators import _probe as probing

OPSET = 18  # of the exported ONNX file

FAMILIES = {
    "conv2d": [],
    "depthwise_conv2d": [{"dilation_height": [1], "dilation_width": [1]}, {"stride_height": [1], "stride_width": [1]}],
    "conv_transpose2d": [{"dilation_height": [1], "dilation_width": [1], "output_padding": [0]}],
    "max_pool": [{"dilation_height": [1], "dilation_width": [1], "ceil_mode": [False]}],
    "average_pool": [{"padding": ["valid", "same"], "ceil_mode": [False], "count_include_pad": [False]}],
    "resize_nearest": [],
    "resize_bilinear": [],
    "batch_norm": [],
    "softmax": [],
    "reduce": [],
    "activation": [],
    "dense": [],
    "lstm": [],
    "gru": [],
    "pad": [{"mode": ["constant", "reflect", "symmetric"]}],
    "rearrange": [],
}
"""The operators, each with what TensorFlow has a way to ask for (`sweep.probing.draw.Ways`)."""


def run(probe, inputs):
    """The output in TensorFlow itself, operator by operator, float32 (N, ...)."""
    weights, _inputs = probing.arrays_of(probe)
    return _BUILD[probe["operator"]](probe["parameters"], weights)(tf.convert_to_tensor(inputs)).numpy()


def export(probes, target, folders):
    """For each probe in turn the name of what was written into its folder, or the exception that came of it."""
    write = {"native": _saved_model, "saved_model": _saved_model, "onnx": _onnx}[target]
    for probe, folder in zip(probes, folders):
        try:
            yield write(_module(probe), Path(folder))
        except Exception as error:  # the tools' exceptions have no common root
            yield error


def _saved_model(module, folder):
    tf.saved_model.save(module, str(folder / "saved_model"), signatures=module.serve)
    return "saved_model"


def _onnx(module, folder):
    import onnx
    import tf2onnx

    exported, _ = tf2onnx.convert.from_function(module.serve, input_signature=module.serve.input_signature, opset=OPSET)
    onnx.save(exported, str(folder / "model.onnx"))
    return "model.onnx"


def _module(probe):
    """A tf.Module whose `serve` takes a free batch."""
    weights, inputs = probing.arrays_of(probe)
    module = tf.Module()
    compute = _BUILD[probe["operator"]](probe["parameters"], weights)
    module.parts = getattr(compute, "layer", None)  # so that its variables are saved
    module.serve = tf.function(compute, input_signature=[tf.TensorSpec((None,) + inputs.shape[1:], tf.float32, name="input")])
    return module


def _padding(parameters):
    if parameters["padding"] in ("valid", "same"):
        return parameters["padding"].upper()
    return [[0, 0]] + [list(side) for side in parameters["padding"]] + [[0, 0]]


def _spatial(parameters, name):
    return [parameters[name + "_height"], parameters[name + "_width"]]


def _with_bias(weights, compute):
    if "bias" not in weights:
        return compute
    return lambda x: tf.nn.bias_add(compute(x), weights["bias"])


def _conv2d(parameters, weights):
    strides, dilations = _spatial(parameters, "stride"), _spatial(parameters, "dilation")
    return _with_bias(weights, lambda x: tf.nn.conv2d(x, weights["kernel"], strides, _padding(parameters), dilations=dilations))


def _depthwise_conv2d(parameters, weights):
    height, width, _one, filters = weights["kernel"].shape
    kernel = weights["kernel"].reshape(height, width, parameters["channels"], filters // parameters["channels"])
    strides, dilations = _spatial(parameters, "stride"), _spatial(parameters, "dilation")
    return _with_bias(
        weights, lambda x: tf.nn.depthwise_conv2d(x, kernel, [1] + strides + [1], _padding(parameters), dilations=dilations)
    )


def _conv_transpose2d(parameters, weights):
    from sweep.operators import conv_transpose2d

    kernel = weights["kernel"].transpose(0, 1, 3, 2)
    height, width = conv_transpose2d.shape(parameters)
    strides = _spatial(parameters, "stride")
    return _with_bias(weights, lambda x: tf.nn.conv2d_transpose(
        x, kernel, tf.stack([tf.shape(x)[0], height, width, kernel.shape[2]]), strides, _padding(parameters)
    ))


def _max_pool(parameters, _weights):
    return lambda x: tf.nn.max_pool2d(x, _spatial(parameters, "window"), _spatial(parameters, "stride"), _padding(parameters))


def _average_pool(parameters, _weights):
    return lambda x: tf.nn.avg_pool2d(x, _spatial(parameters, "window"), _spatial(parameters, "stride"), _padding(parameters))


def _resize(function):
    def build(parameters, _weights):
        size, coordinates = [parameters["new_height"], parameters["new_width"]], parameters["coordinates"]
        return lambda x: function(
            x, size, align_corners=coordinates == "align_corners", half_pixel_centers=coordinates == "half_pixel"
        )

    return build


def _batch_norm(parameters, weights):
    gamma, beta, mean, variance = (weights[name] for name in ("gamma", "beta", "mean", "variance"))
    if parameters["axes"] == 4:
        return lambda x: tf.compat.v1.nn.fused_batch_norm(x, gamma, beta, mean, variance, parameters["epsilon"], is_training=False)[0]
    return lambda x: tf.nn.batch_normalization(x, mean, variance, beta, gamma, parameters["epsilon"])


def _softmax(parameters, _weights):
    function = tf.nn.log_softmax if parameters["logarithm"] else tf.nn.softmax
    return lambda x: function(x, parameters["axis"])


def _reduce(parameters, _weights):
    function = getattr(tf, "reduce_" + parameters["function"])
    return lambda x: function(x, parameters["axes"], parameters["keepdims"])


def _activation(parameters, _weights):
    from sweep.operators import activation

    return {
        "leaky_relu": lambda x: tf.nn.leaky_relu(x, activation.LEAK),
        "hard_sigmoid": keras.activations.hard_sigmoid,
        "hard_swish": keras.activations.hard_swish,
        "gelu": lambda x: tf.nn.gelu(x, approximate=False),
        "gelu_tanh": lambda x: tf.nn.gelu(x, approximate=True),
    }.get(parameters["function"]) or getattr(tf.nn, parameters["function"])


def _dense(_parameters, weights):
    return _with_bias(weights, lambda x: tf.linalg.matmul(x, weights["kernel"]))


class _Recurrent:
    """A Keras layer that holds given weights."""

    def __init__(self, kind, parameters, weights):
        from sweep import components

        layer = components.load("operators", kind).layer(parameters)
        (self.layer,) = layers.make(layer, "defaults", "float32", None).values()
        self.layer.build((None, parameters["steps"], parameters["features"]))
        for name, array in weights.items():
            variable, row = layers.locate(self.layer, kind, name)
            if row is None:
                variable.assign(array)
            else:
                whole = np.array(variable)
                whole[row] = array
                variable.assign(whole)

    def __call__(self, x):
        return self.layer(x)


def _pad(parameters, _weights):
    sides = [[0, 0]] + parameters["padding"] + [[0, 0]]
    return lambda x: tf.pad(x, sides, parameters["mode"].upper(), parameters["constant"])


def _rearrange(parameters, _weights):
    from sweep.operators import rearrange

    function, axis = parameters["function"], parameters["axis"]
    if function == "transpose":
        return lambda x: tf.transpose(x, rearrange.order(parameters))
    if function == "reshape":
        return lambda x: tf.reshape(x, [-1] + rearrange.new_shape(parameters))
    before = (slice(None),) * axis
    if function == "slice":
        return lambda x: x[before + (slice(1, None, 2),)]
    cut = rearrange.halves(parameters)
    return lambda x: tf.concat([x[before + (slice(cut, None),)], x[before + (slice(None, cut),)]], axis)


_BUILD = {
    "conv2d": _conv2d,
    "depthwise_conv2d": _depthwise_conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "max_pool": _max_pool,
    "average_pool": _average_pool,
    "resize_nearest": _resize(tf.compat.v1.image.resize_nearest_neighbor),
    "resize_bilinear": _resize(tf.compat.v1.image.resize_bilinear),
    "batch_norm": _batch_norm,
    "softmax": _softmax,
    "reduce": _reduce,
    "activation": _activation,
    "dense": _dense,
    "lstm": lambda parameters, weights: _Recurrent("lstm", parameters, weights),
    "gru": lambda parameters, weights: _Recurrent("gru", parameters, weights),
    "pad": _pad,
    "rearrange": _rearrange,
}
