"""The Node process of a session, and the frames that it is spoken to in; `_tfjs_process.js` is the other side.

A frame is the length of its header (4 bytes, little-endian), the header in JSON, and the raw bytes of the arrays that header["arrays"]
lists as {"dtype", "shape"}: no number of an array goes through text.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import tempfile
import weakref

import numpy as np

_PROGRAM = os.path.splitext(__file__)[0] + ".js"
_TYPES = {"float32": np.float32, "int32": np.int32, "bool": np.bool_}
_LENGTH = struct.Struct("<I")
_LARGEST_HEADER = 64 << 20
_END_SECONDS = 5.0


class Process:
    """A started process; it ends with this object, or with this interpreter however that ends, since its socket closes then.

    `node` is the program, `prefix` the folder whose node_modules has TensorFlow.js.
    """

    def __init__(self, node, prefix, backend):
        ours, theirs = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  what it prints, open for as long as it lives
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NODE_")}
        with theirs:
            self._program = subprocess.Popen(
                [str(node), _PROGRAM, str(theirs.fileno()), str(prefix), backend], stdin=subprocess.DEVNULL, stdout=self._said,
                stderr=self._said, pass_fds=[theirs.fileno()], env=environment,
            )
        self._socket = ours
        self.pid = self._program.pid
        self.close = weakref.finalize(self, _end, self._program, ours, self._said)

    def ask(self, verb, arrays=(), **request):
        """The header of what the process answers, and its arrays. Raises ValueError where it refuses, RuntimeError where it has ended."""
        arrays = [np.ascontiguousarray(array) for array in arrays]
        try:
            self._send(dict(request, verb=verb, arrays=[{"dtype": str(a.dtype), "shape": list(a.shape)} for a in arrays]), arrays)
            header = json.loads(self._receive(self._length()).decode("utf-8"))
            answer = [self._array(**described) for described in header.pop("arrays")]
        except (EOFError, OSError):
            raise RuntimeError(self._how_it_ended()) from None
        if "error" in header:
            raise ValueError(" ".join(header["error"].split()))
        return header, answer

    def _send(self, header, arrays):
        text = json.dumps(header).encode("utf-8")
        self._socket.sendall(_LENGTH.pack(len(text)) + text)
        for array in arrays:
            self._socket.sendall(array)

    def _length(self):
        (length,) = _LENGTH.unpack(self._receive(_LENGTH.size))
        if length > _LARGEST_HEADER:
            raise RuntimeError("the Node process announces a header of {} bytes".format(length))
        return length

    def _array(self, dtype, shape):
        array = np.empty(shape, _TYPES[dtype])
        self._fill(array.reshape(-1).view(np.uint8))
        return array

    def _receive(self, length):
        received = bytearray(length)
        self._fill(received)
        return received

    def _fill(self, buffer):
        view, at = memoryview(buffer), 0
        while at < len(view):
            count = self._socket.recv_into(view[at:])
            if not count:
                raise EOFError
            at += count

    def _how_it_ended(self):
        try:
            status = self._program.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._program.kill()
            return "the Node process closed its socket and went on"
        self._said.seek(0)
        lines = [line for line in self._said.read().decode("utf-8", "replace").splitlines() if line.strip()]
        how = "by " + signal.Signals(-status).name if status < 0 else "with status {}".format(status)
        telling = next((line for line in lines if "rror" in line), lines[-1] if lines else "")
        return " ".join("the Node process ended {}{}".format(how, ": " + telling if telling else "").split())


def _end(program, ours, said):
    ours.close()
    try:
        program.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
    said.close()
