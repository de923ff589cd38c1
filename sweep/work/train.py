"""Training: all of it happens in the framework's worker."""

from sweep.work import Outcome, Work


def run(work: Work) -> Outcome:
    return work.call("train:run", settings=work.settings, data=work.data, out=str(work.folder))
