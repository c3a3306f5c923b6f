"""A new memory that takes over what another holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from rehearse import ClassBalancedMemory, Memory, MostInterfered, Replay, ReservoirMemory, RingMemory, TaskRingMemory
from rehearse.errors import InvalidInput
from rehearse.memory import ExemplarMemory
from rehearse.nets import MLP
from sameness import assert_same


def feed(memory: Memory, first: int, stop: int, classes: int = 4) -> None:
    """Samples whose only input is their number in the stream; tasks of 200."""
    for numbers in torch.arange(first, stop).split(7):
        memory.add(numbers[:, None].double(), numbers % classes, task=numbers // 200, id=numbers, extra=numbers * 0.5)


def numbers(memory: Memory) -> list[int]:
    return sorted(memory.all().x[:, 0].long().tolist())


@pytest.mark.parametrize("capacity", [20, 80])
def test_a_ring_goes_on_with_the_last_samples(capacity: int) -> None:
    old, new = RingMemory(50), RingMemory(capacity)
    feed(old, 0, 1003)
    assert new.adopt(old) == min(50, capacity)
    assert numbers(new) == list(range(1003 - min(50, capacity), 1003))
    for stop in (1010, 1040, 1100):
        feed(new, new.seen, stop)
        assert numbers(new) == list(range(max(stop - capacity, 1003 - 50), stop))


def test_everything_known_of_a_sample_comes_along_but_what_a_model_said_of_it() -> None:
    old, new = ReservoirMemory(30, seed=1), ReservoirMemory(60, seed=2)
    feed(old, 0, 500)
    slots = old.slots()
    old.fact("best_loss", slots, fill=9.0)
    old.note("best_loss", slots, 1.0)
    before = old.state_dict()
    new.adopt(old)
    assert (new.seen, len(new)) == (500, 30)
    assert_same(old.state_dict(), before)
    samples = new.all()
    for values in (
        samples.columns["id"],
        samples.columns["extra"] * 2,
        samples.task * 200 + samples.x[:, 0].long() % 200,
    ):
        assert torch.equal(values.long(), samples.x[:, 0].long())
    assert new.summary()["age"] == old.summary()["age"]
    assert new.fact("best_loss", new.slots(), fill=9.0).eq(9).all()
    assert new.forget(ids=numbers(new)[:3]) == 3


def test_a_reservoir_of_another_size_stays_a_uniform_sample() -> None:
    """Of 60 samples of the old stream and 20 new ones, each is held as often as any other."""
    held = Counter[int]()
    for seed in range(1500):
        old, new = ReservoirMemory(20, seed=seed), ReservoirMemory(10, seed=10_000 + seed)
        feed(old, 0, 60)
        new.adopt(old)
        feed(new, 60, 80)
        held.update(numbers(new))
    counts = np.array([held[number] for number in range(80)])
    assert counts.sum() == 15_000
    assert stats.chisquare(counts).pvalue > 1e-3


def test_a_larger_reservoir_takes_new_samples_at_their_fair_rate() -> None:
    fresh = []
    for seed in range(200):
        old, new = ReservoirMemory(10, seed=seed), ReservoirMemory(40, seed=seed + 999)
        feed(old, 0, 200)
        new.adopt(old)
        feed(new, 200, 400)
        fresh.append(sum(number >= 200 for number in numbers(new)))
    assert abs(np.mean(fresh) - 20) < 1  # 40 of 400 samples, of which 200 are new


@pytest.mark.parametrize("source", [ReservoirMemory, ClassBalancedMemory, RingMemory])
@pytest.mark.parametrize("capacity", [20, 90])
def test_a_class_balanced_memory_shares_among_the_classes_that_were_and_that_come(
    source: type[Memory], capacity: int
) -> None:
    old, new = source(60, seed=1), ClassBalancedMemory(capacity, seed=2)
    feed(old, 0, 1000, classes=3)
    new.adopt(old)
    assert len(new) == min(60, capacity)
    feed(new, 1000, 1400, classes=5)
    classes = new.summary()["classes"]
    assert len(new) == capacity
    assert len(classes) == 5
    assert max(classes.values()) - min(classes.values()) <= 1 + (capacity == 90)
    again = ClassBalancedMemory(capacity)
    again.load_state_dict(new.state_dict())
    feed(again, 1400, 1500)
    feed(new, 1400, 1500)
    assert_same(again.state_dict(), new.state_dict())


def test_each_task_keeps_its_last_samples() -> None:
    old, new = ReservoirMemory(60, seed=1), TaskRingMemory(20)
    feed(old, 0, 1000)
    new.adopt(old)
    task = old.all().task
    for number in range(5):
        last = sorted(old.all().x[task == number, 0].long().tolist())[-4:]
        assert sorted(new.all().x[new.all().task == number, 0].long().tolist()) == last


def test_into_a_file_and_out_of_one(tmp_path: Path) -> None:
    old, there, back = ReservoirMemory(30), ReservoirMemory(30, path=tmp_path / "rows"), ReservoirMemory(30)
    feed(old, 0, 100)
    there.adopt(old)
    back.adopt(there)
    assert numbers(there) == numbers(back) == numbers(old)


def test_an_empty_memory_gives_its_count_alone_and_only_a_new_one_adopts() -> None:
    old, new = ReservoirMemory(5), RingMemory(5)
    feed(old, 0, 50)
    old.forget(slots=range(5))
    assert new.adopt(old) == 0
    assert new.seen == 50
    with pytest.raises(InvalidInput, match="seen 50"):
        new.adopt(old)


def test_a_refusal_changes_nothing() -> None:
    old, few, exemplars = ReservoirMemory(50), TaskRingMemory(3), ExemplarMemory(50)
    feed(old, 0, 1000)
    for new in (few, exemplars):
        before = new.state_dict()
        with pytest.raises(InvalidInput):
            new.adopt(old)
        assert_same(new.state_dict(), before)


def test_a_learner_replays_what_its_memory_adopted() -> None:
    old = ReservoirMemory(30)
    old.add(torch.randn(100, 2), torch.arange(100) % 4, task=0)
    torch.manual_seed(0)
    model = MLP(2, (4,), 4)
    new = Replay(model, torch.optim.SGD(model.parameters(), lr=0.1), RingMemory(40), MostInterfered(criterion="mi2"))
    new.memory.adopt(old)
    step = new.observe(torch.ones(3, 2), torch.zeros(3).long(), task=9)
    assert step.replayed is not None
    assert len(step.replayed) == 10
    assert repr(step).startswith("Step(loss ")
    assert len(repr(step)) < 100


def test_an_empty_memory_is_true() -> None:
    memory = ReservoirMemory(1000)
    assert len(memory) == 0
    assert (memory or None) is memory
