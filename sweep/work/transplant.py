"""Transplanting: all of it happens in the worker of the framework that takes the weights over."""

from sweep.work import Outcome, Work


def run(work: Work) -> Outcome:
    return work.call("transplant:run", settings=work.settings, model=work.inputs["model"], data=work.data, out=str(work.folder))
