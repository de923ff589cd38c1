"""The search for inputs near the test images on which a deployed model and its source disagree."""

import os

import numpy as np

from sweep import searching
from sweep.inputs import read_inputs, read_labels
from sweep.stages.serve import asking


def run(settings, data, models, key, out):
    """Write `disagreements.npz`: of each input that was found index (into the test images), label, clean and found, float32 images, and the
    logits of both models on the latter, `source` and `deployed`. Starts from the images of the attack list.

    Returns by `guided` and `random` how many searches ended in a disagreement beyond those on the images as they are, and their queries;
    `already`, how many images were one to begin with; and `rounds`, the median round of the guided ones, None where there is none.
    """
    chosen = np.load(data["splits"], allow_pickle=False)["attack"][: settings["examples"]]
    clean, labels = read_inputs(data["folder"], "test", chosen), read_labels(data["folder"], "test", chosen)
    with asking(models["source"], key) as source, asking(models["deployed"], key) as deployed:
        both = {}
        for name, guided in (("guided", True), ("random", False)):
            both[name] = searching.disagreements(
                lambda x: source("predict", x), lambda x: deployed("predict", x), clean, settings["eps"], settings["rounds"],
                settings["search_seed"], guided,
            )
        guided = both["guided"]
        at = np.flatnonzero(guided.round >= 0)
        answers = [call("predict", guided.inputs[at]) if len(at) else np.zeros((0, 0), np.float32) for call in (source, deployed)]
    np.savez(
        os.path.join(out, "disagreements.npz"), index=chosen[at], label=labels[at], clean=clean[at], found=guided.inputs[at],
        source=answers[0], deployed=answers[1],
    )
    later = guided.round[guided.round > 0]
    return {
        "n": len(chosen), "already": int((guided.round == 0).sum()), "rounds": float(np.median(later)) if len(later) else None,
        **{name: {"found": int((found.round > 0).sum()), "queries": found.queries} for name, found in both.items()},
    }
