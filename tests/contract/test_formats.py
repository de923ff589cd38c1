"""What every format of a user's own model file promises, on one small network that is written in each of them.

The network's outputs are worked out here in NumPy and double precision. A format without the packages it needs is skipped, saying so.
"""

import importlib.util
import json
import shutil
import types

import numpy as np
import pytest

from sweep import components

NAMES = components.names("formats")
PACKAGES = {"ai-edge-litert": "ai_edge_litert", "onnxruntime-gpu": "onnxruntime"}
ROUNDING = 1e-4  # of outputs up to 10 in float32; a wrong layout or weight is off by 0.1 and more

random = np.random.RandomState(0)
KERNEL = random.normal(0, 0.5, (3, 3, 2, 4)).astype(np.float32)  # HWIO
NORM = {name: random.uniform(0.5, 1.5, 4).astype(np.float32) for name in ("gamma", "beta", "mean", "variance")}
DENSE, BIAS = random.normal(0, 0.5, (36, 5)).astype(np.float32), random.normal(0, 1, 5).astype(np.float32)
INPUTS = random.uniform(-1, 1, (7, 6, 6, 2)).astype(np.float32)  # channels last
EPSILON = 1e-3


def pooled(inputs):
    """Convolution, batch norm, ReLU, 2x2 max pooling: float64 (N, 3, 3, 4)."""
    padded = np.pad(inputs.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    x = np.einsum("nhwckl,klco->nhwo", windows, KERNEL.astype(np.float64))
    norm = {name: values.astype(np.float64) for name, values in NORM.items()}
    x = (x - norm["mean"]) / np.sqrt(norm["variance"] + EPSILON) * norm["gamma"] + norm["beta"]
    return np.maximum(x, 0).reshape(len(x), 3, 2, 3, 2, 4).max(axis=(2, 4))


def expected(inputs):
    """The same and a dense layer: float64 (N, 5)."""
    return pooled(inputs).reshape(len(inputs), -1) @ DENSE.astype(np.float64) + BIAS


def channels_first(inputs):
    return np.ascontiguousarray(inputs.transpose(0, 3, 1, 2))


DENSE_FIRST = DENSE.reshape(3, 3, 4, 5).transpose(2, 0, 1, 3).reshape(36, 5)  # for features that are flattened channels first


def onnx_file(folder, batch="batch", external=False):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = {"kernel": np.ascontiguousarray(KERNEL.transpose(3, 2, 0, 1)), "dense": DENSE_FIRST, "bias": BIAS, **NORM}
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "gamma", "beta", "mean", "variance"], ["b"], epsilon=EPSILON),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "dense", "bias"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "network", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 2, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 5])],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path = folder / "own.onnx"
    onnx.save(model, path, save_as_external_data=external, location="own.weights", size_threshold=0)
    return path


def keras_network():
    import keras

    network = keras.Sequential([
        keras.Input((6, 6, 2)), keras.layers.Conv2D(4, 3, padding="same", use_bias=False), keras.layers.BatchNormalization(epsilon=EPSILON),
        keras.layers.ReLU(), keras.layers.MaxPool2D(), keras.layers.Flatten(), keras.layers.Dense(5),
    ])
    network.set_weights([KERNEL, *NORM.values(), DENSE, BIAS])
    return network


def keras_file(folder):
    path, network = folder / "own.keras", keras_network()
    network.compile("adam", "mse")  # as a trained one is
    network.save(path)
    return path


def saved_model_folder(folder):
    path = folder / "own"
    keras_network().export(path, verbose=False)
    return path


def tflite_file(folder):
    import tensorflow

    path = folder / "own.tflite"
    path.write_bytes(tensorflow.lite.TFLiteConverter.from_keras_model(keras_network()).convert())
    return path


def torch_network():
    import torch

    network = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, padding=1, bias=False), torch.nn.BatchNorm2d(4, eps=EPSILON), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(36, 5),
    ).eval()
    weights = [np.ascontiguousarray(KERNEL.transpose(3, 2, 0, 1)), *NORM.values(), np.int64(0), np.ascontiguousarray(DENSE_FIRST.T), BIAS]
    network.load_state_dict({name: torch.tensor(values) for name, values in zip(network.state_dict(), weights, strict=True)})
    return network


def torchscript_file(folder):
    import torch

    path = folder / "own.pt"
    torch.jit.script(torch_network()).save(path)
    return path


def exported_program_file(folder, batch=True):
    import torch

    path = folder / "own.pt2"
    example = torch.zeros(2 if batch else 1, 2, 6, 6)
    shapes = ({0: torch.export.Dim("batch")},) if batch else None
    torch.export.save(torch.export.export(torch_network(), (example,), dynamic_shapes=shapes), path)
    return path


WRITERS = {
    "exported_program": exported_program_file, "keras": keras_file, "onnx": onnx_file, "saved_model": saved_model_folder,
    "tflite": tflite_file, "torchscript": torchscript_file,
}
CHANNELS_FIRST = {"exported_program", "onnx", "torchscript"}


def inputs_of(name):
    return channels_first(INPUTS) if name in CHANNELS_FIRST else INPUTS


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The network in a format; each is written once."""
    made = {}

    def write(name):
        module = components.load("formats", name)
        for package in [module.FACTS["distribution"], *module.FACTS["converters"]]:
            if importlib.util.find_spec(PACKAGES.get(package, package)) is None:
                pytest.skip(f"{package} is not installed")
        if "tensorflow" in (module.FACTS["distribution"], *module.FACTS["converters"]):
            components.load("formats", "saved_model").set_threads(1)  # before anything runs there; other tests want the same
        if name not in made:
            made[name] = WRITERS[name](tmp_path_factory.mktemp(name))
        return module, made[name]

    return write


@pytest.fixture(params=NAMES)
def model(request, written):
    module, path = written(request.param)
    return types.SimpleNamespace(name=request.param, module=module, path=path, inputs=inputs_of(request.param))


def predicted(module, path, inputs, batch_size=256):
    return module.predict(module.open(path, 1), inputs, batch_size)


def test_every_format_is_tested():
    assert WRITERS.keys() == {*NAMES}


def test_facts_are_json_and_put_the_format_itself_first(model):
    facts = model.module.FACTS
    assert json.loads(json.dumps(facts)) == facts
    assert facts.keys() == {"distribution", "converters", "suffixes", "exports", "float64", "layer_outputs"}
    assert facts["exports"][0] == model.name
    assert {"onnx", "saved_model", "tflite", *NAMES} >= {*facts["exports"]}


def test_a_file_is_recognised_by_its_content_alone(model, tmp_path):
    moved = tmp_path / "without-suffix"
    (shutil.copytree if model.path.is_dir() else shutil.copyfile)(model.path, moved)
    assert [name for name in NAMES if components.load("formats", name).recognise(moved)] == [model.name]
    for other in (tmp_path / "empty", tmp_path / "nothing-here"):
        if other.name == "empty":
            other.write_bytes(b"")
        assert not model.module.recognise(other)


def test_a_file_says_what_it_takes_and_gives(model):
    found = model.module.inspect(model.path)
    assert json.loads(json.dumps(found)) == found
    assert [entry["dtype"] for entry in found["inputs"]] in (["float32"], [None])
    assert found["input_shape"] in (list(model.inputs.shape[1:]), None)
    assert found["output_shape"] in ([5], None)
    assert len(found["outputs"]) == 1
    assert found["batch"] is None
    assert found["beside"] == []
    assert sum(found["operators"].values()) >= 4


def test_predictions_are_those_of_the_network(model):
    outputs = predicted(model.module, model.path, model.inputs)
    assert (outputs.dtype, outputs.shape) == (np.float32, (7, 5))
    assert np.abs(outputs - expected(INPUTS)).max() <= ROUNDING


def test_a_prediction_does_not_depend_on_the_batch(model):
    session = model.module.open(model.path, 1)
    together, alone, uneven = (model.module.predict(session, model.inputs, batch_size) for batch_size in (7, 1, 3))
    assert np.abs(together - alone).max() <= ROUNDING
    assert np.abs(together - uneven).max() <= ROUNDING
    assert np.array_equal(alone, model.module.predict(session, model.inputs, 1))


def test_inputs_are_left_as_they_were_and_described_sessions_are_json(model):
    inputs = model.inputs.copy()
    inputs.setflags(write=False)  # as memory-mapped ones are
    session = model.module.open(model.path, 1)
    model.module.predict(session, inputs)
    assert np.array_equal(inputs, model.inputs)
    described = model.module.describe(session)
    assert described
    assert json.loads(json.dumps(described)) == described


def test_double_precision_is_that_of_the_network(model):
    if not model.module.FACTS["float64"]:
        assert not hasattr(model.module, "predict64")
        return
    exact = model.module.predict64(model.path, model.inputs)
    assert exact.dtype == np.float64
    assert np.abs(exact - expected(INPUTS)).max() <= 1e-9  # weights are float32; epsilon is too, in most files
    assert 0 < np.abs(predicted(model.module, model.path, model.inputs) - exact).max() <= ROUNDING


@pytest.mark.parametrize(
    ("name", "target"), [(name, target) for name in NAMES for target in components.load("formats", name).FACTS["exports"]]
)
def test_an_export_is_the_same_network(written, tmp_path, name, target):
    module, path = written(name)
    details = dict(module.inspect(path), input_shape=list(inputs_of(name).shape[1:]), input_dtype="float32")
    file = tmp_path / module.export(path, target, tmp_path, details)
    opener = components.load("formats", target)
    assert opener.recognise(file)
    assert opener.inspect(file)["batch"] is None
    assert np.abs(predicted(opener, file, inputs_of(name)) - expected(INPUTS)).max() <= ROUNDING


def test_an_export_that_there_is_not_is_refused(model, tmp_path):
    with pytest.raises(ValueError, match="tape"):
        model.module.export(model.path, "tape", tmp_path, model.module.inspect(model.path))


def truncated(path, folder):
    if path.is_dir():
        shutil.copytree(path, folder / path.name)
        cut = folder / path.name / "saved_model.pb"
        cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
        return folder / path.name
    cut = folder / path.name
    cut.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return cut


def test_a_truncated_file_is_refused_by_name_and_in_one_line(model, tmp_path):
    cut = truncated(model.path, tmp_path)
    for attempt in (model.module.inspect, lambda path: model.module.open(path, 1)):
        with pytest.raises(ValueError, match=cut.name) as refused:
            attempt(cut)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 420 + len(str(cut))


def test_inputs_of_another_type_are_refused(model):
    session = model.module.open(model.path, 1)
    if model.name == "torchscript":  # the file doesn't say; PyTorch does
        with pytest.raises(RuntimeError, match="dtype|type"):
            model.module.predict(session, model.inputs.astype(np.int32))
        return
    with pytest.raises(TypeError, match="inputs are int32, and the model takes float32"):
        model.module.predict(session, model.inputs.astype(np.int32))


# What single formats have by themselves


def test_onnx_weights_beside_the_file_come_from_its_own_folder(written, tmp_path):
    import onnx

    module, _path = written("onnx")
    path = onnx_file(tmp_path, external=True)
    details = module.inspect(path)
    assert details["beside"] == ["own.weights"]
    exported = tmp_path / "exported"
    exported.mkdir()
    file = module.export(path, "onnx", exported, details)
    assert [each.name for each in exported.iterdir()] == [file]
    assert np.abs(predicted(module, exported / file, channels_first(INPUTS)) - expected(INPUTS)).max() <= ROUNDING
    assert np.abs(module.predict64(path, channels_first(INPUTS)) - expected(INPUTS)).max() <= 1e-9
    for location in ("../own.weights", "/etc/hostname", "a/b", ".."):
        model = onnx.load(path, load_external_data=False)
        for tensor in model.graph.initializer:
            next(entry for entry in tensor.external_data if entry.key == "location").value = location
        onnx.save(model, tmp_path / "escaping.onnx")
        with pytest.raises(ValueError, match=r"they must be in its own folder"):
            module.inspect(tmp_path / "escaping.onnx")
    (tmp_path / "own.weights").rename(tmp_path / "moved")
    (tmp_path / "own.weights").symlink_to(tmp_path / "moved")
    with pytest.raises(ValueError, match="own.weights is a link"):
        module.inspect(path)


def test_an_onnx_opset_or_operator_that_there_is_not_is_named(written, tmp_path):
    import onnx

    module, path = written("onnx")
    model = onnx.load(path)
    model.opset_import[0].version = 99
    onnx.save(model, tmp_path / "future.onnx")
    with pytest.raises(ValueError, match=r"future\.onnx uses opset 99, and \d\d is the newest"):
        module.inspect(tmp_path / "future.onnx")
    model = onnx.load(path)
    model.graph.node[2].op_type, model.graph.node[2].domain = "Reluctant", "mine"
    model.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    onnx.save(model, tmp_path / "unknown.onnx")
    with pytest.raises(ValueError, match=r"unknown\.onnx.*Reluctant"):
        module.inspect(tmp_path / "unknown.onnx")


def test_a_faulty_evaluator_is_no_reference(written, tmp_path, monkeypatch):
    from sweep.formats import _onnx_operators

    module, path = written("onnx")
    monkeypatch.setattr(_onnx_operators.BatchNormalization, "_run", lambda _self, x, *_parameters, **_attributes: (x,))
    with pytest.raises(ValueError, match=r"can't be evaluated in float64: the reference evaluator is .* from the model's own runtime"):
        module.predict64(path, channels_first(INPUTS))


@pytest.mark.parametrize("name", ["onnx", "exported_program"])
def test_a_fixed_batch_of_one_is_fed_one_by_one(written, tmp_path, name):
    module, _path = written(name)
    path = onnx_file(tmp_path, batch=1) if name == "onnx" else exported_program_file(tmp_path, batch=False)
    assert module.inspect(path)["batch"] == 1
    assert np.abs(predicted(module, path, channels_first(INPUTS)) - expected(INPUTS)).max() <= ROUNDING
    assert np.abs(module.predict64(path, channels_first(INPUTS)) - expected(INPUTS)).max() <= 1e-9


def test_an_onnx_batch_of_eight_is_refused(written, tmp_path):
    module, _path = written("onnx")
    with pytest.raises(ValueError, match=r"the first axis of x must be a batch, free or of 1; its shape is \(8, 2, 6, 6\)"):
        module.inspect(onnx_file(tmp_path, batch=8))


def test_code_and_file_operators_are_refused_by_name(written, tmp_path):
    import keras
    import tensorflow as tf

    module, _path = written("saved_model")

    class Reading(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
        def serve(self, inputs):
            return tf.cond(tf.reduce_sum(inputs) > 0, lambda: inputs, lambda: inputs + tf.io.decode_raw(tf.io.read_file("a"), tf.float32))

    class Python(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
        def serve(self, inputs):
            return tf.numpy_function(lambda values: values, [inputs], tf.float32)

    for network, operator in ((Reading(), "ReadFile"), (Python(), "PyFunc")):
        tf.saved_model.save(network, tmp_path / operator, signatures={"serving_default": tf.function(
            lambda inputs, network=network: {"y": network.serve(inputs)}, input_signature=[tf.TensorSpec([None, 4], tf.float32)],
        )})
        with pytest.raises(ValueError, match=f"has operators that reach beyond the model: {operator}"):
            module.inspect(tmp_path / operator)
    keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda values: values)]).save(tmp_path / "code.keras")
    with pytest.raises(ValueError, match=r"code\.keras has Lambda"):
        components.load("formats", "keras").inspect(tmp_path / "code.keras")


def test_operators_that_run_on_loading_are_looked_through_too(written, tmp_path):
    import tensorflow as tf

    module, _path = written("saved_model")
    v1, path = tf.compat.v1, tmp_path / "own"
    with tf.Graph().as_default(), v1.Session() as session:
        given = v1.placeholder(tf.float32, [None, 4])
        signature = v1.saved_model.predict_signature_def({"x": given}, {"y": given * v1.get_variable("w", initializer=2.0)})
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(path))
        main = tf.io.write_file(str(tmp_path / "written"), "x")
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, main_op=main)
        builder.save()
    with pytest.raises(ValueError, match="reach beyond the model: WriteFile"):
        module.inspect(path)
    assert not (tmp_path / "written").exists()


def test_hdf5_networks_are_read_and_weights_alone_are_not(written, tmp_path):
    module, _path = written("keras")
    keras_network().save(tmp_path / "own.h5")
    assert np.abs(predicted(module, tmp_path / "own.h5", INPUTS) - expected(INPUTS)).max() <= ROUNDING
    keras_network().save_weights(tmp_path / "own.weights.h5")
    with pytest.raises(ValueError, match=r"own\.weights\.h5 holds weights and no network"):
        module.inspect(tmp_path / "own.weights.h5")


def test_several_outputs_keep_the_order_of_their_names(written, tmp_path):
    """A SavedModel's outputs have names and no order, and a .tflite file that is made of one has them in another."""
    import tensorflow as tf

    saved_model, _path = written("saved_model")
    tflite, _path = written("tflite")

    class Several(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
        def serve(self, inputs):
            return {"b": inputs + 1, "c": inputs[:, :2], "a": inputs * 2}

    network, inputs = Several(), np.arange(8, dtype=np.float32).reshape(2, 4)
    joined = np.concatenate([inputs * 2, inputs + 1, inputs[:, :2]], axis=1)
    tf.saved_model.save(network, tmp_path / "own", signatures={"serving_default": network.serve})
    details = saved_model.inspect(tmp_path / "own")
    assert [entry["name"] for entry in details["outputs"]] == ["a", "b", "c"]
    assert np.array_equal(predicted(saved_model, tmp_path / "own", inputs), joined)
    for target in saved_model.FACTS["exports"]:
        file = tmp_path / saved_model.export(tmp_path / "own", target, tmp_path, details)
        assert np.array_equal(predicted(components.load("formats", target), file, inputs), joined), target
    content = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "saved_model")).convert()
    (tmp_path / "own.tflite").write_bytes(content)
    assert np.array_equal(predicted(tflite, tmp_path / "own.tflite", inputs), joined)
    file = tmp_path / tflite.export(tmp_path / "own.tflite", "onnx", tmp_path, tflite.inspect(tmp_path / "own.tflite"))
    assert np.array_equal(predicted(components.load("formats", "onnx"), file, inputs), joined)


def test_a_program_that_pickles_or_calls_out_is_never_run(written, tmp_path):
    import zipfile

    module, path = written("exported_program")
    evidence = tmp_path / "evidence"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(members)).partition("/")[0]
    pickle = b"cposix\nsystem\n(S'touch " + str(evidence).encode() + b"'\ntR."
    members[f"{root}/data/sample_inputs/model.pt"] = pickle
    members[f"{root}/data/weights/model.pt"] = pickle
    with zipfile.ZipFile(tmp_path / "evil.pt2", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert np.abs(predicted(module, tmp_path / "evil.pt2", channels_first(INPUTS)) - expected(INPUTS)).max() <= ROUNDING
    assert not evidence.exists()


def test_tensors_on_the_way_are_those_of_the_network(model):
    """The pooled activations, worked out here, and the outputs are among them, in this order."""
    if not model.module.FACTS["layer_outputs"]:
        assert not hasattr(model.module, "layer_outputs")
        return
    found = list(model.module.layer_outputs(model.path, 1, model.inputs).values())
    assert all(array.dtype == np.float32 and len(array) == len(INPUTS) for array in found)
    wanted = [expected(INPUTS), pooled(INPUTS)]
    places = [
        [number for number, array in enumerate(found) if array.size == values.size and any(
            np.allclose(array.reshape(len(INPUTS), -1), each.reshape(len(INPUTS), -1), atol=ROUNDING)
            for each in (values, np.moveaxis(values, -1, 1))
        )] for values in wanted
    ]
    assert all(places)
    assert places[1][0] < places[0][-1]
