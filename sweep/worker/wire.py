"""Messages across the border: one JSON header frame, then one raw frame per array. Never a pickle.

Both ends are `multiprocessing.connection.Connection`s over a Unix socket, from Python 3.6 on.
"""

import json
from multiprocessing import BufferTooShort

import numpy as np

MAX_FRAME_BYTES = 1 << 31


def send(connection, header, arrays=()):
    """Send a JSON-able header and arrays, which arrive in C order with their dtype and shape.

    Raises TypeError or ValueError, and has sent nothing, where the header is not JSON or an array holds objects.
    """
    arrays = [np.asarray(array, order="C") for array in arrays]
    for array in arrays:
        _refuse_objects(array.dtype)
    frames = [{"dtype": array.dtype.str, "shape": array.shape} for array in arrays]
    connection.send_bytes(json.dumps({"header": header, "arrays": frames}).encode())
    for array in arrays:
        connection.send_bytes(_bytes_of(array) if array.size else b"")


def receive(connection):
    """The header and the arrays of the next message. Raises EOFError when the other side is gone, ValueError for a malformed message."""
    message = json.loads(connection.recv_bytes(MAX_FRAME_BYTES).decode())
    return message["header"], [_array(connection, frame) for frame in message["arrays"]]


def _array(connection, frame):
    dtype = np.dtype(frame["dtype"])
    _refuse_objects(dtype)
    array = np.empty(frame["shape"], dtype)
    if not array.size:
        connection.recv_bytes(MAX_FRAME_BYTES)
        return array
    try:
        received = connection.recv_bytes_into(_bytes_of(array))
    except BufferTooShort:
        raise ValueError("an array of {} bytes came as more".format(array.nbytes)) from None
    if received != array.nbytes:
        raise ValueError("an array of {} bytes came as {}".format(array.nbytes, received))
    return array


def _refuse_objects(dtype):
    if dtype.hasobject:
        raise ValueError("arrays of objects do not cross the border")


def _bytes_of(array):
    """The memory of a contiguous array, of any dtype and shape but an empty one."""
    return array.reshape(-1).view(np.uint8).data
