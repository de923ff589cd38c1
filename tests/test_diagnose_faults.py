"""The diagnosis names faults of real frameworks, and says nothing of models without one; `faults` says what counts."""

import time
from collections import Counter

import pytest
from faults import FAULTS, clean, faulty

AT_LEAST = {"kernel_flip", "flatten_order", "gate_order", "epsilon", "missing_bias", "padding_side", "activation", "transposed_kernel",
                "pool_edge_count", "swapped_layers"}


def test_a_few_faults_are_named():
    answers = list(faulty(seed=20, count=15, frameworks=("pytorch",)))
    assert [str(answer) for answer in answers if not answer.right] == []
    assert [str(answer) for answer in clean(seed=20, count=6, frameworks=("pytorch",)) if not answer.right] == []


@pytest.mark.slow
def test_sixty_faults_and_sixty_clean_pairs():
    seed = int(time.time())
    print(f"seed {seed}")
    answers = list(faulty(seed, max(60, len(FAULTS))))
    wrong = [answer for answer in answers if not answer.right]
    print(f"right about layer and kind: {len(answers) - len(wrong)} of {len(answers)}")
    for (fault, said), times in Counter((answer.fault, answer.verdict["fault"]) for answer in wrong).items():
        print(f"{times} x {fault} taken for {said}")
    for answer in wrong:
        print(answer)
    assert {answer.fault for answer in answers} == FAULTS.keys() >= AT_LEAST
    assert len(wrong) <= 0.1 * len(answers), f"seed {seed}"
    assert [str(answer) for answer in clean(seed, 60) if not answer.right] == [], f"seed {seed}"
