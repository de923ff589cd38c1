"""The pieces of a deployed model between tensors that are there: one layer, or several that were fused."""

from collections import namedtuple

import numpy as np

from sweep import reference
from sweep.diagnosis._alignment import AS_IT_IS, Place
from sweep.diagnosis._computed import EXACT, Values
from sweep.diagnosis._tracing import Tracing

FEW = 4  # examples that tensors are aligned by
Unit = namedtuple("Unit", "name members given expected observed tolerance place network ids handed_on wired reads_input")
"""`name`: the layer whose output is observed. `members`: the layers computed for it, in order. `given`: by name, the deployed model's own
tensors that they read (under None: the network's inputs). `expected` (N, ...): the right output for those. `place`: where the tensor is.
`ids`: a text network's inputs, else None. `handed_on`: whether the layer's output is right, and this is what the layers behind it read for
it; `wired`: then (the layer that does, the layer whose right output it is), or None. `reads_input`: whether the first member is the
network's input layer, since what is made of images before may not be there."""


def traced(network, inputs, tensors, guess=False):
    """The alignment of `tensors`: (name, array (N, ...)) in order of execution, images' inputs first, the model's output last."""
    return Tracing(network, inputs[:FEW], [(name, array[:FEW]) for name, array in tensors]).run(guess)


def units(network, inputs, tensors, tracing):
    """Yields a Unit for every layer whose tensor was found, in the order of the list."""
    whole = Tracing(network, inputs, tensors)  # for its arrays
    values, pending = Values(network, inputs), {}
    last_use = {name: position for position, layer in enumerate(network.layers) for name in layer["inputs"]}
    first = network.layers[0]
    kept, ids = {}, inputs if inputs.dtype.kind in "iu" else None
    for position, layer in enumerate(network.layers):
        name = layer["name"]
        if not all(map(values.has, layer["inputs"])):
            continue
        try:
            values.compute(layer)
        except (ValueError, IndexError):
            continue
        members = [each for source in layer["inputs"] for each in pending.get(source, ())]
        pending[name] = members = [each for each in network.layers if each in members or each is layer]
        given = {source: kept[source] for each in members for source in each["inputs"] if source in kept}
        if not layer["inputs"]:
            given[None] = values.start(EXACT)
        reads_input = first["name"] in given and first["kind"] == "input" and first["name"] not in tracing.given
        if reads_input:
            given[None], members = given.pop(first["name"]), [first] + members
        if len(tracing.outputs.get(name, ())) > 1:
            tracing.outputs[name] = _confirmed(network, whole, values, name, tracing.outputs[name])
        for place in _observed(tracing, name):
            array = np.asarray(whole.array(name, place), np.float64)
            handed_on = name in tracing.outputs and place not in tracing.outputs[name]
            wired = _wired(tracing, name, place) if handed_on else None
            yield Unit(name, members, given, values.exact(name), array, values.tolerance(name), place, network, ids, handed_on, wired,
                       reads_input)
        if tracing.known(name):
            kept[name] = np.asarray(whole.array(name, tracing.known(name)), np.float64)
            values.known(name, kept[name])
            pending[name] = []
        elif layer["kind"] == "tokens":
            kept[name], pending[name] = values.exact(name), []
        for source in set(layer["inputs"]):
            if last_use[source] == position:
                values.drop(source)


def _confirmed(network, whole, values, name, places):
    """Those of several tensors that hold a layer's right output on all inputs: on few a relu, say, may change nothing."""
    expected, tolerance = values.exact(name), values.tolerance(name)
    return [place for place in places if network.distance(whole.array(name, place), expected, tolerance) <= tolerance] or places


def whole_unit(network, inputs, outputs):
    """The network as one Unit, whose output is the model's as it is served."""
    values = Values(network, inputs)
    for layer in network.layers:
        values.compute(layer)
    first, last = network.layers[0], network.layers[-1]["name"]
    ids = inputs if inputs.dtype.kind in "iu" else None
    given = {None: values.start(EXACT)} if ids is None else {first["name"]: inputs}
    members = [layer for layer in network.layers if layer["kind"] != "tokens"]
    observed, place = np.asarray(outputs, np.float64), Place(-1, AS_IT_IS)
    return Unit(last, members, given, values.exact(last), observed, values.tolerance(last), place, network, ids, False, None, False)


def _wired(tracing, name, place):
    """(the layer that reads the tensor for `name`'s, the layer whose right output it is), if it is one's."""
    owners = [other for other, places in tracing.outputs.items() if other != name and place.tensor in [each.tensor for each in places]]
    return (tracing.reader[name], owners[-1]) if owners and name in tracing.reader else None


def _observed(tracing, name):
    """The tensors to judge: of its right outputs the one that is read, or the last; and what is read where it is none of them."""
    right = tracing.outputs.get(name, [])
    return right[-1:] + [place for place in [tracing.given.get(name)] if place is not None and place not in right[-1:]]


class Inside:
    """What goes on within a unit: the right values of its members on the first `few` examples, and what is fused behind each."""

    def __init__(self, unit, few=None):
        self.unit = unit
        self.values = {name: array[:few] for name, array in unit.given.items()}
        for each in unit.members:
            self.values[each["name"]] = self._apply(each, self.values)

    def _apply(self, layer, values):
        return reference.apply(layer, self.unit.network.own[layer["name"]][EXACT], *self.read(layer, values))

    def read(self, layer, values=None):
        """What a member reads."""
        values = self.values if values is None else values
        return [values[name] for name in layer["inputs"]] or [values[None]]

    def behind(self, layer):
        """The members that its output goes through, in order."""
        changed, found = {layer["name"]}, []
        for each in self.unit.members:
            if changed & set(each["inputs"]):
                found.append(each)
                changed.add(each["name"])
        return found

    def rest(self, layer, values):
        """The unit's output where the member's is `values`."""
        found = dict(self.values, **{layer["name"]: values})
        for each in self.behind(layer):
            found[each["name"]] = self._apply(each, found)
        return found[self.unit.name]
