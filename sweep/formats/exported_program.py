"""ExportedProgram: a graph of PyTorch's operators as `torch.export.save` writes it (`.pt2`), run by PyTorch."""

import importlib.util
import shutil
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from sweep.formats import _arrays, _collecting, _files, _signature, torchscript

FACTS = {
    "distribution": "torch",
    "converters": ["onnx", "onnxscript"],
    "suffixes": [".pt2"],
    "exports": ["exported_program", "onnx"] + (["tflite"] if importlib.util.find_spec("litert_torch") else []),
    "float64": True,
    "layer_outputs": True,
}

FILES = {"onnx": "model.onnx", "tflite": "model.tflite"}
OPSET = 18


class Session:
    """A program as a module, with the type of its one input."""

    def __init__(self, program):
        given = _described(program)[0][0]
        self.module, self.dtype, self.fixed_batch = program.module(), given["dtype"], given["shape"] and given["shape"][0]

    def run(self, inputs):
        """All outputs of one batch, joined."""
        import torch

        with torch.inference_mode():
            outputs = torchscript.tensors(self.module(torch.from_numpy(np.array(inputs))))
        return _arrays.joined([output.numpy() for output in outputs], len(inputs))


def recognise(path):
    names = [name.partition("/")[2] for name in _files.members(path)]
    return "archive_format" in names or "serialized_exported_program.json" in _files.members(path)


def inspect(path):
    """What the program says of itself. Raises ValueError, one line: damaged, of an older PyTorch, compiled, with pickles or operators that
    are not PyTorch's own, or another number of inputs than one."""
    program = _load(path)
    operators = Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")
    return _signature.details(path, *_described(program), operators=operators)


def open(path, threads):
    """A session; `threads` are the whole process's. Raises ValueError as `inspect` does."""
    torchscript.set_threads(threads)
    return Session(_load(path))


def predict(session, inputs, batch_size=256):
    """Outputs (N, ...) of inputs (N, ...) of the model's own type; several outputs are flattened and joined in the program's order."""
    return _arrays.predict(session.run, inputs, session.fixed_batch or batch_size, session.dtype)


def describe(session):
    """The threads, read back."""
    import torch

    return {"intra_op_threads": torch.get_num_threads()}


def layer_outputs(path, threads, inputs):
    """Every tensor of floating point that follows from the inputs, by name, as float32 (N, ...), in order of execution."""
    import torch

    torchscript.set_threads(threads)
    module, names = _load(path).module(), []

    class Recorder(torch.fx.Interpreter):
        def run_node(self, node):
            found = super().run_node(node)
            if isinstance(found, torch.Tensor) and node.op == "call_function":
                seen[node.name] = found.numpy().copy()  # the next may work in place
            return found

    def run(part):
        seen.clear()
        with torch.inference_mode():
            Recorder(module).run(torch.from_numpy(np.array(part)))
        return [seen[name] for name in names]

    seen = {}
    run(inputs[:1])
    names += seen
    return _collecting.collected(run, names, inputs, None)


def predict64(path, inputs):
    """Outputs float64, of the same graph with all its arithmetic in double precision. Raises ValueError where an operator has none."""
    return torchscript.exact(path, lambda: _doubled(_load(path)), inputs)


def export(path, target, folder, details):
    """Write the file itself, `model.onnx`, or `model.tflite`. Raises ValueError that names the source where a converter can't."""
    if target not in FACTS["exports"]:
        raise ValueError("no export to {!r}; there are {}".format(target, ", ".join(FACTS["exports"])))
    if target == "exported_program":
        shutil.copyfile(str(path), str(Path(folder) / Path(path).name))
        return Path(path).name
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _WRITERS[target](_load(path), details, Path(folder) / FILES[target])
    except Exception as error:  # the converters' exceptions have no common root
        raise _files.damaged(path, error) from error
    return FILES[target]


def _write_onnx(program, _details, path):
    import torch

    exported = torch.onnx.export(program, dynamo=True, opset_version=OPSET, verbose=False)
    exported.save(str(path), external_data=False)


def _write_tflite(program, details, path):
    import litert_torch
    import torch

    example = torch.zeros([1] + list(details["input_shape"]), dtype=getattr(torch, details["input_dtype"]))
    litert_torch.convert(program.module(), (example,)).export(str(path))


_WRITERS = {"onnx": _write_onnx, "tflite": _write_tflite}


def _load(path):
    import torch

    from sweep.formats import _pt2_archive

    _files.check_size(path)
    archive = _pt2_archive.checked(path)
    try:
        return torch.export.load(archive)
    except Exception as error:  # PyTorch's exceptions have no common root
        raise _files.damaged(path, error) from error


def _described(program):
    """Inputs and outputs, without the parameters that a graph has as inputs too."""
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature
    return [[_tensor(name, nodes[name].meta["val"]) for name in names] for names in (signature.user_inputs, signature.user_outputs)]


def _tensor(name, value):
    shape = _signature.dimensions(list(value.shape))  # a free size is symbolic
    return {"name": name, "shape": shape, "dtype": str(value.dtype).replace("torch.", "")}


def _doubled(program):
    """The program's module in double precision, types that its graph names included."""
    import torch

    module = program.module().double()
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
            continue
        node.args = torch.fx.node.map_aggregate(node.args, _wider)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, _wider)
    module.recompile()
    return module


def _wider(value):
    import torch

    return torch.float64 if value in (torch.float32, torch.float16, torch.bfloat16) else value
