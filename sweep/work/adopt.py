"""A user's own model: all of it happens in the worker that can read its format."""

from sweep.work import Outcome, Work


def run(work: Work) -> Outcome:
    outcome: Outcome = work.call("adopt:run", settings=work.settings, data=work.data, out=str(work.folder))
    return outcome | {"facts": {"model_format": work.settings["format"], "model_digest": work.settings["digest"][:16]}}
