"""A user's own model and inputs, before a sweep and as its first stage."""

import json
import types
import zipfile

import numpy as np
import pytest

from sweep import components, own_inputs, own_model
from sweep.errors import ConfigError
from sweep.inputs import UNLABELLED, read_inputs, read_labels
from sweep.stages import adopt, exact
from sweep.workers import Pool

INPUTS = np.random.RandomState(0).normal(0, 1, (20, 3, 4)).astype(np.float32)
LABELS = np.arange(20) % 7


@pytest.fixture
def npz(tmp_path):
    def save(name="own.npz", **arrays):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    return save


# Inputs


def test_inputs_have_the_layout_of_a_data_set(npz, tmp_path):
    prepared, parts = own_inputs.prepare(npz(inputs=INPUTS, labels=LABELS.astype(np.uint8), calibration=INPUTS[:6] * 2), tmp_path / "cache")
    folder = str(prepared.folder)
    assert np.array_equal(read_inputs(folder, "test"), INPUTS)
    assert np.array_equal(read_inputs(folder, "train", parts.calibration), INPUTS[:6] * 2)
    assert np.array_equal(read_labels(folder, "test"), LABELS)
    assert (prepared.shape, prepared.n_test, prepared.n_train, len(prepared.classes)) == ((3, 4), 20, 6, 7)
    assert prepared.source_kind == "npz"
    assert own_inputs.input_type(prepared) == "float32"
    assert sorted(parts.attack) == list(range(20))
    assert len(parts.validation) == 0
    again, the_same = own_inputs.prepare(tmp_path / "own.npz", tmp_path / "cache")
    assert (again, the_same.digest) == (prepared, parts.digest)


def test_without_labels_or_calibration(npz, tmp_path):
    tokens = np.arange(1400, dtype=np.int32).reshape(700, 2)
    prepared, parts = own_inputs.prepare(npz(inputs=tokens), tmp_path / "cache")
    assert prepared.classes == []
    assert prepared.source_kind == "npz, calibrated on its own inputs"
    assert own_inputs.input_type(prepared) == "int32"
    assert set(read_labels(str(prepared.folder), "test")) == {UNLABELLED}
    assert len(parts.calibration) == len(set(parts.calibration)) == own_inputs.CALIBRATION_INPUTS
    assert np.array_equal(read_inputs(str(prepared.folder), "train", parts.calibration), tokens[parts.calibration])


def test_other_content_is_other_data(npz, tmp_path):
    first, _parts = own_inputs.prepare(npz(inputs=INPUTS), tmp_path / "cache")
    second, _parts = own_inputs.prepare(npz(inputs=INPUTS + 1), tmp_path / "cache")
    assert first.digest != second.digest
    assert first.folder != second.folder


class Evil:
    def __reduce__(self):
        return (print, ("run",))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"images": INPUTS}, "has no array 'inputs'; it has images"),
        ({"inputs": INPUTS, "y": LABELS}, "has an array 'y'; known are"),
        ({"inputs": INPUTS.astype(np.float64)}, "inputs are float64; a model takes float32 or int32 or int64"),
        ({"inputs": (INPUTS * 9).astype(np.uint8)}, "inputs are uint8"),
        ({"inputs": np.float32(1)}, r"inputs of shape \(\) are none"),
        ({"inputs": INPUTS[:0]}, r"inputs of shape \(0, 3, 4\) are none"),
        ({"inputs": np.where(INPUTS > 2, np.float32(np.nan), INPUTS)}, "a value that is no finite number"),
        ({"inputs": INPUTS, "labels": LABELS[:5]}, r"one for each input, not int64 \(5,\)"),
        ({"inputs": INPUTS, "labels": LABELS - 1}, "whole numbers from 0"),
        ({"inputs": INPUTS, "labels": LABELS.astype(np.float32)}, r"not float32 \(20,\)"),
        ({"inputs": INPUTS, "calibration": INPUTS[:, :2]}, r"calibration are float32 \(2, 4\), and inputs float32 \(3, 4\)"),
        ({"inputs": np.array([Evil()], dtype=object)}, "no .npz file that can be read: Object arrays cannot be loaded"),
    ],
)
def test_wrong_arrays_are_said_in_one_line(npz, tmp_path, arrays, said):
    with pytest.raises(ConfigError, match=said) as refused:
        own_inputs.prepare(npz(**arrays), tmp_path / "cache")
    assert "\n" not in str(refused.value)


def test_wrong_files_are_said_in_one_line(npz, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="can't read .*nothing.npz: No such file"):
        own_inputs.prepare(tmp_path / "nothing.npz", tmp_path / "cache")
    path = npz(inputs=INPUTS)
    (tmp_path / "cut.npz").write_bytes(path.read_bytes()[:300])
    with pytest.raises(ConfigError, match="cut.npz is no .npz file that can be read"):
        own_inputs.prepare(tmp_path / "cut.npz", tmp_path / "cache")
    np.save(tmp_path / "array.npy", INPUTS)
    with pytest.raises(ConfigError, match="array.npy is no .npz file"):
        own_inputs.prepare(tmp_path / "array.npy", tmp_path / "cache")
    np.savez_compressed(tmp_path / "bomb.npz", inputs=np.zeros((1000, 1000), np.float32))
    monkeypatch.setattr(own_inputs, "LARGEST_BYTES", 1_000_000)
    with pytest.raises(ConfigError, match="inputs may have"):
        own_inputs.prepare(tmp_path / "bomb.npz", tmp_path / "cache")


# The model's file


def test_a_format_is_told_by_content_then_by_name(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"\x18\0\0\0TFL3" + bytes(100))
    assert own_model.recognise(tmp_path / "model.bin") == "tflite"
    (tmp_path / "model.onnx").write_bytes(b"\x08\x0a\x12\x07pytorch")
    assert own_model.recognise(tmp_path / "model.onnx") == "onnx"
    (tmp_path / "cut.keras").write_bytes(b"PK\x03\x04 the rest is missing")
    assert own_model.recognise(tmp_path / "cut.keras") == "keras"
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"")
    assert own_model.recognise(tmp_path / "saved") == "saved_model"
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(ConfigError, match="notes.txt has none of the formats that can be read: exported_program, keras, onnx"):
        own_model.recognise(tmp_path / "notes.txt")
    with pytest.raises(ConfigError, match="there is no .*nothing-here"):
        own_model.recognise(tmp_path / "nothing-here")


@pytest.mark.parametrize(
    ("shape", "dtype", "said"),
    [
        ((1, 28, 28), "float32", None),
        ((28, 28), "float32", "own.onnx takes inputs float32 (1, any, any), and they are float32 (28, 28)"),
        ((1, 28, 28), "int32", "own.onnx takes inputs float32 (1, any, any), and they are int32 (1, 28, 28)"),
        ((3, 28, 28), "float32", "own.onnx takes inputs float32 (1, any, any), and they are float32 (3, 28, 28)"),
    ],
)
def test_inputs_suit_a_model_or_it_is_said_why_not(shape, dtype, said):
    assert adopt.misfit("/a/own.onnx", {"input_shape": [1, None, None], "input_dtype": "float32"}, shape, dtype) == said


def test_a_file_that_says_nothing_takes_anything_and_layouts_are_noticed():
    assert adopt.misfit("own.pt", {"input_shape": None, "input_dtype": None}, (1, 2), "int64") is None
    said = adopt.misfit("own.onnx", {"input_shape": [3, 32, 30], "input_dtype": "float32"}, (32, 30, 3), "float32")
    assert said.endswith("it has the channels first, the inputs have them last")


@pytest.fixture
def linear(tmp_path):
    """An ONNX file: outputs are the inputs, flattened, times a matrix."""
    onnx = pytest.importorskip("onnx")
    weights = np.random.RandomState(1).normal(0, 1, (12, 7)).astype(np.float32)
    nodes = [onnx.helper.make_node("Flatten", ["x"], ["f"]), onnx.helper.make_node("MatMul", ["f", "w"], ["y"])]
    graph = onnx.helper.make_graph(
        nodes, "linear", [onnx.helper.make_tensor_value_info("x", 1, ["n", 3, 4])], [onnx.helper.make_tensor_value_info("y", 1, ["n", 7])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "own.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), path)
    return types.SimpleNamespace(path=path, weights=weights)


@pytest.fixture
def pool():
    pool = Pool(keep=1, recycle_bytes=1 << 40)
    yield pool
    pool.close()


def test_a_worker_looks_a_file_through(linear, tmp_path, pool):
    found = own_model.examine(linear.path, pool)
    assert (found.format, found.failure_class, found.message) == ("onnx", "", "")
    assert (found.details["input_shape"], found.details["output_shape"]) == ([3, 4], [7])
    assert found.details["operators"] == {"Flatten": 1, "MatMul": 1}
    assert found.details["products"] == 1
    assert found.details["bytes"] == linear.path.stat().st_size
    assert own_model.check_inputs(found, (3, 4), "float32") is None
    assert "and they are float32 (4, 3)" in own_model.check_inputs(found, (4, 3), "float32")
    (tmp_path / "cut.onnx").write_bytes(linear.path.read_bytes()[:-50])
    cut = own_model.examine(tmp_path / "cut.onnx", pool)
    assert cut.failure_class == "load_failed"
    assert cut.message.startswith(str(tmp_path / "cut.onnx"))
    assert "\n" not in cut.message


def test_adopting_copies_the_file_and_says_what_it_gives(linear, npz, tmp_path):
    prepared, _parts = own_inputs.prepare(npz(inputs=INPUTS), tmp_path / "cache")
    details, out = adopt.inspect(str(linear.path), "onnx"), tmp_path / "out"
    out.mkdir()
    settings = {"path": str(linear.path), "format": "onnx", "digest": details["digest"], "threads": 1}
    outcome = adopt.run(settings, {"folder": str(prepared.folder)}, str(out))
    assert outcome["metrics"] == {"model_size_bytes": linear.path.stat().st_size}
    written = json.loads((out / "model.json").read_text())
    assert (out / written["file"]).read_bytes() == linear.path.read_bytes()
    expected = {"format": "onnx", "file": "own.onnx", "layers": None, "input_shape": [3, 4], "input_dtype": "float32", "output_shape": [7]}
    assert {name: written[name] for name in expected} == expected
    linear.path.write_bytes(linear.path.read_bytes() + b"\x40\x00")
    with pytest.raises(ValueError, match="own.onnx has changed since the sweep was planned"):
        adopt.run(settings, {"folder": str(prepared.folder)}, str(out))


def test_inputs_that_do_not_suit_are_refused_when_adopting(linear, npz, tmp_path):
    prepared, _parts = own_inputs.prepare(npz(inputs=INPUTS.transpose(0, 2, 1).copy()), tmp_path / "cache")
    settings = {"path": str(linear.path), "format": "onnx", "digest": adopt.inspect(str(linear.path), "onnx")["digest"], "threads": 1}
    with pytest.raises(ValueError, match=r"own.onnx takes inputs float32 \(3, 4\), and they are float32 \(4, 3\)"):
        adopt.run(settings, {"folder": str(prepared.folder)}, str(tmp_path))


def test_a_digest_is_of_all_files(tmp_path):
    folder = tmp_path / "model"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"graph")
    (folder / "variables" / "data").write_bytes(b"12")

    def digest():
        return adopt._digest(list(adopt._files(str(folder), [])))

    first = digest()
    assert digest() == first
    (folder / "variables" / "data").write_bytes(b"13")
    second = digest()
    (folder / "variables" / "data").rename(folder / "variables" / "other")
    assert len({first, second, digest()}) == 3


# What stands in for double precision


def test_an_ulp_is_to_a_neighbouring_number():
    moved = exact.moved_by_one_ulp(INPUTS, 0)
    assert moved.dtype == np.float32
    assert (moved != INPUTS).all()
    assert np.array_equal(np.nextafter(moved, INPUTS), INPUTS)
    assert 0.3 < np.mean(moved > INPUTS) < 0.7
    assert not np.array_equal(moved, exact.moved_by_one_ulp(INPUTS, 1))


def sums(inputs):
    return inputs.sum(axis=(1, 2))[:, None] * np.float32(10)


def test_where_there_is_no_double_precision_inputs_are_moved():
    without = types.SimpleNamespace(FACTS={"float64": False})
    outputs, basis = exact.outputs(without, "own", sums, INPUTS, sums(INPUTS), 3)
    assert basis == exact.ONE_ULP
    assert outputs.dtype == np.float64
    largest = 10 * np.spacing(np.abs(INPUTS)).sum(axis=(1, 2)).max()  # every value moved the same way, and some rounding
    assert 0 < np.abs(outputs - sums(INPUTS)).max() <= 2 * largest
    with pytest.raises(ValueError, match="inputs that are int32 can't be moved by an ulp"):
        exact.outputs(without, "own", sums, INPUTS.astype(np.int32), sums(INPUTS), 3)


def test_double_precision_is_for_the_inputs_where_rounding_matters_most():
    def steep(inputs):  # the outputs of inputs 5 and 11 depend on theirs a thousand times as much
        factors = np.where(np.abs(inputs[:, 0, 0]) > 50, 1000, 1).astype(np.float32)
        return inputs.reshape(len(inputs), -1) * factors[:, None]

    inputs = INPUTS.copy()
    inputs[[5, 11], 0, 0] = 100
    module = types.SimpleNamespace(FACTS={"float64": True}, predict64=lambda _path, few: steep(few).astype(np.float64) + 1)
    outputs, basis = exact.outputs(module, "own", steep, inputs, steep(inputs), 2)
    assert basis == exact.FLOAT64
    assert list(np.flatnonzero(np.isfinite(outputs).all(axis=1))) == [5, 11]
    assert np.array_equal(outputs[[5, 11]], steep(inputs)[[5, 11]].astype(np.float64) + 1)


def test_of_integers_those_with_the_least_margins_are_chosen():
    given = np.array([[0, 9], [5, 4], [0, 7], [3, 3], [8, 0]], np.float32)
    module = types.SimpleNamespace(FACTS={"float64": True}, predict64=lambda _path, few: np.zeros((len(few), 2)))
    outputs, _basis = exact.outputs(module, "own", None, np.zeros((5, 4), np.int64), given, 2)
    assert list(np.flatnonzero(np.isfinite(outputs).all(axis=1))) == [1, 3]


def test_a_model_whose_double_precision_fails_is_estimated_too():
    def fail(_path, _inputs):
        raise ValueError("no such operator")

    module = types.SimpleNamespace(FACTS={"float64": True}, predict64=fail)
    assert exact.outputs(module, "own", sums, INPUTS, sums(INPUTS), 3)[1] == exact.ONE_ULP
    with pytest.raises(ValueError, match="no such operator; and inputs that are int64"):
        exact.outputs(module, "own", sums, INPUTS.astype(np.int64), sums(INPUTS), 3)


def test_every_format_can_be_recognised_without_its_packages():
    for name in components.names("formats"):
        assert components.load("formats", name).recognise("/nothing/here") is False


def test_an_archive_of_something_else_is_no_model(tmp_path):
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a/b.txt", "x")
    with pytest.raises(ConfigError, match="has none of the formats"):
        own_model.recognise(tmp_path / "other.zip")
