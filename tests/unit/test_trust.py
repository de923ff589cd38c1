"""Whether robust accuracies are to be trusted."""

import pytest

from sweep.trust import Attacked, among, of_model


@pytest.mark.parametrize(("repeat", "zeros", "flags"), [
    (0.0, 0, []),
    (1e-6, None, []),  # another order of sums, and a black box
    (0.02, 0, ["randomised outputs: logits of the same inputs differ by 0.02 of the largest"]),
    (float("nan"), 0, ["randomised outputs: logits of the same inputs differ by nan of the largest"]),
    (0.0, 1, []),  # one in a hundred
    (0.0, 40, ["zero gradients: of 40 of 100 inputs"]),
])
def test_what_a_models_own_answers_say(repeat, zeros, flags):
    assert of_model(repeat, zeros, 100) == flags


OWN = Attacked("pgd(eps=0.2)", 0.2, 0.5, 100)


@pytest.mark.parametrize(("other", "flags"), [
    (Attacked("square", 0.2, 0.49, 100), []),  # one input of a hundred
    (Attacked("square", 0.2, 0.48, 100), ["undercut: square within eps 0.2 leaves 48.0%"]),
    (Attacked("square", 0.3, 0.1, 100), []),  # a larger ball
    (Attacked("square", 0.2, 0.1, 10), []),  # other inputs
    (Attacked("square", 0.1, 0.6, 100), []),
    (Attacked("pgd(eps=0.1)", 0.1, 0.3, 100), ["undercut: pgd(eps=0.1) within eps 0.1 leaves 30.0%", "its success does not grow with eps"]),
])
def test_what_other_attacks_on_the_model_say(other, flags):
    assert among(OWN, [other]) == flags


def test_the_strongest_is_named():
    others = [Attacked("square", 0.2, 0.3, 100), Attacked("auto_attack", 0.2, 0.0, 100), Attacked("fgsm", 0.2, 0.6, 100)]
    assert among(OWN, others) == ["undercut: auto_attack within eps 0.2 leaves 0.0%"]
    assert among(OWN, []) == []
