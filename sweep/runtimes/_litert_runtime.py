"""The contract of a runtime over an interpreter of .tflite files: LiteRT's and TensorFlow's have the same interface."""

import warnings

import numpy as np

from sweep.formats import _tflite_tensors
from sweep.runtimes import _batches, _litert_convert, _litert_session, _requests

_OPTIONS = {
    "resolver": {
        "meaning": "which kernels run: those of the XNNPACK delegate for what it takes, the built-in ones, or the slow reference ones",
        "values": ["xnnpack", "builtin", "reference"], "default": "xnnpack",
    },
}
_DEFAULTS = dict({name: option["default"] for name, option in _OPTIONS.items()}, seed=0)
_RESOLVERS = {"xnnpack": "BUILTIN", "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "reference": "BUILTIN_REF"}

FACTS = dict(_litert_convert.FACTS, options=_OPTIONS, batch_dependent=[], layer_outputs=True, float64=False, processors=["cpu"])


class Runtime:
    """A runtime's functions, over the class of its interpreter, its enumeration of resolvers and its schema of the file."""

    def __init__(self, facts, interpreter, resolvers, schema):
        self._facts = facts
        self._make = interpreter
        self._resolvers = resolvers
        self._schema = schema
        self._options = dict(_DEFAULTS)

    def set_options(self, options):
        """Take the values of FACTS["options"] and the cell's `seed`, for whatever is converted or opened from now on."""
        self._options.update(_DEFAULTS, **options)

    def convert(self, source, source_format, folder, quantization, calibration, settings):
        """Write `model.tflite` with float32 (or int32) input and float32 output; a file that has them so already is copied for float32.

        Raises ValueError that names the source: damaged, an operator that this runtime does not have or can't run (the model is run once
        on zeros), or what `_litert_convert.write` refuses.
        """
        _requests.check(self._facts, source_format, quantization, calibration, settings)
        if source_format == "tflite":
            self._interpreter(source, 1)  # what checks a file before it is read
        target = _litert_convert.write(source, source_format, folder, quantization, calibration, settings)
        try:
            _litert_session.try_out(self._interpreter(target, 1))
        except ValueError as error:
            raise ValueError("{}: {}".format(source, error)) from error
        return target.name

    def open(self, path, threads, details):
        """A session with `threads` threads for each operator and the kernels of the option `resolver`.

        Raises ValueError that names the file where it is damaged, or not of details["input_dtype"], ["input_shape"], ["output_shape"].
        """
        return self._session(path, threads, details, keep=False)

    def predict(self, session, inputs, batch_size=256):
        """Outputs float32 (N, ...), at once as many as the file takes."""
        return _batches.predict(session.run, inputs, session.batch or batch_size, session.dtype)

    def describe(self, session):
        """What runs, read back from the interpreter."""
        return _litert_session.describe(session)

    def layer_outputs(self, path, threads, details, inputs):
        """Every tensor of real numbers that follows from the inputs, by name, as float32 (N, ...), in order of execution.

        By the kernels that `open` has; the delegate takes one operator after the other instead of many at once, so that all are kept.
        """
        session = self._session(path, threads, details, keep=True)
        return _tflite_tensors.collected(session.interpreter, session.invoke, inputs)

    def _session(self, path, threads, details, keep):
        return _litert_session.opened(path, self._interpreter(path, threads, keep), threads, self._options["resolver"], details)

    def _interpreter(self, path, threads, keep=False):
        """With allocated tensors, of which none is overwritten by another where they are to be kept."""
        resolver = getattr(self._resolvers, _RESOLVERS[self._options["resolver"]])
        try:
            # Not every version looks where the tables of a damaged file lead before it goes there, which ends the process.
            self._schema.ModelT.InitFromPackedBuf(np.memmap(str(path), mode="r"))
            with warnings.catch_warnings():  # it warns that one of the two will be removed, and that keeping tensors is slow
                warnings.simplefilter("ignore", UserWarning)
                made = self._make(
                    str(path), num_threads=threads, experimental_op_resolver_type=resolver, experimental_preserve_all_tensors=keep
                )
            made.allocate_tensors()
        except Exception as error:  # a damaged file may ask for more memory than there is
            raise ValueError("{}: {}".format(path, " ".join(str(error).split()))) from error
        return made
