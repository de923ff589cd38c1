"""The worker's part of a measurement: one deployed model in a fresh process, timed in blocks when its owner says so."""

import time

import numpy as np

from sweep import components, memory, timing
from sweep.inputs import read_inputs
from sweep.stages.models import indices, open_runtime, open_session, read_details

MEMORY_CALLS = 100
_held = {}  # the timed calls of the one model that a fresh process opens


def prepare(settings, model, data):
    """Open the model and go through the cold part. Returns seconds of load and first call, and peak bytes over the empty process.

    The kernel's high-water mark is reset when the runtime is imported and nothing is loaded, and read after 100 inferences at batch 1.
    """
    inputs = read_inputs(data["folder"], "test", indices(settings["throughput_batch"], data))
    one = np.ascontiguousarray(inputs[:1])
    runtime, details = open_runtime(settings), read_details(model)
    if runtime.FACTS["distribution"] is None and details["layers"] is not None:  # the framework is the runtime; its set-up loads no model
        components.load("frameworks", details["framework"]).configure(settings["threads"])
    base = memory.reset_peak()
    started = time.perf_counter()
    session = open_session(runtime, settings, model, details)
    loaded = time.perf_counter()
    runtime.predict(session, one)
    called = time.perf_counter()
    for _ in range(MEMORY_CALLS):
        runtime.predict(session, one)
    peak = memory.peak_bytes()
    _held["latency"] = lambda: runtime.predict(session, one)
    _held["throughput"] = lambda: runtime.predict(session, inputs, len(inputs))
    runs = runtime.describe(session)
    return {"load_s": loaded - started, "first_call_s": called - loaded, "peak_bytes": peak - base, "batch": len(inputs), "runs": runs}


def warm_up():
    """Warm the call at batch 1; returns how many calls make a block."""
    timing.warm_up(_held["latency"])
    return timing.calibrate(_held["latency"])


def block(calls):
    """Seconds per call over one block at batch 1."""
    return timing.block(_held["latency"], calls)


def throughput():
    """Seconds per batch: the median of nine calls after one that warms."""
    _held["throughput"]()
    return float(np.median([timing.block(_held["throughput"], 1) for _ in range(9)]))
