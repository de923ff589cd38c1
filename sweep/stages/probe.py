"""Single operators built, exported, converted, opened and run: many of them in one call, each for itself.

A probe that ends the process, or does not end, costs no other. Before each the `journal`, a file of JSON lines, says which are begun
({"begun": [numbers], "time": on the monotonic clock}), after each what became of it ({"done": number, ...}), so that a caller whose
worker is gone knows the culprit. A watchdog ends the process where a probe takes too long.

What became of one: {"status": "ran"}, with its output in the probe's folder, or {"status": "refused", "step": `export`, `convert`,
`open` or `run`, "error": the exception's type, "message": one line}.
"""

import faulthandler
import gc
import importlib
import json
import os
import sys
import time

import numpy as np

from sweep import components
from sweep.operators import _probe as probing
from sweep.stages.models import open_framework, open_runtime
from sweep.worker import describe
from sweep.worker.serve import one_line

PROBE_SECONDS = 60.0
OWN_OUTPUT, OUTPUT = "own.npy", "output.npy"
EXPORTED, DEPLOYED = "exported", "deployed"  # folders within a probe's


def ways(settings):
    """What the framework has a way to ask for (`sweep.probing.draw.Ways`)."""
    families = components.load("frameworks", settings["exporter"]["module"]).FACTS["operators"]
    return families[settings["operator"]]


def versions(kind, module):
    """What a component is and converts with here, by the name of its package."""
    facts = components.load(kind, module).FACTS
    packages = ([facts["distribution"]] if facts["distribution"] else []) + facts["converters"]
    return {name: describe.version(name) for name in packages}


def natively(settings, probes, folders, journal):
    """Write each probe's output in the framework that builds it, without a file of it, to `own.npy`."""
    framework, note = _opened(settings), _Journal(journal)

    def run(probe, folder):
        output = framework.run_operator(probe, probing.arrays_of(probe)[1])
        np.save(os.path.join(folder, OWN_OUTPUT), output)
        return {"status": "ran"}

    for number, (probe, folder) in enumerate(zip(probes, folders)):
        with note.begun([number]):
            note.done(number, **_attempted("run", run, probe, folder))


def export(settings, probes, folders, journal, target):
    """Write each probe's model in a format into `exported`."""
    framework, note = _opened(settings), _Journal(journal)
    together = framework.FACTS["operators_together"]
    for start in range(0, len(probes), together):
        numbers = list(range(start, min(start + together, len(probes))))
        places = [_folder(folders[number], EXPORTED) for number in numbers]
        with note.begun(numbers):
            for number, written in zip(numbers, framework.export_operators([probes[number] for number in numbers], target, places)):
                note.done(number, **_of_export(written))


def _of_export(written):
    return _refused("export", written) if isinstance(written, Exception) else {"status": "ran", "file": written}


def serve(settings, probes, folders, files, journal):
    """Convert, open and run each probe's exported file; its output is `output.npy`, the deployed file in `deployed`."""
    chosen = dict(settings["runtime"], seed=settings["seed"])
    runtime, note = open_runtime(chosen), _Journal(journal)
    for number, (probe, folder, file) in enumerate(zip(probes, folders, files)):
        with note.begun([number]):
            note.done(number, **_served(runtime, settings, probe, folder, file))


def reopen(settings, probes, folders, files, journal):
    """Run each probe's exported file in the framework that wrote it for itself; its output is `output.npy`."""
    _opened(settings)
    note = _Journal(journal)
    program = importlib.import_module("sweep.frameworks._standalone." + settings["exporter"]["module"])

    def run(probe, folder, file):
        output = program.run(os.path.join(folder, EXPORTED, file), probing.arrays_of(probe)[1], {})
        np.save(os.path.join(folder, OUTPUT), output)
        return {"status": "ran", "file": file}

    for number, (probe, folder, file) in enumerate(zip(probes, folders, files)):
        with note.begun([number]):
            note.done(number, **_attempted("run", run, probe, folder, file))


def _served(runtime, settings, probe, folder, file):
    row, inputs = settings["quantization"], probing.arrays_of(probe)[1]
    source, target = os.path.join(folder, EXPORTED, file), _folder(folder, DEPLOYED)
    details = {
        "input_shape": list(inputs.shape[1:]), "input_dtype": "float32", "output_shape": None, "layers": None, "quantization": row,
        "format": runtime.FACTS["format"],
    }
    calibration = inputs if row in runtime.FACTS["calibrated"] else None
    found = _attempted("convert", lambda: {
        "status": "ran", "file": runtime.convert(source, settings["format"], target, row, calibration, settings["quantization_options"])
    })
    if found["status"] == "refused":
        return found
    details["file"] = found["file"]
    opened = _attempted("open", lambda: {
        "session": runtime.open(os.path.join(target, details["file"]), settings["runtime"]["threads"], details), "status": "ran"
    })
    if opened["status"] == "refused":
        return opened
    session, size = opened["session"], 1 if row in runtime.FACTS["batch_dependent"] else len(inputs)

    def run():
        np.save(os.path.join(folder, OUTPUT), runtime.predict(session, inputs, size))
        return dict(found, runs=runtime.describe(session), one_by_one=size == 1)

    return _attempted("run", run)


def _opened(settings):
    gc.freeze()  # converters collect garbage after each model; with a framework loaded that takes longer than the conversion
    return open_framework(settings["exporter"])


def _folder(*parts):
    path = os.path.join(*parts)
    os.makedirs(path)
    return path


def _attempted(step, function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:  # frameworks and runtimes raise what they like; here it is a result
        return _refused(step, error)


def _refused(step, error):
    return {"status": "refused", "step": step, "error": type(error).__name__, "message": one_line(error)}


class _Journal:
    """Lines that are in the file before anything else happens."""

    def __init__(self, path):
        self._file = open(path, "a")  # noqa: SIM115  # for as long as the journal is written

    def _write(self, **line):
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def begun(self, numbers):
        self._write(begun=numbers, time=time.monotonic())
        return _Watched(PROBE_SECONDS + 2 * len(numbers))

    def done(self, number, **found):
        self._write(done=number, **found)


class _Watched:
    """Ends the process, with a stack trace in its log, where the block takes longer."""

    def __init__(self, seconds):
        self._seconds = seconds

    def __enter__(self):
        faulthandler.dump_traceback_later(self._seconds, exit=True, file=sys.stderr)

    def __exit__(self, *_exception):
        faulthandler.cancel_dump_traceback_later()
