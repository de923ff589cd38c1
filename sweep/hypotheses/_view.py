"""What a hypothesis is told about the layer that it recomputes."""

from collections import namedtuple

from sweep import reference

Hypothesis = namedtuple("Hypothesis", "fault detail compute")

View = namedtuple("View", "own inputs observed ids")
"""One reading of a layer: its parameters, its inputs, what was observed, and the token ids (N, T) of a text network, else None. All
arrays are of one dtype, but for ids."""

Coarse = namedtuple("Coarse", "values tolerance")
"""What a hypothesis may give in place of an array where it knows the observed values only so well."""

Surroundings = namedtuple("Surroundings", "shape source_shape last")
"""Output shape, the shape that was flattened to what the layer reads (None where nothing was), and whether the layer gives the logits."""


def altered(layer, change=None, **fields):
    """The layer computed with other fields, and with the parameters that `change` makes of its own."""
    other = dict(layer, **fields)

    def compute(view):
        return reference.apply(other, dict(view.own, **change(view.own)) if change else view.own, *view.inputs)

    return compute


def after(layer, change):
    """`change` of the layer's right output."""
    return lambda view: change(reference.apply(layer, view.own, *view.inputs))


def before(layer, change):
    """The layer on changed inputs."""
    return lambda view: reference.apply(layer, view.own, *[change(values) for values in view.inputs])
