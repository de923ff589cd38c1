"""Probes: operators drawn here, built, exported, converted and run by workers, judged and named here."""

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sweep import toolchain
from sweep.operators import _probe as probing
from sweep.probing import draw, reproducer, shrink
from sweep.probing.judge import judge, tolerance, values_of
from sweep.probing.names import Named, name
from sweep.stages.probe import DEPLOYED, EXPORTED, NATIVE_OUTPUT, OUTPUT, PROBE_SECONDS
from sweep.work import Outcome, Work
from sweep.work.attempts import CRASHED, TIMED_OUT, Found, each

NATIVE = "native"
TOGETHER = 50
"""So many probes are in one call."""
ROUNDS = 8
"""A failing probe is made simpler at most so often."""
REPRODUCED = 10
"""So many kinds of faults of a cell are written down, the most frequent first."""

RIGHT, WRONG, UNSUPPORTED = "right", "wrong", "unsupported"
_CLASSES = {"build": "convert_failed", "export": "convert_failed", "convert": "convert_failed", "open": "load_failed", "run": "inference_failed"}

Probe = dict[str, Any]
Record = dict[str, Any]


def run(work: Work) -> Outcome:
    """Write `probes.json`, a record for each probe, and `reproducers/`, a folder for each kind of fault."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sweep-probes-") as scratch:
        route = _Route(work, Path(scratch))
        settings = work.settings
        probes = draw.probes(settings["operator"], settings["count"], settings["seed"], route.ways)
        records = route.records(probes)
        seconds = time.monotonic() - started
        faults = _faults(records)
        for fault, failing in faults[:REPRODUCED]:
            _write_down(work.folder / "reproducers", fault, route, route.shrunk(fault, failing))
    (work.folder / "probes.json").write_text(json.dumps(records, indent=1))
    verdicts = Counter(record["verdict"] for record in records)
    metrics = {f"probes_{verdict}": verdicts[verdict] for verdict in (RIGHT, WRONG, UNSUPPORTED, CRASHED, TIMED_OUT)}
    metrics |= {
        "probes": len(records),
        "probes_framework_wrong": sum(record["framework"] in (WRONG, CRASHED, TIMED_OUT) for record in records),
        "probes_pairs": len(draw.pairs_met([probe["parameters"] for probe in probes])),
        "faults": len(faults),
        "probes_per_s": len(records) / seconds,
    }
    said = "; ".join(f"{fault}: {len(failing)}" for fault, failing in faults)
    return {"metrics": metrics, "facts": {"faults": said or "none"}, "runs": route.runs}


def _faults(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """Failing records by the kind of their fault, the most frequent first."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record["verdict"] in (WRONG, CRASHED, TIMED_OUT):
            found.setdefault(record["fault"], []).append(record)
    return sorted(found.items(), key=lambda item: -len(item[1]))


class _Route:
    """The way of a cell's probes: out of the framework that builds them, into the runtime that serves them."""

    def __init__(self, work: Work, scratch: Path) -> None:
        self.work, self.scratch, self.settings = work, scratch, work.settings
        self.native = self.settings["format"] == NATIVE
        self.runs: Mapping[str, Any] = {}
        self._served = 0
        at = self.settings["runtime"]["toolchain"]
        shape = replace(work.bench.shape, toolchain=toolchain.named(at))
        self._serving = replace(work, bench=replace(work.bench, shape=shape))
        ways = work.call("probe:ways", settings=dict(self.settings))
        self.ways = draw.within(ways, values_of(self.settings["quantization"]))
        self.space = draw.Space(self.settings["operator"], self.ways)

    def records(self, probes: Sequence[Probe], keep: bool = False) -> list[Record]:
        """A record for each probe; its folder stays only where `keep` is."""
        found = []
        for start in range(0, len(probes), TOGETHER):
            part = probes[start : start + TOGETHER]
            folders = [self._folder() for _probe in part]
            found += self._batch(part, folders)
            for folder in () if keep else folders:
                shutil.rmtree(folder)
        return found

    def _folder(self) -> Path:
        self._served += 1
        folder = self.scratch / str(self._served)
        folder.mkdir()
        return folder

    def _batch(self, probes: Sequence[Probe], folders: Sequence[Path]) -> list[Record]:
        own = self._each(self.work, "natively", probes, folders)
        if self.native:
            ends = own
        else:
            ends = self.exported(probes, folders, self.settings["format"])
            ready = [at for at, end in enumerate(ends) if end["status"] == "ran"]
            files = [ends[at]["file"] for at in ready]
            served = self._each(self._serving, "serve", [probes[at] for at in ready], [folders[at] for at in ready], files=files)
            for at, end in zip(ready, served, strict=True):
                ends[at] = end
        return [self._record(*each) for each in zip(probes, folders, own, ends, strict=True)]

    def exported(self, probes: Sequence[Probe], folders: Sequence[Path], target: str) -> list[Found]:
        return self._each(self.work, "export", probes, folders, target=target)

    def _each(self, work: Work, function: str, probes: Sequence[Probe], folders: Sequence[Path], **further: Any) -> list[Found]:
        def call(numbers: list[int], journal: str) -> Any:
            chosen: dict[str, Any] = {"probes": [probes[at] for at in numbers], "folders": [str(folders[at]) for at in numbers]}
            if "files" in further:
                chosen["files"] = [further["files"][at] for at in numbers]
            if "target" in further:
                chosen["target"] = further["target"]
            for folder in chosen["folders"]:  # an earlier attempt may have left something
                shutil.rmtree(Path(folder) / {"export": EXPORTED, "serve": DEPLOYED}.get(function, "none"), ignore_errors=True)
            return work.call(f"probe:{function}", settings=dict(self.settings), journal=journal, **chosen)

        return each(call, len(probes), PROBE_SECONDS)

    def _record(self, probe: Probe, folder: Path, own: Found, end: Found) -> Record:
        arrays = probing.arrays_of(probe)
        right, row = probing.exact(probe, *arrays), self.settings["quantization"]
        record: Record = {"id": probing.name_of(probe), "parameters": probe["parameters"], "seed": probe["seed"]}
        record |= self._outcome(probe, arrays, right, folder / (NATIVE_OUTPUT if self.native else OUTPUT), end, row)
        of_framework = self._outcome(probe, arrays, right, folder / NATIVE_OUTPUT, own, "float32")
        record["framework"] = of_framework["verdict"]
        if of_framework["verdict"] != RIGHT:
            record["of_framework"] = of_framework
        record["file"] = end.get("file")
        self.runs = self.runs or end.get("runs") or {}
        return record

    def _outcome(self, probe: Probe, arrays: Any, right: np.ndarray, output: Path, end: Found, row: str) -> Record:
        if end["status"] == "refused":
            return {"verdict": UNSUPPORTED, "step": end["step"], "failure_class": _CLASSES[end["step"]],
                    "error": end["error"], "message": end["message"].replace(f"{output.parent}/", "")}
        if end["status"] != "ran":
            return {"verdict": end["status"], "fault": end["status"], "message": end["message"]}
        observed = np.load(output, allow_pickle=False)
        allowed = tolerance(probe, row, self.settings["quantization_options"], arrays)
        found = judge(observed, right, allowed, row)
        if found.right:
            return {"verdict": RIGHT, "difference": found.difference, "ratio": found.ratio}
        named = name(probe, arrays, observed, allowed, row)
        return {"verdict": WRONG, "difference": _number(found.difference), "ratio": _number(found.ratio), "why": found.why, **named._asdict()}

    def shrunk(self, fault: str, failing: Iterable[Record]) -> tuple[Probe, Record, Path | None]:
        """The simplest probe found with this fault, its record, and its folder where it does not end the process."""
        probes = [{"operator": self.settings["operator"], "parameters": record["parameters"], "seed": record["seed"]} for record in failing]
        best = dict(shrink.simplest(probes, self.space))
        for _round in range(ROUNDS):
            simpler = shrink.simpler(best, self.space)
            same = [probe for probe, record in zip(simpler, self.records(simpler), strict=True) if record.get("fault") == fault]
            if not same:
                break
            best = dict(shrink.simplest(same, self.space))
        folder = self._folder()
        (record,) = self._batch([best], [folder])
        return best, record, folder


def _write_down(parent: Path, fault: str, route: _Route, simplest: tuple[Probe, Record, Path]) -> None:
    probe, record, folder = simplest
    settings = route.settings
    kind, component = ("frameworks", settings["exporter"]) if route.native else ("runtimes", settings["runtime"])
    if record.get("fault") != fault or not reproducer.can_be_written(kind, component["module"]):
        return
    if route.native:
        (written,) = route.exported([probe], [folder], NATIVE)
        file = folder / EXPORTED / written.get("file", "")
    else:
        file = next((folder / DEPLOYED).iterdir(), folder) if (folder / DEPLOYED).is_dir() else folder
    if not file.is_file() and not (file.is_dir() and file != folder):
        return
    output = folder / (NATIVE_OUTPUT if route.native else OUTPUT)
    exporter, row = settings["exporter"], settings["quantization"]
    reproducer.write(parent / f"{probe['operator']}-{fault}", reproducer.Fault(
        probe=probe, named=Named(fault, record.get("detail", record.get("message", "")), record.get("also", [])), kind=kind,
        module=component["module"], version=component["version"] or exporter["version"],
        options={} if route.native else component["options"],
        made_by=f"exported by {exporter['module']} {exporter['version']} as {settings['format']}, {row}", file=file,
        observed=np.load(output) if record["verdict"] == WRONG else None,
        tolerance=tolerance(probe, row, settings["quantization_options"], probing.arrays_of(probe)),
    ))


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
