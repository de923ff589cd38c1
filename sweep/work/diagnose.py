"""Diagnosis: the suspect's layers run in its own toolchain, what they should have given and the verdict come from the default one."""

import json
from dataclasses import replace
from pathlib import Path

from sweep import toolchain
from sweep.stages.diagnose import REFERENCE
from sweep.work import Outcome, Work


def run(work: Work) -> Outcome:
    """Layer by layer, unless `when` is `parity_fails` and neither the transplant's proof nor the evaluation's parity is broken."""
    facts = [_facts(work.inputs[role]) for role in ("model", "evaluation") if role in work.inputs]
    broken = any("broken" in (found.get("proof"), found.get("parity")) for found in facts)
    if work.settings["when"] == "parity_fails" and not broken:
        return {"metrics": {}, "facts": {"diagnosis": "not run, parity holds"}}
    source, out = work.inputs["source"], str(work.folder)
    default = replace(work, bench=replace(work.bench, shape=replace(work.bench.shape, toolchain=toolchain.default(), gpus=())))
    default.call("diagnose:reference_side", settings=work.settings, source=source, data=work.data, out=out)
    work.call("diagnose:suspect_side", settings=work.settings, model=work.inputs["model"], out=out)
    found: Outcome = default.call("diagnose:verdict", source=source, out=out)
    (work.folder / REFERENCE).unlink()  # it follows from the source's weights, and is the largest of the files
    return found


def _facts(folder: str) -> dict[str, str]:
    """What the stage that wrote a folder found out."""
    result = json.loads((Path(folder) / "result.json").read_text())["result"]
    return dict(result["facts"])
