"""A classifier and a regressor with a memory for river: features may come and go."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_not_negative, is_number
from ..errors import InvalidInput, InvalidType, MissingExtra
from ..heads import linear_layers, outputs
from ..learners import Replay
from ..random import seed_sequence
from ..transforms import RunningScaler
from .building import ScaledSquaredError, Settings, build_learner, check_choices, learn, predicted_values

try:
    import pandas as pd
    from river import base
except ImportError as problem:
    raise MissingExtra("river", "river") from problem

Features = Mapping[Hashable, Any]
LARGEST = float(np.finfo(np.float32).max)


@dataclass(eq=False, repr=False)
class Queue(Settings):
    """What both have in common: samples wait until there is a batch of them."""

    batch_size: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        if self.seed is not None:
            seed_sequence(self.seed, "init")  # refuses what is no seed
        self._features: dict[Hashable, int] = {}  # the column of each feature
        self._waiting: list[tuple[dict[Hashable, float], Any, float]] = []
        self.learner: Replay | None = None

    def _outputs(self) -> int:
        return 1

    def _loss(self) -> Any:
        return ScaledSquaredError()

    def _target(self, y: Any, w: float) -> tuple[Any, float]:
        check_not_negative(w=w)
        if not is_number(y) or not abs(y) <= LARGEST:
            raise InvalidInput(f"the target is {y!r}; it must be a finite number")
        return float(y), float(w)

    def learn_one(self, x: Features, y: Any, w: float = 1.0) -> None:
        """Learn from one sample, with this weight, as soon as there is a batch of them."""
        self._enqueue(numbers(x), *self._target(y, w))

    def learn_many(self, X: pd.DataFrame, y: pd.Series, w: Any = 1.0) -> None:
        """Learn from the rows of a frame, in their order; the same as `learn_one` for each of them."""
        if len(X) != len(y) or (np.ndim(w) and len(w) != len(X)):
            raise InvalidInput(f"X has {len(X)} rows, y has {len(y)}" + (f", w has {len(w)}" if np.ndim(w) else ""))
        rows = _rows(X)  # all are looked at before any is learned
        targets = [self._target(one, weight) for one, weight in zip(y.tolist(), w if np.ndim(w) else repeat(w))]
        for row, target in zip(rows, targets, strict=True):
            self._enqueue(row, *target)

    def _enqueue(self, row: dict[Hashable, float], target: Any, weight: float) -> None:
        self._waiting.append((row, target, weight))
        if len(self._waiting) >= self.batch_size:
            rows, targets, weights = zip(*self._waiting)
            self._waiting = []  # a refused batch is dropped, or it would block the queue
            # By name, so that the order in which a dict or a frame has its features decides nothing.
            new = {name for row in rows for name in row} - self._features.keys()
            for name in sorted(new, key=lambda name: f"{type(name).__name__} {name!r}"):
                self._features[name] = len(self._features)
            learner = self._learner()
            given = None if set(weights) == {1.0} else torch.tensor(weights)
            learn(learner, self._matrix(rows, learner), torch.tensor(targets), given, scale=self.scale)

    def _learner(self) -> Replay:
        """Return the learner, with room for every feature and label that is known."""
        if self.learner is None:
            seed = int(np.random.SeedSequence(self.seed).generate_state(1)[0])
            # Every sample is predicted before it is learned: re-estimating batch-norm each time would cost far more.
            shape = (max(len(self._features), 1),)
            self.learner = build_learner(self, shape, self._outputs(), seed, batchnorm="clean", loss=self._loss())
        width = input_width(self.learner)
        if len(self._features) > width:
            widen_inputs(self.learner, max(len(self._features), 2 * width))  # doubled, so that it is rare
        if outputs(self.learner.model) < self._outputs():
            self.learner.grow(self._outputs())
        return self.learner

    def _matrix(self, rows: Sequence[dict[Hashable, float]], learner: Replay) -> Tensor:
        """Return the features in their columns: an absent one is zero, one without a value the mean so far."""
        matrix = np.zeros((len(rows), input_width(learner)), dtype=np.float32)
        for number, row in enumerate(rows):
            for name in row.keys() & self._features.keys():
                matrix[number, self._features[name]] = row[name]
        missing, scaler = np.isnan(matrix), learner.network.observer
        if missing.any():
            means = scaler.mean if isinstance(scaler, RunningScaler) and scaler.count else torch.zeros(1)
            matrix[missing] = np.broadcast_to(means, matrix.shape)[missing]
        return torch.from_numpy(matrix)

    def _logits(self, rows: list[dict[Hashable, float]]) -> Any:
        """Return the model's outputs in float64, or None while there is no model."""
        if self.learner is None or not rows:
            return None
        return self.learner.logits(self._matrix(rows, self.learner)).cpu().double()


@dataclass(eq=False, repr=False)
class RehearsalClassifier(Queue, base.MiniBatchClassifier):  # type: ignore[misc]
    """A neural network that learns from one sample after the other and replays what it would otherwise forget.

    With a ``batch_size`` above 1 samples wait in a queue until there are so many; then one step is taken with stored
    samples beside them. `learn_many` uses the same queue, so it equals a loop of `learn_one`. Waiting samples are not
    learned from yet.

    Features are numbers (or booleans) under any names, in any order, as they come: they are stored so, and scaled
    whenever they are used. A feature that is absent counts as zero, as in sparse data; one that is None or NaN as its
    mean so far. A new feature widens the first layer by weights of zero; a new label adds an output to the last layer.
    Neither changes what was learned.

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
        Samples in a step. 1 learns from each at once, which is most accurate and takes most time.
    scale
        Whether features are standardized by their mean and variance so far, whenever they are used. A scaler before
        the model would leave stored samples with statistics of the past.
    seed
        Decides initial weights and which samples are stored; None draws one.
    class_weight
        The weight of each label in the loss, 1 where the dict has none; None for no weights.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from rehearse.adapters.river import RehearsalClassifier
    >>> model = RehearsalClassifier(seed=0)
    >>> score = evaluate.progressive_val_score(datasets.Phishing(), model, metrics.Accuracy())
    >>> score.get() > 0.85
    True

    """

    class_weight: dict[Hashable, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._labels: dict[Hashable, int] = {}  # the output of each label

    @property
    def _multiclass(self) -> bool:
        return True

    def predict_proba_one(self, x: Features, **kwargs: Any) -> dict[Hashable, float]:
        """Return the probability of each label seen so far; empty before the first."""
        return dict(zip(self._labels, self._probabilities([numbers(x)])[0].tolist(), strict=True))

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the probability of each label seen so far, one column each."""
        columns = pd.Index(list(self._labels), dtype=object)
        return pd.DataFrame(self._probabilities(_rows(X)), index=X.index, columns=columns)

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """Return the most likely label of each row; None before the first label was seen."""
        labels = list(self._labels) or [None]
        best = self._probabilities(_rows(X)).argmax(1) if self._labels else [0] * len(X)
        return pd.Series([labels[number] for number in best], index=X.index, dtype=object).infer_objects()

    def _outputs(self) -> int:
        return len(self._labels)

    def _loss(self) -> Any:
        return None

    def _target(self, y: Any, w: float) -> tuple[Any, float]:
        check_not_negative(w=w)
        return checked_label(y), w * (self.class_weight or {}).get(y, 1.0)

    def _enqueue(self, row: dict[Hashable, float], target: Any, weight: float) -> None:
        super()._enqueue(row, self._labels.setdefault(target, len(self._labels)), weight)

    def _probabilities(self, rows: list[dict[Hashable, float]]) -> np.ndarray[Any, Any]:
        """Return float64, one column per label. A label that still waits in the queue has probability zero."""
        probabilities, logits = np.zeros((len(rows), len(self._labels))), self._logits(rows)
        if logits is None:
            return probabilities + 1 / max(len(self._labels), 1)
        known = min(len(self._labels), logits.shape[1])
        probabilities[:, :known] = logits[:, :known].softmax(1).numpy()
        return probabilities


@dataclass(eq=False, repr=False)
class RehearsalRegressor(Queue, base.MiniBatchRegressor):  # type: ignore[misc]
    """The same for values: a neural network with one output, and the squared error as its loss.

    With ``scale`` the targets are standardized too, whenever they are used; predictions are in their units. The
    parameters are those of `RehearsalClassifier`, without ``class_weight``.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from rehearse.adapters.river import RehearsalRegressor
    >>> model = RehearsalRegressor(seed=0)
    >>> score = evaluate.progressive_val_score(datasets.TrumpApproval(), model, metrics.MAE())
    >>> score.get() < 1
    True

    """

    def predict_one(self, x: Features) -> float:
        """Return the value; 0 before the first sample was learned from."""
        return float(self._values([numbers(x)])[0])

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """Return the value of each row."""
        return pd.Series(self._values(_rows(X)), index=X.index, dtype=float)

    def _values(self, rows: list[dict[Hashable, float]]) -> Any:
        found = self._logits(rows)
        values = torch.zeros(len(rows), 1) if found is None else predicted_values(self.learner, found)
        return values[:, 0].tolist()


def numbers(x: Features) -> dict[Hashable, float]:
    """Return the features as floats, NaN where there is no value; others than numbers are refused by name."""
    if not isinstance(x, Mapping):
        raise InvalidType(f"features are a dict of names and numbers, this is a {type(x).__name__}")
    found = {}
    for name, value in x.items():
        try:
            number = np.nan if value is None or value is pd.NA else float("text" if isinstance(value, str) else value)
        except (TypeError, ValueError) as problem:
            how = "encode it first (preprocessing.OneHotEncoder, feature_extraction.BagOfWords)"
            raise InvalidType(f"feature {name!r} is {value!r}; features must be numbers, {how}") from problem
        if abs(number) > LARGEST:
            raise InvalidInput(f"feature {name!r} is {number}, which is too large or infinite; scale it first")
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
    return _first_linear(learner).in_features


def widen_inputs(learner: Replay, features: int) -> None:
    """Let samples have ``features`` features: new weights, optimizer state and stored values are zero.

    A feature that was never there is one that was always zero, and a weight of zero says the same: predictions and
    everything learned stay, and the gradient of the new weights is that of any other.
    """
    layer = _first_linear(learner)
    weight, added = layer.weight, features - layer.in_features
    if added <= 0:
        return
    for name, value in learner.optimizer.state.get(weight, {}).items():
        if isinstance(value, Tensor) and value.shape == weight.shape:
            learner.optimizer.state[weight][name] = F.pad(value, (0, added))
    weight.data = F.pad(weight.data, (0, added))
    layer.in_features = features
    scaler, memory = learner.network.observer, learner.memory.state_dict()
    if scaler is not None:
        scaler.load_state_dict(
            {name: F.pad(v, (0, added)) if isinstance(v, Tensor) else v for name, v in scaler.state_dict().items()}
        )
    if memory["x"] is not None:
        learner.memory.load_state_dict({**memory, "x": F.pad(memory["x"], (0, added))})


def _first_linear(learner: Replay) -> nn.Linear:
    return next(iter(linear_layers(learner.model).values()))
