"""ONNX files as they are opened: what they take and give, the options, and every tensor between."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("sweep.runtimes.onnxruntime", reason="ONNX Runtime is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402  after the skip

DETAILS = {"input_shape": [4], "input_dtype": "float32", "output_shape": [3]}


@pytest.fixture(autouse=True)
def default_options():
    yield
    choose()


def choose(**options):
    runtime.set_options({**{name: option["default"] for name, option in runtime.FACTS["options"].items()}, **options, "seed": 0})


def write(path, nodes, inputs, outputs, weights, opset=18):
    listed = [[helper.make_tensor_value_info(*each) for each in given] for given in (inputs, outputs)]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "net", *listed, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), str(path))
    return path


def product(path, batch="n", kind=TensorProto.FLOAT, size=4):
    """logits = input x ones, cast to float32 first where the input is of another type."""
    nodes = [helper.make_node("Cast", ["input"], ["cast"], to=TensorProto.FLOAT), helper.make_node("MatMul", ["cast", "kernel"], ["logits"])]
    weights = {"kernel": np.ones((size, 3), np.float32)}
    return write(path, nodes, [("input", kind, [batch, size])], [("logits", TensorProto.FLOAT, [batch, 3])], weights)


def test_options_are_read_back(tmp_path):
    path = product(tmp_path / "model.onnx")
    choose(optimization="basic", exact_int8="on", weight_only_products="int8")
    described = runtime.describe(runtime.open(path, 2, DETAILS))
    assert described["graph_optimization_level"] == "ORT_ENABLE_BASIC"
    assert (described["exact_int8"], described["weight_only_products"], described["intra_op_threads"]) == ("asked", "int8", 2)
    choose(exact_int8="off")
    described = runtime.describe(runtime.open(path, 1, DETAILS))
    assert described["graph_optimization_level"] == "ORT_ENABLE_ALL"
    assert (described["exact_int8"], described["weight_only_products"]) == ("by processor", "float32")


def test_products_with_weight_only_integers_are_float32_unless_told(tmp_path):
    draw = np.random.RandomState(0)
    kernel, inputs = draw.normal(size=(64, 3)).astype(np.float32), draw.normal(size=(5, 64)).astype(np.float32)
    source = write(
        tmp_path / "source.onnx", [helper.make_node("MatMul", ["input", "kernel"], ["logits"], name="last")],
        [("input", TensorProto.FLOAT, ["n", 64])], [("logits", TensorProto.FLOAT, ["n", 3])], {"kernel": kernel},
    )
    path = tmp_path / runtime.convert(source, "onnx", tmp_path, "weight_only_int8", None, {})
    scale = np.abs(kernel).max(axis=0) / 127
    exact = inputs.astype(np.float64) @ (np.rint(kernel / scale) * scale)
    difference = {}
    for kind in ("float32", "int8"):
        choose(weight_only_products=kind)
        found = runtime.predict(runtime.open(path, 1, {**DETAILS, "input_shape": [64]}), inputs)
        difference[kind] = np.abs(found - exact).max()
    assert difference["float32"] < 1e-5
    assert 1e-3 < difference["int8"] < 0.2


@pytest.mark.parametrize("kind", ["float16", "float64", "int64", "int32", "uint8"])
def test_inputs_have_the_type_of_the_file(tmp_path, kind):
    path = product(tmp_path / "model.onnx", kind=helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
    session = runtime.open(path, 1, {**DETAILS, "input_dtype": kind})
    found = runtime.predict(session, np.arange(8).reshape(2, 4).astype(kind))
    assert found.dtype == np.float32
    assert found.tolist() == [[6] * 3, [22] * 3]
    with pytest.raises(TypeError, match="inputs are int16"):
        runtime.predict(session, np.zeros((2, 4), np.int16))
    with pytest.raises(ValueError, match=f"model.onnx takes {kind}, not int16"):
        runtime.open(path, 1, {**DETAILS, "input_dtype": "int16"})


def test_several_outputs_stand_side_by_side(tmp_path):
    nodes = [
        helper.make_node("Reshape", ["input", "square"], ["maps"]),
        helper.make_node("ReduceMax", ["input", "last"], ["largest"], keepdims=0),
        helper.make_node("ArgMax", ["input"], ["place"], axis=1),
    ]
    path = write(
        tmp_path / "model.onnx", nodes, [("input", TensorProto.FLOAT, ["n", 4])],
        [("maps", TensorProto.FLOAT, ["n", 2, 2]), ("largest", TensorProto.FLOAT, ["n"]), ("place", TensorProto.INT64, ["n", 1])],
        {"square": np.array([-1, 2, 2]), "last": np.array([1])},
    )
    session = runtime.open(path, 1, {**DETAILS, "output_shape": None})
    found = runtime.predict(session, np.array([[1, 4, 2, 3], [8, 5, 6, 7], [0, 0, 1, 0]], np.float32), 2)
    assert found.dtype == np.float32
    assert found.tolist() == [[1, 4, 2, 3, 4, 1], [8, 5, 6, 7, 8, 0], [0, 0, 1, 0, 1, 2]]
    with pytest.raises(ValueError, match=r"model.onnx gives outputs of shape \(2, 2\) and \(\) and \(1,\), not \(3,\)"):
        runtime.open(path, 1, DETAILS)


def test_a_batch_fixed_at_one_is_fed_one_by_one(tmp_path):
    session = runtime.open(product(tmp_path / "model.onnx", batch=1), 1, DETAILS)
    assert runtime.predict(session, np.arange(12, dtype=np.float32).reshape(3, 4)).tolist() == [[6] * 3, [22] * 3, [38] * 3]
    with pytest.raises(ValueError, match="model.onnx takes 5 inputs at once"):
        runtime.open(product(tmp_path / "model.onnx", batch=5), 1, DETAILS)


@pytest.mark.parametrize(("details", "message"), [
    ({"output_shape": [10]}, r"gives outputs of shape \(3,\), not \(10,\)"),
    ({"input_shape": [5]}, r"takes inputs of shape \(4,\), not \(5,\)"),
    ({"input_shape": [2, 2]}, r"takes inputs of shape \(4,\), not \(2, 2\)"),
])
def test_another_model_than_the_details_say_is_refused(tmp_path, details, message):
    with pytest.raises(ValueError, match="model.onnx " + message):
        runtime.open(product(tmp_path / "model.onnx"), 1, {**DETAILS, **details})


def test_two_inputs_are_refused(tmp_path):
    pair = [(name, TensorProto.FLOAT, ["n", 3]) for name in ("left", "right")]
    nodes = [helper.make_node("Add", ["left", "right"], ["logits"])]
    path = write(tmp_path / "model.onnx", nodes, pair, [("logits", TensorProto.FLOAT, ["n", 3])], {})
    with pytest.raises(ValueError, match="model.onnx has 2 inputs, not one"):
        runtime.open(path, 1, {**DETAILS, "input_shape": [3]})


def chain(path, batch="n"):
    """relu(x) - 1 along steps first, from which a shape and a constant branch off."""
    nodes = [
        helper.make_node("Relu", ["input"], ["relu"]), helper.make_node("Transpose", ["relu"], ["steps_first"], perm=[1, 0]),
        helper.make_node("Shape", ["relu"], ["shape"]), helper.make_node("Neg", ["one"], ["minus_one"]),
        helper.make_node("Add", ["steps_first", "minus_one"], ["less"]), helper.make_node("Transpose", ["less"], ["logits"], perm=[1, 0]),
    ]
    ends = [[(name, TensorProto.FLOAT, [batch, 3])] for name in ("input", "logits")]
    return write(path, nodes, *ends, {"one": np.array([1], np.float32)})


def test_every_tensor_that_follows_from_the_inputs(tmp_path):
    inputs = np.random.RandomState(0).normal(size=(70, 3)).astype(np.float32)  # more than two parts
    found = runtime.layer_outputs(chain(tmp_path / "model.onnx"), 1, {**DETAILS, "input_shape": [3]}, inputs)
    assert list(found) == ["relu", "steps_first", "less", "logits"]  # in order; neither the shape nor what is constant
    relu = np.maximum(inputs, 0)
    for name, expected in {"relu": relu, "steps_first": relu, "less": relu - 1, "logits": relu - 1}.items():
        np.testing.assert_array_equal(found[name], expected)


def test_tensors_of_a_batch_fixed_at_one(tmp_path):
    inputs = np.array([[1, -2, 3], [-4, 5, 6]], np.float32)
    found = runtime.layer_outputs(chain(tmp_path / "model.onnx", batch=1), 1, {**DETAILS, "input_shape": [3]}, inputs)
    assert list(found) == ["relu", "logits"]
    np.testing.assert_array_equal(found["relu"], [[1, 0, 3], [0, 5, 6]])


def test_integers_between_are_given_dequantized(tmp_path):
    nodes = [helper.make_node("Flatten", ["input"], ["flat"]), helper.make_node("MatMul", ["flat", "kernel"], ["logits"], name="last")]
    source = write(
        tmp_path / "source.onnx", nodes, [("input", TensorProto.FLOAT, ["n", 4])], [("logits", TensorProto.FLOAT, ["n", 3])],
        {"kernel": np.eye(4, 3, dtype=np.float32)},
    )
    settings = {name: option["default"] for name, option in runtime.FACTS["quantizations"]["static_int8"].items()}
    inputs = np.random.RandomState(0).uniform(-1, 1, size=(50, 4)).astype(np.float32)
    path = tmp_path / runtime.convert(source, "onnx", tmp_path, "static_int8", inputs, settings)
    found = runtime.layer_outputs(path, 1, DETAILS, inputs)
    dequantized = [name for name in found if name.startswith("flat") or name.startswith("input")]
    assert dequantized
    for name in dequantized:
        np.testing.assert_allclose(found[name], inputs, atol=0.01)
    np.testing.assert_allclose(found["logits"], inputs[:, :3], atol=0.02)
