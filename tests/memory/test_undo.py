"""Undo: a restored memory is the one before, to the bit, whatever happened since; a snapshot costs what is changed."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rehearse import ClassBalancedMemory, Memory, ReservoirMemory, RingMemory
from rehearse.errors import CheckpointError
from rehearse.memory import ExemplarMemory, TaskRingMemory
from rehearse.memory.changes import Changes
from rehearse.memory.index import TaskIndex
from rehearse.memory.mapped import MappedFile, file
from rehearse.memory.mapped.journal import Journal
from rehearse.memory.rows import Rows
from rehearse.undo import all_or_nothing
from sameness import assert_same, frozen

CAPACITY = 20
IN_RAM: dict[str, Callable[[], Memory]] = {
    "reservoir": lambda: ReservoirMemory(CAPACITY, seed=1),
    "ring": lambda: RingMemory(CAPACITY, seed=1),
    "class-balanced": lambda: ClassBalancedMemory(CAPACITY, seed=1),
    "task rings": lambda: TaskRingMemory(CAPACITY, seed=1),
    "exemplars": lambda: ExemplarMemory(CAPACITY, seed=1),
}
MAPPED = {"reservoir": ReservoirMemory, "ring": RingMemory, "class-balanced": ClassBalancedMemory}


def samples(number: int, n: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(n, 3, generator=generator), torch.randint(0, 2, (n,), generator=generator)


def add(memory: Memory, number: int, **columns: Any) -> None:
    memory.add(*samples(number), task=number // 3, id=range(100 * number, 100 * number + 5), **columns)


@pytest.fixture(params=[*IN_RAM, *(f"{name}, mapped" for name in MAPPED)])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Memory]:
    """A memory that is full, with a fact."""
    name, _, mapped = request.param.partition(", ")
    made = MAPPED[name](CAPACITY, path=tmp_path / "samples", seed=1) if mapped else IN_RAM[name]()
    for number in range(7):
        add(made, number)
    made.fact("loss", made.slots(), fill=0.5)
    made.note("loss", made.slots(), torch.arange(float(len(made))))
    yield made
    made.close()


def everything(memory: Memory) -> dict[str, Any]:
    """What the memory holds and knows. The number of a file's checkpoint is left out: it only ever grows."""
    held, state = memory.all(), frozen(memory.state_dict())
    (state["file"] or {}).pop("generation", None)
    return {"state": state, "changes": memory.changes, "x": held.x, "y": held.y, "slots": held.slots}


def add_one(memory: Memory) -> None:
    add(memory, 7)


def add_many(memory: Memory) -> None:
    for number in range(7, 40):  # as many new tasks make the index move and enlarge what it holds
        memory.add(*samples(number), task=number % 8, id=[None] * 5)


def retrieve(memory: Memory) -> None:
    memory.sample(4)
    memory.sample(3, exclude_task=1, ordered=True)


def note(memory: Memory) -> None:
    for step in range(3):
        slots = memory.sample(4).slots
        assert slots is not None
        memory.note("loss", slots, torch.full((4,), 100.0 + step))
        memory.fact("another", slots, fill=1.0)
        memory.note("another", slots, torch.zeros(4))


def rewrite(memory: Memory) -> None:
    slots = memory.slots()[1:4]
    memory.rewrite(slots, torch.zeros(3, 3))
    memory.rewrite(slots[:1], torch.ones(1, 3))


def remove(memory: Memory) -> None:
    memory.discard(memory.slots()[::2].numpy())


def end_task(memory: Memory) -> None:
    if isinstance(memory, ExemplarMemory):
        running = memory.get(memory.running())
        memory.enrol([running.take((running.y == y).nonzero().flatten()) for y in running.y.unique()])


CHANGES = [add_one, add_many, retrieve, note, rewrite, remove, end_task]


def run(memory: Memory, changes: list[Callable[[Memory], Any]]) -> None:
    for change in changes:
        change(memory)


def undo(memory: Memory, *changes: Callable[[Memory], Any]) -> None:
    """Change a memory, fail, and be undone."""
    with contextlib.suppress(ZeroDivisionError), all_or_nothing(memory):
        run(memory, list(changes))
        raise ZeroDivisionError


@pytest.mark.parametrize("changes", [*([change] for change in CHANGES), [*CHANGES, *CHANGES]])
def test_a_restored_memory_is_the_one_before(memory: Memory, changes: list[Callable[[Memory], None]]) -> None:
    before = everything(memory)
    restore = memory.snapshot()
    run(memory, changes)
    restore()
    assert_same(everything(memory), before)


def test_a_restored_memory_continues_as_if_nothing_had_happened(memory: Memory) -> None:
    restore = memory.snapshot()
    run(memory, CHANGES)
    restore()
    del restore
    seen = memory.seen
    twin = IN_RAM[_name(memory)]()
    for number in range(7):
        add(twin, number)
    assert twin.seen == seen
    for number in range(7, 30):
        add(memory, number)
        add(twin, number)
        assert_same(memory.sample(4, exclude_task=number // 3).slots, twin.sample(4, exclude_task=number // 3).slots)
    assert_same(memory.all().x, twin.all().x)


def _name(memory: Memory) -> str:
    return next(name for name, make in IN_RAM.items() if type(make()) is type(memory))


def test_a_memory_without_samples_is_empty_again(tmp_path: Path) -> None:
    made = [make() for make in IN_RAM.values()]
    for memory in [*made, ReservoirMemory(CAPACITY, path=tmp_path / "samples")]:
        before = frozen(memory.state_dict())
        undo(memory, add_one)
        assert_same(memory.state_dict(), before)
        assert list(tmp_path.iterdir()) == []
        memory.add(torch.zeros(2, 9), torch.zeros(2, dtype=torch.long), task=0)  # of another shape
        memory.close()


def test_columns_that_were_added_or_widened_are_as_before() -> None:
    memory = ReservoirMemory(CAPACITY)
    memory.add(*samples(0), logits=torch.rand(5, 2))
    before = everything(memory)
    undo(memory, lambda memory: memory.add(*samples(1), logits=torch.rand(5, 4), id=range(5)))
    assert_same(everything(memory), before)


def test_what_is_committed_stays(memory: Memory) -> None:
    with all_or_nothing(memory) as commit:
        add(memory, 7)
        commit(())
    after = everything(memory)
    undo(memory, add_one)
    assert_same(everything(memory), after)


# ------------------------------------------------------------------------------------- errors in the middle of it

POINTS: list[tuple[type, str]] = [
    (Changes, "note"),
    (MappedFile, "_keep"),
    (Rows, "write"),
    (Rows, "erase"),
    (TaskIndex, "clear"),
    (TaskIndex, "put"),
    (TaskIndex, "_append"),
    (TaskIndex, "_remove"),
    (Memory, "note"),
    (Memory, "_clear_facts"),
    (MappedFile, "passed"),
    (Journal, "append"),
]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point[0].__name__}.{point[1]}")
def test_an_insertion_that_raises_in_the_middle_leaves_no_trace(
    memory: Memory, point: tuple[type, str], after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before or after each of the calls that a change is made of, the first, the second, the third, …"""
    owner, name = point
    whole, interrupted = getattr(owner, name), True
    calls = 0
    while interrupted and calls < 12:
        calls, left, interrupted = calls + 1, calls, False
        before = everything(memory)

        def broken(*arguments: Any, **keywords: Any) -> Any:
            nonlocal left, interrupted
            left -= 1
            if left < 0 and not after:
                interrupted = True
                raise KeyboardInterrupt
            found = whole(*arguments, **keywords)
            if left < 0:
                interrupted = True
                raise KeyboardInterrupt
            return found

        with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
            patched.setattr(owner, name, broken)
            undo(memory, remove, add_one, note, end_task, add_many)
        assert_same(everything(memory), before)


def test_every_traced_line_of_an_insertion(memory: Memory) -> None:
    """An exception at line after line of the package, until the insertion comes through."""
    source = os.path.join("rehearse", "memory")
    number, done = 0, False
    while not done:
        before, left = everything(memory), number

        def trace(frame: Any, event: str, argument: Any) -> Any:
            nonlocal left
            if source not in frame.f_code.co_filename:
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        restore = memory.snapshot()
        try:
            sys.settrace(trace)
            add(memory, 7)
            sys.settrace(None)
            done = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        restore()
        del restore
        assert_same(everything(memory), before)
        number += 3
    assert number > 60


# -------------------------------------------------------------------------------------------------------- the price


@pytest.mark.parametrize("policy", [ReservoirMemory, RingMemory, ClassBalancedMemory])
def test_a_snapshot_copies_as_much_as_is_changed_at_any_capacity(
    policy: type[Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    whole = Changes.note

    def counting(self: Changes, values: Any, where: Any) -> None:
        whole(self, values, where)
        part = values[where]
        copied.append(part.numel() * part.element_size() if isinstance(part, Tensor) else part.nbytes)

    monkeypatch.setattr(Changes, "note", counting)
    bytes_of = {}
    for capacity in (1_000, 1_000_000):
        memory = policy(capacity, seed=0)
        memory.add(torch.zeros(capacity, 2), torch.arange(capacity) % 10, task=torch.arange(capacity) % 5)
        memory.fact("loss", torch.arange(3), fill=0.0)
        copied.clear()
        restore = memory.snapshot()
        memory.add(torch.zeros(10, 2), torch.arange(10) % 10, task=0)
        memory.note("loss", torch.arange(3), torch.ones(3))
        bytes_of[capacity] = sum(copied)
        restore()
    assert bytes_of[1_000_000] <= 1.5 * bytes_of[1_000] + 1_000


def test_a_snapshot_takes_no_longer_for_a_large_memory() -> None:
    """A thousand times the capacity, at most ten times the time: a copy would take a thousand times as long."""
    seconds = {}
    for capacity in (1_000, 1_000_000):
        memory = ReservoirMemory(capacity, seed=0)
        memory.add(torch.zeros(capacity, 2), torch.zeros(capacity, dtype=torch.long), task=0)
        times = []
        for _ in range(30):
            gc.disable()
            started = time.perf_counter()
            restore = memory.snapshot()
            memory._index.put(np.array([1, 2, 3]), np.array([0, 0, 1]))
            restore()
            times.append(time.perf_counter() - started)
            gc.enable()
        seconds[capacity] = min(times)
    assert seconds[1_000_000] < 10 * seconds[1_000]


# ------------------------------------------------------------------------------------------------ failed forgetting


def marked(number: int) -> tuple[Tensor, Tensor]:
    """Samples of one unmistakable value."""
    return torch.full((4, 16), number, dtype=torch.uint8), torch.full((4,), number)


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def filled(folder: Path | None) -> Memory:
    """Of 101 there are samples in the journal alone, of 102 in the memory."""
    memory = RingMemory(8, path=None if folder is None else folder / "samples")
    for number in (101, 102):
        memory.add(*marked(number), id=[f"user {number}"] * 4)
    memory.state_dict()
    memory.add(*marked(103), id=["user 103"] * 4)
    return memory


FAILURES: dict[str, tuple[Any, str, Exception | BaseException]] = {
    "the journal cannot be written": (Journal, "append", OSError(28, "No space left on device")),
    "journals cannot be read": (Journal, "records", CheckpointError("damaged")),
    "journals cannot be overwritten": (Journal, "forget", OSError(5, "Input/output error")),
    "the file cannot be synced": (file, "flush", OSError(5, "Input/output error")),
    "interrupted before erasing": (Rows, "erase", KeyboardInterrupt()),
    "interrupted after erasing": (Memory, "_clear_facts", KeyboardInterrupt()),
    "interrupted in the index": (TaskIndex, "_remove", KeyboardInterrupt()),
}


@pytest.mark.parametrize("by", ["ids", "predicate"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_forget_can_be_repeated_and_removes_the_bytes(
    tmp_path: Path, failure: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = filled(tmp_path)
    owner, name, problem = FAILURES[failure]
    doomed = [f"user {number}" for number in (101, 102)]
    which: dict[str, Any] = {"ids": doomed} if by == "ids" else {"predicate": lambda held: held.y < 103}

    def fail(*_: Any, **__: Any) -> Any:
        raise problem

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, fail)
        with pytest.raises((type(problem), CheckpointError)):
            memory.forget(**which)
    left = memory.all()
    assert set(left.y.tolist()) <= {102, 103}  # no sample of zeros is left in its place
    assert bool((left.x == left.y[:, None]).all())
    assert memory.forget(**which) == len(left) - 4
    assert memory.all().y.tolist() == [103] * 4
    for number in (101, 102):
        assert bytes([number] * 16) not in on_disk(tmp_path)
    memory.close()


@pytest.mark.parametrize("failure", [name for name in FAILURES if name.startswith("interrupted")])
def test_a_failed_forget_in_ram_can_be_repeated(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = filled(None)
    memory.fact("loss", memory.slots(), fill=0.0)
    before = everything(memory)
    owner, name, problem = FAILURES[failure]

    def fail(*_: Any, **__: Any) -> Any:
        raise problem

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, fail)
        with pytest.raises(type(problem)):
            memory.forget(ids=["user 102"])
    assert_same(everything(memory), before)
    assert memory.forget(ids=["user 102"]) == 4
    assert not bool((memory._rows.leaves()[0] == 102).any())


def test_many_samples_are_forgotten_in_parts_each_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ReservoirMemory(25_000)
    memory.add(torch.arange(25_000.0)[:, None], torch.zeros(25_000, dtype=torch.long), id=range(25_000))
    whole, calls = TaskIndex.clear, 0

    def second_fails(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        whole(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(TaskIndex, "clear", second_fails)
        with pytest.raises(KeyboardInterrupt):
            memory.forget(predicate=lambda held: held.x[:, 0] >= 100)
    held = memory.all()
    assert len(held) == 15_000
    assert torch.equal(held.x[:, 0].long(), held.columns["id"])
    assert memory.forget(predicate=lambda batch: batch.x[:, 0] >= 100) == 14_900
    assert memory.all().x[:, 0].tolist() == list(range(100))


def test_a_learner_can_forget_between_two_steps_that_were_undone() -> None:
    """The notes of one undo do not reach into the next."""
    memory = IN_RAM["reservoir"]()
    for number in range(5):
        add(memory, number)
    undo(memory, add_one)
    held = memory.all().columns["id"].tolist()
    assert memory.forget(ids=held[:3]) == 3
    before = everything(memory)
    undo(memory, add_one)
    assert_same(everything(memory), before)
    assert set(memory.all().columns["id"].tolist()) == set(held[3:])
