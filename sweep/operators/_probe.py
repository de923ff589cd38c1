"""From a probe to its arrays: the same in every process."""

import json
import zlib

import numpy as np

from sweep import components

BATCH = 2


def name_of(probe):
    """The one text of a probe: its operator and every parameter."""
    chosen = ",".join("{}={}".format(name, _plain(value)) for name, value in sorted(probe["parameters"].items()))
    return "{}({})".format(probe["operator"], chosen)


def operator_of(probe):
    """The module of a probe's operator."""
    return components.load("operators", probe["operator"])


def arrays_of(probe):
    """(weights, inputs) of a probe: float32, drawn from its seed and its text."""
    operator = operator_of(probe)
    rng = np.random.RandomState((zlib.crc32(name_of(probe).encode()) + probe["seed"]) & 0xFFFFFFFF)
    weights, inputs = operator.weights(probe["parameters"], rng), operator.inputs(probe["parameters"], rng)
    return weights, np.repeat(inputs[:1], len(inputs), axis=0) if probe.get("alike") else inputs


def exact(probe, weights, inputs):
    """The right output in float64."""
    with np.errstate(all="ignore"):
        return operator_of(probe).reference(probe["parameters"], wide(weights), inputs.astype(np.float64))


def wide(weights):
    return {name: array.astype(np.float64) for name, array in weights.items()}


def input_shape(probe):
    """Without the batch axis."""
    return arrays_of(probe)[1].shape[1:]


def _plain(value):
    return json.dumps(value, separators=(",", ":")).replace('"', "")
