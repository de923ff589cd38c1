"""Models in workers of their own, joined by the border to one worker that asks them."""

import contextlib
import os
import secrets
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sweep import toolchain
from sweep.errors import Raised, StageFailed
from sweep.work import Work

if TYPE_CHECKING:
    from sweep.workers import Shape, Worker

BROKEN_LINE = ("EOFError", "ConnectionResetError", "BrokenPipeError", "FileNotFoundError", "ConnectionRefusedError")
"""What the one who asks meets where a model's worker has died: the worker's own failure, seconds later at most, is the cause."""
LAST_WORDS = 10.0


@dataclass(frozen=True)
class Model:
    """One of the models: what it is to the one who asks, the function of `sweep.stages.serve` that serves it, its worker and its file."""

    role: str
    function: str
    shape: "Shape"
    settings: Mapping[str, Any]
    folder: str


def deployed(role: str, shape: "Shape", settings: Mapping[str, Any], folder: str) -> Model:
    """A model as a runtime serves it."""
    return Model(role, "deployed", shape, settings, folder)


def source(role: str, shape: "Shape", settings: Mapping[str, Any], folder: str) -> Model:
    """A framework's own model, in that framework's toolchain."""
    return Model(role, "source", replace(shape, toolchain=toolchain.named(settings["toolchain"])), settings, folder)


def call(work: Work, function: str, models: Sequence[Model], **arguments: Any) -> tuple[Any, dict[str, Any]]:
    """Run a function of a worker-side stage module in the default toolchain while the models are served. It gets `models`, the address of
    each by role, and the `key` to them. Returns what it returns, and what the deployed models said of themselves by role.

    Whichever worker dies takes the stage with it. Raises StageFailed.
    """
    bench, key = work.bench, secrets.token_bytes(32).hex()
    failures: list[Exception] = []
    runs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="sweep-joined-") as private, contextlib.ExitStack() as stack:
        addresses = {model.role: os.path.join(private, model.role) for model in models}
        serving = [stack.enter_context(bench.pool.borrow(model.shape, bench.log)) for model in models]
        apart = replace(bench.shape, toolchain=toolchain.default(), gpus=())
        asking = stack.enter_context(bench.pool.borrow(apart, bench.log))

        def serve(model: Model, worker: "Worker") -> None:
            try:
                given = {"settings": model.settings, "model": model.folder, "address": addresses[model.role], "key": key}
                found = worker.call(f"sweep.stages.serve:{model.function}", given, bench.limits, bench.log)[0]
                runs.update({model.role: found["runs"]} if "runs" in found else {})
            except Exception as error:  # the one who asks would wait for it, or take what it answered for the whole
                failures.append(error)
                asking.end()

        threads = [threading.Thread(target=serve, args=pair) for pair in zip(models, serving, strict=True)]
        for thread in threads:
            thread.start()
        try:
            outcome = asking.call(f"sweep.stages.{function}", {"models": addresses, "key": key, **arguments}, bench.limits, bench.log)[0]
        except StageFailed as failure:
            cut_off = isinstance(failure, Raised) and failure.kind in BROKEN_LINE
            for thread in threads:
                thread.join(LAST_WORDS if cut_off else 0)
            cause = failures[0] if failures else failure
            for thread, worker in zip(threads, serving, strict=True):
                if thread.is_alive():
                    worker.end()  # it waits for one who asks no more
                thread.join()
            raise cause from None
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
    return outcome, runs
