"""Does training through the contract cost more than a hand-written loop of the framework's fastest idiom?

    OMP_NUM_THREADS=1 python benchmarks/training_idiom.py [--pairs 7] [--clock wall] [--architectures lenet5 resnet20] [--json FILE]

The claim: the time of 40 steps (batch 128, Adam, one thread) is at most 1.05 times that of the loop below, median over interleaved pairs,
for both frameworks, LeNet-5 and ResNet-20. The loops below do less than the contract asks: no accuracy, no check of the loss, no remainder.
What happens once per training (building, tracing) is left out of both and printed apart. The clock `cpu` counts this process' seconds
of processor time: on a machine that others use too, the more honest one for a single thread.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from sweep import components
from sweep.layers import resolved

STEPS, BATCH, CLASSES, RATE = 40, 128, 10, 1e-3
SHAPES = {"lenet5": (28, 28, 1), "resnet20": (32, 32, 3)}
TARGET_RATIO = 1.05
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

Epoch = Callable[[], float]  # trains 40 steps, returns the mean loss


def pytorch_loop(architecture: str, images: np.ndarray, labels: np.ndarray) -> Epoch:
    """Eager, channels_last, in-place ReLU."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, channels: int, filters: int, stride: int) -> None:
            super().__init__()
            self.inner = nn.Sequential(
                nn.Conv2d(channels, filters, 3, stride, 1), nn.BatchNorm2d(filters), nn.ReLU(inplace=True),
                nn.Conv2d(filters, filters, 3, 1, 1), nn.BatchNorm2d(filters),
            )
            self.shortcut = nn.Conv2d(channels, filters, 1, stride) if stride > 1 else nn.Identity()
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            return self.relu(self.inner(x) + self.shortcut(x))

    if architecture == "lenet5":
        net = nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(256, 120), nn.ReLU(inplace=True), nn.Linear(120, 84), nn.ReLU(inplace=True), nn.Linear(84, CLASSES),
        )
    else:
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        blocks = [Block(before, after, 1 if before == after else 2) for before, after in zip(widths, widths[1:])]
        net = nn.Sequential(
            nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), *blocks,
            nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, CLASSES),
        )
    net = net.to(memory_format=torch.channels_last)
    x, y = torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)

    def epoch() -> float:
        total, order = torch.zeros(()), torch.randperm(len(x))
        for start in range(0, len(x), BATCH):
            batch = order[start:start + BATCH]
            loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return total.item() / STEPS

    return epoch


def tensorflow_loop(architecture: str, images: np.ndarray, labels: np.ndarray) -> Epoch:
    """Plain operators, fused batch norm, fused Adam, the whole epoch in one tf.function."""
    import tensorflow as tf

    variables: list[Any] = []

    def variable(*shape: int) -> Any:
        scale = np.sqrt(2 / np.prod(shape[:-1])) if len(shape) > 1 else 0
        variables.append(tf.Variable(tf.random.stateless_normal(shape, [len(variables), 0], stddev=scale)))
        return variables[-1]

    def conv(channels: int, filters: int, size: int, stride: int = 1, padding: str = "SAME") -> Callable[[Any], Any]:
        kernel, bias = variable(size, size, channels, filters), variable(filters)
        return lambda x: tf.nn.bias_add(tf.nn.conv2d(x, kernel, stride, padding), bias)

    def dense(inputs: int, units: int) -> Callable[[Any], Any]:
        kernel, bias = variable(inputs, units), variable(units)
        return lambda x: tf.nn.bias_add(tf.matmul(x, kernel), bias)

    def norm(channels: int) -> Callable[[Any], Any]:
        gamma, beta = variable(channels), variable(channels)
        means, spreads = tf.Variable(tf.zeros(channels)), tf.Variable(tf.ones(channels))
        gamma.assign(tf.ones(channels))

        def apply(x: Any) -> Any:
            y, mean, spread = tf.compat.v1.nn.fused_batch_norm(x, gamma, beta)
            means.assign(means * 0.99 + mean * 0.01)
            spreads.assign(spreads * 0.99 + spread * 0.01)
            return y

        return apply

    def block(channels: int, filters: int) -> Callable[[Any], Any]:
        stride = 1 if channels == filters else 2
        first, norm1, second, norm2 = conv(channels, filters, 3, stride), norm(filters), conv(filters, filters, 3), norm(filters)
        shortcut = conv(channels, filters, 1, stride) if stride > 1 else lambda x: x
        return lambda x: tf.nn.relu(norm2(second(tf.nn.relu(norm1(first(x))))) + shortcut(x))

    def pool(x: Any) -> Any:
        return tf.nn.max_pool2d(x, 2, 2, "VALID")

    if architecture == "lenet5":
        layers = [
            conv(1, 6, 5, padding="VALID"), tf.nn.relu, pool, conv(6, 16, 5, padding="VALID"), tf.nn.relu, pool,
            lambda x: tf.reshape(x, [-1, 256]), dense(256, 120), tf.nn.relu, dense(120, 84), tf.nn.relu, dense(84, CLASSES),
        ]
    else:
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        layers = [conv(3, 16, 3), norm(16), tf.nn.relu, *(block(before, after) for before, after in zip(widths, widths[1:]))]
        layers += [lambda x: tf.reshape(tf.nn.avg_pool2d(x, 8, 8, "VALID"), [-1, 64]), dense(64, CLASSES)]
    moments = [(tf.Variable(tf.zeros_like(of)), tf.Variable(tf.zeros_like(of))) for of in variables]
    powers = [tf.Variable(1.0), tf.Variable(1.0)]

    @tf.function
    def run(x: Any, y: Any, order: Any) -> Any:
        total = tf.zeros(())
        for step in tf.range(STEPS):
            batch = tf.slice(order, [step * BATCH], [BATCH])
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                values = tf.gather(x, batch)
                for layer in layers:
                    values = layer(values)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.gather(y, batch), values))
            power1, power2 = powers[0].assign(powers[0] * 0.9), powers[1].assign(powers[1] * 0.999)
            for of, (first, second), gradient in zip(variables, moments, tape.gradient(loss, variables)):
                tf.raw_ops.ResourceApplyAdam(
                    var=of.handle, m=first.handle, v=second.handle, beta1_power=power1, beta2_power=power2, lr=RATE, beta1=0.9, beta2=0.999,
                    epsilon=1e-7, grad=gradient,
                )
            total += loss
        return total

    x, y, shuffle = tf.constant(images), tf.constant(labels), tf.random.Generator.from_seed(0)
    return lambda: run(x, y, tf.argsort(shuffle.uniform([len(images)]))).numpy().item() / STEPS


LOOPS = {"pytorch": pytorch_loop, "tensorflow": tensorflow_loop}


def contract_epochs(name: str, architecture: str, images: np.ndarray, labels: np.ndarray, epochs: int) -> Epoch:
    """The same work through the contract; one call is one epoch of one training."""
    framework = components.load("frameworks", name)
    neutral = components.load("architectures", architecture).layers(SHAPES[architecture], CLASSES)
    layers = resolved(neutral, "matched", framework.FACTS["own"])
    plan = {
        "optimizer": "adam", "learning_rate": RATE, "momentum": 0.0, "epsilon": None, "l2": 0.0, "batch_size": BATCH, "epochs": epochs,
        "decay": [], "recipe": "matched", "seed": 0,
    }
    reports = framework.train(framework.build(layers, "matched", 0), images, labels, plan, None)
    return lambda: next(reports).loss


def seconds(epoch: Epoch, clock: Callable[[], float]) -> float:
    started = clock()
    epoch()
    return clock() - started


def compare(name: str, architecture: str, pairs: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Median ratio of contract to loop over interleaved pairs, whose order alternates, with its bootstrap interval."""
    random = np.random.RandomState(0)
    images = random.rand(STEPS * BATCH, *SHAPES[architecture]).astype(np.float32)
    labels = random.randint(0, CLASSES, len(images))
    contract, loop = contract_epochs(name, architecture, images, labels, pairs + 1), LOOPS[name](architecture, images, labels)
    first = {"contract": seconds(contract, clock), "loop": seconds(loop, clock)}
    times: dict[str, list[float]] = {"contract": [], "loop": []}
    for pair in range(pairs):
        for side, epoch in [("contract", contract), ("loop", loop)][:: 1 if pair % 2 else -1]:
            times[side].append(seconds(epoch, clock))
    ratios = np.array(times["contract"]) / np.array(times["loop"])
    resampled = np.median(random.choice(ratios, (10_000, pairs)), axis=1)
    return {
        "framework": name, "architecture": architecture, "pairs": pairs, "steps": STEPS, "batch": BATCH,
        "ratio": float(np.median(ratios)), "ratio_95": [float(edge) for edge in np.percentile(resampled, [2.5, 97.5])],
        "contract_s": float(np.median(times["contract"])), "loop_s": float(np.median(times["loop"])),
        "first_epoch_s": first,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", nargs="+", choices=sorted(LOOPS), default=sorted(LOOPS))
    parser.add_argument("--architectures", nargs="+", choices=sorted(SHAPES), default=sorted(SHAPES))
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    for name in options.frameworks:
        components.load("frameworks", name).configure(1)
        for architecture in options.architectures:
            results.append(compare(name, architecture, options.pairs, CLOCKS[options.clock]))
            row, first = results[-1], results[-1]["first_epoch_s"]
            interval = "[{:.3f}, {:.3f}]".format(*row["ratio_95"])
            print(f"{name:10} {architecture:9} ratio {row['ratio']:.3f} {interval}  contract {row['contract_s']:.2f} s, "
                  f"loop {row['loop_s']:.2f} s, first epochs {first['contract']:.1f} and {first['loop']:.1f} s", flush=True)
    if options.json:
        machine = {"machine": platform.processor() or platform.machine(), "load": os.getloadavg(), "clock": options.clock}
        options.json.write_text(json.dumps(dict(machine, results=results), indent=1))
    return int(any(row["ratio"] > TARGET_RATIO for row in results))


if __name__ == "__main__":
    sys.exit(main())
