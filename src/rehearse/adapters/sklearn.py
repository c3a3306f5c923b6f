"""A classifier for scikit-learn whose `partial_fit` does not forget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..checks import check_positive
from ..errors import InvalidInput, MissingExtra
from ..heads import outputs
from ..learners import Replay
from .building import Settings, build_learner

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as problem:
    raise MissingExtra("scikit-learn", "sklearn") from problem


@dataclass(eq=False, repr=False)
class RehearsalClassifier(Settings, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural network that keeps learning, with a memory of earlier samples.

    `partial_fit` takes the samples in their order, ``batch_size`` at a time, each once, and replays stored ones beside
    them; `fit` always resets the model and passes over the shuffled samples ``epochs`` times. Labels may be strings or
    integers, and new ones may appear at any later call: the last layer grows and nothing learned is lost.

    Inputs reach the network as float32, except for bytes (uint8), which are stored as bytes and scaled to [0, 1], and
    for integers if the network is your own (token ids). Samples may have any shape that your network takes. The inputs
    of the default network should be standardized, as for any neural network.

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
        updates: Steps per batch, with other stored samples each time.
        optimizer: "adam" or "sgd".
        learning_rate: Of the optimizer.
        batch_size: Samples in a step.
        epochs: Passes over the data in `fit`; `partial_fit` passes once.
        random_state: Decides initial weights, which samples are stored, and the order in `fit`.

    Attributes:
        classes_: The labels known so far, sorted; the columns of `predict_proba`. A new label is sorted in.
        learner_: The `rehearse.Replay` that does the work, with its model and memory.
        n_features_in_: Columns of the inputs.
    """

    epochs: int = 10
    random_state: Any = None

    def fit(self, X: Any, y: Any) -> RehearsalClassifier:
        """Reset the model and learn from samples ``X`` with labels ``y``: ``epochs`` passes, each in another order."""
        X, y = self._samples_and_labels(X, y, first=True)
        check_positive(epochs=self.epochs)
        self._start(X, np.unique(y))
        for _ in range(self.epochs):
            order = self._order.permutation(len(X))
            self._learn(X[order], y[order])
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> RehearsalClassifier:
        """Continue to learn from samples ``X`` with labels ``y``, in this order, once.

        ``classes`` may announce labels that are still to come. Samples that cannot be learned from are refused before
        anything is learned; the one exception is a loss that stops being finite, which is found on the way.
        """
        first = "learner_" not in vars(self)
        X, y = self._samples_and_labels(X, y, first=first)
        labels = np.unique(y if classes is None else classes)
        missing = np.setdiff1d(y, labels if first or classes is None else np.union1d(labels, self.classes_))
        if len(missing):
            raise InvalidInput(f"y has labels that classes does not name: {missing.tolist()}")
        if first:
            self._start(X, labels)
        else:
            self._admit(labels)
        self._learn(X, y)
        return self

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """Return the probability of each of ``classes_``, one row per sample in ``X``, in float64."""
        check_is_fitted(self, "learner_")
        X = self._samples(validate_data(self, X, reset=False, allow_nd=True, dtype="numeric"), first=False)
        logits: torch.Tensor = self.learner_.logits(torch.from_numpy(X)).cpu().double()
        return logits[:, torch.from_numpy(self._outputs)].softmax(1).numpy()

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """Return the most likely label of each sample in ``X``."""
        best = self.predict_proba(X).argmax(1)  # first: it refuses a classifier that has not been fitted
        return np.asarray(self.classes_[best])

    # ------------------------------------------------------------------------------------------------------ parts

    def _samples_and_labels(self, X: Any, y: Any, *, first: bool) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        X, y = validate_data(self, X, y, reset=first, allow_nd=True, dtype="numeric")
        check_classification_targets(y)
        return self._samples(X, first=first), y

    def _samples(self, X: np.ndarray[Any, Any], *, first: bool) -> np.ndarray[Any, Any]:
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

    def _start(self, X: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> None:
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        self.learner_: Replay = build_learner(self, X.shape[1:], len(labels), seed)
        self._order = np.random.default_rng(seed)
        self._dtype = X.dtype
        self.classes_ = labels
        self._outputs = np.arange(len(labels))  # which output of the network belongs to each of classes_

    def _admit(self, labels: np.ndarray[Any, Any]) -> None:
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

    def _learn(self, X: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
        samples = torch.from_numpy(X)
        targets = torch.from_numpy(self._outputs[np.searchsorted(self.classes_, y)])
        check_positive(batch_size=self.batch_size)
        size = self.batch_size
        starts = [*range(0, len(X), size)]
        if len(X) > size > 1 and len(X) % size == 1 and self.learner_.network.has_batchnorm:
            starts.pop()  # a lone sample has no variance for batch-norm: it goes with the batch before
        for start, stop in zip(starts, [*starts[1:], len(X)], strict=True):
            self.learner_.observe(samples[start:stop], targets[start:stop])
