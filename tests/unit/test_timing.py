"""The protocol against a clock that stands still unless a call moves it, and the statistics against values worked out by hand."""

import ast
import random
from pathlib import Path

import numpy as np
import pytest

from sweep import timing


class Clock:
    """Reads whole ticks; each call lasts what it is told, in seconds."""

    def __init__(self, monkeypatch):
        self.seconds, self.calls = 0.0, 0
        monkeypatch.setattr(timing, "_now", lambda: self.seconds)

    def lasting(self, *durations):
        """A call that takes these durations in turn, the last one for ever."""
        left = list(durations)

        def call():
            self.calls += 1
            self.seconds += left.pop(0) if len(left) > 1 else left[0]

        return call


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_warm_up_ends_with_the_later_of_calls_and_seconds(clock):
    assert timing.warm_up(clock.lasting(2**-6), calls=200, seconds=0.5) == 200
    assert timing.warm_up(clock.lasting(2**-10), calls=200, seconds=0.5) == 512


def test_a_block_is_seconds_per_call(clock):
    assert timing.block(clock.lasting(0.5, 0.25, 0.25, 0.25), 4) == 1.25 / 4


@pytest.mark.parametrize(("seconds", "k"), [(1.0, 1), (2**-10, 1), (2**-11, 2), (3 * 2**-13, 4), (2**-20, 1024)])
def test_calibration_fills_a_block_with_the_smallest_power_of_two(clock, seconds, k):
    assert timing.calibrate(clock.lasting(seconds), seconds=2**-10) == k


def test_calibration_is_not_misled_by_one_slow_call(clock):
    assert timing.calibrate(clock.lasting(1.0, 2**-12), seconds=2**-10) == 4


def test_the_clock_step_is_the_smallest_difference_of_two_readings(monkeypatch):
    readings = iter([0, 0, 0, 5, 5, 8, 8, 8, 12])
    monkeypatch.setattr(timing, "_now", lambda: next(readings))
    assert timing.clock_step(readings=3) == 3


def test_interleaving_follows_the_seed(clock):
    turns = []

    def timed(name, seconds):
        def call():
            turns.append(name)
            clock.seconds += 0.001
            return seconds

        return call

    samples = timing.interleave(timed("candidate", 2.0), timed("reference", 1.0), seed=3, pairs=40, seconds=0.02)
    draw = random.Random(3)
    firsts = ["reference" if draw.random() < 0.5 else "candidate" for _ in range(40)]
    assert turns[::2] == firsts
    assert set(firsts) == {"candidate", "reference"}
    assert all({turns[i], turns[i + 1]} == {"candidate", "reference"} for i in range(0, 80, 2))
    assert samples == {"candidate": [2.0] * 40, "reference": [1.0] * 40}


def test_interleaving_goes_on_until_the_time_is_up(clock):
    def timed():
        clock.seconds += 0.25
        return 0.25

    assert len(timing.interleave(timed, timed, seed=0, pairs=2, seconds=3.0)["candidate"]) == 6


def test_latency_of_blocks_that_are_all_equal():
    found = timing.latency([[0.002] * 30] * 3)
    milliseconds = [found[f"latency_{name}_ms"] for name in ("p50", "p50_low", "p50_high", "p95", "p95_low", "p95_high")]
    assert milliseconds == pytest.approx([2.0] * 6)
    assert found["latency_spread"] == 0
    assert found["latency_unstable"] is False
    assert (found["latency_processes"], found["latency_blocks"]) == (3, 90)


def test_latency_quantiles_are_those_of_all_blocks():
    # 1, 2, ..., 21 ms over three processes: the median is 11, the 95th percentile lies at position 19 of 0..20
    blocks = [n / 1000 for n in range(1, 22)]
    found = timing.latency([blocks[0::3], blocks[1::3], blocks[2::3]])
    assert found["latency_p50_ms"] == pytest.approx(11)
    assert found["latency_p95_ms"] == pytest.approx(20)
    assert found["latency_p50_low_ms"] < 11 < found["latency_p50_high_ms"]
    # medians of the processes: 10, 11, 12
    assert found["latency_spread"] == pytest.approx(2 / 11)
    assert found["latency_unstable"] is True


def test_the_interval_covers_the_difference_between_processes():
    """Within a process nothing varies; only drawing processes can give the outer ones (each alone has chance 1/27 = 3.7 %)."""
    found = timing.latency([[0.001] * 30, [0.002] * 30, [0.003] * 30])
    assert [found[f"latency_p50{part}_ms"] for part in ("_low", "", "_high")] == pytest.approx([1, 2, 3])


def test_the_interval_is_that_of_its_seed():
    blocks = np.random.RandomState(0).lognormal(size=(3, 30))
    assert timing.latency(blocks, seed=1) == timing.latency(blocks, seed=1)
    assert timing.latency(blocks, seed=1) != timing.latency(blocks, seed=2)


def test_the_ratio_is_of_pairs():
    """The machine slows down by up to nine times on the way; each pair's ratio is 1.5 all the same."""
    reference = [[1.0, 2.0, 9.0]] * 3
    found = timing.ratio([[1.5, 3.0, 13.5]] * 3, reference)
    assert [found["latency_ratio"], found["latency_ratio_low"], found["latency_ratio_high"]] == pytest.approx([1.5] * 3)
    assert found["latency_verdict"] == "slower"


def test_the_ratio_is_the_median_in_logarithms():
    # pair ratios 1/4, 1, 4, 4: the median of their logarithms lies halfway between 1 and 4, at 2
    found = timing.ratio([[0.25, 1.0, 4.0, 4.0]] * 3, [[1.0] * 4] * 3)
    assert found["latency_ratio"] == pytest.approx(2)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        ((1.02, 1.01, 1.029), "tie"),
        ((0.98, 0.971, 0.99), "tie"),
        ((1.5, 0.9, 2.1), "tie"),
        ((1.031, 1.01, 1.05), "slower"),
        ((0.5, 0.4, 0.6), "faster"),
    ],
)
def test_verdicts(ratio, verdict):
    assert timing.verdict(*ratio) == verdict


@pytest.mark.parametrize("processes", [[[1.0]] * 2, [[1.0], [1.0], []], [[1.0], [1.0], [0.0]], [[1.0], [1.0], [float("nan")]]])
def test_too_little_is_refused(processes):
    with pytest.raises(ValueError, match="process"):
        timing.latency(processes)


def test_blocks_must_pair_up():
    with pytest.raises(ValueError, match="different numbers"):
        timing.ratio([[1.0, 1.0]] * 3, [[1.0]] * 3)


def test_the_real_clock_times_a_real_call():
    k = timing.calibrate(lambda: sum(range(100)))
    assert timing.block(lambda: sum(range(100)), k) * k > timing.BLOCK_SECONDS / 10
    assert 0 < timing.clock_step() < 1e-3


def test_an_old_worker_can_read_the_module():
    ast.parse(Path(timing.__file__).read_text(), feature_version=(3, 6))
