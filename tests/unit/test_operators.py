"""Operators by their definitions: right values that were worked out by hand, and properties that hold for every one."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sweep import components
from sweep.operators import _probe as probing
from sweep.operators import _windows
from sweep.probing import draw
from sweep.probing.judge import judge, tolerance
from sweep.probing.names import name

SOME, FEW, CLEARLY = 12, 4, 8
each_operator = pytest.mark.parametrize("operator", components.names("operators"))


def reference(operator, parameters, weights, inputs):
    """The right output of one example (height, width, channels)."""
    module = components.load("operators", operator)
    arrays = {name: np.asarray(array, float) for name, array in weights.items()}
    return module.reference(parameters, arrays, np.asarray(inputs, float)[np.newaxis])[0]


def window(size, stride=(1, 1), padding="valid", dilation=(1, 1), **further):
    names = {"window": size, "stride": stride, "dilation": dilation}
    chosen = {f"{name}_{axis}": value for name, values in names.items() for axis, value in zip(("height", "width"), values, strict=True)}
    return chosen | {"padding": padding} | further


def image(rows):
    """One channel."""
    return np.array(rows, float)[:, :, np.newaxis]


COUNTED = image(np.arange(1, 17).reshape(4, 4))


def test_depthwise_convolution_whose_stride_is_larger_than_its_window():
    """The public report on `same` padding: right is 321, 43, 1209, 131."""
    parameters = window((1, 3), (2, 2), "same", height=4, width=4, channels=1, multiplier=1)
    kernel = np.array([1, 10, 100]).reshape(1, 3, 1, 1)
    assert reference("depthwise_conv2d", parameters, {"kernel": kernel}, COUNTED).ravel().tolist() == [321, 43, 1209, 131]
    assert _windows.below_zero(parameters) == ["height"]


def test_convolution_of_one_pixel_with_a_stride():
    rows = [[10, 30, 50, 70], [20, 40, 60, 80], [-10, -30, -50, -70], [-20, -40, -60, -80]]
    parameters = window((1, 1), (2, 2), "same", height=4, width=4, groups=1)
    found = reference("conv2d", parameters, {"kernel": np.reshape([1, 0.5, 1], (1, 1, 1, 3))}, image(rows))
    assert found.reshape(4, 3).tolist() == [[10, 5, 10], [50, 25, 50], [-10, -5, -10], [-50, -25, -50]]


def test_convolution_with_uneven_padding_dilation_and_bias():
    parameters = window((2, 1), (1, 2), [[1, 0], [0, 1]], (2, 1), height=3, width=3, groups=1)
    weights = {"kernel": np.reshape([1, 100], (2, 1, 1, 1)), "bias": [0.5]}
    found = reference("conv2d", parameters, weights, image([[1, 2, 3], [4, 5, 6], [7, 8, 9]]))
    assert found[:, :, 0].tolist() == [[400.5, 600.5], [701.5, 903.5]]  # rows -1 and 1, then 0 and 2, of columns 0 and 2


def test_convolution_in_groups_reads_its_own_channels():
    parameters = window((1, 1), height=1, width=1, groups=2)
    kernel = np.array([[1, 2, 3, 4], [10, 20, 30, 40]], float).reshape(1, 1, 2, 4)
    assert reference("conv2d", parameters, {"kernel": kernel}, [[[1, 2, 3, 4]]]).ravel().tolist() == [21, 42, 129, 172]


@pytest.mark.parametrize(("padding", "output_padding", "right"), [
    ("valid", 0, [1, 10, 102, 20, 200]),
    ("same", 0, [1, 10, 102, 20]),  # 2 x 2 of them; one zero of padding in total, and it is after
    ([[0, 1], [1, 1]], 1, [10, 102, 20, 200]),  # the row that output padding adds is cut again
])
def test_transposed_convolution_of_two_values(padding, output_padding, right):
    parameters = window((1, 3), (1, 2), padding, height=1, width=2, output_padding=output_padding)
    found = reference("conv_transpose2d", parameters, {"kernel": np.reshape([1, 10, 100], (1, 3, 1, 1))}, image([[1, 2]]))
    assert found.ravel().tolist() == right


def test_a_window_that_begins_in_the_padding_after_the_input_is_none():
    axis = _windows.Axis(size=4, window=2, stride=3, dilation=1, before=1, after=1)
    assert (_windows.count(axis), _windows.count(axis, ceil_mode=True)) == (2, 2)
    assert _windows.count(axis._replace(size=5), ceil_mode=True) == 2  # a third would begin at 6, beyond 1 + 5
    assert _windows.count(axis._replace(size=6), ceil_mode=True) == 3


@pytest.mark.parametrize(("ceil_mode", "counted", "right"), [
    (False, True, [[1 / 4, 5 / 4], [11 / 4, 28 / 4]]),
    (False, False, [[1, 5 / 2], [11 / 2, 28 / 4]]),
    (True, True, [[1 / 4, 5 / 4], [11 / 4, 28 / 4]]),
])
def test_means_at_the_edge(ceil_mode, counted, right):
    """Of 1 to 9, the first row and column lie in windows with padding: 1, 2 + 3, 4 + 7, 5 + 6 + 8 + 9."""
    parameters = window((2, 2), (2, 2), [[1, 0], [1, 0]], height=3, width=3, ceil_mode=ceil_mode, count_include_pad=counted)
    assert_allclose(reference("average_pool", parameters, {}, image([[1, 2, 3], [4, 5, 6], [7, 8, 9]]))[:, :, 0], right)


def test_what_lies_beyond_the_padding_never_counts_in_a_mean():
    parameters = window((3, 1), (2, 1), [[0, 1], [0, 0]], height=5, width=1, ceil_mode=True, count_include_pad=True)
    found = reference("average_pool", parameters, {}, image([[1], [2], [3], [4], [6]]))
    assert found.ravel().tolist() == [2, 13 / 3, 3]  # the last holds 6, one zero of padding, and nothing


def test_padding_is_never_the_maximum():
    parameters = window((2, 2), (2, 2), [[1, 1], [1, 1]], height=2, width=2, ceil_mode=False)
    assert reference("max_pool", parameters, {}, image([[-1, -2], [-3, -4]])).ravel().tolist() == [-1, -2, -3, -4]


@pytest.mark.parametrize(("operator", "coordinates", "right"), [
    ("resize_nearest", "half_pixel", [10, 20, 20, 30]),  # (q + 1/2) 3/4 is 0.375, 1.125, 1.875, 2.625
    ("resize_nearest", "asymmetric", [10, 10, 20, 30]),  # 0, 0.75, 1.5, 2.25
    ("resize_nearest", "align_corners", [10, 20, 20, 30]),  # 0, 2/3, 4/3, 2, to the nearest
    ("resize_bilinear", "half_pixel", [10, 16.25, 23.75, 30]),
    ("resize_bilinear", "asymmetric", [10, 17.5, 25, 30]),
    ("resize_bilinear", "align_corners", [10, 50 / 3, 70 / 3, 30]),
])
def test_three_pixels_made_four(operator, coordinates, right):
    parameters = {"height": 1, "width": 3, "new_height": 1, "new_width": 4, "coordinates": coordinates}
    assert_allclose(reference(operator, parameters, {}, image([[10, 20, 30]])).ravel(), right)


def test_the_nearest_pixel_at_a_border_may_be_either():
    module = components.load("operators", "resize_nearest")
    parameters = {"height": 1, "width": 3, "new_height": 1, "new_width": 9, "coordinates": "asymmetric"}
    allowed = module.slack(parameters, {}, image([[10, 20, 40]])[np.newaxis]).ravel()
    assert allowed.tolist() == [0, 0, 0, 10, 0, 0, 20, 0, 0]  # 3 x 3/9 is 1, and 3 x 0.33333 is not


def test_batch_norm_of_one_channel():
    weights = {"gamma": [-2], "beta": [1], "mean": [3], "variance": [0.75]}
    assert reference("batch_norm", {"epsilon": 0.25}, weights, [[[5]]]).ravel().tolist() == [-3]


@pytest.mark.parametrize(("function", "at", "right"), [
    ("relu6", 7, 6), ("leaky_relu", -10, -1), ("elu", -1, np.exp(-1) - 1), ("softplus", 1000, 1000), ("hard_sigmoid", 1.5, 0.75),
    ("hard_swish", -1, -1 / 3), ("silu", -1000, 0), ("gelu", 1, 0.8413447460685429), ("gelu", -40, 0), ("gelu_tanh", 1, 0.8411919906082768),
    ("sigmoid", -np.inf, 0), ("tanh", np.inf, 1),
])
def test_activations_at_a_point(function, at, right):
    assert_allclose(reference("activation", {"function": function}, {}, [at]), [right], rtol=1e-7, atol=1e-12)


def test_rearranging_one_matrix():
    rows = [[1, 2, 3], [4, 5, 6]]
    chosen = {"shape": [2, 3], "axis": 2}
    found = {function: reference("rearrange", chosen | {"function": function}, {}, rows).tolist()
             for function in ("transpose", "concatenate", "slice")}
    assert found == {"transpose": [[1, 4], [2, 5], [3, 6]], "concatenate": [[2, 3, 1], [5, 6, 4]], "slice": [[2], [5]]}
    assert reference("rearrange", {"shape": [2, 3], "axis": 1, "function": "reshape"}, {}, rows).tolist() == [[1, 2, 3, 4, 5, 6]]


@each_operator
def test_a_probe_says_all_of_its_arrays(operator):
    for probe in draw.probes(operator, SOME, 7):
        weights, inputs = probing.arrays_of(probe)
        again, inputs_again = probing.arrays_of(dict(probe, parameters=dict(reversed(probe["parameters"].items()))))
        assert np.array_equal(inputs, inputs_again, equal_nan=True)
        assert weights.keys() == again.keys()
        assert all(np.array_equal(weights[name], again[name]) for name in weights)
        assert {array.dtype for array in (*weights.values(), inputs)} == {np.dtype(np.float32)}
        assert len(inputs) == probing.BATCH


@each_operator
def test_other_parameters_or_another_seed_are_other_numbers(operator):
    probes = draw.probes(operator, 3, 7)
    assert len({probing.name_of(probe) for probe in probes}) == 3
    drawn = [probe for probe in draw.probes(operator, 40, 7) if probe["parameters"].get("values") == "drawn"]
    first, other = drawn[0], dict(drawn[0], seed=8)
    assert not np.array_equal(probing.arrays_of(first)[1], probing.arrays_of(other)[1])


@each_operator
def test_single_precision_is_right_and_a_larger_error_is_not(operator):
    module = components.load("operators", operator)
    for probe in draw.probes(operator, SOME, 3):
        weights, inputs = probing.arrays_of(probe)
        right, allowed = probing.exact(probe, weights, inputs), tolerance(probe, "float32", {}, (weights, inputs))
        with np.errstate(all="ignore"):
            single = module.reference(probe["parameters"], weights, inputs)
        assert allowed.shape == right.shape
        assert judge(single, right, allowed, "float32").right, probing.name_of(probe)
        finite = np.isfinite(right)
        off = np.where(finite, right + 1.5 * allowed + 1e-6 * np.abs(right), right)
        assert not judge(off, right, allowed, "float32").right


@each_operator
def test_every_known_deviation_is_named(operator):
    """What a deviation gives that is clearly wrong is named by it, or by others that would give the same."""
    named = 0
    for probe in draw.probes(operator, FEW, 5):
        arrays = probing.arrays_of(probe)
        right, allowed = probing.exact(probe, *arrays), tolerance(probe, "float32", {}, arrays)
        module, weights, inputs = components.load("operators", operator), probing.wide(arrays[0]), arrays[1].astype(float)
        for fault, detail, compute in module.deviations(probe["parameters"], weights, inputs, right):
            try:
                observed = compute()
            except (ValueError, IndexError):
                continue
            if observed is None or judge(observed, right, allowed, "float32").ratio < CLEARLY:
                continue
            found = name(probe, arrays, np.asarray(observed, np.float32), allowed, "float32")
            assert fault in (found.fault, *(text.partition(":")[0] for text in found.also)), (probing.name_of(probe), detail, found)
            named += 1
    assert named >= FEW / 2
