"""A model that answers calls of another worker, and the other end of that."""

import time
from contextlib import contextmanager
from multiprocessing.connection import Client, Listener

from sweep.stages.models import load_model, open_deployed, open_framework
from sweep.worker import wire

CONNECT_SECONDS = 120.0


def source(settings, model, address, key):
    """A framework's own model: answer calls for logits and gradients until the other end closes. Returns how many there were."""
    framework = open_framework(settings)
    held, _details = load_model(framework, model)
    return _serve(address, key, {
        "predict": lambda x: framework.predict(held, x),
        "loss_gradient": lambda x, y: framework.loss_gradient(held, x, y),
        "class_gradient": lambda x, *classes: framework.class_gradient(held, x, *classes),
    })


def deployed(settings, model, address, key):
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


@contextmanager
def asking(address, key):
    """What calls a verb of the model at an address with arrays, once it listens, and returns its array."""
    with _connected(address, bytes.fromhex(key)) as connection:

        def call(verb, *arrays):
            wire.send(connection, verb, arrays)
            return wire.receive(connection)[1][0]

        yield call


def _connected(address, key):
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return Client(address, family="AF_UNIX", authkey=key)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
