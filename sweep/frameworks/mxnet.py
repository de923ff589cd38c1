"""MXNet (Gluon, hybridised) as a training framework."""

import ctypes
import os

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from sweep.epoch import EpochReport
from sweep.frameworks import _mxnet_blocks as blocks
from sweep.frameworks import _mxnet_network as network
from sweep.frameworks import _mxnet_training, _training

FACTS = {
    "distribution": "mxnet",
    "converters": [],
    "exports": ["native"],
    "layers": list(blocks.KINDS),
    "own": {
        "batch_norm": {"epsilon": 1e-5, "momentum": 0.9},
        "lstm": {"recurrent_activation": "sigmoid"},
        "gru": {"recurrent_activation": "sigmoid", "reset_after": True},
    },
    "variants": {
        "lstm": {"recurrent_activation": ["sigmoid"]},
        "gru": {"recurrent_activation": ["sigmoid"], "reset_after": [True]},
    },
    "optimizers": ["sgd", "adam"],
    "gradients": ["loss", "class"],
    "float64": True,
    "processors": ["cpu", "gpu"] if mx.context.num_gpus() else ["cpu"],
    "options": {},
}

_CHUNK = 256  # examples per pass where a caller states no batch size; bounds the memory
_LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def configure(threads):
    """Threads and deterministic kernels, for this process. MXNet reads the variables when it first computes something."""
    if processor() == "cpu":
        os.environ["MXNET_ENGINE_TYPE"] = "NaiveEngine"  # computes in the calling thread, where the others keep a pool each
    os.environ["MXNET_ENFORCE_DETERMINISM"] = "1"
    os.environ["MXNET_CUDNN_AUTOTUNE_DEFAULT"] = "0"
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    ctypes.CDLL(mx.libinfo.find_lib_path()[0]).omp_set_num_threads(threads)  # MXNet, oneDNN and its OpenBLAS all thread by OpenMP


def processor():
    return "gpu" if mx.context.num_gpus() else "cpu"


def build(layers, recipe, seed, dtype="float32"):
    return network.build(layers, recipe, seed, dtype, mx.gpu() if processor() == "gpu" else mx.cpu())


count_parameters = network.count_parameters
get_weights = network.get_weights
set_weights = network.set_weights


def train(model, images, labels, plan, permutations):
    """The contract's generator; the loss is the cross-entropy, the l2 term acts in the update and isn't in it."""
    _training.check(plan, FACTS["optimizers"], images, labels, permutations)
    shuffle = np.random.RandomState(plan["seed"])  # Gluon's loader shuffles by NumPy too
    optimizer = _mxnet_training.optimizer(model, plan)
    for epoch in range(plan["epochs"]):
        order = shuffle.permutation(len(images)) if permutations is None else permutations[epoch]
        optimizer.set_learning_rate(_training.learning_rate(plan, epoch))
        # Sums stay on the device: reading them every step would make a GPU wait.
        loss_sum, hits = (mx.nd.zeros((1,), model.context, "float64") for _ in range(2))
        for start in range(0, len(order), plan["batch_size"]):
            batch = order[start:start + plan["batch_size"]]
            before, truth = model.moving_statistics(), _ints(model, labels[batch])
            logits, losses = _pass(model, images[batch], truth)
            model.blend(before)
            optimizer.step(len(batch))
            loss_sum += losses.sum().astype("float64")
            hits += (logits.argmax(axis=1).astype("int32") == truth).astype("float64").sum()
        yield EpochReport(_training.finite(loss_sum.asscalar() / len(order), epoch), hits.asscalar() / len(order))


def _pass(model, images, truth):
    """Logits and losses per example of one pass forward and back, which leaves the gradients of the losses' sum in the parameters."""
    with autograd.record():
        logits = model.forward(_inputs(model, images))
        losses = _LOSS(logits, truth)
    losses.backward()
    return logits, losses


def weight_gradients(model, images, labels):
    before = model.moving_statistics()
    _pass(model, images, _ints(model, labels))
    model.restore(before)
    return {name: network.canonical(model, name, parameter.grad().asnumpy() / len(images)) for name, parameter in model.trained().items()}


def _ints(model, array):
    return mx.nd.array(array, model.context, "int32")


def _inputs(model, array):
    return _ints(model, array) if model.layers[0]["kind"] == "tokens" else mx.nd.array(array, model.context, model.dtype)


def _chunks(array, size):
    return [array[start:start + size] for start in range(0, len(array), size)]


def predict(model, images, batch_size=256):
    return np.concatenate([model.forward(_inputs(model, part)).asnumpy() for part in _chunks(images, batch_size)])


# Gradients in inference mode go through the frozen graph: recorded as inference, a max pool of 1.9.1 (oneDNN) keeps nothing to find the
# way back by, and gives gradients that are wrong without a word.
def loss_gradient(model, images, labels):
    gradients = []
    for part, truth in zip(_chunks(images, _CHUNK), _chunks(labels, _CHUNK)):
        inputs = _watched(model, part)
        with autograd.record():
            losses = _LOSS(model.frozen(inputs), _ints(model, truth))
        gradients.append(_slopes(losses, inputs))
    return np.concatenate(gradients)


def class_gradient(model, images, classes=None):
    gradients, wanted = [], [None] if classes is None else _chunks(classes, _CHUNK)
    for position, part in enumerate(_chunks(images, _CHUNK)):
        inputs = _watched(model, part)
        with autograd.record():
            logits = model.frozen(inputs)
        units = np.eye(logits.shape[1])
        # Examples don't meet in inference mode, so the gradient of a class's sum holds each example's own.
        if classes is None:
            each = [_slopes(logits, inputs, np.tile(unit, (len(part), 1))) for unit in units]
            gradients.append(np.stack(each, axis=1))
        else:
            gradients.append(_slopes(logits, inputs, units[wanted[position]]))
    return np.concatenate(gradients)


def _watched(model, images):
    inputs = _inputs(model, images)
    inputs.attach_grad()
    return inputs


def _slopes(outputs, inputs, weights=None):
    """d sum(weights x outputs) / d inputs; the weights are 1 unless stated."""
    heads = None if weights is None else mx.nd.array(weights, inputs.context, inputs.dtype)
    return autograd.grad(outputs, [inputs], heads, retain_graph=True)[0].asnumpy()


def layer_outputs(model, images):
    parts = [model.forward.outputs(_inputs(model, part)) for part in _chunks(images, _CHUNK)]
    return {layer["name"]: np.concatenate([_outside(part[layer["name"]]) for part in parts]) for layer in model.layers}


def run_layer(model, name, inputs):
    reads_outside = model.kinds[name] in ("input", "tokens", "embedding")
    given = [array if reads_outside or np.ndim(array) < 3 else np.moveaxis(array, -1, 1) for array in inputs]
    dtype = "int32" if model.kinds[name] in ("tokens", "embedding") else model.dtype
    return _outside(model.parts[name](*[mx.nd.array(array, model.context, dtype) for array in given]))


def _outside(values):
    """Channels last."""
    array = values.asnumpy()
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if array.ndim > 2 else array


def save(model, folder):
    model.forward.save_parameters(os.path.join(str(folder), "model.params"))
    return "model.params"


def load(path, layers):
    """The file is MXNet's binary list of arrays: it can't run code. An lstm's second bias comes back and is not trained further."""
    dtypes = {str(np.dtype(array.dtype)) for array in mx.nd.load(str(path)).values()}
    if len(dtypes) != 1:
        raise ValueError("{} has arrays of types {}".format(path, sorted(dtypes)))
    model = build(layers, "matched", 0, dtypes.pop())
    model.forward.load_parameters(str(path), model.context)
    return model


def export(model, layers, target, folder):
    """Raises ValueError for a target that is none of FACTS["exports"]."""
    if target != "native":
        raise ValueError("no export to {!r}; there are {}".format(target, ", ".join(FACTS["exports"])))
    return save(model, folder)
