"""What every framework does alike while it trains: the agreed constants, the learning rate's course, the order of the examples."""

import math

import numpy as np

# Where a recipe asks for equal formulas, these are the formulas (each framework's own differ from them in one place or another):
#   Adam             m / (sqrt(v) + epsilon) on bias-corrected moments (Kingma & Ba 2015, algorithm 1), betas 0.9 and 0.999
#   SGD              velocity = momentum x velocity + gradient; weight -= rate x velocity (the rate outside the velocity)
#   moving variance  of the biased batch variance
ADAM_BETAS = (0.9, 0.999)
AGREED_ADAM_EPSILON = 1e-7


def adam_epsilon(plan, own):
    """The plan's epsilon; where it states none, the framework's own under `defaults`, else the agreed one."""
    if plan["epsilon"] is not None:
        return plan["epsilon"]
    return own if plan["recipe"] == "defaults" else AGREED_ADAM_EPSILON


def learning_rate(plan, epoch):
    """The rate of an epoch (counted from 0), after every decay that has begun."""
    rate = plan["learning_rate"]
    for start, factor in plan["decay"]:
        if epoch >= start:
            rate *= factor
    return rate


def penalised(layers):
    """The canonical names of the weights that a plan's l2 holds for."""
    return [layer["name"] + "/kernel" for layer in layers if layer["kind"] in ("conv1d", "conv2d", "dense")]


def check(plan, optimizers, images, labels, permutations):
    """Raises ValueError where a training can't be what its plan says."""
    examples = len(images)
    if plan["optimizer"] not in optimizers:
        raise ValueError("no optimizer named {!r}; there are {}".format(plan["optimizer"], ", ".join(optimizers)))
    if not examples or len(labels) != examples:
        raise ValueError("{} images with {} labels".format(examples, len(labels)))
    if plan["recipe"] == "identical" and permutations is None:
        raise ValueError("recipe identical needs the permutation of every epoch")
    if permutations is not None:
        epochs, each = np.shape(permutations)
        if epochs != plan["epochs"] or not 0 < each <= examples:
            raise ValueError("permutations have shape {} for {} epochs of {} examples".format((epochs, each), plan["epochs"], examples))


def finite(loss, epoch):
    """The loss. Raises FloatingPointError where it is not a finite number."""
    if not math.isfinite(loss):
        raise FloatingPointError("the loss of epoch {} is {}".format(epoch, loss))
    return loss
