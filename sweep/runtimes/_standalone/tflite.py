import tensorflow as tf

DISTRIBUTION = "tensorflow"
RESOLVERS = {
    "xnnpack": tf.lite.experimental.OpResolverType.BUILTIN,
    "builtin": tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    "reference": tf.lite.experimental.OpResolverType.BUILTIN_REF,
}


def run(path, inputs, options):
    interpreter = tf.lite.Interpreter(str(path), experimental_op_resolver_type=RESOLVERS[options["resolver"]])
    source, (output,) = interpreter.get_input_details()[0], interpreter.get_output_details()
    interpreter.resize_tensor_input(source["index"], inputs.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(source["index"], inputs)
    interpreter.invoke()
    return interpreter.get_tensor(output["index"])
