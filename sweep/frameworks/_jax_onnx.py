"""Export of a flax network to ONNX by jax2onnx.

jax2onnx puts functions of its own in the place of flax's while it traces. What these don't take is written here in a form that they do.
"""

import jax
import numpy as np
from flax import linen as nn
from jax import numpy as jnp
from jax.extend.core import Primitive
from jax2onnx import to_onnx
from jax2onnx.plugins.plugin_system import PrimitiveLeafPlugin, register_primitive

from sweep.frameworks._jax_network import canonical

OPSET = 18


def export(network, path):
    """Write the network with a free batch."""
    graph = network.graph
    weights = canonical(graph.layers, network.variables)
    double = graph.dtype == np.float64
    write(lambda images: _apply(network, weights, images), graph.layers[0]["shape"], graph.input_dtype, path, double)


def write(compute, shape, dtype, path, double=False):
    """Write a function of one array (N, *shape) with a free batch, in float64 where `double` is."""
    inputs = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch") + tuple(shape), dtype)
    model = to_onnx(
        compute, [inputs], model_name="network", opset=OPSET, enable_double_precision=double, input_names=["input"],
        output_names=["logits"],
    )
    # Where jax2onnx 0.17.1 took transpositions out around a sum of two layers, the shapes that it noted before still stand, and a
    # runtime that believes them refuses the file. They follow from the operators.
    del model.graph.value_info[:]
    path.write_bytes(model.SerializeToString())


def _apply(network, weights, images):
    """Logits of images or tokens (N, ...), as the graph's own `apply` has them."""
    graph, values = network.graph, {}
    for layer in graph.layers:
        name, inputs = layer["name"], [values[other] for other in layer["inputs"]] or [images]
        if layer["kind"] in _RECURRENT:
            values[name] = recurrent(layer, weights, *inputs)
        elif layer["kind"] in _POOLING:
            values[name] = _POOLING[layer["kind"]](layer, *inputs)
        else:
            values[name] = graph.alone(name, network.variables, inputs)
    return values[graph.layers[-1]["name"]]


def _max_pool(layer, values):
    return nn.max_pool(_padded(layer, values, -np.inf), **_window(layer))


def _average_pool(layer, values):
    rows, columns = (_counts(layer, *each) for each in zip(values.shape[1:3], layer["padding"]))
    means = nn.avg_pool(_padded(layer, values, 0), **_window(layer))
    if not np.any(layer["padding"]):
        return means
    return means * (layer["size"] ** 2 / np.outer(rows, columns)[:, :, None]).astype(values.dtype)


def _window(layer):
    return {"window_shape": (layer["size"],) * 2, "strides": (layer["stride"],) * 2, "padding": "VALID"}


def _padded(layer, values, fill):
    if not np.any(layer["padding"]):
        return values
    return jnp.pad(values, ((0, 0), *(tuple(side) for side in layer["padding"]), (0, 0)), constant_values=fill)


def _counts(layer, extent, padding):
    """How many places of each window along one axis are no padding."""
    inside = np.pad(np.ones(extent), padding)
    return [inside[start:start + layer["size"]].sum() for start in range(0, len(inside) - layer["size"] + 1, layer["stride"])]


_POOLING = {"max_pool": _max_pool, "average_pool": _average_pool}

# A scan over the steps has no free batch (flax draws its first state from the batch's size), and other tools see no layer in a loop. So
# recurrent layers become ONNX's operators, with the gates in their order: i, o, f, g and z, r, h.
_RECURRENT = {"lstm": ("LSTM", (0, 3, 1, 2)), "gru": ("GRU", (0, 1, 2))}


def recurrent(layer, weights, values):
    """A recurrent layer with canonical weights, for `write`: by a name of its own, which becomes ONNX's operator."""
    operator, gates = _RECURRENT[layer["kind"]]
    own = {parameter: weights["{}/{}".format(layer["name"], parameter)] for parameter in ("kernel", "recurrent_kernel", "bias")}
    recurrent_bias = weights.get(layer["name"] + "/recurrent_bias", np.zeros_like(own["bias"]))

    def ordered(array):
        parts = np.split(array, len(gates), axis=-1)
        return np.concatenate([parts[gate] for gate in gates], axis=-1)

    bias = np.concatenate([ordered(own["bias"]), ordered(recurrent_bias)])
    parameters = [ordered(own["kernel"]).T, ordered(own["recurrent_kernel"]).T, bias]
    return _SEQUENCE.bind(
        values, *(jnp.asarray(array[None]) for array in parameters), operator=operator, units=layer["units"],
        recurrent_activation=layer["recurrent_activation"], reset_after=layer.get("reset_after", False),
        return_sequences=layer["return_sequences"],
    )


_SEQUENCE = Primitive("sweep_recurrent")
_GATE = {"sigmoid": "Sigmoid", "hard_sigmoid": "HardSigmoid"}


@register_primitive(jaxpr_primitive=_SEQUENCE.name)
class _RecurrentOperator(PrimitiveLeafPlugin):
    """A recurrent layer over (N, steps, in), as jax2onnx is to write it."""

    _PRIM = _SEQUENCE

    @staticmethod
    def abstract_eval(values, *_parameters, units, return_sequences, **_others):
        steps = values.shape[1:2] if return_sequences else ()
        return jax.core.ShapedArray(values.shape[:1] + steps + (units,), values.dtype)

    def lower(self, ctx, eqn):
        """One operator over (steps, N, in), between transpositions."""
        settings = eqn.params
        values, *parameters = (ctx.get_value_for_var(variable) for variable in eqn.invars)
        activations = [_GATE[settings["recurrent_activation"]]] + ["Tanh"] * (2 if settings["operator"] == "LSTM" else 1)
        attributes = {"hidden_size": settings["units"], "activations": activations}
        if activations[0] == "HardSigmoid":
            attributes.update(activation_alpha=[0.2], activation_beta=[0.5])
        if settings["operator"] == "GRU":
            attributes["linear_before_reset"] = int(settings["reset_after"])
        operator = getattr(ctx.builder, settings["operator"])
        steps_first = ctx.builder.Transpose(values, perm=[1, 0, 2])
        outputs = operator(steps_first, *parameters, _outputs=[ctx.fresh_name("states"), ctx.fresh_name("last_state")], **attributes)
        if settings["return_sequences"]:  # (steps, 1, N, units) to (N, steps, 1, units)
            result, axis = ctx.builder.Transpose(outputs[0], perm=[2, 0, 1, 3]), 2
        else:  # (1, N, units)
            result, axis = outputs[1], 0
        axes = ctx.builder.const_i64(ctx.fresh_name("axes"), [axis])
        found = ctx.builder.Squeeze(result, axes, _outputs=[ctx.get_value_for_var(eqn.outvars[0]).name])
        found.type = values.type
        sizes = [values.shape[0]] + list(values.shape[1:2] if settings["return_sequences"] else []) + [settings["units"]]
        found.shape = type(values.shape)(sizes)  # an output without one is refused
        ctx.bind_value_for_var(eqn.outvars[0], found)
