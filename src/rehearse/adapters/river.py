"""river's interface: a classifier for streams of features that come and go, with a memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInput, InvalidType, MissingExtra
from ..heads import outputs
from ..learners import Replay
from .building import Network, build_learner, check_choices, whole
from .inputs import input_width, widen_inputs

try:
    import pandas as pd
    from river import base
except ImportError as problem:
    raise MissingExtra("river", "river") from problem

Features = Mapping[Hashable, Any]
LARGEST = float(np.finfo(np.float32).max)


class RehearsalClassifier(base.MiniBatchClassifier):  # type: ignore[misc]
    """A neural network that learns from one row after the other and replays what it would otherwise forget.

    Rows wait in a queue until there are ``batch_size`` of them; then one step is taken with memories beside them.
    `learn_many` puts its rows in the same queue, so it is the same as a loop of `learn_one`. Rows that wait are not
    learned from yet; ``batch_size=1`` learns from each at once.

    Features are numbers (or booleans) under any names, in any order. A feature that is absent, None or NaN counts as
    zero, so that centred features (`preprocessing.StandardScaler`) take their mean. A new one widens the first layer
    by weights of zero; a new label gives the last layer an output. Nothing learned is lost by either.

    Parameters
    ----------
    network
        None for a multilayer perceptron with `hidden` units, or a function `(input_shape, classes) -> module` whose
        first and last layers are linear; or such a module, of which a copy is trained.
    hidden
        Units in each hidden layer of the default network.
    memory
        Which rows are kept: "reservoir" (a uniform sample of all rows seen), "class-balanced" (an equal share for
        every class) or "ring" (the last ones).
    memory_size
        How many rows are kept.
    retrieval
        "most-interfered" replays the memories that the coming update would harm most, "uniform" any.
    candidates
        Memories that are scored for each step; None scores all of them.
    budget
        Memories that are replayed with each step.
    updates
        Steps taken for each batch, with other memories each time.
    optimizer
        "adam" or "sgd".
    learning_rate
        Of the optimiser.
    batch_size
        Rows in a step.
    seed
        Decides initial weights and memories; None is another each time.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from rehearse.adapters.river import RehearsalClassifier
    >>> model = preprocessing.StandardScaler() | RehearsalClassifier(seed=0)
    >>> score = evaluate.progressive_val_score(datasets.Phishing(), model, metrics.Accuracy())
    >>> score.get() > 0.8
    True

    """

    def __init__(
        self,
        network: Network = None,
        hidden: tuple[int, ...] = (100,),
        memory: str = "reservoir",
        memory_size: int = 1000,
        retrieval: str = "most-interfered",
        candidates: int | None = 50,
        budget: int = 10,
        updates: int = 1,
        optimizer: str = "adam",
        learning_rate: float = 0.005,
        batch_size: int = 10,
        seed: int | None = None,
    ) -> None:
        if whole("batch_size", batch_size) < 1:
            raise InvalidInput(f"batch_size is {batch_size}; it must be at least 1")
        if seed is not None and whole("seed", seed) < 0:
            raise InvalidInput(f"seed is {seed}; it must be at least 0, or None for one by chance")
        check_choices(optimizer=optimizer, memory=memory, retrieval=retrieval)
        self.network = network
        self.hidden = hidden
        self.memory = memory
        self.memory_size = memory_size
        self.retrieval = retrieval
        self.candidates = candidates
        self.budget = budget
        self.updates = updates
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.seed = seed
        self._features: dict[Hashable, int] = {}  # the column of each feature
        self._labels: dict[Hashable, int] = {}  # the output of each label
        self._waiting: list[tuple[dict[Hashable, float], int]] = []
        self.learner: Replay | None = None

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Features, y: Hashable) -> None:
        """Learn from one row, as soon as a batch of them is there."""
        self._enqueue(numbers(x), checked_label(y))

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Learn from the rows of a frame, in their order; the same as `learn_one` for each of them."""
        if len(X) != len(y):
            raise InvalidInput(f"X has {len(X)} rows, y has {len(y)}")
        rows = [numbers(row) for row in _dicts(X)]  # all are looked at before any is learned
        labels = [checked_label(label) for label in y.tolist()]
        for row, label in zip(rows, labels, strict=True):
            self._enqueue(row, label)

    def predict_proba_one(self, x: Features, **kwargs: Any) -> dict[Hashable, float]:
        """The probability of each label seen so far; empty before the first."""
        if not self._labels:
            return {}
        return dict(zip(self._labels, self._probabilities([numbers(x)])[0].tolist(), strict=True))

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """The probability of each label seen so far, one column each."""
        rows = [numbers(row) for row in _dicts(X)]
        values = self._probabilities(rows) if rows and self._labels else np.zeros((len(rows), len(self._labels)))
        return pd.DataFrame(values, index=X.index, columns=pd.Index(list(self._labels), dtype=object))

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The most likely label of each row; None before the first label was seen."""
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
            waiting, self._waiting = self._waiting, []  # a batch that is refused is gone, or it would block the queue
            self._step([row for row, _ in waiting], torch.tensor([output for _, output in waiting]))

    def _step(self, rows: list[dict[Hashable, float]], y: Tensor) -> None:
        # By name, so that the order in which a dict or a frame has its features decides nothing.
        for name in sorted({name for row in rows for name in row} - self._features.keys(), key=_by_name):
            self._features[name] = len(self._features)
        learner = self._learner()
        learner.observe(self._matrix(rows, input_width(learner)), y)

    def _learner(self) -> Replay:
        """The learner, with room for every feature and label that is known."""
        if self.learner is None:
            self.learner = build_learner(
                self.network,
                (max(len(self._features), 1),),
                len(self._labels),
                hidden=self.hidden,
                optimizer=self.optimizer,
                learning_rate=self.learning_rate,
                memory=self.memory,
                memory_size=self.memory_size,
                retrieval=self.retrieval,
                candidates=self.candidates,
                budget=self.budget,
                updates=self.updates,
                seed=int(np.random.SeedSequence(self.seed).generate_state(1)[0]),
                batchnorm="clean",  # every row is predicted before it is learned: re-estimating would cost far more
            )
        width = input_width(self.learner)
        if len(self._features) > width:
            widen_inputs(self.learner, max(len(self._features), 2 * width))  # doubled, so that it is rare
        if outputs(self.learner.model) < len(self._labels):
            self.learner.grow(len(self._labels))
        return self.learner

    def _matrix(self, rows: list[dict[Hashable, float]], width: int) -> Tensor:
        matrix = np.zeros((len(rows), width), dtype=np.float32)
        for number, row in enumerate(rows):
            for name, value in row.items():
                column = self._features.get(name)
                if column is not None:
                    matrix[number, column] = value
        return torch.from_numpy(matrix)

    def _probabilities(self, rows: list[dict[Hashable, float]]) -> np.ndarray[Any, Any]:
        """In float64, one column a label. A label that still waits in the queue has probability zero."""
        probabilities = np.zeros((len(rows), len(self._labels)))
        if self.learner is None:
            probabilities[:] = 1 / len(self._labels)
            return probabilities
        scores = self.learner.logits(self._matrix(rows, input_width(self.learner))).cpu().double()
        known = min(len(self._labels), scores.shape[1])
        probabilities[:, :known] = scores[:, :known].softmax(1).numpy()
        return probabilities


def numbers(x: Features) -> dict[Hashable, float]:
    """The features that have a value, as floats; what cannot be one is refused by name."""
    if not isinstance(x, Mapping):
        raise InvalidType(f"features are a dict of names and numbers, this is a {type(x).__name__}")
    found = {}
    for name, value in x.items():
        if value is None or value is pd.NA:
            continue
        try:
            number = float("text" if isinstance(value, str) else value)
        except (TypeError, ValueError) as problem:
            raise InvalidType(
                f"feature {name!r} is {value!r}; features must be numbers, encode others first "
                "(preprocessing.OneHotEncoder, feature_extraction.BagOfWords)"
            ) from problem
        if abs(number) > LARGEST:
            raise InvalidInput(f"feature {name!r} is {number}, which is too large or infinite; scale it first")
        if number == number:  # NaN is a missing value
            found[name] = number
    return found


def checked_label(label: Any) -> Hashable:
    """The label as a plain Python value, so that a column of numpy's and a loop over it are the same labels."""
    label = label.item() if isinstance(label, np.generic) else label
    if label is None or label is pd.NA or label != label:
        raise InvalidInput("the label is missing; learn from rows whose label is known")
    if not isinstance(label, Hashable):
        raise InvalidType(f"the label {label!r} cannot be told from others; use a string, a number or a boolean")
    return label


def _dicts(X: pd.DataFrame) -> list[dict[Hashable, Any]]:
    records: list[dict[Hashable, Any]] = X.to_dict("records")
    return records


def _by_name(name: Hashable) -> str:
    return f"{type(name).__name__} {name!r}"
