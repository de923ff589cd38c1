"""Runtimes of .tflite files on models small enough to be computed by hand."""

import numpy as np
import pytest

from sweep import components

tf = pytest.importorskip("tensorflow")
_litert_file = pytest.importorskip("sweep.runtimes._litert_file")
_litert_tensorflow = pytest.importorskip("sweep.runtimes._litert_tensorflow")

RUNTIMES = ["litert", "tflite"]
CHANNEL, TENSOR = {"granularity": "channel"}, {"granularity": "tensor"}
KERNEL = np.array([[1, 2, 3, 40], [-4, 5, -6, 70]], np.float32)  # the last column's range is ten times that of the others
BIAS = np.array([0.5, -0.5, 0, 1], np.float32)
PAIRS = np.array([[1, 1], [2, -1], [-0.5, 0.25]], np.float32)
DETAILS = {"input_shape": [2], "input_dtype": "float32", "output_shape": [4]}
# 1..16 as 4 x 4, kernel 1 x 3 of 1, 10, 100, stride 2, SAME: one zero column, which is at the right. 1 + 20 + 300; 3 + 40; 9 + 100 + 1100; 11 + 120
WIDE_STRIDE = [321, 43, 1209, 131]


@pytest.fixture(params=RUNTIMES)
def runtime(request):
    module = components.load("runtimes", request.param)
    module.set_options({})
    yield module
    module.set_options({})


@pytest.fixture(scope="module")
def save(tmp_path_factory):
    """A SavedModel of a function of one tensor."""

    def make(function, shape, dtype=tf.float32):
        module = tf.Module()
        module.serve = tf.function(function, input_signature=[tf.TensorSpec(shape, dtype, name="input")])
        path = tmp_path_factory.mktemp("saved") / "saved_model"
        tf.saved_model.save(module, str(path), signatures=module.serve)
        return path

    return make


@pytest.fixture(scope="module")
def dense(save):
    """Pairs to four numbers: a product, a bias and a rectifier."""
    return save(lambda x: {"output": tf.nn.relu(tf.linalg.matmul(x, KERNEL) + BIAS)}, [None, 2])


@pytest.fixture(scope="module")
def dense_file(dense, tmp_path_factory):
    folder = tmp_path_factory.mktemp("file")
    return folder / components.load("runtimes", "litert").convert(dense, "saved_model", folder, "float32", None, {})


@pytest.fixture(scope="module")
def steps(save):
    """Running sums of sequences, gathered step by step as Keras' recurrent layers gather theirs."""

    def sums(x):
        gathered = tf.TensorArray(tf.float32, 3, element_shape=[None, 2])
        _, _, gathered = tf.while_loop(
            lambda step, *_: step < 3,
            lambda step, total, to: (step + 1, total + x[:, step], to.write(step, total + x[:, step])),
            (0, tf.zeros_like(x[:, 0]), gathered),
        )
        return {"output": tf.transpose(gathered.stack(), [1, 0, 2])}

    return save(sums, [None, 3, 2])


def rectified(pairs):
    return np.maximum(pairs.astype(np.float64) @ KERNEL + BIAS, 0)


def stored(path):
    return {weight.type: weight.scales for weight in _litert_file.weights(_litert_file.model(path.read_bytes()))}


@pytest.mark.parametrize("resolver", ["builtin", "reference"])
def test_same_padding_with_a_stride_larger_than_the_kernel(runtime, save, tmp_path, resolver):
    kernel = tf.constant([1, 10, 100], tf.float32, (1, 3, 1, 1))
    path = save(lambda x: tf.nn.depthwise_conv2d(x, kernel, [1, 2, 2, 1], "SAME"), [None, 4, 4, 1])
    images = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4, 1)
    file = tmp_path / runtime.convert(path, "saved_model", tmp_path, "float32", None, {})
    runtime.set_options({"resolver": resolver})
    session = runtime.open(file, 1, {"input_shape": [4, 4, 1], "input_dtype": "float32", "output_shape": [2, 2, 1]})
    assert runtime.predict(session, images).ravel().tolist() == WIDE_STRIDE
    described = runtime.describe(session)
    assert (described["resolver"], described["delegate"], described["operators"]) == (resolver, None, {"DEPTHWISE_CONV_2D": 1})


def test_file_is_copied_and_run_in_batches_of_any_size(runtime, dense_file, tmp_path):
    copied = tmp_path / runtime.convert(dense_file, "tflite", tmp_path, "float32", None, {})
    assert copied.read_bytes() == dense_file.read_bytes()
    session = runtime.open(copied, 1, DETAILS)
    assert runtime.describe(session)["batch"] == "any"
    for batch_size in (1, 2, 256):
        np.testing.assert_allclose(runtime.predict(session, PAIRS, batch_size), rectified(PAIRS), rtol=1e-6)


@pytest.mark.parametrize(
    ("row", "kind", "bits"),
    [("float16", "float16", 11), ("dynamic_int8", "int8", 7), ("static_int8", "int8", 7), ("int16x8", "int8", 7),
     ("weight_only_int8", "int8", 7), ("weight_only_int4", "int4", 3)],
)
def test_weights_of_a_file_are_stored_as_a_row_says(runtime, dense_file, tmp_path, row, kind, bits):
    settings = CHANNEL if runtime.FACTS["quantizations"][row] else {}
    calibration = PAIRS if row in runtime.FACTS["calibrated"] else None
    file = tmp_path / runtime.convert(dense_file, "tflite", tmp_path, row, calibration, settings)
    assert list(stored(file)) == [kind]
    outputs = runtime.predict(runtime.open(file, 1, DETAILS), PAIRS)
    assert outputs.dtype == np.float32
    # half a step of each weight and of each activation, whose largest is 111 and whose inputs are at most 2
    assert np.abs(outputs - rectified(PAIRS)).max() <= 2 * 111 * 2.0 ** -bits


@pytest.mark.parametrize("row", ["static_int8", "weight_only_int8"])  # by the converter, by the quantizer
def test_scales_are_by_channel_or_by_tensor(dense, tmp_path, row):
    litert = components.load("runtimes", "litert")
    calibration = PAIRS if row == "static_int8" else None
    for settings, scales in ((CHANNEL, 4), (TENSOR, 1)):
        file = tmp_path / litert.convert(dense, "saved_model", tmp_path, row, calibration, settings)
        assert stored(file) == {"int8": scales}


def test_layers_outputs_are_computed_by_the_chosen_kernels(runtime, save, tmp_path):
    path = save(lambda x: tf.nn.softmax(tf.linalg.matmul(tf.nn.relu(tf.linalg.matmul(x, KERNEL) + BIAS), np.eye(4, 3, dtype=np.float32))), [None, 2])
    details = dict(DETAILS, output_shape=[3])
    hidden = rectified(PAIRS)
    file = tmp_path / runtime.convert(path, "saved_model", tmp_path, "float32", None, {})
    for resolver in ("xnnpack", "builtin", "reference"):
        runtime.set_options({"resolver": resolver})
        first, second, last = runtime.layer_outputs(file, 1, details, PAIRS).values()
        np.testing.assert_allclose(first, hidden, rtol=1e-6)
        np.testing.assert_allclose(second, hidden[:, :3], rtol=1e-6)
        assert np.array_equal(last, runtime.predict(runtime.open(file, 1, details), PAIRS, 1))


def test_integers_of_layers_are_given_as_the_numbers_they_stand_for(dense, tmp_path):
    litert = components.load("runtimes", "litert")
    file = tmp_path / litert.convert(dense, "saved_model", tmp_path, "static_int8", PAIRS, CHANNEL)
    given, hidden, output = litert.layer_outputs(file, 1, DETAILS, PAIRS).values()  # as integers, as integers, and turned back
    assert np.abs(given - PAIRS).max() <= 3 / 255  # a range of three, rounded
    assert len(np.unique(given)) > 1
    assert np.array_equal(hidden, output)


def test_a_loop_that_gathers_its_steps_takes_one_input_at_a_time(runtime, steps, tmp_path):
    file = tmp_path / runtime.convert(steps, "saved_model", tmp_path, "float32", None, {})
    session = runtime.open(file, 1, {"input_shape": [3, 2], "input_dtype": "float32", "output_shape": [3, 2]})
    sequences = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    assert runtime.describe(session)["batch"] == 1
    assert np.array_equal(runtime.predict(session, sequences), sequences.cumsum(1))


def test_a_loop_is_not_calibrated(steps, tmp_path):
    litert = components.load("runtimes", "litert")
    sequences = np.ones((2, 3, 2), np.float32)
    with pytest.raises(ValueError, match=r"saved_model: its calibration does not enter the loop"):
        litert.convert(steps, "saved_model", tmp_path, "static_int8", sequences, CHANNEL)
    file = tmp_path / litert.convert(steps, "saved_model", tmp_path, "float32", None, {})
    with pytest.raises(ValueError, match=r"model.tflite: calibration does not enter the loop"):
        litert.convert(file, "tflite", tmp_path, "int16x8", sequences, CHANNEL)


def test_nothing_to_quantize_is_refused(save, dense_file, tmp_path):
    litert = components.load("runtimes", "litert")
    path = save(lambda x: x * x, [None, 2])
    for row in ("float16", "weight_only_int4"):  # by the converter, by the quantizer
        with pytest.raises(ValueError, match=f"saved_model: {row} quantized nothing"):
            litert.convert(path, "saved_model", tmp_path, row, None, CHANNEL)
    (tmp_path / litert.convert(dense_file, "tflite", tmp_path, "weight_only_int8", None, CHANNEL)).rename(tmp_path / "small.tflite")
    with pytest.raises(ValueError, match=r"small.tflite is quantized already"):
        litert.convert(tmp_path / "small.tflite", "tflite", tmp_path, "dynamic_int8", None, CHANNEL)


def test_token_ids_are_looked_up(runtime, save, tmp_path):
    table = np.arange(30, dtype=np.float32).reshape(10, 3)
    path = save(lambda ids: tf.reduce_sum(tf.gather(table, ids), 1), [None, 2], tf.int32)
    file = tmp_path / runtime.convert(path, "saved_model", tmp_path, "float32", None, {})
    session = runtime.open(file, 1, {"input_shape": [2], "input_dtype": "int32", "output_shape": [3]})
    assert runtime.predict(session, np.array([[0, 1], [9, 9]], np.int32)).tolist() == [[3, 5, 7], [54, 56, 58]]


def test_several_outputs_stand_side_by_side(runtime, save, tmp_path):
    path = save(lambda x: {"first": x + 1, "second": tf.stack([x, 2 * x], 1)}, [None, 2])
    file = tmp_path / runtime.convert(path, "saved_model", tmp_path, "float32", None, {})
    session = runtime.open(file, 1, dict(DETAILS, output_shape=None))
    assert runtime.predict(session, np.array([[1, 2]], np.float32)).tolist() == [[2, 3, 1, 2, 2, 4]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"output_shape": [5]}, "shape"), ({"input_shape": [3]}, r"shape \(2,\), not \(3,\)"), ({"input_dtype": "int32"}, "takes float32, not int32")],
)
def test_another_model_than_the_details_say_is_refused_by_name(runtime, dense_file, changes, message):
    with pytest.raises(ValueError, match=f"model.tflite.*{message}"):
        runtime.open(dense_file, 1, DETAILS | changes)


def test_other_inputs_than_the_models_are_refused(runtime, dense_file):
    session = runtime.open(dense_file, 1, DETAILS)
    with pytest.raises(ValueError, match="mutating"):
        runtime.predict(session, np.zeros((2, 3), np.float32))
    with pytest.raises(TypeError, match="float64"):
        runtime.predict(session, PAIRS.astype(np.float64))


def test_what_can_not_be_converted_is_said_in_one_line(runtime, save, tmp_path):
    path = save(lambda x: tf.strings.to_number(tf.strings.as_string(x)), [None, 2])
    with pytest.raises(ValueError, match=r"saved_model: 'tf.AsString' op .*") as refused:
        runtime.convert(path, "saved_model", tmp_path, "float32", None, {})
    assert "\n" not in str(refused.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty"):
        runtime.convert(tmp_path / "empty", "saved_model", tmp_path, "float32", None, {})
    (tmp_path / "noise.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(range(256)))
    with pytest.raises(ValueError, match=r"noise.tflite"):
        runtime.convert(tmp_path / "noise.tflite", "tflite", tmp_path, "float32", None, {})


def test_reason_is_taken_out_of_a_long_message():
    error = ValueError("<unknown>:0: error: loc(callsite(fused[\"A:\"] at fused[\"B:\"])): 'tf.A' op is unknown\n<unknown>:0: note: called from")
    assert _litert_tensorflow._reason(error) == "'tf.A' op is unknown"
    assert _litert_tensorflow._reason(KeyError()) == "KeyError"
