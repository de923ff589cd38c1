"""Quantized ONNX files, on networks of one or two operators whose integers can be worked out by hand."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("sweep.runtimes.onnxruntime", reason="ONNX Runtime is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402  after the skip

DETAILS = {"classes": 2}


def write(path, nodes, weights, size=2):
    """A file with input (N, 1, 1, size) and output (N, 2)."""
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", 1, 1, size])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), str(path))
    return path


def gemm(path, kernel, transposed=False):
    nodes = [
        helper.make_node("Flatten", ["input"], ["flat"]),
        helper.make_node("Gemm", ["flat", "kernel", "bias"], ["logits"], name="last", transB=int(transposed)),
    ]
    return write(path, nodes, {"kernel": kernel.T.copy() if transposed else kernel, "bias": np.array([1, -1], np.float32)})


def predict(path, images):
    return runtime.predict(runtime.open(path, 1, DETAILS), np.asarray(images, np.float32).reshape(-1, 1, 1, 2))


@pytest.mark.parametrize("transposed", [False, True])
def test_weight_only_integers_are_symmetric_by_output_channel(tmp_path, transposed):
    # column scales 0.01 and 0.02, so 1.27 -> 127, -0.502 -> -50, 2.54 -> 127, 0.635 -> 32 (31.75)
    source = gemm(tmp_path / "source.onnx", np.array([[1.27, 0.635], [-0.502, 2.54]], np.float32), transposed)
    name = runtime.convert(source, "onnx", tmp_path, "weight_only_int8", None)
    stored = [numpy_helper.to_array(tensor) for tensor in onnx.load(str(tmp_path / name)).graph.initializer]
    integers = next(array for array in stored if array.dtype == np.int8 and array.ndim == 2)
    assert (integers.T if transposed else integers).tolist() == [[127, 32], [-50, 127]]
    np.testing.assert_allclose(predict(tmp_path / name, [[1, 0], [0, 1]]), [[2.27, -0.36], [0.5, 1.54]], rtol=1e-6)


def test_weight_only_keeps_a_channel_of_zeros(tmp_path):
    source = gemm(tmp_path / "source.onnx", np.array([[1, 0], [1, 0]], np.float32))
    name = runtime.convert(source, "onnx", tmp_path, "weight_only_int8", None)
    np.testing.assert_allclose(predict(tmp_path / name, [[1, 1]]), [[3, -1]], rtol=1e-6)


@pytest.mark.parametrize("row", ["dynamic_int8", "static_int8", "weight_only_int8"])
def test_convolution_and_product_are_both_quantized(tmp_path, row):
    draw = np.random.RandomState(0)
    kernel = draw.normal(size=(3, 1, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["input", "filters"], ["maps"], name="first"),
        helper.make_node("Flatten", ["maps"], ["flat"]),
        helper.make_node("MatMul", ["flat", "kernel"], ["logits"], name="last"),
    ]
    source = write(tmp_path / "source.onnx", nodes, {"filters": kernel, "kernel": draw.normal(size=(6, 2)).astype(np.float32)})
    images = draw.uniform(size=(50, 1, 1, 2)).astype(np.float32)
    name = runtime.convert(source, "onnx", tmp_path, row, images if row == "static_int8" else None)
    floats = [t.name for t in onnx.load(str(tmp_path / name)).graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) > 1]
    assert floats == []
    np.testing.assert_allclose(predict(tmp_path / name, images), predict(source, images), atol=0.05)


def test_float16_stores_half_precision_and_takes_float32(tmp_path):
    source = gemm(tmp_path / "source.onnx", np.array([[0.1, 1e-9], [1, 60000]], np.float32))
    name = runtime.convert(source, "onnx", tmp_path, "float16", None)
    assert {t.data_type for t in onnx.load(str(tmp_path / name)).graph.initializer} == {TensorProto.FLOAT16}
    np.testing.assert_allclose(predict(tmp_path / name, [[1, 0], [0, 1]]), [[1.1, -1], [2, 59999]], rtol=2e-3)


def test_float32_is_the_file_itself(tmp_path):
    source = gemm(tmp_path / "source.onnx", np.eye(2, dtype=np.float32))
    name = runtime.convert(source, "onnx", tmp_path, "float32", None)
    assert (tmp_path / name).read_bytes() == source.read_bytes()


@pytest.mark.parametrize(("row", "value", "message"), [
    ("float16", 70000, "source.onnx: kernel exceeds the range of float16"),
    ("weight_only_int8", np.nan, "source.onnx: kernel is not finite"),
    ("dynamic_int8", np.inf, "source.onnx: kernel is not finite"),
])
def test_weights_out_of_range_are_refused(tmp_path, row, value, message):
    source = gemm(tmp_path / "source.onnx", np.array([[1, 2], [3, value]], np.float32))
    with pytest.raises(ValueError, match=message):
        runtime.convert(source, "onnx", tmp_path, row, None)


def test_nothing_to_quantize_is_refused(tmp_path):
    source = write(tmp_path / "source.onnx", [helper.make_node("Flatten", ["input"], ["logits"])], {})
    with pytest.raises(ValueError, match=r"source.onnx has no Conv, Gemm or MatMul"):
        runtime.convert(source, "onnx", tmp_path, "dynamic_int8", None)


def test_unknown_operator_is_named(tmp_path):
    source = write(tmp_path / "source.onnx", [helper.make_node("Frobnicate", ["input"], ["logits"], domain="other")], {})
    with pytest.raises(ValueError, match=r"source.onnx.*Frobnicate"):
        runtime.convert(source, "onnx", tmp_path, "float32", None)


def test_weights_in_a_second_file_are_refused(tmp_path):
    source = gemm(tmp_path / "source.onnx", np.ones((2, 2), np.float32))
    onnx.save(onnx.load(str(source)), str(source), save_as_external_data=True, location="weights.bin", size_threshold=0)
    with pytest.raises(ValueError, match=r"source.onnx keeps kernel, bias in a second file"):
        runtime.convert(source, "onnx", tmp_path / "..", "float32", None)


def test_another_number_of_classes_is_refused(tmp_path):
    source = gemm(tmp_path / "source.onnx", np.eye(2, dtype=np.float32))
    with pytest.raises(ValueError, match="gives 2 logits, not 10"):
        runtime.open(source, 1, {"classes": 10})
