"""Tensors of a deployed model found among a network's layers, by values worked out apart."""

import numpy as np
import pytest
from drawn import trained_like

from sweep import layers as neutral
from sweep import reference, simulation
from sweep.diagnosis._alignment import AS_IT_IS, BIAS_LATER, CHANNELS_FIRST, Place, paired, view, views
from sweep.diagnosis._computed import Network
from sweep.diagnosis._tracing import Tracing

FLOAT = simulation.Arithmetic("float32", "float32", False, "channel")
LAYERS = [
    neutral.image_input(6, 7, 2),
    neutral.conv2d("conv", "input", 3, 3, 1, ((1, 1), (1, 1))),
    neutral.batch_norm("norm", "conv", 1e-3, 0.9),
    neutral.relu("relu", "norm"),
    neutral.max_pool("pool", "relu"),
    neutral.flatten("flat", "pool"),
    neutral.dense("dense", "flat", 5),
    neutral.dense("logits", "dense", 4),
]


@pytest.fixture
def case():
    """Weights, images, and the right outputs in float32."""
    random = np.random.RandomState(0)
    weights = trained_like(random, LAYERS)
    images = random.rand(4, 6, 7, 2).astype(np.float32)
    return weights, images, reference.layer_outputs(LAYERS, weights, images, np.float32)


def first(array):
    return np.ascontiguousarray(np.moveaxis(array, -1, 1))


def trace(weights, images, tensors, guess=False):
    network = Network(LAYERS, weights, FLOAT, reference.layer_outputs(LAYERS, weights, images))
    return Tracing(network, images, tensors).run(guess)


def test_a_tensor_in_both_layouts():
    array = np.arange(24.0).reshape(1, 2, 3, 4)
    assert [layout for layout, _ in views(array, (2, 3, 4))] == [AS_IT_IS]
    (layout, seen), = views(array, (3, 4, 2))
    assert layout == CHANNELS_FIRST
    assert seen[0, 1, 2].tolist() == [array[0, 0, 1, 2], array[0, 1, 1, 2]]
    assert [layout for layout, _ in views(array, (4, 3, 2))] == []
    assert [layout for layout, _ in views(np.zeros((5, 1, 1, 3)), (3,))] == [AS_IT_IS]  # axes of one place count for nothing
    assert [layout for layout, _ in views(np.zeros((5, 2, 2, 2)), (2, 2, 2))] == [AS_IT_IS, CHANNELS_FIRST]


def test_a_flattened_tensor_in_both_orders():
    images = np.arange(12.0).reshape(1, 2, 2, 3)
    flat = first(images).reshape(1, 12)
    found = dict(views(flat, (12,), (2, 2, 3)))
    assert found[CHANNELS_FIRST].tolist() == images.reshape(1, 12).tolist()
    assert found[AS_IT_IS] is not None
    assert view(flat, (12,), CHANNELS_FIRST, (2, 2, 3)).tolist() == images.reshape(1, 12).tolist()


def test_every_layer_is_found_whatever_its_name_and_layout(case):
    weights, images, right = case
    tensors = [("input", images)] + [(f"t{at}", first(right[name]) if right[name].ndim == 4 else right[name])
                                     for at, name in enumerate(("conv", "norm", "relu", "pool", "flat", "dense", "logits"))]
    found = trace(weights, images, tensors)
    assert found.complete
    assert {name: places[0] for name, places in found.outputs.items()} == {
        "input": Place(0, AS_IT_IS), "conv": Place(1, CHANNELS_FIRST), "norm": Place(2, CHANNELS_FIRST), "relu": Place(3, CHANNELS_FIRST),
        "pool": Place(4, CHANNELS_FIRST), "flat": Place(5, AS_IT_IS), "dense": Place(6, AS_IT_IS), "logits": Place(7, AS_IT_IS)}


def test_layers_that_were_fused_are_passed_over(case):
    weights, images, right = case
    found = trace(weights, images, [("input", images), ("fused", right["relu"]), ("pooled", right["pool"]), ("out", right["logits"])])
    assert found.complete
    assert sorted(found.outputs) == ["input", "logits", "pool", "relu"]
    assert found.given == {}


def test_the_trace_is_taken_up_behind_a_fault(case):
    """The kernel isn't the right one: what reads its output tells which tensor that is."""
    weights, images, _ = case
    wrong = dict(weights, **{"conv/kernel": weights["conv/kernel"][::-1, ::-1]})
    given = reference.layer_outputs(LAYERS, wrong, images, np.float32)
    tensors = [("input", images)] + [(name, first(given[name])) for name in ("norm", "relu", "pool")] + [("logits", given["logits"])]
    found = trace(weights, images, tensors)
    assert found.complete
    assert found.given == {"norm": Place(1, CHANNELS_FIRST)}
    assert sorted(found.outputs) == ["input", "logits", "pool", "relu"]


def test_what_is_read_may_be_another_tensor_than_the_right_one(case):
    weights, images, _ = case
    scaled = images * np.float32(255)
    given = reference.layer_outputs(LAYERS, weights, scaled, np.float32)
    tensors = [("input", images), ("mul", scaled), ("conv", given["conv"]), ("relu", given["relu"]), ("logits", given["logits"])]
    found = trace(weights, images, tensors)
    assert found.outputs["input"] == [Place(0, AS_IT_IS)]
    assert found.given == {"input": Place(1, AS_IT_IS)}
    assert found.reader == {"input": "conv"}


def test_a_bias_that_moved_behind_the_next_product(case):
    weights, images, right = case
    tensors = [("input", images), ("flat", right["flat"]), ("product", right["dense"] - weights["dense/bias"]), ("logits", right["logits"])]
    found = trace(weights, images, tensors)
    assert found.outputs["dense"] == [Place(2, BIAS_LATER)]
    assert found.array("dense", Place(2, BIAS_LATER)) == pytest.approx(right["dense"], abs=1e-5)


def test_an_output_that_nothing_leads_to_is_the_last_layers(case):
    weights, images, right = case
    noise = np.random.RandomState(1).randn(4, 4).astype(np.float32)
    found = trace(weights, images, [("input", images), ("pool", right["pool"]), ("out", noise)])
    assert not found.complete
    assert found.given == {"logits": Place(2, AS_IT_IS)}
    near = right["dense"] + np.random.RandomState(2).randn(4, 5) * 0.05
    found = trace(weights, images, [("input", images), ("pool", right["pool"]), ("a dense", near), ("out", noise)], guess=True)
    assert found.given == {"dense": Place(2, AS_IT_IS), "logits": Place(3, AS_IT_IS)}


def test_pairs_keep_both_orders():
    random = np.random.RandomState(0)
    one, two, three = (random.randn(3, 4, 5, 6) for _ in range(3))
    expected = [("conv1", one), ("conv2", two), ("conv3", three)]
    observed = [("x", first(one) + 0.01), ("noise", random.randn(3, 4, 5, 6)), ("y", three), ("z", two + 0.5)]
    assert paired(expected, observed) == {0: Place(0, CHANNELS_FIRST), 2: Place(2, AS_IT_IS)}  # the second would come behind the third
    assert paired([("a", one)], [("b", one[..., :2])]) == {}


def test_names_decide_where_values_do_not():
    zeros = np.zeros((2, 3))
    expected, observed = [("block/relu", zeros), ("block/add", zeros)], [("block/add", zeros), ("other", zeros)]
    assert paired(expected, observed) == {1: Place(0, AS_IT_IS)}
