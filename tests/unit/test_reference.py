"""The NumPy reference and the shared initial weights, against values worked out by hand or by plain loops."""

import numpy as np
import pytest

from sweep import initial, reference
from sweep.layers import add, average_pool, batch_norm, conv2d, dense, flatten, image_input, max_pool, normalize, relu


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
