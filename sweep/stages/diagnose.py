"""Where a model parts from the network that it was to compute: the reference's half, the suspect's half, and the verdict on them.

The first and the last need NumPy alone; the suspect's half runs in its own toolchain, a framework's or, of a deployed model, a runtime's.
They share the stage's folder.
"""

import json
import os

import numpy as np

from sweep import components, diagnosis, quantization, reference, simulation
from sweep.inputs import read_test_inputs
from sweep.stages.models import indices, load_model, open_framework, open_runtime, open_session, read_details, read_weights

INPUTS, REFERENCE, OUTPUTS, ALONE = "inputs.npy", "reference.npz", "outputs.npz", "alone.npz"
TENSORS, SOURCE_TENSORS, SWITCHED = "tensors", "source_tensors", "switched"
NO_FAULT = "no fault"
_BATCH = 256


def inputs_side(settings, data, out):
    """Write `inputs.npy`, the first settings["examples"] of the test examples' fixed list."""
    np.save(os.path.join(out, INPUTS), read_test_inputs(data, indices(settings["examples"], data)))


def reference_side(settings, source, data, out):
    """Write `inputs.npy`, see there, and `reference.npz`: what each layer gives on them in float64, by the list and the weights of folder
    `source`."""
    inputs_side(settings, data, out)
    inputs = np.load(os.path.join(out, INPUTS), allow_pickle=False)
    exact = reference.layer_outputs(read_details(source)["layers"], read_weights(source), inputs)
    np.savez(os.path.join(out, REFERENCE), **exact)


def suspect_side(settings, model, out):
    """Write `outputs.npz`, every layer's output of folder `model` on those inputs, and `alone.npz`, every layer's alone on what the
    reference's reads, both by layer in the model's dtype. The input layer reads nothing and isn't run alone."""
    framework = open_framework(settings)
    suspect, details = load_model(framework, model)
    outputs = framework.layer_outputs(suspect, np.load(os.path.join(out, INPUTS), allow_pickle=False))
    np.savez(os.path.join(out, OUTPUTS), **outputs)
    dtype = outputs[details["layers"][-1]["name"]].dtype
    exact, alone = _arrays(out, REFERENCE), {}
    for layer in details["layers"]:
        given = [exact[name] if exact[name].dtype.kind in "iu" else exact[name].astype(dtype) for name in layer["inputs"]]
        if given:
            alone[layer["name"]] = framework.run_layer(suspect, layer["name"], given)
    np.savez(os.path.join(out, ALONE), **alone)


def deployed_side(settings, model, out):
    """Write `tensors_outputs.npy`, the outputs of the deployed model of folder `model` on the inputs, as it is served; and of the model
    with as little optimisation as its runtime can `tensors.npz`, its tensors, with their names in order of execution in `tensors.json`:
    none of them where the runtime can't tell."""
    runtime, details, inputs = open_runtime(settings), read_details(model), np.load(os.path.join(out, INPUTS), allow_pickle=False)
    session = open_session(runtime, settings, model, details)
    np.save(os.path.join(out, TENSORS + "_outputs.npy"), runtime.predict(session, inputs, _batch(runtime, details)))
    path = os.path.join(model, details["file"])
    tensors = layer_outputs(runtime, path, settings["threads"], details, inputs) if runtime.FACTS["layer_outputs"] else {}
    _write_list(out, TENSORS, tensors)


def source_side(settings, source, out):
    """The same of a user's own file, by its format's module: `source_tensors_outputs.npy`, and its tensors where that can tell."""
    runtime, details, inputs = open_runtime(settings), read_details(source), np.load(os.path.join(out, INPUTS), allow_pickle=False)
    session = open_session(runtime, settings, source, details)
    np.save(os.path.join(out, SOURCE_TENSORS + "_outputs.npy"), runtime.predict(session, inputs, _BATCH))
    own, path = components.load("formats", details["format"]), os.path.join(source, details["file"])
    tensors = own.layer_outputs(path, settings["threads"], inputs) if own.FACTS["layer_outputs"] else {}
    _write_list(out, SOURCE_TENSORS, tensors)


def layer_outputs(runtime, path, threads, details, inputs):
    """A runtime's `layer_outputs`, one input after another where ranges are taken over a batch."""
    if _batch(runtime, details) > 1:
        return runtime.layer_outputs(path, threads, details, inputs)
    each = [runtime.layer_outputs(path, threads, details, inputs[at:at + 1]) for at in range(len(inputs))]
    return {name: np.concatenate([found[name] for found in each]) for name in each[0]}


def switched_side(settings, model, out):
    """Write `switched.npz`: the outputs under every other value of one of the runtime's options, with OPTION=VALUE in `switched.json`."""
    runtime, details, inputs = open_runtime(settings), read_details(model), np.load(os.path.join(out, INPUTS), allow_pickle=False)
    found = {}
    for option, facts in runtime.FACTS["options"].items():
        for value in facts["values"]:
            if value != settings["options"][option]:
                runtime.set_options(dict(settings["options"], seed=settings["seed"], **{option: value}))
                try:
                    session = open_session(runtime, settings, model, details)
                    found["{}={}".format(option, value)] = runtime.predict(session, inputs, _batch(runtime, details))
                except Exception as error:  # this machine may lack what the option asks for; then it tells nothing
                    print("{}={}: {}".format(option, value, error))
    _write_list(out, SWITCHED, found)


def _batch(runtime, details):
    return 1 if details.get("quantization") in runtime.FACTS["batch_dependent"] else _BATCH


def verdict(source, out):
    """Write `diagnosis.json` (see `sweep.diagnosis.judge`) and `diagnosis.md`. Returns metrics, and the fact `diagnosis`: `no fault`, or
    FAULT at LAYER (KIND)."""
    layers, outputs = read_details(source)["layers"], _arrays(out, OUTPUTS)
    inputs = np.load(os.path.join(out, INPUTS), allow_pickle=False)
    dtype = str(outputs[layers[-1]["name"]].dtype)
    return _told(diagnosis.judge(layers, read_weights(source), inputs, outputs, _arrays(out, ALONE), dtype), out)


def deployed_verdict(settings, source, out, rounding):
    """The same of a deployed model (`sweep.diagnosis.judge_deployed`, or `judge_tensors` where the source has no neutral list); `rounding`
    is how far float32 takes the source's outputs."""
    inputs, outputs = (np.load(os.path.join(out, name), allow_pickle=False) for name in (INPUTS, TENSORS + "_outputs.npy"))
    how = simulation.arithmetic(quantization.ROWS[settings["quantization"]], settings["quantization_options"])
    layers, switched = read_details(source)["layers"], dict(_read_list(out, SWITCHED))
    if layers is None:
        right = np.load(os.path.join(out, SOURCE_TENSORS + "_outputs.npy"), allow_pickle=False)
        own, deployed = _read_list(out, SOURCE_TENSORS), _read_list(out, TENSORS)
        judged = diagnosis.judge_tensors(own, right, deployed, outputs, how, switched, rounding)
    else:
        judged = diagnosis.judge_deployed(layers, read_weights(source), inputs, _read_list(out, TENSORS), outputs, how, switched)
    return _told(judged, out)


def _told(judged, out):
    with open(os.path.join(out, "diagnosis.json"), "w") as file:
        json.dump(judged, file, indent=1)
    with open(os.path.join(out, "diagnosis.md"), "w") as file:
        file.write(page(judged))
    return {"metrics": _metrics(judged), "facts": {"diagnosis": in_short(judged["verdict"])}}


def in_short(found):
    if not found["faulty"]:
        return NO_FAULT
    return "{} at {} ({})".format(found["fault"], found["layer"], found["layer_kind"] or "no layer of the network")


def page(judged):
    """A diagnosis to read: the verdict, then a table of the layers."""
    found = judged["verdict"]
    lines = ["# " + in_short(found), "", found["evidence"] + "."]
    if found["also"]:
        lines += ["", "What agrees as well: " + "; ".join(found["also"]) + "."]
    lines += ["", "{} examples, {}. Differences are the largest absolute ones.".format(judged["examples"], judged["dtype"]), ""]
    columns = ("layer", "kind", "tensor", "difference_max", "relative", "ulps", "change_rate", "residual", "tolerance", "causal",
               "causal_tolerance", "clipped")
    columns = [name for name in columns if judged["layers"] and name in judged["layers"][0]]
    lines += ["| " + " | ".join(columns + ["faulty"]) + " |", "|" + " --- |" * (len(columns) + 1)]
    lines += ["| {} | {} |".format(" | ".join(_cell(row[name]) for name in columns), "yes" if row["faulty"] else "")
              for row in judged["layers"]]
    if found["others"]:
        lines += ["", "Further layers:", ""]
        lines += ["- {}: {}".format(in_short(dict(other, faulty=True)), other["evidence"]) for other in found["others"]]
    return "\n".join(lines) + "\n"


def _cell(value):
    if value is None:
        return "-"
    return value if isinstance(value, str) else "{:.3g}".format(value)


def _metrics(judged):
    """`residual_to_rounding_max` is the largest residual over what rounding explains of it; 1 and less is rounding."""
    rows, found = judged["layers"], judged["verdict"]
    metrics = {"diagnosed_layers": len(rows), "diagnosed_examples": judged["examples"],
               "faulty_layers": 1 + len(found["others"]) if found["faulty"] else 0}
    ratios = [row["residual"] / row["tolerance"] for row in rows if row["residual"] is not None and row["tolerance"]]
    ulps = [row["ulps"] for row in rows if row["ulps"] is not None]
    if ratios:
        metrics["residual_to_rounding_max"] = max(ratios)
    if ulps:
        metrics["layer_difference_max_ulps"] = max(ulps)
    return metrics


def _write_list(folder, name, arrays):
    """Arrays by names of any kind, in their order."""
    with open(os.path.join(folder, name + ".json"), "w") as file:
        json.dump(list(arrays), file)
    np.savez(os.path.join(folder, name + ".npz"), **{str(position): array for position, array in enumerate(arrays.values())})


def _read_list(folder, name):
    """(name, array) of what `_write_list` wrote; none where it wrote nothing."""
    if not os.path.exists(os.path.join(folder, name + ".json")):
        return []
    with open(os.path.join(folder, name + ".json")) as file:
        names = json.load(file)
    arrays = _arrays(folder, name + ".npz")
    return [(each, arrays[str(position)]) for position, each in enumerate(names)]


def _arrays(folder, name):
    with np.load(os.path.join(folder, name), allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}
