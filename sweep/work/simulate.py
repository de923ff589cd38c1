"""Simulation of a quantization: NumPy alone, in the default toolchain."""

from sweep.work import Outcome, Work


def run(work: Work) -> Outcome:
    folders = {role: work.inputs[role] for role in ("model", "evaluation")}
    return work.call("simulate:run", settings=work.settings, data=work.test_data, out=str(work.folder), **folders)
