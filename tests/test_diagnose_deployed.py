"""Parity and diagnosis name faults in converted models, and say nothing of sound ones; `deployed_faults` says what counts."""

import importlib.util
import time
from collections import Counter

import pytest

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "tensorflow", "onnxruntime", "ai_edge_litert")),
    reason="needs the frameworks and runtimes of the default toolchain",
)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_sixty_faults_and_sixty_sound_conversions():
    from deployed_faults import Drawing, forms

    seed = int(time.time())
    print(f"seed {seed}")
    drawing = Drawing(seed)
    try:
        answers = list(drawing.faulty(max(60, len(forms()))))
        wrong = [answer for answer in answers if not answer.right]
        print(f"right about verdict, layer and kind: {len(answers) - len(wrong)} of {len(answers)}")
        for (fault, said), times in Counter((answer.fault, answer.verdict["fault"]) for answer in wrong).items():
            print(f"{times} x {fault} taken for {said}")
        for answer in wrong:
            print(answer)
        alarms = [str(answer) for answer in drawing.clean(60) if not answer.right]
    finally:
        drawing.close()
    assert len(wrong) <= 0.1 * len(answers), f"seed {seed}"
    assert alarms == [], f"seed {seed}"
