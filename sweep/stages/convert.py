"""The two edges of a route: a framework exports a format, a runtime makes its deployed file of it."""

import os
import time

import numpy as np

from sweep.inputs import read_inputs
from sweep.stages.models import deployed_bytes, load_model, open_framework, open_runtime, read_details, write_details


def run(settings, model, data, out):
    """Convert folder `model` into folder `out`; returns the seconds it took and the size of what it wrote."""
    started = time.perf_counter()
    details = (_export if settings["step"] == "export" else _deploy)(settings, model, data, out)
    seconds = time.perf_counter() - started
    write_details(out, **details)
    return {"metrics": {"convert_seconds": seconds, "model_size_bytes": deployed_bytes(out)}}


def _export(settings, folder, _data, out):
    framework = open_framework(settings)
    model, details = load_model(framework, folder)
    file = framework.export(model, details["layers"], settings["format"], out)
    return dict(details, format=settings["format"], file=file)


def _deploy(settings, folder, data, out):
    runtime, details = open_runtime(settings), read_details(folder)
    calibration = None
    if settings["quantization"] in runtime.FACTS["calibrated"]:
        chosen = np.load(data["splits"], allow_pickle=False)["calibration"]
        calibration = read_inputs(data["folder"], "train", chosen)
    file = runtime.convert(os.path.join(folder, details["file"]), details["format"], out, settings["quantization"], calibration)
    return dict(details, format=runtime.FACTS["format"], file=file, runtime=settings["runtime"], quantization=settings["quantization"])
