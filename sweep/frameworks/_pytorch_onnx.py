"""Export of a PyTorch network to ONNX."""

import copy

import torch
from torch import nn

from sweep.frameworks import _pytorch_parts as parts

OPSET = 18


def export(network, path):
    """Write the network with a free batch."""
    network.eval()
    dtype = torch.int32 if network.layers[0]["kind"] == "tokens" else network.dtype
    example = torch.zeros((2, *network.layers[0]["shape"]), dtype=dtype, device=network.device)
    program = torch.onnx.export(
        _with_operators(network), (example,), input_names=["input"], output_names=["logits"], opset_version=OPSET, dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False,
    )
    # The exporter writes a stack trace with this machine's paths into every node, which makes a small model twice as large.
    for node in program.model.graph:
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
    program.save(str(path), external_data=False)


def _with_operators(network):
    """A copy whose recurrent layers are ONNX's operators. The exporter by itself traces every step of a sequence, which takes minutes
    where there are hundreds."""
    network = copy.deepcopy(network)
    for name, part in network.parts.items():
        if isinstance(part, (parts.Lstm, parts.Gru)):
            network.parts[name] = Operator(part)
    return network


class Operator(nn.Module):
    """A recurrent layer as ONNX's operator of that name, with its weights in ONNX's layout and order of gates."""

    def __init__(self, part):
        super().__init__()
        self.units, self.return_sequences = part.hidden_size, part.return_sequences
        if isinstance(part, parts.Lstm):
            self.name, gates, self.attributes = "LSTM", (0, 3, 1, 2), {}  # i, o, f, g
        else:
            self.name, gates, self.attributes = "GRU", (1, 0, 2), {"linear_before_reset": 1}  # z, r, h
        self.attributes["hidden_size"] = self.units
        kernel, recurrent_kernel, bias, recurrent_bias = (_ordered(weights.detach(), gates) for weights in part.all_weights[0])
        self.register_buffer("kernel", kernel[None])
        self.register_buffer("recurrent_kernel", recurrent_kernel[None])
        self.register_buffer("bias", torch.cat([bias, recurrent_bias])[None])

    def forward(self, values):
        batch, steps, _ = values.shape
        sequence = torch.onnx.ops.symbolic(
            self.name, (values.transpose(0, 1), self.kernel, self.recurrent_kernel, self.bias), self.attributes,
            dtype=values.dtype, shape=(steps, 1, batch, self.units), version=OPSET,
        )
        return sequence[:, 0].transpose(0, 1) if self.return_sequences else sequence[-1, 0]


def _ordered(weights, gates):
    blocks = weights.chunk(len(gates))
    return torch.cat([blocks[gate] for gate in gates])
