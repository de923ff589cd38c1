"""The files of a graph model: model.json, and the weights in shards beside it."""

import json
import os

MODEL = "model.json"
_WIDTHS = {"float32": 4, "int32": 4, "bool": 1, "complex64": 8, "float16": 2, "uint16": 2, "uint8": 1}


def read(folder):
    """model.json of a folder, whose shards are there in full. Raises ValueError that names the folder and what is wrong with it."""
    try:
        with open(os.path.join(str(folder), MODEL), "rb") as file:
            model = json.loads(file.read().decode("utf-8"), parse_constant=_refuse)
        if model["format"] != "graph-model":
            raise ValueError("is no graph model but {!r}".format(model["format"]))
        if not all(isinstance(node["name"] + node["op"], str) for node in model["modelTopology"]["node"]):
            raise ValueError("has a node without a name")
        for group in model["weightsManifest"]:
            _check_shards(str(folder), group)
    except KeyError as error:
        raise ValueError("{}: there is no {} in {}".format(folder, error, MODEL)) from error
    except (OSError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError("{}: {}".format(folder, " ".join(str(error).split()))) from error
    return model


def _refuse(constant):
    raise ValueError("{} has the number {}, which no JSON may".format(MODEL, constant))


def _check_shards(folder, group):
    found = 0
    for name in group["paths"]:
        if not isinstance(name, str) or name != os.path.basename(name) or name in ("", ".", ".."):
            raise ValueError("a shard is {!r}, which is no file beside {}".format(name, MODEL))
        found += os.path.getsize(os.path.join(folder, name))
    if any(weight["dtype"] == "string" for weight in group["weights"]):
        return  # whose lengths are in the shards
    expected = sum(_size(weight) * _width(weight) for weight in group["weights"])
    if found != expected:
        raise ValueError("the weights take {:,} bytes, and {} holds {:,}".format(expected, ", ".join(group["paths"]), found))


def _size(weight):
    size = 1
    for side in weight["shape"]:
        if not isinstance(side, int) or side < 0:
            raise ValueError("a weight has the shape {}".format(weight["shape"]))
        size *= side
    return size


def _width(weight):
    if stored_type(weight) not in _WIDTHS:
        raise ValueError("a weight is stored as {!r}".format(stored_type(weight)))
    return _WIDTHS[stored_type(weight)]


def stored_type(weight):
    """What an entry of the manifest is stored as."""
    return weight.get("quantization", {}).get("dtype", weight["dtype"])


def dependents(model):
    """Names of the nodes that depend on the model's input, in an order of execution."""
    nodes = {node["name"]: node for node in model["modelTopology"]["node"]}
    # an input is `name`, `name:1` of a node's second output, or `^name` for order alone
    reads = {name: {tensor.lstrip("^").partition(":")[0] for tensor in node.get("input", [])} for name, node in nodes.items()}
    depends, found = {name for name, node in nodes.items() if node["op"] == "Placeholder"}, []
    for name in _in_order(reads):
        if reads[name] & depends:
            depends.add(name)
            found.append(name)
    return found


def _in_order(reads):
    """Names of nodes, each after those that it reads."""
    order, waiting = [], dict(reads)
    while waiting:
        ready = [name for name, sources in waiting.items() if not sources & waiting.keys()]
        if not ready:
            raise ValueError("the graph has a loop: " + ", ".join(waiting))
        order += ready
        for name in ready:
            del waiting[name]
    return order
