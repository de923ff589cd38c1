"""Two-dimensional convolution (cross-correlation), also in groups.

    y[n, r, c, o] = b[o] + sum over i, j, k of w[i, j, k, o] x[n, r s + i d - p, c s' + j d' - p', g(o) + k]

with stride s, dilation d, padding p before, zeros outside; g(o) is the first input channel of the group of output channel o.
https://onnx.ai/onnx/operators/onnx__Conv.html, https://www.tensorflow.org/api_docs/python/tf/nn/conv2d
"""

import numpy as np

from sweep.operators import _faults, _values, _windows

PARAMETERS = {
    "height": [4, 5, 7, 8, 13],
    "width": [4, 5, 6, 9, 12],
    "in_channels": [1, 2, 3, 4, 6, 8, 16, 32],  # some quantizers leave kernels of fewer than 1,024 numbers alone
    "out_channels": [1, 2, 3, 4, 6, 8, 16, 32],
    "groups": [1, 2, 3, 4],
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
    whole = all(parameters[name] % parameters["groups"] == 0 for name in ("in_channels", "out_channels"))
    return whole and min(map(_windows.count, _windows.axes(parameters))) >= 1


def inputs(parameters, rng):
    return _values.inputs(parameters, rng, (parameters["height"], parameters["width"], parameters["in_channels"]))


def weights(parameters, rng):
    """kernel (height, width, in / groups, out) and, where there is one, bias (out,)."""
    shape = (parameters["window_height"], parameters["window_width"], parameters["in_channels"] // parameters["groups"],
             parameters["out_channels"])
    found = {"kernel": _values.kernel(parameters["values"], rng, shape)}
    if parameters["bias"]:
        found["bias"] = _values.kernel(parameters["values"], rng, shape[-1:])
    return found


def reference(parameters, weights, inputs):
    both = _windows.axes(parameters)
    return convolved(weights, inputs, both, tuple(map(_windows.count, both)), parameters["groups"])


def convolved(weights, inputs, both, counts, groups):
    """The definition's sum with windows along these axes."""
    windows = _windows.covered(inputs, both, counts, 0)
    kernel = weights["kernel"]
    read, written = kernel.shape[2], kernel.shape[3] // groups
    parts = [
        np.tensordot(windows[..., group * read:(group + 1) * read], kernel[..., group * written:(group + 1) * written], 3)
        for group in range(groups)
    ]
    return np.concatenate(parts, axis=-1) + weights.get("bias", 0)


def magnitude(parameters, weights, inputs):
    """The largest of an example: fast algorithms compute sums of several outputs at once, whose rounding each of them shares."""
    terms = reference(parameters, {name: np.abs(array) for name, array in weights.items()}, np.abs(inputs))
    return np.broadcast_to(terms.max(axis=(1, 2, 3), keepdims=True), terms.shape)


def roundings(parameters):
    """Of the products, their sum and the bias."""
    return parameters["window_height"] * parameters["window_width"] * (parameters["in_channels"] // parameters["groups"]) + 2


def deviations(parameters, weights, inputs, observed):
    both = _windows.axes(parameters)
    groups = parameters["groups"]

    def moved(axes, weights=weights, inputs=inputs, groups=groups):
        return convolved(weights, inputs, axes, observed.shape[1:3], groups)

    yield from _faults.of_biases(weights, lambda weights: moved(both, weights))
    if parameters["padding"] != "valid":
        yield "padding_windows", _in_the_padding(parameters), lambda: moved(both, inputs=np.zeros_like(inputs))
    for fault, detail, axes in _windows.elsewhere(parameters, both):
        yield fault, detail, lambda axes=axes: moved(axes)
    yield from _faults.of_kernels(weights, (0, 1), lambda weights: moved(both, weights))
    yield from _faults.of_channels(inputs, groups, lambda inputs: moved(both, inputs=inputs))
    if parameters["padding"] != "valid":
        for mode in ("edge", "reflect", "wrap"):
            yield ("padding_values", "padding by {} values in place of zeros".format(mode),
                   lambda mode=mode: _padded_by(mode, moved, inputs, both))


def _in_the_padding(parameters):
    below = _windows.below_zero(parameters)
    why = ", as if padding were below 0 along the {}, where the stride is larger than the window".format(" and the ".join(below))
    return "every window in the padding" + (why if below else "")


def _padded_by(mode, moved, inputs, both):
    if any(min(axis.before, axis.after) < 0 or max(axis.before, axis.after) >= axis.size for axis in both):
        return None
    values = np.pad(inputs, [(0, 0)] + [(axis.before, axis.after) for axis in both] + [(0, 0)], mode=mode)
    return moved([axis._replace(size=axis.size + axis.before + axis.after, before=0, after=0) for axis in both], inputs=values)
