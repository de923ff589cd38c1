"""N-bit linear weights, on numbers whose levels can be worked out by hand."""

import numpy as np
import pytest

from sweep.runtimes import _linear

WEIGHTS = np.array([[-1.0, 0.29], [0.5, 2.0], [0.31, -0.5]], np.float32)


def test_levels_of_a_tensor():
    # four levels from -1 to 2: steps of 1, so 0.29 -> 1.29 -> 1, 0.5 -> 1.5 -> 2 (to even), 0.31 -> 1, -0.5 -> 0.5 -> 0 (to even)
    found = _linear.quantize(WEIGHTS, 2)
    assert found.levels.tolist() == [[0, 1], [2, 3], [1, 0]]
    assert (float(found.scale), float(found.least), found.levels.dtype) == (1.0, -1.0, np.uint8)


def test_levels_by_channel_rounded_down():
    # first column -1 to 0.5 in steps of 0.5, second -0.5 to 2 in steps of 2.5 / 3: 0.31 -> 2.62 -> 2, 0.29 -> 0.948 -> 0
    found = _linear.quantize(WEIGHTS, 2, axis=1, rounding="down")
    assert found.levels.tolist() == [[0, 0], [3, 3], [2, 0]]
    np.testing.assert_allclose(found.scale, [0.5, 2.5 / 3], rtol=1e-6)
    assert found.least.tolist() == [-1.0, -0.5]


@pytest.mark.parametrize("rounding", _linear.ROUNDINGS)
@pytest.mark.parametrize(("bits", "kind"), [(16, np.uint16), (8, np.uint8), (4, np.uint8)])
def test_ends_are_kept_and_errors_stay_within_a_step(bits, kind, rounding):
    values = np.random.RandomState(0).normal(size=(50, 7)).astype(np.float32)
    found = _linear.quantize(values, bits, axis=1, rounding=rounding)
    back = found.levels * found.scale.astype(np.float64) + found.least
    assert found.levels.dtype == kind
    assert (found.levels.min(axis=0) == 0).all()
    assert (found.levels.max(axis=0) == 2**bits - 1).all()
    steps = (values - back) / found.scale
    assert steps.max() < (1.001 if rounding == "down" else 0.501)
    assert steps.min() > (-0.01 if rounding == "down" else -0.501)


def test_one_value_needs_no_level():
    found = _linear.quantize(np.full((2, 3), 0.7, np.float32), 4)
    assert not found.levels.any()
    assert (float(found.scale), np.float32(found.least)) == (0.0, np.float32(0.7))


@pytest.mark.parametrize("values", [np.array([1, np.nan]), np.zeros((0, 2))])
def test_what_has_no_range_is_refused(values):
    with pytest.raises(ValueError, match="weights"):
        _linear.quantize(values, 8)
