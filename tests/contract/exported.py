"""Small networks trained on real digits and exported, for the runtimes' contract tests: `python tests/contract/exported.py FOLDER`.

A runtime in an interpreter of its own can't import what trains, so these lie in a folder:

    digits.npz                      train (4000, 28, 28, 1), labels (4000,), test (1000, 28, 28, 1)
    FRAMEWORK-FORMAT/details.json   model.json of a model folder, with the name of the file beside it
    FRAMEWORK-FORMAT/logits.npz     the framework's own `logits` of the test digits, and `exact` from its float64 twin
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

from sweep import components, layers

TRAINED, TESTED = 4000, 1000
PLAN = {
    "optimizer": "adam", "learning_rate": 0.001, "momentum": 0.0, "epsilon": None, "l2": 0.0, "batch_size": 32, "epochs": 4, "decay": [],
    "recipe": "matched", "seed": 1,
}


def digits(folder):
    """The arrays of digits.npz, which is written where it isn't there yet; None where there is no MNIST here."""
    path = folder / "digits.npz"
    if not path.is_file():
        mnist = components.load("datasets", "mnist")
        source = mnist.find([Path(os.environ["SWEEP_DATA"])] if "SWEEP_DATA" in os.environ else [], allow_subset=True)
        if source is None:
            return None
        arrays = mnist.read(source)
        train, test = ((arrays[name][:count] / 255).astype(np.float32) for name, count in (("x_train", TRAINED), ("x_test", TESTED)))
        np.savez(path, train=train, labels=arrays["y_train"][:TRAINED], test=test)
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def exported(folder, name, framework, target):
    """The folder of a framework's network in a format, which is trained where it isn't there yet."""
    made = folder / "{}-{}".format(name, target)
    if not (made / "logits.npz").is_file():
        made.mkdir(exist_ok=True)
        _train(name, framework, target, digits(folder), made)
    return made


def network_for(framework):
    """LeNet-5, or the smallest network where the framework has no convolution."""
    networks = [components.load("architectures", name).layers((28, 28, 1), 10) for name in ("lenet5", "linear")]
    return next(net for net in networks if {layer["kind"] for layer in net} <= set(framework.FACTS["layers"]))


def _train(name, framework, target, arrays, folder):
    framework.configure(1)
    resolved = layers.resolved(network_for(framework), PLAN["recipe"], framework.FACTS["own"])
    model = framework.build(resolved, PLAN["recipe"], PLAN["seed"])
    for _report in framework.train(model, arrays["train"], arrays["labels"], PLAN, None):
        pass
    file = framework.export(model, resolved, target, folder)
    exact = framework.build(resolved, PLAN["recipe"], PLAN["seed"], dtype="float64")
    framework.set_weights(exact, framework.get_weights(model))
    details = {
        "framework": name, "format": target, "file": file, "layers": resolved, "input_shape": [28, 28, 1], "input_dtype": "float32",
        "output_shape": [10],
    }
    (folder / "details.json").write_text(json.dumps(details))
    np.savez(folder / "logits.npz", logits=framework.predict(model, arrays["test"]), exact=framework.predict(exact, arrays["test"]))


def main(folder):
    """Every framework that can be imported here, in each format but its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in components.names("frameworks"):
        try:
            framework = components.load("frameworks", name)
        except ImportError:
            continue
        for target in framework.FACTS["exports"]:
            if target != "native":
                exported(folder, name, framework, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
