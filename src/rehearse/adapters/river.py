"""A classifier with a memory for river: features may come and go."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InvalidInput, InvalidType, MissingExtra
from ..heads import linear_layers, outputs
from ..learners import Replay
from ..random import seed_sequence
from .building import Settings, build_learner, check_choices

try:
    import pandas as pd
    from river import base
except ImportError as problem:
    raise MissingExtra("river", "river") from problem

Features = Mapping[Hashable, Any]
LARGEST = float(np.finfo(np.float32).max)


@dataclass(eq=False, repr=False)
class RehearsalClassifier(Settings, base.MiniBatchClassifier):  # type: ignore[misc]
    """A neural network that learns from one sample after the other and replays what it would otherwise forget.

    Samples wait in a queue until there are ``batch_size`` of them; then one step is taken with stored samples beside
    them. `learn_many` uses the same queue, so it equals a loop of `learn_one`. Waiting samples are not learned from
    yet; ``batch_size=1`` learns from each at once.

    Features are numbers (or booleans) under any names, in any order. A feature that is absent, None or NaN counts as
    zero, so that centered features (`preprocessing.StandardScaler`) take their mean. A new feature widens the first
    layer by weights of zero; a new label adds an output to the last layer. Neither changes what was learned.

    Parameters
    ----------
    network
        None for a multilayer perceptron with `hidden` units, or a function `(input_shape, classes) -> module` whose
        first and last layers are linear; or such a module, of which a copy is trained.
    hidden
        Units in each hidden layer of the default network.
    memory
        Which samples are stored: "reservoir" (a uniform sample of all seen), "class-balanced" (an equal share for
        every class) or "ring" (the last ones).
    memory_size
        How many samples are stored.
    retrieval
        "most-interfered" replays the stored samples that the coming update would harm most, "uniform" any.
    candidates
        Stored samples that are scored for each step; None scores all of them.
    budget
        Stored samples that are replayed in each step.
    updates
        Steps per batch, with other stored samples each time.
    optimizer
        "adam" or "sgd".
    learning_rate
        Of the optimizer.
    batch_size
        Samples in a step.
    seed
        Decides initial weights and which samples are stored; None draws one.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from rehearse.adapters.river import RehearsalClassifier
    >>> model = preprocessing.StandardScaler() | RehearsalClassifier(seed=0)
    >>> score = evaluate.progressive_val_score(datasets.Phishing(), model, metrics.Accuracy())
    >>> score.get() > 0.8
    True

    """

    seed: int | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        if self.seed is not None:
            seed_sequence(self.seed, "init")  # refuses what is no seed
        self._features: dict[Hashable, int] = {}  # the column of each feature
        self._labels: dict[Hashable, int] = {}  # the output of each label
        self._waiting: list[tuple[dict[Hashable, float], int]] = []
        self.learner: Replay | None = None

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Features, y: Hashable) -> None:
        """Learn from one sample, as soon as there is a batch of them."""
        self._enqueue(numbers(x), checked_label(y))

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Learn from the rows of a frame, in their order; the same as `learn_one` for each of them."""
        if len(X) != len(y):
            raise InvalidInput(f"X has {len(X)} rows, y has {len(y)}")
        rows = _rows(X)  # all are looked at before any is learned
        labels = [checked_label(label) for label in y.tolist()]
        for row, label in zip(rows, labels, strict=True):
            self._enqueue(row, label)

    def predict_proba_one(self, x: Features, **kwargs: Any) -> dict[Hashable, float]:
        """Return the probability of each label seen so far; empty before the first."""
        return dict(zip(self._labels, self._probabilities([numbers(x)])[0].tolist(), strict=True))

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the probability of each label seen so far, one column each."""
        columns = pd.Index(list(self._labels), dtype=object)
        return pd.DataFrame(self._probabilities(_rows(X)), index=X.index, columns=columns)

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """Return the most likely label of each row; None before the first label was seen."""
        if not self._labels:
            return pd.Series([None] * len(X), index=X.index, dtype=object)
        labels = list(self._labels)
        best = self.predict_proba_many(X).to_numpy().argmax(1)
        return pd.Series([labels[number] for number in best], index=X.index, dtype=object).infer_objects()

    # ------------------------------------------------------------------------------------------------------ parts

    def _enqueue(self, row: dict[Hashable, float], label: Hashable) -> None:
        output = self._labels.setdefault(label, len(self._labels))
        self._waiting.append((row, output))
        if len(self._waiting) >= self.batch_size:
            rows, y = zip(*self._waiting)
            self._waiting = []  # a refused batch is dropped, or it would block the queue
            # By name, so that the order in which a dict or a frame has its features decides nothing.
            new = {name for row in rows for name in row} - self._features.keys()
            for name in sorted(new, key=lambda name: f"{type(name).__name__} {name!r}"):
                self._features[name] = len(self._features)
            learner = self._learner()
            learner.observe(self._matrix(rows, input_width(learner)), torch.tensor(y))

    def _learner(self) -> Replay:
        """Return the learner, with room for every feature and label that is known."""
        if self.learner is None:
            seed = int(np.random.SeedSequence(self.seed).generate_state(1)[0])
            # Every sample is predicted before it is learned: re-estimating batch-norm each time would cost far more.
            shape, classes = (max(len(self._features), 1),), len(self._labels)
            self.learner = build_learner(self, shape, classes, seed, batchnorm="clean")
        width = input_width(self.learner)
        if len(self._features) > width:
            widen_inputs(self.learner, max(len(self._features), 2 * width))  # doubled, so that it is rare
        if outputs(self.learner.model) < len(self._labels):
            self.learner.grow(len(self._labels))
        return self.learner

    def _matrix(self, rows: Sequence[dict[Hashable, float]], width: int) -> Tensor:
        matrix = np.zeros((len(rows), width), dtype=np.float32)
        for number, row in enumerate(rows):
            for name in row.keys() & self._features.keys():
                matrix[number, self._features[name]] = row[name]
        return torch.from_numpy(matrix)

    def _probabilities(self, rows: list[dict[Hashable, float]]) -> np.ndarray[Any, Any]:
        """Return float64, one column per label. A label that still waits in the queue has probability zero."""
        probabilities = np.zeros((len(rows), len(self._labels)))
        if self.learner is None or not rows:
            return probabilities + 1 / max(len(self._labels), 1)
        logits = self.learner.logits(self._matrix(rows, input_width(self.learner))).cpu().double()
        known = min(len(self._labels), logits.shape[1])
        probabilities[:, :known] = logits[:, :known].softmax(1).numpy()
        return probabilities


def numbers(x: Features) -> dict[Hashable, float]:
    """Return the features that have a value, as floats; others than numbers are refused by name."""
    if not isinstance(x, Mapping):
        raise InvalidType(f"features are a dict of names and numbers, this is a {type(x).__name__}")
    found = {}
    for name, value in x.items():
        if value is None or value is pd.NA:
            continue
        try:
            number = float("text" if isinstance(value, str) else value)
        except (TypeError, ValueError) as problem:
            how = "encode it first (preprocessing.OneHotEncoder, feature_extraction.BagOfWords)"
            raise InvalidType(f"feature {name!r} is {value!r}; features must be numbers, {how}") from problem
        if abs(number) > LARGEST:
            raise InvalidInput(f"feature {name!r} is {number}, which is too large or infinite; scale it first")
        if number == number:  # NaN is a missing value
            found[name] = number
    return found


def checked_label(label: Any) -> Hashable:
    """Return a label as a plain Python value, so that a column of numpy's and a loop over it are the same labels."""
    label = label.item() if isinstance(label, np.generic) else label
    if label is None or label is pd.NA or label != label:
        raise InvalidInput("the label is missing; learn from samples whose label is known")
    if not isinstance(label, Hashable):
        raise InvalidType(f"the label {label!r} is not hashable; use a string, a number or a boolean")
    return label


def _rows(X: pd.DataFrame) -> list[dict[Hashable, float]]:
    return [numbers(row) for row in X.to_dict("records")]


def input_width(learner: Replay) -> int:
    """Return how many features the first layer takes."""
    return _first_linear(learner.model).in_features


def widen_inputs(learner: Replay, features: int) -> None:
    """Let samples have ``features`` features: new weights, optimizer state and stored values are zero.

    A feature that was never there is one that was always zero, and a weight of zero says the same: predictions and
    everything learned stay, and the gradient of the new weights is that of any other.
    """
    layer = _first_linear(learner.model)
    weight, added = layer.weight, features - layer.in_features
    if added <= 0:
        return
    for name, value in learner.optimizer.state.get(weight, {}).items():
        if isinstance(value, Tensor) and value.shape == weight.shape:
            learner.optimizer.state[weight][name] = F.pad(value, (0, added))
    weight.data = F.pad(weight.data, (0, added))
    layer.in_features = features
    memory = learner.memory.state_dict()
    if memory["x"] is not None:
        learner.memory.load_state_dict({**memory, "x": F.pad(memory["x"], (0, added))})


def _first_linear(model: nn.Module) -> nn.Linear:
    return next(iter(linear_layers(model).values()))
