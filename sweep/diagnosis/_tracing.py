"""A deployed model's tensors found among the layers of its neutral list, by what they are computed from.

A sound layer gives its right output for the inputs that it really had, whatever went wrong before it. So each layer is computed from the
deployed model's own tensors and looked for among them; what isn't there was fused with what comes after it; and behind a fault the trace
is taken up again at the first tensor from which the layers that read it give tensors that are there.
"""

import numpy as np

from sweep import reference
from sweep.diagnosis._alignment import AS_IT_IS, BIAS_LATER, LEAST_SCORE, Place, agreement, paired, view, views, wide
from sweep.diagnosis._computed import EXACT, Values
from sweep.diagnosis._rounding import distance, largest
from sweep.simulation import PRODUCTS

_NEAR = 0.02  # of the largest value: a first look, before what rounding allows is worked out
_REACH = 12  # so many layers behind a fault it must show again
_TELLING = 0.1  # of the largest value: what agrees within more than that may be anything
_FUSED_PRODUCTS = 2
_CHAIN = 4  # so many layers may be fused
_TRIVIAL = ("input", "tokens", "flatten")
_WEIGHTLESS = _TRIVIAL + ("relu", "max_pool", "average_pool", "global_max_pool")


class Tracing:
    """The alignment of a deployed model's tensors, a list of (name, array (N, ...)) in order of execution that ends with its output.

    `outputs`: by layer the Places that hold its right output; `given`: by layer the Place that the layers behind it read, where that isn't
    the last of them, and `reader` the layer that told. A layer in neither was fused, or lies in a fault.
    """

    def __init__(self, network, inputs, tensors):
        self.network, self.tensors = network, tensors
        self.shapes, self.flattened = network.shapes, {}
        for layer in network.layers:
            if layer["kind"] == "flatten":
                self.flattened[layer["name"]] = self.shapes[layer["inputs"][0]]
        self.values = Values(network, inputs)
        self.outputs, self.given, self.reader = {}, {}, {}
        self._tried = set()

    def run(self, guess=False):
        """Align. Where the model's output isn't reached, it is taken for the last layer's, whatever it is; with `guess` the layers between
        are paired too."""
        last = self.network.layers[-1]["name"]
        self._follow(0)
        while last not in self.outputs and self._take_up():
            pass
        self.complete = last in self.outputs
        if not self.complete:
            if guess:
                self._guess()
            for layout, _ in views(self.tensors[-1][1], self.shapes[last]):
                self.given[last] = Place(len(self.tensors) - 1, layout)
        return self

    def array(self, name, place):
        """A tensor as a layer's output."""
        if place.layout == BIAS_LATER:
            return view(self.tensors[place.tensor][1], self.shapes[name], AS_IT_IS) + self.network.own[name][EXACT]["bias"]
        return view(self.tensors[place.tensor][1], self.shapes[name], place.layout, self.flattened.get(name))

    def known(self, name):
        """The Place that the layers behind this one read, or None."""
        return self.given.get(name) or self.outputs.get(name, [None])[-1]

    def _follow(self, start):
        """Compute the layers from `start` on and find them."""
        for layer in self.network.layers[start:]:
            name = layer["name"]
            self.values.drop(name)
            self.outputs.pop(name, None)
            if all(map(self.values.has, layer["inputs"])) and self._computed(self.values, layer):
                found = self._find(name, self.values.exact(name), self.values.tolerance(name), self._after(layer))
                if self.network.integers and self._products_since(layer) > _FUSED_PRODUCTS:
                    found = []  # what integers do to so many says little
                if found:
                    self.outputs[name] = found
                if self.given.get(name) in found:
                    del self.given[name]
            if self.known(name):
                self.values.known(name, self.array(name, self.known(name)))

    def _products_since(self, layer):
        """How many products lie between a layer and the tensors that it follows from, itself included."""
        since, names = {}, [layer["name"]]
        while names:
            each = self.network.by_name[names.pop()]
            since[each["name"]] = each["kind"] in PRODUCTS
            names += [name for name in each["inputs"] if not self.known(name) and name not in since]
        return sum(since.values())

    def _after(self, layer):
        """The first position at which its output may be."""
        return max([self.outputs[source][0].tensor for source in layer["inputs"] if source in self.outputs] or [0])

    @staticmethod
    def _computed(values, layer):
        try:
            values.compute(layer)
        except (ValueError, IndexError):
            return False
        return True

    def _find(self, name, expected, tolerance, start):
        if expected.dtype.kind in "iu" or not _tells(expected, tolerance):
            return []
        return [place for place, seen in self._candidates(name, start)
                if _tells(seen, tolerance) and self.network.distance(seen, expected, tolerance) <= tolerance]

    def _candidates(self, name, start=0):
        likely = self._layout_before(name)
        for index in range(start, len(self.tensors)):
            seen = views(self.tensors[index][1], self.shapes[name], self.flattened.get(name))
            for layout, array in sorted(seen, key=lambda each: each[0] != likely):
                yield Place(index, layout), array
            if seen and self._before_another_product(name):
                yield Place(index, BIAS_LATER), seen[0][1] + self.network.own[name][EXACT]["bias"]

    def _before_another_product(self, name):
        """Whether a converter may move its bias behind the next layer."""
        kinds = {layer["kind"] for layer in [self.network.by_name[name]] + self.network.readers[name]}
        return kinds == {"dense"} and bool(self.network.readers[name])

    def _layout_before(self, name):
        """That of the nearest layer before with more than one axis: where sizes are equal, shapes don't tell."""
        while self.network.by_name[name]["inputs"]:
            name = self.network.by_name[name]["inputs"][0]
            if self.known(name) and len(wide(self.shapes[name])) > 1:
                return self.known(name).layout
        return AS_IT_IS

    def _lost(self):
        """The layers that aren't there and weren't fused with one behind them that is."""
        fused, names = set(), list(self.outputs)
        while names:
            for source in self.network.by_name[names.pop()]["inputs"]:
                if not self.known(source) and source not in fused:
                    fused.add(source)
                    names.append(source)
        return [layer for layer in self.network.layers
                if layer["inputs"] and layer["name"] not in self.outputs and layer["name"] not in fused]

    def _take_up(self):
        """Find what a missing layer really read: a tensor from which it, and what may be fused with it, gives one that is there. A relu or
        a pool alone says little, since there are others; it counts where nothing else does."""
        lost = self._lost()[:_REACH]
        return any(self._read(layer, weighty) for weighty in (True, False) for layer in lost)

    def _read(self, layer, weighty):
        for source in layer["inputs"]:
            others = [name for name in layer["inputs"] if name != source]
            if self.network.by_name[source]["kind"] == "tokens" or not all(map(self.values.has, others)):
                continue
            if not weighty and self.known(source):
                continue
            found = [place for place, seen in self._candidates(source, self._after(self.network.by_name[source]))
                     if (source, place) not in self._tried and np.isfinite(seen).all()
                     and self._leads_on(layer, source, place, seen, weighty)]
            if found:
                # A relu or a pool behind it may make two tensors alike: then it is the last of them that is read.
                place = found[-1] if weighty else found[0]
                self._tried.add((source, place))
                self.given[source], self.reader[source] = place, layer["name"]
                first = self._narrowed(source)
                self._follow([each["name"] for each in self.network.layers].index(first))
                return True
        return False

    def _narrowed(self, name):
        """Go back from what was taken up, as long as a layer gives it from a tensor that is there. Returns the first layer's name."""
        while True:
            layer, given = self.network.by_name[name], self.array(name, self.given[name])
            source = layer["inputs"][0] if len(layer["inputs"]) == 1 else None
            if source is None or self.known(source) or self.network.by_name[source]["kind"] == "tokens":
                return name
            for place, seen in self._candidates(source, self._after(self.network.by_name[source])):
                if place.tensor < self.given[name].tensor and np.isfinite(seen).all() and self._gives(layer, source, seen, given):
                    self.given[source], self.reader[source] = place, name
                    name = source
                    break
            else:
                return name

    def _gives(self, layer, source, seen, given):
        values = self.values.copy()
        values.known(source, seen)
        if not self._computed(values, layer):
            return False
        expected, tolerance = values.exact(layer["name"]), values.tolerance(layer["name"])
        same = expected.size == seen.size and distance(expected.ravel(), np.asarray(seen, np.float64).ravel()) <= tolerance
        return not same and self.network.distance(given, expected, tolerance) <= tolerance

    def _leads_on(self, layer, source, place, seen, weighty):
        """Whether the layer, reading this in place of what it should, leads to a tensor behind it that says so."""
        found, before = {source: np.asarray(seen, np.float64)}, seen
        chain = []
        for _ in range(_CHAIN):
            try:
                given = [found[name] if name in found else self.values.exact(name) for name in layer["inputs"]]
                found[layer["name"]] = after = reference.apply(layer, self.network.own[layer["name"]][EXACT], *given)
            except (ValueError, IndexError, KeyError):
                return False
            chain.append(layer)
            near = _NEAR * largest(after)
            same = after.size == before.size and distance(after.ravel(), before.ravel()) <= near
            if same and len(chain) == 1 and layer["kind"] not in _TRIVIAL:
                return False  # then it may as well be this layer's own output
            tells = near > 0 and not same and any(each["kind"] not in (_WEIGHTLESS if weighty else _TRIVIAL) for each in chain)
            if tells and self._find(layer["name"], after, near, place.tensor + 1) and self._confirmed(source, seen, chain, place):
                return True
            readers = self.network.readers[layer["name"]]
            if len(readers) != 1:
                return False
            layer = readers[0]
        return False

    def _confirmed(self, source, seen, chain, place):
        """The same within what rounding allows."""
        values = self.values.copy()
        values.known(source, seen)
        for layer in chain:
            values.compute(layer)
        name = chain[-1]["name"]
        return bool(self._find(name, values.exact(name), values.tolerance(name), place.tensor + 1))

    def _guess(self):
        """Pair the layers that aren't there with tensors by order, values and names. Of those that they read, integers of the same numbers
        may have been made at once."""
        missing = [layer["name"] for layer in self._lost() if not self.known(layer["name"]) and self.values.has(layer["name"])]
        read = {source for name in missing for source in self.network.by_name[name]["inputs"] if self.known(source)}
        for name in read if self.network.integers else ():
            last, right = self.known(name).tensor, self.values.exact(name)
            for place, seen in self._candidates(name, last + 1):
                inside = np.clip(right, seen.min(), seen.max())  # its range may be too narrow
                if place.tensor <= last + 2 and max(agreement(seen, right), agreement(seen, inside)) > LEAST_SCORE:
                    self.given[name] = place
                    break
        start = min([self.known(name).tensor + 1 for name in read] or [0])
        for row, place in paired([(name, self.values.exact(name)) for name in missing], self.tensors[start:-1], self.flattened).items():
            self.given[missing[row]] = Place(start + place.tensor, place.layout)


def _tells(values, tolerance):
    return tolerance <= _TELLING * largest(values) or not largest(values)
