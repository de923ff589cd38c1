"""The bridge against ART's native classifier: the same network, the same settings, the same adversarial inputs."""

import numpy as np
import pytest
import torch
from art.attacks.evasion import DeepFool, HopSkipJump
from art.estimators.classification import PyTorchClassifier
from art.estimators.classification.classifier import ClassGradientsMixin
from art.estimators.estimator import LossGradientsMixin

from sweep import attacks, crafting, estimator

SHAPE, CLASSES = (8, 8, 2), 4
BALLS = [{"eps": 0.15, "eps_step": 0.03, "max_iter": 10}, {"norm": 2, "eps": 1.0, "eps_step": 0.2, "max_iter": 10}]


class Net(torch.nn.Module):
    """Channels last from the outside, as every model of a sweep."""

    def __init__(self):
        super().__init__()
        self.conv, self.dense = torch.nn.Conv2d(2, 8, 3), torch.nn.Linear(72, CLASSES)

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(torch.relu(self.conv(x.permute(0, 3, 1, 2))), 2)
        return self.dense(x.flatten(1))



def craft(name, settings, model, x, y):
    return crafting.craft(name, settings, model, x, y, np.asarray(model.predict(x)))


@pytest.fixture(scope="module")
def data():
    """Which quadrant is brighter, under noise."""
    draw = np.random.RandomState(0)
    y = draw.randint(CLASSES, size=300)
    x = draw.uniform(0, 0.7, size=(300, *SHAPE))
    for image, label in zip(x, y):
        image[4 * (label // 2) :, :][:4, 4 * (label % 2) :][:, :4] += 0.3
    return x.astype(np.float32), y.astype(np.int64)


@pytest.fixture(scope="module")
def net(data):
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    x, y = (torch.from_numpy(array) for array in data)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.eval()


@pytest.fixture(scope="module")
def functions(net):
    def predict(x):
        with torch.no_grad():
            return net(torch.from_numpy(x)).numpy()

    def loss_gradient(x, y):
        images = torch.from_numpy(x).requires_grad_()
        loss = torch.nn.functional.cross_entropy(net(images), torch.from_numpy(y), reduction="sum")
        return torch.autograd.grad(loss, images)[0].numpy()

    def class_gradient(x, classes):
        images = torch.from_numpy(x).requires_grad_()
        logits = net(images)
        if classes is not None:
            return torch.autograd.grad(logits.gather(1, torch.from_numpy(classes)[:, None]).sum(), images)[0].numpy()
        gradients = [torch.autograd.grad(logits[:, label].sum(), images, retain_graph=True)[0] for label in range(CLASSES)]
        return torch.stack(gradients, dim=1).numpy()

    return {"predict": predict, "loss_gradient": loss_gradient, "class_gradient": class_gradient}


@pytest.fixture
def bridge(functions):
    return estimator.wrap(input_shape=SHAPE, classes=CLASSES, **functions)


@pytest.fixture
def native(net):
    return PyTorchClassifier(
        net, torch.nn.CrossEntropyLoss(), input_shape=SHAPE, nb_classes=CLASSES, clip_values=(0, 1), channels_first=False, device_type="cpu"
    )


def both(name, overrides, bridge, native, x, y):
    settings = attacks.resolve(name, "another", {"batch_size": 50, **overrides})
    return craft(name, settings, bridge, x, y), craft(name, settings, native, x, y)


def wrong(functions, x, y):
    return functions["predict"](x).argmax(axis=1) != y


def test_fgsm_equals_the_native_classifiers(bridge, native, functions, data):
    x, y = data
    ours, theirs = both("fgsm", {"eps": 0.15}, bridge, native, x, y)
    gradient = np.abs(functions["loss_gradient"](x, y))
    signed = gradient > 1e-6 * gradient.max()  # else the sign is that of a rounding error
    assert signed.mean() > 0.9
    np.testing.assert_allclose(ours[signed], theirs[signed], rtol=0, atol=1e-6)
    assert wrong(functions, x, y).mean() < 0.1
    assert wrong(functions, ours, y).mean() > 0.5


@pytest.mark.parametrize("ball", BALLS)
def test_pgd_fools_as_the_native_classifiers(ball, bridge, native, functions, data):
    x, y = data
    ours, theirs = both("pgd", ball, bridge, native, x, y)
    np.testing.assert_array_equal(wrong(functions, ours, y), wrong(functions, theirs, y))
    assert 0.5 < wrong(functions, ours, y).mean() < 1
    assert np.mean(np.abs(ours - theirs) < 1e-5) > 0.99


def test_fgsm_under_l2_equals_the_native_classifiers(bridge, native, data):
    x, y = data
    ours, theirs = both("fgsm", {"norm": 2, "eps": 0.5}, bridge, native, x, y)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("label", [None, 2, np.array([0, 3, 1, 2, 2])])
def test_class_gradients_are_shaped_as_the_native_ones(label, bridge, native, data):
    ours, theirs = (model.class_gradient(data[0][:5], label) for model in (bridge, native))
    assert ours.shape == theirs.shape == (5, CLASSES if label is None else 1, *SHAPE)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_an_attack_on_class_gradients_equals_the_native_one(bridge, native, data):
    ours, theirs = (DeepFool(model, max_iter=20, batch_size=8, verbose=False).generate(data[0][:8]) for model in (bridge, native))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def test_a_black_box_serves_an_attack_that_computes_in_float64(functions, data):
    seen = set()

    def predict(x):
        seen.add(x.dtype)
        return functions["predict"](x)

    model = estimator.wrap(predict, SHAPE, CLASSES)
    found = HopSkipJump(model, max_iter=1, max_eval=20, init_eval=5, verbose=False).generate(data[0][:2])
    assert seen == {np.dtype(np.float32)}
    assert wrong(functions, found.astype(np.float32), data[1][:2]).all()


def test_labels_come_one_hot_or_as_indices(bridge, data):
    x, y = data[0][:6], data[1][:6]
    expected = bridge.loss_gradient(x, y)
    for labels in (np.eye(CLASSES)[y], np.eye(CLASSES, dtype=np.float32)[y], y[:, None], y.astype(np.int32)):
        np.testing.assert_array_equal(bridge.loss_gradient(x.astype(np.float64), labels), expected)


def test_gradients_do_not_depend_on_the_batch(bridge, data):
    x, y = data
    np.testing.assert_allclose(bridge.loss_gradient(x[:9], y[:9])[:1], bridge.loss_gradient(x[:1], y[:1]), atol=1e-7)


def test_what_a_model_gives_may_be_written_to(functions, data):
    def predict(x):
        answer = functions["predict"](x).astype(np.float64)
        answer.flags.writeable = False
        return answer

    logits = estimator.wrap(predict, SHAPE, CLASSES).predict(data[0][:2])
    assert logits.flags.writeable
    assert logits.dtype == np.float32


def test_queries_are_counted(bridge, data):
    x, y = data[0][:6], data[1][:6]
    bridge.predict(x)
    bridge.loss_gradient(x, y)
    bridge.class_gradient(x, 1)
    bridge.class_gradient(x[:2])
    assert bridge.queries == (6, 6 + 6 + 2 * CLASSES)


def test_queries_of_the_attacks(bridge, data):
    """One gradient an input for a single step; for ten steps ten, and ART's check of the attacked input at the end. It checks the clean one
    too, whose logits were asked for a moment ago."""
    x = data[0][:6]
    logits = bridge.predict(x)
    y = logits.argmax(axis=1)
    bridge.queries = estimator.Queries(0, 0)
    crafting.craft("fgsm", attacks.resolve("fgsm", "another", {}), bridge, x, y, logits)
    assert bridge.queries == (0, 6)
    crafting.craft("pgd", attacks.resolve("pgd", "another", {"max_iter": 10}), bridge, x, y, logits)
    assert bridge.queries == (6, 66)


def test_a_model_offers_what_it_was_given(functions):
    def offers(*names):
        model = estimator.wrap(input_shape=SHAPE, classes=CLASSES, **{name: functions[name] for name in ("predict", *names)})
        return isinstance(model, LossGradientsMixin), isinstance(model, ClassGradientsMixin)

    assert offers() == (False, False)
    assert offers("loss_gradient") == (True, False)
    assert offers("loss_gradient", "class_gradient") == (True, True)
    with pytest.raises(ValueError, match="without a loss gradient"):
        offers("class_gradient")


def test_the_estimator_describes_the_images(bridge):
    assert bridge.input_shape == SHAPE
    assert bridge.nb_classes == CLASSES
    assert bridge.channels_first is False
    assert bridge.clip_values.tolist() == [0, 1]


def test_what_was_just_asked_is_remembered(functions, data):
    asked = []

    def predict(x):
        asked.append(len(x))
        return functions["predict"](x)

    def class_gradient(x, classes):
        asked.append(len(x))
        return functions["class_gradient"](x, classes)

    model = estimator.wrap(predict, data[0].shape[1:], 4, functions["loss_gradient"], class_gradient)
    x = data[0][:4]
    first = model.predict(x)
    first[0] = 99  # ART writes into what it gets
    again = model.predict(x[[2, 0, 2, 3]])
    np.testing.assert_array_equal(again, functions["predict"](x)[[2, 0, 2, 3]])
    assert asked == [4]
    model.predict(np.concatenate([x[:1], x[:1] + 0.1, x[:1] + 0.1]))  # a new one twice
    assert asked == [4, 1]
    for number in range(2, 5):
        model.predict(x[1:2] * 0 + number / 10)
    model.predict(x[:1])  # three calls later it is forgotten
    assert asked == [4, 1, 1, 1, 1, 1]
    asked.clear()
    gradients = model.class_gradient(x, label=np.array([0, 1, 0, 1]))
    np.testing.assert_allclose(model.class_gradient(x[:2], label=np.array([0, 0])), functions["class_gradient"](x[:2], np.array([0, 0]))[:, None], rtol=1e-6)
    np.testing.assert_array_equal(gradients[0], model.class_gradient(x[:1], label=0)[0])
    assert asked == [4, 1]  # the second of them is of another class
