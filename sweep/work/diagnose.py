"""Diagnosis: the suspect's layers run in its own toolchain, what they should have given and the verdict come from the default one."""

import json
from dataclasses import replace
from pathlib import Path

from sweep import toolchain
from sweep.parity import WRONG
from sweep.stages import diagnose
from sweep.stages.models import read_details
from sweep.work import Outcome, Work
from sweep.work.evaluate import PARITY_FILE


def run(work: Work) -> Outcome:
    """Layer by layer, unless `when` is `parity_fails` and neither the transplant's proof nor the evaluation's parity does."""
    facts = [_facts(work.inputs[role]) for role in ("model", "evaluation") if role in work.inputs]
    failed = any(found.get(name) in WRONG for found in facts for name in ("proof", "parity"))
    if work.settings["when"] == "parity_fails" and not failed:
        return {"metrics": {}, "facts": {"diagnosis": "not run, parity holds"}}
    default = replace(work, bench=replace(work.bench, shape=replace(work.bench.shape, toolchain=toolchain.default(), gpus=())))
    return (_deployed if "quantization" in work.settings else _framework)(work, default)


def _framework(work: Work, default: Work) -> Outcome:
    source, out = work.inputs["source"], str(work.folder)
    default.call("diagnose:reference_side", settings=work.settings, source=source, data=work.test_data, out=out)
    work.call("diagnose:suspect_side", settings=work.settings, model=work.inputs["model"], out=out)
    found: Outcome = default.call("diagnose:verdict", source=source, out=out)
    (work.folder / diagnose.REFERENCE).unlink()  # it follows from the source's weights, and is the largest of the files
    return found


def _deployed(work: Work, default: Work) -> Outcome:
    """Of a runtime's model. Where something is wrong, whether it goes when an option of the runtime is switched."""
    source, model, out = work.inputs["source"], work.inputs["model"], str(work.folder)
    default.call("diagnose:inputs_side", settings=work.settings, data=work.test_data, out=out)
    work.call("diagnose:deployed_side", settings=work.settings, model=model, out=out)
    if read_details(source)["layers"] is None:
        _source_tensors(work, source, out)
    parity = json.loads((Path(work.inputs["evaluation"]) / PARITY_FILE).read_text())
    judging = {"settings": work.settings, "source": source, "out": out, "rounding": parity.get("tolerance_equal", 0.0)}
    found: Outcome = default.call("diagnose:deployed_verdict", **judging)
    if found["facts"]["diagnosis"] != diagnose.NO_FAULT:
        work.call("diagnose:switched_side", settings=work.settings, model=model, out=out)
        found = default.call("diagnose:deployed_verdict", **judging)
    for name in (diagnose.TENSORS, diagnose.SOURCE_TENSORS):
        (work.folder / f"{name}.npz").unlink(missing_ok=True)  # they follow from the files, and are the largest
    return found


def _source_tensors(work: Work, source: str, out: str) -> None:
    """The tensors of a source that isn't known by its layers, in the toolchain that opens its format."""
    runtime = work.settings["source_runtime"]
    shape = replace(work.bench.shape, toolchain=toolchain.named(runtime["toolchain"]), gpus=())
    opened = replace(work, bench=replace(work.bench, shape=shape))
    opened.call("diagnose:source_side", settings={**work.settings, **runtime}, source=source, out=out)


def _facts(folder: str) -> dict[str, str]:
    """What the stage that wrote a folder found out."""
    result = json.loads((Path(folder) / "result.json").read_text())["result"]
    return dict(result["facts"])
