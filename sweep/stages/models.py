"""Model folders: what stages hand to each other (`sweep.contracts` has the layout)."""

import json
import os

import numpy as np

from sweep import components
from sweep.inputs import read_labels
from sweep.layers import shapes

BATCH = 256


def open_framework(settings):
    """The configured framework module that a stage's settings name."""
    framework = components.load("frameworks", settings["module"])
    framework.configure(settings["threads"])
    if framework.FACTS["options"]:
        framework.set_options(settings["options"])
    return framework


def open_runtime(settings):
    """The runtime module that a stage's settings name, with its options set."""
    runtime = components.load("runtimes", settings["module"])
    if runtime.FACTS["options"]:
        runtime.set_options(dict(settings["options"], seed=settings["seed"]))
    return runtime


class LoadFailed(Exception):
    """A runtime can't open the deployed file."""


def open_session(runtime, settings, folder, details):
    """A session on a model folder's deployed file. Raises LoadFailed."""
    try:
        return runtime.open(os.path.join(folder, details["file"]), settings["threads"], details)
    except Exception as error:  # what a runtime raises is its own affair; here it means one thing
        raise LoadFailed("{}: {}".format(type(error).__name__, error)) from error


def open_deployed(settings, folder):
    """A session on a model folder's deployed file, its runtime, and the batch to predict with: one by one where ranges are taken over a
    batch, as on the device. Raises LoadFailed."""
    runtime, details = open_runtime(settings), read_details(folder)
    alone = details.get("quantization") in runtime.FACTS["batch_dependent"] or details.get("batch") == 1
    return open_session(runtime, settings, folder, details), runtime, 1 if alone else BATCH


def write_model(framework, model, network, settings, out):
    """Write a framework's model: weights in the canonical layout, the native file, and model.json last."""
    np.savez(os.path.join(out, "weights.npz"), **framework.get_weights(model))
    file = framework.save(model, out)
    source, target = network[0], network[-1]
    write_details(
        out, framework=settings["module"], format="native", file=file, layers=network, input_shape=source["shape"],
        input_dtype="int32" if source["kind"] == "tokens" else "float32", output_shape=list(shapes(network)[target["name"]]),
    )


def write_details(out, **details):
    with open(os.path.join(out, "model.json"), "w") as file:
        json.dump(details, file)


def read_details(folder):
    """A model folder's model.json."""
    with open(os.path.join(folder, "model.json")) as file:
        return json.load(file)


def read_weights(folder):
    """Canonical weights of a folder that a framework wrote."""
    with np.load(os.path.join(folder, "weights.npz"), allow_pickle=False) as weights:
        return dict(weights)


def load_model(framework, folder):
    """A framework's model from a folder that train or transplant wrote, and its details."""
    details = read_details(folder)
    return framework.load(os.path.join(folder, details["file"]), details["layers"]), details


def deployed_bytes(folder):
    """Size of the deployed file, or of all files of a deployed folder, in bytes."""
    path = os.path.join(folder, read_details(folder)["file"])
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(at, name)) for at, _folders, names in os.walk(path) for name in names)


def indices(examples, data):
    """The evaluated test examples, in the order of the set: all, or the start of its fixed permutation."""
    if examples is None:
        return np.arange(len(read_labels(data["folder"], "test")))
    return np.sort(np.load(data["splits"], allow_pickle=False)["attack"][:examples])
