"""What a training tells of each epoch; a module of its own, since the oldest workers load it."""

from typing import NamedTuple


class EpochReport(NamedTuple):
    """Means over the examples of one epoch, as seen by the optimizer while it trained."""

    loss: float
    accuracy: float
