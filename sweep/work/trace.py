"""The first steps of a training, all of it in the framework's worker."""

from sweep.work import Outcome, Work


def run(work: Work) -> Outcome:
    return work.call("trace:run", settings=work.settings, data=work.data, out=str(work.folder))
