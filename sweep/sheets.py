"""The tables of a report, from the rows of a sweep. Pure; every figure as it is for CSV, and as text for people."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sweep.axes import NATIVE
from sweep.beside import NOT_COMPARABLE, NOT_RUN, beside, is_smoke
from sweep.claims import METRICS, Group, groups, pairs
from sweep.deployment import Flip, deployments, flips, matrix
from sweep.paper import Paper
from sweep.probed import Records, faults, operators
from sweep.records import FAILED, OK, SKIPPED, CellRecord
from sweep.robustness import attacked, robustness
from sweep.sheet import Sheet
from sweep.statistics import McNemar

if TYPE_CHECKING:
    import pandas

SHARES = 100.0
CORE = ("framework", "framework_version", "dataset", "architecture", "recipe")
"""What a table of groups always names; further settings where they differ."""

_CHOSEN_BY = {
    "attack_": ("attack", "dataset"), "train_": ("dataset", "architecture"), "dataset_digest": ("dataset",), "weights_from": ("weights",),
    "runtime_version": ("runtime", "framework", "framework_version"),
}
"""Settings by the start of their names, and the axes that choose them."""

_PROOF = {"parity": "parity", "proof": "proof of the transplant", "diagnosis": "diagnosis"}
"""Tags in words of rows with another framework's weights."""


_STEPS = ("loss_diff_rel_float64", "loss_diff_max", "loss_diff_one_ulp_max", "ratio_to_control", "loss_diff_rounding_max")


def sheets(
    rows: Sequence[CellRecord], paper: Paper | None, splits: Mapping[str, McNemar], changed: Mapping[str, Sequence[Flip]],
    probed: Mapping[str, Records], outcomes: Mapping[str, "pandas.DataFrame"],
) -> list[Sheet]:
    """All tables, in the order of a report; the one beside the paper only where there is a paper. `splits`: see `same_weights`, `changed`:
    see `flips`, `probed`: see `faults`, `outcomes`: see `robustness`."""
    networks = [row for row in rows if "architecture" in row.params]
    found = [group for metric in METRICS for group in groups(networks, metric) if _tells(group)]
    made = [frameworks(found), comparisons(found)]
    if paper is not None:
        made.append(beside_paper(paper, networks))
    made += [same_weights(networks, splits), steps(networks), robustness(networks, outcomes), attacked(networks)]
    made += [matrix(rows), deployments(rows), flips(rows, changed)]
    made += [operators(rows), faults(rows, probed), not_ok(rows)]
    return made


def _tells(group: Group) -> bool:
    """Whether a group says something of its framework: one training of a converted model stands in the table of deployed models."""
    return group.params.get("runtime", NATIVE) == NATIVE or group.estimate.n > 1


def frameworks(found: Sequence[Group]) -> Sheet:
    """Every group of seeds."""
    varying = _varying(found)
    seen = [name for name in varying if not _follows(name, found)]
    data, shown = [], []
    for group in found:
        seeds = group.estimate
        axes = {name: group.params.get(name, "") for name in (*CORE, *varying)}
        low, high = seeds.interval or (None, None)
        data.append({"metric": group.metric, **axes, "n": seeds.n, "mean": seeds.mean, "sd": seeds.sd, "low": low, "high": high})
        spread = "" if seeds.sd is None else f" ± {seeds.sd * SHARES:.2f}"
        said = _share(seeds.mean) + spread + _range(low, high)
        shown.append({"metric": group.metric, **{name: axes[name] for name in (*CORE, *seen)}, "n": str(seeds.n), "mean ± sd [95 %]": said})
    notes = ["In percent. n counts trainings: rows that rest on one training count once. The interval is t's, of the mean."]
    return Sheet("frameworks", "Frameworks, over training seeds", data, shown, notes)


def comparisons(found: Sequence[Group]) -> Sheet:
    """Every pair of frameworks."""
    data, shown = [], []
    made = pairs(found)
    firsts = [pair.first for pair in made]
    told_apart = ["dataset", "architecture", "recipe", *(name for name in _varying(firsts) if not _follows(name, firsts))]
    for pair in made:
        params, result, controls = pair.first.params, pair.comparison, pair.controls
        axes = {"metric": pair.first.metric, **{name: params.get(name, "") for name in told_apart}}
        sides = {"first": _framework(pair.first), "second": _framework(pair.second)}
        low, high = (result.interval if result else None) or (None, None)
        data.append({
            **axes, **sides, "paired": result and result.paired, "n": result and result.n, "difference": result and result.difference,
            "low": low, "high": high, "cliffs_delta": result and result.cliffs_delta, "p": result and result.p, "p_holm": pair.p_holm,
            "pairs": pair.pairs, "one_ulp_first": controls.one_ulp[0], "one_ulp_second": controls.one_ulp[1],
            "beyond_control": controls.beyond_control, "in_float64": controls.in_float64, "verdict": pair.verdict,
        })
        shown.append({
            **axes, **sides, "n": "" if result is None else f"{result.n}{' paired' if result.paired else ''}",
            "difference [95 %]": "" if result is None else _share(result.difference) + _range(low, high),
            "Cliff's δ": "" if result is None else f"{result.cliffs_delta:+.2f}",
            "p (Holm)": "" if pair.p_holm is None else f"{pair.p_holm:.4f} of {pair.pairs}",
            "one ulp": " / ".join("?" if each is None else _share(each) for each in controls.one_ulp),
            "beyond it": _known(controls.beyond_control), "in float64": _known(controls.in_float64), "verdict": pair.verdict,
        })
    notes = [
        "In percentage points, first less second. `one ulp`: the mean |difference| of each framework's trainings from those of the same "
        "seeds whose initial weights one ulp moved. `in float64`: whether the float64 twins differ too, in the same direction.",
    ]
    return Sheet("pairs", "Frameworks against each other", data, shown, notes)


def beside_paper(paper: Paper, rows: Sequence[CellRecord]) -> Sheet:
    """Our groups beside the paper's numbers; people see what ran, and the claims."""
    lines = beside(paper, rows)
    data = [line._asdict() | {"verdict": line.said} for line in lines]
    shown = [
        {
            "paper": line.source if line.read == "printed" else f"{line.source} ({line.read})", "of": line.number, "ours": line.ours_of,
            "n": str(line.n or ""), "paper's": line.paper, "is": "" if line.ours is None else f"{line.ours:.2f}",
            "tolerance": "" if line.tolerance is None else f"{line.tolerance:.2f}", "verdict": line.said,
            "note": "" if line.verdict == NOT_COMPARABLE else line.why,
        }
        for line in lines if line.verdict != NOT_RUN or line.read == "claim"
    ]
    counted = Counter(line.verdict for line in lines)
    notes = [f"{paper.title} ({paper.source})", "; ".join(f"{n} {verdict}" for verdict, n in counted.most_common())]
    smoke = sum(is_smoke(row) for row in rows)
    notes += [f"Rows labelled smoke: {smoke}. They stand beside no number of the paper, and count as not run"] if smoke else []
    return Sheet("paper", "Beside the paper", data, shown, notes)


def disagrees_with_master(row: CellRecord) -> bool:
    """Whether a row is of a framework's own model with another's weights, and answers differently."""
    params, ok = row.params, row.tags["status"] == OK
    return ok and params.get("weights") == "same" and params["route"] == NATIVE and row.metrics.get("disagreement", 0.0) > 0


def same_weights(rows: Sequence[CellRecord], splits: Mapping[str, McNemar]) -> Sheet:
    """Models with another framework's weights against the one that they were taken from; each line is the worst of its seeds.

    `splits` has McNemar's test by the keys of rows that disagree with it.
    """
    lines: dict[tuple[str, ...], list[CellRecord]] = {}
    for row in rows:
        if row.tags["status"] == OK and row.params["weights"] == "same" and row.params["framework"] != row.params.get("weights_from"):
            at = tuple(row.params.get(name, "") for name in (*CORE, "weights_from", "control", "runtime", "quantization"))
            lines.setdefault(at, []).append(row)
    data = [_transplanted(at, members, splits) for at, members in lines.items()]
    shown = [{name: _text(value) for name, value in line.items()} for line in data]
    notes = ["Figures of the seed with the largest `logit_diff_max`. `parity_tolerance` is what rounding explains of it."]
    return Sheet("same_weights", "The same weights", data, shown, notes)


def steps(rows: Sequence[CellRecord]) -> Sheet:
    """Trainings compared step by step, a line each: where they part, and what one ulp and rounding do."""
    compared = [row for row in rows if row.tags["status"] == OK and "training" in row.tags]
    data = [
        {name: row.params.get(name, "") for name in (*CORE, "seed")}
        | {name: row.metrics.get(f"trace_{name}") for name in _STEPS} | {"verdict": row.tags["training"]}
        for row in compared
    ]
    notes = ["Losses of equal steps from equal weights on equal batches. `loss_diff_rel_float64` above 1e-8 is another formula."]
    return Sheet("steps", "Trainings step by step", data, [{name: _text(value) for name, value in line.items()} for line in data], notes)


def not_ok(rows: Sequence[CellRecord]) -> Sheet:
    """What did not run, by reason."""
    reasons: Counter[tuple[str, str]] = Counter()
    frameworks_of: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        if row.tags["status"] == SKIPPED:
            at = (SKIPPED, row.tags.get("reason", ""))
        elif row.tags["status"] == FAILED:
            at = (FAILED, f"{row.tags.get('failure_class', '')} at {row.tags.get('failed_stage', '')}: {row.tags.get('message', '')}")
        else:
            continue
        reasons[at] += 1
        frameworks_of.setdefault(at, set()).add(row.params.get("framework", ""))
    data = [
        {"status": status, "cells": n, "frameworks": ", ".join(sorted(frameworks_of[status, reason])), "reason": reason}
        for (status, reason), n in reasons.most_common()
    ]
    return Sheet("not_ok", "Skipped and failed", data, [{name: _text(value) for name, value in line.items()} for line in data])


def _transplanted(at: Sequence[str], rows: Sequence[CellRecord], splits: Mapping[str, McNemar]) -> dict[str, Any]:
    worst = max(rows, key=lambda row: row.metrics.get("logit_diff_max", 0.0))
    axes = dict(zip((*CORE, "weights_from", "control", "runtime", "quantization"), at, strict=True))
    metrics = ("logit_diff_max", "parity_tolerance", "parity_decided_disagreements", "disagreement")
    found = axes | {"seeds": len(rows)} | {name: worst.metrics.get(name) for name in metrics}
    split = splits.get(worst.key)
    alone = (None, None, None) if split is None else split
    found |= dict(zip(("master_alone_right", "copy_alone_right", "mcnemar_p"), alone, strict=True))
    for tag, column in _PROOF.items():
        said = Counter(row.tags.get(tag, "not recorded") for row in rows)
        found[column] = "; ".join(text if n == len(rows) else f"{text} ({n} of {len(rows)})" for text, n in said.most_common())
    return found


def _varying(found: Sequence[Group]) -> list[str]:
    """Further settings in which groups differ."""
    names = sorted({name for group in found for name in group.params} - set(CORE))
    return [name for name in names if len({group.params.get(name) for group in found}) > 1]


def _follows(name: str, found: Sequence[Group]) -> bool:
    """Whether a setting is the same wherever the axes that it is chosen by are, so that people need not see it."""
    axes = next((axes for prefix, axes in _CHOSEN_BY.items() if name.startswith(prefix)), None)
    if axes is None:
        return False
    at = {tuple(group.params.get(axis) for axis in axes) for group in found}
    return len(at) == len({(tuple(group.params.get(axis) for axis in axes), group.params.get(name)) for group in found})


def _framework(group: Group) -> str:
    return f"{group.framework} {group.params['framework_version']}"


def _share(value: float) -> str:
    return f"{value * SHARES:.2f}"


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{_share(low)}, {_share(high)}]"


def _known(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "?"}[value]


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
