"""What is said of a faulty layer: findings, the verdict, and the sentences in them."""

import numpy as np

from sweep.diagnosis._rounding import largest


def finding(layer, fault, evidence, found=()):
    return {
        "layer": layer["name"], "layer_kind": layer["kind"], "fault": fault, "evidence": evidence,
        "explains": number(found[0].residual) if found else None,
        "also": ["{}: {}".format(explanation.fault, explanation.detail) for explanation in found[1:]],
    }


def verdict(findings):
    if not findings:
        return {"faulty": False, "layer": None, "layer_kind": None, "fault": None, "explains": None, "also": [], "others": [],
                "evidence": "every layer gives what it should for its own inputs, but for rounding"}
    keys = ("layer", "layer_kind", "fault", "evidence")
    return dict(findings[0], faulty=True, others=[{key: each[key] for key in keys} for each in findings[1:]])


def evidence(layer, mine, alone):
    text = "{} is {} from what it should be on its own inputs".format(layer["name"], amount(mine.distance))
    if alone is not None:
        text += " and {} alone on the reference's".format(amount(alone.distance))
    return text + ", where rounding explains {:.2g}".format(mine.tolerance)


def amount(distance):
    """A difference in words; None and infinity are one between what can't be compared."""
    return "{:.3g}".format(distance) if distance is not None and np.isfinite(distance) else "incomparably far"


def told(explanation):
    return "with {} it is {:.2g}".format(explanation.detail, explanation.residual)


def not_finite(reading):
    observed = reading.view.observed
    return "{} of {} values are not finite, where the right ones go to {:.3g} and its inputs to {:.3g}".format(
        int((~np.isfinite(observed)).sum()), observed.size, largest(reading.expected), max(map(largest, reading.view.inputs))
    )


def where(reading):
    """Which values are off, and where they lie if that is in few places."""
    return places(~(np.abs(reading.view.observed - reading.expected) <= reading.tolerance))


def places(wrong):
    """The same of a mask (N, ...)."""
    axes = {2: ("channel",), 3: ("step", "channel"), 4: ("row", "column", "channel")}.get(wrong.ndim, ())
    parts = ["{} of {} values are off".format(int(wrong.sum()), wrong.size)]
    for axis, axis_name in enumerate(("example",) + axes):
        places = np.flatnonzero(wrong.any(axis=tuple(other for other in range(wrong.ndim) if other != axis)))
        if len(places) < wrong.shape[axis]:
            shown = ", ".join(str(place) for place in places[:8]) + (", ..." if len(places) > 8 else "")
            parts.append("in {} of {} {}s ({})".format(len(places), wrong.shape[axis], axis_name, shown))
    return ", ".join(parts)


def out_of_range(layer, reading):
    """Whether an observed value is none that a layer of this kind can give."""
    low, high = -np.inf, np.inf
    if layer["kind"] in ("lstm", "gru"):
        low, high = -1, 1
    elif layer["kind"] in ("relu", "input"):
        low, high = 0, 1 if layer["kind"] == "input" else np.inf
    elif layer["kind"] in ("max_pool", "average_pool", "global_max_pool"):
        low, high = reading.view.inputs[0].min(), reading.view.inputs[0].max()
    observed, slack = reading.view.observed, reading.tolerance
    return bool(observed.size and (observed.min() < low - slack or observed.max() > high + slack))


def number(value):
    """As JSON has it."""
    return float(value) if np.isfinite(value) else None
