"""A classifier and a regressor for scikit-learn whose `partial_fit` does not forget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from ..batch import Batch
from ..checks import check_positive
from ..errors import InvalidInput, MissingExtra
from ..heads import outputs
from ..learners import Finetune, Learner, Replay
from .building import ScaledSquaredError, Settings, build_learner, learn, predicted_values

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.class_weight import compute_sample_weight
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data
except ImportError as problem:
    raise MissingExtra("scikit-learn", "sklearn") from problem

Array = np.ndarray[Any, Any]


@dataclass(eq=False, repr=False)
class Epochs(Settings):
    """What both have in common."""

    updates: int = 3
    epochs: int = 10
    random_state: Any = None

    def _samples(self, X: Array, *, first: bool) -> Array:
        """Return the samples in the dtype in which they are stored, which the first ones decide."""
        kept = X.dtype == np.uint8 or (self.network is not None and X.dtype.kind in "iu")
        new = X.dtype if kept else np.dtype(np.float32)
        dtype = new if first else self._dtype
        if dtype.kind in "iu" and X.dtype != dtype:
            raise InvalidInput(f"the samples before were {dtype}, these are {X.dtype}; convert them first")
        with np.errstate(over="ignore"):
            samples = X.astype(dtype)  # a copy in any case: torch needs samples that are writable
        if not np.isfinite(samples).all():
            raise InvalidInput("X has values too large for float32; scale it first")
        return samples

    def _start(self, X: Array, outputs: int, loss: Any) -> None:
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        self._dtype, self._order = X.dtype, np.random.default_rng(seed)
        floats = X.dtype == np.float32
        self.learner_: Replay = build_learner(self, X.shape[1:], outputs, seed, loss=loss, floats=floats)

    def _fit(self, data: Batch) -> None:
        """Pass over the samples without replay, each time in another order; then store some of them."""
        check_positive(epochs=self.epochs)
        learner = self.learner_
        shuffled = Finetune(learner.model, learner.optimizer, loss=learner.loss, prepare=learner.network.prepare)
        shuffled.network.random = learner.network.random
        for _ in range(self.epochs):
            self._learn(shuffled, data.take(torch.from_numpy(self._order.permutation(len(data)))))
        learner.remember([data])

    def _learn(self, learner: Learner, data: Batch) -> None:
        check_positive(batch_size=self.batch_size)
        parts = [*torch.arange(len(data)).tensor_split([*range(self.batch_size, len(data), self.batch_size)])]
        if len(parts) > 1 == len(parts[-1]) < self.batch_size and learner.network.has_batchnorm:
            parts[-2:] = [torch.cat(parts[-2:])]  # a lone sample has no variance for batch-norm
        for part in map(data.take, parts):
            learn(learner, part.x, part.y, part.columns.get("weight"), scale=self.scale)

    def _logits(self, X: Any) -> Any:
        check_is_fitted(self, "learner_")
        X = self._samples(validate_data(self, X, reset=False, allow_nd=True, dtype="numeric"), first=False)
        return self.learner_.logits(torch.from_numpy(X)).cpu().double()


@dataclass(eq=False, repr=False)
class RehearsalClassifier(Epochs, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural network that keeps learning, with a memory of earlier samples.

    `partial_fit` takes the samples in their order, ``batch_size`` at a time, each once, and replays stored ones beside
    them; `fit` always resets the model, passes over the shuffled samples ``epochs`` times, which needs no replay, and
    then stores some of them. Labels may be strings or integers, and new ones may appear at any later call: the last
    layer grows and nothing learned is lost. With an indicator matrix as ``y`` any number of labels is right for a
    sample; their number stays.

    Inputs are stored as they come, as float32, except for bytes (uint8), which are stored as bytes and divided by 255,
    and for integers if the network is your own (token ids). Samples may have any shape that your network takes. They
    are dense; a sparse matrix is refused.

    Args:
        network: None for a multilayer perceptron with ``hidden`` units; a module, of which a copy is trained (its
            weights are where `fit` starts); or a function ``(input_shape, classes) -> module``. The last layer must
            be linear.
        hidden: Units in each hidden layer of the default network.
        memory: Which samples are stored: "reservoir" (a uniform sample of all seen), "class-balanced" (an equal share
            for every class) or "ring" (the last ones).
        memory_size: How many samples are stored.
        retrieval: "most-interfered" replays the stored samples that the coming update would harm most, "uniform" any.
        candidates: Stored samples that are scored for each batch; None scores all of them.
        budget: Stored samples that are replayed with each batch.
        updates: Steps per batch of `partial_fit`, with other stored samples each time.
        optimizer: "adam" or "sgd".
        learning_rate: Of the optimizer.
        batch_size: Samples in a step.
        scale: Whether real inputs are standardized by their mean and variance so far, whenever they are used. A scaler
            in front whose statistics move would leave stored samples with those of the past.
        epochs: Passes over the data in `fit`; `partial_fit` passes once.
        random_state: Decides initial weights, which samples are stored, and the order in `fit`.
        class_weight: A dict with weights of labels in the loss (1 where it has none), or "balanced" in `fit`.

    Attributes:
        classes_: The labels known so far, sorted; the columns of `predict_proba`. A new label is sorted in.
        learner_: The `rehearse.Replay` that does the work, with its model and memory.
        n_features_in_: Columns of the inputs.
    """

    class_weight: Any = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Reset the model and learn from samples in ``epochs`` passes, each in another order.

        Args:
            X: The samples; the first dimension counts them.
            y: Their targets.
            sample_weight: The weight of each in the loss; 1 by default.
        """
        X, y, weight = self._checked(X, y, sample_weight, first=True)
        self._begin(X, y, np.unique(y))
        self._fit(as_batch(X, self._targets(y), weight))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Continue to learn from samples, in this order, once; see `RehearsalClassifier.fit`.

        ``classes`` may announce labels that are still to come. Samples that cannot be learned from are refused before
        anything is learned; the one exception is a loss that stops being finite, which is found on the way.
        """
        first = "learner_" not in vars(self)
        if isinstance(self.class_weight, str):
            raise InvalidInput(f"class_weight is {self.class_weight!r}: partial_fit, without all labels, needs a dict")
        X, y, weight = self._checked(X, y, sample_weight, first=first)
        if y.ndim == 1:
            labels = np.unique(y if classes is None else classes)
            missing = np.setdiff1d(y, labels if first or classes is None else np.union1d(labels, self.classes_))
            if len(missing):
                raise InvalidInput(f"y has labels that classes does not name: {missing.tolist()}")
        if first:
            self._begin(X, y, labels if y.ndim == 1 else None)
        elif y.shape[1:] != ((len(self.classes_),) if self._several else ()):
            raise InvalidInput(f"y has shape {y.shape}; the number of labels of an indicator matrix cannot change")
        elif not self._several:
            self._admit(labels)
        self._learn(self.learner_, as_batch(X, self._targets(y), weight))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each of ``classes_``, one row per sample in ``X``, in float64."""
        logits = self._logits(X)[:, torch.from_numpy(self._outputs)]
        return np.asarray(logits.sigmoid() if self._several else logits.softmax(1))

    def predict(self, X: Any) -> Array:
        """Return the most likely label of each sample in ``X``, or an indicator matrix of several."""
        found = self.predict_proba(X)  # first: it refuses a classifier that has not been fitted
        return (found > 0.5).astype(int) if self._several else np.asarray(self.classes_[found.argmax(1)])

    # ------------------------------------------------------------------------------------------------------ parts

    def _checked(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> tuple[Array, Array, Array | None]:
        X, y = validate_data(self, X, y, reset=first, allow_nd=True, dtype="numeric", multi_output=True)
        check_classification_targets(y)
        if type_of_target(y) == "multilabel-indicator":
            y = y.toarray() if hasattr(y, "toarray") else y
        else:
            y = column_or_1d(y, warn=True)
        weight = checked_weight(X, sample_weight)
        if self.class_weight is not None:
            weight = compute_sample_weight(self.class_weight, y).astype(np.float32) * (1 if weight is None else weight)
        return self._samples(X, first=first), y, weight

    def _begin(self, X: Array, y: Array, labels: Array | None) -> None:
        self._several = y.ndim == 2
        self.classes_ = np.arange(y.shape[1]) if labels is None or self._several else labels
        self._start(X, len(self.classes_), nn.BCEWithLogitsLoss() if self._several else None)
        self._outputs = np.arange(len(self.classes_))  # which output of the network belongs to each of classes_

    def _targets(self, y: Array) -> Array:
        return y.astype(np.float32) if self._several else self._outputs[np.searchsorted(self.classes_, y)]

    def _admit(self, labels: Array) -> None:
        """Give every label that is new the next output of the network."""
        if isinstance(labels.tolist()[0], str) != isinstance(self.classes_.tolist()[0], str):
            raise InvalidInput(f"the labels before were like {self.classes_[0]!r}, these are like {labels[0]!r}")
        together = np.union1d(self.classes_, labels)
        old = np.searchsorted(together, self.classes_)
        numbers = np.full(len(together), -1)
        numbers[old] = self._outputs
        numbers[numbers < 0] = np.arange(len(self.classes_), len(together))
        if outputs(self.learner_.model) < len(together):
            self.learner_.grow(len(together))
        self.classes_, self._outputs = together, numbers


@dataclass(eq=False, repr=False)
class RehearsalRegressor(Epochs, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """The same for values: the loss is the squared error, and ``y`` has one value per sample or a row of them.

    With ``scale`` the targets are standardized too, whenever they are used; predictions are in their units. The
    arguments are those of `RehearsalClassifier`, without ``class_weight``.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Reset the model and learn from samples in ``epochs`` passes, each in another order.

        Args:
            X: The samples; the first dimension counts them.
            y: Their targets.
            sample_weight: The weight of each in the loss; 1 by default.
        """
        self._fit(self._checked(X, y, sample_weight, first=True))
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Continue to learn from samples, in this order, once; see `RehearsalRegressor.fit`."""
        data = self._checked(X, y, sample_weight, first="learner_" not in vars(self))
        self._learn(self.learner_, data)
        return self

    def predict(self, X: Any) -> Array:
        """Return the values of each sample in ``X``, in the units of the targets."""
        found = self._logits(X)  # first: it refuses a regressor that has not been fitted
        return predicted_values(self.learner_, found).numpy().reshape(-1, *self._shape)

    def _checked(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> Batch:
        X, y = validate_data(self, X, y, reset=first, allow_nd=True, dtype="numeric", multi_output=True, y_numeric=True)
        samples, targets = self._samples(X, first=first), y.astype(np.float32).reshape(len(y), -1)
        if first:
            self._shape = y.shape[1:]
            self._start(samples, targets.shape[1], ScaledSquaredError())
        elif y.shape[1:] != self._shape:
            raise InvalidInput(f"y has shape {y.shape[1:]} per sample, before it had {self._shape}")
        return as_batch(samples, targets, checked_weight(X, sample_weight))


def checked_weight(X: Array, sample_weight: Any) -> Any:
    """Return the weight of each sample, or None."""
    how = {"dtype": np.float32, "ensure_non_negative": True}
    return None if sample_weight is None else _check_sample_weight(sample_weight, X, **how)


def as_batch(X: Array, y: Array, weight: Array | None) -> Batch:
    """Return samples with their weights, if they have any."""
    columns = {} if weight is None else {"weight": torch.from_numpy(weight)}
    return Batch(torch.from_numpy(X), torch.from_numpy(y), columns=columns)
