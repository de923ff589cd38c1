"""The first steps of a training, one by one: the same weights, the same batches, what each step made of them."""

import os
import zlib

import numpy as np

from sweep import initial, layers
from sweep.stages.models import open_framework
from sweep.stages.train import check_processor, initialised, training_part

SAMPLED = 4096
"""At most so many entries of a parameter are kept, the same ones in every framework."""


def run(settings, data, out):
    """Write `trace.npz`: `losses` float64 (steps,); `gradient/PARAMETER` before the first step; and for each step of `steps`
    `weights/STEP/PARAMETER` after it. All by canonical name, sampled alike. The starting weights and the batches are `initial`'s."""
    framework = open_framework(settings)
    check_processor(framework, settings)
    inputs, labels = training_part(settings, data)
    network = layers.resolved(settings["layers"], "identical", framework.FACTS["own"])
    steps = settings["steps"]
    plan = dict(settings["plan"], recipe="identical", epochs=steps, decay=[])
    model = initialised(framework, network, plan, settings["control"], settings["draw"])
    batches = batches_of(len(inputs), steps, plan["batch_size"], plan["seed"])
    gradients = framework.weight_gradients(model, inputs[batches[0]], labels[batches[0]])
    found = {"gradient/" + name: sampled(name, array) for name, array in gradients.items()}
    losses, kept = [], kept_steps(steps)
    for report in framework.train(model, inputs, labels, plan, batches):  # an epoch of one batch is a step
        losses.append(report.loss)
        if len(losses) in kept:
            for name, array in framework.get_weights(model).items():
                found["weights/{}/{}".format(len(losses), name)] = sampled(name, array)
    np.savez(os.path.join(out, "trace.npz"), losses=np.array(losses, np.float64), steps=np.array(kept), **found)
    return {"metrics": {"traced_steps": steps}}


def batches_of(examples, steps, batch_size, seed):
    """Which examples each step takes: int32 (steps, batch), epoch after epoch of `initial.permutations` without their remainders."""
    size = min(batch_size, examples)
    each = examples // size
    orders = initial.permutations(examples, -(-steps // each), seed)
    return np.ascontiguousarray(orders[:, : each * size].reshape(-1, size)[:steps])


def kept_steps(steps):
    """The steps after which weights are kept: 1, 2, 3, 5, 8, ... and the last."""
    kept, following = [], (1, 2)
    while following[0] < steps:
        kept.append(following[0])
        following = (following[1], sum(following))
    return kept + [steps]


def sampled(name, array):
    """Up to SAMPLED entries of a parameter, flat, at places that follow from its name and size alone."""
    flat = np.asarray(array).ravel()
    if flat.size <= SAMPLED:
        return flat
    return flat[np.random.RandomState(zlib.crc32(name.encode()) & 0xFFFFFFFF).randint(0, flat.size, SAMPLED)]
