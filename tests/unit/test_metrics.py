"""Metrics against values worked out by hand."""

import numpy as np
import pytest

from sweep import metrics

NAN, INF = float("nan"), float("inf")
LOGITS = np.array(
    [
        [3.0, 1.0, 0.5],  # 0, margin 2
        [0.0, 0.25, 0.0],  # 1, margin 0.25
        [1.0, 1.0, -1.0],  # a tie: the first, margin 0
        [NAN, 5.0, 0.0],  # no answer
        [0.0, INF, 0.0],  # no answer
    ],
    np.float32,
)


def test_predictions_and_margins():
    assert metrics.predictions(LOGITS).tolist() == [0, 1, 0, -1, -1]
    assert metrics.predictions(LOGITS).dtype == np.int64
    np.testing.assert_array_equal(metrics.margins(LOGITS), [2.0, 0.25, 0.0, NAN, NAN])


def test_evaluation_counts_an_invalid_output_as_wrong():
    labels = np.array([0, 1, 1, 1, 1])
    assert metrics.evaluation(LOGITS, labels) == {"eval_n": 5, "accuracy": 0.4, "nan_outputs": 2, "unique_predictions": 2}


def test_a_degenerate_model_has_one_unique_prediction():
    found = metrics.evaluation(np.tile(np.float32([1, 0]), (4, 1)), np.array([0, 1, 0, 1]))
    assert (found["unique_predictions"], found["accuracy"]) == (1, 0.5)


def test_a_model_without_any_valid_output_predicts_nothing():
    found = metrics.evaluation(np.full((2, 3), NAN, np.float32), np.array([0, 0]))
    assert found == {"eval_n": 2, "accuracy": 0.0, "nan_outputs": 2, "unique_predictions": 0}


@pytest.mark.parametrize("shape", [(0, 3), (3,), (3, 1)])
def test_logits_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match="logits are"):
        metrics.predictions(np.zeros(shape))


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="labels has 4 rows for 5 outputs"):
        metrics.evaluation(LOGITS, np.zeros(4))
    with pytest.raises(ValueError, match=r"\(5, 3\) and \(4, 3\)"):
        metrics.parity(LOGITS, LOGITS[:4])


def test_parity_is_about_the_largest_difference_of_each_input():
    source = np.zeros((5, 2), np.float32)
    source[:, 0] = 10
    logits = source.copy()
    logits[0, 1] = 1  # largest differences: 1, 2, 3, 0 and 11, of which the last changes the answer
    logits[1] += [2, -1]
    logits[2, 0] -= 3
    logits[4, 1] = 11
    found = metrics.parity(logits, source)
    assert found["disagreement"] == 0.2
    assert (found["logit_diff_p50"], found["logit_diff_max"]) == (2, 11)
    assert found["logit_diff_p99"] == pytest.approx(3 + 0.96 * 8)  # position 0.99 x 4 = 3.96 in 0, 1, 2, 3, 11


def test_parity_leaves_invalid_outputs_to_disagreement():
    source = np.array([[1, 0], [1, 0], [NAN, 0]])
    logits = np.array([[1, 0], [NAN, 0], [NAN, 0]])
    found = metrics.parity(logits, source)
    assert found["disagreement"] == pytest.approx(1 / 3)  # both giving none is agreement
    assert found["logit_diff_max"] == 0


def test_parity_without_a_pair_of_valid_outputs_has_no_difference():
    assert metrics.parity(np.full((2, 2), NAN), np.zeros((2, 2))) == {"disagreement": 1.0}


def test_float32_error_is_the_largest_difference():
    assert metrics.float32_error(np.float32([[1, 2], [3, 4]]), np.array([[1, 2.25], [3, 3.5]])) == 0.5
    with pytest.raises(ValueError, match="no input"):
        metrics.float32_error(np.full((1, 2), NAN), np.zeros((1, 2)))


# an error of 1/8 gives a tolerance of 1; only the first input's margin (4) exceeds twice that
SOURCE = np.array([[4.0, 0.0], [1.0, 0.0]])


@pytest.mark.parametrize(
    ("logits", "verdict"),
    [
        ([[4.0, 0.0], [1.0, 0.0]], (True, 1.0, True, 1, 0)),
        ([[4.0, 1.0], [0.0, 0.5]], (True, 1.0, True, 1, 0)),  # the second answer differs, but was not decided
        ([[5.5, 0.0], [1.0, 0.0]], (False, 1.0, False, 1, 0)),
        ([[0.0, 4.0], [1.0, 0.0]], (False, 1.0, False, 1, 1)),
        ([[4.0, 0.0], [NAN, 0.0]], (False, 1.0, False, 1, 0)),
    ],
)
def test_float32_parity(logits, verdict):
    assert metrics.float32_parity(np.array(logits), SOURCE, error=0.125) == verdict


def test_attack_outcome():
    labels = np.array([0, 0, 0, 1])
    before = np.array([[2, 1], [2, 1], [1, 2], [1, 2]])  # right, right, wrong, right
    after = np.array([[1, 2], [2, 1], [2, 1], [NAN, 2]])  # flipped, held, corrected, lost
    x = np.full((4, 1, 2, 1), 0.5, np.float32)
    x_adv = x.copy()
    x_adv[0, 0, :, 0] += [0.375, -0.5]
    x_adv[1, 0, 0, 0] += 0.25
    x_adv[3, 0, 0, 0] += 0.125
    found, columns = metrics.attack_outcome(labels, before, after, x, x_adv)
    assert found == {
        "attack_n": 4,
        "attack_clean_accuracy": 0.75,
        "robust_accuracy": 0.5,  # the second and the third
        "attack_success_rate": 2 / 3,  # the first and the last, of three
        "perturbation_linf_mean": (0.5 + 0.125) / 2,
        "perturbation_l2_mean": (0.625 + 0.125) / 2,  # 0.375 and 0.5 are the legs of 0.625
    }
    assert columns["prediction_before"].tolist() == [0, 0, 1, 1]
    assert columns["perturbation_linf"].tolist() == [0.5, 0.25, 0, 0.125]
    assert columns["perturbation_l2"].tolist() == [0.625, 0.25, 0, 0.125]


def test_an_attack_on_a_model_that_is_always_wrong_has_no_success_rate():
    x = np.zeros((1, 1, 1, 1))
    found, _ = metrics.attack_outcome(np.array([1]), np.array([[1, 0]]), np.array([[1, 0]]), x, x)
    assert found == {"attack_n": 1, "attack_clean_accuracy": 0.0, "robust_accuracy": 0.0}


def test_an_attack_without_success_has_a_rate_of_zero_and_no_perturbation():
    x = np.zeros((1, 1, 1, 1))
    found, _ = metrics.attack_outcome(np.array([0]), np.array([[1, 0]]), np.array([[1, 0]]), x, x)
    assert found == {"attack_n": 1, "attack_clean_accuracy": 1.0, "robust_accuracy": 1.0, "attack_success_rate": 0.0}


def test_outcome_columns():
    found = metrics.outcome_columns(np.array([7, 9]), np.array([1, 0]), np.array([[0.0, 2.0], [NAN, 0.0]]))
    assert {name: column.tolist() for name, column in found.items() if name != "margin"} == {
        "index": [7, 9],
        "label": [1, 0],
        "prediction": [1, -1],
    }
    np.testing.assert_array_equal(found["margin"], [2.0, NAN])
    assert [str(column.dtype) for column in found.values()] == ["int64", "int64", "int64", "float64"]


def test_outcome_columns_of_an_attack():
    attack = {"prediction_before": np.array([0]), "perturbation_linf": np.array([0.1]), "perturbation_l2": np.array([0.2])}
    found = metrics.outcome_columns(np.array([7]), np.array([1]), np.array([[0.0, 2.0]]), attack, queries=42)
    assert list(found) == ["index", "label", "prediction", "margin", "prediction_before", "perturbation_linf", "perturbation_l2", "queries"]
    assert found["queries"].tolist() == [42]
    with pytest.raises(ValueError, match="both its columns and its queries"):
        metrics.outcome_columns(np.array([7]), np.array([1]), np.array([[0.0, 2.0]]), attack)
