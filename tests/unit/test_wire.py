"""What crosses the border arrives as it was sent, and what must not cross is refused."""

import json
import threading
from multiprocessing import Pipe

import numpy as np
import pytest

from sweep.worker import wire


@pytest.fixture
def ends():
    one, other = Pipe()
    yield one, other
    one.close()
    other.close()


def crossed(ends, header, arrays=()):
    sender = threading.Thread(target=wire.send, args=(ends[0], header, arrays))
    sender.start()
    received = wire.receive(ends[1])
    sender.join()
    return received


GRID = np.arange(24).reshape(2, 3, 4)


@pytest.mark.parametrize("array", [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array([1.5, -0.0, np.inf, np.nan], np.float64),
    np.array([0.1, 65504], np.float16),
    np.array([-128, 127], np.int8),
    np.array([0, 255], np.uint8),
    np.array([2**62], np.int64),
    np.array([True, False]),
    np.array([1 + 2j], np.complex64),
    np.array([1, 2], ">i4"),
    np.array(["é", "abc"]),
    np.float32(3.5),
    np.array(7),
    np.empty((0,), np.float32),
    np.empty((3, 0, 2), np.int64),
    np.zeros((1, 1, 1, 1), np.float32),
    GRID[:, ::2, ::-1],
    GRID.T,
    np.asfortranarray(GRID.astype(np.float32)),
    np.broadcast_to(np.float32(2), (2, 3)),
], ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays(ends, array):
    header, (arrived,) = crossed(ends, None, [array])
    assert header is None
    assert (arrived.dtype, arrived.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(arrived, array)
    assert arrived.flags.c_contiguous
    assert arrived.flags.writeable


def test_several_arrays_and_a_header(ends):
    header = {"a": [1, 2.5, None, "ü"], "b": {"c": True}}
    arrays = [np.zeros(3), np.empty((0, 2)), np.ones((2, 2), np.int8)]
    arrived_header, arrived = crossed(ends, header, arrays)
    assert arrived_header == header
    assert [(a.dtype, a.shape) for a in arrived] == [(a.dtype, a.shape) for a in arrays]


def test_an_array_of_many_megabytes(ends):
    array = np.random.RandomState(0).bytes(20 << 20)
    (arrived,) = crossed(ends, {}, [np.frombuffer(array, np.uint8)])[1]
    assert arrived.tobytes() == array


@pytest.mark.parametrize("array", [np.array([{}, 1], object), np.array([(1, None)], dtype=[("a", int), ("b", object)])])
def test_objects_do_not_cross(ends, array):
    with pytest.raises(ValueError, match="objects do not cross"):
        wire.send(ends[0], {}, [np.zeros(2), array])
    assert not ends[1].poll()  # not even the header


def test_a_header_that_is_not_json(ends):
    with pytest.raises(TypeError):
        wire.send(ends[0], {"a": {1, 2}})
    assert not ends[1].poll()


def frames(ends, *parts):
    for part in parts:
        ends[0].send_bytes(part)


def announced(dtype, shape):
    return json.dumps({"header": 1, "arrays": [{"dtype": dtype, "shape": shape}]}).encode()


def test_messages_that_are_cut_short(ends):
    frames(ends, announced("<f4", [3]), b"\0" * 8)
    with pytest.raises(ValueError, match="an array of 12 bytes came as 8"):
        wire.receive(ends[1])


def test_messages_that_are_too_long(ends):
    frames(ends, announced("<f4", [3]), b"\0" * 16)
    with pytest.raises(ValueError, match="an array of 12 bytes came as more"):
        wire.receive(ends[1])


def test_messages_that_are_no_json(ends):
    frames(ends, b"\x80\x04pickle")
    with pytest.raises(ValueError, match="decode"):
        wire.receive(ends[1])


def test_pickles_are_not_read(ends):
    frames(ends, announced("|O", [1]), b"\0" * 8)
    with pytest.raises(ValueError, match="objects do not cross"):
        wire.receive(ends[1])


def test_an_end_that_is_gone(ends):
    frames(ends, announced("<f4", [3]))
    ends[0].close()
    with pytest.raises(EOFError):
        wire.receive(ends[1])
