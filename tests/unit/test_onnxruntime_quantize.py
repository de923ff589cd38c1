"""Quantized ONNX files, on networks of one or two operators whose integers can be worked out by hand."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("sweep.runtimes.onnxruntime", reason="ONNX Runtime is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402  after the skip

DETAILS = {"input_shape": [1, 1, 2], "input_dtype": "float32", "output_shape": [2]}
DEFAULTS = {
    row: {name: option["default"] for name, option in options.items()} for row, options in runtime.FACTS["quantizations"].items()
}


def write(path, nodes, weights, size=2, opset=18, dtype=TensorProto.FLOAT):
    """A file with input (N, 1, 1, size), or (N, size) of integers, and output (N, 2)."""
    shape = ["n", 1, 1, size] if dtype == TensorProto.FLOAT else ["n", size]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("input", dtype, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), str(path))
    return path


def gemm(path, kernel, transposed=False, opset=18):
    nodes = [
        helper.make_node("Flatten", ["input"], ["flat"]),
        helper.make_node("Gemm", ["flat", "kernel", "bias"], ["logits"], name="last", transB=int(transposed)),
    ]
    weights = {"kernel": kernel.T.copy() if transposed else kernel, "bias": np.array([1, -1], np.float32)}
    return write(path, nodes, weights, len(kernel), opset)


def convert(source, row, inputs=None, **settings):
    return source.parent / runtime.convert(source, "onnx", source.parent, row, inputs, {**DEFAULTS[row], **settings})


def predict(path, inputs):
    inputs = np.asarray(inputs, np.float32)
    details = dict(DETAILS, input_shape=[1, 1, inputs.shape[-1]])
    return runtime.predict(runtime.open(path, 1, details), inputs.reshape(-1, 1, 1, inputs.shape[-1]))


def stored(path):
    """The arrays of a file by the type they are stored in."""
    found = {}
    for tensor in onnx.load(str(path)).graph.initializer:
        found.setdefault(TensorProto.DataType.Name(tensor.data_type), []).append(numpy_helper.to_array(tensor))
    return found


def operators(path):
    return [node.op_type for node in onnx.load(str(path)).graph.node]


@pytest.mark.parametrize("transposed", [False, True])
def test_weight_only_integers_are_symmetric_by_output_channel(tmp_path, transposed):
    # column scales 0.01 and 0.02, so 1.27 -> 127, -0.502 -> -50, 2.54 -> 127, 0.635 -> 32 (31.75)
    source = gemm(tmp_path / "source.onnx", np.array([[1.27, 0.635], [-0.502, 2.54]], np.float32), transposed)
    path = convert(source, "weight_only_int8")
    integers = next(array for array in stored(path)["INT8"] if array.ndim == 2)
    assert (integers.T if transposed else integers).tolist() == [[127, 32], [-50, 127]]
    np.testing.assert_allclose(predict(path, [[1, 0], [0, 1]]), [[2.27, -0.36], [0.5, 1.54]], rtol=1e-6)


def test_weight_only_keeps_a_channel_of_zeros(tmp_path):
    source = gemm(tmp_path / "source.onnx", np.array([[1, 0], [1, 0]], np.float32))
    np.testing.assert_allclose(predict(convert(source, "weight_only_int8"), [[1, 1]]), [[3, -1]], rtol=1e-6)


@pytest.mark.parametrize("transposed", [False, True])
def test_four_bits_by_channel(tmp_path, transposed):
    # column scales 0.1 and 0.2: 0.7 -> 7, -0.34 -> -3, 1.4 -> 7, 0.31 -> 2 (1.55)
    source = gemm(tmp_path / "source.onnx", np.array([[0.7, 0.31], [-0.34, 1.4]], np.float32), transposed)
    path = convert(source, "weight_only_int4")
    integers = next(array for array in stored(path)["INT4"] if array.ndim == 2).astype(int)
    assert (integers.T if transposed else integers).tolist() == [[7, 2], [-3, 7]]
    np.testing.assert_allclose(predict(path, [[1, 0], [0, 1]]), [[1.7, -0.6], [0.7, 0.4]], rtol=1e-6)


@pytest.mark.parametrize("transposed", [False, True])
def test_four_bits_by_block_have_a_scale_for_every_32_inputs(tmp_path, transposed):
    kernel = np.zeros((40, 2), np.float32)
    kernel[:32], kernel[32:] = 0.7, [7, 3.5]
    path = convert(gemm(tmp_path / "source.onnx", kernel, transposed), "weight_only_int4", granularity="block")
    scales = next(array for array in stored(path)["FLOAT"] if array.shape == ((2, 2)))
    np.testing.assert_allclose(scales.T if transposed else scales, [[0.1, 0.1], [1, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(predict(path, np.eye(40)[[0, 39]]), [[1.7, -0.3], [8, 2.5]], rtol=1e-6)


@pytest.mark.parametrize(("bits", "kind", "levels"), [(4, "UINT4", [0, 15, 5, 10]), (8, "UINT8", [0, 255, 85, 170])])
def test_linear_levels_lie_between_the_least_and_the_largest(tmp_path, bits, kind, levels):
    # steps of 1/5 and 1/85 from -1 to 2: every weight is one of them
    source = gemm(tmp_path / "source.onnx", np.array([[-1, 2], [0, 1]], np.float32))
    path = convert(source, "linear", bits=bits)
    assert next(array for array in stored(path)[kind] if array.ndim == 2).astype(int).ravel().tolist() == levels
    np.testing.assert_allclose(predict(path, [[1, 0], [0, 1]]), [[0, 1], [1, 0]], atol=1e-6)


def test_linear_takes_biases_too_and_each_channel_may_have_a_range(tmp_path):
    source = gemm(tmp_path / "source.onnx", np.array([[-1, 0], [2, 30]], np.float32))
    path = convert(source, "linear", bits=4, granularity="channel", rounding="down")
    assert sorted(array.astype(int).ravel().tolist() for array in stored(path)["UINT4"] if array.any()) == [[0, 0, 15, 15], [15, 0]]
    np.testing.assert_allclose(predict(path, [[1, 0], [0, 1]]), [[0, -1], [3, 29]], atol=1e-5)


def test_fewer_bits_make_a_smaller_file(tmp_path):
    source = gemm(tmp_path / "source.onnx", np.random.RandomState(0).normal(size=(4000, 2)).astype(np.float32))
    sizes = [source.stat().st_size]
    for row, settings in (("linear", {"bits": 16}), ("linear", {"bits": 8}), ("linear", {"bits": 4})):
        sizes.append(convert(source, row, **settings).stat().st_size)
    assert [round(sizes[0] / size) for size in sizes] == [1, 2, 4, 6]  # 8,000 weights, and some hundred bytes for everything else
    assert convert(source, "weight_only_int4").stat().st_size < sizes[0] / 6
    assert convert(source, "weight_only_int8").stat().st_size < sizes[0] / 3.7


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize("row", ["dynamic_int8", "static_int8", "int16x8", "weight_only_int8", "weight_only_int4", "linear"])
def test_convolution_and_product_are_both_quantized(tmp_path, row, opset):
    draw = np.random.RandomState(0)
    kernel = draw.normal(size=(3, 1, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["input", "filters"], ["maps"], name="first"),
        helper.make_node("Flatten", ["maps"], ["flat"]),
        helper.make_node("MatMul", ["flat", "kernel"], ["logits"], name="last"),
    ]
    weights = {"filters": kernel, "kernel": draw.normal(size=(6, 2)).astype(np.float32)}
    source = write(tmp_path / "source.onnx", nodes, weights, opset=opset)
    images = draw.uniform(size=(50, 1, 1, 2)).astype(np.float32)
    path = convert(source, row, images if row in runtime.FACTS["calibrated"] else None)
    floats = [array for array in stored(path)["FLOAT"] if array.shape in {(3, 1, 1, 1), (6, 2)}]
    assert floats == []
    np.testing.assert_allclose(predict(path, images[:, 0, 0]), predict(source, images[:, 0, 0]), atol=0.5 if "int4" in row else 0.05)


@pytest.mark.parametrize(("granularity", "shapes"), [("tensor", [(), ()]), ("matrix_channel", [(), (2,)])])
def test_dynamic_convolutions_have_one_scale_whatever_is_asked(tmp_path, granularity, shapes):
    nodes = [
        helper.make_node("Conv", ["input", "filter"], ["conv"], name="conv"), helper.make_node("Flatten", ["conv"], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], ["logits"], name="matmul"),
    ]
    weights = {"filter": np.array([1, 4], np.float32).reshape(2, 1, 1, 1), "matrix": np.array([[1, 2], [3, -4], [1, 1], [2, 2]], np.float32)}
    path = convert(write(tmp_path / "source.onnx", nodes, weights), "dynamic_int8", granularity=granularity)
    scales = {tensor.name: numpy_helper.to_array(tensor).shape for tensor in onnx.load(str(path)).graph.initializer if "scale" in tensor.name}
    assert [scales["filter_scale"], scales["matrix_scale"]] == shapes


@pytest.mark.parametrize("row", ["static_int8", "int16x8"])
@pytest.mark.parametrize("calibration", ["minmax", "entropy", "percentile"])
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_static_rows_take_every_setting(tmp_path, row, calibration, granularity):
    draw = np.random.RandomState(0)
    source = gemm(tmp_path / "source.onnx", draw.normal(size=(2, 2)).astype(np.float32))
    images = draw.uniform(size=(150, 1, 1, 2)).astype(np.float32)  # a batch of 100 and one of 50
    path = convert(source, row, images, calibration=calibration, granularity=granularity)
    scales = [array.shape for array in stored(path)["FLOAT"] if array.shape != (2, 2)]
    assert ((2,) in scales) == (granularity == "channel")
    np.testing.assert_allclose(predict(path, images[:, 0, 0]), predict(source, images[:, 0, 0]), atol=0.1)


def test_range_is_that_of_the_calibration_images(tmp_path):
    source = gemm(tmp_path / "source.onnx", np.eye(2, dtype=np.float32))
    path = convert(source, "static_int8", np.array([[0, 0], [2, 1]], np.float32).reshape(2, 1, 1, 2), activations="uint8")
    largest = 3.0  # of the logits: 2 + 1, and -1 is the least, so 255 steps of 4 / 255
    np.testing.assert_allclose(predict(path, [[100, -100]]), [[largest, -1]], atol=0.01)


EMBEDDED = [
    helper.make_node("Gather", ["table", "input"], ["vectors"], name="embedding"),
    helper.make_node("ReduceSum", ["vectors", "axes"], ["logits"], keepdims=0),
]


@pytest.mark.parametrize("row", ["weight_only_int8", "linear"])
def test_only_the_rows_that_are_looked_up_are_dequantized(tmp_path, row):
    weights = {"table": np.array([[1, 2], [3, 4], [5, 6], [-3, -6]], np.float32), "axes": np.array([1])}
    source = write(tmp_path / "source.onnx", EMBEDDED, weights, 3, dtype=TensorProto.INT32)
    path = convert(source, row)
    assert operators(path)[:2] == ["Gather", "DequantizeLinear"]
    session = runtime.open(path, 1, {"input_shape": [3], "input_dtype": "int32", "output_shape": [2]})
    np.testing.assert_allclose(runtime.predict(session, np.array([[0, 2, 2], [1, 1, 3]], np.int32)), [[11, 14], [3, 2]], atol=0.1)


def recurrent(path, operator):
    draw, gates, units = np.random.RandomState(0), {"LSTM": 4, "GRU": 3}[operator], 8
    nodes = [
        helper.make_node("Squeeze", ["input", "one"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["steps"], perm=[1, 0, 2]),
        helper.make_node(operator, ["steps", "W", "R", "B"], ["", "last"], name="cell", hidden_size=units),
        helper.make_node("Squeeze", ["last", "zero"], ["state"]),
        helper.make_node("MatMul", ["state", "kernel"], ["logits"], name="last"),
    ]
    weights = {
        "W": draw.normal(size=(1, gates * units, 2)), "R": draw.normal(size=(1, gates * units, units)),
        "B": draw.normal(size=(1, 2 * gates * units)), "kernel": draw.normal(size=(units, 2)),
    }
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    return write(path, nodes, {**weights, "one": np.array([1]), "zero": np.array([0])})


@pytest.mark.parametrize(("operator", "row", "atol"), [
    ("LSTM", "dynamic_int8", 0.05), ("LSTM", "weight_only_int8", 0.03), ("GRU", "weight_only_int8", 0.03), ("GRU", "weight_only_int4", 0.4),
    ("LSTM", "linear", 3e-4), ("GRU", "float16", 4e-3),
])
def test_recurrent_weights_are_quantized(tmp_path, operator, row, atol):
    source = recurrent(tmp_path / "source.onnx", operator)
    path, inputs = convert(source, row), np.random.RandomState(1).uniform(size=(20, 2))
    assert not [array for array in stored(path).get("FLOAT", []) if array.size >= 64 and array.ndim == 3]
    np.testing.assert_allclose(predict(path, inputs), predict(source, inputs), atol=atol)


@pytest.mark.parametrize(("operator", "row"), [("GRU", "dynamic_int8"), ("LSTM", "static_int8"), ("GRU", "int16x8")])
def test_recurrent_layer_without_an_integer_kernel_is_named(tmp_path, operator, row):
    images = np.ones((4, 1, 1, 2), np.float32)
    with pytest.raises(ValueError, match=f"source.onnx: {row} can't quantize {operator} cell"):
        convert(recurrent(tmp_path / "source.onnx", operator), row, images if row != "dynamic_int8" else None)


def looped(path, in_body):
    """logits = 3 x (input x kernel + 1): a loop of three steps whose kernel is the body's own or handed in. The one is the graph's."""
    kernel = numpy_helper.from_array(np.array([[1.27, 0.635], [-0.5, 2.54]], np.float32), "kernel")
    pair, flag = TensorProto.FLOAT, TensorProto.BOOL
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["flat", "kernel" if in_body else "inner"], ["product"], name="product"),
            helper.make_node("Sum", ["sum", "product", "captured"], ["more"]), helper.make_node("Identity", ["go"], ["on"]),
        ] + ([] if in_body else [helper.make_node("Identity", ["inner"], ["same"])]), "body",
        [helper.make_tensor_value_info("step", TensorProto.INT64, []), helper.make_tensor_value_info("go", flag, []),
         helper.make_tensor_value_info("sum", pair, ["n", 2])] + ([] if in_body else [helper.make_tensor_value_info("inner", pair, [2, 2])]),
        [helper.make_tensor_value_info("on", flag, []), helper.make_tensor_value_info("more", pair, ["n", 2])]
        + ([] if in_body else [helper.make_tensor_value_info("same", pair, [2, 2])]),
        [kernel] if in_body else [],
    )
    nodes = [
        helper.make_node("Flatten", ["input"], ["flat"]), helper.make_node("Sub", ["flat", "flat"], ["nothing"]),
        helper.make_node("Loop", ["steps", "", "nothing"] + ([] if in_body else ["kernel"]), ["logits"] + ([] if in_body else ["left"]),
                         name="loop", body=body),
    ]
    return write(path, nodes, {"steps": np.array(3), "captured": np.ones(1, np.float32), **({} if in_body else {"kernel": numpy_helper.to_array(kernel)})})


def test_weight_that_a_loop_takes_in_is_quantized(tmp_path):
    path = convert(looped(tmp_path / "source.onnx", in_body=False), "weight_only_int8")
    assert next(array for array in stored(path)["INT8"] if array.ndim == 2).tolist() == [[127, 32], [-50, 127]]
    np.testing.assert_allclose(predict(path, [[1, 0], [0, 1]]), [[6.81, 4.92], [1.5, 10.62]], rtol=1e-5)


def test_weight_within_a_loop_is_refused(tmp_path):
    with pytest.raises(ValueError, match="source.onnx: weight_only_int8 can't quantize MatMul product"):
        convert(looped(tmp_path / "source.onnx", in_body=True), "weight_only_int8")


def test_float16_stores_half_precision_and_takes_float32(tmp_path):
    source = gemm(tmp_path / "source.onnx", np.array([[0.1, 1e-9], [1, 60000]], np.float32))
    path = convert(source, "float16")
    assert set(stored(path)) == {"FLOAT16"}
    np.testing.assert_allclose(predict(path, [[1, 0], [0, 1]]), [[1.1, -1], [2, 59999]], rtol=2e-3)


def test_float16_does_not_round_integers(tmp_path):
    # 2,049 is no float16: as one, neither id would be below it. The limit is shared by a comparison and by a product in float16.
    nodes = [
        helper.make_node("Cast", ["input"], ["ids"], to=TensorProto.FLOAT),
        helper.make_node("Less", ["ids", "limit"], ["below"]),
        helper.make_node("Cast", ["below"], ["flags"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["flags", "limit"], ["logits"]),
    ]
    source = write(tmp_path / "source.onnx", nodes, {"limit": np.array([2049, 8], np.float32)}, dtype=TensorProto.INT32)
    session = runtime.open(convert(source, "float16"), 1, {"input_shape": [2], "input_dtype": "int32", "output_shape": [2]})
    assert runtime.predict(session, np.array([[2048, 0], [2049, -1]], np.int32)).tolist() == [[2048, 8], [0, 8]]


def test_float16_output_that_is_read_too(tmp_path):
    source = gemm(tmp_path / "source.onnx", np.eye(2, dtype=np.float32))
    model = onnx.load(str(source))
    model.graph.node.append(helper.make_node("Relu", ["logits"], ["positive"]))
    model.graph.output.append(helper.make_tensor_value_info("positive", TensorProto.FLOAT, ["n", 2]))
    onnx.save(model, str(source))
    session = runtime.open(convert(source, "float16"), 1, dict(DETAILS, output_shape=None))
    assert runtime.predict(session, np.array([[1, 0]], np.float32).reshape(1, 1, 1, 2)).tolist() == [[2, -1, 2, 0]]


def test_float32_is_the_file_itself(tmp_path):
    source = gemm(tmp_path / "source.onnx", np.eye(2, dtype=np.float32))
    assert convert(source, "float32").read_bytes() == source.read_bytes()


@pytest.mark.parametrize(("row", "value", "message"), [
    ("float16", 70000, "source.onnx: kernel exceeds the range of float16"),
    ("weight_only_int8", np.nan, "source.onnx: kernel is not finite"),
    ("dynamic_int8", np.inf, "source.onnx: kernel is not finite"),
])
def test_weights_out_of_range_are_refused(tmp_path, row, value, message):
    source = gemm(tmp_path / "source.onnx", np.array([[1, 2], [3, value]], np.float32))
    with pytest.raises(ValueError, match=message):
        convert(source, row)


def test_nothing_to_quantize_is_refused(tmp_path):
    source = write(tmp_path / "source.onnx", [helper.make_node("Flatten", ["input"], ["logits"])], {})
    with pytest.raises(ValueError, match=r"source.onnx has no operator with constant weights"):
        convert(source, "dynamic_int8")


def test_unknown_operator_is_named(tmp_path):
    source = write(tmp_path / "source.onnx", [helper.make_node("Frobnicate", ["input"], ["logits"], domain="other")], {})
    with pytest.raises(ValueError, match=r"source.onnx.*Frobnicate"):
        convert(source, "float32")


def test_weights_in_a_second_file_are_refused(tmp_path):
    source = gemm(tmp_path / "source.onnx", np.ones((2, 2), np.float32))
    onnx.save(onnx.load(str(source)), str(source), save_as_external_data=True, location="weights.bin", size_threshold=0)
    with pytest.raises(ValueError, match=r"source.onnx keeps kernel, bias in a second file"):
        convert(source, "float32")
