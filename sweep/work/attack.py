"""Attacks: crafted on a framework's own model or on a deployed one, or a set that was crafted elsewhere put to a model."""

import contextlib
import os
import secrets
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweep import components, figures, metrics, toolchain, trust
from sweep.errors import Raised, StageFailed
from sweep.work import Outcome, Work, outcomes

if TYPE_CHECKING:
    from sweep.workers import Shape, Worker

PREDICT, GRADIENTS = ("predict",), ("loss_gradient", "class_gradient")
FIGURE = "adversarial.png"


@dataclass(frozen=True)
class _Model:
    """A model of an attack: the function of `sweep.stages.attack` that serves it, its settings, and what it is asked for."""

    function: str
    shape: "Shape"
    settings: Any
    folder: str
    verbs: Sequence[str]


def run(work: Work) -> Outcome:
    """Files: `adversarial.npz` (crafted sets alone), the first of them as FIGURE, and the outcomes."""
    if "attack" in work.inputs:
        return _transfer(work)
    outcome = _craft(work, list(_models(work)))
    with np.load(work.folder / "adversarial.npz") as made:
        found, columns = metrics.attack_outcome(made["label"], made["before"], made["after"], made["clean"], made["adversarial"])
        outcomes.write(
            work.folder, metrics.outcome_columns(made["index"], made["label"], made["after"], columns, round(outcome["queries"]))
        )
        figures.adversarial(work.folder / FIGURE, made)
    if "attack_success_rate" not in found:
        raise _nothing_right(int(found["attack_n"]))
    found |= {"attack_seconds": outcome["seconds"], "attack_queries": outcome["queries"]}
    facts = {"access": work.settings["access"]}
    if flags := trust.of_model(outcome["repeat_difference"], outcome["zero_gradients"], outcome["right"]):
        facts["flags"] = "; ".join(flags)
    return {"metrics": found, "facts": facts} | ({"runs": outcome["runs"]} if "runs" in outcome else {})


def _nothing_right(count: int) -> StageFailed:
    return StageFailed("attack_failed", f"the model is right on none of the {count} inputs, so there is nothing to attack")


def _models(work: Work) -> Iterator[_Model]:
    shape, settings, model = work.bench.shape, work.settings, work.inputs["model"]
    if "runtime" not in settings:
        yield _Model("serve_source", shape, settings, model, PREDICT + GRADIENTS)
        return
    yield _Model("serve_deployed", shape, settings, model, PREDICT)
    if "twin" in work.inputs:
        twin = settings["twin"]
        yield _Model("serve_source", replace(shape, toolchain=toolchain.named(twin["toolchain"])), twin, work.inputs["twin"], GRADIENTS)


@dataclass
class _Served:
    """Models in workers of their own while an attack runs; whichever dies takes the stage with it."""

    workers: "list[Worker]" = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    failures: list[StageFailed] = field(default_factory=list)
    outcomes: list[dict[str, Any]] = field(default_factory=list)


def _craft(work: Work, models: Sequence[_Model]) -> dict[str, Any]:
    """ART in one worker, each model in another."""
    bench, key = work.bench, secrets.token_bytes(32).hex()
    with tempfile.TemporaryDirectory(prefix="sweep-attack-") as private, contextlib.ExitStack() as stack:
        addresses = {model.function: os.path.join(private, model.function) for model in models}
        served = _Served([stack.enter_context(bench.pool.borrow(model.shape, bench.log)) for model in models])
        apart = replace(bench.shape, toolchain=toolchain.default(), gpus=())
        attacker = stack.enter_context(bench.pool.borrow(apart, bench.log))

        def serve(model: _Model, worker: "Worker") -> None:
            try:
                arguments = {"settings": model.settings, "model": model.folder, "address": addresses[model.function], "key": key}
                found, _arrays = worker.call(f"sweep.stages.attack:{model.function}", arguments, bench.limits, bench.log)
                served.outcomes.append(found)
            except StageFailed as failure:
                served.failures.append(failure)

        for model, worker in zip(models, served.workers, strict=True):
            served.threads.append(threading.Thread(target=serve, args=(model, worker)))
            served.threads[-1].start()
        try:
            where = {verb: addresses[model.function] for model in models for verb in model.verbs}
            arguments = {"settings": work.settings, "data": work.data, "models": where, "key": key, "out": str(work.folder)}
            outcome: dict[str, Any] = attacker.call("sweep.stages.attack:craft", arguments, bench.limits, bench.log)[0]
        except StageFailed as failure:
            for worker in served.workers if not isinstance(failure, Raised) else ():
                worker.end()  # it waits for an attacker that is gone
            _join(served)
            raise served.failures[0] if served.failures and isinstance(failure, Raised) else failure from None
        _join(served)
    runs = [found["runs"] for found in served.outcomes if "runs" in found]
    return outcome | ({"runs": runs[0]} if runs else {})


def _join(served: _Served) -> None:
    for thread in served.threads:
        thread.join()


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
    if "attack_success_rate" not in found:
        raise _nothing_right(int(found["attack_n"]))
    return {"metrics": found, "runs": outcome["runs"], "facts": {"access": work.settings["access"]}}
