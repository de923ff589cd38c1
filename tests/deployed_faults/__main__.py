"""The score from the command line."""

import argparse
import time
from collections import Counter

from . import Drawing

parser = argparse.ArgumentParser(description="Faults in converted models, drawn from a seed, and whether they are named.")
parser.add_argument("--seed", type=int, default=None, help="drawn where none is given")
parser.add_argument("--count", type=int, default=60, help="faulty conversions, and as many sound ones")
parser.add_argument("--all", action="store_true", help="show right answers too")
arguments = parser.parse_args()
seed = int(time.time()) if arguments.seed is None else arguments.seed
print(f"seed {seed}", flush=True)
drawing = Drawing(seed)
answers = []
for answer in drawing.faulty(arguments.count):
    answers.append(answer)
    if arguments.all or not answer.right:
        print("right" if answer.right else "WRONG", answer, flush=True)
silent = list(drawing.clean(arguments.count))
for answer in silent:
    if not answer.right:
        print("NOT SILENT", answer)
drawing.close()
print(f"faults of {len({answer.fault for answer in answers})} kinds, {len({(answer.fault, answer.form) for answer in answers})} forms")
print(f"ways: {dict(Counter(' '.join(answer.way[1:]) for answer in answers))}")
print(f"right about verdict, layer and kind: {sum(answer.right for answer in answers)} of {len(answers)}")
print(f"drawn again, since parity has them {' and '.join(f'{said}: {times}' for said, times in drawing.unseen.items())}")
print(f"silent: {sum(answer.right for answer in silent)} of {len(silent)} sound conversions")
confused = Counter((answer.fault, answer.verdict["fault"]) for answer in answers if not answer.right)
for (fault, said), times in sorted(confused.items(), key=str):
    print(f"{times} x {fault} taken for {said}")
