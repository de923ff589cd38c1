"""Our attacks give what others' implementations of them give, on the same weights and the same images.

Every outcome, right or wrong, is judged by one model: the network as PyTorch's own modules. What the network gets wrong as it is stays as
it is in ours, so the others are given the rest alone.

FGSM, BIM, PGD   are the same arithmetic everywhere. Signs of gradients that are zero but for rounding may differ, so a few of 1,000
                 outcomes may; random starts come from each implementation's own generator, so there the rates are compared.
DeepFool         ours (ART's) goes on until the network errs without overshoot, and lengthens the whole way by it at the end. Foolbox
                 lengthens the way after every step and stops where the network errs with it: never nearer than the boundary, and nearer
                 than ours by up to the overshoot. torchattacks lengthens each step alone, the last of which is tiny: it ends on the
                 boundary but for rounding, so its way is lengthened here as ours is. All of them take all ten classes as candidates.
Square           the same schedule and initial stripes, from each implementation's own generator. One square per query for all images of a
                 run, so a run's rate is one draw: means over runs are compared. torchattacks gives images that withstand back as they were.
HopSkipJump      ours (ART's) starts from noise that is brought to the boundary and ends with a step away from it; Foolbox ends with a
                 search along the line to the input, so ours is brought to the boundary so too. It starts from noise here as well, one that
                 the network takes for another class, and its gamma is ART's: 0.01 d instead of 1. It gets one image at a time: of several
                 it divides all gradients by the norm of them together, which makes its steps smaller the more there are.
"""

import functools
import math

import numpy as np
import pytest
from digits import Workers, distances, images, learnt, plain, tensor, wrapped

from sweep import attacks, crafting

torch = pytest.importorskip("torch")

EPS, STEP, STEPS = 0.12, 0.024, 10
ITERATIVE = {"eps": EPS, "eps_step": STEP, "max_iter": STEPS}
OURS = {
    "fgsm": ("fgsm", {"eps": EPS}), "bim": ("bim", ITERATIVE), "pgd": ("pgd", ITERATIVE | {"num_random_init": 0}),
    "pgd_from_anywhere": ("pgd", ITERATIVE | {"num_random_init": 1}),
}
FAR = 28.0  # the image cube's diagonal: nothing of a minimal attack is too far
OVERSHOOT = 0.02
AGAINST = [(framework, theirs) for framework in ("tensorflow", "pytorch", "jax") for theirs in ("foolbox", "hand_loop")]
PAIRS = [
    pytest.param(framework, theirs, id=f"{framework}-{theirs}", marks=[pytest.mark.slow] if framework == "jax" else [])
    for framework, theirs in [*AGAINST, ("pytorch", "torchattacks")]
]


def by_hand_loop(net, x, y, attack):
    """Steps along the sign of the cross-entropy's gradient, within EPS of x (N, 1, 28, 28) and [0, 1]."""
    step, steps = (EPS, 1) if attack == "fgsm" else (STEP, STEPS)
    lowest, highest = (x - EPS).clamp(min=0), (x + EPS).clamp(max=1)
    found = x.clone()
    if attack == "pgd_from_anywhere":
        found += torch.empty_like(x).uniform_(-EPS, EPS)
        found = found.clamp(0, 1)
    for _ in range(steps):
        found.requires_grad_()
        loss = torch.nn.functional.cross_entropy(net(found), y, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, found)
        found = torch.clamp(found.detach() + step * gradient.sign(), lowest, highest)
    return found


def by_foolbox(net, x, y, attack):
    box = pytest.importorskip("foolbox")
    made = {
        "fgsm": lambda: box.attacks.LinfFastGradientAttack(random_start=False),
        "bim": lambda: box.attacks.LinfBasicIterativeAttack(abs_stepsize=STEP, steps=STEPS, random_start=False),
        "pgd": lambda: box.attacks.LinfPGD(abs_stepsize=STEP, steps=STEPS, random_start=False),
        "pgd_from_anywhere": lambda: box.attacks.LinfPGD(abs_stepsize=STEP, steps=STEPS, random_start=True),
    }[attack]()
    return made(box.PyTorchModel(net, bounds=(0, 1)), x, y, epsilons=EPS)[1]


def by_torchattacks(net, x, y, attack):
    others = pytest.importorskip("torchattacks")
    return {
        "fgsm": lambda: others.FGSM(net, EPS),
        "bim": lambda: others.BIM(net, EPS, STEP, STEPS),
        "pgd": lambda: others.PGD(net, EPS, STEP, STEPS, random_start=False),
        "pgd_from_anywhere": lambda: others.PGD(net, EPS, STEP, STEPS, random_start=True),
    }[attack]()(x, y)


THEIRS = {"hand_loop": by_hand_loop, "foolbox": by_foolbox, "torchattacks": by_torchattacks}


@pytest.fixture(scope="module")
def digits():
    return learnt()


@pytest.fixture(scope="module")
def net(digits):
    return plain(digits)


@pytest.fixture(scope="module")
def logits_of(net):
    return lambda x: net(tensor(x)).numpy()


@pytest.fixture(scope="module")
def right(digits, logits_of):
    """Which images the network gets right, (1000,)."""
    return logits_of(digits.x).argmax(axis=1) == digits.y


@pytest.fixture(scope="module")
def workers(digits, tmp_path_factory):
    made = Workers(tmp_path_factory.mktemp("workers"), digits)
    yield made
    made.close()


@pytest.fixture(scope="module")
def ours(digits, request):
    """Adversarial images by framework and attack: of a framework of this process, or of workers."""

    @functools.cache
    def craft(framework, attack):
        name, changes = OURS[attack]
        settings = attacks.resolve(name, "mnist", changes)
        if framework == "jax":
            return request.getfixturevalue("workers").attacked(framework, name, settings).arrays["adversarial"]
        model = wrapped(framework, digits)
        return crafting.craft(name, settings, model, digits.x, digits.y, model.predict(digits.x))

    return craft


@pytest.fixture(scope="module")
def others(digits, net, right):
    """The same by implementation and attack."""

    @functools.cache
    def craft(theirs, attack):
        torch.manual_seed(0)
        adversarial = digits.x.copy()
        for rows in np.array_split(np.flatnonzero(right), 8):  # batches that fit a processor's cache
            adversarial[rows] = images(THEIRS[theirs](net, tensor(digits.x[rows]), torch.from_numpy(digits.y[rows]), attack))
        return adversarial

    return craft


@pytest.fixture(scope="module")
def few(digits, right):
    """The first so many images, with labels, of those that the network gets right."""
    return lambda count: (digits.x[right][:count], digits.y[right][:count])


def craft(name, settings, digits, x, y):
    model = wrapped("pytorch", digits)
    return crafting.craft(name, attacks.resolve(name, "mnist", settings), model, x, y, model.predict(x))


@pytest.mark.parametrize("attack", ["fgsm", "bim", "pgd"])
@pytest.mark.parametrize(("framework", "theirs"), PAIRS)
def test_the_same_steps_have_the_same_outcomes(framework, theirs, attack, ours, others, digits, logits_of):
    mine, its = ours(framework, attack), others(theirs, attack)
    right_of_mine, right_of_its = (logits_of(adversarial).argmax(axis=1) == digits.y for adversarial in (mine, its))
    assert len(digits.x) == 1000
    assert 0.3 < right_of_mine.mean() < 0.7  # where outcomes hang in the balance
    assert (right_of_mine != right_of_its).sum() <= 5
    assert distances(digits.x, mine).mean() == pytest.approx(distances(digits.x, its).mean(), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "theirs"), PAIRS)
def test_from_random_starts_neither_is_the_stronger(framework, theirs, ours, others, digits, logits_of):
    """Of the images that one alone fools each has about half: their difference is within three standard deviations of its own chance."""
    mine, its = ours(framework, "pgd_from_anywhere"), others(theirs, "pgd_from_anywhere")
    right_of_mine, right_of_its = (logits_of(adversarial).argmax(axis=1) == digits.y for adversarial in (mine, its))
    assert 0.3 < right_of_mine.mean() < 0.7
    mine_alone, its_alone = (~right_of_mine & right_of_its).sum(), (right_of_mine & ~right_of_its).sum()
    assert abs(int(mine_alone) - int(its_alone)) <= 3 * math.sqrt(mine_alone + its_alone)
    assert mine_alone + its_alone < 50
    assert distances(digits.x, mine).mean() == pytest.approx(distances(digits.x, its).mean(), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("theirs", ["foolbox", "torchattacks"])
def test_deepfool_goes_as_far(theirs, digits, few, net, logits_of):
    """All images are fooled, each from a distance that differs by what the overshoot explains."""
    x, y = few(50)
    mine = craft("deepfool", {"eps": FAR, "max_iter": 50, "overshoot": OVERSHOOT, "candidates": 10}, digits, x, y)
    if theirs == "foolbox":
        box = pytest.importorskip("foolbox")
        attack = box.attacks.L2DeepFoolAttack(steps=50, candidates=10, overshoot=OVERSHOOT)
        its = images(attack(box.PyTorchModel(net, bounds=(0, 1)), tensor(x), torch.from_numpy(y), epsilons=None)[1])
    else:
        found = pytest.importorskip("torchattacks").DeepFool(net, 50, OVERSHOOT)(tensor(x), torch.from_numpy(y))
        its = np.clip(x + (1 + OVERSHOOT) * (images(found) - x), 0, 1)
    for adversarial in (mine, its):
        assert (logits_of(adversarial).argmax(axis=1) != y).all()
    ratios = distances(x, mine) / distances(x, its)
    longest = 1 + OVERSHOOT if theirs == "foolbox" else 1.0
    assert 0.995 < np.median(ratios) < longest + 0.005
    assert np.mean((ratios > 0.95) & (ratios < longest + 0.05)) >= 0.9  # a few may go to another class


@pytest.mark.slow
def test_square_fools_as_many(digits, few, net, logits_of):
    """Rates of single runs scatter by 0.06 (measured, 6 of each), so means over 6 differ by 0.035, one standard deviation; of these three."""
    others, (x, y) = pytest.importorskip("torchattacks"), few(200)
    mine, its = [], []
    for seed in range(6):
        settings = {"norm": "inf", "eps": 0.2, "max_iter": 100, "p_init": 0.8, "restarts": 1, "seed": seed, "batch_size": 200}
        mine.append(craft("square", settings, digits, x, y))
        attack = others.Square(net, norm="Linf", eps=0.2, n_queries=100, n_restarts=1, p_init=0.8, loss="margin", seed=seed)
        its.append(images(attack(tensor(x), torch.from_numpy(y))))
    rates = [np.mean([np.mean(logits_of(adversarial).argmax(axis=1) != y) for adversarial in runs]) for runs in (mine, its)]
    assert 0.3 < rates[0] < 0.7
    assert rates[0] == pytest.approx(rates[1], abs=0.1)


@pytest.mark.slow
def test_hop_skip_jump_comes_as_near(digits, few, net, logits_of):
    """Of one image the distances of two runs differ by 0.12 (measured; also of two runs of the same), of which the median of 20 images has
    a standard deviation of 0.034; of these three."""
    box, random = pytest.importorskip("foolbox"), np.random.RandomState(0)
    noise = random.uniform(size=(200, *digits.x.shape[1:])).astype(np.float32)
    taken_for = logits_of(noise).argmax(axis=1)
    usual = np.bincount(taken_for).argmax()  # no noise is an adversarial input of that class
    x, y = (array[few(1000)[1] != usual][:20] for array in few(1000))
    mine = craft("hop_skip_jump", {"norm": 2, "eps": FAR, "max_iter": 10}, digits, x, y)
    torch.manual_seed(0)
    its, model = [], box.PyTorchModel(net, bounds=(0, 1))
    start = tensor(noise[taken_for == usual][:1])
    for image, label in zip(tensor(x), torch.from_numpy(y), strict=True):
        attack = box.attacks.HopSkipJumpAttack(
            steps=10, initial_gradient_eval_steps=100, max_gradient_eval_steps=10_000, gamma=0.01 * image.numel(), constraint="l2",
        )
        its.append(images(attack.run(model, image[None], label[None], starting_points=start)))
    lengths = [distances(x, to_the_boundary(x, found, y, logits_of)) for found in (mine, np.concatenate(its))]
    assert np.median(lengths[0] / lengths[1]) == pytest.approx(1, abs=0.1)


def to_the_boundary(x, adversarial, y, logits_of):
    """The nearest points to x (N, ...) on the lines from there through adversarial images that are adversarial still, by bisection: from
    a little beyond the image, since what is on the boundary falls to one side or the other by rounding."""
    low, high = np.zeros((len(x), 1, 1, 1), np.float32), np.full((len(x), 1, 1, 1), 1.01, np.float32)
    assert (logits_of(x + high * (adversarial - x)).argmax(axis=1) != y).all()
    for _ in range(20):
        middle = (low + high) / 2
        fooled = (logits_of(x + middle * (adversarial - x)).argmax(axis=1) != y).reshape(-1, 1, 1, 1)
        low, high = np.where(fooled, low, middle), np.where(fooled, middle, high)
    return x + high * (adversarial - x)
