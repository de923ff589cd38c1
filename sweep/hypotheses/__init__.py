"""What frameworks are known to get wrong: each row recomputes a layer as a framework with that fault would.

A row is (fault, kinds of layers, function). The function takes (layer, own, surroundings) and yields (detail, compute), a pair for each
form that the fault can take; `compute(view)` is the layer's output in the dtype of the view's arrays, or `Coarse`, or None where this
form can't be what was observed (ValueError says so too). Rows come in the order in which they are believed where several agree: the
simpler first.
"""

from sweep.hypotheses._deployed import DEPLOYED, OF_THE_OUTPUT, OF_THE_RANGE, Deployed
from sweep.hypotheses._kernels import KERNELS
from sweep.hypotheses._parameters import PARAMETERS
from sweep.hypotheses._precision import PRECISION
from sweep.hypotheses._recurrent import RECURRENT
from sweep.hypotheses._values import SHAPES, VALUES
from sweep.hypotheses._view import Coarse, Hypothesis, Surroundings, View
from sweep.hypotheses._windows import WINDOWS

ROWS = KERNELS + PARAMETERS + WINDOWS + RECURRENT + SHAPES + VALUES + PRECISION

OF_THE_WHOLE_BATCH = ("batch_statistics", "clipping", "reduced_precision")
"""Faults that a few of the examples can't tell."""

__all__ = [
    "DEPLOYED", "OF_THE_OUTPUT", "OF_THE_RANGE", "OF_THE_WHOLE_BATCH", "ROWS", "Coarse", "Deployed", "Hypothesis", "Surroundings", "View",
    "of",
]


def of(layer, own, surroundings):
    """Every hypothesis on one layer, the simplest first; `own` is its parameters (`reference.own_weights`)."""
    return [
        Hypothesis(fault, detail, compute)
        for fault, kinds, forms in ROWS if kinds is None or layer["kind"] in kinds
        for detail, compute in forms(layer, own, surroundings)
    ]
