"""Networks whose robustness is known: an undefended one has none, and one that hides its gradients or answers at random is flagged."""

import secrets
import threading

import numpy as np
import pytest
from digits import Digits, Workers, learnt

from sweep import attacks, components, trust
from sweep.stages import attack, serve

pytest.importorskip("torch")
pytest.importorskip("art")

FEW = 40
HIDING = 1e4
"""Logits times so much make a softmax that float32 can't tell from one and zeros, whose gradient is nothing but zeros, and change no answer."""


def few(digits: Digits) -> Digits:
    return digits._replace(x=digits.x[:FEW], y=digits.y[:FEW])


@pytest.fixture(scope="module")
def undefended(tmp_path_factory):
    workers = Workers(tmp_path_factory.mktemp("undefended"), few(learnt()))
    yield workers
    workers.close()


@pytest.fixture(scope="module")
def hiding(tmp_path_factory):
    digits = few(learnt())
    scaled = {name: array * np.float32(HIDING) if name.startswith(digits.layers[-1]["name"] + "/") else array for name, array in digits.weights.items()}
    workers = Workers(tmp_path_factory.mktemp("hiding"), digits._replace(weights=scaled))
    yield workers
    workers.close()


def clean_accuracy(made):
    return float((made.arrays["before"].argmax(axis=1) == made.arrays["label"]).mean())


def settings(name, **changed):
    return attacks.resolve(name, "mnist", changed)


def test_an_undefended_network_has_no_robust_accuracy(undefended):
    made = undefended.attacked("pytorch", "auto_attack", settings("auto_attack", max_iter=20, restarts=1))
    assert clean_accuracy(made) > 0.85
    assert made.metrics["robust_accuracy"] <= 0.05
    assert trust.of_model(made.metrics) == []


def test_hidden_gradients_are_flagged(hiding):
    by_gradient = hiding.attacked("pytorch", "pgd", settings("pgd", max_iter=10, num_random_init=0))
    assert by_gradient.metrics["robust_accuracy"] == clean_accuracy(by_gradient) > 0.85  # it looks robust
    right = round(clean_accuracy(by_gradient) * FEW)
    assert trust.of_model(by_gradient.metrics) == [f"zero gradients: of {right} of {right} inputs"]
    by_scores = hiding.attacked("pytorch", "square", settings("square", max_iter=200))
    assert by_scores.metrics["robust_accuracy"] < 0.5
    own, other = (
        trust.Attacked(name, access, {}, 0.3, made.metrics["robust_accuracy"], FEW)
        for name, access, made in (("pgd", attacks.WHITE_BOX, by_gradient), ("square", attacks.SCORE, by_scores))
    )
    (flag,) = trust.among(own, [other])
    assert flag.startswith("undercut by a black box: square within eps 0.3 leaves")


def test_answers_at_random_are_flagged(tmp_path):
    """The same network behind noise on its inputs, served as any is."""
    digits = few(learnt())
    framework = components.load("frameworks", "pytorch")
    framework.configure(1)
    model = framework.build(digits.layers, "identical", 0)
    framework.set_weights(model, digits.weights)
    random, key, address = np.random.default_rng(0), secrets.token_bytes(32).hex(), str(tmp_path / "socket")

    def noisy(x):
        return framework.predict(model, np.clip(x + random.normal(0, 0.05, x.shape), 0, 1).astype(np.float32))

    np.save(tmp_path / "x_test.npy", digits.x)
    np.save(tmp_path / "y_test.npy", digits.y)
    np.savez(tmp_path / "splits.npz", attack=np.arange(FEW))
    thread = threading.Thread(target=serve._serve, args=(address, key, {"predict": noisy}))
    thread.start()
    found = attack.craft(
        {"attack": "square", "attack_settings": settings("square", max_iter=2), "examples": FEW},
        {"folder": str(tmp_path), "splits": str(tmp_path / "splits.npz")}, {"attacked": address}, None, key, str(tmp_path),
    )
    thread.join()
    (flag,) = trust.of_model({"attack_repeat_difference": found["repeat_difference"], "attacked": found["right"]})
    assert flag.startswith("randomised outputs")
    assert found["zero_gradients"] is None
