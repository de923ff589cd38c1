"""Corruption of test images: in the default toolchain, once for all models."""

from sweep.work import Outcome, Work


def run(work: Work) -> Outcome:
    found: Outcome = work.call("corrupt:run", settings=work.settings, data=work.data, out=str(work.folder))
    return found
