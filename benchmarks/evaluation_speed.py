"""Claim: a runtime's `predict` over 10,000 images takes at most 1.1 times a hand-written loop over the runtime's own interface.

LeNet-5 in float32 and int8, batches of 256, one thread; the two loops interleaved in pairs, the order within a pair drawn anew.
Times are CPU seconds of the process, so that other load on the machine shows less. Prints the median ratio of the pairs with its
distribution-free interval. Exit status 1 where a median is above the claim.

    python benchmarks/evaluation_speed.py [pairs]
"""

import os

os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="2")  # before NumPy and the frameworks are loaded

import math
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from sweep import components
from sweep.layers import resolved

IMAGES, BATCH, CLASSES, THREADS = 10_000, 256, 10, 1
CLAIM = 1.1
MODELS = [("pytorch", "onnx", "onnxruntime"), ("tensorflow", "saved_model", "litert")]
ROWS = ("float32", "static_int8")


def onnxruntime_loop(path, images):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def loop():
        return np.concatenate([session.run(None, {name: images[i:i + BATCH]})[0] for i in range(0, IMAGES, BATCH)])

    return loop


def litert_loop(path, images):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=THREADS)
    source, target = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]

    def loop():
        logits, size = [], 0
        for start in range(0, IMAGES, BATCH):
            batch = images[start:start + BATCH]
            if len(batch) != size:
                size = len(batch)
                interpreter.resize_tensor_input(source, batch.shape)
                interpreter.allocate_tensors()
            interpreter.set_tensor(source, batch)
            interpreter.invoke()
            logits.append(interpreter.get_tensor(target))
        return np.concatenate(logits)

    return loop


def exported(framework_name, target, folder):
    """An untrained LeNet-5: its speed is that of a trained one."""
    framework = components.load("frameworks", framework_name)
    framework.configure(THREADS)
    layers = resolved(components.load("architectures", "lenet5").layers((28, 28, 1), CLASSES), "matched", framework.FACTS["own"])
    return folder / framework.export(framework.build(layers, "matched", 0), layers, target, folder)


def seconds(call):
    start = time.process_time()
    call()
    return time.process_time() - start


def ratios(ours, loop, pairs):
    """By pair: time of ours over time of the loop, and the latter in seconds."""
    order, found = random.Random(0), []
    for _ in range(pairs):
        if order.random() < 0.5:
            mine, its = seconds(ours), seconds(loop)
        else:
            its, mine = seconds(loop), seconds(ours)
        found.append((mine / its, its))
    return found


def interval(values):
    """The order statistics that hold the median with a probability of at least 0.95 (sign test)."""
    values, n = sorted(values), len(values)
    below = 0.0
    for skipped in range(n // 2):
        below += math.comb(n, skipped) / 2**n
        if 2 * below > 0.05:
            return values[max(skipped - 1, 0)], values[n - max(skipped, 1)]
    return values[0], values[-1]


def main(pairs):
    images = np.random.RandomState(0).uniform(size=(IMAGES, 28, 28, 1)).astype(np.float32)
    worst = 0.0
    print(f"{'runtime':12} {'row':12} {'loop s':>8} {'ratio':>7} {'95 % interval':>16}   {pairs} pairs, {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as root:
        for framework, target, name in MODELS:
            runtime, folder = components.load("runtimes", name), Path(root) / name
            folder.mkdir()
            source = exported(framework, target, folder)
            for row in ROWS:
                (folder / row).mkdir()
                calibration = images[:100] if row in runtime.FACTS["calibrated"] else None
                options = {option: facts["default"] for option, facts in runtime.FACTS["quantizations"][row].items()}
                path = folder / row / runtime.convert(source, target, folder / row, row, calibration, options)
                details = {"input_shape": [28, 28, 1], "input_dtype": "float32", "output_shape": [CLASSES], "quantization": row}
                ours = partial(runtime.predict, runtime.open(path, THREADS, details), images, BATCH)
                loop = LOOPS[name](path, images)
                assert np.array_equal(ours(), loop())  # the same work, and the warm-up of both
                found = ratios(ours, loop, pairs)
                ratio, (low, high) = float(np.median([r for r, _s in found])), interval([r for r, _s in found])
                loop_seconds = float(np.median([s for _r, s in found]))
                print(f"{name:12} {row:12} {loop_seconds:8.3f} {ratio:7.3f} {f'{low:.3f}-{high:.3f}':>16}")
                worst = max(worst, ratio)
    return int(worst > CLAIM)


LOOPS = {"onnxruntime": onnxruntime_loop, "litert": litert_loop}

if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
