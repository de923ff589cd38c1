"""The neutral list: shapes and counts worked out by hand."""

import pytest

from sweep import layers
from sweep.architectures import lenet5
from sweep.layers import (
    add,
    average_pool,
    batch_norm,
    conv2d,
    count,
    dense,
    flatten,
    image_input,
    max_pool,
    normalize,
    parameters,
    relu,
    same_padding,
    shapes,
)


def test_shapes_of_every_kind():
    net = [
        image_input(9, 8, 3), normalize("normalize", "input", [0, 0, 0], [1, 1, 1]),
        conv2d("same", "normalize", 4, 3, 2, padding=((1, 1), (0, 1))), batch_norm("norm", "same"), relu("relu", "norm"),
        conv2d("valid", "relu", 2, 2), conv2d("point", "relu", 4, 1), add("sum", "relu", "point"),
        max_pool("max", "sum"), average_pool("mean", "sum", 3, 1), flatten("flatten", "max"), dense("dense", "flatten", 7),
    ]
    assert shapes(net) == {
        "input": (9, 8, 3), "normalize": (9, 8, 3),
        "same": (5, 4, 4),  # (9 + 2 - 3) / 2 + 1 and (8 + 1 - 3) / 2 + 1
        "norm": (5, 4, 4), "relu": (5, 4, 4), "valid": (4, 3, 2), "point": (5, 4, 4), "sum": (5, 4, 4),
        "max": (2, 2, 4),  # the fifth row is dropped
        "mean": (3, 2, 4), "flatten": (16,), "dense": (7,),
    }
    assert {layer["kind"] for layer in net} == set(layers.KINDS)


def test_parameters_in_canonical_layout():
    net = [
        image_input(6, 6, 3), conv2d("conv", "input", 4, 5), batch_norm("norm", "conv"), flatten("flatten", "norm"),
        dense("dense", "flatten", 10),
    ]
    assert parameters(net) == {
        "conv/kernel": (5, 5, 3, 4), "conv/bias": (4,),
        "norm/gamma": (4,), "norm/beta": (4,), "norm/mean": (4,), "norm/variance": (4,),
        "dense/kernel": (16, 10), "dense/bias": (10,),
    }
    assert list(parameters(net))[:2] == ["conv/kernel", "conv/bias"]
    assert count(net) == 5 * 5 * 3 * 4 + 4 + 4 * 4 + 16 * 10 + 10


def test_a_sum_of_different_shapes_is_refused():
    net = [image_input(4, 4, 3), conv2d("conv", "input", 2, 1), add("sum", "input", "conv")]
    with pytest.raises(ValueError, match="sum"):
        shapes(net)


@pytest.mark.parametrize(("size", "layer"), [(12, "conv2"), (14, "pool2"), (16, None)])
def test_a_window_that_does_not_fit_is_refused(size, layer):
    """LeNet-5 on 12 pixels: 8, pooled 4, and a window of 5. On 14: 10, pooled 5, 1, and a window of 2."""
    net = lenet5.layers((size, size, 1), 10)
    if layer is None:
        assert shapes(net)["pool2"] == (1, 1, 16)
    else:
        with pytest.raises(ValueError, match=layer):
            shapes(net)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "expected"),
    [
        (32, 3, 1, (1, 1)),
        (32, 3, 2, (0, 1)),  # 16 outputs need (16 - 1) x 2 + 3 = 33
        (33, 3, 2, (1, 1)),  # 17 outputs need 35
        (28, 5, 1, (2, 2)),
        (28, 2, 1, (0, 1)),
        (32, 1, 2, (0, 0)),  # nothing to add, though the last column is never read
    ],
)
def test_same_padding(size, kernel, stride, expected):
    assert same_padding(size, kernel, stride) == expected
    assert (size + sum(expected) - kernel) // stride + 1 == -(-size // stride)
