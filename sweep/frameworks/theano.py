"""Theano 1.0, its expressions themselves, as a training framework.

All of it is one thread's work unless more are asked for, and on a CPU. The first use of a function in an environment compiles it by g++,
which takes tens of seconds; the results are kept in the environment, for every process of it.
"""

import os

import numpy as np

from sweep.epoch import EpochReport
from sweep.frameworks import _theano_setup, _training
from sweep.layers import AGREED

_theano_setup.set_flags()

import theano  # noqa: E402 - after its flags

from sweep.frameworks import _theano_lock  # noqa: E402
from sweep.frameworks import _theano_network as network  # noqa: E402

_theano_lock.install()

FACTS = {
    "distribution": "Theano",
    "converters": [],
    "exports": ["native"],
    "layers": list(network.KINDS),
    # theano.tensor.nnet.bn has its own numbers; for recurrent layers Theano has nothing of its own to differ from what is agreed.
    "own": dict(AGREED, batch_norm={"epsilon": 1e-4, "momentum": 0.9}),
    "variants": {},
    "optimizers": ["sgd", "adam"],
    "gradients": ["loss", "class"],
    "float64": True,
    "processors": ["cpu"],
    "options": {},
}

FILE = "model.npz"
_CHUNK = 256  # images per pass where a caller states no batch size; bounds the memory
_OWN_FORMULAS = "own_formulas"  # beside the weights in the file; no layer's parameter, since it has no slash


def configure(threads):
    """OpenMP in Theano's own loops only for more than one thread; their number is the environment's OMP_NUM_THREADS."""
    theano.config.openmp = threads > 1


def processor():
    return "cpu"


build = network.build
get_weights = network.get_weights
set_weights = network.set_weights


def count_parameters(model):
    return sum(array.size for array in model.values.values())


def train(model, images, labels, plan, permutations):
    """The contract's generator; the loss is the cross-entropy, without the l2 term."""
    _training.check(plan, FACTS["optimizers"], images, labels, permutations)
    program, examples, steps = model.program, len(images), 0
    function, variables = program.train_function(plan["optimizer"], plan["recipe"] == "defaults")
    state = {name: np.zeros_like(variable.get_value(borrow=True)) for name, variable in variables.items()}
    random = np.random.RandomState(plan["seed"])
    for epoch in range(plan["epochs"]):
        order = random.permutation(examples) if permutations is None else permutations[epoch]
        loss_sum, hits, rate = 0.0, 0, _training.learning_rate(plan, epoch)
        with network.holding(program.variables, model.values), network.holding(variables, state):
            for start in range(0, len(order), plan["batch_size"]):
                batch, steps = order[start:start + plan["batch_size"]], steps + 1
                numbers = network.scalars(plan["optimizer"], _numbers(plan, rate, steps), program.dtype)
                loss, right = function(_array(model, images[batch]), _integers(labels[batch]), *numbers)
                loss_sum += float(loss)
                hits += int(right)
        yield EpochReport(_training.finite(loss_sum / len(order), epoch), hits / len(order))


def _numbers(plan, rate, steps):
    """What a step takes, by name; Adam's correction of the first moment goes into the rate, that of the second beside its root."""
    beta1, beta2 = _training.ADAM_BETAS
    return {
        "twice_l2": 2 * plan["l2"], "rate": rate, "momentum": plan["momentum"],
        "beta1": beta1, "new1": 1 - beta1, "beta2": beta2, "new2": 1 - beta2, "corrected_rate": rate / (1 - beta1 ** steps),
        "correction": (1 - beta2 ** steps) ** -0.5, "epsilon": _training.adam_epsilon(plan, _training.AGREED_ADAM_EPSILON),
    }


def weight_gradients(model, images, labels):
    gradients = model.call(model.program.function("weight_gradients"), _array(model, images), _integers(labels))
    return {name: network.kinds.to_canonical(gradient) for name, gradient in zip(model.program.trained, gradients)}


def _array(model, images):
    tokens = model.program.layers[0]["kind"] == "tokens"
    return np.ascontiguousarray(images, "int32" if tokens else model.program.dtype)


def _integers(values):
    return np.ascontiguousarray(values, "int64")


def _chunked(model, name, batch_size, images, *others):
    """A function of the program on the images, and on arrays of the same length, part by part."""
    function = model.program.function(name)
    return [
        model.call(function, *(array[start:start + batch_size] for array in (_array(model, images),) + others))
        for start in range(0, len(images), batch_size)
    ]


def predict(model, images, batch_size=256):
    return np.concatenate(_chunked(model, "predict", batch_size, images))


def loss_gradient(model, images, labels):
    return np.concatenate(_chunked(model, "loss_gradient", _CHUNK, images, _integers(labels)))


def class_gradient(model, images, classes=None):
    count = network.shapes(model.program.layers)[model.program.layers[-1]["name"]][0]
    one_hot = np.eye(count, dtype=model.program.dtype)
    if classes is not None:
        return np.concatenate(_chunked(model, "class_gradient", _CHUNK, images, one_hot[classes]))
    # One pass per class: without a loop in the graph, which would take as long to compile as all else.
    each = [class_gradient(model, images, np.full(len(images), number)) for number in range(count)]
    return np.stack(each, axis=1)


def layer_outputs(model, images):
    parts = _chunked(model, "layer_outputs", _CHUNK, images)
    return {layer["name"]: np.concatenate([part[at] for part in parts]) for at, layer in enumerate(model.program.layers)}


def run_layer(model, name, inputs):
    function = model.program.layer_function(name)
    # What it takes is as the layer before puts it out: token ids, or numbers of the model's dtype.
    return model.call(function, *(np.ascontiguousarray(array, given.variable.dtype) for array, given in zip(inputs, function.maker.inputs)))


def save(model, folder):
    np.savez(os.path.join(str(folder), FILE), **dict(model.values, **{_OWN_FORMULAS: np.array(model.program.own)}))
    return FILE


def load(path, layers):
    """The file holds arrays alone and is read without pickle: it can't run code. Raises ValueError for other weights than the list's."""
    with np.load(str(path), allow_pickle=False) as file:
        values = dict(file)
    own = bool(values.pop(_OWN_FORMULAS))
    dtype = next(iter(values.values())).dtype.name
    return network.make(layers, dtype, own, {name: network.kinds.to_canonical(array) for name, array in values.items()})


def export(model, layers, target, folder):
    """Raises ValueError for a target that is none of FACTS["exports"]."""
    if target != "native":
        raise ValueError("no export to {!r}; there are {}".format(target, ", ".join(FACTS["exports"])))
    return save(model, folder)
