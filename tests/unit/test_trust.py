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
    figures = {"attack_repeat_difference": repeat, "attacked": 100.0} | ({} if zeros is None else {"attack_zero_gradients": float(zeros)})
    assert of_model(figures) == flags


def test_what_was_not_measured_says_nothing():
    assert of_model({"robust_accuracy": 0.5}) == []


PGD = {"attack": "pgd", "attack_norm": "inf"}
OWN = Attacked("pgd(eps=0.2)", "white-box", PGD, 0.2, 0.5, 100)


def other(share, eps=0.2, access="white-box", settings=None, n=100, attack="fgsm"):
    return Attacked(attack, access, settings or {"attack": attack}, eps, share, n)


@pytest.mark.parametrize(("beside", "flags"), [
    (other(0.46), []),  # four inputs of a hundred: 1/16 by chance
    (other(0.45), ["undercut: fgsm within eps 0.2 leaves 45.0%"]),
    (other(0.45, access="score"), ["undercut by a black box: fgsm within eps 0.2 leaves 45.0%"]),
    (other(0.1, eps=0.3), []),  # a larger ball
    (other(0.6, eps=0.1), []),
    (other(0.1, n=10), ["undercut: fgsm within eps 0.2 leaves 10.0%"]),  # Wilson: at most 40 %
    (other(0.3, n=10), []),  # at most 60 %
    (other(0.3, eps=0.1, settings=PGD), ["undercut: fgsm within eps 0.1 leaves 30.0%", "its success does not grow with eps"]),
    (other(0.5, eps=0.1, settings=PGD), ["its success does not grow with eps"]),
    (other(0.5, eps=0.15, settings=PGD), []),  # hardly a larger ball
    (other(0.5, eps=0.1, settings=PGD, access="transfer:same-weights"), []),
    (other(0.5, eps=0.1, settings=PGD | {"attack_targeted": True}), []),
])
def test_what_other_attacks_on_the_model_say(beside, flags):
    assert among(OWN, [beside]) == flags


def test_which_one_is_named():
    others = [other(0.3, attack="square", access="score"), other(0.0, attack="auto_attack"), other(0.6)]
    assert among(OWN, others) == ["undercut by a black box: square within eps 0.2 leaves 30.0%"]  # the sign of masked gradients
    carried = OWN._replace(access="transfer:same-weights")
    assert among(carried, others) == ["undercut: auto_attack within eps 0.2 leaves 0.0%"]
    assert among(OWN, []) == []


def test_where_nothing_is_left_nothing_can_grow():
    assert among(OWN._replace(robust_accuracy=0.0), [other(0.0, eps=0.1, settings=PGD)]) == []
