"""A white-box attack: one worker holds the Adversarial Robustness Toolbox, another the framework's model, joined by the border."""

import os
import time
from multiprocessing.connection import Client, Listener

import numpy as np

from sweep.inputs import read_inputs, read_labels
from sweep.stages.models import load_model, open_framework
from sweep.worker import wire

CONNECT_SECONDS = 120.0


def serve(settings, model, address, key):
    """The model's side: answer calls for logits and gradients until the attacker closes. Returns how many there were."""
    framework = open_framework(settings)
    held, _details = load_model(framework, model)
    answers = {
        "predict": lambda x: framework.predict(held, x),
        "loss_gradient": lambda x, y: framework.loss_gradient(held, x, y),
        "class_gradient": lambda x, *classes: framework.class_gradient(held, x, *classes),
    }
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


def craft(settings, data, address, key, out):
    """The attacker's side: write `adversarial.npz` with index (into the test images), label, clean and adversarial images, logits on both.

    Every image of the list is attacked, those that the model gets wrong included.
    """
    from sweep import crafting, estimator  # late: the model's side does without ART

    chosen = np.load(data["splits"], allow_pickle=False)["attack"][: settings["examples"]]
    clean, labels = read_inputs(data["folder"], "test", chosen), read_labels(data["folder"], "test", chosen)
    with _connected(address, bytes.fromhex(key)) as connection:

        def call(verb, *arrays):
            wire.send(connection, verb, arrays)
            return wire.receive(connection)[1][0]

        before = call("predict", clean)
        target = estimator.wrap(
            lambda x: call("predict", x),
            clean.shape[1:],
            before.shape[1],
            loss_gradient=lambda x, y: call("loss_gradient", x, y),
            class_gradient=lambda x, of=None: call("class_gradient", x) if of is None else call("class_gradient", x, of),
        )
        started = time.perf_counter()
        adversarial = crafting.craft(settings["attack"], settings["attack_settings"], target, clean, labels, before)
        seconds = time.perf_counter() - started
        after = call("predict", adversarial)
    np.savez(
        os.path.join(out, "adversarial.npz"), index=chosen, label=labels, clean=clean, adversarial=adversarial, before=before, after=after,
    )
    return {"metrics": {"attack_seconds": seconds}, "queries": sum(target.queries) / len(chosen)}


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
