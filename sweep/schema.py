"""What a sweep file says, validated. Pure: nothing is read or asked of any component but its name."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from sweep import checks, variants
from sweep.axes import NO_ATTACK, NO_CONTROL, NO_CORRUPTION, NOTHING

KINDS_OF_GRID = ("architecture", "model", "operator")
NEEDED_BY = {"framework": ("architecture", "operator"), "dataset": ("architecture", "model")}
"""Which kinds of grid an axis is for, and is needed by."""


def _listed(value: Any) -> Any:
    """A single value stands for a list of one."""
    return [value] if isinstance(value, str | int) else value


def _spanned(value: Any) -> Any:
    """A value with settings stands for all that their lists span."""
    entries = [value] if isinstance(value, str | dict) else value
    return [each for entry in entries for each in variants.spanned(entry)] if isinstance(entries, list) else value


Axis = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
VariedAxis = Annotated[list[str], BeforeValidator(_spanned), Field(min_length=1)]
Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], BeforeValidator(_listed), Field(min_length=1)]


class Strict(BaseModel):
    """Unknown keys are errors; values are what they say (no string becomes a number)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Grid(Strict):
    """The axes; a grid is their product: of networks (`architecture`), of users' own models (`model`) or of operators (`operator`)."""

    framework: Axis = [NOTHING]
    dataset: Axis = [NOTHING]
    architecture: Axis = [NOTHING]
    model: Axis = [NOTHING]
    operator: Axis = [NOTHING]
    recipe: Axis = ["defaults"]
    seed: Seeds | None = None
    weights: Axis = ["trained"]
    control: Axis = [NO_CONTROL]
    runtime: VariedAxis = ["native"]
    quantization: VariedAxis = ["float32"]
    device: Axis = ["localhost"]
    corruption: VariedAxis = [NO_CORRUPTION]
    attack: VariedAxis = [NO_ATTACK]

    @model_validator(mode="after")
    def _of_one_kind(self) -> "Grid":
        stated = {axis for axis in KINDS_OF_GRID if getattr(self, axis) != [NOTHING]}
        if len(stated) != 1:
            given = " and ".join(sorted(stated)) or "none of them"
            raise ValueError(f"a grid has one of architecture, model and operator; here it has {given}")
        kind = stated.pop()
        for axis, kinds in NEEDED_BY.items():
            if kind in kinds and getattr(self, axis) == [NOTHING]:
                raise ValueError(f"the key {axis!r} is missing, which a grid with {kind!r} needs")
            if kind not in kinds and getattr(self, axis) != [NOTHING]:
                raise ValueError(f"{axis} means nothing in a grid with {kind!r}")
        if kind != "architecture" and self.corruption != [NO_CORRUPTION]:
            raise ValueError(f"corruption means nothing in a grid with {kind!r}")
        if kind == "operator" and self.attack != [NO_ATTACK]:
            raise ValueError(f"attack means nothing in a grid with {kind!r}")
        return self


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
    """Test images that are evaluated (None: all), and the first of them on which the float64 reference and quantizations are computed."""

    examples: PositiveInt | None = None
    reference_examples: PositiveInt = 1000
    simulated_examples: PositiveInt = 200  # at most reference_examples


class Measurement(Strict):
    """The latency protocol; `reference` is the runtime whose float32 model of the same source is interleaved."""

    enabled: bool = True
    reference: str = "native"
    processes: Annotated[int, Field(ge=3)] = 3
    blocks: Annotated[int, Field(ge=10)] = 30
    throughput_batch: PositiveInt = 100


class AttackInputs(Strict):
    """How many of the fixed, seeded test list are attacked; by attack where one takes fewer, or more, since it is slow, or fast."""

    examples: PositiveInt = 500
    but: dict[str, PositiveInt] = {}

    def of(self, name: str) -> int:
        return self.but.get(name, self.examples)


class Search(Strict):
    """The search for inputs on which a conversion and its source disagree: from how many of the test list (0 for none), how far from them
    in any pixel, by how many changes, and with which seed."""

    examples: NonNegativeInt = 0
    eps: Annotated[float, Field(gt=0, le=1)] = 0.1
    rounds: PositiveInt = 200
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0


class Diagnosis(Strict):
    """When the layers of a network that carries another framework's weights are held against the reference, and on how many inputs."""

    when: Literal["parity_fails", "always", "never"] = "parity_fails"
    examples: Annotated[int, Field(ge=1, le=32)] = 16


class Probes(Strict):
    """How many probes are drawn of each operator, and from which seed."""

    count: PositiveInt = 100
    seed: NonNegativeInt = 0


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
    simulate: PositiveFloat = 1800.0
    corrupt: PositiveFloat = 1800.0
    search: PositiveFloat = 1800.0
    adopt: PositiveFloat = 600.0
    probe: PositiveFloat = 3600.0
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
    search: Search = Search()
    diagnose: Diagnosis = Diagnosis()
    trace: Trace = Trace()
    probes: Probes = Probes()
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
        checks.values(self)
        return self

    def attack_settings(self, attack: str) -> dict[str, Any]:
        """What is said of an attack, on the axis or else in `settings`."""
        name, chosen = variants.parse(attack)
        return {**self.settings.attack.get(name, {}), **chosen}

    def training(self, dataset: str, architecture: str) -> Training:
        """The training settings of one data set and architecture."""
        chosen = self.train.model_dump() | self.settings.dataset.get(dataset, {}) | self.settings.architecture.get(architecture, {})
        return Training.model_validate(chosen)
