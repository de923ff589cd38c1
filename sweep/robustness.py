"""The study's ranking of frameworks by robustness (Guo et al. 2019, section 5), from what attacks left of each input. Pure.

Models that differ in their framework alone are compared, under the same attacks. Of the inputs those count that every compared model
answers right before. S is the share of them that an attack turns, on average over its repeats. Per attack P = (S - min S) / (max S - min S)
over the models, 0 where all are equal; R is the sum of P over the attacks, the least being the most robust. R makes a full unit of any gap,
be it one input: the rates and their intervals stand beside it. A set that was carried over from another model bounds robustness from above:
it has a rate, and no rank.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from sweep import attacks, variants
from sweep.axes import NO_ATTACK
from sweep.plan import carried_over, kind_of_access
from sweep.records import OK, CellRecord
from sweep.sheet import Sheet
from sweep.statistics import share_interval

if TYPE_CHECKING:
    import pandas

SHARES = 100.0
FRAMEWORK = ("framework", "framework_version", "runtime_version", "route")
"""What compared models may differ in: their framework, and what follows from it."""
MODEL = (
    "framework", "framework_version", "dataset", "architecture", "recipe", "weights", "control", "seed", "runtime", "quantization",
    "device", "label",
)
FIGURES = ("success_rate", "low", "high", "P", "R", "inputs", "repeats")


class _Attack(NamedTuple):
    """An attack with all its settings but the seed, and what it sees of a model."""

    name: str
    access: str
    settings: tuple[tuple[str, str], ...]


def robustness(rows: Sequence[CellRecord], outcomes: Mapping[str, "pandas.DataFrame"]) -> Sheet:
    """A line for each group of compared models, attack and model. `outcomes` has the outcomes of a row's attack (index, label, prediction,
    prediction_before) by the row's key."""
    groups: dict[tuple[tuple[str, str], ...], dict[str, dict[_Attack, list[pandas.DataFrame]]]] = {}
    for row in rows:
        if row.tags["status"] != OK or row.params.get("attack", NO_ATTACK) == NO_ATTACK or row.key not in outcomes:
            continue
        model = f"{row.params['framework'].partition('@')[0]} {row.params['framework_version']}"
        repeats = groups.setdefault(_alike(row), {}).setdefault(model, {}).setdefault(_attack(row), [])
        if not repeats or _randomised(row):  # a deterministic one does the same again
            repeats.append(outcomes[row.key])
    data = [line for alike, models in groups.items() if len(models) > 1 for line in _ranked(dict(alike), models)]
    shown = [
        {name: value for name, value in line.items() if name not in FIGURES} | {
            "success %": _percents(line), "P": _number(line["P"]), "R": _number(line["R"]),
            "inputs": str(line["inputs"]), "repeats": str(line["repeats"]),
        }
        for line in data
    ]
    notes = [
        "Success on the inputs that all compared models answer right before, with 95 % intervals (Wilson) over the inputs. P and R are "
        "the study's (Guo et al. 2019): R is the sum over attacks of P, the least the most robust, and makes a full unit of any gap. A set "
        "that was carried over (transfer) has no rank.",
    ]
    return Sheet("robustness", "Robustness by the study's protocol", data, shown, notes)


def _ranked(alike: Mapping[str, str], models: Mapping[str, Mapping[_Attack, Sequence["pandas.DataFrame"]]]) -> list[dict[str, Any]]:
    """The lines of one group. R is over the attacks on the models themselves, where every model has all of them."""
    kinds = list(dict.fromkeys(attack for found in models.values() for attack in found))
    common = {
        attack: set.intersection(*(_right_before(frame) for found in models.values() for frame in found.get(attack, ())))
        for attack in kinds
    }
    rates = {
        attack: {model: _success(found[attack], common[attack]) for model, found in models.items() if attack in found}
        for attack in kinds if common[attack]
    }
    of_all = [attack for attack, by_model in rates.items() if not carried_over(attack.access) and len(by_model) == len(models)]
    ranks = {attack: _relative(rates[attack]) for attack in of_all}
    complete = all(attack in ranks for attack in kinds if not carried_over(attack.access))
    shown = {name: alike[name] for name in MODEL if name in alike}
    lines: list[dict[str, Any]] = []
    for attack in kinds:
        for model, found in models.items():
            if attack not in found:
                continue
            line = shown | {
                "attack": attack.name, "access": attack.access, "framework": model, "inputs": len(common[attack]),
                "repeats": len(found[attack]), **dict.fromkeys(FIGURES[:5]),
            }
            if attack in rates:
                interval = share_interval(rates[attack][model], len(common[attack]))
                line |= {"success_rate": rates[attack][model], "low": interval.low, "high": interval.high}
            if attack in ranks:
                line |= {"P": ranks[attack][model], "R": sum(of[model] for of in ranks.values()) if complete else None}
            lines.append(line)
    return lines


def _alike(row: CellRecord) -> tuple[tuple[str, str], ...]:
    """All params of a row that are neither its framework's nor its attack's: rows of an earlier configuration stand in a sweep too."""
    own = {name: str(value) for name, value in row.params.items() if name not in FRAMEWORK and not name.startswith("attack")}
    return tuple(sorted(own.items()))


def _attack(row: CellRecord) -> _Attack:
    settings = {name: str(value) for name, value in row.params.items() if name.startswith("attack_") and name != "attack_seed"}
    return _Attack(variants.without(row.params["attack"], "seed"), kind_of_access(row.tags["access"]), tuple(sorted(settings.items())))


def _randomised(row: CellRecord) -> bool:
    starts = int(row.params.get("attack_" + attacks.STARTS, 0))
    return attacks.ROWS[variants.base(row.params["attack"])].randomised({attacks.STARTS: starts})


def _right_before(frame: "pandas.DataFrame") -> set[int]:
    return set(frame["index"][frame["prediction_before"] == frame["label"]].tolist())


def _success(frames: Sequence["pandas.DataFrame"], common: set[int]) -> float:
    """The mean share of the common inputs that the repeats turned."""
    return fmean(float((frame["prediction"] != frame["label"])[frame["index"].isin(common)].mean()) for frame in frames)


def _relative(by_model: Mapping[str, float]) -> dict[str, float]:
    least, most = min(by_model.values()), max(by_model.values())
    return {model: (rate - least) / (most - least) if most > least else 0.0 for model, rate in by_model.items()}


def _percents(line: Mapping[str, Any]) -> str:
    if line["success_rate"] is None:
        return "no input that all answer right"
    return f"{line['success_rate'] * SHARES:.1f} [{line['low'] * SHARES:.1f}, {line['high'] * SHARES:.1f}]"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def attacked(rows: Sequence[CellRecord]) -> Sheet:
    """A line for each attack on each model, with what it saw of it, its robust accuracy, and why that isn't to be trusted."""
    data = []
    for row in rows:
        if row.tags["status"] != OK or "robust_accuracy" not in row.metrics:
            continue
        n, share = int(row.metrics["attack_n"]), row.metrics["robust_accuracy"]
        interval = share_interval(share, n)
        data.append({
            **{name: row.params[name] for name in MODEL if name in row.params},
            "attack": row.params["attack"], "access": row.tags["access"],
            "norm": row.params["attack_norm"], "eps": row.params["attack_eps"],
            "inputs": n, "clean": row.metrics.get("attack_clean_accuracy"),
            "robust_accuracy": share, "low": interval.low, "high": interval.high,
            "queries": row.metrics.get("attack_queries"), "flags": row.tags.get("attack_flags", ""),
        })
    shown = [
        {name: str(value) for name, value in line.items() if name not in (*FIGURES, "clean", "robust_accuracy", "queries")} | {
            "eps": f"{float(line['eps']):.4g}",
            "before %": "" if line["clean"] is None else f"{line['clean'] * SHARES:.1f}",
            "robust %": f"{line['robust_accuracy'] * SHARES:.1f} [{line['low'] * SHARES:.1f}, {line['high'] * SHARES:.1f}]",
            "queries": "" if line["queries"] is None else f"{line['queries']:.1f}", "inputs": str(line["inputs"]), "flags": line["flags"],
        }
        for line in data
    ]
    notes = [
        "Before and robust are the shares of all attacked inputs that are right before the attack and after it, the latter with 95 % "
        "intervals (Wilson) over the inputs. A set that was carried over (transfer) gives an upper bound: it was not made for this model. "
        "Queries are per attacked input.",
    ]
    return Sheet("attacks", "Attacked models", data, shown, notes)
