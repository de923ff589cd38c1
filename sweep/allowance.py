"""How far a deployed model's outputs may be from its source's, derived from the arithmetic on the inputs at hand.

Three sources, the best that there is:

- **Rounding.** How far the source's float32 outputs are from those of its float64 copy, times PARITY_FACTOR: another order of the same sums
  is off by a small multiple of it. A source that sums in blocks may be nearer than any order that others take, so what its weights, moved
  by one ulp, do in plain float32 counts where that is more: a difference means something only beyond it. Without such a copy, half a unit
  in the last place of the largest output for each layer.
- **Simulation.** The network with its weights and activations rounded as the row says (`sweep.simulation`), against the exact one. A
  runtime rounds at other places than the simulation does, which SIMULATION_FACTOR covers, and so it does on other inputs than the
  simulation: a percentile of few inputs is taken as high as its rank is uncertain, three deviations of a binomial count.
- **Steps**, where there is no neutral list to simulate. For a smaller float format the float32 error times the ratio of the unit roundoffs:
  to the first order a rounding error is linear in them, and sums that are kept in float32 are only better. For integers the range of the
  source's outputs (of probabilities, of their logits) over its number of steps: rounding to a step of size s is off by a uniform error of
  deviation s / sqrt(12), and those of L layers' weights and activations, each as large a share of its own range, add as independent ones
  do, to sqrt(2 L) of it.
"""

from collections import namedtuple

import numpy as np

from sweep import simulation
from sweep.metrics import PARITY_FACTOR, are_probabilities

SIMULATION_FACTOR = 3
"""An integer row's percentiles may be this many times the simulation's. Sound conversions of a LeNet-5, a ResNet-20 and a TextCNN to int8
by two runtimes were within 1.5 of it; of six tools' conversions of one network one was 3 to 7 times off the others, with four times as
many disagreements, by how its ranges were taken."""
PERCENTILES = (50, 90, 99)
_DEVIATIONS = (1.0, 2.0, 3.0)  # of an input's largest error over some ten outputs, at these percentiles
_LEAST = 2.0 ** -24  # of a probability: half a unit in the last place of those near 1
_MANTISSA_BITS = {"float32": 24, "float16": 11, "bfloat16": 8}
UNKNOWN_CALIBRATION = 200

Allowance = namedtuple("Allowance", "rounding largest percentiles clipped_share basis")
"""What a difference may be: `rounding` is what float32 explains. `largest` is that of a float row, and of an integer row the last of
`percentiles`, what the 50th, 90th and 99th may be (None for a float row). `clipped_share`: of inputs that may lie beyond the range of
the calibration's. `basis`: the derivation in words."""


def float32(source, exact=None, layers=1, moved=None):
    """Of a float32 row. `exact` (n, ...) are the float64 outputs of the first n inputs, `moved` (m <= n, ...) the float32 outputs of the
    first m with the weights moved by one ulp; without the former it goes by the number of layers."""
    own, basis = error(source, exact, layers), "the source's float32 error"
    if exact is None:
        basis = "rounding in {} layers".format(layers)
    elif moved is not None and error(moved, exact[:len(moved)]) > own:
        own, basis = error(moved, exact[:len(moved)]), "what its weights moved by one ulp do"
    most = PARITY_FACTOR * own
    return Allowance(most, most, None, 0.0, basis if exact is None else "{} times {}".format(PARITY_FACTOR, basis))


def error(source, exact=None, layers=1):
    """The float32 error of the source's outputs: the largest difference from the exact ones, at least half a unit in the last place of
    the largest, which a float32 output can't avoid. Raises ValueError where no output is finite."""
    finite = np.isfinite(source).reshape(len(source), -1).all(axis=1)
    if not finite.any():
        raise ValueError("the source has no finite output")
    floor = 0.5 * float(np.spacing(np.float32(np.abs(source[finite]).max())))
    if exact is None:
        return layers * floor
    finite = finite[:len(exact)] & np.isfinite(exact).reshape(len(exact), -1).all(axis=1)
    if not finite.any():
        raise ValueError("no input has finite outputs in both float32 and float64")
    return max(floor, float(np.abs(source[:len(exact)][finite].astype(np.float64) - exact[finite]).max()))


def of(how, plain, source, exact=None, simulated=None, layers=1, calibration=None):
    """Of a `sweep.simulation.Arithmetic`; `plain` is the `float32` of the same source.

    `exact` and `simulated` (n, ...) are float64, of the first n inputs; `layers` counts those with weights; `calibration` is how many
    inputs the ranges of a static row were taken from, None where it isn't known.
    """
    types = {how.weights, how.activations}
    if types == {"float32"}:
        return plain
    integers = [name for name in types if "int" in name]
    # Each input is as likely as another to have the largest or the least of the calibration's values and its own.
    share = 0.0 if how.dynamic or "int" not in how.activations else 2.0 / (1 + (calibration or UNKNOWN_CALIBRATION))
    if simulated is not None and exact is not None:
        sample = np.abs(simulated - exact).reshape(len(exact), -1).max(axis=1)
        sample = sample[np.isfinite(sample)]
        if len(sample) and integers:
            return _integer(plain, np.percentile(sample, _upper_ranks(len(sample))) * SIMULATION_FACTOR, share, "the simulated row")
        if len(sample):
            return _smaller_float(plain, PARITY_FACTOR * float(sample.max()), "the simulated row")
    if integers:
        fewest = min(map(simulation.bits, integers))
        finite = source[np.isfinite(source).reshape(len(source), -1).all(axis=1)]
        deviation = _spread(finite) / (2 ** fewest - 1) * np.sqrt(2.0 * layers / 12)
        return _integer(plain, np.array(_DEVIATIONS) * deviation, share, "{} layers of {}-bit steps".format(layers, fewest))
    ratio = 2.0 ** (_MANTISSA_BITS["float32"] - min(_MANTISSA_BITS[name] for name in types))
    return _smaller_float(plain, plain.largest * ratio, "the source's float32 error by the ratio of unit roundoffs")


def _upper_ranks(count):
    """The PERCENTILES' upper ranks in a sample of so many, in percent."""
    shares = np.array(PERCENTILES) / 100.0
    return 100 * np.minimum(shares + 3 * np.sqrt(shares * (1 - shares) / count), 1)


def _spread(outputs):
    """The range of which a step is a share. Of probabilities that is the logits', whose errors a softmax hands on at most by a quarter: the
    slope p (1 - p)."""
    flat = outputs.reshape(len(outputs), -1)
    if flat.shape[1] > 1 and are_probabilities(flat):
        flat = np.log(np.maximum(flat, _LEAST)) / 4
    return float(np.ptp(flat))


def _integer(plain, percentiles, share, basis):
    percentiles = [max(float(value), plain.rounding) for value in percentiles]
    return Allowance(plain.rounding, percentiles[-1], percentiles, share, basis)


def _smaller_float(plain, most, basis):
    return Allowance(plain.rounding, max(most, plain.rounding), None, 0.0, basis)
