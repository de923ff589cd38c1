"""Evaluation: the device gives logits; accuracy and parity with the source follow from them here."""

import shutil
from pathlib import Path

import numpy as np

from sweep import components, metrics
from sweep.inputs import read_labels
from sweep.stages.models import deployed_bytes
from sweep.work import Outcome, Work, outcomes


def run(work: Work) -> Outcome:
    assert work.data is not None
    device = components.load("devices", work.settings["device"])
    arguments = {"settings": work.settings, "model": work.inputs["model"], "data": work.data, "out": str(work.folder)}
    outcome = device.run(work.bench, "sweep.stages.evaluate:run", arguments)
    logits, index = np.load(work.folder / "logits.npy"), np.load(work.folder / "index.npy")
    labels = read_labels(work.data["folder"], "test", index)
    found = metrics.evaluation(logits, labels) | {"model_size_bytes": deployed_bytes(work.inputs["model"])}
    facts = {"degenerate": "one class"} if found["unique_predictions"] == 1 else {}
    exact = work.folder / "exact.npy"
    if work.settings["exact"] == "source":  # equal weights have equal exact logits, and to compute them takes longer than all else
        shutil.copyfile(Path(work.inputs["source"]) / exact.name, exact)
    if exact.exists():
        reference = np.load(exact)
        found["float32_error_max"] = metrics.float32_error(logits[: len(reference)], reference)
    if "source" in work.inputs:
        source = Path(work.inputs["source"])
        found |= metrics.parity(logits, np.load(source / "logits.npy"))
        if work.settings["float32"]:
            found |= _float32_parity(logits, source)
            facts["parity"] = "holds" if found.pop("parity") else "broken"
    outcomes.write(work.folder, metrics.outcome_columns(index, labels, logits))
    return outcome | {"metrics": outcome["metrics"] | found, "facts": facts}


def _float32_parity(logits: np.ndarray, source: Path) -> dict[str, float]:
    """Whether a float32 conversion computes the source's function, on the inputs that have an exact reference."""
    exact, original = np.load(source / "exact.npy"), np.load(source / "logits.npy")
    few = len(exact)
    error = metrics.float32_error(original[:few], exact)
    verdict = metrics.float32_parity(logits[:few], original[:few], error)
    found = {
        "parity": verdict.holds,
        "parity_n": few,
        "parity_tolerance": verdict.tolerance,
        "parity_decided_disagreements": verdict.decided_disagreements,
    }
    compared = metrics.parity(logits[:few], original[:few])
    if "logit_diff_max" in compared:  # no difference where no output is a number
        found["parity_logit_diff_max"] = compared["logit_diff_max"]
    return found
