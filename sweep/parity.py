"""Whether a deployed model still computes its source's function: the verdict, and the figures that it rests on.

Both models ran on the same inputs. An input's *difference* is the largest absolute one among its outputs. What a difference may be is
derived from the arithmetic, never one constant (`sweep.allowance`), and the verdict is one of

    equal               float32 rounding explains every difference: the source differs as much from its own float64 copy
    within tolerance    what the row of `sweep.quantization` does to weights and activations explains them
    degraded            it doesn't, but the outputs still follow the source's
    broken              they don't: another shape, no numbers, one answer for all inputs, values that the source's last activation can't
                        give, outputs in another order, no more agreement than chance has

A float row rests on the largest difference: each output is rounded alike, so that one beyond the tolerance is a fault. An integer row
can't: its activations end where the calibration's did, and an input beyond that is cut by any amount while all others are right (of 1,000
inputs of a sound 8-bit LeNet-5 the median difference is 0.04, the 99th percentile 0.13, and the largest 4.9, of one cut output). It rests
on the percentiles of the inputs that aren't cut, with room in their tail for as many as may be cut before the last layer, on the share
that is, and on decided disagreements: other answers where the source's
margin, the largest output less the second, exceeds twice the tolerance, so that no difference within it can change the answer.
"""

import numpy as np

from sweep.metrics import are_probabilities, margins, predictions

VERDICTS = ("equal", "within tolerance", "degraded", "broken")
WRONG = VERDICTS[2:]
PERCENTILES = (50, 90, 99)
CORRELATION_LEAST = 0.5
"""Outputs that explain less than a quarter of the variance of the source's are another function."""
KAPPA_LEAST = 0.2
"""Cohen's kappa, the agreement beyond chance: up to here it is called slight (Landis & Koch 1977)."""
EXPECTED_LEAST = 5
"""Kappa says nothing where chance alone would leave fewer disagreements than this."""
DECIDED_SHARE = 1e-3
"""Of an integer row's inputs, at least one, may be decided and answered otherwise: an activation before the last may be cut as well."""
FEWEST, FAR, RARE = 20, 4, 0.1
"""Of FEWEST inputs one may be anything, since it may lie beyond an integer row's calibration. So it may of fewer where RARE or more of them
are expected to; else none has another decided answer, or is further off than FAR times what the last percentile may be."""
ORDERED_MOST = 5000
"""Outputs of which each is compared with each; a model with more gives signals or images, which are not mixed up one by one."""
_ORDER_SHARE = 0.1  # outputs are another's column where they are this near, as a share of their spread


def verdict(outputs, source, allowance, limits=None, classes=True):
    """The verdict on float arrays (N, ...), as JSON.

    `allowance` is a `sweep.allowance.Allowance`. `limits` are the least and the largest value that the deployed model can give, where they
    are known; an integer row's are else taken from what it gave. `classes`: the largest of the outputs (N, k >= 2) is the answer.

        verdict, reasons                one of VERDICTS and, for the last two, why: sentences
        n, invalid_outputs              inputs, and those without a finite output where the source has one
        difference_p50, _p90, _p99, _max    over the inputs with finite outputs on both sides
        ulps_max                        float rows: the largest difference in units in the last place of the source's largest float32 output
        tolerance_p50, _p90, _p99       integer rows: what the percentiles may be; tolerance_max: the largest difference of a float row
        tolerance_equal, basis          what `equal` allows, and where the tolerance comes from
        clipped_outputs                 integer rows: inputs with an output beyond the limits by more than the tolerance
        disagreement, decided, decided_disagreements, unique_predictions, source_unique_predictions, kappa     where there are classes
        correlation                     of all outputs with the source's, each column less its mean; of one input there is none

    Figures that nothing was measured for are absent. Raises ValueError for no input at all.
    """
    outputs, source = np.asarray(outputs), np.asarray(source)
    if not len(source):
        raise ValueError("there is no input to compare on")
    if outputs.shape != source.shape:
        reason = "outputs are {} per input, and the source's {}".format(list(outputs.shape[1:]), list(source.shape[1:]))
        return {"verdict": "broken", "reasons": [reason], "n": len(source)}
    outputs, source = (array.reshape(len(array), -1).astype(np.float64) for array in (outputs, source))
    classes = classes and source.shape[1] > 1
    usable = np.isfinite(source).all(axis=1)
    valid = usable & np.isfinite(outputs).all(axis=1)
    found = {"n": len(source), "invalid_outputs": int((usable & ~valid).sum())}
    found.update(tolerance_equal=allowance.rounding, basis=allowance.basis)
    broken = []
    if found["invalid_outputs"]:
        broken.append("{} of {} inputs have outputs that are no finite numbers".format(found["invalid_outputs"], len(source)))
    beyond = ["no input has finite outputs on both sides"] if not valid.any() else []
    if valid.any():
        beyond += _differences(found, outputs[valid], source[valid], allowance, limits)
    if classes:
        beyond += _answers(found, outputs[usable], source[usable], allowance) if usable.any() else []
    if valid.any() and beyond:
        broken += _degenerate(outputs[valid], source[valid], allowance) + _another_function(found)
    return dict(found, **_judged(found, broken, beyond, allowance))


def _judged(found, broken, beyond, allowance):
    if broken:
        return {"verdict": "broken", "reasons": broken + beyond}
    if beyond:
        return {"verdict": "degraded", "reasons": beyond}
    same = found["difference_max"] <= allowance.rounding and not found.get("decided_disagreements")
    return {"verdict": "equal" if same else "within tolerance", "reasons": []}


def _differences(found, outputs, source, allowance, limits):
    """Adds the figures of the differences; returns what is beyond the tolerance."""
    differences = np.abs(outputs - source).max(axis=1)
    for rank, value in zip(PERCENTILES, np.percentile(differences, PERCENTILES)):
        found["difference_p{}".format(rank)] = float(value)
    found["difference_max"] = float(differences.max())
    if len(source) > 1:
        found["correlation"] = _correlation(outputs, source)
    if allowance.percentiles is None:
        found["ulps_max"] = found["difference_max"] / float(np.spacing(np.float32(np.abs(source).max())))
        found["tolerance_max"] = allowance.largest
        if found["difference_max"] > allowance.largest:
            return ["a difference of {:.3g}, where {} explains {:.2g}".format(found["difference_max"], allowance.basis, allowance.largest)]
        return []
    low, high = limits or (outputs.min(), outputs.max())
    clipped = ((source < low - allowance.largest) | (source > high + allowance.largest)).any(axis=1)
    found["clipped_outputs"] = int(clipped.sum())
    beyond = []
    expected = allowance.clipped_share * len(source)
    cut = max(1, int(expected + 3 * np.sqrt(expected)))  # three deviations of a Poisson count
    if not _one_may_be_cut(len(source), allowance) and found["difference_max"] > FAR * allowance.largest:
        beyond.append("a difference of {:.3g} among {} inputs, where {} explains {:.2g} for 99 %".format(
            found["difference_max"], len(source), allowance.basis, allowance.largest))
    if clipped.sum() > cut:
        beyond.append("{} of {} inputs have outputs beyond the range [{:.3g}, {:.3g}] that it gives".format(
            clipped.sum(), len(source), low, high))
    kept = differences[~clipped]
    for rank, tolerance in zip(PERCENTILES, allowance.percentiles):
        found["tolerance_p{}".format(rank)] = tolerance
        # Activations before the last are cut as well, which shows in a tail.
        tail = (1 - rank / 100.0) * len(kept) + (cut if rank > 50 else 0)
        if (kept > tolerance).sum() > tail:
            beyond.append("{} of {} differences exceed {:.2g}, which {} explains for {} %".format(
                (kept > tolerance).sum(), len(kept), tolerance, allowance.basis, rank))
    return beyond


def _answers(found, outputs, source, allowance):
    """Adds the figures of the predictions; returns what is beyond the tolerance."""
    answers, expected = predictions(outputs), predictions(source)
    others = answers != expected
    decided = margins(source) > 2 * allowance.largest  # False where the source gives none
    disagreements = int((decided & others).sum())
    agreement, chance = np.mean(~others), np.sum([np.mean(answers == one) * np.mean(expected == one) for one in np.unique(expected)])
    found.update(
        disagreement=float(np.mean(others)), decided=int(decided.sum()), decided_disagreements=disagreements,
        unique_predictions=len(np.unique(answers[answers >= 0])), source_unique_predictions=len(np.unique(expected[expected >= 0])),
    )
    if (1 - chance) * len(source) >= EXPECTED_LEAST:
        found["kappa"] = float((agreement - chance) / (1 - chance))
    allowed = 0 if allowance.percentiles is None else max(int(_one_may_be_cut(len(source), allowance)), DECIDED_SHARE * len(source))
    if disagreements > allowed:
        return ["{} of {} decided inputs have another answer".format(disagreements, decided.sum())]
    return []


def _one_may_be_cut(count, allowance):
    return count >= FEWEST or allowance.clipped_share * count >= RARE


def _correlation(outputs, source):
    """Of all outputs with the source's, each column less its mean; 1 where the source gives the same outputs for all inputs."""
    centred, expected = (array - array.mean(axis=0) for array in (outputs, source))
    if not expected.any():
        return 1.0
    power = np.sqrt((centred ** 2).sum() * (expected ** 2).sum())
    return float((centred * expected).sum() / power) if power > 0 else 0.0


def _degenerate(outputs, source, allowance):
    """In which ways outputs are none that a sound conversion gives."""
    reasons, slack = [], max(allowance.largest, allowance.rounding)
    varies = np.ptp(source, axis=0).max() > 2 * slack
    if varies and len(outputs) > 1 and not np.ptp(outputs, axis=0).any():
        reasons.append("it gives the same outputs for all inputs")
    if source.min() >= 0 and source.max() <= 1:
        outside = int(((outputs < -slack) | (outputs > 1 + slack)).any(axis=1).sum())
        if outside:
            reasons.append("{} inputs have outputs outside [0, 1], where the source's lie".format(outside))
        elif source.shape[1] > 1 and are_probabilities(source) and not are_probabilities(outputs, slack):
            reasons.append("its outputs don't sum to 1, and the source's do")
    elif source.shape[1] > 1 and are_probabilities(outputs, slack):
        reasons.append("it gives probabilities, and the source doesn't")
    order = _order(outputs, source, slack) if varies else None
    if order is not None:
        reasons.append("its outputs are the source's in the order {}".format(", ".join(map(str, order))))
    elif varies and source.shape[1] > ORDERED_MOST and _same_numbers(outputs, source, slack):
        reasons.append("its outputs are the source's in another order")
    return reasons


def _order(outputs, source, slack):
    """Of each output the source's column that it is, where that is a permutation and not the order of the source; else None."""
    if not 2 <= source.shape[1] <= ORDERED_MOST:
        return None
    squares = (outputs ** 2).sum(axis=0)[:, np.newaxis] + (source ** 2).sum(axis=0) - 2 * outputs.T.dot(source)
    nearest = squares.argmin(axis=1)
    if len(set(nearest)) < len(nearest) or (nearest == np.arange(len(nearest))).all():
        return None
    off = np.sqrt(np.maximum(squares[np.arange(len(nearest)), nearest], 0) / len(source))
    return nearest if (off <= np.maximum(slack, _ORDER_SHARE * source.std(axis=0)[nearest])).all() else None


def _same_numbers(outputs, source, slack):
    """Whether rows have the source's numbers and aren't its rows."""
    ordered = np.abs(np.sort(outputs, axis=1) - np.sort(source, axis=1)).max()
    return bool(ordered <= slack < np.abs(outputs - source).max())


def _another_function(found):
    reasons = []
    if found.get("correlation", 1) < CORRELATION_LEAST:
        reasons.append("its outputs correlate with the source's by {:.2f}".format(found["correlation"]))
    if found.get("kappa", 1) < KAPPA_LEAST and found["unique_predictions"] == 1:
        reasons.append("it predicts one class, and the source {}".format(found["source_unique_predictions"]))
    elif found.get("kappa", 1) < KAPPA_LEAST:
        reasons.append("it agrees with the source hardly more than chance does (kappa {:.2f})".format(found["kappa"]))
    return reasons


def batch_invariance(batched, single, allowance):
    """Outputs of a model run in batches, and one by one: whether rounding explains their difference, a float row's or float32's. Returns
    `batch_difference_max` (absent where shapes differ, or one has numbers where the other has none) and `batch_invariant`."""
    return _invariance("batch", batched, single, allowance.largest if allowance.percentiles is None else allowance.rounding)


def determinism(first, second):
    """Outputs of the same model on the same inputs twice: `repeat_difference_max` as above, and `deterministic`: equal in every bit."""
    found = _invariance("repeat", first, second, 0.0)
    return {"deterministic" if name == "repeat_invariant" else name: value for name, value in found.items()}


def with_steadiness(judged, outputs, single, again, allowance):
    """A verdict (see `verdict`) with the figures of `batch_invariance` and `determinism` added: `single` (m, ...) are the first outputs run
    one by one, `again` those run a second time. What its companions in the batch or another run change by more than the row explains
    is `degraded` at least: the same input has several answers."""
    found = dict(judged, **batch_invariance(outputs[:len(single)], single, allowance))
    found.update(determinism(outputs[:len(again)], again))
    reasons = []
    for name, cause in (("batch", "run in a batch and one by one"), ("repeat", "run twice")):
        off = found.get("{}_difference_max".format(name), np.inf)  # where one has numbers and the other none, nothing is subtracted
        if off > max(allowance.largest, allowance.rounding):
            reasons.append("outputs of the same inputs {} differ by {:.3g}".format(cause, off))
    worst = VERDICTS[max(VERDICTS.index(found["verdict"]), VERDICTS.index("degraded"))] if reasons else found["verdict"]
    return dict(found, verdict=worst, reasons=found["reasons"] + reasons)


def _invariance(name, one, other, allowed):
    one, other = np.asarray(one), np.asarray(other)
    same = one.shape == other.shape and bool((np.isfinite(one) == np.isfinite(other)).all())
    found = {}
    if same:
        finite = np.isfinite(one)
        differences = np.abs(one[finite].astype(np.float64) - other[finite])
        found["{}_difference_max".format(name)] = float(differences.max()) if differences.size else 0.0
        same = not differences.size or bool(differences.max() <= allowed)
    return dict(found, **{"{}_invariant".format(name): same})
