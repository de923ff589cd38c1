"""What every attack of the table promises, on a softmax regression whose gradients are written out; and how settings are read."""

import importlib
import inspect
import json
import random

import numpy as np
import pytest

from sweep import attacks, crafting

CLASSES, SHAPE = 3, (8, 8, 1)
EPS = {"inf": "25/255", 2: 1.0, 0: 1}
QUICK = {
    "eps_step": 0.03, "max_iter": 20, "num_random_init": 1, "restarts": 1, "batch_size": 7, "max_eval": 100, "init_eval": 10, "init_size": 20,
    "num_trial": 5, "sample_size": 5,
}
WAYS = [(name, norm) for name, row in attacks.ROWS.items() for norm in row.rules["norm"].values]



def craft(name, settings, model, x, y):
    return crafting.craft(name, settings, model, x, y, np.asarray(model.predict(x)))


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}")
def way(request):
    return request.param


@pytest.fixture(scope="module")
def name(way):
    return way[0]


@pytest.fixture(scope="module")
def settings(way):
    name, norm = way
    rules = attacks.ROWS[name].rules
    return attacks.resolve(name, "mnist", {"norm": norm, "eps": EPS[norm]} | {key: value for key, value in QUICK.items() if key in rules})


@pytest.fixture(scope="module")
def kernel():
    return np.random.RandomState(0).normal(size=(64, CLASSES)).astype(np.float32)


@pytest.fixture(scope="module")
def x():
    images = np.random.RandomState(1).uniform(size=(20, *SHAPE)).astype(np.float32)
    images[0], images[1] = 0, 1  # at both ends of the range
    return images


@pytest.fixture(scope="module")
def y(kernel, x):
    labels = (x.reshape(len(x), -1) @ kernel).argmax(axis=1)
    labels[2] = (labels[2] + 1) % CLASSES  # one that is wrong from the start
    return labels


@pytest.fixture
def functions(kernel):
    """predict, loss_gradient and class_gradient."""

    def predict(x):
        return x.reshape(len(x), -1) @ kernel

    def loss_gradient(x, y):
        shifted = np.exp(predict(x) - predict(x).max(axis=1, keepdims=True))
        return ((shifted / shifted.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y]) @ kernel.T).reshape(x.shape)

    def class_gradient(x, classes):
        every = np.broadcast_to(kernel.T, (len(x), CLASSES, 64)).reshape(len(x), CLASSES, *SHAPE)
        return every if classes is None else every[np.arange(len(x)), classes]

    return {"predict": predict, "loss_gradient": loss_gradient, "class_gradient": class_gradient}


@pytest.fixture
def wrap(functions):
    estimator = pytest.importorskip("sweep.estimator", reason="ART is not installed")
    return lambda *offered: estimator.wrap(input_shape=SHAPE, classes=CLASSES, **{key: functions[key] for key in ("predict", *offered)})


@pytest.fixture
def model(wrap):
    return wrap("loss_gradient", "class_gradient")


def test_adversarial_inputs_stay_within_the_threat_model(name, settings, model, x, y):
    adversarial = craft(name, settings, model, x, y)
    assert adversarial.dtype == np.float32
    assert adversarial.shape == x.shape
    assert adversarial.min() >= 0
    assert adversarial.max() <= 1
    moved = np.linalg.norm((adversarial - x).reshape(len(x), -1).astype(np.float64), ord=float(settings["norm"]), axis=1)
    assert 0 < moved.max() <= settings["eps"] + 1e-6


def test_what_is_wrong_as_it_is_is_left_alone(name, settings, model, functions, x, y):
    adversarial = craft(name, settings, model, x, y)
    wrong = functions["predict"](x).argmax(axis=1) != y
    assert wrong.sum() == 1
    np.testing.assert_array_equal(adversarial[wrong], x[wrong])


def test_an_attack_does_not_raise_accuracy(name, settings, model, functions, x, y):
    adversarial = craft(name, settings, model, x, y)
    right = functions["predict"](x).argmax(axis=1) == y
    right_after = functions["predict"](adversarial).argmax(axis=1) == y
    assert right.sum() == len(x) - 1
    assert not np.any(right_after & ~right)
    assert right_after.sum() < right.sum()


def test_the_seed_decides(name, settings, model, x, y):
    first = craft(name, settings, model, x, y)
    np.random.random(5)
    np.testing.assert_array_equal(craft(name, settings, model, x, y), first)
    if not attacks.ROWS[name].randomised(settings):
        np.testing.assert_array_equal(craft(name, {**settings, "seed": 1}, model, x, y), first)


def test_the_global_generators_are_left_alone(name, settings, model, x, y):
    np.random.seed(5)
    random.seed(5)
    expected, other = np.random.RandomState(5).random_sample(3), random.Random(5).random()
    craft(name, settings, model, x, y)
    np.testing.assert_array_equal(np.random.random(3), expected)
    assert random.random() == other


def test_a_model_that_gives_less_than_needed_is_refused(name, settings, wrap, x, y):
    from art.exceptions import EstimatorError

    if not attacks.ROWS[name].needs:
        assert attacks.ROWS[name].access != attacks.WHITE_BOX
        craft(name, settings, wrap(), x, y)
        return
    with pytest.raises((EstimatorError, TypeError)):
        craft(name, settings, wrap(), x, y)


def test_a_gradient_of_nan_is_an_error_and_not_robustness(name, settings, functions, wrap, x, y):
    if "loss_gradient" not in attacks.ROWS[name].needs:
        return
    working = functions["loss_gradient"]
    functions["loss_gradient"] = lambda x, y: np.where(np.arange(len(x)).reshape(-1, 1, 1, 1) == 1, np.nan, working(x, y))
    with pytest.raises(FloatingPointError, match="gradient of 1 inputs is NaN"):
        craft(name, settings, wrap("loss_gradient", "class_gradient"), x, y)


@pytest.mark.parametrize("name", attacks.ROWS)
def test_the_row_agrees_with_arts_class(name):
    pytest.importorskip("art", reason="ART is not installed")
    from art.estimators.classification.classifier import ClassGradientsMixin
    from art.estimators.estimator import LossGradientsMixin

    row = attacks.ROWS[name]
    module, _, class_name = row.art_class.partition(":")
    art_class = getattr(importlib.import_module(module), class_name)
    requirements = getattr(art_class, "_estimator_requirements", (LossGradientsMixin, ClassGradientsMixin))
    assert (LossGradientsMixin in requirements) == ("loss_gradient" in row.needs)
    assert (ClassGradientsMixin in requirements) == ("class_gradient" in row.needs)
    named = {row.arguments.get(key, key) for key in row.rules if key not in ("seed", "target", "crafted_on")} - {""}
    assert named | set(row.constants) <= set(inspect.signature(art_class.__init__).parameters)


@pytest.mark.parametrize("name", attacks.ROWS)
def test_defaults_obey_the_rules(name):
    row = attacks.ROWS[name]
    assert row.name == name
    assert set(row.defaults) == set(row.rules)
    for dataset in [*row.by_dataset, "another"]:
        settings = attacks.resolve(name, dataset, {})
        attacks.check(name, settings)
        assert list(settings) == list(row.rules)
        assert json.loads(json.dumps(settings)) == settings


def test_known_data_sets_have_the_literatures_threat_models():
    assert attacks.resolve("pgd", "mnist", {}) == {
        "norm": "inf",
        "eps": 0.3,
        "eps_step": 0.01,
        "max_iter": 40,
        "num_random_init": 1,
        "targeted": False,
        "target": "none",
        "seed": 0,
        "crafted_on": "source",
        "batch_size": 128,
    }
    cifar = attacks.resolve("pgd", "cifar10", {})
    assert (cifar["eps"], cifar["eps_step"], cifar["max_iter"]) == (8 / 255, 2 / 255, 20)
    assert attacks.resolve("fgsm", "cifar10", {})["eps"] == 8 / 255
    assert not {"eps_step", "max_iter"} & set(attacks.resolve("fgsm", "cifar10", {}))


def test_overrides_win_and_fractions_become_numbers():
    settings = attacks.resolve("pgd", "mnist", {"eps": "4/255", "eps_step": "1/255", "seed": 3, "norm": "inf"})
    assert (settings["eps"], settings["eps_step"], settings["seed"], settings["max_iter"]) == (4 / 255, 1 / 255, 3, 40)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("pdg", {}, "there is no attack 'pdg'; did you mean 'pgd'?"),
        ("pgd", {"esp": 0.1}, "attack pgd: there is no setting 'esp' (given 0.1); did you mean 'eps'?"),
        ("pgd", {"zzzzz": 1}, "there is no setting 'zzzzz' (given 1); there are norm, eps, "),
        ("fgsm", {"max_iter": 3}, "attack fgsm: there is no setting 'max_iter' (given 3)"),
        ("fgsm", {"eps": 0}, "eps is 0, but must be a number above 0"),
        ("fgsm", {"eps": 1.5}, "eps is 1.5, but must be at most 1 under norm 'inf'"),
        ("fgsm", {"eps": float("nan")}, "eps is nan"),
        ("fgsm", {"eps": "8/0"}, "eps is '8/0'"),
        ("fgsm", {"eps": "a lot"}, "eps is 'a lot', but must be a number above 0, such as 0.03 or 8/255"),
        ("fgsm", {"eps": True}, "eps is True"),
        ("pgd", {"max_iter": 2.5}, "max_iter is 2.5, but must be a whole number from 1 to 10000"),
        ("pgd", {"max_iter": True}, "max_iter is True"),
        ("pgd", {"targeted": True}, "targeted is True and target 'none': a targeted attack needs a target"),
        ("pgd", {"target": "next"}, "targeted is False and target 'next': a targeted attack needs a target, and no other has one"),
        ("square", {"targeted": True, "target": "next"}, "targeted is True, but must be False"),
        ("single_pixel", {"eps": 0.3}, "eps is 0.3, but must be a whole number from 1 to 100000"),
        ("deepfool", {"norm": "inf"}, "norm is 'inf', but must be 2"),
        ("pgd", {"norm": 3}, "norm is 3, but must be 'inf' or 2"),
        ("pgd", {"norm": 2, "eps": 2.0}, "norm is 2, so eps_step must be set too: its default holds for norm 'inf'"),
    ],
)
def test_invalid_settings_are_named(name, settings, message):
    with pytest.raises(ValueError) as error:
        attacks.check(name, settings)
    assert message in str(error.value)


def test_another_norm_takes_its_own_distances():
    settings = attacks.resolve("pgd", "mnist", {"norm": 2, "eps": 2, "eps_step": 0.2})
    assert (settings["norm"], settings["eps"]) == (2, 2.0)


def test_a_step_beyond_the_ball_is_refused():
    with pytest.raises(ValueError, match=r"attack pgd on mnist: eps_step 0.01 exceeds eps 0.005; set eps_step too"):
        attacks.resolve("pgd", "mnist", {"eps": 0.005})


@pytest.mark.parametrize("target", ["next", "least_likely"])
def test_a_targeted_attack_reaches_its_target(target, model, functions, x, y):
    settings = attacks.resolve("pgd", "mnist", {"eps": 0.5, "eps_step": 0.05, "targeted": True, "target": target})
    adversarial = craft("pgd", settings, model, x, y)
    logits = functions["predict"](x)
    aims = (y + 1) % CLASSES if target == "next" else np.where(np.arange(CLASSES) == y[:, None], np.inf, logits).argmin(axis=1)
    assert np.mean(functions["predict"](adversarial).argmax(axis=1) == aims) > 0.8


def test_the_difference_of_logits_ratio_has_its_own_gradient(model, functions, x, y):
    """Against finite differences of the loss as the paper writes it."""
    from sweep.estimator import DifferenceOfLogitsRatio

    ratio, step, x, y = DifferenceOfLogitsRatio(model), 1e-2, x[1:], y[1:]  # the first has equal logits

    def loss(x):
        logits = np.sort(functions["predict"](x.astype(np.float64)), axis=1)
        of_y = functions["predict"](x.astype(np.float64))[np.arange(len(y)), y]
        other = np.where(of_y == logits[:, -1], logits[:, -2], logits[:, -1])
        return -(of_y - other) / (logits[:, -1] - logits[:, -3])

    before = model.queries
    np.testing.assert_allclose(ratio.compute_loss(x, y), loss(x), rtol=1e-5, atol=1e-6)
    assert model.queries.forward - before.forward == len(x)  # whoever asks through it asks the model
    gradient, direction = ratio.loss_gradient(x, y), np.random.RandomState(2).normal(size=x.shape).astype(np.float32)
    slope = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    agree = np.isclose((gradient * direction).reshape(len(x), -1).sum(axis=1), slope, rtol=0.02, atol=0.02)
    assert agree.mean() > 0.8  # the others cross from one order of the logits to another


def test_random_starts_take_on_what_withstood(functions, x, y):
    """Of two starts the second is spared what the first fooled, and no more inputs withstand than one start leaves."""
    asked = []

    def predict(images):
        asked.append(len(images))
        return functions["predict"](images)

    def left(starts):
        model = pytest.importorskip("sweep.estimator").wrap(**(functions | {"predict": predict}), input_shape=SHAPE, classes=CLASSES)
        asked.clear()
        settings = attacks.resolve("pgd", "mnist", {"eps": 0.02, "eps_step": 0.01, "max_iter": 3, "num_random_init": starts})
        found = craft("pgd", settings, model, x, y)
        return functions["predict"](found).argmax(axis=1) == y, sum(asked)

    (once, queries_once), (twice, queries_twice) = left(1), left(4)
    assert 0 < once.sum() < len(x) - 1
    assert not (twice & ~once).any()
    assert queries_twice < 4 * queries_once
