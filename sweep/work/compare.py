"""Two traced trainings held against each other; no framework takes part."""

from sweep.work import Outcome, Work


def run(work: Work) -> Outcome:
    return work.call("compare:run", settings=work.settings, traces=dict(work.inputs), out=str(work.folder))
