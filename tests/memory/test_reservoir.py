"""The memory: Vitter's law at every moment, slots that stay with their samples, fair samples, nothing left behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rehearse import Batch, ReservoirMemory
from rehearse.errors import CheckpointError, InvalidInput, InvalidType
from sameness import assert_same, frozen


def samples(start: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples that carry their own number, as input and (modulo 3) as label."""
    numbers = torch.arange(start, start + n)
    return numbers.float()[:, None], numbers % 3


def filled(capacity: int, n: int, batch: int = 4, seed: int = 0, task: Any = None) -> ReservoirMemory:
    memory = ReservoirMemory(capacity, seed=seed)
    for start in range(0, n, batch):
        memory.add(*samples(start, min(batch, n - start)), task=task)
    return memory


def held(memory: ReservoirMemory) -> dict[int, int]:
    """Slot -> the number of the sample in it."""
    everything = memory.all()
    assert everything.slots is not None
    return dict(zip(everything.slots.tolist(), everything.x[:, 0].int().tolist(), strict=True))


# --------------------------------------------------------------------------------------------------- the reservoir


class Recorded:
    """A generator that remembers what it drew."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self.bounds: list[int] = []
        self.draws: list[int] = []

    def integers(self, low: int, high: Any) -> Any:
        drawn = self._generator.integers(low, high)
        assert low == 0
        self.bounds += np.atleast_1d(high).tolist()
        self.draws += np.atleast_1d(drawn).tolist()
        return drawn


@settings(max_examples=80, deadline=None)
@given(
    capacity=st.integers(1, 12),
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
)
def test_batches_of_any_size_do_what_algorithm_r_does_one_sample_at_a_time(
    capacity: int, sizes: list[int], seed: int
) -> None:
    memory = ReservoirMemory(capacity, seed=seed)
    recorded = Recorded(memory._insertion)
    memory._insertion = recorded  # type: ignore[assignment]
    reservoir: dict[int, int] = {}
    used, seen = 0, 0
    for size in sizes:
        taken = memory.add(*samples(seen, size))
        placed: dict[int, int] = {}
        for t in range(seen, seen + size):  # algorithm R, literally
            if t < capacity:
                slot = t
            else:
                assert recorded.bounds[used] == t + 1
                slot = recorded.draws[used]
                used += 1
            if slot < capacity:
                reservoir[slot] = t
                placed[slot] = t
        seen += size
        assert held(memory) == reservoir
        assert memory.seen == seen
        survivors = {t: slot for slot, t in placed.items()}
        assert taken.tolist() == [survivors.get(t, -1) for t in range(seen - size, seen)]
    assert used == len(recorded.draws)


@pytest.mark.parametrize("batch", [1, 3, 12])
def test_every_position_of_the_stream_is_held_with_the_same_probability(batch: int) -> None:
    """Capacity 5 of 12 samples: batches of 3 straddle the moment it fills, one of 12 contains it."""
    capacity, n, runs = 5, 12, 500
    counts = np.zeros(n)
    for seed in range(runs):
        counts[list(held(filled(capacity, n, batch, seed=seed)).values())] += 1
    expected = runs * capacity / n
    deviation = (counts - expected) / np.sqrt(expected * (1 - capacity / n))
    assert np.abs(deviation).max() < 4, deviation.round(1)


def test_the_law_holds_for_what_remains_after_forgetting() -> None:
    """Three early samples are forgotten: every other sample is held with probability capacity / seen as before."""
    capacity, n, runs = 6, 18, 800
    counts = np.zeros(n)
    for seed in range(runs):
        memory = filled(capacity, 10, 10, seed=seed)
        memory.forget(predicate=lambda batch: batch.x[:, 0] < 3)
        memory.add(*samples(10, n - 10))
        counts[list(held(memory).values())] += 1
    assert counts[:3].sum() == 0
    expected = runs * capacity / n
    deviation = (counts[3:] - expected) / np.sqrt(expected * (1 - capacity / n))
    assert np.abs(deviation).max() < 4, deviation.round(1)


def test_one_seed_one_memory_and_sampling_has_no_part_in_what_is_kept() -> None:
    quiet, busy, other = filled(5, 40, seed=1), ReservoirMemory(5, seed=1), filled(5, 40, seed=2)
    for start in range(0, 40, 4):
        busy.add(*samples(start, 4))
        busy.sample(3)
    assert held(busy) == held(quiet)
    assert held(other) != held(quiet)


# ------------------------------------------------------------------------------------------------ slots and tasks

Operation = tuple[str, Any]
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(-1, 3), min_size=1, max_size=9)),
        st.tuples(st.just("forget"), st.sets(st.integers(0, 9), max_size=6)),
        st.tuples(st.just("note"), st.integers(1, 9)),
        st.tuples(st.just("reload"), st.none()),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=80, deadline=None)
@given(capacity=st.integers(1, 10), steps=operations, left_out=st.integers(0, 3), n=st.integers(0, 12))
def test_slots_tasks_and_facts_stay_with_their_samples(
    capacity: int, steps: list[Operation], left_out: int, n: int
) -> None:
    """Against a dict from slot to (number, task, fact)."""
    memory = ReservoirMemory(capacity, seed=3)
    model: dict[int, tuple[int, int, float]] = {}
    for what, value in steps:
        if what == "add":
            for known in (True, False):  # a call with tasks, then one without
                tasks = [task for task in value if (task >= 0) == known]
                if not tasks:
                    continue
                first = memory.seen
                taken = memory.add(*samples(first, len(tasks)), task=tasks if known else None)
                for number, (slot, task) in enumerate(zip(taken.tolist(), tasks, strict=True), first):
                    if slot >= 0:
                        model[slot] = (number, task, -1.0)
        elif what == "forget":
            assert memory.forget(slots=value) == len(model.keys() & value)
            model = {slot: sample for slot, sample in model.items() if slot not in value}
        elif what == "note" and model:
            slots = memory.sample(value).slots
            assert slots is not None
            memory.fact("luck", slots, fill=-1.0)
            memory.note("luck", slots, slots.float() + value)
            for slot in slots.tolist():
                model[slot] = (*model[slot][:2], slot + value)
        elif what == "reload":
            state = memory.state_dict()
            memory = ReservoirMemory(capacity, seed=99)
            memory.load_state_dict(state)

        assert len(memory) == len(model)
        eligible = {slot for slot, sample in model.items() if sample[1] != left_out}
        assert memory.eligible(left_out) == len(eligible)
        if memory.seen:
            everything = memory.all()
            assert everything.slots is not None
            assert isinstance(everything.task, torch.Tensor)
            assert everything.slots.tolist() == sorted(model)
            facts = memory.fact("luck", everything.slots, fill=-1.0).tolist()
            found = zip(everything.x[:, 0].int().tolist(), everything.task.tolist(), facts, strict=True)
            assert list(found) == [model[slot] for slot in sorted(model)]
            drawn = memory.sample(n, exclude_task=left_out)
            assert drawn.slots is not None
            assert len(set(drawn.slots.tolist())) == len(drawn) == min(n, len(eligible))
            assert set(drawn.slots.tolist()) <= eligible
            assert drawn.x[:, 0].tolist() == [model[slot][0] for slot in drawn.slots.tolist()]
            assert memory.all(exclude_task=left_out).y.tolist() == [model[slot][0] % 3 for slot in sorted(eligible)]


def test_samples_are_uniform_over_samples_and_over_orders_with_and_without_a_task_left_out() -> None:
    memory = ReservoirMemory(12)
    memory.add(*samples(0, 12), task=[0, 1, 2, 0, 1, 1, 1, 2, 0, 0, 2, 1])
    for left_out, eligible in ((None, range(12)), (1, [0, 2, 3, 7, 8, 9, 10])):
        draws = 2000
        firsts, seconds = np.zeros(12), np.zeros(12)
        for _ in range(draws):
            first, second = memory.sample(2, exclude_task=left_out).x[:, 0].int().tolist()
            firsts[first] += 1
            seconds[second] += 1
        outside = [slot for slot in range(12) if slot not in eligible]
        assert firsts[outside].sum() == seconds[outside].sum() == 0
        expected = draws / len(eligible)
        for counts in (firsts[list(eligible)], seconds[list(eligible)]):
            assert np.abs(counts - expected).max() < 4 * np.sqrt(expected)


def test_pairs_of_a_sample_are_uniform() -> None:
    memory = filled(4, 4)
    counts = np.zeros((4, 4))
    for _ in range(1800):
        first, second = memory.sample(2).x[:, 0].int().tolist()
        counts[first, second] += 1
    assert np.diag(counts).sum() == 0
    assert np.abs(counts[~np.eye(4, dtype=bool)] - 150).max() < 4 * np.sqrt(150)


def test_unknown_tasks_are_always_eligible() -> None:
    memory = ReservoirMemory(4)
    memory.add(*samples(0, 2), task=None)
    memory.add(*samples(2, 2), task=0)
    assert sorted(memory.sample(9, exclude_task=0).x[:, 0].tolist()) == [0, 1]
    assert memory.eligible(torch.tensor([0, -1])) == 2
    assert memory.eligible(None) == 4


def test_several_tasks_can_be_left_out_at_once() -> None:
    memory = ReservoirMemory(6)
    memory.add(*samples(0, 6), task=[0, 1, 2, 0, 1, 2])
    assert sorted(memory.sample(6, exclude_task=torch.tensor([0, 2])).x[:, 0].tolist()) == [1, 4]


def test_tasks_to_leave_out_may_be_a_list_or_a_set() -> None:
    memory = ReservoirMemory(6)
    memory.add(*samples(0, 6), task=[0, 1, 2, 0, 1, 2])
    for tasks in ([0, 2], {0, 2}):
        assert sorted(memory.sample(6, exclude_task=tasks).x[:, 0].tolist()) == [1, 4]  # type: ignore[arg-type]


def test_nothing_eligible_is_an_empty_batch_and_draws_nothing() -> None:
    memory = filled(4, 4, task=1)
    before = frozen(memory.state_dict())
    drawn = memory.sample(3, exclude_task=1)
    assert len(drawn) == 0
    assert drawn.x.shape == (0, 1)
    assert memory.eligible(1) == 0
    assert_same(memory.state_dict(), before)


def test_an_empty_memory_has_nothing_to_recall() -> None:
    memory = ReservoirMemory(3)
    assert (len(memory), memory.eligible(), memory.nbytes) == (0, 0, 0)
    with pytest.raises(InvalidInput, match="empty"):
        memory.sample(1)


@pytest.mark.parametrize("n", [-1, 1.0, True, "2"])
def test_refused_sample_sizes(n: Any) -> None:
    with pytest.raises(InvalidInput, match="sample"):
        filled(3, 3).sample(n)


@pytest.mark.parametrize("capacity", [0, -1, 2.0, True, "5", None])
def test_refused_capacities(capacity: Any) -> None:
    with pytest.raises(InvalidInput, match="capacity"):
        ReservoirMemory(capacity)


# ------------------------------------------------------------------------------------------- what is stored, and how


def test_samples_are_stored_in_the_dtype_they_come_in_and_copied() -> None:
    memory = ReservoirMemory(4)
    x = np.array([[1, 2], [3, 4]], dtype=np.uint8)
    memory.add(x, np.array([0, 1], dtype=np.int16))
    x[:] = 9
    everything = memory.all()
    assert everything.x.dtype == torch.uint8
    assert everything.y.dtype == torch.int16
    assert everything.x.tolist() == [[1, 2], [3, 4]]
    everything.x.zero_()
    assert memory.all().x.tolist() == [[1, 2], [3, 4]]


def test_trees_of_inputs() -> None:
    memory = ReservoirMemory(4)
    memory.add({"a": torch.arange(3), "b": (torch.arange(6).reshape(3, 2),)}, torch.arange(3))
    drawn = memory.get(torch.tensor([2, 0]))
    assert drawn.x["a"].tolist() == [2, 0]
    assert drawn.x["b"][0].tolist() == [[4, 5], [0, 1]]
    for other in (torch.arange(3), {"a": torch.arange(3)}, {"a": torch.arange(3), "b": torch.zeros(3, 2)}):
        with pytest.raises(InvalidInput, match=r"another form|keys"):
            memory.add(other, torch.arange(3))


def test_columns_travel_with_their_samples() -> None:
    memory = ReservoirMemory(3)
    for start in range(0, 30, 3):
        x, y = samples(start, 3)
        memory.add(x, y, logits=torch.stack([x[:, 0], -x[:, 0]], 1), id=list(range(start, start + 3)))
    drawn = memory.sample(3)
    assert torch.equal(drawn.columns["logits"], torch.cat([drawn.x, -drawn.x], 1))
    assert torch.equal(drawn.columns["id"].float(), drawn.x[:, 0])


@pytest.mark.parametrize(
    ("arguments", "columns", "kind", "words"),
    [
        ((torch.zeros(2, 3), torch.zeros(2).long()), {"z": [0, 0]}, InvalidInput, r"\(3,\) per sample"),
        ((torch.zeros(2, 1).double(), torch.zeros(2).long()), {"z": [0, 0]}, InvalidInput, "float64"),
        ((torch.zeros(2, 1), torch.zeros(2).int()), {"z": [0, 0]}, InvalidInput, "int32"),
        ((torch.zeros(2, 1), torch.zeros(2).long()), {}, InvalidInput, "columns"),
        ((torch.zeros(2, 1), torch.zeros(2).long()), {"z": [0, 0], "w": [0, 0]}, InvalidInput, "columns"),
        ((torch.zeros(2, 1), torch.zeros(2).long()), {"z": [0]}, InvalidInput, "the batch has 2 samples"),
        ((torch.zeros(2, 1), torch.zeros(2).long()), {"z": 0}, InvalidInput, "the batch has 2 samples"),
        ((torch.zeros(2, 1), torch.zeros(2).long()), {"z": ["a", "b"]}, InvalidType, "column 'z'"),
        ((torch.zeros(2, 1), torch.zeros(2).long()), {"slots": [0, 0]}, InvalidInput, "'slots'"),
        ((torch.zeros(2, 1), torch.zeros(3).long()), {"z": [0, 0, 0]}, InvalidInput, "y has 3"),
        ((torch.full((2, 1), torch.nan), torch.zeros(2).long()), {"z": [0, 0]}, InvalidInput, "finite"),
    ],
)
def test_refused_samples_change_nothing(
    arguments: tuple[Any, Any], columns: dict[str, Any], kind: type[Exception], words: str
) -> None:
    memory = ReservoirMemory(4)
    for start in range(0, 12, 2):
        memory.add(*samples(start, 2), z=[start, start])
    before = frozen(memory.state_dict())
    with pytest.raises(kind, match=words):
        memory.add(*arguments, **columns)
    assert_same(memory.state_dict(), before)


def test_checking_says_what_adding_would_and_changes_nothing() -> None:
    memory = filled(4, 6)
    before = frozen(memory.state_dict())
    memory.check(Batch(*samples(0, 2)))
    with pytest.raises(InvalidInput, match="float64"):
        memory.check(Batch(torch.zeros(2, 1).double(), torch.zeros(2).long()))
    assert_same(memory.state_dict(), before)


def test_summary_and_bytes() -> None:
    memory = ReservoirMemory(10)
    assert memory.summary()["samples"] == 0
    memory.add(torch.zeros(2, 3, dtype=torch.uint8), torch.tensor([1, 1]), task=0)
    memory.add(torch.zeros(1, 3, dtype=torch.uint8), torch.tensor([2]), task=None)
    assert memory.nbytes == 3 * (3 + 8 + 8 + 8)  # inputs; y, task and arrival as int64
    assert memory.summary() == {
        "samples": 3,
        "capacity": 10,
        "seen": 3,
        "bytes": memory.nbytes,
        "classes": {1: 2, 2: 1},
        "tasks": {-1: 1, 0: 2},
        "age": {"least": 0.0, "median": 1.0, "most": 2.0},
    }


# --------------------------------------------------------------------------------------------------------------- facts


def test_facts_are_reset_where_a_sample_is_overwritten_and_only_there() -> None:
    memory = filled(5, 5)
    slots = torch.arange(5)
    assert memory.fact("best", slots, fill=torch.inf).tolist() == [torch.inf] * 5
    memory.note("best", slots, torch.arange(5.0))
    taken = memory.add(*samples(5, 3))
    fresh = {slot for slot in taken.tolist() if slot >= 0}
    assert 0 < len(fresh) < 5
    assert memory.fact("best", slots, fill=torch.inf).tolist() == [
        torch.inf if slot in fresh else float(slot) for slot in range(5)
    ]


# --------------------------------------------------------------------------------------------------------- forgetting


def test_forgetting_by_slot_by_id_and_by_predicate() -> None:
    memory = ReservoirMemory(8)
    memory.add(*samples(0, 8), id=torch.arange(100, 108))
    assert memory.forget(slots=torch.tensor([1, 1, 7])) == 2
    assert memory.forget(slots=[1]) == 0
    assert memory.forget(ids=torch.tensor([100, 103])) == 2
    assert memory.forget(ids={104, 999}) == 1
    assert memory.forget(predicate=lambda batch: batch.columns["id"] == 105) == 1
    assert held(memory) == {2: 2, 6: 6}
    assert memory.seen == 8


def test_forgotten_bytes_are_overwritten() -> None:
    memory = ReservoirMemory(4)
    memory.add(torch.full((4, 2), 7.0), torch.full((4,), 7), task=7, id=[7, 7, 7, 7])
    memory.fact("best", torch.arange(4), fill=torch.inf)
    memory.note("best", torch.arange(4), torch.full((4,), 7.0))
    memory.forget(slots=[0, 2])
    state = memory.state_dict()
    assert state["x"].tolist() == [[0, 0], [7, 7], [0, 0], [7, 7]]
    for name in ("y", "task", "id", "arrived"):
        assert state["columns"][name][[0, 2]].tolist() == [0, 0]
    assert state["facts"]["best"][1].tolist() == [torch.inf, 7, torch.inf, 7]


def test_forgetting_everything_leaves_a_memory_that_works() -> None:
    memory = filled(4, 10, task=2)
    assert memory.forget(predicate=lambda batch: torch.ones(len(batch), dtype=torch.bool)) == 4
    assert len(memory.sample(3)) == len(memory) == memory.eligible() == 0
    restored = ReservoirMemory(4)
    restored.load_state_dict(memory.state_dict())
    for start in range(10, 60, 5):
        assert memory.add(*samples(start, 5)).tolist() == restored.add(*samples(start, 5)).tolist()
    assert held(memory) == held(restored)
    assert len(memory) > 0


def test_refused_forgetting() -> None:
    memory = filled(4, 4)
    with pytest.raises(InvalidInput, match="exactly one"):
        memory.forget()
    with pytest.raises(InvalidInput, match="exactly one"):
        memory.forget(slots=[0], ids=[0])
    with pytest.raises(InvalidInput, match="no ids"):
        memory.forget(ids=[0])
    with pytest.raises(InvalidInput, match="boolean"):
        memory.forget(predicate=lambda batch: batch.y)
    assert len(memory) == 4


# -------------------------------------------------------------------------------------------------------------- state


def test_a_restored_memory_goes_on_bit_for_bit(tmp_path: Any) -> None:
    memory = ReservoirMemory(6, seed=5)
    for start in range(0, 24, 4):
        memory.add(*samples(start, 4), task=[0, 1, 0, 2], logits=torch.randn(4, 2))
    memory.fact("best", torch.arange(6), fill=torch.inf)
    memory.note("best", torch.tensor([1]), torch.tensor([0.5]))
    memory.forget(slots=[3])
    torch.save(memory.state_dict(), tmp_path / "memory.pt")
    restored = ReservoirMemory(6, seed=77)
    restored.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    assert_same(restored.state_dict(), memory.state_dict())
    for start in range(24, 60, 4):
        logits = torch.randn(4, 2)
        for one in (memory, restored):
            one.add(*samples(start, 4), task=[0, 1, 3, 2], logits=logits)
        assert_same(memory.sample(3, exclude_task=0).x, restored.sample(3, exclude_task=0).x)
    assert_same(restored.state_dict(), memory.state_dict())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64])
def test_slots_that_were_never_written_are_saved_as_zeros(dtype: torch.dtype) -> None:
    memory = ReservoirMemory(100)
    memory.add((torch.ones(60, 50).to(dtype), torch.ones(60, 1)), torch.ones(60, dtype=torch.long))
    memory.forget(slots=range(40, 60))
    restored = ReservoirMemory(100, seed=5)  # of which the first 40 slots are written
    restored.load_state_dict(memory.state_dict())
    while restored.slots().max() < 90:
        restored.add((torch.ones(1, 50).to(dtype), torch.ones(1, 1)), torch.ones(1, dtype=torch.long))
    state = restored.state_dict()
    empty = torch.tensor(sorted(set(range(len(state["columns"]["y"]))) - set(restored.slots().tolist())))
    assert len(empty) > 10
    assert not state["x"][0][empty].any()
    assert not state["columns"]["y"][empty].any()


def test_a_state_is_a_copy() -> None:
    memory = filled(4, 4)
    state = memory.state_dict()
    kept = frozen(state)
    for start in range(4, 40, 4):
        memory.add(*samples(start, 4))
    assert_same(state, kept)
    memory.load_state_dict(state)
    memory.add(*samples(0, 4)), memory.forget(slots=[0])
    assert_same(state, kept)


def test_a_state_of_another_capacity_or_policy_is_refused() -> None:
    state = filled(4, 4).state_dict()
    with pytest.raises(CheckpointError, match="capacity 4"):
        ReservoirMemory(5).load_state_dict(state)
    with pytest.raises(CheckpointError, match="policy 'Ring'"):
        ReservoirMemory(4).load_state_dict({**state, "policy": "Ring"})


def test_a_sample_of_none_is_all_of_them_in_order():
    memory = ReservoirMemory(10)
    memory.add(torch.arange(6.0)[:, None], torch.arange(6) % 2, torch.arange(6) % 2)
    assert memory.sample(None).x.flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert memory.sample(None, exclude_task=0).x.flatten().tolist() == [1, 3, 5]
