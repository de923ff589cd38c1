"""A neutral layer list as Theano expressions over shared variables, compiled function by function when one is first called.

What is compiled belongs to the list, the numbers to a model: all models of a list share one program, which holds the numbers of one of
them at a time. To exchange them moves no value, and saves every further model of a worker (other seeds, a loaded file) the compilation.
"""

import functools
import json
from contextlib import contextmanager

import numpy as np
import theano
import theano.tensor as T

from sweep import initial
from sweep.frameworks import _theano_layers as kinds
from sweep.frameworks import _training
from sweep.frameworks._weights import checked
from sweep.layers import BATCH_NORM_STATE, parameters, shapes

KINDS = tuple(kinds.APPLY)
_PROGRAMS = 8  # kept at a time


class Model:
    """The numbers of a network by canonical name, in Theano's layout, and its program."""

    def __init__(self, program, values):
        self.program, self.values = program, values

    def call(self, function, *arguments):
        """A function of the program on this model's numbers."""
        with holding(self.program.variables, self.values):
            return function(*arguments)


@contextmanager
def holding(variables, values):
    """While this lasts, the shared variables are these arrays (both dicts); afterwards `values` has what became of them."""
    for name, variable in variables.items():
        variable.set_value(values[name], borrow=True)
    try:
        yield
    finally:
        for name, variable in variables.items():
            values[name] = variable.get_value(borrow=True)


class Program:
    """The functions of a list. `own`: with Theano's own formulas where these differ from the agreed ones (recipe `defaults`)."""

    def __init__(self, layers, dtype, own):
        self.layers, self.dtype, self.own = layers, dtype, own
        self._shapes = shapes(layers)
        self._apply = dict(kinds.APPLY, **(kinds.OWN if own else {}))
        self.variables = {
            name: theano.shared(kinds.from_canonical(np.zeros(shape), dtype), name) for name, shape in parameters(layers).items()
        }
        self.trained = [name for name in self.variables if not name.endswith(tuple("/" + part for part in BATCH_NORM_STATE))]
        self._penalised = _training.penalised(layers)
        self._functions = {}
        self.images, self.labels = self._input(layers[0]["name"]), T.lvector("labels")

    def function(self, name):
        """The function of that name, compiled at its first use."""
        return self._once(name, getattr(self, "_" + name))

    def layer_function(self, name):
        """From a layer's inputs to its output, channels last."""
        return self._once(("layer", name), lambda: self._layer(name))

    def train_function(self, optimizer, own):
        """(function, its further shared variables): a step of training. `own`: with the unbiased moving variance of Theano's own."""
        return self._once((optimizer, own), lambda: self._train(optimizer, own))

    def _once(self, key, make):
        if key not in self._functions:
            self._functions[key] = make()
        return self._functions[key]

    def _input(self, name):
        """A variable for what a layer puts out, channels last."""
        layer = next(layer for layer in self.layers if layer["name"] == name)
        dtype = "int32" if layer["kind"] == "tokens" else self.dtype
        return T.TensorType(dtype, (False,) * (1 + len(self._shapes[name])))(name)

    def _parameters(self, layer):
        return {name[len(layer["name"]) + 1:]: variable for name, variable in self.variables.items()
                if name.rpartition("/")[0] == layer["name"]}

    def _outputs(self, training=False):
        """By layer its output in the inner layout, and by batch norm what it read of a training batch."""
        values, statistics = {}, {}
        for layer in self.layers:
            name, own = layer["name"], self._parameters(layer)
            inputs = [values[other] for other in layer["inputs"]] or [self.images]
            if training and layer["kind"] == "batch_norm":
                values[name], statistics[name] = kinds.batch_norm_training(layer, own, *inputs)
            else:
                values[name] = self._apply[layer["kind"]](layer, own, *inputs)
        return values, statistics

    def _logits(self):
        return self._outputs()[0][self.layers[-1]["name"]]

    def _predict(self):
        return theano.function([self.images], self._logits())

    def _losses(self, logits):
        return T.nnet.crossentropy_softmax_1hot(logits, self.labels)[0]

    def _loss_gradient(self):
        return theano.function([self.images, self.labels], T.grad(self._losses(self._logits()).sum(), self.images))

    def _class_gradient(self):
        """Images, and the weight of each class in a sum of their logits (N, classes), to the gradient of that sum."""
        logits, weights = self._logits(), T.TensorType(self.dtype, (False, False))("weights")
        return theano.function([self.images, weights], T.grad(None, self.images, known_grads={logits: weights}))

    def _layer_outputs(self):
        values, _ = self._outputs()
        return theano.function([self.images], [kinds.channels_last(values[layer["name"]]) for layer in self.layers])

    def _layer(self, name):
        layer = next(layer for layer in self.layers if layer["name"] == name)
        given = [self._input(other) for other in layer["inputs"]]
        inner = [kinds.channels_first(values) for values in given] or [self.images]
        output = self._apply[layer["kind"]](layer, self._parameters(layer), *inner)
        return theano.function(given or [self.images], kinds.channels_last(output))

    def _training(self):
        values, statistics = self._outputs(training=True)
        logits = values[self.layers[-1]["name"]]
        losses = self._losses(logits)
        return logits, losses, T.grad(losses.mean(), [self.variables[name] for name in self.trained]), statistics

    def _weight_gradients(self):
        return theano.function([self.images, self.labels], self._training()[2])

    def _train(self, optimizer, own):
        logits, losses, gradients, statistics = self._training()
        scalars = {name: T.TensorType(self.dtype, ())(name) for name in _SCALARS[optimizer]}
        state, updates = {}, []
        for name, gradient in zip(self.trained, gradients):
            if name in self._penalised:
                gradient = gradient + scalars["twice_l2"] * self.variables[name]
            updates += _STEP[optimizer](self.variables[name], gradient, scalars, state)
        for layer in (layer for layer in self.layers if layer["name"] in statistics):
            mean, variance, count = statistics[layer["name"]]
            if own:
                variance = variance * T.cast(count, self.dtype) / T.cast(count - 1, self.dtype)
            kept, new = (np.asarray(share, self.dtype) for share in (layer["momentum"], 1 - layer["momentum"]))
            for parameter, value in zip(BATCH_NORM_STATE, (mean, variance)):
                moving = self.variables[layer["name"] + "/" + parameter]
                updates.append((moving, kept * moving + new * value))
        hits = T.sum(T.eq(T.argmax(logits, axis=1), self.labels))
        outputs = [T.sum(losses, dtype="float64"), hits]
        inputs = [self.images, self.labels] + [scalars[name] for name in _SCALARS[optimizer]]
        return theano.function(inputs, outputs, updates=updates), state


def _slot(variable, kind, state):
    """A shared variable that an optimizer keeps beside a parameter."""
    name = variable.name + "/" + kind
    state[name] = theano.shared(np.zeros_like(variable.get_value(borrow=True)), name)
    return state[name]


def _sgd(variable, gradient, scalars, state):
    velocity = _slot(variable, "velocity", state)
    moved = scalars["momentum"] * velocity + gradient
    return [(velocity, moved), (variable, variable - scalars["rate"] * moved)]


def _adam(variable, gradient, scalars, state):
    first, second = _slot(variable, "first", state), _slot(variable, "second", state)
    mean = scalars["beta1"] * first + scalars["new1"] * gradient
    square = scalars["beta2"] * second + scalars["new2"] * T.sqr(gradient)
    step = scalars["corrected_rate"] * mean / (T.sqrt(square) * scalars["correction"] + scalars["epsilon"])
    return [(first, mean), (second, square), (variable, variable - step)]


_STEP = {"sgd": _sgd, "adam": _adam}
# The numbers that a step takes after images and labels, in this order. As constants they would be part of the C code, and every other
# value of one would have to be compiled.
_SCALARS = {
    "sgd": ("twice_l2", "rate", "momentum"),
    "adam": ("twice_l2", "corrected_rate", "correction", "epsilon", "beta1", "new1", "beta2", "new2"),
}


def scalars(optimizer, numbers, dtype):
    """The numbers (dict) of a step, as its function takes them."""
    return [np.asarray(numbers[name], dtype) for name in _SCALARS[optimizer]]


@functools.lru_cache(maxsize=_PROGRAMS)
def _program(text, dtype, own):
    return Program(json.loads(text), dtype, own)


def make(layers, dtype, own, weights):
    """A model with these canonical weights."""
    model = Model(_program(json.dumps(layers), dtype, own), {})
    set_weights(model, weights)
    return model


def build(layers, recipe, seed, dtype="float32"):
    """A freshly initialised model. Theano has no initialisers, and its generator on a CPU is NumPy's RandomState: the list's
    initialisers drawn from that are its part under every recipe."""
    return make(layers, dtype, recipe == "defaults", initial.weights(layers, seed))


def get_weights(model):
    """Copies of the weights in canonical layout."""
    return {name: kinds.to_canonical(array) for name, array in model.values.items()}


def set_weights(model, weights):
    """The reverse. Raises ValueError that names the parameter where one is missing, unknown or of another shape."""
    found = checked(model.program.layers, weights)
    model.values = {name: kinds.from_canonical(array, model.program.dtype) for name, array in found.items()}
