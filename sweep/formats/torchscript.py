"""TorchScript: a network with its code, run by PyTorch's interpreter without optimisations.

The file does not say what shape or type its input has. PyTorch reads it in C++, where no pickle runs Python; the code in it may still call
operators that write or map files, so it is looked through first.
"""

import io
import re
import shutil
import tokenize
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from sweep.formats import _arrays, _files, _signature

FACTS = {
    "distribution": "torch",
    "converters": ["onnx"],
    "suffixes": [".pt", ".pth", ".ts", ".jit", ".torchscript"],
    "exports": ["torchscript", "onnx"],
    "float64": True,
    "layer_outputs": False,
}

FILE = "model.onnx"
OPSET = 18
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_REACHES_OUT = re.compile(r"\bfrom_file\b|\.\s*save\s*\(|\bops\s*\.\s*prim\s*\.\s*(rpc\w*|PythonOp|IgnoredPythonOp)\b")
_NAMESPACE = re.compile(r"\bops\s*\.\s*(\w+)|\b__torch__\s*\.\s*torch\s*\.\s*classes\s*\.\s*(\w+)")
_NAMESPACES = {"aten", "prim", "prims", "quantized", "_quantized", "sparse", "mkldnn", "mkldnn_prepacked"}


class Session:
    """A TorchScript module; the type of its input is whatever it is given first."""

    def __init__(self, module):
        self.module = module

    def run(self, inputs):
        """All outputs of one batch, joined."""
        import torch

        with torch.inference_mode(), torch.jit.optimized_execution(False):
            outputs = self.module(torch.from_numpy(np.array(inputs)))
        return _arrays.joined([output.numpy() for output in tensors(outputs)], len(inputs))


def recognise(path):
    """Also a file of weights alone, which `inspect` refuses with what it is."""
    names = [name.partition("/")[2] for name in _files.members(path)]
    return "data.pkl" in names or bool(_PICKLE.match(_files.start(path, 2)))


def inspect(path):
    """What the file says of itself: operators, and how many inputs and outputs there are; their shapes and types are None.

    Raises ValueError, one line: damaged, weights alone, operators that reach beyond the model, or another number of inputs than one.
    """
    module = _load(path)
    graph = module.inlined_graph
    inputs = [{"name": each.debugName().partition(".")[0], "shape": None, "dtype": None} for each in list(graph.inputs())[1:]]
    outputs = [{"name": name, "shape": None, "dtype": None} for name in _outputs(path, graph)]
    return _signature.details(path, inputs, outputs, Counter(_kinds(graph)))


def open(path, threads):
    """A session; `threads` are the whole process's. Raises ValueError as `inspect` does."""
    set_threads(threads)
    return Session(_load(path))


def predict(session, inputs, batch_size=256):
    """Outputs (N, ...) of inputs (N, ...); several outputs are flattened and joined in the order in which they are returned."""
    return _arrays.predict(session.run, inputs, batch_size, inputs.dtype)


def describe(session):
    """The threads, read back."""
    import torch

    return {"intra_op_threads": torch.get_num_threads(), "optimized_execution": False}


def predict64(path, inputs):
    """Outputs float64, of the same code on weights and inputs in double precision. Raises ValueError where the code fixes a type."""
    return exact(path, lambda: _load(path).double(), inputs)


def export(path, target, folder, details):
    """Write the file itself, or `model.onnx` with a free batch where the file has one. Raises ValueError that names the source where the
    converter can't."""
    if target not in FACTS["exports"]:
        raise ValueError("no export to {!r}; there are {}".format(target, ", ".join(FACTS["exports"])))
    if target == "torchscript":
        shutil.copyfile(str(path), str(Path(folder) / Path(path).name))
        return Path(path).name
    import torch

    example = torch.zeros([2] + list(details["input_shape"]), dtype=getattr(torch, details["input_dtype"]))
    names = ["output_{:02d}".format(number) for number in range(len(details["outputs"]))]
    free = {name: {0: "batch"} for name in ["input"] + names}
    try:
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")  # that this exporter is the older one; the newer doesn't read this format
            torch.onnx.export(
                _load(path), (example,), str(Path(folder) / FILE), input_names=["input"], output_names=names, dynamic_axes=free,
                opset_version=OPSET, dynamo=False,
            )
    except Exception as error:  # the exporter's exceptions have no common root
        raise _files.damaged(path, error) from error
    return FILE


def exact(path, doubled, inputs):
    """Outputs float64 of the module that `doubled` makes, one input at a time."""
    import torch

    inputs = inputs.astype(np.float64) if inputs.dtype == np.float32 else np.array(inputs)
    try:
        module, outputs = doubled(), []
        with torch.inference_mode():
            for start in range(len(inputs)):
                found = [output.numpy() for output in tensors(module(torch.from_numpy(inputs[start:start + 1])))]
                outputs.append(_arrays.joined(found, 1, np.float64))
    except Exception as error:  # PyTorch's exceptions have no common root
        raise ValueError("{} can't be evaluated in float64: {}".format(path, _files.one_line(error))) from error
    return np.concatenate(outputs)


def set_threads(threads):
    import torch

    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)


def _load(path):
    import torch

    _files.check_size(path)
    _check_code(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.jit.load(str(path), map_location="cpu").eval()
    except Exception as error:  # PyTorch's exceptions have no common root
        raise _files.damaged(path, error) from error


def _check_code(path):
    if _PICKLE.match(_files.start(path, 2)):
        raise ValueError("{} is a pickle, which may run code; export the network itself".format(path))
    code = _files.read_members(path, lambda name: "/code/" in name and name.endswith(".py"))
    if not code:
        raise ValueError("{} holds pickled weights and no network; export the network itself".format(path))
    for name, content in sorted(code.items()):
        for text in _readings(path, name, content.decode("utf-8", "replace")):
            found = _REACHES_OUT.search(text)
            if found:
                raise ValueError("{}: {} calls {}, which reaches beyond the model".format(path, name, found.group().strip(" .(")))
            for match in _NAMESPACE.finditer(text):
                if (match.group(1) or match.group(2)) not in _NAMESPACES:
                    raise ValueError("{}: {} calls {}, which is none of PyTorch's own operators".format(path, name, match.group()))


def _readings(path, name, text):
    """Code as it is, without all that may be a comment, and without what is one: a name may be split by a comment, and a comment's sign
    may stand in a text. Raises ValueError for what is no code."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError) as error:
        raise ValueError("{}: {} can't be read: {}".format(path, name, error)) from error
    if any(token.type == tokenize.ERRORTOKEN and not token.string.isspace() for token in tokens):
        raise ValueError("{}: {} can't be read: it has what no code is made of".format(path, name))
    kept = " ".join(token.string for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL))
    return text, re.sub(r"#.*|\\\r?\n", " ", text), kept


def tensors(outputs):
    """A tensor, or a tuple or list of them, as a list."""
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def _outputs(path, graph):
    """A name for each tensor that is returned. Raises ValueError where something else is."""
    (returned,) = graph.outputs()
    kinds = [each.kind() for each in returned.type().elements()] if returned.type().kind() == "TupleType" else [returned.type().kind()]
    if set(kinds) != {"TensorType"}:
        raise ValueError("{} returns {}; a model returns a tensor or a tuple of them".format(path, returned.type()))
    return ["output_{:02d}".format(number) for number in range(len(kinds))]


def _kinds(block):
    """Operators of a graph and of the blocks in it, without what only holds it together."""
    for node in block.nodes():
        if not node.kind().startswith("prim::"):
            yield node.kind()
        for inner in node.blocks():
            yield from _kinds(inner)
