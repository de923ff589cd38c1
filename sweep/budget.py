"""What a conversion may cost before it is shipped, and whether it does. Pure.

    verdict: within tolerance     # the worst of `sweep.parity.VERDICTS` that may be
    disagreement: 0.01            # share of the inputs that may be answered otherwise than by the source
    accuracy_drop: 0.005          # what may be lost of the source's accuracy, where the inputs have labels
    size_ratio: 0.3               # of the source's bytes
    latency_ratio: 1.2            # of the source's latency
    models:                       # by file name, what is otherwise for one of the conversions
      model_int8.onnx: {quantization: static_int8, verdict: degraded, flips: 5}
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from sweep import quantization
from sweep.axes import FLOAT32
from sweep.config import NoDuplicates
from sweep.errors import ConfigError, nearest
from sweep.parity import VERDICTS, WRONG
from sweep.schema import Strict

Share = Annotated[float, Field(ge=0, le=1)]


class Limits(Strict):
    """What one conversion may cost; None is no limit. `quantization` and `runtime` say what it is and where it is run. Several outputs may
    stand in another order than the source's, since many formats know them by name alone, unless `reordered_outputs` is false."""

    verdict: Literal["equal", "within tolerance", "degraded", "broken"] = "within tolerance"
    reordered_outputs: bool = True
    flips: NonNegativeInt | None = None
    disagreement: Share | None = None
    accuracy_drop: Share | None = None
    size_bytes: PositiveInt | None = None
    size_ratio: PositiveFloat | None = None
    latency_ratio: PositiveFloat | None = None
    quantization: str = FLOAT32
    runtime: str | None = None


class Budget(Limits):
    """The limits of all conversions, and of some by file name."""

    models: dict[str, dict[str, Any]] = Field(default_factory=dict)

    def of(self, name: str) -> Limits:
        """The limits of the conversion in a file of this name. Raises ConfigError for settings that can't be meant."""
        chosen = self.model_dump(exclude={"models"}) | self.models.get(name, {})
        try:
            limits = Limits.model_validate(chosen)
        except ValidationError as error:
            raise ConfigError(f"models.{name}.{_first(error)}") from None
        if limits.quantization not in quantization.ROWS:
            hint = nearest(limits.quantization, quantization.ROWS)
            raise ConfigError(f"quantization: there is no {limits.quantization!r}{hint}")
        if " or " in quantization.ROWS[limits.quantization].weights:
            raise ConfigError(f"quantization: {limits.quantization!r} may have any number of bits, so that nothing follows from it here")
        return limits


class Check(NamedTuple):
    """One limit held against what was found."""

    name: str
    holds: bool
    said: str  # one line


def load(path: Path) -> Budget:
    """Read a budget's YAML file. Raises ConfigError."""
    try:
        content = yaml.load(path.read_text(), Loader=NoDuplicates)
        return Budget.model_validate({} if content is None else content)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {path}: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"there is no key {where!r}{nearest(where, Budget.model_fields)}"
    return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}, not {first['input']!r}"


def judge(found: Mapping[str, Any], limits: Limits) -> list[Check]:
    """Every limit that is set, held against the figures of a conversion: those of `sweep.parity.verdict`, and `outputs_order`, `flips`,
    `accuracy_drop`, `size_bytes`, `size_ratio`, `latency_ratio` with `latency_ratio_low`.

    A latency ratio breaks its limit where its whole interval does. Raises ConfigError for a limit on what could not be measured.
    """
    reasons = "; ".join(found["reasons"]) or f"{limits.verdict} is allowed"
    if found["verdict"] in WRONG and limits.quantization == FLOAT32:
        reasons += "; it was judged as a model in float32: `quantization` in the budget says if it is another"
    checks = [Check("verdict", VERDICTS.index(found["verdict"]) <= VERDICTS.index(limits.verdict), f"{found['verdict']}: {reasons}")]
    order = found.get("outputs_order")
    if order is not None:
        listed = ", ".join(map(str, order))
        checks.append(Check("reordered_outputs", limits.reordered_outputs, f"its outputs are the source's in the order {listed}"))
    for name in ("flips", "disagreement", "accuracy_drop", "size_bytes", "size_ratio"):
        limit = getattr(limits, name)
        if limit is not None and _measured(found, name):
            checks.append(Check(name, found[name] <= limit, f"{_shown(found[name])}, and {_shown(limit)} is allowed"))
        elif limit is not None:
            checks.append(Check(name, False, NOT_COMPARABLE))
    if limits.latency_ratio is not None and _measured(found, "latency_ratio"):
        value, low = found["latency_ratio"], found["latency_ratio_low"]
        said = f"{value:.3g}, at least {low:.3g} with 95 % confidence, and {limits.latency_ratio:g} is allowed"
        checks.append(Check("latency_ratio", low <= limits.latency_ratio, said))
    return checks


NOT_COMPARABLE = "there is no such figure, since its outputs are not the source's in number"
_NEEDS = {
    "flips": "a model with one output for each class",
    "disagreement": "a model with one output for each class",
    "accuracy_drop": "labels beside the inputs, and a model with one output for each class",
}


def _measured(found: Mapping[str, Any], name: str) -> bool:
    """Whether there is such a figure; outputs of another shape than the source's have none, which no limit allows."""
    if name not in found and found["verdict"] != "broken":
        raise ConfigError(f"{name}: there is no such figure without {_NEEDS.get(name, 'a measurement')}")
    return name in found


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
