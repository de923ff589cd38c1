"""Arrays in pickles that came from outside: nothing that a pickle names is imported or called."""

import io
import pickle
from typing import Any


class PickledArray:
    """Stands for an array in a pickle, as it was stored."""

    shape: Any = ()
    code: Any = ""  # of the dtype, as text or bytes
    fortran = False  # the order
    content: Any = b""  # bytes, or the list of an array of objects

    def __init__(self, *_: Any) -> None:
        """Takes the arguments of NumPy's `_reconstruct`, which say nothing yet."""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, dtype, self.fortran, self.content = state
        self.code = dtype.code


class _Dtype:
    """Stands for a dtype in a pickle; its code is enough."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: without a meaning for single bytes and for objects."""


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): PickledArray,
    ("numpy", "ndarray"): None,  # only ever an argument of the above
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    """Knows the names that pickled arrays hold, each by a stand-in of ours, and refuses every other."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"refused: the pickle asks for {module}.{name}")
        return _STAND_INS[module, name]


def load(content: bytes) -> Any:
    """What a pickle holds, its arrays as `PickledArray`, its Python 2 strings as bytes. Raises UnpicklingError for any other object."""
    return _Unpickler(io.BytesIO(content), encoding="bytes").load()
