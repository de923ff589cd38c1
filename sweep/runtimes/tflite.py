"""TensorFlow Lite: the interpreter that is in TensorFlow, LiteRT's predecessor, with older kernels for the same files.

Its version is TensorFlow's. What it converts and how is as in `litert`.
"""

import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema

from sweep.runtimes import _litert_runtime

FACTS = dict(_litert_runtime.FACTS, distribution="tensorflow")


def _interpreter(path, **settings):
    """A damaged file would end the process: this interpreter follows its tables without looking, so they are read before."""
    try:
        schema.ModelT.InitFromPackedBuf(np.memmap(path, mode="r"))
    except Exception as error:  # whatever reading at a wrong place leads to
        raise ValueError("not a valid model: {}".format(error)) from error
    return tf.lite.Interpreter(path, **settings)


_runtime = _litert_runtime.Runtime(FACTS, _interpreter, tf.lite.experimental.OpResolverType)
set_options = _runtime.set_options
convert = _runtime.convert
open = _runtime.open
predict = _runtime.predict
describe = _runtime.describe
layer_outputs = _runtime.layer_outputs
