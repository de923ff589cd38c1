"""Conversion: all of it happens in the worker of the framework that exports, or of the runtime that deploys."""

from sweep.work import Outcome, Work


def run(work: Work) -> Outcome:
    return work.call("convert:run", settings=work.settings, model=work.inputs["model"], data=work.data, out=str(work.folder))
