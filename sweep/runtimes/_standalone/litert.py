from ai_edge_litert.interpreter import Interpreter, OpResolverType

DISTRIBUTION = "ai-edge-litert"
RESOLVERS = {
    "xnnpack": OpResolverType.BUILTIN,
    "builtin": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    "reference": OpResolverType.BUILTIN_REF,
}


def run(path, inputs, options):
    interpreter = Interpreter(str(path), experimental_op_resolver_type=RESOLVERS[options["resolver"]])
    source, (output,) = interpreter.get_input_details()[0], interpreter.get_output_details()
    interpreter.resize_tensor_input(source["index"], inputs.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(source["index"], inputs)
    interpreter.invoke()
    return interpreter.get_tensor(output["index"])
