"""The search for disagreements, between models whose boundaries are known."""

import numpy as np
import pytest

from sweep.searching import disagreements

SIZE = (6, 6, 1)


def brightness(threshold):
    """Two classes: whether an image's mean is above a threshold."""

    def predict(x):
        above = x.reshape(len(x), -1).mean(axis=1) - threshold
        return np.stack([-above, above], axis=1).astype(np.float32)

    return predict


@pytest.fixture
def images():
    means = np.linspace(0.3, 0.7, 40).reshape(-1, 1, 1, 1)
    return np.clip(means + np.random.RandomState(0).uniform(-0.02, 0.02, (40, *SIZE)), 0, 1).astype(np.float32)


def search(images, other, eps=0.1, rounds=60, **options):
    return disagreements(brightness(0.5), brightness(other), images, eps, rounds, 3, **options)


def test_what_is_found_is_a_disagreement_within_the_ball(images):
    found = search(images, 0.51)
    ended = found.round >= 0
    mean = found.inputs.reshape(40, -1).mean(axis=1)
    assert ((mean[ended] > 0.5) & (mean[ended] < 0.51)).all()
    assert np.abs(found.inputs - images).max() <= 0.1 + 1e-6
    assert found.inputs.min() >= 0
    assert found.inputs.max() <= 1
    # An image reaches the band between the two boundaries if its mean is within eps of it; beyond, none can.
    start = images.reshape(40, -1).mean(axis=1)
    assert not ended[(start < 0.4) | (start > 0.61)].any()
    assert ended[(start > 0.44) & (start < 0.57)].mean() > 0.8


def test_the_margin_guides(images):
    guided, blind = search(images, 0.51), search(images, 0.51, guided=False)
    assert (guided.round >= 0).sum() > 1.5 * (blind.round >= 0).sum()


def test_images_that_disagree_as_they_are(images):
    found = search(images, 0.55, rounds=1)
    start = images.reshape(40, -1).mean(axis=1)
    assert ((found.round == 0) == ((start > 0.5) & (start < 0.55))).all()
    assert np.array_equal(found.inputs[found.round == 0], images[found.round == 0])


def test_equal_models_never_disagree_and_queries_are_counted(images):
    found = search(images, 0.5, rounds=5)
    assert (found.round == -1).all()
    asked = []

    def counted(threshold):
        predict = brightness(threshold)
        return lambda x: asked.append(len(x)) or predict(x)

    again = disagreements(counted(0.5), counted(0.5), images, 0.1, 5, 3)
    assert np.array_equal(again.inputs, found.inputs)
    assert again.queries == found.queries == sum(asked)
