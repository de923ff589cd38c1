"""Where a model parts from the network that it was to compute: the reference's half, the suspect's half, and the verdict on them.

The first and the last need NumPy alone; the suspect's half runs in its own toolchain. They share the stage's folder.
"""

import json
import os

import numpy as np

from sweep import diagnosis, reference
from sweep.inputs import read_inputs
from sweep.stages.models import indices, load_model, open_framework, read_details, read_weights

INPUTS, REFERENCE, OUTPUTS, ALONE = "inputs.npy", "reference.npz", "outputs.npz", "alone.npz"


def reference_side(settings, source, data, out):
    """Write `inputs.npy`, the first settings["examples"] of the test examples' fixed list, and `reference.npz`: what each layer gives on
    them in float64, by the list and the weights of folder `source`."""
    inputs = read_inputs(data["folder"], "test", indices(settings["examples"], data))
    np.save(os.path.join(out, INPUTS), inputs)
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


def verdict(source, out):
    """Write `diagnosis.json` (see `sweep.diagnosis.judge`) and `diagnosis.md`. Returns metrics, and the fact `diagnosis`: `no fault`, or
    FAULT at LAYER (KIND)."""
    layers, outputs = read_details(source)["layers"], _arrays(out, OUTPUTS)
    inputs = np.load(os.path.join(out, INPUTS), allow_pickle=False)
    dtype = str(outputs[layers[-1]["name"]].dtype)
    judged = diagnosis.judge(layers, read_weights(source), inputs, outputs, _arrays(out, ALONE), dtype)
    with open(os.path.join(out, "diagnosis.json"), "w") as file:
        json.dump(judged, file, indent=1)
    with open(os.path.join(out, "diagnosis.md"), "w") as file:
        file.write(page(judged))
    return {"metrics": _metrics(judged), "facts": {"diagnosis": in_short(judged["verdict"])}}


def in_short(found):
    if not found["faulty"]:
        return "no fault"
    return "{} at {} ({})".format(found["fault"], found["layer"], found["layer_kind"] or "no layer of the network")


def page(judged):
    """A diagnosis to read: the verdict, then a table of the layers."""
    found = judged["verdict"]
    lines = ["# " + in_short(found), "", found["evidence"] + "."]
    if found["also"]:
        lines += ["", "What agrees as well: " + "; ".join(found["also"]) + "."]
    lines += ["", "{} examples, {}. Differences are the largest absolute ones.".format(judged["examples"], judged["dtype"]), ""]
    columns = ("layer", "kind", "difference_max", "relative", "ulps", "change_rate", "residual", "tolerance", "causal", "causal_tolerance")
    lines += ["| " + " | ".join(columns + ("faulty",)) + " |", "| --- | --- |" + " ---: |" * (len(columns) - 2) + " --- |"]
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


def _arrays(folder, name):
    with np.load(os.path.join(folder, name), allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}
