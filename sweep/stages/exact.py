"""What a user's own model should give, beside what it gives in float32: the scale of its rounding errors.

They are far from alike on all inputs: over 183 files a classifier's median error was 9e-8, its largest 2e-5, where two classes were close.
So of many inputs those are computed where rounding matters most.
"""

import numpy as np

from sweep.metrics import margins

DRAWS = 8
FLOAT64, ONE_ULP = "float64", "inputs moved by one ulp"


def outputs(module, path, predict, inputs, given, count):
    """Outputs float64 (N, ...) of inputs (N, ...), NaN for the inputs that are left out, and where they come from.

    FLOAT64: the same file in double precision, for the `count` most sensitive inputs. ONE_ULP: where a format or a model has none, for all
    inputs what `predict`, which gave the outputs `given`, gives on inputs that are moved by one ulp: of DRAWS draws for each input the one
    that moves its outputs furthest. Over seven models that have both, the largest such difference was 0.4 to 1.9 times the largest from
    double precision. Raises ValueError where neither can be had, with why.
    """
    reason = "its format has no double precision"
    if module.FACTS["float64"]:
        chosen = np.sort(_most_sensitive(predict, inputs, given)[:count])
        found = np.full(given.shape, np.nan)
        try:
            found[chosen] = module.predict64(path, inputs[chosen])
        except ValueError as error:
            reason = str(error)
        else:
            return found, FLOAT64
    if inputs.dtype != np.float32:
        raise ValueError("{}; and inputs that are {} can't be moved by an ulp".format(reason, inputs.dtype))
    return _furthest(predict, inputs, given), ONE_ULP


def _most_sensitive(predict, inputs, given):
    """Indices of all inputs: first those whose outputs a move by one ulp changes most; of integers, those with the least margins."""
    if inputs.dtype == np.float32:
        return np.argsort(-_distances(predict(moved_by_one_ulp(inputs, 0)), given), kind="stable")
    flat = given.reshape(len(given), -1)
    return np.argsort(margins(flat), kind="stable") if flat.shape[1] > 1 else np.arange(len(given))


def _furthest(predict, inputs, given):
    found, largest = given.astype(np.float64), np.zeros(len(inputs))
    for draw in range(DRAWS):
        moved = predict(moved_by_one_ulp(inputs, draw))
        distances = _distances(moved, given)
        further = distances > largest
        found[further], largest[further] = moved[further], distances[further]
    return found


def _distances(outputs, others):
    return np.abs(outputs.astype(np.float64) - others).reshape(len(outputs), -1).max(axis=1)


def moved_by_one_ulp(inputs, draw):
    """Each value of float32 inputs replaced by one of its two neighbours, by a coin."""
    up = np.random.RandomState(draw).randint(2, size=inputs.shape).astype(bool)
    return np.nextafter(inputs, np.where(up, np.float32(np.inf), np.float32(-np.inf)))
