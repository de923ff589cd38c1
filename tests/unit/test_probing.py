"""Drawing probes, judging outputs, telling options apart, and the stage as a whole: by stand-ins for its workers, and by real ones."""

import itertools
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sweep import components, toolchain
from sweep.contracts import Bench
from sweep.errors import StageFailed
from sweep.operators import _probe as probing
from sweep.operators import conv2d
from sweep.probing import draw, reproducer
from sweep.probing.blame import blame
from sweep.probing.found import VERDICTS
from sweep.probing.judge import decides, judge, tolerance
from sweep.probing.names import name
from sweep.stages import probe as stage
from sweep.work import Work, attempts, probe
from sweep.workers import Limits, Pool, Shape

ROOT = Path(__file__).parent.parent.parent


def test_a_draw_is_its_seed_and_others_differ():
    first, again, other = (draw.probes("conv2d", 30, seed) for seed in (1, 1, 2))
    assert first == again
    assert len({probing.name_of(each) for each in first}) == 30
    assert first != [dict(each, seed=1) for each in other]
    assert draw.probes("conv2d", 10, 1) == first[:10]


@pytest.mark.parametrize("operator", ["reduce", "dense"])
def test_every_pair_that_is_valid_is_met_early(operator):
    module = components.load("operators", operator)
    everything = [dict(zip(module.PARAMETERS, chosen, strict=True)) for chosen in itertools.product(*module.PARAMETERS.values())]
    possible = draw.pairs_met([each for each in everything if module.valid(each)])
    count = len(everything) // 8
    met = draw.pairs_met([each["parameters"] for each in draw.probes(operator, count, 0)])
    assert met <= possible
    assert len(met) >= 0.99 * len(possible)


def test_all_there_are_come_once():
    found = draw.probes("softmax", 10_000, 0)
    module = components.load("operators", "softmax")
    every = [dict(zip(module.PARAMETERS, chosen, strict=True)) for chosen in itertools.product(*module.PARAMETERS.values())]
    assert sorted(probing.name_of(each) for each in found) == sorted(
        probing.name_of({"operator": "softmax", "parameters": each}) for each in every if module.valid(each)
    )


def test_only_what_can_be_asked_for_is_drawn():
    ways = [{"dilation_height": [1], "dilation_width": [1]}, {"stride_height": [1], "stride_width": [1]}]
    both = [
        (max(each["parameters"][f"dilation_{axis}"] for axis in ("height", "width")),
         max(each["parameters"][f"stride_{axis}"] for axis in ("height", "width")))
        for each in draw.probes("conv2d", 60, 0, ways)
    ]
    assert all(1 in pair for pair in both)
    assert any(dilation > 1 for dilation, _stride in both)
    assert any(stride > 1 for _dilation, stride in both)
    assert {each["parameters"]["values"] for each in draw.probes("conv2d", 20, 0, draw.within(ways, {"values": ["drawn"]}))} == {"drawn"}


def test_a_way_that_means_nothing_is_refused():
    with pytest.raises(ValueError, match="dilatation"):
        draw.Space("conv2d", [{"dilatation": [1]}])
    with pytest.raises(ValueError, match="no value of groups"):
        draw.Space("conv2d", [{"groups": [7]}])


def test_what_is_not_finite_has_to_be_so_exactly():
    right, allowed = np.array([np.nan, np.inf, -np.inf, 1.0, 1e39]), np.full(5, 1e-3)
    assert judge(np.array([np.nan, np.inf, -np.inf, 1.0005, np.inf], np.float32), right, allowed, "float32").right
    for at, wrong in enumerate([0.0, 3e38, np.inf, np.nan, 1.0]):
        observed = np.array([np.nan, np.inf, -np.inf, 1.0, np.inf], np.float32)
        observed[at] = wrong
        found = judge(observed, right, allowed, "float32")
        assert not found.right
        assert found.why == "1 of 5 values are off"


def test_an_output_of_another_shape_is_wrong():
    found = judge(np.zeros((2, 3)), np.zeros((2, 4)), np.ones((2, 4)), "float32")
    assert (found.right, found.why) == (False, "gives (3,) and should give (4,) for an example")


def test_the_tolerance_of_a_sum_is_the_bound_of_its_rounding():
    """Higham: n roundings of relative size u are at most n u / (1 - n u) of the sum of absolute values."""
    case = {"operator": "reduce", "seed": 0, "parameters": {
        "function": "sum", "shape": [6], "axes": [1], "keepdims": False, "values": "integers"}}
    arrays = probing.arrays_of(case)
    unit = 2.0**-24
    sums = np.array([21.0, 57.0])  # 1 to 6, and 7 to 12
    assert np.allclose(tolerance(case, "float32", {}, arrays), 7 * unit / (1 - 7 * unit) * sums + unit * sums, rtol=1e-12)


@pytest.mark.parametrize(("row", "options"), [
    ("float16", {}), ("bfloat16", {}), ("dynamic_int8", {}), ("static_int8", {}), ("int16x8", {}), ("weight_only_int8", {}),
    ("weight_only_int4", {}), ("linear", {"bits": 8}),
])
def test_quantized_arithmetic_is_right_and_windows_elsewhere_are_not(row, options):
    """Arrays rounded to the row's types stay within its tolerance; padding at the wrong side does not."""
    judged, missed = 0, 0
    ways = [{"padding": ["same"], "values": ["drawn"], "window_height": [3, 5], "window_width": [2, 4], "dilation_height": [1]}]
    for case in draw.probes("conv2d", 12, 0, ways):
        arrays = probing.arrays_of(case)
        right, allowed = probing.exact(case, *arrays), tolerance(case, row, options, arrays)
        weights = {name: _stored(array, row, options, name == "kernel") for name, array in arrays[0].items()}
        inputs = arrays[1] if "weight_only" in row or row == "linear" else _stored(arrays[1], row, options, row != "int16x8")
        quantized = _stored(conv2d.reference(case["parameters"], weights, inputs), row, options, row != "int16x8")
        if "weight_only" in row or row == "linear":
            quantized = conv2d.reference(case["parameters"], weights, inputs)
        assert judge(quantized, right, allowed, row).right
        shifted = [compute() for fault, _detail, compute in conv2d.deviations(
            case["parameters"], probing.wide(arrays[0]), arrays[1].astype(float), right) if fault == "padding_missing"]
        for output in shifted:
            judged += 1
            missed += judge(output, right, allowed, row).right
    assert judged >= 10
    assert missed == 0


def _stored(array, row, options, eight):
    """An array as a symmetric quantizer or a cast keeps it."""
    if row in ("float16", "bfloat16"):
        return _cast(array, row)
    levels = 2 ** (options.get("bits", 4 if "int4" in row else 8 if eight else 16) - 1) - 1
    scale = np.abs(array).max() / levels
    return np.rint(array / scale) * scale


def _cast(array, row):
    if row == "float16":
        return array.astype(np.float16).astype(float)
    whole = (array.astype(np.float32).view(np.uint32).astype(np.uint64) + 0x8000) & 0xFFFF0000
    return whole.astype(np.uint32).view(np.float32).astype(float)


@pytest.mark.parametrize(("off", "fault"), [
    (4.0, "accuracy"), (2.0**10, "reduced_precision"), (2.0**22, "unknown"),
])
def test_what_is_off_everywhere_is_named_by_how_far(off, fault):
    case = draw.probes("dense", 1, 0, [{"features": [64], "units": [33], "values": ["drawn"]}])[0]
    arrays = probing.arrays_of(case)
    right, allowed = probing.exact(case, *arrays), tolerance(case, "float32", {}, arrays)
    signs = np.where(np.arange(right.size) % 3 == 0, 1, -1).reshape(right.shape)
    assert name(case, arrays, right + signs * off * allowed.min(), allowed, "float32").fault == fault


def test_the_option_that_decides_is_named():
    def result(verdict, other="right", **options):
        return {"options": options, "records": [{"id": "a", "verdict": verdict}, {"id": "b", "verdict": other}]}

    found = blame([
        result("wrong", resolver="xnnpack", version="2.21"), result("right", resolver="builtin", version="2.21"),
        result("right", resolver="reference", version="2.21"), result("unsupported", resolver="xnnpack", version="3"),
    ])
    assert found == {"a": "wrong with resolver=xnnpack, right with resolver=builtin or reference"}
    mixed = blame([result("wrong", resolver="x", threads=1), result("right", resolver="y", threads=1), result("right", resolver="x", threads=2)])
    assert mixed == {"a": "no option alone decides"}
    assert blame([result("wrong", resolver="x"), result("wrong", resolver="y")]) == {}


def journalled(journal, *lines):
    with open(journal, "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def worker(fatal, together=1, seconds_ago=0.0, failure="crash_signal"):
    """A stand-in that does numbers, and ends at those in `fatal`; and the list of its calls."""
    calls = []

    def call(numbers, journal):
        calls.append(list(numbers))
        for start in range(0, len(numbers), together):
            begun = list(range(start, min(start + together, len(numbers))))
            journalled(journal, {"begun": begun, "time": time.monotonic() - seconds_ago})
            if any(numbers[at] in fatal for at in begun):
                raise StageFailed(failure, "the worker was ended by SIGABRT")
            journalled(journal, *({"done": at, "status": "ran", "number": numbers[at]} for at in begun))

    return call, calls


def test_what_ends_the_worker_costs_itself_alone():
    call, calls = worker(fatal={2, 5})
    found = attempts.each(call, 7, seconds=60)
    assert [each["status"] for each in found] == ["ran", "ran", "crashed", "ran", "ran", "crashed", "ran"]
    assert found[5]["message"] == "the worker was ended by SIGABRT"
    assert [each["number"] for each in found if each["status"] == "ran"] == [0, 1, 3, 4, 6]
    assert calls == [[0, 1, 2, 3, 4, 5, 6], [2], [3, 4, 5, 6], [5], [6]]


def test_what_ran_out_of_memory_after_others_is_tried_alone():
    """A worker that grew over all that it had done is not the doing of the last."""
    def call(numbers, journal):
        for at in range(len(numbers)):
            journalled(journal, {"begun": [at], "time": time.monotonic()})
            if at == 2:
                raise StageFailed("out_of_memory", "the worker was ended at 8 GiB")
            journalled(journal, {"done": at, "status": "ran"})

    assert [each["status"] for each in attempts.each(call, 5, seconds=60)] == ["ran"] * 5


def test_of_those_done_together_each_is_tried_alone():
    call, calls = worker(fatal={1}, together=3)
    found = attempts.each(call, 5, seconds=60)
    assert [each["status"] for each in found] == ["ran", "crashed", "ran", "ran", "ran"]
    assert calls == [[0, 1, 2, 3, 4], [0], [1], [2], [3, 4]]


def test_what_takes_too_long_has_timed_out():
    call, _calls = worker(fatal={0}, seconds_ago=61)
    assert [each["status"] for each in attempts.each(call, 2, seconds=60)] == ["timed_out", "ran"]


@pytest.mark.parametrize("failure", ["preempted", "env_unavailable"])
def test_an_end_from_outside_is_nobodys(failure):
    call, _calls = worker(fatal={0}, failure=failure)
    with pytest.raises(StageFailed, match="SIGABRT"):
        attempts.each(call, 2, seconds=60)


def test_a_worker_that_ends_before_it_begins_is_not_asked_again():
    def call(numbers, journal):
        raise StageFailed("crash_signal", "the worker exited with status 1")

    with pytest.raises(StageFailed, match="status 1"):
        attempts.each(call, 2, seconds=60)


def test_a_watchdog_ends_a_process_that_hangs(tmp_path):
    code = (
        "import sys, time; from sweep.stages import probe; probe.PROBE_SECONDS = 0.2; note = probe._Journal(sys.argv[1])\n"
        "with note.begun([]): pass\n"
        "with note.begun([]): time.sleep(60)"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "journal")], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert "time.sleep(60)" in done.stderr or "Timeout" in done.stderr
    assert time.monotonic() - started < 30
    assert len((tmp_path / "journal").read_text().splitlines()) == 2


@dataclass(frozen=True)
class StandIn(Work):
    """Workers whose route gets `same` padding wrong, refuses windows of 5, and ends where the stride is 4; TensorFlow's kernels of NumPy."""

    def call(self, function, **arguments):
        if function == "probe:ways":
            return [{"dilation_height": [1], "dilation_width": [1]}]
        if function == "probe:versions":
            return {arguments["module"]: "1.2.3"}
        for at, (case, folder) in enumerate(zip(arguments["probes"], arguments["folders"], strict=True)):
            journalled(arguments["journal"], {"begun": [at], "time": time.monotonic()})
            journalled(arguments["journal"], {"done": at, **self.made(function, case, Path(folder))})
        return None

    def made(self, function, case, folder):
        parameters, arrays = case["parameters"], probing.arrays_of(case)
        if function == "probe:export":
            (folder / stage.EXPORTED).mkdir()
            return {"status": "ran", "file": "model"}
        if function == "probe:natively":
            np.save(folder / stage.OWN_OUTPUT, probing.exact(case, *arrays).astype(np.float32))
            return {"status": "ran"}
        if parameters["window_height"] == 5:
            return {"status": "refused", "step": "convert", "error": "ValueError", "message": f"{folder}/exported/model: too wide"}
        if parameters["stride_height"] == 4:
            raise StageFailed("crash_signal", "the worker was ended by SIGSEGV")
        (folder / stage.DEPLOYED).mkdir()
        (folder / stage.DEPLOYED / "model.onnx").write_text("a model")
        weights, inputs = probing.wide(arrays[0]), arrays[1].astype(float)
        output = probing.exact(case, *arrays)
        if parameters["padding"] == "same":
            output = conv2d.reference(parameters, weights, np.zeros_like(inputs))
        np.save(folder / stage.OUTPUT, output.astype(np.float32))
        return {"status": "ran", "file": "model.onnx", "runs": {"threads": 1}}


def settings(**changes):
    component = {"options": {}, "toolchain": toolchain.DEFAULT, "threads": 1, "lock": ""}
    return {
        "toolchain": toolchain.DEFAULT, "exporter": component | {"module": "tensorflow", "version": "2.21.0"},
        "runtime": component | {"module": "onnxruntime", "version": "1.32.0", "options": {"optimization": "all"}}, "operator": "conv2d",
        "count": 60, "seed": 0, "format": "onnx", "quantization": "float32", "quantization_options": {}, **changes,
    }


@pytest.fixture
def bench(tmp_path):
    log, pool = tmp_path / "log.txt", Pool(keep=2, recycle_bytes=4 << 30)
    log.touch()
    yield Bench(pool, Shape(toolchain.default()), Limits(300.0, 8 << 30), log)
    pool.close()


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_a_stage_finds_names_and_writes_down_what_is_wrong(bench, out):
    outcome = probe.run(StandIn(settings(), {}, None, out, bench))
    records = json.loads((out / "probes.json").read_text())
    wrong = [record for record in records if record["verdict"] == "wrong"]
    assert len(wrong) >= 3
    for record in records:
        parameters = record["parameters"]
        if parameters["window_height"] == 5:
            assert (record["verdict"], record["failure_class"]) == ("unsupported", "convert_failed")
            assert record["message"] == "exported/model: too wide"
        elif parameters["stride_height"] == 4:
            assert (record["verdict"], record["message"]) == ("crashed", "the worker was ended by SIGSEGV")
        else:
            assert record["verdict"] == ("wrong" if parameters["padding"] == "same" else "right")
        assert record["framework"] == "right"
    assert {record["fault"] for record in wrong} == {"padding_windows"}
    assert outcome["metrics"]["probes"] == 60
    assert outcome["metrics"]["probes_wrong"] == len(wrong)
    assert sum(outcome["metrics"][f"probes_{verdict}"] for verdict in VERDICTS) == 60
    assert f"padding_windows: {len(wrong)}" in outcome["facts"]["faults"]
    assert outcome["runs"] == {"threads": 1}
    assert [folder.name for folder in (out / "reproducers").iterdir()] == ["conv2d-padding_windows"]  # of the crash there is no file


def test_a_reproducer_is_the_simplest_case_and_stands_alone(bench, out):
    probe.run(StandIn(settings(), {}, None, out, bench))
    folder = out / "reproducers" / "conv2d-padding_windows"
    assert {path.name for path in folder.iterdir()} == {
        "README.md", "reproduce.py", "model.onnx", "inputs.npy", "right.npy", "observed.npy", "tolerance.npy", "weights_kernel.npy",
    }
    inputs, right, observed = (np.load(folder / f"{name}.npy") for name in ("inputs", "right", "observed"))
    assert inputs.ravel()[:4].tolist() == [1, 2, 3, 4]  # whole numbers, of the smallest image
    assert (inputs.shape, right.dtype) == ((2, 4, 4, 1), np.float64)
    assert not observed.any()
    text = (folder / "README.md").read_text()
    assert "| padding | same |" in text
    assert "onnxruntime 1.32.0 with optimization = all" in text
    assert "every window in the padding" in text
    assert "| tensorflow | 1.2.3 |\n| onnxruntime | 1.2.3 |" in text
    imported = {line.split()[1].partition(".")[0] for line in (folder / "reproduce.py").read_text().splitlines()
                if line.lstrip().startswith(("import ", "from "))}
    assert imported == {"onnxruntime", "numpy", "importlib", "sys", "pathlib"}


def test_every_runtime_and_framework_that_builds_operators_has_its_program():
    lacking = [name for name in components.names("runtimes") if name not in ("fake", "native") and not reproducer.can_be_written("runtimes", name)]
    builders = sorted(path.name.removeprefix("_").removesuffix("_operators.py") for path in (ROOT / "sweep/frameworks").glob("_*_operators.py"))
    assert lacking == []
    assert [name for name in builders if not reproducer.can_be_written("frameworks", name)] == []


def work(bench, out, framework, runtime, target, **changes):
    described = {}
    with bench.pool.borrow(bench.shape, bench.log) as held:
        for kind, module in (("frameworks", framework), ("runtimes", runtime)):
            arguments = {"modules": {kind: [module]}, "packages": []}
            described[kind] = held.call("sweep.worker.describe:run", arguments, bench.limits, bench.log)[0][kind][module]
    component = {"toolchain": toolchain.DEFAULT, "threads": 1, "lock": ""}
    options = {name: option["default"] for name, option in described["runtimes"]["facts"]["options"].items()}
    row = changes.get("quantization", "float32")
    conversion = {name: option["default"] for name, option in described["runtimes"]["facts"]["quantizations"][row].items()}
    chosen = settings(
        exporter=component | {"module": framework, "options": {}, "version": described["frameworks"]["version"]},
        runtime=component | {"module": runtime, "options": options | changes.pop("options", {}), "version": described["runtimes"]["version"]},
        format=target, quantization_options=conversion, **changes,
    )
    return Work(chosen, {}, None, out, bench)


@pytest.mark.parametrize("row", ["float32", "static_int8"])
def test_probes_run_in_the_default_toolchain(bench, out, row):
    outcome = probe.run(work(bench, out, "pytorch", "onnxruntime", "onnx", operator="dense", count=6, quantization=row))
    assert outcome["metrics"]["probes_right"] == 6
    assert outcome["facts"] == {"faults": "none"}
    assert outcome["runs"]["execution_providers"] == ["CPUExecutionProvider"]
    assert not (out / "reproducers").exists()


def test_where_zeros_would_be_right_nothing_is_decided():
    right = np.array([[0.4, -0.2]])
    assert decides(right, np.full_like(right, 0.3), "static_int8")
    assert not decides(right, np.full_like(right, 0.5), "static_int8")
    assert decides(np.zeros((1, 2)), np.full((1, 2), 0.5), "static_int8")  # zeros are what it should give


def test_a_framework_is_probed_by_itself(bench, out):
    outcome = probe.run(work(bench, out, "pytorch", "native", "native", operator="average_pool", count=40))
    assert (outcome["metrics"]["probes_right"], outcome["metrics"]["probes_framework_faulty"]) == (40, 0)


@pytest.mark.slow
def test_same_padding_with_a_stride_larger_than_the_window_is_the_delegates_fault(bench, tmp_path):
    """Nothing here knows of the fault, which TensorFlow 2.21's interpreter has with its default delegate and LiteRT 2.3.0 has not."""
    results = []
    for runtime, resolver in (("tflite", "xnnpack"), ("tflite", "builtin"), ("litert", "xnnpack")):
        for operator in ("conv2d", "depthwise_conv2d"):
            folder = tmp_path / f"{runtime}-{resolver}-{operator}"
            folder.mkdir()
            probe.run(work(bench, folder, "tensorflow", runtime, "saved_model", operator=operator, count=100, options={"resolver": resolver}))
            records = json.loads((folder / "probes.json").read_text())
            if (runtime, resolver) == ("tflite", "xnnpack"):
                wrong = [record for record in records if record["verdict"] == "wrong"]
                assert wrong
                assert {record["fault"] for record in wrong} == {"padding_windows"}
                assert all("the stride is larger than the window" in record["detail"] for record in wrong)
                shown = folder / "reproducers" / f"{operator}-padding_windows" / "reproduce.py"
                done = subprocess.run([sys.executable, str(shown)], capture_output=True, text=True, check=False, cwd=tmp_path)
                assert done.returncode == 1
                assert "WRONG" in done.stdout
            else:
                assert [record["id"] for record in records if record["verdict"] in ("wrong", "crashed", "timed_out")] == []
            if runtime == "tflite":
                results.append({"options": {"resolver": resolver}, "records": records})
    assert set(blame(results).values()) == {"wrong with resolver=xnnpack, right with resolver=builtin"}
