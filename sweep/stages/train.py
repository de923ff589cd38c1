"""Train a network in its framework."""

import json
import os
import time

import numpy as np

from sweep import images, initial, layers
from sweep.stages.models import open_framework, write_model


class WrongProcessor(Exception):
    """The framework does not run on what it was sent to: a build without CUDA, or a GPU that can't be used."""


def run(settings, data, out):
    """Train and write the model folder `out`: model.json, weights.npz, the native file, curves.json.

    `data` is {"folder": decoded data set, "splits": .npz of index lists}. Returns numbers by metric name and the curves: per epoch
    the loss and accuracy that the optimizer saw, and the accuracy on the validation and test images after the epoch.
    """
    framework = open_framework(settings)
    if framework.processor() != settings["processor"]:
        text = "{} runs on {} here and was to train on {}"
        raise WrongProcessor(text.format(settings["framework"], framework.processor(), settings["processor"]))
    plan, splits = settings["plan"], np.load(data["splits"], allow_pickle=False)
    chosen = splits["train"]
    if settings["examples"] is not None:  # drawn, since some sources are in the order of their classes
        chosen = np.sort(np.random.RandomState(0).permutation(chosen)[: settings["examples"]])
    inputs, labels = _part(data, "train", chosen)
    held_out = {"validation": _part(data, "train", splits["validation"]), "test": _part(data, "test", None)}
    network = framework.resolve(settings["layers"], plan["recipe"])
    model = framework.build(network, plan["recipe"], plan["seed"])
    counted, expected = framework.count_parameters(model), layers.count(network)
    if counted != expected:
        raise ValueError("the network has {} parameters and should have {}".format(counted, expected))
    permutations = None
    if plan["recipe"] == "identical":
        framework.set_weights(model, initial.weights(network, plan["seed"]))
        permutations = initial.permutations(len(chosen), plan["epochs"], plan["seed"])
    curves, seconds, started = [], 0.0, time.perf_counter()
    for report in framework.train(model, inputs, labels, plan, permutations):
        seconds += time.perf_counter() - started
        point = {"train_loss": report.loss, "train_accuracy": report.accuracy}
        for name, (x, y) in held_out.items():
            point[name + "_accuracy"] = float(np.mean(framework.predict(model, x).argmax(axis=1) == y))
        curves.append(point)
        started = time.perf_counter()
    write_model(framework, model, network, settings, out)
    with open(os.path.join(out, "curves.json"), "w") as file:
        json.dump(curves, file)
    return {"metrics": {"train_seconds": seconds, "train_examples": len(chosen)}, "curves": curves}


def _part(data, part, indices):
    return images.load(data["folder"], part, indices), images.labels(data["folder"], part, indices)
