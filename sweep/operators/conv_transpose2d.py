"""Transposed convolution: the gradient of a convolution with respect to its input.

    y[n, q, t, o] = b[o] + sum over r, c, i, j, k of w[i, j, k, o] x[n, r, c, k]      where q = r s + i d - p, t = c s' + j d' - p'

of size (H - 1) s + (window - 1) d + 1 - before - after + output padding, where output padding adds rows after the end. `same` gives H s:
it pads as the convolution does that takes H s back to H.
https://onnx.ai/onnx/operators/onnx__ConvTranspose.html, https://www.tensorflow.org/api_docs/python/tf/nn/conv2d_transpose
"""

import numpy as np

from sweep.operators import _faults, _values, _windows

PARAMETERS = {
    "height": [2, 3, 4, 5, 7],
    "width": [2, 3, 4, 6],
    "in_channels": [1, 2, 3, 4, 8],
    "out_channels": [1, 2, 3, 4, 8],
    "window_height": [1, 2, 3, 4, 5],
    "window_width": [1, 2, 3, 4, 5],
    "stride_height": [1, 2, 3, 4],
    "stride_width": [1, 2, 3, 4],
    "dilation_height": [1, 2],
    "dilation_width": [1, 2],
    "padding": ["same", "valid", [[1, 1], [1, 1]], [[0, 1], [1, 0]]],
    "output_padding": [0, 1],
    "bias": [False, True],
    "values": _values.VALUES,
}


def valid(parameters):
    """Output padding is below the stride, and `same` and `valid` leave none to choose."""
    strides = parameters["stride_height"], parameters["stride_width"]
    if parameters["output_padding"] and (parameters["padding"] in ("valid", "same") or parameters["output_padding"] >= min(strides)):
        return False
    return min(shape(parameters)) >= 1


def shape(parameters):
    """(height, width) of the output."""
    return tuple(size for _before, size in map(_placed, _axes(parameters)))


def inputs(parameters, rng):
    return _values.inputs(parameters, rng, (parameters["height"], parameters["width"], parameters["in_channels"]))


def weights(parameters, rng):
    """kernel (height, width, in, out) and, where there is one, bias (out,)."""
    kernel = (parameters["window_height"], parameters["window_width"], parameters["in_channels"], parameters["out_channels"])
    found = {"kernel": _values.kernel(parameters["values"], rng, kernel)}
    if parameters["bias"]:
        found["bias"] = _values.kernel(parameters["values"], rng, kernel[-1:])
    return found


def _axes(parameters):
    """By axis: (Axis with explicit padding, padding mode, output padding)."""
    found = []
    for at, name in enumerate(_windows.SPATIAL):
        axis = _windows.Axis(parameters[name], parameters["window_" + name], parameters["stride_" + name],
                             parameters["dilation_" + name], 0, 0)
        if isinstance(parameters["padding"], (list, tuple)):
            before, after = parameters["padding"][at]
            axis = axis._replace(before=before, after=after)
        found.append((axis, parameters["padding"], parameters["output_padding"]))
    return found


def _placed(described):
    """(first row of the whole output that is kept, how many are kept)."""
    axis, padding, output_padding = described
    if padding == "same":
        size = axis.size * axis.stride
        return _windows.sides(size, axis.window, axis.stride, axis.dilation, "same", 0)[0], size
    whole = (axis.size - 1) * axis.stride + _windows.extent(axis.window, axis.dilation)
    return axis.before, whole - axis.before - axis.after + output_padding


def sides_of_the_spread(parameters):
    """By axis, (before, after) of zeros around the input with its rows a stride apart: a convolution of that, with the kernel turned round,
    gives the same. Below 0 where rows are left out."""
    found = []
    for described in _axes(parameters):
        axis, (start, size) = described[0], _placed(described)
        reach = _windows.extent(axis.window, axis.dilation)
        spread = (axis.size - 1) * axis.stride + 1
        found.append((reach - 1 - start, size + start - spread))
    return found


def reference(parameters, weights, inputs):
    described = _axes(parameters)
    (top, rows), (left, columns) = map(_placed, described)
    return _spread(weights, inputs, [axis for axis, _padding, _more in described], (top, left), (rows, columns))


def _spread(weights, inputs, both, starts, sizes):
    """The definition's sum: of all it reaches, `sizes` rows and columns from `starts` on (which may be before it)."""
    kernel = weights["kernel"]
    margin = max([0] + [-start for start in starts])
    reach = [margin + max((axis.size - 1) * axis.stride + _windows.extent(axis.window, axis.dilation), start + size)
             for axis, start, size in zip(both, starts, sizes)]
    whole = np.zeros((len(inputs), reach[0], reach[1], kernel.shape[3]), np.result_type(inputs, kernel))
    height, width = both
    for i in range(height.window):
        for j in range(width.window):
            rows = slice(margin + i * height.dilation, margin + i * height.dilation + (height.size - 1) * height.stride + 1, height.stride)
            columns = slice(margin + j * width.dilation, margin + j * width.dilation + (width.size - 1) * width.stride + 1, width.stride)
            whole[:, rows, columns] += inputs.dot(kernel[i, j])
    top, left = margin + starts[0], margin + starts[1]
    return whole[:, top:top + sizes[0], left:left + sizes[1]] + weights.get("bias", 0)


def magnitude(parameters, weights, inputs):
    terms = reference(parameters, {name: np.abs(array) for name, array in weights.items()}, np.abs(inputs))
    return np.broadcast_to(terms.max(axis=(1, 2, 3), keepdims=True), terms.shape)


def roundings(parameters):
    return parameters["window_height"] * parameters["window_width"] * parameters["in_channels"] + 2


def deviations(parameters, weights, inputs, observed):
    described = _axes(parameters)
    both = [axis for axis, _padding, _more in described]
    starts = tuple(start for start, _size in map(_placed, described))

    def placed(starts, weights=weights, both=both):
        return _spread(weights, inputs, both, starts, observed.shape[1:3])

    yield from _faults.of_biases(weights, lambda weights: placed(starts, weights))
    if any(starts):
        yield "padding_missing", "without its padding", lambda: placed((0, 0))
    for distance in (1, 2):
        for by in (distance, -distance):
            for text, moved in (("", (by, by)), (" along the height", (by, 0)), (" along the width", (0, by))):
                yield ("padding_side", "the output cut {} {}{}".format(distance, "later" if by > 0 else "earlier", text),
                       lambda moved=moved: placed((starts[0] + moved[0], starts[1] + moved[1])))
    for name in ("dilation", "stride"):
        others = {"ignored": [axis._replace(**{name: 1}) for axis in both],
                  "swapped": [axis._replace(**{name: getattr(other, name)}) for axis, other in zip(both, both[::-1])]}
        for how, axes in sorted(others.items()):
            if axes != both:
                yield "{}_{}".format(name, how), "{} {}".format(name, how), lambda axes=axes: placed(starts, both=axes)
    yield from _faults.of_kernels(weights, (0, 1), lambda weights: placed(starts, weights))
