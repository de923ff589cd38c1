"""From YAML to a validated sweep. Every error names the key, the value and the nearest valid one; nothing is touched but the file."""

import copy
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from sweep import attacks, components, quantization, toolchain
from sweep.errors import ConfigError

AXES = ("framework", "dataset", "architecture", "recipe", "seed", "weights", "control", "runtime", "quantization", "device", "attack")
RECIPES = ("defaults", "matched", "identical")
WEIGHTS = ("trained", "same")
NO_CONTROL, ONE_ULP, FLOAT64 = "none", "one_ulp", "float64"
NO_ATTACK = "none"
STAGES_EXPERIMENT = "stages"
CUSTOM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _listed(value: Any) -> Any:
    """A single value stands for a list of one."""
    return [value] if isinstance(value, str | int) else value


Axis = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], BeforeValidator(_listed), Field(min_length=1)]


class Strict(BaseModel):
    """Unknown keys are errors; values are what they say (no string becomes a number)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Grid(Strict):
    """The axes; a grid is their product."""

    framework: Axis
    dataset: Axis
    architecture: Axis
    recipe: Axis = ["defaults"]
    seed: Seeds | None = None
    weights: Axis = ["trained"]
    control: Axis = [NO_CONTROL]
    runtime: Axis = ["native"]
    quantization: Axis = ["float32"]
    device: Axis = ["localhost"]
    attack: Axis = [NO_ATTACK]


Decay = Annotated[tuple[NonNegativeInt, PositiveFloat], BeforeValidator(lambda step: tuple(step) if isinstance(step, list) else step)]


class Training(Strict):
    """The configuration of a training, equal for all frameworks (`TrainingPlan` of `sweep.contracts` has the meanings)."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: PositiveFloat = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    epsilon: PositiveFloat | None = None
    l2: Annotated[float, Field(ge=0)] = 0.0
    batch_size: PositiveInt = 128
    epochs: PositiveInt = 10
    decay: list[Decay] = []
    examples: PositiveInt | None = None  # a fixed draw from the training list; None takes all
    test_examples: PositiveInt | None = None  # of the fixed test list, while it trains and after; None takes what `evaluate` says
    label: str | None = None  # what such a training is called; changes nothing in it


class Data(Strict):
    """Where a data set is, whether a published subset of it may stand in when the whole is not to be had, and how it is prepared."""

    path: str | None = None
    allow_subset: bool = False
    settings: dict[str, PositiveInt] = {}  # of the data set's own SETTINGS


class Evaluation(Strict):
    """Test images that are evaluated (None: all), and those of them on which the float64 reference is computed."""

    examples: PositiveInt | None = None
    reference_examples: PositiveInt = 1000


class Measurement(Strict):
    """The latency protocol; `reference` is the runtime whose float32 model of the same source is interleaved."""

    enabled: bool = True
    reference: str = "native"
    processes: Annotated[int, Field(ge=3)] = 3
    blocks: Annotated[int, Field(ge=10)] = 30
    throughput_batch: PositiveInt = 100


class AttackInputs(Strict):
    """How many of the fixed, seeded test list are attacked."""

    examples: PositiveInt = 500


class Diagnosis(Strict):
    """When the layers of a network that carries another framework's weights are held against the reference, and on how many inputs."""

    when: Literal["parity_fails", "always", "never"] = "parity_fails"
    examples: Annotated[int, Field(ge=1, le=32)] = 16


class Trace(Strict):
    """Trainings compared step by step: how many equal steps (0 for none), and the framework that the others are held against."""

    steps: Annotated[int, Field(ge=0, le=1000)] = 0
    against: str | None = None


class Settings(Strict):
    """Settings by the value of an axis: training settings by data set and architecture (the latter win), attack parameters by attack."""

    dataset: dict[str, dict[str, Any]] = {}
    architecture: dict[str, dict[str, Any]] = {}
    attack: dict[str, dict[str, Any]] = {}


class StageSeconds(Strict):
    """Time limit of one stage, by kind."""

    train: PositiveFloat = 6 * 3600.0
    transplant: PositiveFloat = 600.0
    convert: PositiveFloat = 900.0
    evaluate: PositiveFloat = 1800.0
    measure: PositiveFloat = 900.0
    attack: PositiveFloat = 3 * 3600.0
    diagnose: PositiveFloat = 1800.0
    trace: PositiveFloat = 3600.0
    compare: PositiveFloat = 600.0


class LimitSettings(Strict):
    """What one stage may use. A worker above `memory_gb`, with all it started, is ended with `oom_host`; None: its share of the machine."""

    seconds: StageSeconds = StageSeconds()
    memory_gb: PositiveFloat | None = None


class Store(Strict):
    """Where MLflow keeps runs, and artifacts (None: below `mlruns/` for a database file, the server's own place else)."""

    tracking_uri: str = "sqlite:///mlruns/mlflow.db"
    artifacts: str | None = None


class Sweep(Strict):
    """The validated content of one YAML file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
    seeds: Annotated[Seeds, Field(min_length=1)] = [0]  # of every grid that states none
    grid: Annotated[list[Grid], BeforeValidator(lambda value: [value] if isinstance(value, dict) else value), Field(min_length=1)]
    exclude: list[dict[str, Annotated[list[Any], BeforeValidator(_listed)]]] = []
    train: Training = Training()
    settings: Settings = Settings()
    options: dict[str, dict[str, Any]] = {}
    data: dict[str, Data] = {}
    evaluate: Evaluation = Evaluation()
    measure: Measurement = Measurement()
    attack: AttackInputs = AttackInputs()
    diagnose: Diagnosis = Diagnosis()
    trace: Trace = Trace()
    same_weights_from: str | None = None
    transplant_via: str | None = None
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    slots: Annotated[int, Field(ge=1, le=10_000)] | None = None
    processor: Literal["auto", "cpu", "gpu"] = "auto"
    limits: LimitSettings = LimitSettings()
    store: Store = Store()
    paper: str | None = None
    size: str | None = None
    sizes: dict[str, dict[str, Any]] = {}

    @model_validator(mode="after")
    def _meaningful(self) -> "Sweep":
        _check_values(self)
        return self

    def training(self, dataset: str, architecture: str) -> Training:
        """The training settings of one data set and architecture."""
        chosen = self.train.model_dump() | self.settings.dataset.get(dataset, {}) | self.settings.architecture.get(architecture, {})
        return Training.model_validate(chosen)


def load(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file and apply `key.key=value` overrides. Raises ConfigError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        content = yaml.load(text, Loader=NoDuplicates)  # a SafeLoader that also refuses duplicate keys
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is empty" if content is None else f"{path} must be a mapping of keys, not a {type(content).__name__}")
    content = _sized(content, overrides, path)
    try:
        return Sweep.model_validate(content)
    except ValidationError as error:
        raise ConfigError(_explain(error.errors(include_url=False), content, path)) from None


def _sized(content: dict[str, Any], overrides: Sequence[str], path: Path) -> dict[str, Any]:
    """The content with the chosen one of its `sizes` merged in, and the overrides over all."""
    chosen = copy.deepcopy(content)
    for override in overrides:
        _override(chosen, override)
    size, sizes = chosen.get("size"), chosen.get("sizes")
    if size is None:
        return chosen
    if not isinstance(sizes, dict):
        raise ConfigError(f"{path}: size: {size!r} is none, since there are no sizes")
    if size not in sizes or not isinstance(sizes[size], dict):
        raise ConfigError(f"{path}: size: there is no {size!r}{nearest(size, sizes)}")
    content = _merged(content, sizes[size])
    for override in overrides:
        _override(content, override)
    return content


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        merged[key] = _merged(merged[key], value) if isinstance(value, dict) and isinstance(merged.get(key), dict) else copy.deepcopy(value)
    return merged


def nearest(word: str, valid: Iterable[Any]) -> str:
    """What to say after a wrong word: the nearest valid one, and all of them where they are few."""
    valid = [str(v) for v in valid]
    close = difflib.get_close_matches(str(word), valid, 1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; valid: {', '.join(valid)}" if len(valid) <= 20 else ""


class NoDuplicates(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _value in node.value if key.tag != "tag:yaml.org,2002:merge"]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


# YAML 1.1, which the library reads, takes 1e-3 for a string; 1.2 and everyone who writes a learning rate take it for a number
NoDuplicates.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+"), list("-+0123456789"))


def _override(content: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"an override is key=value, not {override!r}")
    try:
        parsed = yaml.load(value, Loader=NoDuplicates)
    except yaml.YAMLError:
        raise ConfigError(f"the value of {key!r} is not valid YAML: {value!r}") from None
    *parents, last = key.split(".")
    place: Any = content
    for part in parents:
        place = place[_index(key, part, place)] if isinstance(place, list) else place.setdefault(part, {})
        if not isinstance(place, dict | list):
            raise ConfigError(f"{key!r} goes below {part!r}, which is a single value")
    place[_index(key, last, place) if isinstance(place, list) else last] = parsed


def _index(key: str, part: str, place: list[Any]) -> int:
    if not part.isdigit() or int(part) >= len(place):
        raise ConfigError(f"{key!r}: {part!r} must be a number from 0 to {len(place) - 1}, since a list stands there")
    return int(part)


def _check_values(sweep: Sweep) -> None:
    """Names of components and rows, wherever they stand. Raises ValueError, which pydantic reports."""
    known: dict[str, Sequence[Any]] = {
        "framework": list(toolchain.offers("frameworks")),
        "dataset": components.names("datasets"),
        "architecture": components.names("architectures"),
        "recipe": RECIPES,
        "weights": WEIGHTS,
        "control": (NO_CONTROL, ONE_ULP, FLOAT64),
        "runtime": list(toolchain.offers("runtimes")),
        "quantization": list(quantization.ROWS),
        "device": components.names("devices"),
        "attack": [NO_ATTACK, *attacks.ROWS],
    }
    for number, grid in enumerate(sweep.grid):
        for axis, valid in known.items():
            where = f"grid.{axis}" if len(sweep.grid) == 1 else f"grid.{number}.{axis}"
            for value in getattr(grid, axis):
                _check(where, value, valid, axis)
    for rule in sweep.exclude:
        if not rule:
            raise ValueError("exclude: a rule without an axis would exclude every cell")
        for axis, values in rule.items():
            _check("exclude", axis, AXES)
            if not values:
                raise ValueError(f"exclude.{axis} is empty")
            for value in values:
                if axis != "seed":
                    _check(f"exclude.{axis}", value, known[axis], axis)
                elif type(value) is not int:
                    raise ValueError(f"exclude.seed: a seed is a whole number, not {value!r}")
    if sweep.name == STAGES_EXPERIMENT:
        raise ValueError(f"name: {sweep.name!r} is the experiment that all sweeps of a store share; choose another")
    for dataset, data in sweep.data.items():
        _check("data", dataset, known["dataset"])
        settings = components.load("datasets", dataset).SETTINGS
        for setting in data.settings:
            if setting not in settings:
                hint = nearest(setting, settings) if settings else "; it has no settings"
                raise ValueError(f"data.{dataset}.settings: there is no {setting!r}{hint}")
    for axis in ("dataset", "architecture"):
        for value, changed in getattr(sweep.settings, axis).items():
            _check(f"settings.{axis}", value, known[axis], axis)
            _partial_training(f"settings.{axis}.{value}", sweep.train, changed)
    for name, changed in sweep.settings.attack.items():
        _check("settings.attack", name, attacks.ROWS)
        attacks.check(name, changed)
    for component in sweep.options:
        _check("options", component, sorted({*known["framework"], *known["runtime"]}))
    _check("measure.reference", sweep.measure.reference, known["runtime"], "runtime")
    for key, framework in (("transplant_via", sweep.transplant_via), ("trace.against", sweep.trace.against)):
        if framework is not None:
            _check(key, framework, known["framework"], "framework")
    if sweep.trace.steps and sweep.trace.against is None:
        raise ValueError("trace.against: steps are compared with those of a framework, which must be named")
    if sweep.trace.steps and not any("identical" in grid.recipe and "trained" in grid.weights for grid in sweep.grid):
        raise ValueError("trace.steps: steps are compared where networks start equal, and no grid trains by the recipe 'identical'")
    if sweep.same_weights_from is not None:
        _check("same_weights_from", sweep.same_weights_from, known["framework"], "framework")
    elif any("same" in grid.weights for grid in sweep.grid):
        raise ValueError("same_weights_from: weights 'same' needs the framework whose trained model the others take over")


def _check(where: str, value: Any, valid: Iterable[Any], axis: str = "") -> None:
    if value not in valid and not (axis in _OPEN and _OPEN[axis](str(value))):
        raise ValueError(f"{where}: there is no {value!r}{nearest(value, valid)}")


_OPEN: dict[str, Callable[[str], Any]] = {
    "architecture": CUSTOM.fullmatch,
    "framework": lambda value: toolchain.offer("frameworks", value),
    "runtime": lambda value: toolchain.offer("runtimes", value),
}
"""Axes with values that no list has: a user's own function, or a version of what the default toolchain has."""


def _partial_training(where: str, base: Training, changed: Mapping[str, Any]) -> None:
    for key in changed:
        _check(where, key, Training.model_fields)
    try:
        Training.model_validate(base.model_dump() | dict(changed))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{where}.{'.'.join(map(str, first['loc']))}: {first['msg']}, not {first['input']!r}") from None


def _explain(errors: Sequence[Any], content: Mapping[str, Any], path: Path) -> str:
    """One line per error, the first five."""
    lines = []
    for error in errors[:5]:
        location = [part for part in error["loc"] if part != 0 or isinstance(content.get("grid"), list)]
        where = ".".join(map(str, location))
        if error["type"] == "extra_forbidden":
            lines.append(f"there is no key {where!r}{nearest(str(location[-1]), _fields(error['loc'][:-1]))}")
        elif error["type"] == "too_short":
            lines.append(f"{where} is empty")
        elif error["type"] == "missing":
            lines.append(f"the key {where!r} is missing")
        elif error["type"] == "value_error":
            lines.append(error["msg"].removeprefix("Value error, "))
        else:
            lines.append(f"{where}: {error['msg'][0].lower()}{error['msg'][1:]}, not {error['input']!r}")
    return f"{path}: " + "\n  ".join(lines)


def _fields(location: Sequence[Any]) -> list[str]:
    model: Any = Sweep
    for part in location:
        if part not in model.model_fields:  # a number in a list, or a value of an axis
            continue
        annotation = model.model_fields[part].annotation
        while hasattr(annotation, "__args__"):
            annotation = annotation.__args__[-1]
        model = annotation
    return list(model.model_fields)
