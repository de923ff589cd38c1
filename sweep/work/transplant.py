"""Transplanting: all of it happens in the worker of the framework that takes the weights over."""

from sweep.work import Outcome, Work


def run(work: Work) -> Outcome:
    folders = {role: work.inputs[role] for role in ("model", "evaluation")}
    return work.call("transplant:run", settings=work.settings, data=work.data, out=str(work.folder), **folders)
