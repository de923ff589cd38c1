"""A user's own model file becomes a model folder: looked through, copied, and run once."""

import hashlib
import os
import re
import shutil

from sweep import components
from sweep.inputs import read_inputs
from sweep.stages.models import write_details

CHUNK_BYTES = 1 << 20
PRODUCTS = re.compile("conv|matmul|mat_mul|gemm|dense|fully_connected|linear|einsum|dot|lstm|gru|rnn", re.IGNORECASE)
"""Operators that sum products of weights and activations, as the formats name them."""


def inspect(path, model_format):
    """What a file says of itself (`sweep.contracts`), with its `digest` and `bytes`, all its files together, and how many of its operators
    are `products`, at least one."""
    details = components.load("formats", model_format).inspect(path)
    files = list(_files(path, details["beside"]))
    products = sum(count for operator, count in details["operators"].items() if PRODUCTS.search(operator))
    return dict(details, digest=_digest(files), bytes=sum(os.path.getsize(file) for _name, file in files), products=max(1, products))


def misfit(path, details, shape, dtype):
    """Why inputs of this shape (without the batch) and type can't be given to a model, None where they can."""
    wanted, wanted_type = details["input_shape"], details["input_dtype"]
    fits = wanted is None or (len(wanted) == len(shape) and all(size in (None, own) for size, own in zip(wanted, shape)))
    if fits and wanted_type in (None, dtype):
        return None
    text = "{} takes inputs {} {}, and they are {} {}".format(
        os.path.basename(str(path)), wanted_type or "of any type", _shown(wanted), dtype, _shown(shape)
    )
    if wanted is not None and len(shape) == 3 and list(wanted) == [shape[2], shape[0], shape[1]]:
        text += "; it has the channels first, the inputs have them last"
    return text


def run(settings, data, out):
    """Write the model folder `out`: the file, and model.json with `layers` None and the shapes that the first test input shows.

    Raises ValueError, one line: the file has changed since settings["digest"], is not what its format is, or does not take the inputs.
    """
    path, module = settings["path"], components.load("formats", settings["format"])
    details = inspect(path, settings["format"])
    if details["digest"] != settings["digest"]:
        raise ValueError("{} has changed since the sweep was planned".format(path))
    one = read_inputs(data["folder"], "test", [0])
    reason = misfit(path, details, one.shape[1:], one.dtype.name)
    if reason:
        raise ValueError(reason)
    for name, file in _copied(path, details["beside"]):
        (shutil.copytree if os.path.isdir(file) else shutil.copyfile)(file, os.path.join(out, name))
    details.update(input_shape=list(one.shape[1:]), input_dtype=one.dtype.name)
    file = os.path.basename(os.path.normpath(path))
    outputs = module.predict(module.open(os.path.join(out, file), settings["threads"]), one)
    details["output_shape"] = list(outputs.shape[1:]) if len(details["outputs"]) == 1 else None
    size = details.pop("bytes")
    write_details(out, format=settings["format"], file=file, layers=None, **details)
    return {"metrics": {"model_size_bytes": size}}


def _copied(path, beside):
    """Name and path of what makes up a model: the file or folder, and files beside it."""
    path = os.path.normpath(path)
    yield os.path.basename(path), path
    for name in beside:
        yield name, os.path.join(os.path.dirname(path), name)


def _files(path, beside):
    """Name and path of every file of a model, sorted."""
    for name, file in _copied(path, beside):
        if os.path.isfile(file):
            yield name, file
            continue
        inner = [os.path.join(folder, each) for folder, _folders, names in os.walk(file) for each in names]
        for each in sorted(inner):
            yield os.path.relpath(each, os.path.dirname(file)), each


def _digest(files):
    digest = hashlib.sha256()
    for name, file in files:
        digest.update("{} {}\n".format(name, os.path.getsize(file)).encode())
        with open(file, "rb") as content:
            for chunk in iter(lambda: content.read(CHUNK_BYTES), b""):
                digest.update(chunk)
    return digest.hexdigest()


def _shown(shape):
    return "of any shape" if shape is None else "({})".format(", ".join("any" if size is None else str(size) for size in shape))
