"""The NumPy reference and the shared initial weights, against values worked out by hand or by plain loops."""

import math

import numpy as np
import pytest

from sweep import initial, reference
from sweep.layers import (
    add,
    average_pool,
    batch_norm,
    concatenate,
    conv1d,
    conv2d,
    dense,
    embedding,
    flatten,
    global_max_pool,
    gru,
    image_input,
    lstm,
    max_pool,
    normalize,
    parameters,
    relu,
    tokens,
)


def outputs(net, weights, image):
    return {name: values[0] for name, values in reference.layer_outputs(net, weights, np.asarray(image, np.float64)[None]).items()}


def test_convolution_by_loops():
    """Cross-correlation, zeros outside, the padding's four sides each where it was put."""
    random = np.random.RandomState(0)
    image, kernel, bias = random.rand(5, 6, 2), random.randn(3, 3, 2, 4), random.randn(4)
    net = [image_input(5, 6, 2), conv2d("conv", "input", 4, 3, 2, padding=((0, 2), (1, 0)))]
    found = outputs(net, {"conv/kernel": kernel, "conv/bias": bias}, image)["conv"]
    assert found.shape == (3, 3, 4)
    for row in range(3):
        for column in range(3):
            total = bias.copy()
            for i in range(3):
                for j in range(3):
                    y, x = 2 * row + i, 2 * column + j - 1
                    if y < 5 and 0 <= x < 6:
                        total += image[y, x] @ kernel[i, j]
            np.testing.assert_allclose(found[row, column], total, rtol=1e-12)


def test_the_other_kinds_by_hand():
    image = np.array([[1.0, 2, 9], [3, -4, 9], [9, 9, 9]])[:, :, None]
    net = [
        image_input(3, 3, 1), normalize("normalize", "input", [1.0], [2.0]), batch_norm("norm", "normalize", epsilon=0.25, momentum=0.9),
        relu("relu", "norm"), max_pool("max", "input"), average_pool("mean", "input"), add("sum", "max", "mean"),
        flatten("flatten", "relu"), dense("dense", "flatten", 2),
    ]
    kernel = np.zeros((9, 2))
    kernel[1], kernel[3] = [1, 10], [2, 20]  # row 0, column 1 and row 1, column 0 of the image
    weights = {
        "norm/gamma": [3.0], "norm/beta": [0.5], "norm/mean": [0.5], "norm/variance": [2.0],
        "dense/kernel": kernel, "dense/bias": [0.5, -0.5],
    }
    found = outputs(net, {name: np.array(array) for name, array in weights.items()}, image)
    assert found["normalize"][:2, :2, 0].tolist() == [[0, 0.5], [1, -2.5]]
    assert found["norm"][:2, :2, 0].tolist() == [[-0.5, 0.5], [1.5, -5.5]]  # (x - 0.5) / sqrt(2 + 0.25) x 3 + 0.5
    assert found["relu"][:2, :2, 0].tolist() == [[0, 0.5], [1.5, 0]]
    assert found["max"].tolist() == [[[3.0]]]  # the third row and column are dropped
    assert found["mean"].tolist() == [[[0.5]]]
    assert found["sum"].tolist() == [[[3.5]]]
    assert found["dense"].tolist() == [0.5 + 0.5 * 1 + 1.5 * 2, -0.5 + 0.5 * 10 + 1.5 * 20]


def test_padding_of_pools_by_hand():
    """It is not the maximum, though every value is negative, and it does not count in the mean."""
    image = -np.array([[1.0, 2], [3, 4]])[:, :, None]
    net = [image_input(2, 2, 1), max_pool("max", "input", 2, 2, padding=((1, 0), (0, 1))),
           average_pool("mean", "input", 2, 1, padding=((1, 0), (0, 1)))]
    found = outputs(net, {}, image)
    assert found["max"][:, :, 0].tolist() == [[-1.0]]  # of the rows (none, 1 2); the last row is dropped
    assert found["mean"][:, :, 0].tolist() == [[-1.5, -2], [-2.5, -3]]


def test_global_maximum_and_concatenation_by_hand():
    image = np.array([[[1.0, -5], [4, -2]], [[3, -9], [2, -7]]])
    net = [image_input(2, 2, 2), concatenate("both", "input", "input"), global_max_pool("max", "both"), concatenate("all", "max", "max")]
    found = outputs(net, {}, image)
    assert found["both"][0, 1].tolist() == [4, -2, 4, -2]
    assert found["max"].tolist() == [4, -2, 4, -2]
    assert found["all"].tolist() == [4, -2, 4, -2] * 2


def text_outputs(net, weights, ids):
    found = reference.layer_outputs(net, weights, np.asarray([ids], np.int32))
    return {name: values[0] for name, values in found.items()}


def drawn(net):
    random = np.random.RandomState(1)
    return {name: random.normal(0, 1, shape) for name, shape in parameters(net).items()}


IDS = [3, 0, 2, 2, 5]


def test_embedding_and_one_dimensional_convolution_by_loops():
    net = [tokens(5, 6), embedding("embedding", "input", 6, 3), conv1d("conv", "embedding", 4, 2, 2, padding=(0, 1)),
           global_max_pool("max", "conv")]
    weights = drawn(net)
    found = text_outputs(net, weights, IDS)
    table, kernel = weights["embedding/kernel"], weights["conv/kernel"]
    assert found["input"].tolist() == IDS
    assert found["embedding"].tolist() == [table[token].tolist() for token in IDS]
    expected = [table[3] @ kernel[0] + table[0] @ kernel[1], table[2] @ kernel[0] + table[2] @ kernel[1], table[5] @ kernel[0]]
    np.testing.assert_allclose(found["conv"], np.array(expected) + weights["conv/bias"], rtol=1e-12)
    np.testing.assert_allclose(found["max"], [max(column) for column in found["conv"].T.tolist()])


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def hard_sigmoid(value):
    return min(max(0.2 * value + 0.5, 0), 1)


GATES = {"sigmoid": sigmoid, "hard_sigmoid": hard_sigmoid}


def mixed(kernel, values, column):
    """One number of a product of a vector and a matrix."""
    return sum(value * kernel[row, column] for row, value in enumerate(values))


@pytest.mark.parametrize("activation", GATES)
def test_lstm_by_loops(activation):
    """Gers et al. 2000, one unit after the other; the kernel's columns are the gates i, f, g, o."""
    units, gate = 2, GATES[activation]
    net = [tokens(5, 6), embedding("embedding", "input", 6, 3), lstm("every", "embedding", units, True, activation),
           lstm("last", "embedding", units, False, activation)]
    weights = drawn(net)
    kernel, recurrent, bias = (weights["every/" + name] for name in ("kernel", "recurrent_kernel", "bias"))
    weights.update({"last/kernel": kernel, "last/recurrent_kernel": recurrent, "last/bias": bias})
    hidden, cell, expected = [0.0] * units, [0.0] * units, []
    for token in IDS:
        x, before = weights["embedding/kernel"][token], list(hidden)
        for unit in range(units):
            i, f, g, o = (mixed(kernel, x, at) + mixed(recurrent, before, at) + bias[at] for at in range(unit, 4 * units, units))
            cell[unit] = gate(f) * cell[unit] + gate(i) * math.tanh(g)
            hidden[unit] = gate(o) * math.tanh(cell[unit])
        expected.append(list(hidden))
    found = text_outputs(net, weights, IDS)
    np.testing.assert_allclose(found["every"], expected, rtol=1e-12)
    np.testing.assert_allclose(found["last"], expected[-1], rtol=1e-12)


@pytest.mark.parametrize("reset_after", [True, False])
@pytest.mark.parametrize("activation", GATES)
def test_gru_by_loops(activation, reset_after):
    """Cho et al. 2014, one unit after the other; the kernel's columns are the gates z, r, h."""
    units, gate = 2, GATES[activation]
    net = [tokens(5, 6), embedding("embedding", "input", 6, 3), gru("every", "embedding", units, True, activation, reset_after),
           gru("last", "embedding", units, False, activation, reset_after)]
    weights = drawn(net)
    weights.update({name.replace("every", "last"): array for name, array in weights.items() if name.startswith("every")})
    kernel, recurrent, bias = (weights["every/" + name] for name in ("kernel", "recurrent_kernel", "bias"))
    second = weights.get("every/recurrent_bias", np.zeros(3 * units))
    assert reset_after == ("every/recurrent_bias" in weights)
    hidden, expected = [0.0] * units, []
    for token in IDS:
        x, before = weights["embedding/kernel"][token], list(hidden)
        z, r = (
            [gate(mixed(kernel, x, at) + bias[at] + mixed(recurrent, before, at) + second[at]) for at in range(start, start + units)]
            for start in (0, units)
        )
        for unit in range(units):
            at = 2 * units + unit
            if reset_after:
                candidate = r[unit] * (mixed(recurrent, before, at) + second[at])
            else:
                candidate = mixed(recurrent, [share * value for share, value in zip(r, before)], at)
            candidate = math.tanh(mixed(kernel, x, at) + bias[at] + candidate)
            hidden[unit] = z[unit] * before[unit] + (1 - z[unit]) * candidate
        expected.append(list(hidden))
    found = text_outputs(net, weights, IDS)
    np.testing.assert_allclose(found["every"], expected, rtol=1e-12)
    np.testing.assert_allclose(found["last"], expected[-1], rtol=1e-12)


def test_sigmoid_of_large_numbers():
    with np.errstate(over="raise", invalid="raise"):
        assert reference.sigmoid(np.array([-700.0, 0.0, 800.0])).tolist() == pytest.approx([math.exp(-700), 0.5, 1], rel=1e-12)


def test_one_layer_alone():
    net = [tokens(5, 6), embedding("embedding", "input", 6, 3), gru("gru", "embedding", 2, False, "sigmoid", True)]
    weights = drawn(net)
    own = reference.own_weights(net[2], weights, np.float32)
    assert {name: (array.shape, array.dtype) for name, array in own.items()} == {
        "kernel": ((3, 6), np.float32), "recurrent_kernel": ((2, 6), np.float32), "bias": ((6,), np.float32),
        "recurrent_bias": ((6,), np.float32),
    }
    given = weights["embedding/kernel"][IDS][None]
    alone = reference.apply(net[2], reference.own_weights(net[2], weights), given)
    np.testing.assert_array_equal(alone[0], text_outputs(net, weights, IDS)["gru"])
    assert reference.apply(net[2], own, given.astype(np.float32)).dtype == np.float32


def test_flatten_has_the_channel_fastest():
    image = np.arange(12.0).reshape(2, 2, 3)
    assert outputs([image_input(2, 2, 3), flatten("flatten", "input")], {}, image)["flatten"].tolist() == list(range(12))


def test_chunks_and_dtypes():
    net = [image_input(4, 4, 1), conv2d("conv", "input", 2, 3), flatten("flatten", "conv"), dense("logits", "flatten", 3)]
    weights, images = initial.weights(net, 0), np.random.RandomState(0).rand(10, 4, 4, 1).astype(np.float32)
    exact = reference.logits(net, weights, images)
    assert (exact.shape, exact.dtype) == ((10, 3), np.float64)
    np.testing.assert_allclose(reference.logits(net, weights, images, chunk=3), exact, rtol=1e-13)
    single = reference.logits(net, weights, images, np.float32)
    assert single.dtype == np.float32
    assert 0 < np.abs(single - exact).max() < 1e-5


NET = [
    image_input(28, 28, 3), conv2d("glorot", "input", 20, 5), batch_norm("norm", "glorot"), flatten("flatten", "norm"),
    dense("he", "flatten", 20, initializer="he_normal"),
]


def test_initial_weights_have_the_stated_distributions():
    weights = initial.weights(NET, 0)
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}
    glorot, he = weights["glorot/kernel"], weights["he/kernel"]
    limit = np.sqrt(6 / (25 * 3 + 25 * 20))
    assert 0.99 * limit < np.abs(glorot).max() <= limit
    assert glorot.std() == pytest.approx(limit / np.sqrt(3), rel=0.03)
    deviation = np.sqrt(2 / (24 * 24 * 20))
    assert he.std() == pytest.approx(deviation, rel=0.01)  # of the cut distribution
    assert 1.99 < np.abs(he).max() / (deviation / 0.8796) <= 2.001
    assert abs(he.mean()) < 0.01 * deviation
    for name, value in {"glorot/bias": 0, "he/bias": 0, "norm/gamma": 1, "norm/beta": 0, "norm/mean": 0, "norm/variance": 1}.items():
        assert (weights[name] == value).all(), name


def test_initial_weights_are_the_same_numbers_everywhere():
    """Pinned: every toolchain's NumPy must draw these."""
    weights = initial.weights(NET, 7)
    assert [float(weights[name].flat[0]) for name in ("glorot/kernel", "he/kernel")] == pytest.approx(PINNED, abs=0)
    assert initial.permutations(6, 2, 7).tolist() == PINNED_ORDER


PINNED = [0.09329193830490112, -0.009235251694917679]  # from NumPy 1.16.6 on Python 3.6
PINNED_ORDER = [[2, 5, 3, 0, 1, 4], [3, 5, 1, 0, 4, 2]]


def test_permutations():
    orders = initial.permutations(50, 3, 0)
    assert (orders.shape, orders.dtype) == ((3, 50), np.int32)
    assert np.sort(orders, axis=1).tolist() == [list(range(50))] * 3
    assert len({tuple(order) for order in orders}) == 3
    assert initial.permutations(50, 0, 0).shape == (0, 50)
    assert not np.array_equal(initial.permutations(50, 3, 1), orders)


GATED = [
    tokens(4, 30), embedding("embedding", "input", 30, 8), lstm("lstm", "embedding", 3, True, "sigmoid"),
    gru("gru", "lstm", 2, False, "sigmoid", True), batch_norm("norm", "gru"), dense("logits", "norm", 2),
]


def test_constants_are_all_but_the_kernels():
    assert {name: array.tolist() for name, array in initial.constants(GATED).items()} == {
        "lstm/bias": [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0],  # the forget gate's is 1
        "gru/bias": [0] * 6, "gru/recurrent_bias": [0] * 6,
        "norm/gamma": [1, 1], "norm/beta": [0, 0], "norm/mean": [0, 0], "norm/variance": [1, 1], "logits/bias": [0, 0],
    }
    assert {array.dtype for array in initial.constants(GATED).values()} == {np.dtype(np.float32)}


def test_initial_weights_of_recurrent_networks():
    weights = initial.weights(GATED, 0)
    assert {name: array.shape for name, array in weights.items()} == parameters(GATED)
    for name, limit in {
        "embedding/kernel": 0.05, "lstm/kernel": np.sqrt(6 / (8 + 12)), "lstm/recurrent_kernel": np.sqrt(6 / (3 + 12)),
        "gru/recurrent_kernel": np.sqrt(6 / (2 + 6)),
    }.items():
        assert 0.7 * limit < np.abs(weights[name]).max() <= limit, name
    for name, array in initial.constants(GATED).items():
        np.testing.assert_array_equal(weights[name], array)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moved_by_one_ulp(dtype):
    weights = {"a": np.array([1.0, -1.0, 0.0, 3e-5] * 50, dtype), "b": np.linspace(-2, 2, 60).astype(dtype).reshape(3, 20)}
    moved = initial.moved_by_one_ulp(weights, 0)
    bits = {np.float32: np.int32, np.float64: np.int64}[dtype]
    assert list(moved) == list(weights)
    for name, array in weights.items():
        assert (moved[name].dtype, moved[name].shape) == (array.dtype, array.shape)
        steps = moved[name].view(bits) - array.view(bits)
        assert (np.abs(steps) == (array != 0)).all()  # neighbouring floats have neighbouring bit patterns
        assert {1, -1} <= set(steps.ravel().tolist())
    again, other = initial.moved_by_one_ulp(weights, 0), initial.moved_by_one_ulp(weights, 1)
    np.testing.assert_array_equal(again["a"], moved["a"])
    assert not np.array_equal(other["a"], moved["a"])
    assert weights["a"][0] == 1
