"""Models in workers of their own, and what is told of it when one of them, or the one who asks, fails."""

import time
from contextlib import closing

import numpy as np
import pytest

from sweep import components, layers, toolchain
from sweep.contracts import Bench
from sweep.errors import StageFailed
from sweep.stages.models import write_model
from sweep.work import Work, joined
from sweep.workers import Limits, Pool, Shape

pytest.importorskip("torch")
pytest.importorskip("art")

SETTINGS = {"module": "pytorch", "toolchain": "default", "threads": 1, "options": {}}


@pytest.fixture(scope="module")
def pool():
    with closing(Pool(keep=2, recycle_bytes=8 << 30)) as made:
        yield made


@pytest.fixture
def call(pool, tmp_path):
    (tmp_path / "log.txt").touch()
    bench = Bench(pool, Shape(toolchain.default()), Limits(seconds=60.0, memory_bytes=4 << 30), tmp_path / "log.txt")
    work = Work(SETTINGS, {}, None, tmp_path, bench)
    np.save(tmp_path / "x_test.npy", np.zeros((4, 28, 28, 1), np.float32))
    np.save(tmp_path / "y_test.npy", np.zeros(4, np.int64))
    np.savez(tmp_path / "splits.npz", attack=np.arange(4))

    def run(model, data=None):
        settings = {"attack": "square", "attack_settings": {}, "examples": 4}
        data = data or {"folder": str(tmp_path), "splits": str(tmp_path / "splits.npz")}
        models = [joined.source("attacked", bench.shape, SETTINGS, str(model))]
        return joined.call(work, "attack:craft", models, settings=settings, data=data, gradients=None, out=str(tmp_path))

    return run


@pytest.fixture
def model(tmp_path):
    framework = components.load("frameworks", "pytorch")
    framework.configure(1)
    network = layers.resolved(components.load("architectures", "lenet1").layers((28, 28, 1), 10), "identical", framework.FACTS["own"])
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(framework, framework.build(network, "identical", 0), network, SETTINGS, str(folder))
    return folder


def test_a_model_that_can_not_be_loaded_is_the_cause(call, tmp_path):
    started = time.monotonic()
    with pytest.raises(StageFailed, match=r"No such file or directory: .*nowhere/model.json"):
        call(tmp_path / "nowhere")
    assert time.monotonic() - started < 60  # and nobody waits for it until the time is up


def test_what_the_one_who_asks_raises_is_told(call, model, tmp_path):
    """Also where it does so before it ever spoke to the model."""
    (tmp_path / "splits.npz").write_bytes(b"no archive")
    with pytest.raises(StageFailed, match="ValueError"):
        call(model, {"folder": str(tmp_path), "splits": str(tmp_path / "splits.npz")})


def test_an_attack_that_raises_is_told_and_the_next_one_runs(call, model):
    with pytest.raises(StageFailed, match="KeyError: 'target'|KeyError: 'norm'"):
        call(model)  # without a setting
    with pytest.raises(StageFailed, match="KeyError"):
        call(model)
