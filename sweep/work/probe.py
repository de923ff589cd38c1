"""Probes: operators drawn here, built, exported, converted and run by workers, judged and named here."""

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sweep import quantization, toolchain
from sweep.operators import _probe as probing
from sweep.probing import draw, reproducer, shrink
from sweep.probing.found import CRASHED, FAULTY, RIGHT, TIMED_OUT, UNDECIDED, UNSUPPORTED, VERDICTS, WRONG, fault_of
from sweep.probing.judge import decides, judge, tolerance, values_of
from sweep.probing.names import Named, name
from sweep.stages.probe import DEPLOYED, EXPORTED, OUTPUT, OWN_OUTPUT, PROBE_SECONDS
from sweep.work import Outcome, Work
from sweep.work.attempts import Found, each

NATIVE = "native"
TOGETHER = 50
"""So many probes are in one call."""
ROUNDS = 8
"""A failing probe is made simpler at most so often."""
REPRODUCED = 12
"""So many faults of a cell are written down, the most frequent first."""
PROBE = ("operator", "parameters", "seed", "alike")

_CLASSES = {"export": "convert_failed", "convert": "convert_failed", "open": "load_failed", "run": "inference_failed"}

Probe = Mapping[str, Any]
Record = dict[str, Any]


def run(work: Work) -> Outcome:
    """Write `probes.json`, a record for each probe, and `reproducers/`, a folder for each fault: by its kind, and by the function where an
    operator is a family of them.

    A record has `id` and the probe; `verdict`: `right`, `wrong`, `undecided` (so coarse is the row that zeros would be right too),
    `unsupported`, `crashed` or `timed_out`; of what is unsupported
    the `step`, `failure_class`, `error` and `message`; of what is wrong the largest `difference` and its `ratio` to what is tolerated (null
    where it is no number), `why`, `fault`, `detail`, and `also`, other faults that would give the same; and `framework`, the verdict on
    what the framework itself makes of it, operator by operator; `one_by_one` where ranges depend on what is run
    together. The framework's own runtime runs a file that it wrote for itself.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sweep-probes-") as scratch:
        route = _Route(work, Path(scratch))
        settings = work.settings
        alike = {"alike": True} if quantization.ROWS[settings["quantization"]].calibrated else {}
        drawn = draw.probes(settings["operator"], settings["count"], settings["seed"], route.ways)
        probes = [{**probe, **alike} for probe in drawn]
        records = route.records(probes)
        seconds = time.monotonic() - started
        faults = _by_fault(records)
        for fault, failing in faults[:REPRODUCED]:
            route.write_down(fault, route.shrunk(fault, failing), work.folder / "reproducers")
    (work.folder / "probes.json").write_text(json.dumps(records, indent=1))
    verdicts = Counter(record["verdict"] for record in records)
    metrics: dict[str, float] = {f"probes_{verdict}": verdicts[verdict] for verdict in VERDICTS}
    metrics |= {
        "probes": len(records),
        "probes_framework_faulty": sum(record["framework"] in FAULTY for record in records),
        "probes_faults": len(faults),
        "probes_per_s": len(records) / seconds,
    }
    said = "; ".join(f"{fault}: {len(failing)}" for fault, failing in faults)
    return {"metrics": metrics, "facts": {"faults": said or "none"}, "runs": route.runs}


def _by_fault(records: Sequence[Record]) -> list[tuple[str, list[Probe]]]:
    """Failing probes by their fault, the most frequent first."""
    found: dict[str, list[Probe]] = {}
    for record in records:
        if fault := fault_of(record):
            found.setdefault(fault, []).append({name: record[name] for name in PROBE if name in record})
    return sorted(found.items(), key=lambda item: -len(item[1]))


class _Route:
    """The way of a cell's probes: out of the framework that builds them, into the runtime that serves them."""

    def __init__(self, work: Work, scratch: Path) -> None:
        self.work, self.scratch, self.settings = work, scratch, dict(work.settings)
        self.native, self.row = self.settings["format"] == NATIVE, self.settings["quantization"]
        self.runs: Mapping[str, Any] = {}
        self._folders = 0
        shape = replace(work.bench.shape, toolchain=toolchain.named(self.settings["runtime"]["toolchain"]))
        self._serving = replace(work, bench=replace(work.bench, shape=shape))
        self.ways = draw.within(work.call("probe:ways", settings=self.settings), values_of(self.row))
        self.space = draw.Space(self.settings["operator"], self.ways)

    def records(self, probes: Sequence[Probe]) -> list[Record]:
        """A record for each probe; nothing else stays of them."""
        found = []
        for start in range(0, len(probes), TOGETHER):
            part = probes[start : start + TOGETHER]
            folders = [self._folder() for _probe in part]
            found += self._batch(part, folders)
            for folder in folders:
                shutil.rmtree(folder)
        return found

    def shrunk(self, fault: str, failing: Sequence[Probe]) -> Probe:
        """The simplest probe found that has this fault."""
        best = shrink.simplest(failing, self.space)
        for _round in range(ROUNDS):
            simpler = shrink.simpler(best, self.space)
            same = [probe for probe, record in zip(simpler, self.records(simpler), strict=True) if fault_of(record) == fault]
            if not same:
                break
            best = shrink.simplest(same, self.space)
        return best

    def write_down(self, fault: str, probe: Probe, parent: Path) -> None:
        """A reproducer of a failing probe, if it fails again, and there is a file of it and a program that runs such files."""
        kind, component = ("frameworks", self.settings["exporter"]) if self.native else ("runtimes", self.settings["runtime"])
        if not reproducer.can_be_written(kind, component["module"]):
            return
        folder = self._folder()
        (record,) = self._batch([probe], [folder])
        file = next((folder / (EXPORTED if self.native else DEPLOYED)).glob("*"), None)
        if fault_of(record) != fault or file is None:
            return
        reproducer.write(parent / f"{probe['operator']}-{fault}", reproducer.Fault(
            probe=probe, named=Named(record["fault"], record.get("detail") or record["message"], record.get("also", [])), kind=kind,
            module=component["module"], version=component["version"], options={} if self.native else component["options"],
            format=self.settings["format"], row=self.row, one_by_one=record.get("one_by_one", False), versions=self._versions(), file=file,
            observed=np.load(folder / OUTPUT, allow_pickle=False) if record["verdict"] == WRONG else None,
            tolerance=tolerance(probe, self.row, self.settings["quantization_options"], probing.arrays_of(probe)),
        ))

    def _versions(self) -> dict[str, str]:
        exporter, runtime = self.settings["exporter"]["module"], self.settings["runtime"]["module"]
        found = self.work.call("probe:versions", kind="frameworks", module=exporter)
        return dict(found) if self.native else found | self._serving.call("probe:versions", kind="runtimes", module=runtime)

    def _folder(self) -> Path:
        self._folders += 1
        folder = self.scratch / str(self._folders)
        folder.mkdir()
        return folder

    def _batch(self, probes: Sequence[Probe], folders: Sequence[Path]) -> list[Record]:
        own = self._each(self.work, "natively", probes, folders)
        ends = self._each(self.work, "export", probes, folders, target=self.settings["format"])
        ready = [at for at, end in enumerate(ends) if end["status"] == "ran"]
        serve, serving = ("reopen", self.work) if self.native else ("serve", self._serving)
        files = [ends[at]["file"] for at in ready]
        served = self._each(serving, serve, [probes[at] for at in ready], [folders[at] for at in ready], files=files)
        for at, end in zip(ready, served, strict=True):
            ends[at] = end
        return [self._record(*every) for every in zip(probes, folders, own, ends, strict=True)]

    def _each(
        self, work: Work, function: str, probes: Sequence[Probe], folders: Sequence[Path], files: Sequence[str] = (), **further: str
    ) -> list[Found]:
        """What became of each probe in a function of `sweep.stages.probe`."""

        def call(numbers: list[int], journal: str) -> Any:
            places = [folders[at] for at in numbers]
            for place in places:  # an earlier attempt may have left something
                shutil.rmtree(place / {"export": EXPORTED, "serve": DEPLOYED}.get(function, "nothing"), ignore_errors=True)
            chosen = {"files": [files[at] for at in numbers]} if files else {}
            return work.call(
                f"probe:{function}", settings=self.settings, probes=[dict(probes[at]) for at in numbers], folders=list(map(str, places)),
                journal=journal, **chosen, **further,
            )

        return each(call, len(probes), PROBE_SECONDS)

    def _record(self, probe: Probe, folder: Path, own: Found, end: Found) -> Record:
        self.runs = self.runs or end.get("runs") or {}
        found = self._verdict(probe, folder / OUTPUT, end, self.row)
        of_framework = self._verdict(probe, folder / OWN_OUTPUT, own, "float32")
        alone = {"one_by_one": True} if end.get("one_by_one") else {}
        return {"id": probing.name_of(probe), **probe, **found, **alone, "framework": of_framework["verdict"]}

    def _verdict(self, probe: Probe, output: Path, end: Found, row: str) -> Record:
        if end["status"] == "refused":
            step, message = end["step"], end["message"].replace(f"{output.parent}/", "")
            return {"verdict": UNSUPPORTED, "step": step, "failure_class": _CLASSES[step], "error": end["error"], "message": message}
        if end["status"] in (CRASHED, TIMED_OUT):
            return {"verdict": end["status"], "fault": end["status"], "message": end["message"]}
        arrays, observed = probing.arrays_of(probe), np.load(output, allow_pickle=False)
        allowed = tolerance(probe, row, self.settings["quantization_options"], arrays)
        right = probing.exact(probe, *arrays)
        found = judge(observed, right, allowed, row)
        if found.right:
            verdict = RIGHT if decides(right, allowed, row) else UNDECIDED
            return {"verdict": verdict, "difference": found.difference, "ratio": found.ratio}
        how_far = {"difference": _number(found.difference), "ratio": _number(found.ratio), "why": found.why}
        return {"verdict": WRONG, **how_far, **name(probe, arrays, observed, allowed, row)._asdict()}


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
