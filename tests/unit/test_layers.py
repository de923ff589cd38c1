"""The neutral list: shapes and counts worked out by hand."""

import pytest

from sweep import layers
from sweep.architectures import lenet5
from sweep.layers import (
    add,
    average_pool,
    batch_norm,
    concatenate,
    conv1d,
    conv2d,
    count,
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
    resolved,
    same_padding,
    shapes,
    tokens,
)

IMAGES = [
    image_input(9, 8, 3), normalize("normalize", "input", [0, 0, 0], [1, 1, 1]),
    conv2d("same", "normalize", 4, 3, 2, padding=((1, 1), (0, 1))), batch_norm("norm", "same"), relu("relu", "norm"),
    conv2d("valid", "relu", 2, 2), conv2d("point", "relu", 4, 1), add("sum", "relu", "point"),
    max_pool("max", "sum"), average_pool("mean", "sum", 3, 1), max_pool("padded", "sum", 3, 2, padding=((1, 1), (0, 1))),
    average_pool("padded_mean", "sum", 2, 2, padding=((0, 1), (0, 0))), concatenate("side", "sum", "relu", "point"),
    global_max_pool("brightest", "side"), flatten("flatten", "max"), concatenate("features", "flatten", "brightest"),
    dense("dense", "features", 7),
]
TEXTS = [
    tokens(7, 20), embedding("embedding", "input", 20, 5), conv1d("conv", "embedding", 4, 3, 2, padding=(2, 1)),
    conv1d("valid", "embedding", 4, 3), lstm("every", "embedding", 6, return_sequences=True), lstm("last", "every", 3),
    gru("gru_every", "embedding", 6, return_sequences=True, reset_after=True), gru("gru_last", "gru_every", 2, reset_after=False),
    global_max_pool("max", "conv"), flatten("flatten", "valid"), concatenate("features", "max", "last", "gru_last", "flatten"),
    dense("dense", "features", 2),
]


def test_shapes_of_every_kind_for_images():
    assert shapes(IMAGES) == {
        "input": (9, 8, 3), "normalize": (9, 8, 3),
        "same": (5, 4, 4),  # (9 + 2 - 3) / 2 + 1 and (8 + 1 - 3) / 2 + 1
        "norm": (5, 4, 4), "relu": (5, 4, 4), "valid": (4, 3, 2), "point": (5, 4, 4), "sum": (5, 4, 4),
        "max": (2, 2, 4),  # the fifth row is dropped
        "mean": (3, 2, 4),
        "padded": (3, 2, 4),  # (5 + 2 - 3) / 2 + 1 and (4 + 1 - 3) / 2 + 1
        "padded_mean": (3, 2, 4), "side": (5, 4, 12), "brightest": (12,), "flatten": (16,), "features": (28,), "dense": (7,),
    }


def test_shapes_of_every_kind_for_texts():
    assert shapes(TEXTS) == {
        "input": (7,), "embedding": (7, 5),
        "conv": (4, 4),  # (7 + 3 - 3) / 2 + 1, rounded down
        "valid": (5, 4), "every": (7, 6), "last": (3,), "gru_every": (7, 6), "gru_last": (2,), "max": (4,), "flatten": (20,),
        "features": (29,), "dense": (2,),
    }
    assert {layer["kind"] for layer in IMAGES + TEXTS} == set(layers.KINDS)


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


def test_parameters_of_texts():
    found = parameters(TEXTS)
    assert found == {
        "embedding/kernel": (20, 5), "conv/kernel": (3, 5, 4), "conv/bias": (4,), "valid/kernel": (3, 5, 4), "valid/bias": (4,),
        "every/kernel": (5, 24), "every/recurrent_kernel": (6, 24), "every/bias": (24,),
        "last/kernel": (6, 12), "last/recurrent_kernel": (3, 12), "last/bias": (12,),
        "gru_every/kernel": (5, 18), "gru_every/recurrent_kernel": (6, 18), "gru_every/bias": (18,), "gru_every/recurrent_bias": (18,),
        "gru_last/kernel": (6, 6), "gru_last/recurrent_kernel": (2, 6), "gru_last/bias": (6,),  # no second bias: the reset comes before
        "dense/kernel": (29, 2), "dense/bias": (2,),
    }
    convolutions, lstms, grus = 2 * (60 + 4), (120 + 144 + 24) + (72 + 36 + 12), (90 + 108 + 18 + 18) + (36 + 12 + 6)
    assert count(TEXTS) == 100 + convolutions + lstms + grus + 60


def test_resolved_fills_what_is_open_and_nothing_else():
    net = [
        image_input(4, 4, 2), batch_norm("open", "input"), batch_norm("stated", "open", 0.5, 0.25), gru("gru", "input", 2),
        gru("hard", "gru", 2, recurrent_activation="hard_sigmoid", reset_after=False), lstm("lstm", "gru", 2),
    ]
    own = {
        "batch_norm": {"epsilon": 0.1, "momentum": 0.5}, "gru": {"recurrent_activation": "hard_sigmoid", "reset_after": False},
        "lstm": {"recurrent_activation": "hard_sigmoid"},
    }
    for recipe, epsilon, momentum, activation, after in [
        ("matched", 1e-3, 0.99, "sigmoid", True), ("identical", 1e-3, 0.99, "sigmoid", True), ("defaults", 0.1, 0.5, "hard_sigmoid", False)
    ]:
        found = resolved(net, recipe, own)
        assert [layer["epsilon"] for layer in found[1:3]] == [epsilon, 0.5]
        assert [layer["momentum"] for layer in found[1:3]] == [momentum, 0.25]
        assert [layer["recurrent_activation"] for layer in found[3:]] == [activation, "hard_sigmoid", activation]
        assert [layer["reset_after"] for layer in found[3:5]] == [after, False]
    assert net[1]["epsilon"] is None


def test_a_sum_of_different_shapes_is_refused():
    net = [image_input(4, 4, 3), conv2d("conv", "input", 2, 1), add("sum", "input", "conv")]
    with pytest.raises(ValueError, match="sum"):
        shapes(net)


@pytest.mark.parametrize(
    "layer",
    [
        dense("wrong", "embedding", 2), conv2d("wrong", "embedding", 2, 1), max_pool("wrong", "embedding"), conv1d("wrong", "input", 2, 1),
        conv1d("wrong", "embedding", 2, 8), lstm("wrong", "input", 2), gru("wrong", "vector", 2), embedding("wrong", "embedding", 20, 2),
        concatenate("wrong", "embedding", "vector"), {"kind": "nonsense", "name": "wrong", "inputs": ["input"]},
    ],
    ids=lambda layer: "{} of {}".format(layer["kind"], layer["inputs"][-1]),
)
def test_a_layer_that_cannot_read_its_input_is_refused(layer):
    net = [tokens(7, 20), embedding("embedding", "input", 20, 5), global_max_pool("vector", "embedding"), layer]
    with pytest.raises(ValueError, match="wrong|nonsense"):
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


@pytest.mark.parametrize(("net", "message"), [
    ([image_input(4, 4, 1), relu("a", "input"), relu("a", "a")], "two layers are called a"),
    ([image_input(4, 4, 1), relu("a", "nothere")], "a reads nothere, which is no layer before it"),
    ([image_input(4, 4, 1), flatten("f", "input"), dense("d", "f", 12.5)], "units of d is 12.5 and must be a whole number above 0"),
    ([image_input(4, 4, 1), flatten("f", "input"), dense("d", "f", 0)], "units of d is 0 and must be a whole number above 0"),
])
def test_a_list_that_is_no_network_says_where(net, message):
    with pytest.raises(ValueError, match=message):
        shapes(net)
