"""JAX networks as ONNX files. Run in the toolchain that has jax2onnx; `tests/contract` has whole routes."""

import numpy as np
import pytest

pytest.importorskip("jax2onnx", reason="jax2onnx is not installed")

import onnx
import onnxruntime

from sweep import initial, layers, reference
from sweep.architectures import resnet20
from sweep.frameworks import jax

PADDED = ((1, 0), (0, 2))
NETWORKS = {
    "windows": [
        layers.image_input(11, 9, 2), layers.normalize("normalize", "input", [0.4, 0.6], [0.2, 0.3]),
        layers.conv2d("conv1", "normalize", 4, 3, stride=2, padding=PADDED), layers.batch_norm("norm", "conv1"), layers.relu("relu", "norm"),
        layers.max_pool("largest", "relu", 3, 2, PADDED), layers.average_pool("means", "relu", 3, 2, PADDED),
        layers.concatenate("both", "largest", "means"), layers.flatten("flatten", "both"), layers.dense("logits", "flatten", 3),
    ],
    "sums of two branches": resnet20.layers((16, 16, 3), 3),  # whose transpositions the converter takes out
    "lstm": [
        layers.tokens(7, 30), layers.embedding("embedding", "input", 30, 5),
        layers.lstm("first", "embedding", 6, return_sequences=True, recurrent_activation="hard_sigmoid"),
        layers.lstm("second", "first", 4, recurrent_activation="sigmoid"), layers.dense("logits", "second", 3),
    ],
    "gru": [
        layers.tokens(7, 30), layers.embedding("embedding", "input", 30, 5),
        layers.gru("first", "embedding", 6, True, "sigmoid", reset_after=True),
        layers.gru("second", "first", 4, False, "hard_sigmoid", reset_after=False), layers.dense("logits", "second", 3),
    ],
    "steps": [
        layers.tokens(9, 30), layers.embedding("embedding", "input", 30, 5), layers.conv1d("conv", "embedding", 6, 3, 2, (1, 0)),
        layers.relu("relu", "conv"), layers.global_max_pool("largest", "relu"), layers.dense("logits", "largest", 3),
    ],
}


@pytest.mark.parametrize("name", NETWORKS)
def test_file_computes_the_network(tmp_path, name):
    jax.configure(1)
    network = layers.resolved(NETWORKS[name], "identical", jax.FACTS["own"])
    model, draw = jax.build(network, "identical", 0), np.random.RandomState(1)
    weights = initial.weights(network, 0)
    # Constants at the start, which would hide a mistake: gamma one, beta and biases zero.
    for parameter, array in weights.items():
        if parameter.rpartition("/")[2] not in ("kernel", "recurrent_kernel"):
            weights[parameter] = draw.uniform(0.5, 1.5, size=array.shape).astype(np.float32)
    jax.set_weights(model, weights)
    path = tmp_path / jax.export(model, network, "onnx", tmp_path)
    onnx.checker.check_model(str(path), full_check=True)
    shape = network[0]["shape"]
    for count in (1, 5):
        if network[0]["kind"] == "tokens":
            inputs = draw.randint(0, 30, size=(count, *shape)).astype(np.int32)
        else:
            inputs = draw.uniform(size=(count, *shape)).astype(np.float32)
        found = onnxruntime.InferenceSession(str(path)).run(["logits"], {"input": inputs})[0]
        np.testing.assert_allclose(found, reference.logits(network, weights, inputs), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found, jax.predict(model, inputs), rtol=1e-5, atol=1e-5)


def test_no_trace_of_this_machine_is_left_in_the_file(tmp_path):
    network = layers.resolved(NETWORKS["steps"], "identical", jax.FACTS["own"])
    content = (tmp_path / jax.export(jax.build(network, "identical", 0), network, "onnx", tmp_path)).read_bytes()
    assert b".py" not in content
