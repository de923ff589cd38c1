"""The bridge to ART: any model behind plain functions, as the classifier that ART's attacks work on.

Conventions, once for every framework and runtime: logits and not probabilities, channels last, values in [0, 1], float32 to the
model whatever ART hands over (it computes partly in float64), gradients per example and of one loss, so that none of them depends on
the batch an example is in.
"""

from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, NoReturn

import numpy as np
from art.estimators.classification.classifier import ClassGradientsMixin, ClassifierMixin
from art.estimators.estimator import BaseEstimator, LossGradientsMixin, NeuralNetworkMixin

Predict = Callable[[np.ndarray], np.ndarray]
"""Images float32 (N, H, W, C) to logits (N, classes)."""
LossGradient = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Images and labels int64 (N,) to d cross-entropy / d images, per example and not averaged: (N, H, W, C)."""
ClassGradient = Callable[[np.ndarray, np.ndarray | None], np.ndarray]
"""Images, and one class per example or None, to d logit / d images: (N, H, W, C), or (N, classes, H, W, C) for None."""


PREDICTIONS_KEPT, GRADIENTS_KEPT = 3, 1
"""Calls whose answers are remembered. ART's Square asks three times for most inputs of an iteration, and its DeepFool for those that are
done until the last of a batch is: four in five, and three in four, of their queries were repeats."""


class Queries(NamedTuple):
    """What an attack has asked of a model so far, ART's own checks of success included, and repeats of what it had just asked left out."""

    forward: int  # inputs whose logits were computed
    gradient: int  # (input, output) pairs whose gradient was computed; the output is the loss or one class


class BlackBox(ClassifierMixin, NeuralNetworkMixin, BaseEstimator):
    """A model that answers with logits."""

    estimator_params = BaseEstimator.estimator_params + NeuralNetworkMixin.estimator_params + ClassifierMixin.estimator_params

    def __init__(self, predict: Predict, input_shape: Sequence[int], classes: int) -> None:
        super().__init__(model=None, clip_values=(0.0, 1.0), preprocessing=None, channels_first=False)
        self._predict = predict
        self._input_shape = tuple(input_shape)
        self.nb_classes = classes
        self.queries = Queries(0, 0)
        self._predictions = _Memory(PREDICTIONS_KEPT)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(H, W, C)."""
        return self._input_shape

    def predict(self, x: np.ndarray, batch_size: int = 128, **kwargs: Any) -> np.ndarray:
        """Logits float32 (N, classes). The model batches by itself: `batch_size` is ART's and changes nothing."""
        images = _images(x)

        def answer(chosen: list[int]) -> np.ndarray:
            self._count(forward=len(chosen))
            return _own(self._predict(images[chosen]))

        return self._predictions.recall([_key(image) for image in images], answer)

    def fit(self, x: np.ndarray, y: np.ndarray, batch_size: int = 128, nb_epochs: int = 20, **kwargs: Any) -> NoReturn:
        """ART's base asks for it; training is not the business of an attack."""
        raise NotImplementedError("an attack never trains the model")

    def get_activations(self, x: np.ndarray, layer: Any, batch_size: int = 128, framework: bool = False) -> NoReturn:
        """ART's base asks for it; no attack of the table does."""
        raise NotImplementedError("this bridge gives no inner activations")

    def _count(self, forward: int = 0, gradient: int = 0) -> None:
        self.queries = Queries(self.queries.forward + forward, self.queries.gradient + gradient)


class LossWhiteBox(LossGradientsMixin, BlackBox):
    """A model that also gives the gradient of its loss."""

    def __init__(self, predict: Predict, input_shape: Sequence[int], classes: int, loss_gradient: LossGradient) -> None:
        super().__init__(predict, input_shape, classes)
        self._loss_gradient = loss_gradient

    def compute_loss(self, x: np.ndarray, y: np.ndarray, reduction: str = "none", **kwargs: Any) -> np.ndarray:
        """The cross-entropy of each input, float32 (N,), or its `mean` or `sum`. `y` is one-hot or indices."""
        logits, of = self.predict(x).astype(np.float64), _labels(y)
        shifted = logits - logits.max(axis=1, keepdims=True)
        losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(of)), of]
        return _reduced(losses, reduction)

    def loss_gradient(self, x: np.ndarray, y: np.ndarray, **kwargs: Any) -> np.ndarray:
        """d cross-entropy / dx, float32 like x. `y` is one-hot or indices. Raises FloatingPointError for NaN, which ART would take
        for a gradient of zero and so for robustness."""
        self._count(gradient=len(x))
        return _own(self._loss_gradient(_images(x), _labels(y)), gradient=True)


class WhiteBox(ClassGradientsMixin, LossWhiteBox):
    """A model that gives the gradient of each logit too."""

    def __init__(
        self, predict: Predict, input_shape: Sequence[int], classes: int, loss_gradient: LossGradient, class_gradient: ClassGradient
    ) -> None:
        super().__init__(predict, input_shape, classes, loss_gradient)
        self._class_gradient = class_gradient
        self._gradients = _Memory(GRADIENTS_KEPT)

    def class_gradient(self, x: np.ndarray, label: Any = None, **kwargs: Any) -> np.ndarray:
        """d logit / dx, float32: (N, classes, H, W, C), or (N, 1, H, W, C) for a label: one for all inputs or one for each.

        Raises FloatingPointError for NaN.
        """
        images = _images(x)
        labels = None if label is None else np.array(np.broadcast_to(label, (len(x),)), dtype=np.int64)

        def answer(chosen: list[int]) -> np.ndarray:
            of = None if labels is None else labels[chosen]
            self._count(gradient=len(chosen) * (self.nb_classes if of is None else 1))
            return _own(self._class_gradient(images[chosen], of), gradient=True)

        found = self._gradients.recall([_key(*each) for each in zip(images, *([] if labels is None else [labels]), strict=True)], answer)
        return found if labels is None else found[:, np.newaxis]


class DifferenceOfLogitsRatio(WhiteBox):
    """The same model with another loss: -(z_y - max z_i, i not y) / (z_1 - z_3), z_1 >= z_2 >= z_3 (Croce & Hein 2020, equation 5).
    What it asks of the model counts as the model's own queries."""

    def __init__(self, model: WhiteBox) -> None:
        super().__init__(model._predict, model.input_shape, model.nb_classes, model._loss_gradient, model._class_gradient)
        self._model = model

    def _count(self, forward: int = 0, gradient: int = 0) -> None:
        self._model._count(forward, gradient)

    def compute_loss(self, x: np.ndarray, y: np.ndarray, reduction: str = "none", **kwargs: Any) -> np.ndarray:
        """The loss of each input, float32 (N,), or its `mean` or `sum`."""
        above, below, _picked = self._ratio(x, _labels(y))
        return _reduced(-above / below, reduction)

    def loss_gradient(self, x: np.ndarray, y: np.ndarray, **kwargs: Any) -> np.ndarray:
        """Its gradient, by the quotient rule from those of three logits: the first is that of y or of the best other."""
        above, below, (of, other, first, third) = self._ratio(x, _labels(y))
        of_y, of_other, of_third = (self.class_gradient(x, label=each)[:, 0] for each in (of, other, third))
        above, below, y_first = (values.reshape(-1, *[1] * (of_y.ndim - 1)) for values in (above, below, first == of))
        of_first = np.where(y_first, of_y, of_other)
        return np.asarray(-((of_y - of_other) * below - above * (of_first - of_third)) / below**2, np.float32)

    def _ratio(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
        """Numerator and denominator, float64 (N,), and the classes y, best other, first and third."""
        logits = self.predict(x).astype(np.float64)
        rows, order = np.arange(len(y)), logits.argsort(axis=1)
        other = np.where(order[:, -1] == y, order[:, -2], order[:, -1])
        first, third = order[:, -1], order[:, -min(3, logits.shape[1])]
        below = logits[rows, first] - logits[rows, third] + 1e-12  # equal logits
        return logits[rows, y] - logits[rows, other], below, (y, other, first, third)


def wrap(
    predict: Predict,
    input_shape: Sequence[int],
    classes: int,
    loss_gradient: LossGradient | None = None,
    class_gradient: ClassGradient | None = None,
) -> BlackBox:
    """The estimator that offers what the given functions can do; ART refuses an attack that needs more.

    Raises ValueError for class gradients without a loss gradient, which no framework here has.
    """
    if loss_gradient is None:
        if class_gradient is not None:
            raise ValueError("class gradients without a loss gradient")
        return BlackBox(predict, input_shape, classes)
    if class_gradient is None:
        return LossWhiteBox(predict, input_shape, classes, loss_gradient)
    return WhiteBox(predict, input_shape, classes, loss_gradient, class_gradient)


class _Memory:
    """Answers to the inputs of the last calls, an array's row for each."""

    def __init__(self, calls: int) -> None:
        self._kept: deque[dict[bytes, np.ndarray]] = deque(maxlen=calls)

    def recall(self, keys: list[bytes], answer: Callable[[list[int]], np.ndarray]) -> np.ndarray:
        """The rows for these keys, a copy, since ART writes into what it gets; `answer` gives those at the places where a key is new."""
        found = {key: kept[key] for kept in self._kept for key in keys if key in kept}
        places: dict[bytes, int] = {}
        for place, key in enumerate(keys):
            if key not in found:
                places.setdefault(key, place)
        if places:
            found.update(zip(places, answer(list(places.values())), strict=True))
        self._kept.append({key: found[key] for key in keys})
        return np.stack([found[key] for key in keys])


def _key(*arrays: np.ndarray) -> bytes:
    return blake2b(b"".join(array.tobytes() for array in arrays), digest_size=16).digest()


def _reduced(losses: np.ndarray, reduction: str) -> np.ndarray:
    if reduction == "none":
        return losses.astype(np.float32)
    return np.asarray(losses.mean() if reduction == "mean" else losses.sum(), np.float32)


def _images(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, dtype=np.float32)


def _labels(y: np.ndarray) -> np.ndarray:
    y = np.asarray(y)
    return (y.argmax(axis=1) if y.ndim == 2 and y.shape[1] > 1 else y.ravel()).astype(np.int64)


def _own(values: np.ndarray, gradient: bool = False) -> np.ndarray:
    """A float32 copy: ART writes into what it gets, and a model's answer may be a view of a read-only buffer."""
    copy = np.array(values, dtype=np.float32)
    if gradient and np.isnan(copy).any():
        raise FloatingPointError(f"the gradient of {int(np.isnan(copy).reshape(len(copy), -1).any(axis=1).sum())} inputs is NaN")
    return copy
