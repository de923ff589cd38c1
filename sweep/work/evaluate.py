"""Evaluation: the device gives logits; accuracy and parity with the source follow from them here."""

import csv
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sweep import allowance, components, metrics, parity, quantization, simulation
from sweep.inputs import UNLABELLED, read_labels
from sweep.stages.evaluate import CHECKED, EXACT, MOVED
from sweep.stages.models import deployed_bytes, read_details
from sweep.work import Outcome, Work, outcomes

FLIPS = ("index", "label", "prediction_source", "margin_source", "prediction", "margin")
PARITY_FILE = "parity.json"
PARITY_METRICS = {
    "tolerance_max": "parity_tolerance", "tolerance_p99": "parity_tolerance", "decided_disagreements": "parity_decided_disagreements",
    "clipped_outputs": "clipped_outputs", "ulps_max": "logit_diff_max_ulps", "correlation": "logit_correlation",
    "disagreement": "disagreement", "difference_p50": "logit_diff_p50", "difference_p90": "logit_diff_p90",
    "difference_p99": "logit_diff_p99", "difference_max": "logit_diff_max",
}
"""Figures of a verdict that are a cell's too; parity.json has them all. A float row's tolerance is for the largest difference, an integer
row's for the 99th percentile."""


def run(work: Work) -> Outcome:
    assert work.data is not None
    device = components.load("devices", work.settings["device"])
    arguments = {"settings": work.settings, "model": work.inputs["model"], "data": work.test_data, "out": str(work.folder)}
    outcome = device.run(work.bench, "sweep.stages.evaluate:run", arguments)
    logits, index = np.load(work.folder / "logits.npy"), np.load(work.folder / "index.npy")
    labels = read_labels(work.data["folder"], "test", index)
    classes = _has_classes(work.inputs["model"])
    found: dict[str, float] = {"eval_n": len(index), "model_size_bytes": deployed_bytes(work.inputs["model"])}
    if classes:
        found |= metrics.evaluation(logits, None if labels[0] == UNLABELLED else labels)
    facts = {"degenerate": "one class"} if found.get("unique_predictions") == 1 else {}
    exact = work.folder / EXACT
    if work.settings["exact"] == "source":  # equal weights have equal exact logits, and to compute them takes longer than all else
        for name in (EXACT, MOVED):
            shutil.copyfile(Path(work.inputs["source"]) / name, work.folder / name)
    if exact.exists() and classes:
        reference = np.load(exact)
        found["float32_error_max"] = metrics.float32_error(logits[: len(reference)], reference)
    if "source" in work.inputs:
        source = np.load(Path(work.inputs["source"]) / "logits.npy")
        allowed = _allowance(work, source)
        judged = parity.verdict(logits, source, allowed, classes=classes)
        single, again = (np.load(work.folder / f"{name}.npy") for name in CHECKED)
        judged = parity.with_steadiness(judged, logits, single, again, allowed)
        (work.folder / PARITY_FILE).write_text(json.dumps(judged, indent=1))
        found |= _figures(judged)
        facts |= {"parity": judged["verdict"]} | _told(judged)
        if classes:
            _write_flips(work.folder / "flips.csv", index, labels, source, logits)
    if classes:
        outcomes.write(work.folder, metrics.outcome_columns(index, labels, logits))
    return outcome | {"metrics": outcome["metrics"] | found, "facts": facts}


def _allowance(work: Work, source: np.ndarray) -> allowance.Allowance:
    """What the row explains of a difference from the source."""
    assert work.data is not None
    details = read_details(work.inputs["model"])
    paths = [Path(work.inputs["source"]) / name for name in (EXACT, MOVED)]
    exact, moved = (np.load(path) if path.exists() else None for path in paths)
    if details["layers"] is None:
        products = details["products"]
    else:
        products = sum(layer["kind"] in simulation.PRODUCTS for layer in details["layers"])
    row, options = quantization.ROWS[work.settings["quantization"]], work.settings["quantization_options"]
    simulated, calibration = None, None
    if "simulated" in work.inputs:
        simulated = np.load(Path(work.inputs["simulated"]) / "simulated.npy")
    if row.calibrated:
        with np.load(work.data["splits"], allow_pickle=False) as splits:
            calibration = options["samples"] or len(splits["calibration"])
    how = simulation.arithmetic(row, options)
    few = exact
    if simulated is not None and exact is not None:
        both = min(len(simulated), len(exact))
        few, simulated = exact[:both], simulated[:both]
    plain = allowance.float32(source, exact, products, moved)
    return allowance.of(how, plain, source, few, simulated, products, calibration)


def _has_classes(model: str) -> bool:
    """Whether a model gives one value for each class; a user's own may give anything."""
    shape = read_details(model)["output_shape"]
    return shape is not None and len(shape) == 1 and shape[0] > 1


def _figures(judged: Mapping[str, Any]) -> dict[str, float]:
    return {name: judged[figure] for figure, name in PARITY_METRICS.items() if figure in judged}


def _told(judged: Mapping[str, Any]) -> dict[str, str]:
    """What is not as it should be, in words."""
    told = {"parity_reason": "; ".join(judged["reasons"])} if judged["reasons"] else {}
    if not judged["batch_invariant"]:
        told["batch_invariant"] = "no"
    if not judged["deterministic"]:
        told["deterministic"] = "no"
    return told


def _write_flips(path: Path, index: np.ndarray, labels: np.ndarray, source: np.ndarray, logits: np.ndarray) -> None:
    """The inputs whose answer a conversion changed, one a row, those with the largest margin of the source first."""
    before, after = metrics.predictions(source), metrics.predictions(logits)
    margins, margins_after = metrics.margins(source), metrics.margins(logits)
    flipped = np.flatnonzero(before != after)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FLIPS)
        for row in flipped[np.argsort(-margins[flipped], kind="stable")]:
            writer.writerow([index[row], labels[row], before[row], f"{margins[row]:.6g}", after[row], f"{margins_after[row]:.6g}"])
