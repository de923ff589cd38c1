import onnxruntime

DISTRIBUTION = "onnxruntime"
LEVELS = {
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "disabled": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


def run(path, inputs, options):
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = LEVELS[options["optimization"]]
    if options["exact_int8"] != "auto":
        settings.add_session_config_entry("session.x64quantprecision", str(int(options["exact_int8"] == "on")))
    level = {"float32": "1", "int8": "4"}[options["weight_only_products"]]
    settings.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", level)
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: inputs})
    return output
