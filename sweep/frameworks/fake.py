"""A framework in NumPy for linear networks: trains in milliseconds, with exact gradients, and fails on demand.

It is a full member of its family, so that whole sweeps can be tested with nothing else installed.
"""

import os
import time

import numpy as np

from sweep import initial
from sweep.epoch import EpochReport
from sweep.frameworks import _faults, _training
from sweep.frameworks._fake_optimizers import OPTIMIZERS
from sweep.frameworks._weights import checked

FACTS = {
    "distribution": "numpy",
    "converters": [],
    "exports": ["native", "fake"],
    "layers": ["input", "normalize", "flatten", "dense"],
    "own": {},
    "variants": {},
    "optimizers": list(OPTIMIZERS),
    "gradients": ["loss", "class"],
    "float64": True,
    "processors": ["cpu"],
    "options": {
        "faults": "{'train': {seed as a string: what goes wrong}} of " + ", ".join(sorted(_faults.FAULTS)),
        "sleep_s": "seconds that every training sleeps",
    },
}

_CHUNK = 256  # images per pass where a caller states no batch size; bounds the memory
_options = {"faults": {}, "sleep_s": 0.0}


def set_options(options):
    """Take the values of FACTS["options"]; what isn't given is as it was at the start. Raises ValueError for any other name."""
    unknown = sorted(set(options) - set(FACTS["options"]))
    if unknown:
        raise ValueError("no option named {!r}; there are {}".format(unknown[0], ", ".join(sorted(FACTS["options"]))))
    _options.update({"faults": {}, "sleep_s": 0.0}, **options)


class Network:
    """Layers and canonical weights."""

    def __init__(self, layers, weights):
        self.layers, self.weights = layers, weights
        self.dtype = next(iter(weights.values())).dtype


def configure(threads):
    """Nothing to do: the products here are too small for threads."""


def processor():
    return "cpu"


def build(layers, recipe, seed, dtype="float32"):
    """As the contract says; every recipe draws from the list's initializers, which are this framework's own."""
    return Network(layers, {name: array.astype(dtype) for name, array in initial.weights(layers, seed).items()})


def count_parameters(model):
    return sum(array.size for array in model.weights.values())


def get_weights(model):
    return {name: array.copy() for name, array in model.weights.items()}


def set_weights(model, weights):
    for name, array in checked(model.layers, weights).items():
        model.weights[name][...] = array


def train(model, images, labels, plan, permutations):
    """The contract's generator; the loss is the cross-entropy, without the l2 term."""
    _training.check(plan, FACTS["optimizers"], images, labels, permutations)
    time.sleep(_options["sleep_s"])
    _faults.provoke(_options["faults"], "train", plan["seed"])
    examples = len(images) if permutations is None else len(permutations[0])
    batch_size = plan["batch_size"]
    shuffle = np.random.RandomState(plan["seed"])
    update = OPTIMIZERS[plan["optimizer"]](plan, model.weights)
    for epoch in range(plan["epochs"]):
        order = shuffle.permutation(examples) if permutations is None else permutations[epoch]
        loss_sum, hits = 0.0, 0
        with np.errstate(over="ignore", invalid="ignore"):  # a training that diverges says so by its loss
            for start in range(0, examples, batch_size):
                batch = order[start:start + batch_size]
                loss, right, gradients = _step(model, images[batch], labels[batch])
                for name in _training.penalised(model.layers):
                    gradients[name] += 2 * plan["l2"] * model.weights[name]
                update(gradients, _training.learning_rate(plan, epoch))
                loss_sum, hits = loss_sum + loss, hits + right
        yield EpochReport(_training.finite(loss_sum / examples, epoch), hits / examples)


def _step(model, images, labels):
    """Sum of the losses, number of hits, and the gradients of the mean loss by the weights."""
    values, truth = _forward(model, images), (np.arange(len(images)), labels)
    logits = values[model.layers[-1]["name"]]
    log_shares = _log_softmax(logits)
    gradients = _backward(model, values, _loss_slope(log_shares, truth) / len(images))
    of_weights = {name: gradients[name] for name in model.weights}
    return -float(log_shares[truth].sum()), int((logits.argmax(1) == labels).sum()), of_weights


def weight_gradients(model, images, labels):
    return _step(model, images, labels)[2]


def _forward(model, images):
    """Outputs by layer name."""
    values = {}
    for layer in model.layers:
        given = [values[name] for name in layer["inputs"]] or [np.asarray(images, model.dtype)]
        values[layer["name"]] = _APPLY[layer["kind"]](model, layer, *given)
    return values


def _normalize(model, layer, values):
    return (values - np.asarray(layer["mean"], model.dtype)) / np.asarray(layer["std"], model.dtype)


def _dense(model, layer, values):
    return values.dot(model.weights[layer["name"] + "/kernel"]) + model.weights[layer["name"] + "/bias"]


_APPLY = {
    "input": lambda model, layer, values: values,
    "normalize": _normalize,
    "flatten": lambda model, layer, values: values.reshape(len(values), -1),
    "dense": _dense,
}


def _backward(model, values, slope):
    """Gradients of the weights, and by the name of the input layer that of the images, given the slope at the logits."""
    gradients = {}
    slopes = {model.layers[-1]["name"]: slope}
    for layer in reversed(model.layers):
        name = layer["name"]
        if name not in slopes or not layer["inputs"]:
            continue
        below, slope = layer["inputs"][0], slopes.pop(name)
        if layer["kind"] == "dense":
            gradients[name + "/kernel"] = values[below].T.dot(slope)
            gradients[name + "/bias"] = slope.sum(0)
            slope = slope.dot(model.weights[name + "/kernel"].T)
        elif layer["kind"] == "normalize":
            slope = slope / np.asarray(layer["std"], model.dtype)
        slopes[below] = slopes.get(below, 0) + slope.reshape(values[below].shape)
    gradients.update(slopes)
    return gradients


def _log_softmax(logits):
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def _loss_slope(log_shares, truth):
    slope = np.exp(log_shares)
    slope[truth] -= 1
    return slope


def _chunks(images, size):
    return [slice(start, start + size) for start in range(0, len(images), size)]


def predict(model, images, batch_size=256):
    return np.concatenate([_forward(model, images[part])[model.layers[-1]["name"]] for part in _chunks(images, batch_size)])


def _input_gradient(model, images, slope_of):
    values = _forward(model, images)
    return _backward(model, values, slope_of(values[model.layers[-1]["name"]]))[model.layers[0]["name"]]


def loss_gradient(model, images, labels):
    return np.concatenate([
        _input_gradient(model, images[part], lambda logits, of=labels[part]: _loss_slope(_log_softmax(logits), (np.arange(len(of)), of)))
        for part in _chunks(images, _CHUNK)
    ])


def class_gradient(model, images, classes=None):
    count = model.layers[-1]["units"]
    if classes is None:
        return np.stack([_chosen_gradient(model, images, np.full(len(images), index)) for index in range(count)], 1)
    return _chosen_gradient(model, images, classes)


def _chosen_gradient(model, images, classes):
    one_hot = np.eye(model.layers[-1]["units"], dtype=model.dtype)[classes]
    return np.concatenate([_input_gradient(model, images[part], lambda _, of=one_hot[part]: of) for part in _chunks(images, _CHUNK)])


def layer_outputs(model, images):
    return _forward(model, images)


def run_layer(model, name, inputs):
    layer = next(layer for layer in model.layers if layer["name"] == name)
    return _APPLY[layer["kind"]](model, layer, *(np.asarray(array, model.dtype) for array in inputs))


def save(model, folder):
    np.savez(os.path.join(str(folder), "model.npz"), **model.weights)
    return "model.npz"


def load(path, layers):
    """The network as it was saved; pickled arrays are refused."""
    with np.load(str(path), allow_pickle=False) as stored:
        return Network(layers, checked(layers, dict(stored)))


def export(model, layers, target, folder):
    """Either format is an .npz file of canonical weights. Raises ValueError for a target that is none of FACTS["exports"]."""
    if target not in FACTS["exports"]:
        raise ValueError("no export to {!r}; there are {}".format(target, ", ".join(FACTS["exports"])))
    return save(model, folder)
