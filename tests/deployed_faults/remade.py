"""Faults that are made before a conversion: what is converted, or calibrated with, isn't what it should be."""

import numpy as np

from sweep import reference

from .converted import Unsuitable

LARGEST = float(np.finfo(np.float16).max)
STATIC = ("static_int8",)


def epsilon(random, network, layer):
    """A batch norm with another epsilon, which a converter folds into what comes before."""
    known = [value for value in (1e-3, 1e-5, 1e-2, 1e-4) if value != layer["epsilon"]]
    value = float(random.choice([*known, 10 ** random.uniform(-4, -1)]))
    return network._replace(layers=[dict(each, epsilon=value) if each is layer else each for each in network.layers])


def statistics_of_a_fresh_norm(_random, network, layer):
    weights = dict(network.weights)
    for parameter, make in (("mean", np.zeros_like), ("variance", np.ones_like)):
        weights[f"{layer['name']}/{parameter}"] = make(weights[f"{layer['name']}/{parameter}"])
    return network._replace(weights=weights)


def gamma_of_one(_random, network, layer):
    name = f"{layer['name']}/gamma"
    return network._replace(weights=dict(network.weights, **{name: np.ones_like(network.weights[name])}))


def unscaled_calibration(_random, network, _layer):
    """Calibrated with pixels from 0 to 255."""
    return network._replace(calibration=network.calibration * np.float32(255))


def dim_calibration(random, network, _layer):
    """Calibrated with inputs far darker than those to come."""
    return network._replace(calibration=network.calibration * np.float32(random.choice([0.02, 0.1])))


def overflow(_random, network, layer):
    """The right network with weights whose activations float16 can't hold, which the product behind the flatten makes small again. (What
    ONNX Runtime computes in float32, for want of float16 kernels, it rounds at the latest where a tensor is laid out anew.)"""
    readers = [each for each in network.layers if layer["name"] in each["inputs"]]
    between = []
    while len(readers) == 1 and readers[0]["kind"] in ("relu", "max_pool", "average_pool", "flatten"):
        between.append(readers[0]["kind"])
        readers = [each for each in network.layers if readers[0]["name"] in each["inputs"]]
    if len(readers) != 1 or readers[0]["kind"] != "dense" or "flatten" not in between:
        raise Unsuitable
    kernel, bias, behind = f"{layer['name']}/kernel", f"{layer['name']}/bias", f"{readers[0]['name']}/kernel"
    weights = dict(network.weights, **{bias: np.zeros_like(network.weights[bias])})
    most = reference.layer_outputs(network.layers, weights, network.inputs)[layer["name"]].max()  # a relu may stop what is below 0
    factor = np.float32(1.5 * LARGEST / max(most, 1e-3))
    if factor * np.abs(weights[kernel]).max() > LARGEST:  # the weights themselves must fit
        raise Unsuitable
    weights[kernel], weights[behind] = weights[kernel] * factor, weights[behind] / factor
    return network._replace(weights=weights)


FORMS = [
    ("epsilon", ("batch_norm",), epsilon, None),
    ("statistics_ignored", ("batch_norm",), statistics_of_a_fresh_norm, None),
    ("gamma_fixed", ("batch_norm",), gamma_of_one, None),
    ("calibration", ("input",), unscaled_calibration, STATIC),
    ("calibration", ("input",), dim_calibration, STATIC),
]
"""(fault, kinds of layers, function, rows it is for or None): the function gives the network that is converted in place of the right one."""
