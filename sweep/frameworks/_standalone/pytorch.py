import torch

DISTRIBUTION = "torch"


def run(path, inputs, _options):
    module = torch.export.load(str(path)).module()
    with torch.inference_mode():
        return module(torch.from_numpy(inputs)).contiguous().numpy()
