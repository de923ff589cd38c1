"""What each figure of a cell means, where it is computed.

Outputs are logits (N, classes). An output is *valid* when all its logits are finite: the softmax of any other is NaN. An invalid
output gives no answer: its prediction is NO_PREDICTION, which no label equals, and its margin is NaN. Of equal logits the first wins.

A metric that nothing was measured for is absent from the dict; none is ever None or a stand-in number.
"""

from typing import NamedTuple

import numpy as np

NO_PREDICTION = -1
PARITY_FACTOR = 8
PROBABILITY_SUM = 1e-3  # how far the sum of probabilities may be from 1, whatever their format
"""A float32 conversion may differ from its source by this many times the source's own float32 error."""


class Parity(NamedTuple):
    """Whether a float32 conversion computes the same function as its source."""

    holds: bool  # both parts below
    tolerance: float  # PARITY_FACTOR x the source's error
    within: bool  # every logit is at most the tolerance from the source's
    decided: int  # inputs where the source's margin exceeds twice the tolerance, so that no such difference can change the answer
    decided_disagreements: int  # those of them with another answer


def predictions(logits):
    """int64 (N,): the class of the largest logit, NO_PREDICTION for an invalid output. Raises ValueError for another shape."""
    _check_logits(logits)
    return np.where(_valid(logits), np.argmax(logits, axis=1), NO_PREDICTION).astype(np.int64)


def margins(logits):
    """float64 (N,): the largest logit minus the second, at least 0; NaN for an invalid output."""
    _check_logits(logits)
    found = np.full(len(logits), np.nan)
    valid = _valid(logits)
    top = np.sort(logits[valid].astype(np.float64), axis=1)[:, -2:]
    found[valid] = top[:, 1] - top[:, 0]
    return found


def evaluation(logits, labels=None):
    """Metrics of a model on inputs, labelled or not.

    eval_n               inputs
    accuracy             share whose prediction is the label; absent without labels
    nan_outputs          inputs with an invalid output: a NaN or an infinity among the logits
    unique_predictions   how many classes were predicted at all; 1 is a degenerate model
    """
    predicted = predictions(logits)
    found = {
        "eval_n": len(predicted),
        "nan_outputs": int(np.sum(~_valid(logits))),
        "unique_predictions": len(np.unique(predicted[predicted != NO_PREDICTION])),
    }
    if labels is not None:
        _check_length("labels", labels, logits)
        found["accuracy"] = float(np.mean(predicted == labels))
    return found


def are_probabilities(values, slack=0.0):
    """Whether rows (N, k) are in [0, 1] and sum to 1, each value but for `slack`."""
    off = np.abs(values.sum(axis=1) - 1).max()
    return bool(values.min() >= -slack and values.max() <= 1 + slack and off <= max(PROBABILITY_SUM, slack * values.shape[1]))


def parity(logits, source_logits):
    """A converted model against its source, on the same inputs.

    disagreement                  share of inputs whose prediction differs from the source's; giving none counts as one more answer
    logit_diff_p50, _p90, _p99, _max    percentiles (linear) over inputs of the largest absolute difference in an input's logits, over the
                                  inputs whose output is valid on both sides; absent where there is none
    """
    differences = _largest_differences(logits, source_logits)
    metrics = {"disagreement": float(np.mean(predictions(logits) != predictions(source_logits)))}
    if len(differences):
        for rank, value in zip(("p50", "p90", "p99", "max"), np.percentile(differences, [50, 90, 99, 100])):
            metrics["logit_diff_" + rank] = float(value)
    return metrics


def float32_error(logits, logits_float64):
    """The largest difference between a model's logits and those of its float64 copy. Raises ValueError where no output is valid."""
    differences = _largest_differences(logits, logits_float64)
    if not len(differences):
        raise ValueError("no input has finite logits in both float32 and float64")
    return float(differences.max())


def float32_parity(logits, source_logits, error):
    """The verdict on a float32 conversion; `error` is the source's `float32_error` on these inputs. An invalid output fails it."""
    tolerance = PARITY_FACTOR * error
    differences = _largest_differences(logits, source_logits)
    within = len(differences) == len(logits) and bool(np.all(differences <= tolerance))
    decided = margins(source_logits) > 2 * tolerance
    disagreements = int(np.sum(decided & (predictions(logits) != predictions(source_logits))))
    return Parity(within and disagreements == 0, tolerance, within, int(decided.sum()), disagreements)


def attack_outcome(labels, before, after, x, x_adv):
    """Metrics of an attack, and what it did to each input.

    `before` and `after` are the attacked model's logits for x and x_adv, images in [0, 1] (N, ...). A *success* is an input that was
    predicted right before and isn't after.

    attack_n                 inputs
    attack_clean_accuracy    share of them that is right before the attack
    robust_accuracy          share of all attack_n that is right after the attack; what was wrong before counts, as wrong or (an attack may
                             correct it) as it is after
    attack_success_rate      successes over the inputs that were right before; absent where there was none
    perturbation_linf_mean, perturbation_l2_mean
                             means over the successes of the largest change of a value, and of the Euclidean norm of the change; absent
                             where there was no success

    The columns, each (N,): prediction_before int64, perturbation_linf and perturbation_l2 float64.
    """
    predicted_before, predicted_after = predictions(before), predictions(after)
    for name, array in (("labels", labels), ("after", after), ("x", x), ("x_adv", x_adv)):
        _check_length(name, array, before)
    change = (x_adv.astype(np.float64) - x).reshape(len(x), -1)
    linf, l2 = np.abs(change).max(axis=1), np.sqrt(np.square(change).sum(axis=1))
    right_before, right_after = predicted_before == labels, predicted_after == labels
    success = right_before & ~right_after
    metrics = {
        "attack_n": len(labels), "attack_clean_accuracy": float(np.mean(right_before)), "robust_accuracy": float(np.mean(right_after)),
    }
    if right_before.any():
        metrics["attack_success_rate"] = float(success.sum() / right_before.sum())
    if success.any():
        metrics.update(perturbation_linf_mean=float(linf[success].mean()), perturbation_l2_mean=float(l2[success].mean()))
    return metrics, {"prediction_before": predicted_before, "perturbation_linf": linf, "perturbation_l2": l2}


def outcome_columns(index, labels, logits, attack=None, queries=None):
    """The columns of outcomes.parquet, one row per input.

    index int64 (in the test set), label int64, prediction int64, margin float64. For an attack the logits are those after it, `attack` is
    `attack_outcome`'s columns and `queries` what was asked of the model for each input, int64: one number for all, or (N,).
    Raises ValueError where lengths differ, or where only one of `attack` and `queries` is given.
    """
    if (attack is None) != (queries is None):
        raise ValueError("an attack's outcomes need both its columns and its queries")
    _check_length("index", index, logits)
    _check_length("labels", labels, logits)
    columns = {
        "index": np.asarray(index, dtype=np.int64),
        "label": np.asarray(labels, dtype=np.int64),
        "prediction": predictions(logits),
        "margin": margins(logits),
    }
    if attack is not None:
        columns.update(attack, queries=np.array(np.broadcast_to(queries, (len(logits),)), dtype=np.int64))
    return columns


def _valid(logits):
    return np.isfinite(logits).all(axis=1)


def _largest_differences(logits, others):
    """Per input with two valid outputs."""
    if logits.shape != others.shape:
        raise ValueError("logits are {} and {}".format(logits.shape, others.shape))
    both = _valid(logits) & _valid(others)
    return np.abs(logits[both].astype(np.float64) - others[both]).max(axis=1)


def _check_logits(logits):
    if logits.ndim != 2 or logits.shape[0] == 0 or logits.shape[1] < 2:
        raise ValueError("logits are (N, classes) of at least one input and two classes, not {}".format(logits.shape))


def _check_length(name, array, logits):
    if len(array) != len(logits):
        raise ValueError("{} has {} rows for {} outputs".format(name, len(array), len(logits)))
