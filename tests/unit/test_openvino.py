"""OpenVINO in its own toolchain, on networks of a few operators whose outputs can be worked out by hand."""

import json
import os
import subprocess

import numpy as np
import pytest

from sweep import toolchain
from sweep.errors import Raised
from sweep.installation import state
from sweep.runtimes._openvino_options import CONVERSION, SERVING
from sweep.workers import Limits, Pool, Shape

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402  after the skip

LIMITS = Limits(seconds=120.0, memory_bytes=8 << 30)
CORNERS = np.array([[1, 0], [0, 1]], np.float32)


@pytest.fixture(scope="module")
def installed():
    definition = toolchain.definitions()["openvino"]
    if state(definition).word != "ready":
        pytest.skip("python -m sweep.toolchains install openvino")
    return toolchain.of(definition)


@pytest.fixture(scope="module")
def worker(installed, tmp_path_factory):
    log, pool = tmp_path_factory.mktemp("log") / "log.txt", Pool(keep=0, recycle_bytes=0)
    log.touch()
    with pool.fresh(Shape(installed), log) as process:
        yield lambda function, **arguments: process.call("sweep.stages." + function, arguments, LIMITS, log)[0]
    pool.close()


def defaults(options):
    return {name: option["default"] for name, option in options.items()}


class Model:
    """A source in a folder, deployed by the stages' own functions."""

    def __init__(self, worker, folder, source, inputs, outputs):
        self.worker, self.folder, self.source = worker, folder, source
        self.deployed = folder / "deployed"
        details = {"format": "onnx", "file": source.name, "layers": None, "input_shape": list(inputs[1:]), "output_shape": outputs}
        (folder / "model.json").write_text(json.dumps(details))

    def settings(self, row="float32", options=(), serving=()):
        return {
            "step": "deploy", "module": "openvino", "runtime": "openvino", "threads": 1, "seed": 0, "quantization": row,
            "quantization_options": {"samples": None, "draw": 0} | defaults(CONVERSION[row]) | dict(options), "options": defaults(SERVING) | dict(serving),
        }

    def convert(self, row="float32", seen=None, **options):
        """The model itself, with its deployed folder filled; `seen` are calibration inputs."""
        self.deployed.mkdir(exist_ok=True)
        data = {"folder": str(self.folder), "splits": str(self.folder / "splits.npz")}
        if seen is not None:
            np.save(self.folder / "x_train.npy", seen)
            np.savez(data["splits"], calibration=np.arange(len(seen)), train=np.arange(len(seen)))
        settings = self.settings(row, options)
        self.worker("convert:run", settings=settings, model=str(self.folder), data=data, out=str(self.deployed))
        return self

    def predict(self, *batches, **serving):
        """Outputs for each batch in turn by one session, and what it says of itself."""
        np.savez(self.folder / "inputs.npz", **{str(place): batch for place, batch in enumerate(batches)})
        paths = {"model": str(self.deployed), "arrays_file": str(self.folder / "inputs.npz"), "out": str(self.folder)}
        runs = self.worker("evaluate:predict", settings=self.settings(serving=serving), **paths)["runs"]
        with np.load(self.folder / "logits.npz") as logits:
            return [logits[str(place)] for place in range(len(batches))], runs

    def tensors(self, inputs, **serving):
        """What `layer_outputs` gives, with the deployed model's own outputs."""
        np.save(self.folder / "inputs.npy", inputs)
        self.worker("diagnose:deployed_side", settings=self.settings(serving=serving), model=str(self.deployed), out=str(self.folder))
        names = json.loads((self.folder / "tensors.json").read_text())
        with np.load(self.folder / "tensors.npz") as values:
            return dict(zip(names, (values[key] for key in values.files), strict=True)), np.load(self.folder / "tensors_outputs.npy")


@pytest.fixture
def make(worker, tmp_path):
    """Writes an ONNX file of nodes, weights by name, and shapes of inputs and outputs by name; `types` are the inputs'."""

    def write(nodes, weights, inputs, outputs, expected, types=(TensorProto.FLOAT,)):
        graph = helper.make_graph(
            nodes, "net", [helper.make_tensor_value_info(name, kind, shape) for (name, shape), kind in zip(inputs.items(), types, strict=True)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            [numpy_helper.from_array(array, name) for name, array in weights.items()],
        )
        source = tmp_path / "source.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), str(source))
        return Model(worker, tmp_path, source, next(iter(inputs.values())), expected)

    return write


@pytest.fixture
def product(make):
    """x K + b for a kernel (in, out), from and to two axes."""

    def write(kernel, bias=None):
        bias = np.zeros(kernel.shape[1], np.float32) if bias is None else bias
        nodes = [helper.make_node("Gemm", ["x", "kernel", "bias"], ["y"], name="last")]
        weights = {"kernel": np.asarray(kernel, np.float32), "bias": np.asarray(bias, np.float32)}
        return make(nodes, weights, {"x": ["n", len(kernel)]}, {"y": ["n", kernel.shape[1]]}, [kernel.shape[1]])

    return write


@pytest.fixture
def convolution(make):
    """A convolution (1 x 2), its maximum with 0 and a matrix product, on images (N, 2, 1, 4) as the file's own layout has them."""
    draw = np.random.RandomState(0)
    weights = {"filters": draw.normal(size=(3, 2, 1, 2)).astype(np.float32), "kernel": draw.normal(size=(9, 2)).astype(np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "filters"], ["maps"], name="first"), helper.make_node("Relu", ["maps"], ["positive"]),
        helper.make_node("Flatten", ["positive"], ["flat"]), helper.make_node("MatMul", ["flat", "kernel"], ["y"], name="last"),
    ]
    model = make(nodes, weights, {"x": ["n", 2, 1, 4]}, {"y": ["n", 2]}, [2])
    model.images = draw.uniform(size=(50, 2, 1, 4)).astype(np.float32)
    windows = np.stack([model.images[:, :, 0, at:at + 2] for at in range(3)], axis=1)
    model.maps = np.einsum("npct,oct->nop", windows, weights["filters"][:, :, 0])[:, :, np.newaxis]
    model.exact = np.maximum(model.maps, 0).reshape(50, 9) @ weights["kernel"]
    return model


def test_float32_is_float32_on_a_processor_with_bfloat16_too(product):
    (output,), runs = product(np.array([[1 + 2.0 ** -20, 2], [3, 4]]), [0.5, -1]).convert().predict(CORNERS)
    assert output.dtype == np.float32
    assert output.tolist() == [[1.5 + 2.0 ** -20, 1], [3.5, 3]]
    assert (runs["precision"], runs["threads"], runs["streams"], runs["stored"]) == ("f32", 1, 1, {"f32": 6})


def test_bfloat16_where_it_is_asked_for_or_left_to_the_library(product):
    model = product(np.array([[1 + 2.0 ** -10, 0], [0, 1]])).convert()
    (left,), runs = model.predict(CORNERS, precision="auto")
    if runs["precision"] != "bf16":
        pytest.skip("this processor has no bfloat16")
    (asked,), runs = model.predict(CORNERS, precision="bf16")
    assert runs["precision"] == "bf16"
    assert left.tolist() == asked.tolist() == CORNERS.tolist()  # eight bits: the last ten are gone
    assert model.predict(CORNERS, precision="auto", execution_mode="accuracy")[0][0].tolist() == [[1 + 2.0 ** -10, 0], [0, 1]]


def test_float16_is_of_the_file_alone(product):
    (output,), runs = product(np.array([[1 + 2.0 ** -12, 2.0 ** -20], [3, 60000]])).convert("float16").predict(CORNERS + np.float32(2.0 ** -12))
    assert "f32" not in runs["stored"]
    assert runs["precision"] == "f32"
    np.testing.assert_allclose(output, (CORNERS + 2.0 ** -12) @ np.array([[1, 2.0 ** -20], [3, 60000]]), rtol=1e-6)


@pytest.mark.parametrize(("scheme", "stored"), [("symmetric", "i8"), ("asymmetric", "u8")])
def test_weight_only_int8_has_a_scale_by_output(product, scheme, stored):
    # scales 0.01 and 0.02 (as float16), or (1.27 + 0.502) / 255 and (2.54 - 0) / 255
    kernel = np.array([[1.27, 0.635], [-0.502, 2.54]], np.float32)
    (output,), runs = product(kernel).convert("weight_only_int8", scheme=scheme).predict(CORNERS)
    assert runs["stored"][stored] >= 4
    np.testing.assert_allclose(output, kernel, atol=0.011)
    assert np.abs(output - kernel).max() > 1e-4


def test_activations_that_meet_compressed_weights_stay_float32(product):
    draw = np.random.RandomState(0)
    model = product(draw.normal(size=(256, 8))).convert("weight_only_int8")
    left, right = draw.normal(size=(2, 64, 256)).astype(np.float32)
    (both, one, other), runs = model.predict(left + right, left, right)
    assert runs["dynamic_quantization_group_size"] == 0
    assert np.abs(both - one - other).max() < 1e-4  # an 8-bit activation is off by some 0.01, which is not linear
    assert model.predict(left, dynamic_quantization_group_size=32)[1]["dynamic_quantization_group_size"] == 32


def test_weights_that_can_not_have_4_bits_are_named(convolution):
    with pytest.raises(Raised, match=r"ValueError: .*source.onnx: weight_only_int4 left weights as they were: first \(f32\)"):
        convolution.convert("weight_only_int4")
    (output,), runs = convolution.convert("weight_only_int4", backup="int8").predict(convolution.images)
    assert runs["stored"]["u8"] >= 12
    assert runs["stored"]["u4"] >= 18
    np.testing.assert_allclose(output, convolution.exact, atol=1.5)  # a step of a weight is some 0.25


def test_static_int8_runs_on_8_bit_kernels(convolution):
    (output,), runs = convolution.convert("static_int8", convolution.images, calibration="minmax").predict(convolution.images)
    assert runs["stored"]["i8"] == 30
    assert [count for kernel, count in runs["kernels"].items() if kernel.startswith(("Convolution", "FullyConnected")) and "8" in kernel] == [1, 1]
    np.testing.assert_allclose(output, convolution.exact, atol=0.15)  # outputs reach 14


@pytest.mark.parametrize(
    ("options", "end"),
    [({}, 2), ({"calibration": "minmax"}, 101), ({"calibration_batch": 100}, 101), ({"bias_correction": "full", "granularity": "tensor"}, 2)],
)
def test_the_range_of_an_activation_is_the_mean_of_its_ends_over_the_batches(product, options, end):
    """99 inputs end at 1 and one at 101, so that their mean is 2, and in one batch they end at 101."""
    seen = np.ones((100, 2), np.float32)
    seen[7] = 101
    (output,), _runs = product(CORNERS).convert("static_int8", seen, **options).predict(np.float32([[1, 1], [101, 101]]))
    np.testing.assert_allclose(output[1], end, rtol=0.02)
    np.testing.assert_allclose(output[0], 1, atol=end / 255 + 0.02)


@pytest.mark.parametrize("shapes", ["dynamic", "static"])
def test_any_batch_size(convolution, shapes):
    given = [convolution.images[:count] for count in (1, 3, 50, 1)]
    found, runs = convolution.convert().predict(*given, shapes=shapes)
    assert runs["shapes"] == shapes
    for output in found:
        np.testing.assert_allclose(output, convolution.exact[:len(output)], rtol=1e-5, atol=1e-6)


def test_outputs_are_joined_in_the_files_order(make):
    nodes = [helper.make_node("Add", ["x", "x"], ["twice"]), helper.make_node("Mul", ["x", "x"], ["squared"])]
    model = make(nodes, {}, {"x": ["n", 2, 1]}, {"squared": ["n", 2, 1], "twice": ["n", 2, 1]}, None)
    (output,), _runs = model.convert().predict(np.float32([[[3], [5]]]))
    assert output.tolist() == [[9, 25, 6, 10]]


def test_a_batch_that_is_fixed_at_1(make):
    model = make([helper.make_node("Add", ["x", "x"], ["y"])], {}, {"x": [1, 2]}, {"y": [1, 2]}, [2]).convert()
    assert model.predict(np.float32([[1, 2], [3, 4], [5, 6]]))[0][0].tolist() == [[2, 4], [6, 8], [10, 12]]
    tensors, _outputs = model.tensors(np.float32([[1, 2], [3, 4]]))
    assert tensors["y"].tolist() == [[2, 4], [6, 8]]


@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64])
def test_token_ids_are_int32(make, kind):
    table = np.float32([[0, 1], [10, 11], [20, 21]])
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    model = make(nodes, {"table": table}, {"x": ["n", 3]}, {"y": ["n", 3, 2]}, [3, 2], [kind]).convert()
    assert model.predict(np.int32([[2, 0, 1]]))[0][0].tolist() == [[[20, 21], [0, 1], [10, 11]]]


def test_layer_outputs_are_what_is_between(convolution):
    tensors, outputs = convolution.convert().tensors(convolution.images)
    assert list(tensors) == ["maps", "positive", "flat", "y"]
    np.testing.assert_allclose(tensors["maps"], convolution.maps, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tensors["positive"], np.maximum(convolution.maps, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tensors["y"], outputs, rtol=1e-6)


@pytest.mark.parametrize("shapes", ["dynamic", "static"])
def test_layer_outputs_of_an_8_bit_file_are_not_scaled_twice(convolution, shapes):
    """What follows a convolution that is an output too comes out of the library as if it were times its scale once more."""
    tensors, outputs = convolution.convert("static_int8", convolution.images, calibration="minmax").tensors(convolution.images, shapes=shapes)
    assert {"maps", "positive", "flat", "y"} < set(tensors)
    np.testing.assert_allclose(tensors["maps"], convolution.maps, atol=0.05)
    np.testing.assert_allclose(tensors["positive"], np.maximum(convolution.maps, 0), atol=0.05)
    assert np.array_equal(tensors["y"], outputs)


def test_the_same_source_gives_the_same_files(convolution):
    written = []
    for _again in range(2):
        convolution.convert("static_int8", convolution.images)
        written.append([(convolution.deployed / "openvino" / name).read_bytes() for name in ("model.xml", "model.bin")])
    assert written[0] == written[1]


@pytest.mark.parametrize("name", ["model.xml", "model.bin"])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_deployed_file_that_is_cut_short(product, name, kept):
    model = product(np.ones((64, 2))).convert()
    path = model.deployed / "openvino" / name
    path.write_bytes(path.read_bytes()[:int(kept * path.stat().st_size)])
    with pytest.raises(Raised, match="LoadFailed: ValueError: .*/deployed/openvino: "):
        model.predict(np.ones((1, 64), np.float32))


def test_a_source_that_is_cut_short(product):
    model = product(CORNERS)
    model.source.write_bytes(model.source.read_bytes()[:-20])
    with pytest.raises(Raised, match="ValueError: .*source.onnx: "):
        model.convert()


def test_an_operator_that_does_not_exist(make):
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="nowhere")
    with pytest.raises(Raised, match="ValueError: .*source.onnx: .*Frobnicate"):
        make([node], {}, {"x": ["n", 2]}, {"y": ["n", 2]}, [2]).convert()


def test_a_product_with_a_scaled_input_is_no_constant(make):
    """The second operand of the product is the scaled input turned round, so that there is no weight to quantize."""
    nodes = [
        helper.make_node("Mul", ["scale", "x"], ["scaled"]), helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["scaled", "turned"], ["y"]),
    ]
    model = make(nodes, {"scale": np.ones((1, 2, 2), np.float32)}, {"x": ["n", 2, 2]}, {"y": ["n", 2, 2]}, [2, 2])
    with pytest.raises(Raised, match="has no convolution, matrix product, recurrent layer or table with constant weights"):
        model.convert("weight_only_int8")
    assert model.convert("float16").predict(np.float32([[[1, 2], [3, 4]]]))[0][0].tolist() == [[[5, 11], [11, 25]]]


def test_two_inputs(make):
    inputs = {"x": ["n", 2], "z": ["n", 2]}
    with pytest.raises(Raised, match=r"ValueError: .*source.onnx: has 2 inputs, not one"):
        make([helper.make_node("Add", ["x", "z"], ["y"])], {}, inputs, {"y": ["n", 2]}, [2], [TensorProto.FLOAT] * 2).convert()


@pytest.mark.parametrize(
    ("weight", "row", "message"),
    [
        (np.nan, "weight_only_int8", "weights of y are not finite"), (np.inf, "float16", "weights of y are not finite"),
        (70000, "float16", "weights of y exceed the range of float16"),
    ],
)
def test_weights_that_a_row_can_not_hold(product, weight, row, message):
    with pytest.raises(Raised, match=f"ValueError: .*source.onnx: {message}"):
        product(np.array([[weight, 1], [1, 1]])).convert(row)


def test_another_output_or_input_than_the_details_say(product):
    model = product(CORNERS).convert()
    details = json.loads((model.deployed / "model.json").read_text())
    for changed, message in (({"output_shape": [3]}, r"gives outputs of shape \(2,\), not \(3,\)"), ({"input_shape": [5]}, r"of shape \(1, 5\)")):
        (model.deployed / "model.json").write_text(json.dumps(details | changed))
        with pytest.raises(Raised, match=f"LoadFailed: ValueError: .*/openvino.* {message}"):
            model.predict(CORNERS)


def test_inputs_of_another_shape_or_type(product):
    model = product(CORNERS).convert()
    with pytest.raises(Raised, match=r"ValueError: inputs are of shape \(2, 3\), and the model takes \[\?,2\]"):
        model.predict(np.ones((2, 3), np.float32))
    with pytest.raises(Raised, match="TypeError: inputs are float64, and the model takes float32"):
        model.predict(np.ones((2, 2)))


def test_nothing_is_reported_to_the_maker(installed, tmp_path):
    environment = os.environ | installed.environment() | {"HOME": str(tmp_path)}
    code = "import sys, sweep.runtimes.openvino, sweep.runtimes._openvino_quantize; print(sys.modules['openvino_telemetry'])"
    done = subprocess.run([*installed.command, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "None"), done.stderr
    assert list(tmp_path.iterdir()) == []
