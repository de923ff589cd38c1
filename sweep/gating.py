"""A model file beside its conversions, on the same inputs: what a gate judges. Workers do the work; neither Ray nor MLflow takes part.

A conversion runs in the runtime that opens its format as a deployed file, with that runtime's defaults, and the source in its format's
own; where no runtime does, a conversion runs as a source would.
"""

import contextlib
import itertools
import json
import math
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sweep import allowance, components, facts, hostlock, metrics, own_inputs, own_model, parity, simulation, timing, toolchain
from sweep.axes import NATIVE
from sweep.budget import Limits
from sweep.cache import cache_folder
from sweep.contracts import Bench, Timed
from sweep.errors import ConfigError, StageFailed, nearest
from sweep.facts import Component
from sweep.host import memory_bytes
from sweep.inputs import UNLABELLED, read_labels
from sweep.quantization import ROWS
from sweep.stages.evaluate import CHECKED, EXACT
from sweep.workers import Limits as WorkerLimits
from sweep.workers import Pool, Shape

EXACT_INPUTS = 16
SECONDS = 1800.0
PROCESSES, BLOCKS, BATCH = 3, 30, 1
ORDERINGS_MOST = 720  # of outputs: six of one shape


@dataclass(frozen=True)
class Compared:
    """What a conversion was found to be. `failure` says why it gave nothing, "" where it did."""

    name: str
    runtime: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True)
class _Adopted:
    """A model folder, the runtime that opens it, and what it gave."""

    folder: Path
    runtime: Component
    details: Mapping[str, Any]
    bytes: int
    outputs: np.ndarray


def compare(source: Path, conversions: Mapping[Path, Limits], inputs: Path, threads: int) -> Iterator[Compared]:
    """Every conversion beside its source, one after the other.

    Raises ConfigError where the source, the inputs or a setting is at fault; a conversion's faults are in what is yielded.
    """
    prepared, splits = own_inputs.prepare(inputs, cache_folder())
    runtimes = _runtimes({limits.runtime for limits in conversions.values() if limits.runtime is not None})
    with tempfile.TemporaryDirectory(prefix="sweep-gate-") as name, contextlib.closing(Pool(keep=2, recycle_bytes=8 << 30)) as pool:
        folder = Path(name)
        np.savez(folder / "splits.npz", **{part: getattr(splits, part) for part in ("train", "validation", "calibration", "attack")})
        data = {"folder": str(prepared.folder), "splits": str(folder / "splits.npz")}
        bench = Bench(pool, Shape(toolchain.default(), threads), WorkerLimits(SECONDS, memory_bytes()), folder / "log.txt")
        gate = _Gate(folder, data, bench, runtimes)
        try:
            original = gate.source(source)
        except StageFailed as failure:
            raise ConfigError(f"{source} can't be used: {failure.message}") from None
        _check_source(source, original, gate.labels)
        for path, limits in conversions.items():
            yield gate.conversion(path, limits, original)


def _runtimes(wanted: Collection[str]) -> Mapping[str, Component]:
    """The runtimes of the default toolchain, and the wanted ones. Raises ConfigError for one that is not there."""
    known = toolchain.offers("runtimes")
    for name in wanted:
        if name not in known:
            raise ConfigError(f"runtime: there is no {name!r}{nearest(name, known)}")
    found = facts.gather(cache_folder(), {"runtimes": wanted}).runtimes
    for name in wanted:
        if found[name].missing:
            raise ConfigError(f"runtime: {found[name].missing}")
    return found


class _Gate:
    """The folders, workers and runtimes of one comparison."""

    def __init__(self, folder: Path, data: Mapping[str, str], bench: Bench, runtimes: Mapping[str, Component]) -> None:
        self.folder, self.data, self.bench, self.runtimes = folder, data, bench, runtimes
        self.labels = np.asarray(read_labels(data["folder"], "test"))

    def source(self, path: Path) -> _Adopted:
        return self._adopted(path, self.runtimes[NATIVE], "float32", EXACT_INPUTS)

    def conversion(self, path: Path, limits: Limits, source: _Adopted) -> Compared:
        try:
            model_format = own_model.recognise(path)
        except ConfigError as error:
            if not path.exists():
                raise
            return Compared(path.name, "", failure=str(error))  # what a converter left may be anything
        runtime = self._runtime(model_format, limits.runtime)
        try:
            model = self._adopted(path, runtime, limits.quantization, 0)
            figures = self._judged(model, limits, source)
            if limits.latency_ratio is not None:
                figures |= self._latency(model, source)
        except StageFailed as failure:
            return Compared(path.name, runtime.name, failure=failure.message)
        return Compared(path.name, runtime.name, figures)

    def _runtime(self, model_format: str, wanted: str | None) -> Component:
        """The runtime that opens files of a format as they are: the wanted one, or the first; the format's own where there is none."""
        usable = [each for each in self.runtimes.values() if not each.missing and each.facts["format"] == model_format]
        if wanted not in (None, NATIVE):
            usable = [each for each in usable if each.name == wanted]
            if not usable:
                raise ConfigError(f"runtime: {wanted} does not open {model_format} files here")
        return usable[0] if usable and wanted != NATIVE else self.runtimes[NATIVE]

    def _adopted(self, path: Path, runtime: Component, row: str, exact: int) -> _Adopted:
        """The model as a folder that was run on all inputs. Raises StageFailed."""
        found = own_model.examine(path, self.bench.pool)
        if found.message:
            raise StageFailed(found.failure_class, found.message)
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        settings = {"path": found.path, "format": found.format, "digest": found.details["digest"], "threads": self.bench.shape.threads}
        size = self._call("adopt:run", settings=settings, data=self.data, out=str(folder))["metrics"]["model_size_bytes"]
        details = json.loads((folder / "model.json").read_text()) | {"quantization": row}
        (folder / "model.json").write_text(json.dumps(details))
        settings = self._serving(runtime) | {"examples": None, "reference_examples": exact}
        self._call("evaluate:run", runtime.toolchain, settings=settings, model=str(folder), data=self.data, out=str(folder))
        return _Adopted(folder, runtime, details, size, np.load(folder / "logits.npy"))

    def _serving(self, runtime: Component) -> dict[str, Any]:
        options = {name: option["default"] for name, option in runtime.facts["options"].items()}
        return {"module": runtime.module, "options": options, "threads": self.bench.shape.threads, "seed": 0}

    def _bench(self, name: str) -> Bench:
        return replace(self.bench, shape=replace(self.bench.shape, toolchain=toolchain.named(name)))

    def _call(self, function: str, name: str = toolchain.DEFAULT, **arguments: Any) -> Any:
        with self.bench.pool.borrow(self._bench(name).shape, self.bench.log) as worker:
            return worker.call(f"sweep.stages.{function}", arguments, self.bench.limits, self.bench.log)[0]

    def _judged(self, model: _Adopted, limits: Limits, source: _Adopted) -> dict[str, Any]:
        """The verdict's figures, and what a budget asks for besides."""
        shape, products = source.details["output_shape"], source.details["products"]
        classes = shape is not None and len(shape) == 1 and shape[0] > 1
        exact = source.folder / EXACT
        how = simulation.arithmetic(ROWS[limits.quantization], {})
        plain = allowance.float32(source.outputs, np.load(exact) if exact.exists() else None, products)
        allowed = allowance.of(how, plain, source.outputs, layers=products)
        outputs, order = _in_order(model, source)
        found = parity.verdict(outputs, source.outputs, allowed, classes=classes)
        single, again = (np.load(model.folder / f"{name}.npy") for name in CHECKED)
        found = parity.with_steadiness(found, model.outputs, single, again, allowed)
        found |= {"size_bytes": model.bytes, "size_ratio": model.bytes / source.bytes}
        if order is not None:
            found["outputs_order"] = order
        if classes and outputs.shape == source.outputs.shape:
            found |= _answers(outputs, source.outputs, self.labels)
        return found

    def _latency(self, model: _Adopted, source: _Adopted) -> dict[str, Any]:
        """Interleaved with the source, which runs as a deployed file where its format is one."""
        deployed = self._runtime(source.details["format"], None)
        device = components.load("devices", "localhost")
        candidate, reference = self._timed(model.runtime, model.folder), self._timed(deployed, source.folder)
        with hostlock.held(exclusive=True):
            samples = device.measure(candidate, reference, PROCESSES, BLOCKS, 0)
        return {**timing.ratio(samples.candidate, samples.reference), "latency_reference": deployed.name}

    def _timed(self, runtime: Component, folder: Path) -> Timed:
        settings = self._serving(runtime) | {"throughput_batch": BATCH}
        return Timed(self._bench(runtime.toolchain), {"settings": settings, "model": str(folder), "data": self.data})


def _check_source(path: Path, source: _Adopted, labels: np.ndarray) -> None:
    if not np.isfinite(source.outputs).reshape(len(source.outputs), -1).all(axis=1).any():
        raise ConfigError(f"{path} gives no finite output for any of these inputs")
    shape = source.details["output_shape"]
    if shape is not None and len(shape) == 1 and shape[0] > 1 and labels.max() >= shape[0]:
        raise ConfigError(f"inputs: a label is {labels.max()}, and {path} tells {shape[0]} classes apart")


def _answers(outputs: np.ndarray, source: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    predicted, before = metrics.predictions(outputs), metrics.predictions(source)
    found: dict[str, Any] = {"flips": int(np.sum(predicted != before))}
    if labels[0] != UNLABELLED:
        right, right_before = int(np.sum(predicted == labels)), int(np.sum(before == labels))
        found |= {"accuracy": right / len(labels), "accuracy_drop": (right_before - right) / len(labels)}  # a whole number of inputs
    return found


def _in_order(model: _Adopted, source: _Adopted) -> tuple[np.ndarray, list[int] | None]:
    """A conversion's outputs in the order of the source's, and which of them each is where the two orders differ.

    Files keep several outputs in orders of their own; each is told by its shape, and where shapes are alike by its values.
    """
    sizes, wanted = _sizes(model), _sizes(source)
    if sizes is None or wanted is None or len(sizes) < 2 or sorted(sizes) != sorted(wanted):
        return model.outputs, None
    parts = np.split(model.outputs, np.cumsum(sizes)[:-1], axis=1)
    best = min(itertools.islice(_orders(sizes, wanted), ORDERINGS_MOST), key=lambda order: _distance(parts, order, source.outputs))
    ordered = np.concatenate([parts[i] for i in best], axis=1)
    return (ordered, None) if list(best) == sorted(best) else (ordered, list(best))


def _orders(sizes: Sequence[int], wanted: Sequence[int], taken: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Every order of outputs of these sizes that gives the wanted ones, the file's own first."""
    if len(taken) == len(wanted):
        yield taken
        return
    for number, size in enumerate(sizes):
        if number not in taken and size == wanted[len(taken)]:
            yield from _orders(sizes, wanted, (*taken, number))


def _distance(parts: list[np.ndarray], order: tuple[int, ...], outputs: np.ndarray) -> float:
    difference = np.nan_to_num(np.concatenate([parts[i] for i in order], axis=1) - outputs, posinf=np.inf)
    return float(np.abs(difference).mean())


def _sizes(model: _Adopted) -> list[int] | None:
    """How many values each output has per input, None where the file does not say."""
    shapes = [output["shape"] for output in model.details["outputs"]]
    if any(shape is None or None in shape[1:] for shape in shapes):
        return None
    return [math.prod(shape[1:]) for shape in shapes]
