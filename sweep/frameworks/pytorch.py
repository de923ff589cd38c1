"""PyTorch, eager, as a training framework."""

import importlib.util
import os
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from sweep.epoch import EpochReport
from sweep.frameworks import _pytorch_network as network
from sweep.frameworks import _pytorch_onnx, _training
from sweep.frameworks import _pytorch_operators as operators
from sweep.frameworks._pytorch_parts import channels_last, inner

_ONNX = importlib.util.find_spec("onnxscript") is not None
_TFLITE = importlib.util.find_spec("litert_torch") is not None

FACTS = {
    "distribution": "torch",
    "converters": ["onnx", "onnxscript"] * _ONNX + ["litert-torch"] * _TFLITE,
    "exports": ["native"] + ["onnx"] * _ONNX + ["tflite"] * _TFLITE,
    "layers": list(network.KINDS),
    "operators": operators.FAMILIES,
    "operators_together": 32,
    "own": {
        "batch_norm": {"epsilon": 1e-5, "momentum": 0.9},  # PyTorch counts the new share, 0.1
        "lstm": {"recurrent_activation": "sigmoid"},
        "gru": {"recurrent_activation": "sigmoid", "reset_after": True},
    },
    "variants": {
        "lstm": {"recurrent_activation": ["sigmoid"]},
        "gru": {"recurrent_activation": ["sigmoid"], "reset_after": [True]},
    },
    "optimizers": ["sgd", "adam"],
    "gradients": ["loss", "class"],
    "float64": True,
    "processors": ["cpu", "gpu"] if torch.version.cuda or torch.version.hip else ["cpu"],
    "options": {},
}

_CHUNK = 256  # images per pass where a caller states no batch size; bounds the memory
_OWN_ADAM_EPSILON = 1e-8


def configure(threads):
    """Threads, deterministic kernels and full float32 arithmetic (no TF32), for this process."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with a fixed workspace
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid that writes every new tensor twice
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def build(layers, recipe, seed, dtype="float32"):
    return network.build(layers, recipe, seed, dtype).to(_device())


def processor():
    return "gpu" if torch.cuda.is_available() else "cpu"


def _device():
    return torch.device("cuda" if processor() == "gpu" else "cpu")


count_parameters = network.count_parameters
get_weights = network.get_weights
set_weights = network.set_weights
run_operator = operators.run
export_operators = operators.export


def train(model, images, labels, plan, permutations):
    """The contract's generator; the loss is the cross-entropy, the l2 term acts through the optimizer's weight decay and isn't in it."""
    _training.check(plan, FACTS["optimizers"], images, labels, permutations)
    images, labels = _tensor(images, model.device), _tensor(labels, model.device)
    examples = len(images) if permutations is None else len(permutations[0])
    batch_size = plan["batch_size"]
    shuffle = torch.Generator().manual_seed(plan["seed"])
    optimizer = _optimizer(model, plan)
    model.use_biased_statistics(plan["recipe"] != "defaults")
    for epoch in range(plan["epochs"]):
        if permutations is None:
            order = torch.randperm(examples, generator=shuffle).to(model.device)
        else:
            order = _tensor(permutations[epoch].astype(np.int64), model.device)
        for group in optimizer.param_groups:
            group["lr"] = _training.learning_rate(plan, epoch)
        # Sums stay on the device: reading them every step would make a GPU wait.
        loss_sum = torch.zeros((), dtype=torch.float64, device=model.device)
        hits = torch.zeros((), dtype=torch.int64, device=model.device)
        model.train()
        for start in range(0, examples, batch_size):
            batch = order[start:start + batch_size]
            truth = labels.index_select(0, batch)
            logits = model(model.cast(images.index_select(0, batch)))
            loss = functional.cross_entropy(logits, truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum.add_(loss.detach(), alpha=len(batch))
            hits.add_((logits.detach().argmax(1) == truth).sum())
        yield EpochReport(_training.finite(loss_sum.item() / examples, epoch), hits.item() / examples)


def _optimizer(model, plan):
    kernels = [model.parts[name.rpartition("/")[0]].weight for name in _training.penalised(model.layers)]
    penalised = {id(kernel) for kernel in kernels}
    others = [parameter for parameter in model.parameters() if parameter.requires_grad and id(parameter) not in penalised]
    # Weight decay adds decay x kernel to the gradient, which is that of decay / 2 x the sum of squares.
    groups = [{"params": kernels, "weight_decay": 2 * plan["l2"]}, {"params": others, "weight_decay": 0.0}]
    if plan["optimizer"] == "sgd":
        return torch.optim.SGD(groups, lr=plan["learning_rate"], momentum=plan["momentum"])
    epsilon = _training.adam_epsilon(plan, _OWN_ADAM_EPSILON)
    return torch.optim.Adam(groups, lr=plan["learning_rate"], betas=_training.ADAM_BETAS, eps=epsilon)


def _tensor(array, device):
    with warnings.catch_warnings():
        # Memory-mapped inputs are read-only, and nothing here writes to them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _chunks(model, images, size):
    model.eval()
    for start in range(0, len(images), size):
        yield model.cast(_tensor(images[start:start + size], model.device))


def weight_gradients(model, images, labels):
    images, labels = model.cast(_tensor(images, model.device)), _tensor(labels, model.device)
    return network.weight_gradients(model, lambda logits_of: functional.cross_entropy(logits_of(images), labels))


@torch.inference_mode()
def predict(model, images, batch_size=256):
    return _joined([model(part) for part in _chunks(model, images, batch_size)])


def loss_gradient(model, images, labels):
    labels, gradients, done = _tensor(labels, model.device), [], 0
    for part in _chunks(model, images, _CHUNK):
        part.requires_grad_(True)
        loss = functional.cross_entropy(model(part), labels[done:done + len(part)], reduction="sum")
        gradients += torch.autograd.grad(loss, part)
        done += len(part)
    return _joined(gradients)


def class_gradient(model, images, classes=None):
    gradients, done = [], 0
    for part in _chunks(model, images, _CHUNK):
        part.requires_grad_(True)
        logits = model(part)
        if classes is None:
            # Examples don't meet in inference mode, so the gradient of a class's sum holds each example's own.
            each = [torch.autograd.grad(column.sum(), part, retain_graph=True)[0] for column in logits.unbind(1)]
            gradients.append(torch.stack(each, 1))
        else:
            wanted = _tensor(classes[done:done + len(part)], model.device)
            gradients += torch.autograd.grad(logits.gather(1, wanted[:, None]).sum(), part)
        done += len(part)
    return _joined(gradients)


@torch.inference_mode()
def layer_outputs(model, images):
    parts = [model.outputs(part) for part in _chunks(model, images, _CHUNK)]
    return {layer["name"]: _joined([channels_last(part[layer["name"]]) for part in parts]) for layer in model.layers}


@torch.inference_mode()
def run_layer(model, name, inputs):
    model.eval()
    given = [_tensor(array, model.device) for array in inputs]
    given = [values.to(model.dtype) if values.is_floating_point() else values for values in given]
    return _joined([channels_last(model.parts[name](*map(inner, given)))])


def _joined(tensors):
    return (tensors[0] if len(tensors) == 1 else torch.cat(tensors)).contiguous().cpu().numpy()


def save(model, folder):
    torch.save(model.state_dict(), Path(folder) / "model.pt")
    return "model.pt"


def load(path, layers):
    """The network for inference and gradients. The file is read with weights_only: it can't run code."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    dtype = str(next(iter(state.values())).dtype).rpartition(".")[2]
    model = network.build(layers, "defaults", 0, dtype)
    model.load_state_dict(state)
    return model.to(_device())


def export(model, layers, target, folder):
    """Raises ValueError for a target that is none of FACTS["exports"]."""
    if target == "native":
        return save(model, folder)
    if target == "onnx" and _ONNX:
        _pytorch_onnx.export(model, Path(folder) / "model.onnx")
        return "model.onnx"
    if target == "tflite" and _TFLITE:
        from sweep.frameworks import _pytorch_litert

        _pytorch_litert.export(model, Path(folder) / "model.tflite")
        return "model.tflite"
    raise ValueError("no export to {!r}; there are {}".format(target, ", ".join(FACTS["exports"])))
