"""Attacks are rows of a table: ART's class, what it needs of a model, the threat model and the settings.

    check(name, overrides)              is this valid, before any work
    resolve(name, dataset, overrides)   every setting of a cell's attack, as JSON

`sweep.crafting` runs them; whoever plans a sweep reads the table without ART.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweep.rules import Choice, Distance, Integer, Name, Number, Rule, alternatives, parsed

DISTRIBUTION = "adversarial-robustness-toolbox"
"""The package that crafts; its version is part of what an attack is."""

WHITE_BOX, SCORE, DECISION = "white-box", "score", "decision"
"""What an attack sees of a model: its gradients, its logits, or its answers alone (Carlini et al. 2019, "On Evaluating Adversarial
Robustness", section 4)."""
STRAIGHT_THROUGH = "white-box:straight-through"
"""Gradients are the source's, while all that is answered is the deployed model's: what the backward pass differentiable approximation does
for a step without a gradient (Athalye et al. 2018, section 4.1)."""
NO_TARGET = "none"
SOURCE, DEPLOYED = "source", "deployed"
"""Whose adversarial inputs a cell is attacked with: its source's, carried over, or its own model's; else another framework's."""


@dataclass(frozen=True)
class Attack:
    """One attack. `norm` and eps are its threat model; `defaults` hold under that norm."""

    name: str
    art_class: str  # "module:class"
    access: str  # of WHITE_BOX, SCORE, DECISION
    needs: frozenset[str]  # of `loss_gradient`, `class_gradient`
    norm: str | int
    rules: Mapping[str, Rule]  # every setting there is
    defaults: Mapping[str, Any]
    by_dataset: Mapping[str, Mapping[str, Any]]  # what replaces a default on a data set
    minimal: bool  # whether it looks for the nearest adversarial input, however far: one beyond eps doesn't count
    drawn: bool  # whether the seed always matters; else it does where random starts are asked for
    arguments: Mapping[str, str] = field(default_factory=dict)  # by setting, the name of ART's argument where that is another
    constants: Mapping[str, Any] = field(default_factory=dict)  # further arguments of ART's class that nobody chooses

    def randomised(self, settings: Mapping[str, Any]) -> bool:
        """Whether another seed gives another result: a deterministic attack is repeated for nothing."""
        return self.drawn or bool(settings.get(STARTS))


_LARGEST = {"inf": 1.0}  # opposite corners of the image cube
CRAFTED_ON, STARTS = "crafted_on", "num_random_init"
_OURS = ("norm", "eps", "targeted", "target", "seed", CRAFTED_ON)
"""Settings that every attack has. ART's classes take the first three where they can; the rest is done around them."""
_RULES: dict[str, Rule] = {
    "eps": Distance(),
    "eps_step": Distance(),
    "targeted": Choice((False, True)),
    "target": Choice((NO_TARGET, "next", "least_likely")),
    "seed": Integer(0, 2**32 - 1),  # what NumPy's global generator takes
    CRAFTED_ON: Name(f"{SOURCE}, {DEPLOYED} or a framework"),
    "max_iter": Integer(1, 100_000),
    "num_random_init": Integer(0, 1_000),
    "restarts": Integer(1, 1_000),
    "batch_size": Integer(1, 100_000),
    "p_init": Number(0.001, 0.8),  # a square as large as a small image has nowhere to go
    "overshoot": Number(0.0, 1.0),
    "candidates": Integer(2, 1_000),
    "init_eval": Integer(1, 100_000),
    "max_eval": Integer(1, 1_000_000),
    "init_size": Integer(1, 100_000),
    "delta": Number(1e-6, 1.0),
    "epsilon": Number(1e-6, 1.0),
    "num_trial": Integer(1, 10_000),
    "sample_size": Integer(1, 10_000),
}
_BALLS: dict[str | int, dict[str, dict[str, Any]]] = {
    "inf": {
        # Madry et al. 2018, section 5: 40 steps of 0.01 within 0.3 on digits; steps of 2/255 within 8/255 on small colour images
        "mnist": {"eps": 0.3, "eps_step": 0.01, "max_iter": 40},
        "fashion_mnist": {"eps": 0.3, "eps_step": 0.01, "max_iter": 40},
        "cifar10": {"eps": 8 / 255, "eps_step": 2 / 255, "max_iter": 20},
    },
    2: {
        # Rony et al. 2019 (DDN), section 5: 1.5 on digits; RobustBench (Croce et al. 2021): 0.5 on CIFAR-10
        "mnist": {"eps": 1.5},
        "fashion_mnist": {"eps": 1.5},
        "cifar10": {"eps": 0.5},
    },
    0: {},
}
_OTHERWISE: dict[str | int, dict[str, Any]] = {
    "inf": {"eps": 8 / 255, "eps_step": 2 / 255, "max_iter": 20},
    2: {"eps": 0.5},
    0: {"eps": 1},
}


def _attack(
    name: str,
    art_class: str,
    access: str,
    defaults: Mapping[str, Any],
    *,
    needs: tuple[str, ...] = (),
    norms: tuple[str | int, ...] = ("inf", 2),
    targetable: bool = True,
    minimal: bool = False,
    drawn: bool = True,
    arguments: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Attack:
    """`defaults` are those of settings beyond _OURS; None takes the data set's."""
    keys = (*_OURS, *defaults)
    rules = {key: _RULES[key] for key in keys if key != "norm"} | {"norm": Choice(norms)}
    if norms == (0,):
        rules["eps"] = Integer(1, 100_000)  # pixels
    if not targetable:
        rules |= {"targeted": Choice((False,)), "target": Choice((NO_TARGET,))}
    place = SOURCE if access == WHITE_BOX else DEPLOYED  # the least effort that says something of the cell's own model
    ours = {"norm": norms[0], "targeted": False, "target": NO_TARGET, "seed": 0, CRAFTED_ON: place}
    given = {key: value for key, value in defaults.items() if value is not None}
    taken = {key for key in keys if key not in given and key not in ours}
    return Attack(
        name=name,
        art_class=art_class,
        access=access,
        needs=frozenset(needs),
        norm=norms[0],
        rules={key: rules[key] for key in keys},
        defaults={key: (ours | _OTHERWISE[norms[0]] | given)[key] for key in keys},
        by_dataset={data: {key: ball[key] for key in ball if key in taken} for data, ball in _BALLS[norms[0]].items()},
        minimal=minimal,
        drawn=drawn,
        arguments={"norm": "norm", "eps": "eps", "targeted": "targeted"} | dict(arguments or {}),
        constants=constants or {},
    )


_QUIET = {"verbose": False}
_ALL = (
    # Goodfellow et al. 2015: one step of eps along the sign of the gradient
    _attack(
        "fgsm", "art.attacks.evasion:FastGradientMethod", WHITE_BOX, {"num_random_init": 0, "batch_size": 128},
        needs=("loss_gradient",), drawn=False, constants={"minimal": False},
    ),
    # Kurakin et al. 2017: projected steps from the input itself
    _attack(
        "bim", "art.attacks.evasion:BasicIterativeMethod", WHITE_BOX, {"eps_step": None, "max_iter": None, "batch_size": 128},
        needs=("loss_gradient",), norms=("inf",), drawn=False, arguments={"norm": ""}, constants=_QUIET,
    ),
    # Madry et al. 2018: projected steps from a random point of the ball
    _attack(
        "pgd", "art.attacks.evasion:ProjectedGradientDescent", WHITE_BOX,
        {"eps_step": None, "max_iter": None, "num_random_init": 1, "batch_size": 128},
        needs=("loss_gradient",), drawn=False, constants=_QUIET,
    ),
    # Croce & Hein 2020: a step size that adapts to each input, from the cross-entropy
    _attack(
        "auto_pgd", "art.attacks.evasion:AutoProjectedGradientDescent", WHITE_BOX,
        {"eps_step": None, "max_iter": 100, "restarts": 1, "batch_size": 128},
        needs=("loss_gradient",), arguments={"restarts": "nb_random_init"}, constants=_QUIET,
    ),
    # Croce & Hein 2020: of two losses AutoPGD, DeepFool and Square, each on what the ones before left
    _attack(
        "auto_attack", "sweep.ensemble:AutoAttack", WHITE_BOX, {"max_iter": 100, "restarts": 5, "batch_size": 128},
        needs=("loss_gradient", "class_gradient"), targetable=False,
        minimal=True,  # as its DeepFool, whose results ART lets lie beyond eps by a ten-thousandth
    ),
    # Moosavi-Dezfooli et al. 2016: over the nearest of the linearised class boundaries, again and again
    _attack(
        "deepfool", "art.attacks.evasion:DeepFool", WHITE_BOX, {"max_iter": 50, "overshoot": 0.02, "candidates": 10, "batch_size": 128},
        needs=("class_gradient",), norms=(2,), targetable=False, minimal=True, drawn=False,
        arguments={"norm": "", "eps": "", "targeted": "", "overshoot": "epsilon", "candidates": "nb_grads"}, constants=_QUIET,
    ),
    # Andriushchenko et al. 2020: squares of random places, kept where the margin falls
    _attack(
        "square", "art.attacks.evasion:SquareAttack", SCORE, {"max_iter": 1000, "p_init": 0.8, "restarts": 1, "batch_size": 128},
        targetable=False, arguments={"targeted": "", "restarts": "nb_restarts"}, constants=_QUIET,
    ),
    # Su et al. 2019: differential evolution over the place and the colour of a few pixels
    _attack(
        "single_pixel", "art.attacks.evasion:PixelAttack", SCORE, {"max_iter": 100},
        norms=(0,), arguments={"norm": "", "eps": "th"}, constants={"es": 1, "verbose": False},
    ),
    # Chen et al. 2020: the boundary's normal, estimated from answers around it
    _attack(
        "hop_skip_jump", "art.attacks.evasion:HopSkipJump", DECISION,
        {"max_iter": 50, "max_eval": 10_000, "init_eval": 100, "init_size": 100, "batch_size": 64},
        norms=(2, "inf"), minimal=True, arguments={"eps": ""}, constants=_QUIET,
    ),
    # Brendel et al. 2018: a random walk along the boundary, towards the input
    _attack(
        "boundary", "art.attacks.evasion:BoundaryAttack", DECISION,
        {"max_iter": 5000, "delta": 0.01, "epsilon": 0.01, "num_trial": 25, "sample_size": 20, "init_size": 100, "batch_size": 64},
        norms=(2,), minimal=True, arguments={"norm": "", "eps": ""}, constants=_QUIET,
    ),
)
ROWS = {attack.name: attack for attack in _ALL}


def check(name: str, settings: Mapping[str, Any]) -> None:
    """Whether these overrides are valid for an attack. Raises ValueError that names the key, the value and what would be valid."""
    _parse(name, settings)


def resolve(name: str, dataset: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of an attack on a data set, as JSON: the overrides, else the data set's own values, else the defaults.

    Distances come back as floats, also those given as "8/255". Raises ValueError as `check` does, and where eps_step exceeds eps.
    """
    given = _parse(name, overrides)
    row = ROWS[name]
    settings = {**row.defaults, **row.by_dataset.get(dataset, {}), **given}
    if settings.get("eps_step", 0) > settings["eps"]:
        raise ValueError(
            f"attack {name} on {dataset}: eps_step {settings['eps_step']:g} exceeds eps {settings['eps']:g}; set eps_step too"
        )
    return settings


def check_reach(name: str, settings: Mapping[str, Any], shape: Sequence[int]) -> None:
    """Raises ValueError for an eps that reaches beyond images of this shape (H, W, C), whose values lie in [0, 1]."""
    furthest = {"inf": 1.0, 2: math.sqrt(math.prod(shape)), 0: math.prod(shape[:2])}[settings["norm"]]
    if settings["eps"] > furthest:
        raise ValueError(f"attack {name}: eps is {settings['eps']:g}, but two images are at most {furthest:g} apart under norm "
                         f"{settings['norm']!r}")


def places(name: str, overrides: Mapping[str, Any]) -> set[str]:
    """The frameworks other than a cell's own that adversarial inputs are to be crafted on."""
    place = overrides.get(CRAFTED_ON, ROWS[name].defaults[CRAFTED_ON])
    return set() if place in (SOURCE, DEPLOYED) else {place}


def _parse(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    if name not in ROWS:
        raise ValueError(f"there is no attack {name!r}{alternatives(name, ROWS)}")
    row = ROWS[name]
    found = parsed("attack", name, settings, row.rules)
    norm = found.get("norm", row.norm)
    for key in ("eps", "eps_step"):
        if found.get(key, 0) > _LARGEST.get(norm, math.inf):
            raise ValueError(f"attack {name}: {key} is {settings[key]!r}, but must be at most {_LARGEST[norm]:g} under norm {norm!r}")
        if norm != row.norm and key in row.rules and key not in found:
            raise ValueError(f"attack {name}: norm is {norm!r}, so {key} must be set too: its default holds for norm {row.norm!r}")
    if found.get("targeted", False) != (found.get("target", NO_TARGET) != NO_TARGET):
        raise ValueError(f"attack {name}: targeted is {found.get('targeted', False)!r} and target {found.get('target', NO_TARGET)!r}: "
                         "a targeted attack needs a target, and no other has one")
    return found
