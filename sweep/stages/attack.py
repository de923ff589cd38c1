"""Attacks: one worker holds the Adversarial Robustness Toolbox, others the models, joined by the border."""

import os
import time
from contextlib import ExitStack
from multiprocessing.connection import Client, Listener

import numpy as np

from sweep.inputs import read_inputs, read_labels
from sweep.stages.models import load_model, open_deployed, open_framework
from sweep.worker import wire

CONNECT_SECONDS = 120.0


def serve_source(settings, model, address, key):
    """A framework's own model: answer calls for logits and gradients until the attacker closes. Returns how many there were."""
    framework = open_framework(settings)
    held, _details = load_model(framework, model)
    return _serve(address, key, {
        "predict": lambda x: framework.predict(held, x),
        "loss_gradient": lambda x, y: framework.loss_gradient(held, x, y),
        "class_gradient": lambda x, *classes: framework.class_gradient(held, x, *classes),
    })


def serve_deployed(settings, model, address, key):
    """The same of a deployed model, which has logits alone; also what really ran."""
    session, runtime, batch = open_deployed(settings, model)
    return dict(_serve(address, key, {"predict": lambda x: runtime.predict(session, x, batch)}), runs=runtime.describe(session))


def _serve(address, key, answers):
    calls = 0
    with Listener(address, "AF_UNIX", authkey=bytes.fromhex(key)) as listener:
        listener._listener._socket.settimeout(CONNECT_SECONDS)  # accept() takes no time-out
        with listener.accept() as connection:
            while True:
                try:
                    verb, arrays = wire.receive(connection)
                except EOFError:
                    return {"calls": calls}
                calls += 1
                wire.send(connection, None, [answers[verb](*arrays)])


def craft(settings, data, models, key, out):
    """The attacker's side: write `adversarial.npz` with index (into the test images), label, clean and adversarial images, logits on both.

    `models` has for each verb the address of the model that answers it; one without gradients is a black box. Returns seconds, queries
    per image, `repeat_difference`, how far logits of the same images are from those a moment before, as a share of the largest, and
    `zero_gradients`, for how many of the images that the model gets right the gradient of the loss is nothing but zeros (None for a black
    box).
    """
    from sweep import crafting, estimator  # late: the models' side does without ART

    chosen = np.load(data["splits"], allow_pickle=False)["attack"][: settings["examples"]]
    clean, labels = read_inputs(data["folder"], "test", chosen), read_labels(data["folder"], "test", chosen)
    with ExitStack() as stack:
        joined = {address: stack.enter_context(_connected(address, bytes.fromhex(key))) for address in sorted(set(models.values()))}

        def call(verb, *arrays):
            connection = joined[models[verb]]
            wire.send(connection, verb, arrays)
            return wire.receive(connection)[1][0]

        gradients = {
            "loss_gradient": lambda x, y: call("loss_gradient", x, y),
            "class_gradient": lambda x, of=None: call("class_gradient", x) if of is None else call("class_gradient", x, of),
        }
        before = call("predict", clean)
        given = {verb: gradients[verb] for verb in models if verb in gradients}
        target = estimator.wrap(lambda x: call("predict", x), clean.shape[1:], before.shape[1], **given)
        repeat_difference = float(np.abs(call("predict", clean) - before).max() / np.abs(before).max())
        right, zeros = before.argmax(axis=1) == labels, None
        if "loss_gradient" in models and right.any():
            zeros = int((~call("loss_gradient", clean[right], labels[right]).reshape(int(right.sum()), -1).any(axis=1)).sum())
        started = time.perf_counter()
        adversarial = crafting.craft(settings["attack"], settings["attack_settings"], target, clean, labels, before)
        seconds = time.perf_counter() - started
        after = call("predict", adversarial)
    np.savez(
        os.path.join(out, "adversarial.npz"), index=chosen, label=labels, clean=clean, adversarial=adversarial, before=before, after=after,
    )
    return {
        "seconds": seconds, "queries": sum(target.queries) / len(chosen), "repeat_difference": repeat_difference, "zero_gradients": zeros,
        "right": int(right.sum()),
    }


def _connected(address, key):
    """The connection, once the model's side listens."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return Client(address, family="AF_UNIX", authkey=key)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
