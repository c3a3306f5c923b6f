"""Memories that go by task and class: rings, and exemplars with a sample of the running task."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict, deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rehearse.batch import Batch
from rehearse.errors import InvalidInput
from rehearse.memory import ExemplarMemory, TaskRingMemory
from sameness import assert_same


def numbered(start: int, samples: int) -> torch.Tensor:
    return torch.arange(start, start + samples)[:, None]


def held(memory: TaskRingMemory) -> dict[int, list[int]]:
    samples = memory.all()
    by_task = defaultdict(list)
    for task, number in zip(samples.task.tolist(), samples.x[:, 0].tolist(), strict=True):
        by_task[task].append(number)
    return {task: sorted(numbers) for task, numbers in by_task.items()}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=15), st.sampled_from([None, 4]))
def test_rings_hold_the_last_samples_of_every_task(batches: list[tuple[int, int]], tasks: int | None) -> None:
    memory = TaskRingMemory(14, tasks=tasks)
    rings: dict[int, deque[int]] = {}
    seen = 0
    for task, samples in batches:
        memory.add(numbered(seen, samples), torch.zeros(samples, dtype=torch.long), task=task)
        rings.setdefault(task, deque())
        share = 14 // max(len(rings), tasks or 0)
        rings = {other: deque(ring, maxlen=share) for other, ring in rings.items()}
        rings[task].extend(range(seen, seen + samples))
        seen += samples
        assert held(memory) == {other: sorted(ring) for other, ring in rings.items()}
        assert len(memory) <= 14


def test_a_batch_may_be_of_several_tasks() -> None:
    memory = TaskRingMemory(4, tasks=2)
    memory.add(numbered(0, 6), torch.zeros(6, dtype=torch.long), task=[0, 1, 0, 1, 0, 0])
    assert held(memory) == {0: [4, 5], 1: [1, 3]}


def test_a_forgotten_sample_makes_room_in_its_ring() -> None:
    memory = TaskRingMemory(4, tasks=2)
    slots = memory.add(numbered(0, 2), torch.zeros(2, dtype=torch.long), task=0)
    memory.forget(slots=slots[1:])
    memory.add(numbered(2, 1), torch.zeros(1, dtype=torch.long), task=0)
    assert held(memory) == {0: [0, 2]}


def test_more_tasks_than_samples_are_refused() -> None:
    with pytest.raises(InvalidInput, match="too few for 5 tasks"):
        TaskRingMemory(4, tasks=5).share(Batch(numbered(0, 1), torch.zeros(1), 0))
    for tasks in (0, True, "two"):
        with pytest.raises(InvalidInput, match="tasks is"):
            TaskRingMemory(4, tasks=tasks)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------ exemplars


def task_of(memory: ExemplarMemory, task: int, labels: list[int], start: int) -> None:
    memory.add(numbered(start, len(labels)), torch.tensor(labels), task=task)


def enrol_first(memory: ExemplarMemory) -> None:
    """The end of a task: of each class the samples with the lowest numbers are its exemplars."""
    samples = memory.get(torch.from_numpy(memory.running()))
    samples = samples.take(samples.x[:, 0].argsort())
    share = memory.share(samples)
    memory.enrol([samples.take((samples.y == y).nonzero().flatten()[:share]) for y in samples.y.unique()])


def test_exemplars_give_way_from_the_last_rank_on() -> None:
    memory = ExemplarMemory(12)
    task_of(memory, 0, [0, 1] * 6, start=0)
    enrol_first(memory)
    assert sorted(memory.all().x[:, 0].tolist()) == list(range(12))
    task_of(memory, 1, [2, 3] * 6, start=100)  # four classes: three exemplars each
    old = memory.all(exclude_task=1)
    assert sorted(old.x[:, 0].tolist()) == [0, 1, 2, 3, 4, 5]
    assert len(memory) == 12
    assert len(memory.running()) == 6
    enrol_first(memory)
    assert Counter(memory.all().y.tolist())[0] == 3
    assert len(memory.running()) == 0
    assert memory.seen == 24


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30), st.booleans()), min_size=1, max_size=12))
def test_never_more_samples_than_the_capacity(batches: list[tuple[int, int, bool]]) -> None:
    memory = ExemplarMemory(9, seed=1)
    for task, samples, ends in batches:
        task_of(memory, task, [2 * task + i % 2 for i in range(samples)], start=0)
        assert len(memory) <= 9
        if ends:
            enrol_first(memory)
            groups = Counter(zip(memory.all().task.tolist(), memory.all().y.tolist(), strict=True))
            assert max(groups.values()) <= max(9 // len(groups), 1) or len(groups) == 1
        assert len(memory) <= 9


def test_the_running_task_is_a_fair_sample() -> None:
    """30 samples into the 6 places that two exemplars leave: each is held with probability 6 / 30."""
    counts = np.zeros(30)
    for seed in range(600):
        memory = ExemplarMemory(8, seed=seed)
        task_of(memory, 0, [0] * 4, start=1000)
        memory.enrol([memory.get(torch.from_numpy(memory.running())).take(torch.arange(2))])
        for start in range(0, 30, 10):
            task_of(memory, 1, [1] * 10, start=start)
        counts[memory.all(exclude_task=0).x[:, 0].numpy()] += 1
    expected = 600 * 6 / 30
    assert counts.sum() == 600 * 6
    assert ((counts - expected) ** 2 / (expected * (1 - 6 / 30))).sum() < 58  # χ², 29 degrees: 1 in 1,000


def test_a_task_that_goes_on_after_its_end_runs_again() -> None:
    memory = ExemplarMemory(4)
    task_of(memory, 0, [0, 0, 0, 0], start=0)
    enrol_first(memory)
    assert len(memory.running()) == 0
    for start in range(100, 200, 4):
        task_of(memory, 0, [0, 0, 0, 0], start=start)
    assert len(memory.running()) == 4
    assert max(memory.all().x[:, 0].tolist()) >= 100


def test_state_comes_back_with_ranks_and_counts() -> None:
    memory = ExemplarMemory(6, seed=3)
    task_of(memory, 0, [0, 1] * 5, start=0)
    enrol_first(memory)
    task_of(memory, 1, [2] * 7, start=50)
    other = ExemplarMemory(6, seed=9)
    other.load_state_dict(copy.deepcopy(memory.state_dict()))
    for one in (memory, other):
        task_of(one, 1, [2] * 20, start=60)
    assert_same(other.state_dict(), memory.state_dict())


def test_more_classes_than_samples_are_refused() -> None:
    with pytest.raises(InvalidInput, match="too few for exemplars of 3 classes"):
        ExemplarMemory(2).share(Batch(numbered(0, 3), torch.tensor([0, 1, 2]), 0))
