"""The verdict on outputs that are worked out by hand, and what arithmetic allows."""

import json

import numpy as np
import pytest

from sweep import allowance, layers, parity, quantization, simulation
from sweep.allowance import Allowance

FLOAT = Allowance(1e-5, 1e-5, None, 0.0, "8 times the source's float32 error")
INTEGER = Allowance(1e-5, 0.3, [0.1, 0.2, 0.3], 0.01, "the simulated row")


@pytest.fixture
def source():
    """Logits of 200 inputs and five classes, every class predicted."""
    return np.random.RandomState(0).normal(0, 4, (200, 5)).astype(np.float32)


def moved(source, by, inputs=slice(None)):
    outputs = source.copy()
    outputs[inputs, 0] += np.float32(by)
    return outputs


def test_rounding_is_equal(source):
    found = parity.verdict(moved(source, 5e-6), source, FLOAT)
    assert (found["verdict"], found["reasons"]) == ("equal", [])
    assert found["difference_max"] == pytest.approx(5e-6, rel=0.1)  # as float32 has it
    assert found["ulps_max"] == found["difference_max"] / np.spacing(np.abs(source).max())
    assert (found["disagreement"], found["decided_disagreements"], found["kappa"]) == (0, 0, 1)
    assert found["unique_predictions"] == found["source_unique_predictions"] == 5
    json.dumps(found, allow_nan=False)


def test_figures_by_hand():
    source = np.array([[0, 1], [0, 3], [2, 0], [5, 0]], np.float32)
    outputs = np.array([[0, 1.25], [0, 2], [0, 1], [5, 0]], np.float32)  # differences 0.25, 1, 2, 0; the third input is answered otherwise
    found = parity.verdict(outputs, source, Allowance(1e-6, 0.5, [0.5, 0.5, 0.5], 0.01, "steps"))
    assert (found["difference_p50"], found["difference_max"]) == (0.625, 2)
    assert (found["disagreement"], found["decided"], found["decided_disagreements"]) == (0.25, 3, 1)  # margins 1, 3, 2, 5 and twice 0.5
    assert "kappa" not in found  # chance leaves two disagreements
    assert found["correlation"] == pytest.approx(19.25 / np.sqrt(20.796875 * 22.75))  # of columns less their means
    assert found["verdict"] == "degraded"
    assert found["reasons"][0] == "2 of 4 differences exceed 0.5, which steps explains for 90 %"


def test_a_float_row_rests_on_its_largest_difference(source):
    found = parity.verdict(moved(source, 1e-4, [7]), source, FLOAT)
    assert found["verdict"] == "degraded"
    assert found["reasons"] == ["a difference of 0.0001, where 8 times the source's float32 error explains 1e-05"]
    half = FLOAT._replace(largest=1e-3)
    assert parity.verdict(moved(source, 1e-4, [7]), source, half)["verdict"] == "within tolerance"
    assert parity.verdict(moved(source, 5e-6), source, half)["verdict"] == "equal"


def test_an_integer_row_rests_on_percentiles_and_tells_cut_outputs_apart(source):
    assert parity.verdict(moved(source, 0.05), source, INTEGER)["verdict"] == "within tolerance"
    assert parity.verdict(moved(source, 0.15), source, INTEGER)["verdict"] == "degraded"  # the median may be 0.1
    source[3, 2] = 20
    cut = np.minimum(source, 12.0)  # by 8, of one input
    found = parity.verdict(cut, source, INTEGER)
    assert (found["verdict"], found["clipped_outputs"], found["difference_max"]) == ("within tolerance", 1, 8)
    many = np.clip(source, -4, 4)
    found = parity.verdict(many, source, INTEGER)
    assert found["verdict"] == "degraded"
    assert any("beyond the range [-4, 4]" in reason for reason in found["reasons"])
    assert parity.verdict(cut, source, INTEGER, limits=(-30, 30))["clipped_outputs"] == 0  # it could have given more


def test_decided_disagreements_of_an_integer_row(source):
    source = np.tile(np.array([[0, 3, 0]], np.float32), (2000, 1))
    outputs = source.copy()
    outputs[:2] = [3, 0, 0]
    assert parity.verdict(outputs, source, INTEGER)["verdict"] == "within tolerance"  # one in a thousand
    outputs[:3] = [3, 0, 0]
    found = parity.verdict(outputs, source, INTEGER)
    assert (found["verdict"], found["reasons"]) == ("degraded", ["3 of 2000 decided inputs have another answer"])


@pytest.mark.parametrize(("spoil", "reason"), [
    (lambda source: source[:, :4], "outputs are [4] per input, and the source's [5]"),
    (lambda source: source[:-1], "outputs are"),
    (lambda source: np.where(np.arange(200)[:, None] == 3, np.nan, source), "1 of 200 inputs have outputs that are no finite numbers"),
    (lambda source: np.zeros_like(source), "it gives the same outputs for all inputs"),
    (lambda source: np.where(np.arange(5) == 2, 50, source), "it predicts one class, and the source 5"),
    (lambda source: source[:, [1, 0, 2, 4, 3]], "its outputs are the source's in the order 1, 0, 2, 4, 3"),
    (lambda source: source[::-1], "its outputs correlate with the source's by"),
    (lambda source: np.exp(source) / np.exp(source).sum(1, keepdims=True), "it gives probabilities, and the source doesn't"),
])
def test_what_is_broken(source, spoil, reason):
    for allowed in (FLOAT, INTEGER):
        found = parity.verdict(spoil(source), source, allowed)
        assert found["verdict"] == "broken"
        assert any(reason in each for each in found["reasons"]), found["reasons"]


def test_of_few_inputs_none_may_be_wholly_wrong():
    """Of one in a hundred an integer row's ranges may know nothing; of three inputs that would be a third."""
    source = np.random.RandomState(0).normal(0, 1, (3, 5)).astype(np.float32) * 9
    for count in (1, 2, 3):
        outputs = source[:count].copy()
        outputs[0] = -source[0]
        assert parity.verdict(outputs, source[:count], INTEGER)["verdict"] in ("degraded", "broken")


def test_inputs_that_the_source_has_no_numbers_for_are_no_disagreements():
    source = np.random.RandomState(0).normal(0, 1, (50, 5)).astype(np.float32)
    source[10:] = np.nan
    assert parity.verdict(np.where(np.isnan(source), 0, source), source, FLOAT)["disagreement"] == 0


def test_many_outputs_in_another_order():
    source = np.random.RandomState(0).normal(0, 1, (4, parity.ORDERED_MOST + 1)).astype(np.float32)
    found = parity.verdict(np.roll(source, 40, axis=1), source, FLOAT, classes=False)
    assert found["verdict"] == "broken"
    assert "its outputs are the source's in another order" in found["reasons"]
    assert parity.verdict(source, source, FLOAT, classes=False)["verdict"] == "equal"


def test_probabilities_must_stay_probabilities(source):
    probabilities = np.exp(source) / np.exp(source).sum(1, keepdims=True)
    found = parity.verdict(source, probabilities, FLOAT)
    assert any("outside [0, 1]" in reason for reason in found["reasons"])
    found = parity.verdict(probabilities * np.float32(0.5), probabilities, FLOAT)
    assert (found["verdict"], found["reasons"][0]) == ("broken", "its outputs don't sum to 1, and the source's do")


def test_noise_that_leaves_the_function(source):
    noisy = source + np.random.RandomState(1).normal(0, 1, source.shape)
    found = parity.verdict(noisy, source, FLOAT)
    assert found["verdict"] == "degraded"
    assert found["correlation"] > 0.9


def test_outputs_that_are_no_classes():
    source = np.random.RandomState(0).normal(0, 1, (8, 2, 3, 1)).astype(np.float32)
    found = parity.verdict(source, source, FLOAT, classes=False)
    assert found["verdict"] == "equal"
    assert "disagreement" not in found
    single = parity.verdict(source[:, 0, 0], source[:, 0, 0], FLOAT)
    assert "disagreement" not in single
    with pytest.raises(ValueError, match="no input"):
        parity.verdict(source[:0], source[:0], FLOAT)


def test_batch_invariance_and_determinism(source):
    assert parity.batch_invariance(source, moved(source, 5e-6), FLOAT)["batch_invariant"]
    found = parity.batch_invariance(source, moved(source, 0.25), INTEGER)
    assert (found["batch_invariant"], found["batch_difference_max"]) == (False, pytest.approx(0.25, rel=1e-5))
    assert parity.determinism(source, source) == {"repeat_difference_max": 0.0, "deterministic": True}
    assert not parity.determinism(source, moved(source, 5e-6))["deterministic"]
    assert parity.determinism(source, source[:3]) == {"deterministic": False}
    spoilt = moved(source, np.nan, [1])
    assert parity.determinism(spoilt, spoilt)["deterministic"]
    assert not parity.determinism(spoilt, source)["deterministic"]


def test_the_same_inputs_have_one_answer(source):
    equal = parity.verdict(source, source, FLOAT)
    steady = parity.with_steadiness(equal, source, source[:4], source[:9], FLOAT)
    assert (steady["verdict"], steady["reasons"], steady["batch_invariant"], steady["deterministic"]) == ("equal", [], True, True)
    batched = parity.with_steadiness(equal, source, moved(source, 0.25)[:4], source[:9], FLOAT)
    assert (batched["verdict"], batched["reasons"]) == ("degraded", ["outputs of the same inputs run in a batch and one by one differ by 0.25"])
    again = parity.with_steadiness(equal, source, source[:4], moved(source, np.nan, [1])[:9], FLOAT)
    assert (again["verdict"], again["reasons"]) == ("degraded", ["outputs of the same inputs run twice differ by inf"])
    broken = dict(equal, verdict="broken", reasons=["it is"])
    assert parity.with_steadiness(broken, source, moved(source, 0.25)[:4], source[:9], FLOAT)["verdict"] == "broken"


def test_percentiles_of_few_inputs_are_taken_higher():
    how = simulation.arithmetic(quantization.ROWS["dynamic_int8"], {})
    exact = np.zeros((12, 2))
    simulated = exact + np.repeat([0.001, 1.0], 6)[:, np.newaxis]  # a distribution with two humps, and its middle between them
    found = allowance.of(how, allowance.float32(exact.astype(np.float32), exact), exact.astype(np.float32), exact, simulated)
    assert found.percentiles == [3.0, 3.0, 3.0]
    many = allowance.of(how, allowance.float32(np.zeros((1200, 2), np.float32)), np.zeros((1200, 2), np.float32), np.zeros((1200, 2)),
                        np.repeat([[0.001], [1.0]], [700, 500], axis=0) + np.zeros((1200, 2)))
    assert many.percentiles[0] == pytest.approx(0.003)  # 50 % and three times sqrt(0.25 / 1200) is 54.3 %


def test_the_allowance_of_float_rows():
    exact = np.array([[1.0, -16.0], [2.0, 3.0]])
    source = np.array([[1.0, -16.0 + 2**-18], [2.0, 3.0], [9.0, 9.0]], np.float32)
    assert allowance.error(source, exact) == 2**-18
    assert allowance.error(exact.astype(np.float32), exact) == 2**-20  # half a unit in the last place of 16
    assert allowance.float32(source, exact).largest == 2**-15
    assert allowance.float32(exact.astype(np.float32), None, layers=3).largest == 8 * 3 * 2**-20
    plain = allowance.float32(source, exact)
    half = allowance.of(simulation.Arithmetic("float16", "float32", False, "channel"), plain, source, exact)
    assert (half.largest, half.rounding, half.percentiles) == (2**-15 * 2**13, 2**-15, None)
    simulated = exact + [[0, 0.01], [0.02, 0]]
    half = allowance.of(simulation.Arithmetic("float16", "float16", False, "channel"), plain, source, exact, simulated)
    assert half.largest == pytest.approx(0.16)
    with pytest.raises(ValueError, match="no finite output"):
        allowance.error(np.full((2, 2), np.nan, np.float32))


def test_what_one_ulp_of_the_weights_does_is_allowed_where_the_source_is_nearer():
    exact = np.array([[1.0, -16.0], [2.0, 3.0]])
    source, moved = exact.astype(np.float32), np.array([[1.0, -16.0 + 2**-17]], np.float32)
    found = allowance.float32(source, exact, moved=moved)
    assert (found.largest, found.basis) == (8 * 2**-17, "8 times what its weights moved by one ulp do")
    source[1, 1] += 2**-10
    found = allowance.float32(source, exact, moved=moved)
    assert (found.largest, found.basis) == (8 * 2**-10, "8 times the source's float32 error")


def test_the_allowance_of_integer_rows():
    source = np.array([[0.0, 51.0]], np.float32)
    how = simulation.Arithmetic("int8", "int8", False, "channel")
    plain = allowance.float32(source, layers=6)
    found = allowance.of(how, plain, source, layers=6, calibration=199)
    assert found.percentiles == pytest.approx([0.2, 0.4, 0.6])  # a step of 0.2, and the square root of 2 x 6 / 12 is 1
    assert (found.largest, found.clipped_share) == (pytest.approx(0.6), 0.01)
    probabilities = np.array([[np.exp(-8), 1 - np.exp(-8)], [0.5, 0.5]], np.float32)
    found = allowance.of(how, plain, probabilities, layers=6, calibration=199)
    assert found.percentiles == pytest.approx(np.array([1, 2, 3]) * 8 / 4 / 255, rel=1e-3)  # logits over 8, slopes of a quarter
    exact, simulated = source.astype(np.float64), source + 0.5
    plain = allowance.float32(source, exact)
    assert allowance.of(how, plain, source, exact, simulated).percentiles == [1.5, 1.5, 1.5]
    assert allowance.of(how._replace(activations="float32"), plain, source, exact, simulated).clipped_share == 0


LAYERS = [layers.image_input(1, 1, 2), layers.flatten("flat", "input"), layers.dense("dense", "flat", 2), layers.relu("relu", "dense"),
          layers.dense("logits", "relu", 2)]
WEIGHTS = {"dense/kernel": np.array([[127, 1], [60.4, 254]], np.float32), "dense/bias": np.array([0.3, 0], np.float32),
           "logits/kernel": np.array([[1, 0], [0, 1]], np.float32), "logits/bias": np.zeros(2, np.float32)}


def test_weights_in_steps():
    def kernel(**how):
        return simulation.rounded_weights(LAYERS, WEIGHTS, simulation.Arithmetic(**{
            "weights": "int8", "activations": "float32", "dynamic": False, "granularity": "channel", **how}))["dense/kernel"].tolist()

    assert kernel() == [[127, 0], [60, 254]]  # steps of 1 and of 2, and half a step is rounded to even
    assert kernel(granularity="tensor") == [[128, 0], [60, 254]]
    assert kernel(granularity="matrix_channel") == kernel()  # it is a matrix
    assert kernel(weights="uint8", granularity="tensor")[0][0] == pytest.approx(1 + 253 / 255 * round(126 / (253 / 255)))
    assert np.array(kernel(granularity=1)) == pytest.approx(WEIGHTS["dense/kernel"])  # each input of a channel by itself: all of them are ends of their range
    assert kernel(weights="uint8", rounding="down")[1][0] == pytest.approx(60.4, abs=(127 - 60.4) / 255)
    by_channel = kernel(weights="uint8")
    assert np.array(by_channel)[0] == pytest.approx([127, 1])  # the ends of each channel's own range
    assert by_channel[1][0] == pytest.approx(60.4, abs=(127 - 60.4) / 255)
    assert kernel(weights="float16")[1][0] == float(np.float16(60.4))
    assert kernel(weights="bfloat16") == [[127, 1], [60.5, 254]]  # 60.4 in steps of 1/4


def test_activations_in_steps():
    weights = dict(WEIGHTS, **{"dense/kernel": np.eye(2, dtype=np.float32), "dense/bias": np.array([-0.5, 0], np.float32)})
    inputs = np.array([[[[1.0, 0.0]]], [[[0.5, 0.25]]]], np.float32)
    how = simulation.Arithmetic("float32", "int8", False, "channel")
    # The input in steps of 1/255: 1, 0, 128/255, 64/255. Of the relu, from 0 to 0.5: 1/510, which holds 127.5 to 255 of them: 0.5, 0,
    # 1/510, 128/510. The dense layer's own output isn't stored.
    assert simulation.logits(LAYERS, weights, inputs, how) == pytest.approx(np.array([[0.5, 0], [1 / 510, 128 / 510]]))
    assert simulation.stored_layers(LAYERS) == {"input", "flat", "relu", "logits"}
    alone = simulation.logits(LAYERS, weights, inputs[1:], how._replace(dynamic=True))  # steps of 1/510: 0.5 and 0.25 is 127.5 of them
    assert alone == pytest.approx(np.array([[0, 128 / 510]]))
    half = simulation.logits(LAYERS, weights, inputs + np.float32(0.1), how._replace(activations="float16"))
    assert half[0, 1] == float(np.float16(0.1))


def test_the_rows_arithmetic():
    rows = quantization.ROWS
    assert simulation.arithmetic(rows["float16"], {}) == ("float16", "float16", False, "channel", "nearest")
    assert simulation.arithmetic(rows["dynamic_int8"], {"granularity": "tensor"}) == ("int8", "int8", True, "tensor", "nearest")
    assert simulation.arithmetic(rows["linear"], {"bits": 4, "rounding": "down"}) == ("uint4", "float32", False, "tensor", "down")
