"""Elementwise functions, also where they saturate.

    relu max(x, 0)    relu6 min(max(x, 0), 6)    leaky_relu x, 0.1 x below 0    elu x, exp(x) - 1 below 0    softplus log(1 + exp(x))
    sigmoid 1 / (1 + exp(-x))    tanh    silu x sigmoid(x)    hard_sigmoid min(max(x / 6 + 1/2, 0), 1)    hard_swish x hard_sigmoid(x)
    gelu x P(X <= x) for a standard normal X    gelu_tanh x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2

https://onnx.ai/onnx/operators/, https://docs.pytorch.org/docs/stable/nn.functional.html
"""

import math

import numpy as np

from sweep import reference as layers
from sweep.operators import _values

LEAK = 0.1
PARAMETERS = {
    "function": [
        "relu", "relu6", "leaky_relu", "elu", "softplus", "sigmoid", "tanh", "silu", "hard_sigmoid", "hard_swish", "gelu", "gelu_tanh",
    ],
    "shape": [[12], [5, 3], [3, 4, 5]],
    "values": _values.VALUES + ["small", "large", "infinite", "nan"],
}
_LIMITLESS = ("silu", "hard_swish", "gelu", "gelu_tanh")
"""A product of infinity and 0 at minus infinity: the formula gives no number, the limit is 0, and both are to be met."""
_SMALL = (0.0, -0.0, 1e-3, -1e-3, 1e-7, -1e-7, 1e-20, -1e-20, 1.2e-38, -1.2e-38, 1e-42, -1e-42)
_SIZES = (6.0, 9.0, 20.0, 88.0, 89.0, 104.0, 1e4, 1e10, 1e19, 1e30, 1e37)  # e^88 is finite in single precision, e^89 is not
_LARGE = _SIZES + tuple(-size for size in _SIZES)
_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def valid(parameters):
    return not (parameters["values"] == "infinite" and parameters["function"] in _LIMITLESS)


def inputs(parameters, rng):
    drawn = 4 * _values.inputs({"values": "drawn"}, rng, parameters["shape"])
    flat, kind = drawn.reshape(-1), parameters["values"]
    if kind == "integers":
        flat[:] = np.arange(flat.size) - flat.size // 2
    elif kind in ("small", "large"):
        flat[:] = np.resize(rng.permutation(_SMALL if kind == "small" else _LARGE), flat.size)
    elif kind == "infinite":
        flat[::3], flat[1::3] = np.inf, -np.inf
    elif kind == "nan":
        flat[::3] = np.nan
    return drawn


def weights(_parameters, _rng):
    return {}


def reference(parameters, _weights, inputs):
    return _FUNCTIONS[parameters["function"]](inputs)


def magnitude(parameters, weights, inputs):
    """Of the terms: the exponential and 1 where both are added up; functions between two bounds are as exact as the bound is."""
    right = np.abs(reference(parameters, weights, inputs))
    if parameters["function"] in ("relu", "relu6", "leaky_relu"):
        return right
    slope = np.where(np.abs(inputs) < 200, np.abs(inputs), 0)  # an input's own rounding, where the function isn't flat
    return np.maximum(right, 1 if parameters["function"] not in _LIMITLESS else slope)


def roundings(parameters):
    """A function that isn't made of sums and products has as many as its approximations in single precision are commonly off by."""
    return 1 if parameters["function"] in ("relu", "relu6", "leaky_relu") else 32


def steps(parameters):
    """For formulas that graphs spell out, the results of their operators."""
    return {"silu": 2, "hard_swish": 3, "softplus": 3, "gelu": 4, "gelu_tanh": 8}.get(parameters["function"], 1)


def span(parameters, _weights, inputs):
    """A factor between 0 and 1 is rounded before the input multiplies it."""
    finite = inputs[np.isfinite(inputs)]
    largest = float(np.abs(finite).max()) if parameters["function"] in _LIMITLESS and finite.size else 1.0
    return -largest, largest


def deviations(parameters, _weights, inputs, observed):
    own = parameters["function"]
    for name in PARAMETERS["function"]:
        if name != own:
            yield "activation", "{} in place of {}".format(name, own), lambda name=name: _FUNCTIONS[name](inputs)
    for slope in (0.01, 0.2, 0.3):
        yield "activation", "leaky_relu of {:g}".format(slope), lambda slope=slope: np.where(inputs > 0, inputs, slope * inputs)
    yield "activation", "hard_sigmoid of slope 0.2", lambda: np.clip(0.2 * inputs + 0.5, 0, 1)
    right = _FUNCTIONS[own]
    yield "not_finite", "no number in, the function of 0 out", lambda: right(np.where(np.isnan(inputs), 0, inputs))
    yield "not_finite", "no number in, the least value out", lambda: right(np.where(np.isnan(inputs), -np.inf, inputs))
    yield "not_finite", "no number in, the largest value out", lambda: right(np.where(np.isnan(inputs), np.inf, inputs))
    yield "not_finite", "no number out from some size of the input on", lambda: _lost(inputs, observed, right(inputs))
    if own == "softplus":
        yield "overflow", "the logarithm of an exponential that overflows", lambda: _overflowing(inputs)
    for bound in (6.0, 8.0, 9.0, 10.0, 16.0, 18.0, 20.0):
        yield "clipping", "inputs cut to {:g}".format(bound), lambda bound=bound: right(np.clip(inputs, -bound, bound))


def _lost(inputs, observed, right):
    """No number wherever the input is as large as the least for which none was observed."""
    lost = np.isnan(observed) & ~np.isnan(inputs)
    return np.where(np.abs(inputs) >= np.abs(inputs[lost]).min(), np.nan, right) if lost.any() else None


def _overflowing(inputs):
    with np.errstate(all="ignore"):
        return np.log(1 + np.exp(inputs.astype(np.float32))).astype(np.float64)


def _normal(values):
    """P(X <= x), exact in both tails."""
    return np.where(values < 0, _erfc(-values / np.sqrt(2)), 1 + _erf(values / np.sqrt(2))) / 2


def _product(values, factor):
    """x f(x), 0 where x is minus infinity and f(x) is 0."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(values), 0, values * factor)


_FUNCTIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.minimum(np.maximum(x, 0), 6),
    "leaky_relu": lambda x: np.where(x < 0, x * x.dtype.type(np.float32(LEAK)), x),
    "elu": lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "sigmoid": layers.sigmoid,
    "tanh": np.tanh,
    "silu": lambda x: _product(x, layers.sigmoid(x)),
    "hard_sigmoid": lambda x: np.minimum(np.maximum(x / 6 + 0.5, 0), 1),
    "hard_swish": lambda x: _product(x, np.minimum(np.maximum(x / 6 + 0.5, 0), 1)),
    "gelu": lambda x: _product(x, _normal(x)),
    "gelu_tanh": lambda x: _product(x, (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3))) / 2),
}
