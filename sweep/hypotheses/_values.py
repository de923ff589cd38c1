"""Inputs confused, activations mistaken, values of another range."""

from itertools import permutations

import numpy as np

from sweep import reference
from sweep.hypotheses._view import after


def _additions(_layer, _own, _around):
    yield "the first input alone", lambda view: view.inputs[0]
    yield "the second input alone", lambda view: view.inputs[1]
    yield "the first input twice", lambda view: 2 * view.inputs[0]
    yield "the second input twice", lambda view: 2 * view.inputs[1]
    yield "the difference", lambda view: view.inputs[0] - view.inputs[1]
    yield "the difference, turned round", lambda view: view.inputs[1] - view.inputs[0]
    yield "the mean", lambda view: (view.inputs[0] + view.inputs[1]) / 2
    yield "the maximum", lambda view: np.maximum(*view.inputs)
    yield "the product", lambda view: view.inputs[0] * view.inputs[1]


def _concatenations(layer, _own, _around):
    count = len(layer["inputs"])
    for order in permutations(range(count)):
        if order != tuple(range(count)):
            text = "its inputs in the order " + ", ".join(layer["inputs"][at] for at in order)
            yield text, lambda view, order=order: np.concatenate([view.inputs[at] for at in order], -1)


def _concatenated_twice(layer, _own, _around):
    for at, name in enumerate(layer["inputs"]):
        yield "{} in every place".format(name), lambda view, at=at: np.concatenate([view.inputs[at]] * len(view.inputs), -1)


def _leaky(slope):
    return lambda values: np.where(values > 0, values, values * values.dtype.type(slope))


def _gelu(values):
    return values * (1 + np.tanh(np.sqrt(2 / np.pi).astype(values.dtype) * (values + values.dtype.type(0.044715) * values ** 3))) / 2


_OTHERS = (
    ("relu6", lambda values: np.clip(values, 0, 6)),
    ("no activation", lambda values: values),
    ("leaky relu of 0.01", _leaky(0.01)),
    ("leaky relu of 0.3", _leaky(0.3)),
    ("leaky relu of 0.2", _leaky(0.2)),
    ("leaky relu of 0.1", _leaky(0.1)),
    ("tanh", np.tanh),
    ("sigmoid", reference.sigmoid),
    ("elu", lambda values: np.where(values > 0, values, np.expm1(np.minimum(values, 0)))),
    ("softplus", lambda values: np.maximum(values, 0) + np.log1p(np.exp(-np.abs(values)))),
    ("swish", lambda values: values * reference.sigmoid(values)),
    ("gelu, by tanh", _gelu),
    ("the absolute value", np.abs),
    ("a relu of the negative", lambda values: np.maximum(-values, 0)),
)


def _rectifiers(_layer, _own, _around):
    for name, function in _OTHERS:
        yield "{} in place of relu".format(name), lambda view, function=function: function(view.inputs[0])
    yield "leaky relu of another slope", lambda view: _leaky(_slope(view))(view.inputs[0])


def _slope(view):
    """What is made of negative values, by least squares."""
    negative = np.minimum(view.inputs[0], 0).astype(np.float64)
    power = (negative ** 2).sum()
    return (negative * view.observed).sum() / power if power > 0 else 0


def _further_activations(layer, _own, around):
    chosen = [("relu", lambda values: np.maximum(values, 0))] + [row for row in _OTHERS if row[0] in ("relu6", "tanh", "sigmoid")]
    if around.last:
        chosen = [("softmax", _softmax), ("log softmax", lambda values: np.log(_softmax(values)))] + chosen
    for name, function in chosen:
        yield "{} of its output".format(name), after(layer, function)


def _softmax(values):
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _left_out(layer, _own, _around):
    yield "its input handed through", lambda view: view.inputs[0]
    yield "applied twice", lambda view: reference.apply(layer, view.own, reference.apply(layer, view.own, view.inputs[0]))


def _clippings(layer, _own, _around):
    """Cut to a range that the observed values tell, if a good share of them lies at its ends."""

    def compute(view):
        low, high = view.observed.min(), view.observed.max()
        expected = reference.apply(layer, view.own, *view.inputs)
        cut = (expected < low) | (expected > high)
        return np.clip(expected, low, high) if low < high and cut.sum() >= max(2, 1e-3 * cut.size) else None

    yield "cut to the range of what was observed", compute


def _scales(layer, _own, _around):
    def compute(view):
        expected = reference.apply(layer, view.own, *view.inputs).astype(np.float64)
        power = (expected ** 2).sum()
        factor = (expected * view.observed).sum() / power if power > 0 else 0
        return (expected * factor).astype(view.inputs[0].dtype) if factor else None

    yield "multiplied by a constant", compute


SHAPES = (
    ("branch", ("add",), _additions),
    ("concatenation_order", ("concatenate",), _concatenations),
    ("branch", ("concatenate",), _concatenated_twice),
)
VALUES = (
    ("activation", ("relu",), _rectifiers),
    ("activation", ("conv2d", "conv1d", "dense", "batch_norm", "add"), _further_activations),
    ("left_out", ("batch_norm", "max_pool", "average_pool"), _left_out),
    ("clipping", None, _clippings),
    ("scale", ("conv2d", "conv1d", "dense", "batch_norm", "embedding", "average_pool", "lstm", "gru", "input", "add"), _scales),
)
