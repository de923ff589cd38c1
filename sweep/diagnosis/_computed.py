"""A network computed layer by layer from tensors that a deployed model gave, with what its arithmetic may do to every value.

Beside the right value of a layer, float64, go values that sound arithmetic might give: in float32, with each weight moved by one ulp, with
each product off by what the sum of its terms allows, and rounded as the deployed file's numbers are. How far those are from the right
one is how far a sound layer may be. Where a tensor of the deployed model is known, all of them go on from it: then what a layer may be
off by is its own rounding, and that of the layers before it whose outputs aren't there.
"""

import numpy as np

from sweep import initial, reference, simulation
from sweep.diagnosis._rounding import ROUNDING_FACTOR, TERMS_FACTOR, cast, distance, floor, largest, most_distance
from sweep.layers import shapes

EXACT, SINGLE, MOVED, SPREAD, ROUNDED = "exact", "single", "moved", "spread", "rounded"
STEPS_FACTOR = 4
"""How many times what rounding to a file's integers does in the simulation may be rounding in a runtime: it rounds at other places."""
_UNIT = {"float16": 2.0 ** -11, "bfloat16": 2.0 ** -8}
_PRODUCTS = ("conv2d", "conv1d", "dense")


class Network:
    """What a deployed model was to compute: neutral layers, canonical weights, the `sweep.simulation.Arithmetic` of its file, and from the
    right outputs by layer their ranges (low, high), zero among them."""

    def __init__(self, layers, weights, how, exact):
        self.layers, self.how, self.shapes = layers, how, shapes(layers)
        self.by_name = {layer["name"]: layer for layer in layers}
        self.readers = {layer["name"]: [] for layer in layers}
        for layer in layers:
            for source in layer["inputs"]:
                self.readers[source].append(layer)
        self.ranges = {name: (min(float(values.min()), 0.0), max(float(values.max()), 0.0)) for name, values in exact.items()}
        self.stored = simulation.stored_layers(layers)
        single = {name: np.asarray(array, np.float32) for name, array in weights.items()}
        self.plain = how.weights == how.activations == "float32"
        sets = {EXACT: weights, SINGLE: single, MOVED: initial.moved_by_one_ulp(single, 0)}
        if not self.plain:
            sets[ROUNDED] = simulation.rounded_weights(layers, weights, how)
        self.own = {
            layer["name"]: {variant: reference.own_weights(layer, values, np.float32 if variant == SINGLE else np.float64)
                            for variant, values in sets.items()}
            for layer in layers
        }
        self.integers = "int" in how.activations or "int" in how.weights

    def distance(self, observed, expected, tolerance):
        """How far a tensor is from what it should be: all of its values, or of a file with integers most."""
        return most_distance(observed, expected, tolerance) if self.integers else distance(observed, expected)


class Values:
    """Values of layers on some inputs, in every variant."""

    def __init__(self, network, inputs):
        self.network, self.inputs = network, inputs
        self.variants = (EXACT, SINGLE, MOVED, SPREAD) + (() if network.plain else (ROUNDED,))
        self._found = {}

    def copy(self):
        """Another one with the same values, to go on from."""
        other = Values(self.network, self.inputs)
        other._found = dict(self._found)
        return other

    def known(self, name, array):
        """From here on the layer's value is this array."""
        self._found[name] = {variant: cast(array, np.float32 if variant == SINGLE else np.float64) for variant in self.variants}

    def has(self, name):
        return name in self._found

    def drop(self, name):
        self._found.pop(name, None)

    def exact(self, name):
        return self._found[name][EXACT]

    def given(self, layer):
        """The right variant of what a layer reads."""
        return [self._found[source][EXACT] for source in layer["inputs"]] or [self.start(EXACT)]

    def start(self, variant):
        if self.inputs.dtype.kind in "iu":
            return self.inputs
        return self.inputs.astype(np.float32 if variant == SINGLE else np.float64)

    def compute(self, layer):
        """Add a layer all of whose inputs are there. Raises ValueError or IndexError where it can't read them."""
        own = self.network.own[layer["name"]]
        given = {variant: [self._found[source][variant] for source in layer["inputs"]] or [self.start(variant)]
                 for variant in self.variants}
        found = {variant: reference.apply(layer, own[variant], *given[variant]) for variant in (EXACT, SINGLE, MOVED)}
        found[SPREAD] = self._spread(layer, own[EXACT], given[SPREAD])
        if ROUNDED in self.variants:
            found[ROUNDED] = self._rounded(layer, own[ROUNDED], given[ROUNDED], found[EXACT])
        self._found[layer["name"]] = found

    def _spread(self, layer, own, given):
        values = reference.apply(layer, own, *given)
        if layer["kind"] in _PRODUCTS:
            terms = reference.apply(layer, {name: np.abs(array) for name, array in own.items()}, *map(np.abs, given))
            signs = np.random.RandomState(0).randint(0, 2, values.shape) * 2 - 1
            values = values + signs * terms * (TERMS_FACTOR * float(np.finfo(np.float32).eps) / 2)
        return values

    def _rounded(self, layer, own, given, exact):
        how = self.network.how
        if how.dynamic and layer["kind"] in simulation.PRODUCTS:
            given = [simulation.each_rounded(array) for array in given]
        values = simulation.applied(layer, own, given, how)
        if how.activations == "float32" or layer["name"] not in self.network.stored or layer["kind"] == "tokens":
            return values
        if how.activations in simulation.HALF:
            return simulation.activation(values, how.activations, None)
        if how.dynamic:
            return values
        return simulation.activation(values, how.activations, self._range(layer["name"], exact))

    def _range(self, name, exact):
        """Of the right outputs and of these, which a fault before may have made larger."""
        layer = self.network.by_name[name]
        low, high = self.network.ranges[layer["inputs"][0] if layer["kind"] in simulation.POOLS else name]
        return min(low, float(exact.min())), max(high, float(exact.max()))

    def tolerance(self, name):
        """How far a sound deployed model may be from the right value of this layer, given what is known."""
        found = self._found[name]
        exact = found[EXACT]

        def off(variant):
            differences = np.abs(found[variant] - exact)
            return largest(differences[np.isfinite(differences)])

        allowed = max(ROUNDING_FACTOR * max(off(SINGLE), off(MOVED)), off(SPREAD), floor(exact, np.float32))
        if ROUNDED in self.variants:
            factor = STEPS_FACTOR if self.network.integers else ROUNDING_FACTOR
            allowed = max(allowed, factor * off(ROUNDED), factor * self._half_unit(name))
        return allowed

    def _half_unit(self, name):
        """Of the numbers that a tensor which is there may be rounded to."""
        how, exact = self.network.how, self._found[name][EXACT]
        if exact.dtype.kind in "iu" or how.activations == "float32":
            return 0.0
        if how.activations in simulation.HALF:
            return _UNIT[how.activations] * largest(exact) / 2
        if how.dynamic:
            return 0.0
        low, high = self._range(name, exact)
        operators = 2 if self.network.by_name[name]["kind"] == "normalize" else 1
        return operators * 0.5 * (high - low) / (2 ** simulation.bits(how.activations) - 1)
