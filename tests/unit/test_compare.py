"""Two traced trainings: the batches that a trace takes, and what is said where and why two of them part."""

import numpy as np
import pytest

from sweep import initial
from sweep.stages import compare, trace

STEPS = [1, 2, 3]
NAMES = ("first/kernel", "second/kernel", "last/bias")


def traced(losses, gradient=(), weights=()):
    """A trace of three parameters of 4 entries, all ones; `gradient` and `weights` hold what is added: by name, by (step, name)."""
    found = {"losses": np.array(losses, np.float64), "steps": np.array(STEPS)}
    found.update({f"gradient/{name}": np.ones(4) for name in NAMES})
    found.update({f"weights/{step}/{name}": np.ones(4) for step in STEPS for name in NAMES})
    for name, more in dict(gradient).items():
        found[f"gradient/{name}"][0] += more
    for (step, name), more in dict(weights).items():
        found[f"weights/{step}/{name}"][1] += more
    return found


def moved(*draws):
    """How far a side's controls are from it, (draws, steps)."""
    return np.array(draws)


def test_batches_go_through_the_epochs_permutations_without_their_remainders():
    orders = initial.permutations(10, 3, 5)
    batches = trace.batches_of(10, 7, 4, 5)
    assert (batches.shape, batches.dtype) == ((7, 4), np.int32)
    np.testing.assert_array_equal(batches[:2], orders[0, :8].reshape(2, 4))
    np.testing.assert_array_equal(batches[2:4], orders[1, :8].reshape(2, 4))
    np.testing.assert_array_equal(trace.batches_of(3, 2, 8, 5), initial.permutations(3, 2, 5))  # fewer examples than a batch


def test_the_last_step_is_kept_and_fewer_as_it_goes_on():
    assert trace.kept_steps(50) == [1, 2, 3, 5, 8, 13, 21, 34, 50]
    assert trace.kept_steps(1) == [1]
    assert trace.kept_steps(2) == [1, 2]


def test_a_large_parameter_is_sampled_at_the_same_places_whatever_its_values():
    large = np.arange(100_000.0)
    places = trace.sampled("a/kernel", large)
    assert places.shape == (trace.SAMPLED,)
    np.testing.assert_array_equal(trace.sampled("a/kernel", large.reshape(100, 1000) * 2), places * 2)
    assert not np.array_equal(trace.sampled("b/kernel", large), places)
    np.testing.assert_array_equal(trace.sampled("a/kernel", np.ones((2, 3))), np.ones(6))


def test_within_five_times_the_control_they_agree():
    found = compare.float32_verdict(traced([2, 1, 1]), traced([2, 1.004, 1.004]), moved([0, 0.001, 0.001], [0, 0.0005, 0]))
    assert found["ratio_to_control"] == pytest.approx(4.0)
    assert found["loss_diff_max"] == pytest.approx(0.004)
    assert found["loss_diff_one_ulp_max"] == pytest.approx(0.001)
    assert "parts_at_step" not in found


def test_the_controls_reach_is_its_largest_so_far_and_at_least_some_ulps_of_the_loss():
    """The control happens to come back to the same loss at step 3; at step 1 neither has moved beyond rounding."""
    found = compare.float32_verdict(traced([2, 1, 1]), traced([2 + 4e-6, 1.004, 1.004]), moved([0, 0.001, 0], [0, 0, 0]))
    assert "parts_at_step" not in found


@pytest.mark.parametrize(("losses", "gradient", "weights", "step", "where"), [
    ([2.1, 1, 1], {}, {}, 1, "the forward pass"),
    # a wrong backward pass of `second` spoils `first` too, and what comes after it is right
    ([2, 1.1, 1], {"first/kernel": 0.1, "second/kernel": 0.2}, {(1, "first/kernel"): 0.1}, 2, "the gradient of second/kernel"),
    ([2, 1.1, 1], {}, {(1, "first/kernel"): 0.1, (1, "last/bias"): 0.2}, 2, "last/bias after step 1"),
    ([2, 1, 1.1], {}, {(2, "second/kernel"): 0.1}, 3, "second/kernel after step 2"),
    ([2, 1, np.nan], {}, {}, 3, "no weight that was kept"),
])
def test_where_they_part(losses, gradient, weights, step, where):
    own, against = traced(losses, gradient, weights), traced([2, 1, 1])
    single = compare.float32_verdict(own, against, moved([0, 0, 0]))
    assert (single["parts_at_step"], single["parts_in"]) == (step, where)
    double = compare.float64_verdict(own, against)
    assert (double["formula_parts_at_step"], double["formula_parts_in"]) == (step, where)


def test_a_formula_is_found_in_double_precision_and_rounding_is_not_one(tmp_path):
    def write(name, made):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "trace.npz", **made)
        return str(tmp_path / name)

    single = {"own_none": write("a", traced([2, 1, 1])), "own_one_ulp_0": write("b", traced([2, 1.001, 1.001])),
              "own_one_ulp_1": write("b1", traced([2, 1, 1])), "against_none": write("c", traced([2, 1, 1.02])),
              "against_one_ulp_0": write("c1", traced([2, 1, 1.02]))}
    out = compare.run({"against": "the other"}, single, str(tmp_path))
    assert out["facts"]["training"].startswith("parts from the other at step 3, beyond 5 times what one ulp does")
    assert out["metrics"]["trace_ratio_to_control"] == pytest.approx(20)
    rounding = single | {"own_float64": write("d", traced([2, 1, 1])), "against_float64": write("e", traced([2, 1, 1 + 1e-10]))}
    assert compare.run({"against": "the other"}, rounding, str(tmp_path))["metrics"]["trace_loss_diff_rel_float64"] == pytest.approx(1e-10)
    formula = rounding | {"against_float64": write("f", traced([2, 1.0001, 1], weights={(1, "first/kernel"): 1e-3}))}
    found = compare.run({"against": "the other"}, formula, str(tmp_path))["facts"]["training"]
    assert found == "another formula than the other: parts at step 2 in float64, first in first/kernel after step 1"
    equal = single | {"against_none": single["own_none"], "against_one_ulp_0": single["own_none"]}
    assert compare.run({"against": "the other"}, equal, str(tmp_path))["facts"]["training"] == "agrees with the other to what one ulp does"


def test_a_framework_that_parts_from_its_own_twin_as_far_is_told():
    own, against = traced([2, 1, 1.02]), traced([2, 1, 1])
    parted = compare.float32_verdict(own, against, moved([0, 0, 0]))
    assert compare.rounding(own, traced([2, 1, 1.01]), parted) == {
        "loss_diff_rounding_max": pytest.approx(0.01), "parts_as_from_own_float64": True,
    }
    assert not compare.rounding(own, traced([2, 1, 1.0199]), parted)["parts_as_from_own_float64"]
    assert compare.rounding(own, traced([2, 1, 1.0199]), {}) == {"loss_diff_rounding_max": pytest.approx(0.0001)}
