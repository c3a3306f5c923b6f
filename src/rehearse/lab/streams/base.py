"""What a stream is: batches in an order that can be taken up anywhere, and the sets it is judged on."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor
from typing import Literal, TypeAlias, cast, get_args

import numpy as np

from rehearse.batch import Batch
from rehearse.errors import InvalidInput

Scaling: TypeAlias = Literal["unit", "symmetric"]


class Stream(ABC):
    """An iterable of batches with tasks, and evaluation sets by name.

    Attributes:
        name: what it is called in specs and tables.
        batch_size: rows in a batch, or None where the batches come as they come.
        length: how many batches there are, or None where nobody knows (an endless stream).
        n_tasks: how many tasks there are, or None where tasks are unknown.
        n_classes: how many outputs a classifier of this stream needs, or None (regression, unknown).
        input_shape: the shape of one input, or None (trees, unknown).
        scaling: how uint8 inputs reach the model: "unit" is x / 255, "symmetric" is 2x / 255 − 1.
        evaluation: "validation" and "test", each with one batch per task; empty where there is none.
    """

    name: str
    batch_size: int | None
    length: int | None
    n_tasks: int | None
    n_classes: int | None
    input_shape: tuple[int, ...] | None
    scaling: Scaling
    evaluation: Mapping[str, Sequence[Batch]]

    @abstractmethod
    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The batches from the ``start``-th on, exactly as an uninterrupted run would see them."""

    @abstractmethod
    def task_data(self, task: int) -> Batch:
        """The whole training data of one task, for the methods that need it before the first step."""

    @abstractmethod
    def iid(self, epochs: int = 1) -> Stream:
        """All tasks' training rows shuffled together, in ``epochs`` passes: the upper bound."""

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()


class PassingStream(Stream):
    """A stream that goes on while a learner computes: the newest batch comes next, those before it are lost.

    ``step_cost`` batches arrive during one step, so that step k learns batch ⌊k · step_cost⌋. What is known of a task
    beforehand, and the evaluation sets, stay whole.
    """

    def __init__(self, stream: Stream, step_cost: float) -> None:
        for name in Stream.__annotations__:
            setattr(self, name, getattr(stream, name))
        self.stream, self.step_cost = stream, step_cost
        self.length = None if stream.length is None else ceil(stream.length / step_cost)

    def batches(self, start: int = 0) -> Iterator[Batch]:
        first = floor(start * self.step_cost)
        for index, batch in enumerate(self.stream.batches(first), first):
            if index == floor(start * self.step_cost):
                start += 1
                yield batch

    def task_data(self, task: int) -> Batch:
        return self.stream.task_data(task)

    def iid(self, epochs: int = 1) -> Stream:
        return PassingStream(self.stream.iid(epochs), self.step_cost)


def generator(seed: int, purpose: str) -> np.random.Generator:
    """The random numbers for one purpose: every purpose has its own, so that none disturbs another."""
    return np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]))


def check_count(name: str, value: object, least: int = 1) -> int:
    """``value`` as a whole number of at least ``least``, or a sentence about what is wrong with it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}, not {value!r}")
    return int(value)


def check_scaling(value: str) -> Scaling:
    """``value`` if it names a way to scale inputs."""
    if value not in get_args(Scaling):
        raise InvalidInput(f"scaling must be 'unit' or 'symmetric', not {value!r}")
    return cast(Scaling, value)
