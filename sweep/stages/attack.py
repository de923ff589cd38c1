"""The attacker's side of an attack: the Adversarial Robustness Toolbox, joined to the models that it asks."""

import os
import time
from contextlib import ExitStack

import numpy as np

from sweep.inputs import read_inputs, read_labels
from sweep.stages.serve import asking


def craft(settings, data, models, gradients, key, out):
    """Write `adversarial.npz` with index (into the test images), label, clean and adversarial images, logits on both.

    `models` has the address of `attacked`; `gradients` is the role of the one that gives them, which may be another, None for a black
    box. Returns seconds, queries per image that was attacked, `right`, how many images the model gets right and were therefore attacked,
    `zero_gradients`, for how many of them the gradient of the loss is nothing but zeros (None for a black box), and `repeat_difference`,
    how far logits of the same images are from those a moment before, as a share of the largest.
    """
    from sweep import crafting, estimator  # late: the models' side does without ART

    chosen = np.load(data["splits"], allow_pickle=False)["attack"][: settings["examples"]]
    clean, labels = read_inputs(data["folder"], "test", chosen), read_labels(data["folder"], "test", chosen)
    with ExitStack() as stack:
        joined = {role: stack.enter_context(asking(models[role], key)) for role in sorted(models)}
        model, given, zeros = joined["attacked"], {}, None
        before = model("predict", clean)
        right = before.argmax(axis=1) == labels
        if gradients is not None:
            twin = joined[gradients]
            given = {
                "loss_gradient": lambda x, y: twin("loss_gradient", x, y),
                "class_gradient": lambda x, of=None: twin("class_gradient", x) if of is None else twin("class_gradient", x, of),
            }
            zeros = _zeros(given["loss_gradient"](clean[right], labels[right])) if right.any() else 0
        target = estimator.wrap(lambda x: model("predict", x), clean.shape[1:], before.shape[1], **given)
        again = model("predict", clean)
        started = time.perf_counter()
        adversarial = crafting.craft(settings["attack"], settings["attack_settings"], target, clean, labels, before)
        seconds = time.perf_counter() - started
        after = model("predict", adversarial)
    np.savez(
        os.path.join(out, "adversarial.npz"), index=chosen, label=labels, clean=clean, adversarial=adversarial, before=before, after=after,
    )
    return {
        "seconds": seconds, "queries": sum(target.queries) / max(right.sum(), 1), "right": int(right.sum()), "zero_gradients": zeros,
        "repeat_difference": float(np.abs(again - before).max() / np.abs(before).max()),
    }


def _zeros(gradients):
    return int((~gradients.reshape(len(gradients), -1).any(axis=1)).sum())
