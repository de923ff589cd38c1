"""Recurrent layers as frameworks get them wrong: gates, biases, activations, and what is made of the steps."""

from itertools import permutations

import numpy as np

from sweep import reference
from sweep.hypotheses._view import altered

_KINDS = ("lstm", "gru")
_GATES = {"lstm": "ifgo", "gru": "zrh"}


def _hard(slope):
    return lambda values: np.clip(values * values.dtype.type(slope) + values.dtype.type(0.5), 0, 1)


_SIGMOIDS = {"sigmoid": reference.sigmoid, "hard_sigmoid": _hard(0.2), "hard_sigmoid of slope 1/6": _hard(1 / 6.0)}
_ACTIVATIONS = {
    "sigmoid": reference.sigmoid, "relu": lambda values: np.maximum(values, 0), "no activation": lambda values: values,
    "hard tanh": lambda values: np.clip(values, -1, 1),
}


def _lstm(own, values, units, gate, squash, _reset, keep):
    hidden = cell = np.zeros((len(values), units), values.dtype)
    for step in range(values.shape[1]):
        i, f, g, o = np.split(values[:, step].dot(own["kernel"]) + hidden.dot(own["recurrent_kernel"]) + own["bias"], 4, axis=1)
        new = gate(f) * cell + gate(i) * squash[0](g)
        out = gate(o) * squash[1](new)
        if keep is not None:
            out, new = np.where(keep[:, step], out, hidden), np.where(keep[:, step], new, cell)
        hidden, cell = out, new
        yield hidden, cell


def _gru(own, values, units, gate, squash, reset, keep):
    hidden, kernel = np.zeros((len(values), units), values.dtype), own["recurrent_kernel"]
    second = own.get("recurrent_bias", np.zeros(3 * units, values.dtype))
    for step in range(values.shape[1]):
        given, recalled = values[:, step].dot(own["kernel"]) + own["bias"], hidden.dot(kernel[:, :2 * units]) + second[:2 * units]
        z, r = np.split(gate(given[:, :2 * units] + recalled), 2, axis=1)
        candidate = squash[0](given[:, 2 * units:] + _RESETS[reset](r, hidden, kernel[:, 2 * units:], second[2 * units:]))
        new = z * hidden + (1 - z) * candidate
        hidden = new if keep is None else np.where(keep[:, step], new, hidden)
        yield hidden, None


_RESETS = {
    "after": lambda r, hidden, kernel, bias: r * (hidden.dot(kernel) + bias),
    "before": lambda r, hidden, kernel, bias: (r * hidden).dot(kernel) + bias,
    "after, the bias outside": lambda r, hidden, kernel, bias: r * hidden.dot(kernel) + bias,
    "before, without the bias": lambda r, hidden, kernel, bias: (r * hidden).dot(kernel),
    "never": lambda r, hidden, kernel, bias: hidden.dot(kernel) + bias,
}
_CELLS = {"lstm": _lstm, "gru": _gru}


def _run(layer, view, gate=None, squash=(np.tanh, np.tanh), reset=None, keep=None, values=None):
    """States after every step: hidden (N, T, units) and cell (N, T, units), which a gru hasn't."""
    gate = gate or _SIGMOIDS[layer["recurrent_activation"]]
    reset = reset or ("after" if layer.get("reset_after") else "before")
    values = view.inputs[0] if values is None else values
    states = list(_CELLS[layer["kind"]](view.own, values, layer["units"], gate, squash, reset, keep))
    return np.stack([hidden for hidden, _ in states], 1), [cell for _, cell in states]


def _told(layer, hidden):
    return hidden if layer["return_sequences"] else hidden[:, -1]


def _gate_orders(layer, own, _around):
    gates = _GATES[layer["kind"]]
    count = len(gates)
    for order in permutations(range(count)):
        if order != tuple(range(count)):

            def change(own, order=order):
                return {name: np.concatenate([np.split(array, count, axis=-1)[gate] for gate in order], -1) for name, array in own.items()}

            yield "the gates {} read as {}".format(", ".join(gates), ", ".join(gates[gate] for gate in order)), altered(layer, change)


def _missing_bias(layer, _own, _around):
    yield "without its bias", altered(layer, lambda own: {"bias": np.zeros_like(own["bias"])})


def _recurrent_bias(layer, own, _around):
    for name in ("recurrent_bias", "bias"):
        if name in own:
            for text, factor in (("left out", 0), ("twice", 2), ("halved", 0.5)):
                if name != "bias" or factor:
                    yield "its {} {}".format(name, text), altered(
                        layer, lambda own, name=name, factor=factor: {name: own[name] * own[name].dtype.type(factor)}
                    )
    if "recurrent_bias" in own:
        yield "its two biases swapped", altered(layer, lambda own: {"bias": own["recurrent_bias"], "recurrent_bias": own["bias"]})
        yield "its bias in the place of the recurrent one too", altered(layer, lambda own: {"recurrent_bias": own["bias"]})
        yield "its recurrent bias in the place of the other too", altered(layer, lambda own: {"bias": own["recurrent_bias"]})


def _forget_bias(layer, own, _around):
    units = len(own["bias"]) // 4
    for text, by in (("1 added to the forget gate's bias", 1), ("1 taken from the forget gate's bias", -1)):

        def change(own, by=by):
            bias = own["bias"].copy()
            bias[units:2 * units] += by
            return {"bias": bias}

        yield text, altered(layer, change)


def _activations(layer, _own, _around):
    for name in sorted(_SIGMOIDS):
        if name != layer["recurrent_activation"]:
            yield "{} in place of {} at its gates".format(name, layer["recurrent_activation"]), (
                lambda view, name=name: _told(layer, _run(layer, view, gate=_SIGMOIDS[name])[0])
            )
    for name, other in sorted(_ACTIVATIONS.items()):
        places = [("of its states", (other, other))]
        if layer["kind"] == "lstm":
            places += [("of its candidate", (other, np.tanh)), ("of its output", (np.tanh, other))]
        for place, squash in places:
            yield "{} in place of the tanh {}".format(name, place), (
                lambda view, squash=squash: _told(layer, _run(layer, view, squash=squash)[0])
            )


def _resets(layer, _own, _around):
    own = "after" if layer["reset_after"] else "before"
    for reset in ("before", "after", "before, without the bias", "after, the bias outside", "never"):
        if reset != own and (layer["reset_after"] or "bias" not in reset):
            yield "the reset {} the product in place of {}".format(reset, own), (
                lambda view, reset=reset: _told(layer, _run(layer, view, reset=reset)[0])
            )


def _update_gates(layer, _own, _around):
    units = layer["units"]

    def change(own):
        signs = np.concatenate([np.full(units, -1), np.ones(2 * units)]).astype(own["kernel"].dtype)
        return {name: array * signs for name, array in own.items()}

    if layer["recurrent_activation"] == "sigmoid":  # 1 - s(x) = s(-x)
        yield "z and 1 - z swapped", altered(layer, change)


def _reversed(layer, _own, _around):
    def backwards(view):
        return _run(layer, view, values=view.inputs[0][:, ::-1])[0]

    yield "the sequence read backwards", lambda view: _told(layer, backwards(view))
    if not layer["return_sequences"]:
        yield "the sequence read backwards, and the output at its last place, which is the first step's", lambda view: backwards(view)[:, 0]
    else:
        yield "the sequence read backwards and its outputs turned round", lambda view: backwards(view)[:, ::-1]
        yield "its outputs turned round", lambda view: _run(layer, view)[0][:, ::-1]


def _returned(layer, _own, _around):
    if layer["return_sequences"]:
        yield "the last step's output alone", lambda view: _run(layer, view)[0][:, -1]
    else:
        yield "the first step's output in place of the last one's", lambda view: _run(layer, view)[0][:, 0]
        yield "the mean of all steps' outputs", lambda view: _run(layer, view)[0].mean(axis=1)
        yield "the maximum of all steps' outputs", lambda view: _run(layer, view)[0].max(axis=1)
        yield "the last step but one", lambda view: _run(layer, view)[0][:, -2] if view.inputs[0].shape[1] > 1 else None
        yield "every step's output", lambda view: _run(layer, view)[0]
    if layer["kind"] == "lstm":
        yield "the cell's state in place of the output", (
            lambda view: (lambda cells: np.stack(cells, 1) if layer["return_sequences"] else cells[-1])(_run(layer, view)[1])
        )


def _masked(layer, _own, _around):
    """Steps of token 0 skipped, where the sequence is that of the network's tokens."""

    def keep(view):
        if view.ids is None or view.ids.shape[1] != view.inputs[0].shape[1]:
            return None
        return (view.ids != 0)[:, :, None]

    def skipping(view):
        mask = keep(view)
        return None if mask is None else _told(layer, _run(layer, view, keep=mask)[0])

    def silenced(view):
        """As some frameworks have it: a skipped step's output is zero."""
        mask = keep(view)
        return None if mask is None or not layer["return_sequences"] else _run(layer, view, keep=mask)[0] * mask

    yield "steps of token 0 masked", skipping
    yield "steps of token 0 masked, their outputs zero", silenced


RECURRENT = (
    ("missing_bias", _KINDS, _missing_bias),
    ("recurrent_bias", _KINDS, _recurrent_bias),
    ("forget_bias", ("lstm",), _forget_bias),
    ("gate_order", _KINDS, _gate_orders),
    ("activation", _KINDS, _activations),
    ("reset_after", ("gru",), _resets),
    ("update_gate", ("gru",), _update_gates),
    ("masked_token", _KINDS, _masked),
    ("reversed_sequence", _KINDS, _reversed),
    ("returned_step", _KINDS, _returned),
)
