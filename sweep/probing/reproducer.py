"""A fault written down so that it shows without this project: a folder with a script, the model file, arrays, and a text for a tracker."""

import importlib.util
import inspect
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sweep.operators import _probe as probing
from sweep.probing.names import Named

SHOWN = 12
"""So many numbers of an output are printed."""

_MAIN = '''

MODEL, OPTIONS, ONE_BY_ONE = {model!r}, {options!r}, {one_by_one!r}


def main():
    import importlib.metadata
    import sys
    from pathlib import Path

    import numpy as np

    folder = Path(__file__).resolve().parent
    inputs, right, tolerance = (np.load(folder / (name + ".npy")) for name in ("inputs", "right", "tolerance"))
    for found in importlib.metadata.distributions():
        if found.metadata["Name"].lower().replace("_", "-").startswith((DISTRIBUTION, "numpy")):
            print(found.metadata["Name"], found.version)
    together = 1 if ONE_BY_ONE else len(inputs)
    parts = [inputs[start:start + together] for start in range(0, len(inputs), together)]
    observed = np.concatenate([np.asarray(run(folder / MODEL, part, OPTIONS)) for part in parts])
    print("right, from the definition in float64:", right.shape, right.ravel()[:{shown}])
    print("observed:", observed.shape, observed.ravel()[:{shown}])
    with np.errstate(all="ignore"):
        same = observed.shape == right.shape and bool(
            np.all((np.abs(observed - right) <= tolerance) | (observed == right) | (np.isnan(observed) & np.isnan(right)))
        )
    print("right" if same else "WRONG")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
'''


@dataclass(frozen=True)
class Fault:
    """What a reproducer shows: a `file` that a framework exported in a format and a runtime converted, with the packages that did so.
    `kind` is `runtimes` or `frameworks`, whose `module` runs it; `options` are how."""

    probe: Mapping[str, Any]
    named: Named
    kind: str
    module: str
    version: str
    options: Mapping[str, Any]
    format: str
    row: str
    versions: Mapping[str, str]
    file: Path
    observed: np.ndarray | None  # None where it crashed
    tolerance: np.ndarray
    one_by_one: bool = False  # whether inputs are run so, since ranges depend on what is run together


def write(folder: Path, fault: Fault) -> None:
    """`reproduce.py`, the model, `inputs.npy`, `right.npy` (float64), `observed.npy`, `tolerance.npy` and `README.md`."""
    folder.mkdir(parents=True)
    weights, inputs = probing.arrays_of(fault.probe)
    right = probing.exact(fault.probe, weights, inputs)
    target = folder / fault.file.name
    if fault.file.is_dir():
        shutil.copytree(fault.file, target)
    else:
        shutil.copyfile(fault.file, target)
    arrays = {"inputs": inputs, "right": right, "tolerance": fault.tolerance}
    arrays |= {f"weights_{name}": array for name, array in weights.items()}
    if fault.observed is not None:
        arrays["observed"] = fault.observed
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    main = _MAIN.format(model=target.name, options=dict(fault.options), one_by_one=fault.one_by_one, shown=SHOWN)
    (folder / "reproduce.py").write_text(_standalone(fault).read_text() + main)
    (folder / "README.md").write_text(_text(fault, inputs, right))


def can_be_written(kind: str, module: str) -> bool:
    """Whether there is a program that runs this component's files alone."""
    return importlib.util.find_spec(f"sweep.{kind}._standalone.{module}") is not None


def _standalone(fault: Fault) -> Path:
    spec = importlib.util.find_spec(f"sweep.{fault.kind}._standalone.{fault.module}")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def _text(fault: Fault, inputs: np.ndarray, right: np.ndarray) -> str:
    operator, named = fault.probe["operator"], fault.named
    options = ", ".join(f"{name} = {value}" for name, value in fault.options.items())
    observed = "the process ends" if fault.observed is None else f"`{_numbers(fault.observed)}`"
    parameters = "\n".join(f"| {name} | {value} |" for name, value in fault.probe["parameters"].items())
    definition = inspect.getdoc(probing.operator_of(fault.probe))
    versions = "".join(f"| {name} | {version} |\n" for name, version in fault.versions.items())
    made = f"It was exported as {fault.format} and is in {fault.row}; what made the file may be at fault as well as what runs it."
    if fault.kind == "frameworks":
        made = "The file is what the framework writes for itself."
    ends = "ends the process" if fault.observed is None else "gives wrong numbers"
    return f"""# {operator}: {named.fault.replace("_", " ")} ({fault.module} {fault.version})

A model of one `{operator}` {ends} in {fault.module} {fault.version}{f" with {options}" if options else ""}.
{made}

| parameter | value |
| --- | --- |
{parameters}
| input | float32 {inputs.shape} |

**Expected**, from the definition in double precision: shape {right.shape}, `{_numbers(right)}`

**Observed**: {"" if fault.observed is None else f"shape {fault.observed.shape}, "}{observed}

**How it is wrong**: {"; it also fits ".join([named.detail, *named.also])}.

**To reproduce**: `pip install numpy` and the runtime, then `python reproduce.py`; exit status 1 is the fault. It needs the files beside it
and nothing else. `right.npy` is the right output in float64, `tolerance.npy` what rounding explains of a difference.

| package | version |
| --- | --- |
{versions}| {platform.python_implementation()} | {platform.python_version()} |
| platform | {platform.platform()}, {platform.machine()} |

The definition of `{operator}`:

```
{definition}
```
"""


def _numbers(array: np.ndarray) -> str:
    shown = ", ".join(f"{number:.6g}" for number in array.ravel()[:SHOWN])
    return shown + (", ..." if array.size > SHOWN else "")
