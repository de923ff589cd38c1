"""What does an attack through this program's estimator cost beside other ways to the same attack?

    OMP_NUM_THREADS=1 python benchmarks/attacks.py [--examples 1000] [--few 50] [--rounds 7] [--clock wall] [--attacks fgsm bim pgd]
                                                   [--frameworks pytorch tensorflow] [--json FILE]

A trained LeNet-5, the same weights everywhere, one thread, batches of 128: through our estimator in this process; ART's own estimator of
the framework; and for PyTorch a hand-written loop, Foolbox and torchattacks, where they have the attack. "border" is ours as a sweep runs
it, attacker and model in two workers. All attack images that the network gets right, of which there are some 950, repeated where more are
asked for. DeepFool, Square and HopSkipJump get `--few` images.

A round runs every way once, in an order drawn anew. Printed is the median over the rounds of ours over the other (for the border: the
border over ours), with a bootstrap interval; then seconds of both, and what they came to: images fooled and the median L2 distance. A ratio
of ways that came to different ends is no comparison; the tests of agreement say what ends differ by definition. torchattacks' DeepFool
ends on the boundary, to one side or the other by rounding, and its Square gives images that withstand back as they were. The clock `cpu`
counts this process' seconds of processor time; the border is on the wall's clock always.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the network is that of the tests of agreement

import numpy as np
import torch
from art.estimators.classification import PyTorchClassifier, TensorFlowV2Classifier
from digits import CLASSES, SHAPE, Digits, Workers, distances, images, learnt, plain, tensor, wrapped

from sweep import attacks, components, crafting

EPS, STEP, BATCH, SEED = 0.12, 0.01, 128, 0
ITERATIVE = {"eps": EPS, "eps_step": STEP, "batch_size": BATCH}
SETTINGS: dict[str, dict[str, Any]] = {
    "fgsm": {"eps": EPS, "batch_size": BATCH},
    "bim": ITERATIVE | {"max_iter": 10},
    "pgd": ITERATIVE | {"max_iter": 40, "num_random_init": 1},
    "deepfool": {"eps": 28.0, "max_iter": 50, "overshoot": 0.02, "candidates": CLASSES, "batch_size": BATCH},
    "square": {"eps": EPS, "max_iter": 500, "p_init": 0.8, "batch_size": BATCH},
    "hop_skip_jump": {"eps": 28.0, "norm": 2, "max_iter": 10, "max_eval": 10_000, "init_eval": 100},
}
MANY = ("fgsm", "bim", "pgd")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

Way = Callable[[], np.ndarray]  # crafts, and returns adversarial images (N, 28, 28, 1)


def ours(framework: str, attack: str, digits: Digits) -> Way:
    model = wrapped(framework, digits)
    settings, logits = attacks.resolve(attack, "mnist", SETTINGS[attack]), model.predict(digits.x)
    return lambda: crafting.craft(attack, settings, model, digits.x, digits.y, logits)


class Float32Classifier(PyTorchClassifier):
    """Without this HopSkipJump hands float64 to a float32 network."""

    def predict(self, x: np.ndarray, batch_size: int = BATCH, **kwargs: Any) -> np.ndarray:
        return super().predict(np.asarray(x, np.float32), batch_size, **kwargs)


def native(framework: str, attack: str, digits: Digits) -> Way:
    """ART's own estimator."""
    whole = {"nb_classes": CLASSES, "clip_values": (0.0, 1.0)}
    if framework == "pytorch":
        loss = torch.nn.CrossEntropyLoss()
        model: Any = Float32Classifier(model=plain(digits), loss=loss, input_shape=(1, 28, 28), device_type="cpu", **whole)
    else:
        import tensorflow as tf

        built = components.load("frameworks", framework).build(digits.layers, "identical", 0)
        components.load("frameworks", framework).set_weights(built, digits.weights)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model = TensorFlowV2Classifier(model=built.model, loss_object=loss, input_shape=SHAPE, **whole)
    row, settings = attacks.ROWS[attack], attacks.resolve(attack, "mnist", SETTINGS[attack])
    made = crafting.made(row, settings, model)
    given = digits.x if framework != "pytorch" else np.ascontiguousarray(digits.x.transpose(0, 3, 1, 2))

    def craft() -> np.ndarray:
        np.random.seed(SEED)
        found = made.generate(x=given, y=digits.y)
        return found if framework != "pytorch" else found.transpose(0, 2, 3, 1)

    return craft


def in_batches(attack: Callable[[Any, Any], Any], digits: Digits, size: int = BATCH) -> Way:
    """An attack on PyTorch's tensors."""
    x, y = tensor(digits.x), torch.from_numpy(digits.y)
    return lambda: np.concatenate([images(attack(x[i:i + size], y[i:i + size])) for i in range(0, len(x), size)])


def hand_loop(attack: str, digits: Digits) -> Way | None:
    if attack not in MANY:
        return None
    net, step, steps = plain(digits), SETTINGS[attack].get("eps_step", EPS), SETTINGS[attack].get("max_iter", 1)

    def loop(x: Any, y: Any) -> Any:
        lowest, highest = (x - EPS).clamp_(min=0), (x + EPS).clamp_(max=1)
        found = (x + torch.empty_like(x).uniform_(-EPS, EPS)).clamp_(0, 1) if attack == "pgd" else x.clone()
        for _ in range(steps):
            found.requires_grad_()
            (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(net(found), y, reduction="sum"), found)
            found = torch.clamp(found.detach().add_(gradient.sign_(), alpha=step), lowest, highest)
        return found

    return in_batches(loop, digits)


def foolbox(attack: str, digits: Digits) -> Way | None:
    import foolbox as box

    given = SETTINGS[attack]
    model, steps = box.PyTorchModel(plain(digits), bounds=(0, 1)), given.get("max_iter", 1)
    if attack == "hop_skip_jump":
        made = box.attacks.HopSkipJumpAttack(
            init_attack=box.attacks.LinearSearchBlendedUniformNoiseAttack(steps=50), steps=steps, gamma=0.01 * np.prod(SHAPE),
            initial_gradient_eval_steps=given["init_eval"], max_gradient_eval_steps=given["max_eval"],
        )
        return in_batches(partial(made.run, model), digits, size=1)  # of several images it takes smaller steps
    chosen: dict[str, tuple[Callable[[], Any], float | None]] = {
        "fgsm": (lambda: box.attacks.LinfFastGradientAttack(), EPS),
        "bim": (lambda: box.attacks.LinfBasicIterativeAttack(abs_stepsize=STEP, steps=steps), EPS),
        "pgd": (lambda: box.attacks.LinfPGD(abs_stepsize=STEP, steps=steps, random_start=True), EPS),
        "deepfool": (lambda: box.attacks.L2DeepFoolAttack(steps=steps, candidates=CLASSES, overshoot=given.get("overshoot", 0)), None),
    }
    if attack not in chosen:
        return None
    make, eps = chosen[attack]
    made = make()
    return in_batches(lambda x, y: made(model, x, y, epsilons=eps)[1], digits)


def torchattacks(attack: str, digits: Digits) -> Way | None:
    import torchattacks as others

    net, given = plain(digits), SETTINGS[attack]
    makes: dict[str, Callable[[], Any]] = {
        "fgsm": lambda: others.FGSM(net, EPS),
        "bim": lambda: others.BIM(net, EPS, STEP, given["max_iter"]),
        "pgd": lambda: others.PGD(net, EPS, STEP, given["max_iter"], random_start=True),
        "deepfool": lambda: others.DeepFool(net, given["max_iter"], given["overshoot"]),
        "square": lambda: others.Square(net, eps=EPS, n_queries=given["max_iter"], p_init=given["p_init"]),
    }
    return in_batches(makes[attack](), digits) if attack in makes else None


def seconds_of(way: Way, clock: Callable[[], float]) -> tuple[float, float, np.ndarray]:
    """By the clock, and on the wall."""
    began, started = time.perf_counter(), clock()
    found = way()
    return clock() - started, time.perf_counter() - began, found


def compare(
    framework: str, attack: str, digits: Digits, workers: Workers, rounds: int, clock: Callable[[], float]
) -> Iterator[dict[str, Any]]:
    """A row for each way but ours."""
    made = {"ours": ours(framework, attack, digits), "ART's own": native(framework, attack, digits)}
    if framework == "pytorch":
        made |= {"hand loop": hand_loop(attack, digits), "foolbox": foolbox(attack, digits), "torchattacks": torchattacks(attack, digits)}
    ways = {name: way for name, way in made.items() if way}
    settings = attacks.resolve(attack, "mnist", SETTINGS[attack])
    random, net = np.random.RandomState(0), plain(digits)
    times: dict[str, list[float]] = {name: [] for name in (*ways, "border", "ours on the wall")}
    ends: dict[str, np.ndarray] = {}
    for number in range(rounds + 1):  # the first is the warm-up
        for name in random.permutation([*ways, "border"]):
            if name == "border":
                outcome = workers.attacked(framework, attack, settings)
                measured = {"border": outcome.metrics["attack_seconds"]}
                ends[name] = outcome.arrays["adversarial"]
            else:
                by_clock, on_wall, ends[name] = seconds_of(ways[name], clock)
                measured = {name: by_clock} | ({"ours on the wall": on_wall} if name == "ours" else {})
            for measure, taken in measured.items():
                if number:
                    times[measure].append(taken)
    for name in [*ways, "border"][1:]:
        above, below = ("border", "ours on the wall") if name == "border" else ("ours", name)
        ratios = np.array(times[above]) / np.array(times[below])
        resampled = np.median(random.choice(ratios, (10_000, rounds)), axis=1)
        yield {
            "framework": framework, "attack": attack, "examples": len(digits.x),
            "pair": "border / ours" if name == "border" else f"ours / {name}",
            "ratio": float(np.median(ratios)), "ratio_95": [float(edge) for edge in np.percentile(resampled, [2.5, 97.5])],
            "seconds": [float(np.median(times[each])) for each in (above, below)],
            "fooled": [float(np.mean(net(tensor(ends[each])).numpy().argmax(axis=1) != digits.y)) for each in ("ours", name)],
            "l2": [float(np.median(distances(digits.x, ends[each]))) for each in ("ours", name)],
        }


def line(row: dict[str, Any]) -> str:
    of = "{framework:10} {attack:13} {examples:6} {pair:19} ".format(**row)
    ratio = "ratio {:5.2f} [{:.2f}, {:.2f}]   {:.2f} and {:.2f} s".format(row["ratio"], *row["ratio_95"], *row["seconds"])
    return of + ratio + "   fooled {:.1%} and {:.1%}   L2 {:.2f} and {:.2f}".format(*row["fooled"], *row["l2"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--few", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--attacks", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--frameworks", nargs="+", choices=["pytorch", "tensorflow"], default=["pytorch", "tensorflow"])
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    digits, rows = learnt(), []
    right = np.flatnonzero(plain(digits)(tensor(digits.x)).numpy().argmax(axis=1) == digits.y)
    for count, names in ((options.examples, set(MANY)), (options.few, set(SETTINGS) - set(MANY))):
        chosen = np.resize(right, count)
        attacked = digits._replace(x=digits.x[chosen], y=digits.y[chosen])
        with tempfile.TemporaryDirectory() as folder:
            workers = Workers(Path(folder), attacked)
            for framework in options.frameworks:
                for attack in (name for name in options.attacks if name in names):
                    for row in compare(framework, attack, attacked, workers, options.rounds, CLOCKS[options.clock]):
                        rows.append(row)
                        print(line(row), flush=True)
            workers.close()
    if options.json:
        machine = {"machine": platform.processor() or platform.machine(), "load": os.getloadavg(), "clock": options.clock}
        options.json.write_text(json.dumps(dict(machine, rounds=options.rounds, results=rows), indent=1))


if __name__ == "__main__":
    main()
