"""LiteRT, TensorFlow Lite's successor: opens a .tflite file, which is made of a SavedModel or as it comes.

`dynamic_int8` of a SavedModel is its converter's dynamic range quantization, which leaves weights of fewer than 1,024 elements in float32.
The kernels take the range of an activation image by image, so no row depends on the batch.
"""

from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from sweep.runtimes import _litert_runtime

FACTS = dict(_litert_runtime.FACTS, distribution="ai-edge-litert")

_runtime = _litert_runtime.Runtime(FACTS, Interpreter, OpResolverType, schema)
set_options = _runtime.set_options
convert = _runtime.convert
open = _runtime.open
predict = _runtime.predict
describe = _runtime.describe
layer_outputs = _runtime.layer_outputs
