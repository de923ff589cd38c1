"""Attacks: crafted on the framework's own model, or a set that was crafted there put to a converted one."""

import contextlib
import os
import secrets
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

from sweep import components, metrics, toolchain
from sweep.errors import Raised, StageFailed
from sweep.work import Outcome, Work, outcomes


def run(work: Work) -> Outcome:
    return (_transfer if "attack" in work.inputs else _craft)(work)


def _craft(work: Work) -> Outcome:
    """ART in one worker, the model in another; whichever dies takes the stage with it."""
    bench, key = work.bench, secrets.token_bytes(32).hex()
    with tempfile.TemporaryDirectory(prefix="sweep-attack-") as private, contextlib.ExitStack() as stack:
        joint = {"address": os.path.join(private, "socket"), "key": key}
        held = stack.enter_context(bench.pool.borrow(bench.shape, bench.log))
        apart = replace(bench.shape, toolchain=toolchain.default(), gpus=())
        attacker = stack.enter_context(bench.pool.borrow(apart, bench.log))
        failures: list[StageFailed] = []

        def serve() -> None:
            try:
                arguments = {"settings": work.settings, "model": work.inputs["model"], **joint}
                held.call("sweep.stages.attack:serve", arguments, bench.limits, bench.log)
            except StageFailed as failure:
                failures.append(failure)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            arguments = {"settings": work.settings, "data": work.data, "out": str(work.folder), **joint}
            outcome, _arrays = attacker.call("sweep.stages.attack:craft", arguments, bench.limits, bench.log)
        except StageFailed as failure:
            if not isinstance(failure, Raised):
                held.end()  # it waits for an attacker that is gone
            thread.join()
            raise failures[0] if failures and isinstance(failure, Raised) else failure from None
        thread.join()
    with np.load(work.folder / "adversarial.npz") as made:
        found, columns = metrics.attack_outcome(made["label"], made["before"], made["after"], made["clean"], made["adversarial"])
        queries = round(outcome["queries"])
        outcomes.write(work.folder, metrics.outcome_columns(made["index"], made["label"], made["after"], columns, queries))
    return {"metrics": outcome["metrics"] | found, "facts": {"access": work.settings["access"]}}


def _transfer(work: Work) -> Outcome:
    """The set that was crafted on the source, put to a converted model."""
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
    return {"metrics": found, "runs": outcome["runs"], "facts": {"access": work.settings["access"]}}
