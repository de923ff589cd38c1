"""The gate as a command: it passes what is sound and fails what isn't, with the exit status and the report that a build acts on."""

import contextlib
import types
from xml.etree import ElementTree

import numpy as np
import pytest

from sweep import gate, gating, hostlock

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

RANDOM = np.random.RandomState(0)
KERNEL, BIAS = RANDOM.normal(0, 0.5, (6, 1, 3, 3)).astype(np.float32), RANDOM.normal(0, 0.2, 6).astype(np.float32)
DENSE = RANDOM.normal(0, 0.3, (384, 10)).astype(np.float32)
INPUTS = RANDOM.uniform(0, 1, (200, 1, 8, 8)).astype(np.float32)


def write(path, kernel=KERNEL, bias=BIAS, dense=DENSE, outputs=("y",)):
    """Convolution, ReLU and dense."""
    helper, array = onnx.helper, onnx.numpy_helper.from_array
    nodes = [
        helper.make_node("Conv", ["x", "kernel", "bias"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]), helper.make_node("MatMul", ["f", "dense"], ["y"]), helper.make_node("Neg", ["y"], ["n"]),
    ]
    graph = helper.make_graph(
        nodes, "network", [helper.make_tensor_value_info("x", 1, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info(name, 1, ["n", 10]) for name in outputs],
        [array(kernel, "kernel"), array(bias, "bias"), array(dense, "dense")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    source = write(folder / "model.onnx")
    convolved = np.pad(INPUTS, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(convolved, (3, 3), axis=(2, 3))
    features = np.maximum(np.einsum("nchwkl,ockl->nohw", windows, KERNEL) + BIAS[:, None, None], 0)
    labels = (features.reshape(200, -1) @ DENSE).argmax(axis=1)
    labels[:20] = (labels[:20] + 1) % 10  # the source is right on 180 of 200
    np.savez(folder / "labelled.npz", inputs=INPUTS, labels=labels)
    np.savez(folder / "inputs.npz", inputs=INPUTS)
    clean, permuted = write(folder / "clean.onnx"), write(folder / "permuted.onnx", dense=DENSE[RANDOM.permutation(384)])
    without_bias = write(folder / "without_bias.onnx", bias=np.zeros_like(BIAS))
    (folder / "cut.onnx").write_bytes(source.read_bytes()[:-100])
    return types.SimpleNamespace(
        folder=folder, source=source, clean=clean, permuted=permuted, without_bias=without_bias, cut=folder / "cut.onnx",
        labelled=folder / "labelled.npz", inputs=folder / "inputs.npz",
    )


@pytest.fixture
def run(cache, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("SWEEP_CACHE", str(cache))

    def run(source, *conversions, inputs, budget=None, extra=()):
        arguments = [str(source), "--against", *map(str, conversions), "--inputs", str(inputs), *extra]
        if budget is not None:
            (tmp_path / "budget.yaml").write_text(budget)
            arguments += ["--budget", str(tmp_path / "budget.yaml")]
        status = gate.main(arguments)
        return status, capsys.readouterr()

    return run


def test_a_sound_conversion_passes_and_planted_faults_fail(files, run, tmp_path):
    report = tmp_path / "report.xml"
    status, said = run(files.source, files.clean, inputs=files.labelled, budget="{flips: 0, accuracy_drop: 0.0, size_ratio: 1.1}")
    assert status == 0
    assert "passed" in said.out
    assert "90.00%" in said.out  # what the labels were made for
    status, said = run(
        files.source, files.clean, files.permuted, files.without_bias, files.cut, inputs=files.labelled, budget="{disagreement: 0.01}",
        extra=["--junit", str(report)],
    )
    assert status == 1
    suites = {suite.get("name"): suite for suite in ElementTree.parse(report).getroot()}
    assert [(suite.get("failures"), suite.get("errors")) for suite in suites.values()] == [("0", "0"), ("2", "0"), ("2", "0"), ("0", "1")]
    assert "broken: " in suites["permuted.onnx"].find("testcase/failure").get("message")
    assert str(files.cut) in suites["cut.onnx"].find("testcase/error").get("message")
    lines = said.out.splitlines()
    assert [line.split()[-1] for line in lines[1:5]] == ["passed", "FAILED", "FAILED", "FAILED"]
    assert any(line.startswith("permuted.onnx: disagreement: 0.") and line.endswith("and 0.01 is allowed") for line in lines)


def test_without_labels_the_verdict_still_counts(files, run):
    assert run(files.source, files.clean, inputs=files.inputs)[0] == 0
    status, said = run(files.source, files.without_bias, inputs=files.inputs)
    assert status == 1
    assert "where 8 times the source's float32 error explains" in said.out


def test_a_slower_conversion_is_within_a_generous_budget(files, run, monkeypatch):
    monkeypatch.setattr(hostlock, "held", lambda exclusive: contextlib.nullcontext())  # these times need no quiet machine
    status, said = run(files.source, files.clean, inputs=files.inputs, budget="{latency_ratio: 50}")
    assert status == 0
    assert "x" in said.out.splitlines()[1].split()[-2]
    assert run(files.source, files.clean, inputs=files.inputs, budget="{latency_ratio: 0.001}")[0] == 1


def test_a_conversion_that_is_no_model_is_one_failure_among_the_others(files, run, tmp_path):
    (tmp_path / "notes.bin").write_text("no model")
    status, said = run(files.source, files.clean, tmp_path / "notes.bin", inputs=files.inputs)
    assert status == 1
    lines = said.out.splitlines()
    assert [line.split()[-1] for line in lines[1:3]] == ["passed", "FAILED"]
    assert "notes.bin has none of the formats that can be read" in said.out


def test_many_outputs_are_put_in_order_at_once():
    sizes = list(range(1, 15))
    assert next(gating._orders(sizes, sizes)) == tuple(range(14))
    assert next(gating._orders(sizes, sizes[::-1])) == tuple(range(13, -1, -1))
    assert len(list(gating._orders([2, 3, 2], [2, 2, 3]))) == 2


def test_outputs_in_another_order_are_named(files, run, tmp_path):
    source, other = write(tmp_path / "two.onnx", outputs=("y", "n")), write(tmp_path / "turned.onnx", outputs=("n", "y"))
    status, said = run(source, other, inputs=files.inputs)
    assert status == 0
    assert "turned.onnx: reordered_outputs: its outputs are the source's in the order 1, 0" in said.out
    assert run(source, other, inputs=files.inputs, budget="{reordered_outputs: false}")[0] == 1


@pytest.mark.parametrize(
    ("source", "conversion", "inputs", "budget", "said"),
    [
        ("cut.onnx", "clean.onnx", "inputs.npz", None, "cut.onnx can't be used"),
        ("nothing.onnx", "clean.onnx", "inputs.npz", None, "there is no "),
        ("model.onnx", "nothing.onnx", "inputs.npz", None, "there is no "),
        ("model.onnx", "clean.onnx", "nothing.npz", None, "can't read "),
        ("model.onnx", "clean.onnx", "wrong.npz", None, "model.onnx takes inputs float32 (1, 8, 8), and they are float32 (8, 8, 1)"),
        ("model.onnx", "clean.onnx", "inputs.npz", "{accuracy_drop: 0.1}", "accuracy_drop: there is no such figure without labels"),
        ("model.onnx", "clean.onnx", "inputs.npz", "{flip: 1}", "there is no key 'flip'"),
        ("model.onnx", "clean.onnx", "inputs.npz", "{models: {clen.onnx: {flips: 1}}}", "no conversion 'clen.onnx'; did you mean"),
        ("model.onnx", "clean.onnx", "inputs.npz", "{runtime: onxruntime}", "there is no 'onxruntime'; did you mean"),
        ("nan.onnx", "clean.onnx", "inputs.npz", None, "nan.onnx gives no finite output for any of these inputs"),
        ("model.onnx", "clean.onnx", "classes.npz", None, "a label is 12, and "),
    ],
)
def test_bad_input_is_one_line_and_another_status(files, run, source, conversion, inputs, budget, said):
    np.savez(files.folder / "wrong.npz", inputs=INPUTS.reshape(200, 8, 8, 1))
    np.savez(files.folder / "classes.npz", inputs=INPUTS, labels=np.full(200, 12))
    write(files.folder / "nan.onnx", dense=np.full_like(DENSE, np.nan))
    status, output = run(files.folder / source, files.folder / conversion, inputs=files.folder / inputs, budget=budget)
    assert status == 2
    assert output.err.startswith("gate: ")
    assert said in output.err
    assert len(output.err.splitlines()) == 1
