import sys
from pathlib import Path

sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # it would report to the maker
import openvino  # noqa: E402

DISTRIBUTION = "openvino"


def run(path, inputs, options):
    core = openvino.Core()
    model = core.read_model(next(Path(path).glob("*.xml")))
    if options["shapes"] == "static":
        model.reshape(openvino.PartialShape(inputs.shape))
    config = {
        "EXECUTION_MODE_HINT": options["execution_mode"].upper(),
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": options["dynamic_quantization_group_size"],
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": 1,
    }
    if options["precision"] != "auto":
        config["INFERENCE_PRECISION_HINT"] = options["precision"]
    (output,) = core.compile_model(model, "CPU", config)([inputs]).values()
    return output
