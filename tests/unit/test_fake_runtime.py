"""The fake runtime's integers, worked out by hand, and its faults."""

import numpy as np
import pytest

from sweep.runtimes import fake

LAYERS = [
    {"kind": "input", "name": "input", "inputs": [], "shape": [1, 2, 1]},
    {"kind": "normalize", "name": "normalize", "inputs": ["input"], "mean": [0.5], "std": [0.5]},
    {"kind": "flatten", "name": "flatten", "inputs": ["normalize"]},
    {"kind": "dense", "name": "logits", "inputs": ["flatten"], "units": 2},
]
DETAILS = {"layers": LAYERS, "output_shape": [2]}


@pytest.fixture(autouse=True)
def no_options():
    yield
    fake.set_options({})


@pytest.fixture
def source(tmp_path):
    kernel, bias = np.array([[1.27, -0.635], [0.254, 0.005]], np.float32), np.array([0, 1], np.float32)
    np.savez(tmp_path / "source.npz", **{"logits/kernel": kernel, "logits/bias": bias})
    return tmp_path / "source.npz"


def logits(source, row, calibration=None, granularity="tensor"):
    fake.convert(source, "fake", source.parent, row, calibration, {"granularity": granularity})
    session = fake.open(source.parent / "model.npz", 1, DETAILS)
    return fake.predict(session, np.array([[[[1], [0]]], [[[0], [0.25]]]], np.float32)), session


def test_float32(source):
    # the images normalise to (1, -1) and (-1, -0.5)
    np.testing.assert_allclose(logits(source, "float32")[0], [[1.016, 0.36], [-1.397, 1.6325]], rtol=1e-6)


def test_static_int8_by_channel(source):
    # the second channel's scale is 0.635 / 127 = 0.005, so that 0.005 is one step of it; calibrated to 1, the images are exact
    found, session = logits(source, "static_int8", np.ones((3, 1, 2, 1), np.float32), granularity="channel")
    assert session.weights["logits/kernel"].tolist() == [[127, -127], [25, 1]]
    np.testing.assert_allclose(found[0], [1.27 - 0.25, -0.635 - 0.005 + 1], rtol=1e-5)


def test_arithmetic_is_an_option(source):
    fake.set_options({"arithmetic": "float64"})
    found, session = logits(source, "float32")
    assert fake.describe(session)["arithmetic"] == "float64"
    assert found.dtype == np.float32
    outputs = fake.layer_outputs(source.parent / "model.npz", 1, DETAILS, np.array([[[[1], [0]]]], np.float32))
    assert list(outputs) == ["input", "normalize", "flatten", "logits"]
    np.testing.assert_allclose(outputs["flatten"], [[1, -1]])


def test_dynamic_int8(source):
    found, session = logits(source, "dynamic_int8")
    assert session.weights["logits/kernel"].tolist() == [[127, -64], [25, 0]]  # scale 0.01; -63.5 goes to the even -64
    assert session.weights["logits/kernel"].dtype == np.int8
    # each image's own scale is 1/127, so -0.5 is -64/127
    np.testing.assert_allclose(found, [[1.02, 0.36], [-1.27 - 0.25 * 64 / 127, 1.64]], rtol=1e-5)


def test_static_int8(source):
    # calibrated to 0.5, so 1 is clipped to 0.5 and 0.25 is 64 steps (63.5) of 0.5/127: normalised (0, -1) and (-1, 64/127 - 1)
    found, _session = logits(source, "static_int8", np.full((3, 1, 2, 1), 0.5, np.float32))
    np.testing.assert_allclose(found, [[-0.25, 1], [-1.27 + 0.25 * (64 / 127 - 1), 1.64]], rtol=1e-5)


def test_fails_only_for_the_seed_that_was_asked_for(source):
    options = {"faults": {"convert": {"3": "raise"}, "train": {"4": "raise"}}}
    fake.set_options(dict(options, seed=4))
    logits(source, "float32")
    fake.set_options(dict(options, seed=3))
    with pytest.raises(RuntimeError, match="seed 3"):
        logits(source, "float32")


def test_unknown_option_is_refused():
    with pytest.raises(ValueError, match="slep_s"):
        fake.set_options({"slep_s": 1})


def test_other_layers_are_refused(source):
    with pytest.raises(ValueError, match="relu"):
        fake.open(source, 1, {"layers": [*LAYERS, {"kind": "relu", "name": "relu", "inputs": ["logits"]}], "output_shape": [2]})
