"""One network in frameworks of two decades, attacked as a sweep does it: equal weights and an equal seed give equal outcomes."""

import functools
from itertools import combinations

import pytest
from digits import Workers, distances, learnt

from sweep import attacks

pytestmark = pytest.mark.slow

FRAMEWORKS = ("tensorflow", "pytorch", "jax", "tensorflow@1.15", "mxnet")
PGD = {"eps": 0.12, "eps_step": 0.024, "max_iter": 10, "num_random_init": 1, "seed": 5}


@pytest.fixture(scope="module")
def crafted(tmp_path_factory):
    """What PGD made of 1,000 images by framework. Skips the test where its toolchain is not installed."""
    workers = Workers(tmp_path_factory.mktemp("workers"), learnt())
    yield functools.cache(lambda framework: workers.attacked(framework, "pgd", attacks.resolve("pgd", "mnist", PGD)).arrays)
    workers.close()


@pytest.mark.parametrize(("one", "other"), list(combinations(FRAMEWORKS, 2)))
def test_the_same_attack_has_the_same_outcomes(one, other, crafted):
    made = crafted(one), crafted(other)
    right = [each["after"].argmax(axis=1) == each["label"] for each in made]
    assert len(right[0]) == 1000
    assert all(0.3 < each.mean() < 0.7 for each in right)  # where outcomes hang in the balance
    assert (right[0] != right[1]).sum() <= 5
    lengths = [distances(each["clean"], each["adversarial"]).mean() for each in made]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.01)
