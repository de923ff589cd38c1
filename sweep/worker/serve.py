"""A worker: `python -m sweep.worker.serve SOCKET` connects to its owner and runs the requests it is sent, until the socket closes.

The key that authenticates it comes by the environment and is removed from there. Standard output and error go to the log of the
request that runs, at the level of file descriptors, so that what native libraries print is kept with the stage that made them print.
"""

import importlib
import os
import sys
import traceback
from multiprocessing.connection import Client

from sweep.worker import wire

KEY_VARIABLE = "SWEEP_WORKER_KEY"


def main(address):
    key = bytes.fromhex(os.environ.pop(KEY_VARIABLE))
    connection = Client(address, family="AF_UNIX", authkey=key)
    wire.send(connection, {"pid": os.getpid()})
    while True:
        try:
            request, arrays = wire.receive(connection)
        except EOFError:
            return
        with redirected(request["log"]):
            header, answer = respond(request, arrays)
        try:
            wire.send(connection, header, answer)
        except (TypeError, ValueError) as error:  # what the function returned is not for the border; nothing was sent
            wire.send(connection, failure(error))


def respond(request, arrays):
    """Run `module:function` with its arguments; a raised exception becomes an answer with its type, message and traceback."""
    try:
        module, function = request["call"].split(":")
        if not module.startswith("sweep."):
            raise ValueError("a worker runs functions of sweep alone, not " + module)
        outcome = getattr(importlib.import_module(module), function)(*arrays, **request["arguments"])
        value, returned = outcome if isinstance(outcome, tuple) else (outcome, ())
        return {"value": value}, returned
    except (Exception, SystemExit) as error:  # the border: whatever a stage raises is its result
        traceback.print_exc()
        return failure(error), ()


def failure(error):
    """The header that tells of the exception that is being handled."""
    return {"error": {"type": type(error).__name__, "message": one_line(error), "traceback": traceback.format_exc()}}


def one_line(error):
    """An exception's message on one line of at most 400 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 400 else text[:397] + "..."


class redirected:
    """Standard output and error into a file, for as long as the block lasts."""

    def __init__(self, path):
        self._path = path

    def __enter__(self):
        self._flush()
        self._saved = [os.dup(1), os.dup(2)]
        log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)

    def __exit__(self, *_exception):
        self._flush()
        for descriptor, saved in zip((1, 2), self._saved):
            os.dup2(saved, descriptor)
            os.close(saved)

    @staticmethod
    def _flush():
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    main(sys.argv[1])
