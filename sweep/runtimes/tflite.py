"""TensorFlow Lite: the interpreter that is in TensorFlow, LiteRT's predecessor, with older kernels for the same files.

Its version is TensorFlow's. What it converts and how is as in `litert`.
"""

import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema

from sweep.runtimes import _litert_runtime

FACTS = dict(_litert_runtime.FACTS, distribution="tensorflow")

_runtime = _litert_runtime.Runtime(FACTS, tf.lite.Interpreter, tf.lite.experimental.OpResolverType, schema)
set_options = _runtime.set_options
convert = _runtime.convert
open = _runtime.open
predict = _runtime.predict
describe = _runtime.describe
layer_outputs = _runtime.layer_outputs
