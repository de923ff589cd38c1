"""Export of a PyTorch network to TFLite, by litert-torch."""

import copy

import litert_torch
import torch


def export(network, path):
    """Write the network for one input at a time: the converter has no reshape for a free batch. It unrolls recurrent layers.

    Raises ValueError, one line, where it can't.
    """
    # The converter takes weights for one and the same where their contiguous copies had the same address, one after the other.
    network = copy.deepcopy(network).cpu().to(memory_format=torch.contiguous_format).eval()
    dtype = torch.int32 if network.layers[0]["kind"] == "tokens" else network.dtype
    try:
        converted = litert_torch.convert(network, (torch.zeros((1, *network.layers[0]["shape"]), dtype=dtype),))
    except Exception as error:  # the converter's exceptions have no common root
        raise ValueError(str(error).strip().partition("\n")[0]) from error
    converted.export(str(path))
