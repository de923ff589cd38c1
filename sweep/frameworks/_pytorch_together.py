"""Many small PyTorch modules to as many files.

ONNX by one run of the exporter: it looks through all operators that it knows whenever it is called, which takes many times longer than a
small module does. So it gets the modules together, and the graph is taken apart, which is easy since its parts don't meet.
"""

import copy
import io

import torch
from torch import nn

from sweep.frameworks import _pytorch_onnx
from sweep.frameworks._pytorch_parts import Gru, Lstm

INPUT, OUTPUT = "input", "output"


def _onnx_files(modules):
    """The content of a file for each (module, example input), or the exception that came of it."""
    return (each if isinstance(each, Exception) else each.SerializeToString() for each in _models(modules))


def _programs(modules):
    for module, example in modules:
        try:
            content = io.BytesIO()
            torch.export.save(torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},)), content)
            yield content.getvalue()
        except Exception as error:  # the exporter's exceptions have no common root
            yield error


def _tflite_files(modules):
    from sweep.frameworks import _pytorch_litert

    for module, example in modules:
        try:
            yield _pytorch_litert.content(module, example[:1])
        except Exception as error:  # likewise
            yield error


WRITE = {"native": _programs, "onnx": _onnx_files, "tflite": _tflite_files}
FILE = {"native": "model.pt2", "onnx": "model.onnx", "tflite": "model.tflite"}


def _models(modules):
    """ONNX models or exceptions. Where some module can't be exported, the halves are."""
    if not modules:
        return []
    try:
        return _parts(_exported(modules), len(modules))
    except Exception as error:  # likewise
        if len(modules) == 1:
            return [error]
    half = len(modules) // 2
    return _models(modules[:half]) + _models(modules[half:])


class _Together(nn.Module):
    """Each module on its own input."""

    def __init__(self, modules):
        super().__init__()
        self.each = nn.ModuleList(modules)

    def forward(self, *inputs):
        return tuple(module(values) for module, values in zip(self.each, inputs))


def _exported(modules):
    numbers, batch = range(len(modules)), {0: torch.export.Dim("batch")}
    program = torch.onnx.export(
        _Together([_with_operator(module) for module, _example in modules]).eval(), tuple(example for _module, example in modules),
        input_names=[INPUT + str(number) for number in numbers], output_names=[OUTPUT + str(number) for number in numbers],
        dynamic_shapes=((batch,) * len(modules),),
        opset_version=_pytorch_onnx.OPSET, dynamo=True, verbose=False,
    )
    return program.model_proto


def _with_operator(module):
    """A copy with ONNX's operator in place of a recurrent part, as networks are exported."""
    if not isinstance(getattr(module, "part", None), (Lstm, Gru)):
        return module
    module = copy.copy(module)
    module._modules = dict(module._modules, part=_pytorch_onnx.Operator(module.part))
    return module


def _parts(whole, count):
    """The model of each output, with what it is computed from alone."""
    import onnx  # here, since not every environment with PyTorch has it

    makers = {name: node for node in whole.graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in whole.graph.initializer}
    inputs = {value.name: value for value in whole.graph.input}
    outputs = {value.name: value for value in whole.graph.output}
    found = []
    for number in range(count):
        reached, queue = set(), [OUTPUT + str(number)]
        while queue:
            name = queue.pop()
            if name not in reached:
                reached.add(name)
                queue.extend(makers[name].input if name in makers else ())
        model = onnx.ModelProto(ir_version=whole.ir_version, opset_import=whole.opset_import, functions=whole.functions)
        model.graph.name = whole.graph.name
        model.graph.node.extend(node for node in whole.graph.node if reached & set(node.output))
        model.graph.initializer.extend(constants[name] for name in constants if name in reached)
        model.graph.input.append(inputs[INPUT + str(number)])
        model.graph.output.append(outputs[OUTPUT + str(number)])
        for node in model.graph.node:
            del node.metadata_props[:]  # stack traces with this machine's paths
        onnx.checker.check_model(model)
        found.append(model)
    return found
