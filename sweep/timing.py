"""Latency: how a worker times calls, and what follows from the times of several processes.

In a fresh process:  warm_up, calibrate, then `interleave` blocks of the candidate with blocks of a fixed reference.
From the processes:  `latency` of one model, `ratio` of the candidate to the reference.

A *block* is as many calls as fill a millisecond, so that neither the clock's step nor its own cost shows; its value is seconds per call.
Neither a mean nor a p99 is reported: one pre-emption moves the former several times over, and blocks are too few for the latter.
"""

import math
import random
import time

import numpy as np

BLOCK_SECONDS = 1e-3
WARM_UP_CALLS = 200
WARM_UP_SECONDS = 0.5
PAIRS = 30
MEASURED_SECONDS = 1.0
PROCESSES = 3  # fewer say nothing about the spread between processes
TIE = 0.03  # a smaller relative difference is none
UNSTABLE_SPREAD = 0.10  # processes that differ by more did not measure the same thing; 0.01 to 0.02 is usual on a quiet machine
RESAMPLES = 2000
INTERVAL = (2.5, 97.5)

# perf_counter and not perf_counter_ns, which Python 3.6 lacks: a double resolves 2 ns after three months of uptime, a block is 1 ms
_now = time.perf_counter


def clock_step(readings=100):
    """The smallest time between two different readings of the clock, in seconds."""
    smallest = math.inf
    for _ in range(readings):
        start = now = _now()
        while now == start:
            now = _now()
        smallest = min(smallest, now - start)
    return smallest


def warm_up(call, calls=WARM_UP_CALLS, seconds=WARM_UP_SECONDS):
    """Call at least that often and that long; returns how often."""
    start, done = _now(), 0
    while done < calls or _now() - start < seconds:
        call()
        done += 1
    return done


def block(call, k):
    """Seconds per call over k calls in a row."""
    start = _now()
    for _ in range(k):
        call()
    return (_now() - start) / k


def calibrate(call, seconds=BLOCK_SECONDS):
    """The smallest power of two of calls whose block lasts that long, by the fastest of three: a slow one may have been pre-empted."""
    k = 1
    while min(block(call, k) for _ in range(3)) * k < seconds:
        k *= 2
    return k


def interleave(candidate, reference, seed, pairs=PAIRS, seconds=MEASURED_SECONDS):
    """At least that many pairs of blocks, for at least that long; which of a pair goes first is drawn from the seed.

    `candidate` and `reference` are called without arguments and return seconds per call: a `block` here, or one in another process.
    Returns {"candidate": [...], "reference": [...]}, equally long.
    """
    order, start = random.Random(seed), _now()
    samples = {"candidate": [], "reference": []}
    while len(samples["reference"]) < pairs or _now() - start < seconds:
        turns = [("candidate", candidate), ("reference", reference)]
        if order.random() < 0.5:
            turns.reverse()
        for name, timed in turns:
            samples[name].append(timed())
    return samples


def latency(processes, seed=0):
    """Latency of one model from the blocks of at least three fresh processes: lists of seconds per call.

    latency_p50_ms, latency_p95_ms           of all blocks together, with percentile intervals from a bootstrap (95 %, seeded) that draws
    latency_p50_low_ms, _high_ms, ...        processes and then blocks within each; with three processes it is rather too narrow. A block
                                             evens out its calls, so p95 is that of single calls only where a block is one call
    latency_spread                           (largest - smallest) / median of the processes' own p50
    latency_unstable                         whether that exceeds UNSTABLE_SPREAD: True or False, a label and no metric
    latency_processes, latency_blocks        how many

    Raises ValueError for fewer processes, an empty one, or a time that isn't above 0.
    """
    samples = _checked(processes)
    (p50, p95), lows, highs = _bootstrap(samples, lambda blocks: np.percentile(blocks, [50, 95]) * 1e3, seed)
    medians = [np.median(blocks) for blocks in samples]
    spread = float((max(medians) - min(medians)) / np.median(medians))
    return {
        "latency_p50_ms": p50, "latency_p50_low_ms": lows[0], "latency_p50_high_ms": highs[0],
        "latency_p95_ms": p95, "latency_p95_low_ms": lows[1], "latency_p95_high_ms": highs[1],
        "latency_spread": spread,
        "latency_unstable": spread > UNSTABLE_SPREAD,
        "latency_processes": len(samples),
        "latency_blocks": sum(len(blocks) for blocks in samples),
    }


def ratio(candidate, reference, seed=0):
    """The candidate's latency over the reference's, from the paired blocks of at least three processes.

    latency_ratio                 exp(median of all pairs' log ratios); above 1 the candidate is slower
    latency_ratio_low, _high      interval as in `latency`, pairs kept together
    latency_verdict               `tie` where the ratio is less than TIE from 1 or the interval contains 1, else `faster` or `slower`

    Raises ValueError as `latency` does, and where the blocks don't pair up.
    """
    over, under = _checked(candidate), _checked(reference)
    if [len(blocks) for blocks in over] != [len(blocks) for blocks in under]:
        raise ValueError("candidate and reference have different numbers of blocks")
    logs = [np.log(above / below) for above, below in zip(over, under)]
    (value,), (low,), (high,) = _bootstrap(logs, lambda pairs: np.exp([np.median(pairs)]), seed)
    return {"latency_ratio": value, "latency_ratio_low": low, "latency_ratio_high": high, "latency_verdict": verdict(value, low, high)}


def verdict(value, low, high):
    """`tie`, `faster` or `slower`, for a ratio and its interval."""
    if abs(value - 1) < TIE or low <= 1 <= high:
        return "tie"
    return "faster" if value < 1 else "slower"


def _checked(processes):
    samples = [np.asarray(blocks, dtype=np.float64) for blocks in processes]
    if len(samples) < PROCESSES:
        raise ValueError("{} processes; latency needs at least {}".format(len(samples), PROCESSES))
    if not all(blocks.ndim == 1 and len(blocks) and np.all(blocks > 0) and np.all(np.isfinite(blocks)) for blocks in samples):
        raise ValueError("a process has no blocks, or a block that took no time")
    return samples


def _bootstrap(samples, statistic, seed):
    """The statistic of all samples, and the bounds of its interval, as lists of floats."""
    draw = np.random.RandomState(seed)  # its stream is the same in every NumPy
    found = []
    for _ in range(RESAMPLES):
        chosen = [samples[i] for i in draw.randint(len(samples), size=len(samples))]
        found.append(statistic(np.concatenate([blocks[draw.randint(len(blocks), size=len(blocks))] for blocks in chosen])))
    low, high = np.percentile(found, INTERVAL, axis=0)
    return statistic(np.concatenate(samples)).tolist(), low.tolist(), high.tolist()
