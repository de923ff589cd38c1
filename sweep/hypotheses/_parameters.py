"""Parameters left out and constants mistaken, of the layers that scale and look up."""

import numpy as np

from sweep import reference
from sweep.hypotheses._view import after, altered, before

_EPSILONS = (1e-3, 1e-5, 1e-4, 1e-6, 1e-7, 2e-5, 1e-8, 1e-12, 0.0)  # that frameworks are known to take


def _scaled(own, values, deviation):
    return (values - own["mean"]) / deviation * own["gamma"] + own["beta"]


def _epsilons(layer, _own, _around):
    for epsilon in _EPSILONS:
        if epsilon != layer["epsilon"]:
            yield "epsilon {:g} in place of {:g}".format(epsilon, layer["epsilon"]), altered(layer, epsilon=epsilon)
    for epsilon in sorted({layer["epsilon"], *_EPSILONS}, key=lambda epsilon: epsilon != layer["epsilon"]):
        if epsilon:
            yield "epsilon {:g} added outside the square root".format(epsilon), (
                lambda view, epsilon=epsilon: _scaled(
                    view.own, view.inputs[0], np.sqrt(view.own["variance"]) + view.inputs[0].dtype.type(epsilon)
                )
            )
    yield "another epsilon in place of {:g}".format(layer["epsilon"]), lambda view: _with_solved_epsilon(layer, view)


def _with_solved_epsilon(layer, view):
    """With the epsilon that the observed output tells: of the channel where it has the most weight."""
    values, own = view.inputs[0].astype(np.float64), {name: array.astype(np.float64) for name, array in view.own.items()}
    axes = tuple(range(values.ndim - 1))
    centred, seen = (values - own["mean"]) * own["gamma"], view.observed.astype(np.float64) - own["beta"]
    power = (centred ** 2).sum(axis=axes)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = (centred * seen).sum(axis=axes) / power  # 1 / sqrt(variance + epsilon)
        told, weight = inverse ** -2.0 - own["variance"], power / (own["variance"] + layer["epsilon"]) ** 3
    weight = np.where(np.isfinite(told) & np.isfinite(weight), weight, 0)
    if not weight.any() or told[weight.argmax()] + own["variance"].min() <= 0:
        return None
    return reference.apply(dict(layer, epsilon=float(told[weight.argmax()])), view.own, view.inputs[0])


def _batch_statistics(layer, _own, _around):
    def compute(view, unbiased=False):
        values = view.inputs[0]
        axes = tuple(range(values.ndim - 1))
        count = values.size // values.shape[-1]
        variance = values.var(axis=axes) * values.dtype.type(count / (count - 1.0) if unbiased else 1)
        own = dict(view.own, mean=values.mean(axis=axes), variance=variance)
        return reference.apply(layer, own, values)

    yield "the batch's statistics in place of the moving ones", compute
    yield "the batch's statistics, the variance unbiased", lambda view: compute(view, unbiased=True)


def _gammas(layer, _own, _around):
    yield "gamma taken as 1", altered(layer, lambda own: {"gamma": np.ones_like(own["gamma"])})


def _betas(layer, _own, _around):
    yield "without beta", altered(layer, lambda own: {"beta": np.zeros_like(own["beta"])})


def _variances(layer, _own, _around):
    yield "the variance taken for the deviation", altered(layer, lambda own: {"variance": own["variance"] ** 2})
    yield "no square root", lambda view: _scaled(
        view.own, view.inputs[0], view.own["variance"] + view.inputs[0].dtype.type(layer["epsilon"])
    )


def _statistics(layer, _own, _around):
    def fresh(own):
        return {"mean": np.zeros_like(own["mean"]), "variance": np.ones_like(own["variance"])}

    yield "moving statistics of a fresh layer", altered(layer, fresh)
    yield "a moving mean of 0", altered(layer, lambda own: {"mean": fresh(own)["mean"]})
    yield "a moving variance of 1", altered(layer, lambda own: {"variance": fresh(own)["variance"]})


def _swapped_parameters(layer, _own, _around):
    yield "gamma and beta swapped", altered(layer, lambda own: {"gamma": own["beta"], "beta": own["gamma"]})
    yield "mean and variance swapped", altered(layer, lambda own: {"mean": own["variance"], "variance": np.abs(own["mean"])})


def _offsets(layer, _own, _around):
    size = layer["vocabulary"]
    for text, by in (("one too high", 1), ("one too low", -1)):
        yield "token ids " + text, lambda view, by=by: view.own["kernel"][np.clip(view.inputs[0] + by, 0, size - 1)]
        yield "token ids {}, counted round".format(text), lambda view, by=by: view.own["kernel"][(view.inputs[0] + by) % size]


def _silent_token(_layer, _own, _around):
    yield "token 0 embedded as zeros", (
        lambda view: view.own["kernel"][view.inputs[0]] * (view.inputs[0] != 0)[..., None].astype(view.own["kernel"].dtype)
    )


def _normalizations(layer, _own, _around):
    def normalized(values):
        return reference.apply(layer, {}, values)

    def deviation(values):
        return np.asarray(layer["std"], values.dtype)

    yield "not normalized", lambda view: view.inputs[0]
    yield "normalized twice", after(layer, normalized)
    yield "normalized from 0 to 255 in place of 0 to 1", before(layer, lambda values: values * 255)
    yield "normalized after a division by 255", before(layer, lambda values: values / 255)
    yield "divided by the variance", after(layer, lambda values: values / deviation(values))
    yield "multiplied by the deviation", after(layer, lambda values: values * deviation(values) ** 2)
    yield "the mean not subtracted", lambda view: view.inputs[0] / deviation(view.inputs[0])
    yield "not divided by the deviation", after(layer, lambda values: values * deviation(values))
    yield "the mean added", lambda view: (view.inputs[0] + np.asarray(layer["mean"], view.inputs[0].dtype)) / deviation(view.inputs[0])


def _input_scales(_layer, _own, _around):
    yield "scaled by 255", lambda view: view.inputs[0] * 255
    yield "divided by 255", lambda view: view.inputs[0] / 255
    yield "from -1 to 1", lambda view: view.inputs[0] * 2 - 1
    yield "inverted", lambda view: 1 - view.inputs[0]


_NORM = ("batch_norm",)
PARAMETERS = (
    ("gamma_fixed", _NORM, _gammas),
    ("beta_ignored", _NORM, _betas),
    ("epsilon", _NORM, _epsilons),
    ("batch_statistics", _NORM, _batch_statistics),
    ("variance_as_deviation", _NORM, _variances),
    ("statistics_ignored", _NORM, _statistics),
    ("swapped_parameters", _NORM, _swapped_parameters),
    ("embedding_offset", ("embedding",), _offsets),
    ("masked_token", ("embedding",), _silent_token),
    ("normalization", ("normalize",), _normalizations),
    ("input_scale", ("input",), _input_scales),
)
