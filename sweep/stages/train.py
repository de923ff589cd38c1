"""Train a network in its framework."""

import json
import os
import time

import numpy as np

from sweep import initial, layers
from sweep.inputs import read_inputs, read_labels
from sweep.stages.models import indices, open_framework, write_model


class WrongProcessor(Exception):
    """The framework does not run on what it was sent to: a build without CUDA, or a GPU that can't be used."""


def run(settings, data, out):
    """Train and write the model folder `out`: model.json, weights.npz, the native file, curves.json.

    `data` is {"folder": decoded data set, "splits": .npz of index lists}. Returns numbers by metric name and the curves: per epoch
    the loss and accuracy that the optimizer saw, and the accuracy on the validation and test examples after the epoch.
    """
    framework, plan = open_framework(settings), settings["plan"]
    check_processor(framework, settings)
    inputs, labels = training_part(settings, data)
    validation = np.load(data["splits"], allow_pickle=False)["validation"][: settings["test_examples"]]
    held_out = {"validation": _part(data, "train", validation), "test": _part(data, "test", indices(settings["test_examples"], data))}
    network = layers.resolved(settings["layers"], plan["recipe"], framework.FACTS["own"])
    model = initialised(framework, network, plan, settings["control"])
    counted, expected = framework.count_parameters(model), layers.count(network)
    if counted != expected:
        raise ValueError("the network has {} parameters and should have {}".format(counted, expected))
    permutations = None
    if plan["recipe"] == "identical":
        permutations = initial.permutations(len(inputs), plan["epochs"], plan["seed"])
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
    return {"metrics": {"train_seconds": seconds, "train_examples": len(inputs)}, "curves": curves}


def check_processor(framework, settings):
    """Raises WrongProcessor where the framework would run on another kind of processor than it was sent to."""
    if framework.processor() != settings["processor"]:
        text = "{} runs on {} here and was to train on {}"
        raise WrongProcessor(text.format(settings["framework"], framework.processor(), settings["processor"]))


def training_part(settings, data):
    """Inputs and labels of the training list, or of a fixed draw of settings["examples"] of it."""
    chosen = np.load(data["splits"], allow_pickle=False)["train"]
    if settings["examples"] is not None:  # drawn, since some sources are in the order of their classes
        chosen = np.sort(np.random.RandomState(0).permutation(chosen)[: settings["examples"]])
    return _part(data, "train", chosen)


def initialised(framework, network, plan, control, draw=0):
    """The model to be trained, as `plan` says; for a control from the same weights moved by one ulp, or in double precision."""
    model = framework.build(network, plan["recipe"], plan["seed"])
    return controlled(framework, network, plan["recipe"], model, control, plan["seed"], draw)


def controlled(framework, network, recipe, model, control, seed=0, draw=0):
    """A model that was built with this seed, or what its control starts from: `one_ulp` moves each of its weights to a neighbouring float32
    number (up or down by a coin; `draw` is its seed), `float64` holds the same float32 weights in a model of double precision."""
    if control == "one_ulp":
        framework.set_weights(model, initial.moved_by_one_ulp(framework.get_weights(model), draw))
    elif control == "float64":
        weights = framework.get_weights(model)
        model = framework.build(network, recipe, seed, "float64")  # some draw the order of the examples by it
        framework.set_weights(model, weights)
    return model


def _part(data, part, indices):
    return read_inputs(data["folder"], part, indices), read_labels(data["folder"], part, indices)
