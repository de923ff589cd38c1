"""The search for inputs on which a deployed model and its source disagree: each in a worker, and who searches in a third."""

from sweep.work import Outcome, Work, joined


def run(work: Work) -> Outcome:
    """`search_found_share` of the images a search led from to a disagreement, `search_random_share` as many at random."""
    settings, shape = work.settings, work.bench.shape
    models = [
        joined.source("source", shape, settings["twin"], work.inputs["twin"]),
        joined.deployed("deployed", shape, settings, work.inputs["model"]),
    ]
    found, runs = joined.call(work, "search:run", models, settings=settings, data=work.data, out=str(work.folder))
    metrics = {
        "search_n": found["n"],
        "search_already": found["already"],
        "search_found_share": found["guided"]["found"] / found["n"],
        "search_random_share": found["random"]["found"] / found["n"],
        "search_queries": found["guided"]["queries"],
        "search_random_queries": found["random"]["queries"],
    }
    if found["rounds"] is not None:
        metrics["search_rounds_p50"] = found["rounds"]
    return {"metrics": metrics, "runs": runs["deployed"]}
