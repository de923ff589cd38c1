"""The two edges of a route: a framework exports a format, a runtime makes its deployed file of it."""

import os
import time

import numpy as np

from sweep import components
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
    if settings["adopted"]:
        details = read_details(folder)
        own = components.load("formats", settings["module"])
        file = own.export(os.path.join(folder, details["file"]), settings["format"], out, details)
        return dict(details, format=settings["format"], file=file)
    framework = open_framework(settings)
    model, details = load_model(framework, folder)
    file = framework.export(model, details["layers"], settings["format"], out)
    return dict(details, format=settings["format"], file=file)


def _deploy(settings, folder, data, out):
    runtime, details = open_runtime(settings), read_details(folder)
    calibration = None
    row = settings["quantization"]
    if row in runtime.FACTS["calibrated"]:
        calibration = _calibration(settings["quantization_options"], data)
    file = runtime.convert(
        os.path.join(folder, details["file"]), details["format"], out, row, calibration, settings["quantization_options"]
    )
    return dict(details, format=runtime.FACTS["format"], file=file, runtime=settings["runtime"], quantization=settings["quantization"])


def _calibration(options, data):
    """Training inputs: options["samples"] of the fixed calibration list (None: all of it); more, or another options["draw"] than 0, are
    drawn from the whole training list."""
    with np.load(data["splits"], allow_pickle=False) as splits:
        fixed, everything = splits["calibration"], splits["train"]
    wanted, draw = options["samples"] or len(fixed), options["draw"]
    if draw == 0 and wanted == len(fixed):
        return read_inputs(data["folder"], "train", fixed)
    drawn_from = fixed if draw == 0 and wanted < len(fixed) else everything
    if wanted > len(drawn_from):
        raise ValueError("there are {} training inputs to calibrate with, not {}".format(len(drawn_from), wanted))
    return read_inputs(data["folder"], "train", np.random.RandomState(draw).permutation(drawn_from)[:wanted])
