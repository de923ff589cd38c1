"""Whole sweeps over real converters: what a conversion did is told, layer by layer, of a trained network and of a user's own file."""

from pathlib import Path

import numpy as np
import pytest
from mlflow.entities import Run
from sweeps import Store

from sweep import components

tf = pytest.importorskip("tensorflow")
pytest.importorskip("torch")

RIGHT = [321.0, 43.0, 1209.0, 131.0]
"""Of the numbers 1 to 16 in rows of four, a depthwise kernel of 1 x 3 with [1, 10, 100], stride 2, zeros as padding: by hand."""
IMAGES = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4, 1) * np.arange(1, 9, dtype=np.float32).reshape(8, 1, 1, 1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Store:
    return Store(tmp_path_factory.mktemp("deployment") / "store", cache)


@pytest.fixture(scope="module")
def own(store: Store) -> Path:
    """A file with a stride beyond its kernel in one direction, which TensorFlow's interpreter of today gets wrong by default."""
    components.load("formats", "saved_model").set_threads(1)  # before anything runs there; other tests want the same
    layer = tf.keras.layers.DepthwiseConv2D((1, 3), strides=2, padding="same", use_bias=False)
    model = tf.keras.Sequential([tf.keras.layers.Input((4, 4, 1)), layer, tf.keras.layers.Flatten()])
    layer.set_weights([np.array([1, 10, 100], np.float32).reshape(1, 3, 1, 1)])
    assert model.predict(IMAGES[:1], verbose=0).tolist() == [RIGHT]
    path = store.folder / "strided.tflite"
    path.write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())
    np.savez(store.folder / "images.npz", inputs=IMAGES)
    return path


@pytest.fixture(scope="module")
def rows(store: Store, own: Path) -> list[Run]:
    grid = [
        {"framework": ["pytorch"], "dataset": ["mnist"], "architecture": ["lenet1"], "runtime": ["onnxruntime"],
         "quantization": ["float32", "static_int8"]},
        {"model": [str(own)], "dataset": [str(store.folder / "images.npz")],
         "runtime": ["native", "litert", "tflite", {"tflite": {"resolver": ["reference"]}}]},
    ]
    config = store.write(
        "deployment", grid=grid, diagnose={"when": "always"}, data={"mnist": {"allow_subset": True}}, measure={"enabled": False},
        train={"epochs": 1, "examples": 600, "batch_size": 32, "test_examples": 200},
    )
    command = store.start(config)
    assert command.wait(400) == 0, command.output
    return list(store.cells("deployment").values())


def one(rows: list[Run], **params: str) -> Run:
    (found,) = [run for run in rows if all(run.data.params.get(name) == value for name, value in params.items())]
    return found


@pytest.mark.parametrize(("quantization", "parity"), [("float32", "equal"), ("static_int8", "within tolerance")])
def test_a_sound_conversion_is_so_layer_by_layer(rows: list[Run], quantization: str, parity: str) -> None:
    tags = one(rows, framework="pytorch", quantization=quantization).data.tags
    assert (tags["parity"], tags["deployed_diagnosis"]) == (parity, "no fault")


def test_a_runtimes_fault_in_a_users_file_is_named_with_the_option_that_it_goes_with(rows: list[Run], store: Store) -> None:
    faulty = [run for run in rows if run.data.tags.get("parity") == "broken"]
    assert [run.data.params["runtime"] for run in faulty] == ["tflite"]
    assert faulty[0].data.metrics["disagreement"] == 1.0
    assert faulty[0].data.tags["deployed_diagnosis"].startswith("unknown at ")
    (told,) = [path.read_text() for path in store.folder.rglob("diagnosis.md") if "resolver=reference" in path.read_text()]
    assert "the outputs are right with resolver=" in told
    sound = [run for run in rows if "model" in run.data.params and run.data.params["runtime"] != "native" and run not in faulty]
    assert len(sound) == 2
    assert {run.data.tags["parity"] for run in sound} == {"equal"}
