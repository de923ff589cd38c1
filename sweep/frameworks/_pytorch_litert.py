"""Export to TFLite, by litert-torch."""

import copy

import litert_torch
import torch


def export(network, path):
    """Write a network."""
    dtype = torch.int32 if network.layers[0]["kind"] == "tokens" else network.dtype
    path.write_bytes(content(network, torch.zeros((1, *network.layers[0]["shape"]), dtype=dtype)))


def content(module, example):
    """The content of the file of a module, for one input at a time as the example is: the converter has no reshape for a free batch.
    It unrolls recurrent layers.

    Raises ValueError, one line, where it can't.
    """
    # The converter takes weights for one and the same where their contiguous copies had the same address, one after the other.
    module = copy.deepcopy(module).cpu().to(memory_format=torch.contiguous_format).eval()
    try:
        return litert_torch.convert(module, (example,)).model_content()
    except Exception as error:  # the converter's exceptions have no common root
        raise ValueError(str(error).strip().partition("\n")[0]) from error
