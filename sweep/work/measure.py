"""Measurement: the device gives samples; percentiles, intervals and the ratio to the reference follow from them here."""

import json
import os
from dataclasses import replace

import numpy as np

from sweep import components, timing, toolchain
from sweep.contracts import Timed
from sweep.stages.models import deployed_bytes
from sweep.work import Outcome, Work


def run(work: Work) -> Outcome:
    settings = work.settings
    device = components.load("devices", settings["device"])
    candidate = Timed(work.bench, {"settings": settings, "model": work.inputs["model"], "data": work.data})
    reference = None
    if "reference" in work.inputs:
        chosen = dict(settings) | {name: settings["reference"][name] for name in ("runtime", "module", "toolchain", "options")}
        shape = replace(work.bench.shape, toolchain=toolchain.named(chosen["toolchain"]))
        reference = Timed(replace(work.bench, shape=shape), {"settings": chosen, "model": work.inputs["reference"], "data": work.data})
    load_average = os.getloadavg()[0]
    samples = device.measure(candidate, reference, settings["processes"], settings["blocks"], settings["seed"])
    found = timing.latency(samples.candidate)
    if samples.reference:
        found |= timing.ratio(samples.candidate, samples.reference)
    found |= {
        "first_call_ms": 1e3 * float(np.median([opened["first_call_s"] for opened in samples.opened])),
        "load_ms": 1e3 * float(np.median([opened["load_s"] for opened in samples.opened])),
        "peak_memory_bytes": float(np.median([opened["peak_bytes"] for opened in samples.opened])),
        "throughput_per_s": samples.opened[0]["batch"] / float(np.median(samples.batch_seconds)),
        "throughput_batch": samples.opened[0]["batch"],
        "model_size_bytes": deployed_bytes(work.inputs["model"]),
    }
    if samples.energy_j is not None:
        found["energy_j"] = samples.energy_j
    kept = {name: getattr(samples, name) for name in ("candidate", "reference", "batch_seconds", "opened")}
    (work.folder / "samples.json").write_text(json.dumps(kept))
    labels = {name: str(value) for name, value in found.items() if isinstance(value, str | bool)}
    numbers = {name: value for name, value in found.items() if name not in labels}
    facts = labels | samples.facts | {"load_average": f"{load_average:.2f}"}
    return {"metrics": numbers, "runs": samples.opened[0]["runs"], "facts": facts}
