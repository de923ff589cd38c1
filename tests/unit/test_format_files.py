"""Files from outside are looked through before any library reads them: links, sizes, archives, code, and what a model takes."""

import copy
import io
import json
import os
import zipfile

import numpy as np
import pytest

from sweep import components
from sweep.formats import _arrays, _files, _pt2_archive, _signature, torchscript

FLOAT = {"name": "x", "shape": [None, 28, 28, 1], "dtype": "float32"}
LOGITS = {"name": "y", "shape": [None, 10], "dtype": "float32"}


def archive(path, members):
    with zipfile.ZipFile(path, "w") as written:
        for name, content in members:
            written.writestr(name, content)
    return path


# What holds for every file


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="nothing-here: No such file"):
        _files.check_size(tmp_path / "nothing-here")
    file = tmp_path / "model"
    file.write_bytes(bytes(100))
    monkeypatch.setattr(_files, "LARGEST_BYTES", 99)
    with pytest.raises(ValueError, match="model has"):
        _files.check_size(file)


def test_a_folder_may_not_lead_elsewhere(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="weights is a link"):
        _files.check_size(model)
    (tmp_path / "elsewhere").symlink_to(tmp_path / "model" / "weights")
    _files.check_size(tmp_path / "elsewhere")  # what the user names may be one
    os.mkfifo(model / "pipe")
    (model / "weights").unlink()
    with pytest.raises(ValueError, match="pipe is a link or a special file"):
        _files.check_size(model)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "a\\..\\..\\x", "C:\\x"])
def test_a_member_may_not_lead_out_of_its_archive(tmp_path, name):
    path = archive(tmp_path / "a.keras", [("config.json", "{}"), (name, "x")])
    with pytest.raises(ValueError, match="leads out of the archive"):
        _files.read_members(path, lambda _name: True)


def test_an_archive_is_refused_by_what_it_would_become(tmp_path, monkeypatch):
    path = tmp_path / "bomb.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as written:
        written.writestr("a", bytes(10_000_000))
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(_files, "LARGEST_BYTES", 5_000_000)
    with pytest.raises(ValueError, match="a model may have"):
        _files.read_members(path, lambda _name: True)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_damaged_archives_are_refused_by_name(tmp_path):
    path = archive(tmp_path / "twice.keras", [("a", "1"), ("a", "2")])
    with pytest.raises(ValueError, match="stands there twice"):
        _files.read_members(path, lambda _name: True)
    whole = archive(tmp_path / "whole.keras", [("a", "1" * 1000)]).read_bytes()
    (tmp_path / "cut.keras").write_bytes(whole[:500])
    with pytest.raises(ValueError, match="cut.keras"):
        _files.read_members(tmp_path / "cut.keras", lambda _name: True)
    (tmp_path / "flipped.keras").write_bytes(whole.replace(b"1111", b"1121", 1))
    with pytest.raises(ValueError, match="flipped.keras: Bad CRC"):
        _files.read_members(tmp_path / "flipped.keras", lambda _name: True)


# What a model takes and gives


def test_details_are_without_the_batch():
    found = _signature.details("m", [FLOAT], [LOGITS], {"Gemm": 2, "Conv": 1})
    assert found["input_shape"] == [28, 28, 1]
    assert found["output_shape"] == [10]
    assert found["batch"] is None
    assert list(found["operators"]) == ["Conv", "Gemm"]
    fixed = _signature.details("m", [dict(FLOAT, shape=[1, None, 3])], [LOGITS, LOGITS], {})
    assert (fixed["input_shape"], fixed["batch"], fixed["output_shape"]) == ([None, 3], 1, None)
    unknown = _signature.details("m", [dict(FLOAT, shape=None, dtype=None)], [dict(LOGITS, shape=[None, None])], {})
    assert (unknown["input_shape"], unknown["input_dtype"], unknown["output_shape"]) == (None, None, None)


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [
        ([FLOAT, dict(FLOAT, name="state")], [LOGITS], r"m has 2 inputs \(x, state\)"),
        ([], [LOGITS], r"m has 0 inputs \(none\)"),
        ([FLOAT], [], "m has no output"),
        ([dict(FLOAT, dtype="uint8")], [LOGITS], "m takes uint8; inputs are float32 or int32 or int64 here"),
        ([dict(FLOAT, shape=[8, 28])], [LOGITS], r"the first axis of x must be a batch, free or of 1; its shape is \(8, 28\)"),
        ([dict(FLOAT, shape=[])], [LOGITS], r"must be a batch, free or of 1; its shape is \(\)"),
    ],
)
def test_what_no_stage_could_run_is_refused(inputs, outputs, said):
    with pytest.raises(ValueError, match=said):
        _signature.details("m", inputs, outputs, {})


def test_outputs_are_joined_in_order():
    first, second = np.arange(6, dtype=np.float64).reshape(2, 3), np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    assert _arrays.joined([first], 2).dtype == np.float32
    assert np.array_equal(_arrays.joined([second, first], 2), [[0, 1, 2, 3, 0, 1, 2], [4, 5, 6, 7, 3, 4, 5]])
    with pytest.raises(ValueError, match=r"shape \(2, 3\) for 4 inputs has no batch axis"):
        _arrays.joined([first], 4)


def test_inputs_go_in_by_batches_and_as_they_are():
    sizes = []

    def run(batch):
        sizes.append(len(batch))
        return batch * 2

    inputs = np.arange(5, dtype=np.float32)
    assert np.array_equal(_arrays.predict(run, inputs, 2, "float32"), inputs * 2)
    assert sizes == [2, 2, 1]
    with pytest.raises(TypeError, match="inputs are float64, and the model takes float32"):
        _arrays.predict(run, inputs.astype(np.float64), 2, "float32")
    with pytest.raises(ValueError, match="no input"):
        _arrays.predict(run, inputs[:0], 2, "float32")
    with pytest.raises(ValueError, match="batch_size is 0"):
        _arrays.predict(run, inputs, 0, "float32")


# Code in files


def code_archive(path, code):
    return archive(path, [("m/data.pkl", b""), ("m/constants.pkl", b""), ("m/code/__torch__.py", code)])


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("  torch.save(x, 'a')", "calls save"),
        ("  torch . \\\n save (x, 'a')", "calls save"),
        ("  y = torch.from_file('/etc/passwd')", "calls from_file"),
        ("  y = ops.aten.from_file('/etc/passwd')", "calls from_file"),
        ("  y = f(\"#\", torch.from_file('/etc/passwd'))", "calls from_file"),
        ("  y = f('#', torch.save(x, 'a'))", "calls save"),
        ("  y = torch.#\n  from_file('/etc/passwd')", "calls from_file"),
        ("  y = 'endless", "can't be read"),
        ("  y = ops.prim.rpc_sync(a, b)", "calls ops.prim.rpc_sync"),
        ("  y = ops.c10d.send(x)", "calls ops.c10d, which is none of PyTorch's own operators"),
        ("  y = ops.mine.run(x)", "calls ops.mine"),
        ("  a : __torch__.torch.classes.dist_rpc.Thing", "which is none of PyTorch's own operators"),
    ],
)
def test_code_that_reaches_beyond_the_model_is_refused(tmp_path, code, said):
    with pytest.raises(ValueError, match=said):
        torchscript._check_code(code_archive(tmp_path / "m.pt", code))


def test_plain_code_passes_and_weights_alone_do_not(tmp_path):
    torchscript._check_code(code_archive(tmp_path / "m.pt", "  y = torch.relu(x)  # a comment\n  z = ops.quantized.linear(y)"))
    weights = archive(tmp_path / "weights.pt", [("m/data.pkl", b""), ("m/data/0", b"")])
    assert torchscript.recognise(weights)  # to say what it is
    with pytest.raises(ValueError, match="weights.pt holds pickled weights and no network"):
        torchscript._check_code(weights)
    (tmp_path / "old.pt").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    assert torchscript.recognise(tmp_path / "old.pt")
    with pytest.raises(ValueError, match="old.pt is a pickle, which may run code"):
        torchscript._check_code(tmp_path / "old.pt")


@pytest.fixture
def program():
    """The parts of a .pt2 archive, as small as they get."""
    size = {"as_expr": {"expr_str": "Symbol('s77', positive=True, integer=True)", "hint": None}}
    return {
        "graph_module": {
            "graph": {
                "inputs": [{"as_tensor": {"name": "x"}}],
                "outputs": [{"as_tensor": {"name": "relu"}}],
                "nodes": [
                    {
                        "target": "torch.ops.aten.relu.default",
                        "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "x"}}, "kind": 1}],
                        "outputs": [{"as_tensor": {"name": "relu"}}],
                        "metadata": {"stack_trace": "os.system('ls')", "source_fn_stack": "relu,torch.os.system"},
                    }
                ],
                "tensor_values": {"x": {"sizes": [size]}},
                "sym_int_values": {},
            },
            "signature": {"input_specs": [{"parameter": {"arg": {"name": "p"}, "parameter_name": "a.0.weight"}}], "output_specs": []},
            "module_call_graph": [
                {"fqn": "", "signature": {"in_spec": '[1, {"type": null, "context": null, "children_spec": []}]', "out_spec": "[1]"}},
                {"fqn": "a", "signature": {"in_spec": "", "out_spec": ""}},
            ],
            "treespec_namedtuple_fields": {"mine": {}},
        },
        "range_constraints": {"s77": {"min_val": 1, "max_val": None}},
        "guards_code": ["__import__('os').system('ls')"],
    }


def pt2(path, program, weights=None, extra=()):
    config = json.dumps({"config": weights or {"a.0.weight": {"path_name": "weight_0", "use_pickle": False}}})
    members = [
        ("m/archive_format", "pt2"), ("m/models/model.json", json.dumps(program)), ("m/data/weights/model_weights_config.json", config),
        ("m/data/weights/weight_0", bytes(4)), ("m/data/constants/model_constants_config.json", '{"config": {}}'),
        ("m/data/sample_inputs/model.pt", b"a pickle"), *extra,
    ]
    return archive(path, members)


def test_a_program_is_rewritten_without_what_would_be_run(tmp_path, program):
    written = _pt2_archive.checked(pt2(tmp_path / "m.pt2", program, extra=[("m/extra/notes", "a"), ("m/data/weights/model.pt", "a pickle")]))
    with zipfile.ZipFile(written) as found:
        names = found.namelist()
        kept = json.loads(found.read("model/models/model.json"))
        assert found.read("model/data/sample_inputs/model.pt") == b""
        assert found.read("model/data/weights/weight_0") == bytes(4)
    assert not any("extra" in name or name.endswith("weights/model.pt") for name in names)
    assert kept["guards_code"] == []
    assert kept["graph_module"]["graph"]["nodes"][0]["metadata"] == {}
    assert [entry["fqn"] for entry in kept["graph_module"]["module_call_graph"]] == [""]
    assert kept["graph_module"]["treespec_namedtuple_fields"] == {}


def node(program):
    return program["graph_module"]["graph"]["nodes"][0]


def size(program, text):
    program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0]["as_expr"]["expr_str"] = text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: node(p).update(target="torch.os.system"), "calls 'torch.os.system'"),
        (lambda p: node(p).update(target="torch.ops.aten.from_file.default"), "calls 'torch.ops.aten.from_file.default'"),
        (lambda p: node(p).update(target="torch.ops.mine.run.default"), "calls 'torch.ops.mine.run.default'"),
        (lambda p: node(p).update(target="_operator.attrgetter"), "calls '_operator.attrgetter'"),
        (lambda p: node(p)["inputs"].append({"name": "f", "arg": {"as_operator": "torch.hub.load"}}), "calls 'torch.hub.load'"),
        (lambda p: size(p, "__import__('os').system('ls')"), "no expression of sizes"),
        (lambda p: size(p, "Symbol('s77').__class__"), "no expression of sizes"),
        (lambda p: size(p, "(lambda: 0)()"), "no expression of sizes"),
        (lambda p: size(p, "9**9**9"), "no expression of sizes"),
        (lambda p: size(p, "Symbol('os')"), "no expression of sizes"),
        (lambda p: node(p)["outputs"][0]["as_tensor"].update(name='y"+exit()+"'), "a name that is none"),
        (
            lambda p: p["graph_module"]["signature"]["input_specs"][0]["parameter"].update(parameter_name='a"+exit()+"'),
            "a name that is none",
        ),
        (
            lambda p: p["graph_module"]["module_call_graph"][0]["signature"].update(
                in_spec='[1, {"type": "collections.defaultdict", "context": "null", "children_spec": []}]'
            ),
            "nests its inputs or outputs in 'collections.defaultdict'",
        ),
        (lambda p: p.pop("graph_module"), "is not what PyTorch writes"),
    ],
)
def test_a_program_of_anything_but_operators_on_tensors_is_refused(tmp_path, program, change, said):
    changed = copy.deepcopy(program)
    change(changed)
    with pytest.raises(ValueError, match=said) as refused:
        _pt2_archive.checked(pt2(tmp_path / "m.pt2", changed))
    assert "m.pt2" in str(refused.value)


@pytest.mark.parametrize(
    ("weights", "extra", "said"),
    [
        ({"w": {"path_name": "weight_0", "use_pickle": True}}, [], "w is pickled"),
        ({"w": {"path_name": "custom_obj_0", "use_pickle": False}}, [], "w is pickled"),
        ({"w": {"path_name": "weight_9", "use_pickle": False}}, [], "lacks data/weights/weight_9"),
        (None, [("m/data/aotinductor/model/x.so", "code")], "holds compiled code"),
        (None, [("m/models/other.json", "{}")], "holds several programs"),
    ],
)
def test_weights_that_are_pickled_and_compiled_code_are_refused(tmp_path, program, weights, extra, said):
    with pytest.raises(ValueError, match=said):
        _pt2_archive.checked(pt2(tmp_path / "m.pt2", program, weights, extra))


def test_a_program_of_an_older_release_says_what_to_do(tmp_path):
    path = archive(tmp_path / "m.pt2", [("serialized_exported_program.json", "{}"), ("version", "5.1")])
    assert components.load("formats", "exported_program").recognise(path)
    with pytest.raises(ValueError, match=r"older PyTorch.*torch\.export\.save"):
        _pt2_archive.checked(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"module": "os", "class_name": "system"}, "asks for system of os"),
        ({"module": "keras.utils", "class_name": "get_file"}, "asks for get_file of keras.utils"),
        ({"module": "keras.layers", "class_name": "Lambda"}, "has Lambda"),
        ({"module": "keras.layers", "class_name": "TFSMLayer"}, "has TFSMLayer"),
        ({"class_name": "TorchModuleWrapper"}, "has TorchModuleWrapper"),
        ({"config": {"activation": {"class_name": "__lambda__", "config": {"value": "code"}}}}, "has __lambda__"),
        ({"config": {"function_type": "lambda"}}, "has a lambda"),
        ({"module": "keras", "class_name": "layers.Lambda"}, "layers.Lambda, which is no class's or function's own name"),
        ({"config": {"activation": {"module": "builtins", "class_name": "function", "config": "utils.get_file"}}}, "no class's or function's"),
    ],
)
def test_keras_configurations_name_layers_of_keras_alone(change, said):
    keras_file = pytest.importorskip("sweep.formats._keras_file", reason="h5py is missing")
    layer = {"module": "keras.layers", "class_name": "Dense", "config": {"units": 3}}
    keras_file._check_classes("m.keras", {"module": "keras", "class_name": "Sequential", "config": {"layers": [layer]}})
    with pytest.raises(ValueError, match=said):
        keras_file._check_classes("m.keras", {"class_name": "Sequential", "config": {"layers": [layer, dict(layer, **change)]}})


def test_hdf5_files_keep_their_values_to_themselves(tmp_path):
    h5py = pytest.importorskip("h5py")
    keras_file = pytest.importorskip("sweep.formats._keras_file")

    def refused(fill, said):
        written = io.BytesIO()
        with h5py.File(written, "w") as file:
            fill(file.create_group("layer"))
        with pytest.raises(ValueError, match=said):
            keras_file._check_hdf5("m.h5", written)

    refused(lambda group: group.__setitem__("kernel", h5py.ExternalLink("/etc/hostname", "/a")), "kernel leads elsewhere")
    refused(lambda group: group.create_dataset("kernel", (10,), "u1", external=[("/etc/hostname", 0, 10)]), "another file")
    refused(lambda group: group.create_dataset("kernel", (1 << 34,), "f4", chunks=True, compression="gzip"), "a model may have")
