"""Depthwise convolution: every channel by filters of its own.

    y[n, r, c, k m + q] = b[k m + q] + sum over i, j of w[i, j, k, q] x[n, r s + i d - p, c s' + j d' - p', k]

for multiplier m and q < m: a convolution in as many groups as there are channels.
https://www.tensorflow.org/api_docs/python/tf/nn/depthwise_conv2d
"""

from sweep.operators import _values, _windows, conv2d

PARAMETERS = {
    "height": [4, 5, 7, 8, 13],
    "width": [4, 5, 6, 9, 12],
    "channels": [1, 2, 3, 4, 8, 16, 64],
    "multiplier": [1, 2, 3],
    "window_height": [1, 2, 3, 4, 5],
    "window_width": [1, 2, 3, 4, 5],
    "stride_height": [1, 2, 3, 4],
    "stride_width": [1, 2, 3, 4],
    "dilation_height": [1, 2, 3],
    "dilation_width": [1, 2, 3],
    "padding": ["same", "valid", [[1, 1], [1, 1]], [[1, 0], [0, 2]]],
    "bias": [False, True],
    "values": _values.VALUES,
}


def valid(parameters):
    return min(map(_windows.count, _windows.axes(parameters))) >= 1


def inputs(parameters, rng):
    return _values.inputs(parameters, rng, (parameters["height"], parameters["width"], parameters["channels"]))


def weights(parameters, rng):
    """kernel (height, width, 1, channels x multiplier), as a convolution in groups has it, and bias."""
    return conv2d.weights(_grouped(parameters), rng)


def reference(parameters, weights, inputs):
    return conv2d.reference(_grouped(parameters), weights, inputs)


def magnitude(parameters, weights, inputs):
    return conv2d.magnitude(_grouped(parameters), weights, inputs)


def roundings(parameters):
    return conv2d.roundings(_grouped(parameters))


def deviations(parameters, weights, inputs, observed):
    return conv2d.deviations(_grouped(parameters), weights, inputs, observed)


def _grouped(parameters):
    channels = parameters["channels"]
    return dict(parameters, in_channels=channels, out_channels=channels * parameters["multiplier"], groups=channels)
