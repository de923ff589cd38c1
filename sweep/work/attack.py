"""Attacks: crafted on a framework's own model or on a deployed one, or a set that was crafted elsewhere put to a model."""

from pathlib import Path

import numpy as np

from sweep import components, figures, metrics
from sweep.errors import StageFailed
from sweep.work import Outcome, Work, joined, outcomes

FIGURE = "adversarial.png"
ENGINE = "contract"
"""What computes outputs and gradients: the contract of frameworks and runtimes, and none of the toolbox's own estimators."""


def run(work: Work) -> Outcome:
    """Files: `adversarial.npz` and the first of them as FIGURE, where they were crafted here, and the outcomes."""
    return (_transfer if "attack" in work.inputs else _craft)(work)


def _craft(work: Work) -> Outcome:
    models, gradients = _models(work)
    arguments = {"settings": work.settings, "data": work.data, "gradients": gradients, "out": str(work.folder)}
    outcome, runs = joined.call(work, "attack:craft", models, **arguments)
    with np.load(work.folder / "adversarial.npz") as made:
        found, columns = metrics.attack_outcome(made["label"], made["before"], made["after"], made["clean"], made["adversarial"])
        queries = np.where(made["before"].argmax(axis=1) == made["label"], round(outcome["queries"]), 0)  # what is wrong isn't attacked
        outcomes.write(work.folder, metrics.outcome_columns(made["index"], made["label"], made["after"], columns, queries))
        figures.adversarial(work.folder / FIGURE, made)
    _check_attacked(found)
    found |= {"attack_seconds": outcome["seconds"], "attack_queries": outcome["queries"], "attacked": outcome["right"]}
    found["attack_repeat_difference"] = outcome["repeat_difference"]
    if outcome["zero_gradients"] is not None:
        found["attack_zero_gradients"] = outcome["zero_gradients"]
    facts = {"access": work.settings["access"], "engine": ENGINE}
    return {"metrics": found, "facts": facts} | ({"runs": runs["attacked"]} if "attacked" in runs else {})


def _models(work: Work) -> tuple[list[joined.Model], str | None]:
    """The models, and the role of the one that gives gradients."""
    shape, settings, model = work.bench.shape, work.settings, work.inputs["model"]
    if "runtime" not in settings:
        return [joined.source("attacked", shape, settings, model)], "attacked"
    deployed = joined.deployed("attacked", shape, settings, model)
    if "twin" not in work.inputs:
        return [deployed], None
    return [deployed, joined.source("twin", shape, settings["twin"], work.inputs["twin"])], "twin"


def _transfer(work: Work) -> Outcome:
    """A set that was crafted on another model, put to this one."""
    crafted = Path(work.inputs["attack"]) / "adversarial.npz"
    with np.load(crafted) as made:
        np.savez(work.folder / "inputs.npz", clean=made["clean"], adversarial=made["adversarial"])
        device = components.load("devices", work.settings["device"])
        arguments = {"settings": work.settings, "model": work.inputs["model"], "out": str(work.folder)}
        arguments["arrays_file"] = str(work.folder / "inputs.npz")
        outcome = device.run(work.bench, "sweep.stages.evaluate:predict", arguments)
        (work.folder / "inputs.npz").unlink()
        with np.load(work.folder / "logits.npz") as logits:
            before, after = logits["clean"], logits["adversarial"]
        found, columns = metrics.attack_outcome(made["label"], before, after, made["clean"], made["adversarial"])
        outcomes.write(work.folder, metrics.outcome_columns(made["index"], made["label"], after, columns, 0))
    _check_attacked(found)
    return {"metrics": found, "runs": outcome["runs"], "facts": {"access": work.settings["access"]}}


def _check_attacked(found: dict[str, float]) -> None:
    if "attack_success_rate" not in found:
        message = f"the model is right on none of the {found['attack_n']:.0f} inputs, so there is nothing to attack"
        raise StageFailed("attack_failed", message)
