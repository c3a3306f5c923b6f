"""Ids that come with the samples of a stream, and what is removed by them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rehearse import Batch, ClassBalancedMemory, Finetune, Learner, Memory, Replay, ReservoirMemory, RingMemory
from rehearse.errors import InvalidInput, InvalidType
from rehearse.learners import AGEM, GEM, ICaRL
from rehearse.losses import DarkExperience
from rehearse.memory import ExemplarMemory, TaskRingMemory
from rehearse.memory.columns import NO_ID, as_ids
from sameness import assert_same

FEATURES, CLASSES = 4, 4


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


LEARNERS: dict[str, Callable[[], Learner]] = {
    "reservoir": lambda: Replay(*network(), ReservoirMemory(30), budget=4),
    "balanced": lambda: Replay(*network(), ClassBalancedMemory(30), budget=4),
    "ring": lambda: Replay(*network(), RingMemory(30), budget=4),
    "dark": lambda: Replay(*network(), ReservoirMemory(30), budget=4, loss=DarkExperience()),
    "gem": lambda: GEM(*network(), TaskRingMemory(30)),
    "agem": lambda: AGEM(*network(), TaskRingMemory(30)),
    "icarl": lambda: ICaRL(*network(), ExemplarMemory(30)),
    "icarl, whole tasks": lambda: ICaRL(*network(), ExemplarMemory(30), keep="task"),
}


def samples(number: int) -> tuple[Tensor, Tensor, int, Tensor]:
    """Ten samples whose first feature is their number in the stream, half a task of two classes."""
    generator = torch.Generator().manual_seed(number)
    numbers = torch.arange(10 * number, 10 * number + 10)
    task = number // 4
    x = torch.cat([numbers[:, None] / 100, torch.rand(10, FEATURES - 1, generator=generator)], 1)
    return x, 2 * task + torch.arange(10) % 2, task, numbers


def numbers_of(held: Batch) -> Tensor:
    return (held.x[:, 0] * 100).round().long()


@pytest.mark.parametrize("kind", LEARNERS)
def test_samples_of_the_stream_are_found_again_by_their_id(kind: str) -> None:
    """Every other batch has ids: those samples keep theirs, the others have none."""
    learner = LEARNERS[kind]()
    for number in range(8):
        x, y, task, numbers = samples(number)
        learner.observe(x, y, task, id=numbers if number % 2 else None)
    assert learner.memory is not None
    held = learner.memory.all()
    with_id = numbers_of(held) // 10 % 2 == 1
    assert torch.equal(held.columns["id"], torch.where(with_id, numbers_of(held), NO_ID))
    assert with_id.any()
    assert not with_id.all()
    victims = numbers_of(held)[with_id][::2].tolist()
    assert learner.forget(ids=victims) == len(victims)
    assert not set(victims) & set(numbers_of(learner.memory.all()).tolist())
    assert learner.forget(ids=victims) == 0
    x, y, task, numbers = samples(7)
    learner.observe(x, y, task, id=[f"sample {n}" for n in numbers.tolist()])
    learner.end_task()
    assert learner.forget(ids=[f"sample {n}" for n in numbers.tolist()]) > 0


@pytest.mark.parametrize("kind", LEARNERS)
def test_ids_change_nothing_of_what_is_learned_and_go_into_the_state(kind: str) -> None:
    plain, named = LEARNERS[kind](), LEARNERS[kind]()
    for number in range(6):
        x, y, task, numbers = samples(number)
        plain.observe(x, y, task)
        named.observe(x, y, task, id=numbers)
    assert_same(named.model.state_dict(), plain.model.state_dict())
    other = LEARNERS[kind]()
    other.load_state_dict(named.state_dict())
    assert_same(other.state_dict(), named.state_dict())
    x, y, task, numbers = samples(6)
    for one in (named, other):
        one.observe(x, y, task, id=numbers)
    assert_same(other.state_dict(), named.state_dict())


def test_ids_that_do_not_fit_are_refused_and_nothing_is_learned() -> None:
    learner = LEARNERS["reservoir"]()
    x, y, task, _ = samples(0)
    before = learner.state_dict()
    with pytest.raises(InvalidInput, match="for 10 samples"):
        learner.observe(x, y, task, id=[1, 2])
    with pytest.raises(InvalidType, match="one per sample"):
        learner.observe(x, y, task, id="anna")
    with pytest.raises(InvalidType, match="integer or a string"):
        learner.observe(x, y, task, id=[1.5] * 10)
    with pytest.raises(InvalidInput, match="for 10 samples"):
        learner.observe(x, y, task, id=torch.zeros(10, 1, dtype=torch.long))
    assert_same(learner.state_dict(), before)


def test_samples_without_an_id_cannot_be_asked_for_by_one() -> None:
    assert as_ids([3, None, "anna"])[1] == NO_ID
    memory = ReservoirMemory(5)
    memory.add(torch.zeros(2, 1), torch.zeros(2).long(), id=["anna", None])
    with pytest.raises(InvalidInput, match="None names no sample"):
        memory.forget(ids=[None])
    assert memory.forget(ids=["anna"]) == 1
    assert memory.forget(predicate=lambda held: held.columns["id"] == NO_ID) == 1


@pytest.mark.parametrize("single", ["customer 7", 7, np.int64(7), torch.tensor(7)])
def test_a_single_id_is_a_list_of_one(single: Any) -> None:
    memory = ReservoirMemory(9)
    memory.add(torch.zeros(4, 1), torch.zeros(4).long(), id=["customer 7", 7, 7, "c"])
    assert memory.forget(ids=single) == (1 if isinstance(single, str) else 2)
    assert len(memory) == (3 if isinstance(single, str) else 2)
    with pytest.raises(InvalidType, match="an id must be an integer or a string; this is True"):
        memory.forget(ids=True)


def test_remembered_samples_with_ids_and_observed_ones_without_live_together() -> None:
    learner = LEARNERS["reservoir"]()
    x, y, task, _ = samples(0)
    learner.remember([Batch(x, y, task, columns={"id": ["anna", "ben"] * 5})])
    learner.observe(*samples(1)[:3])
    learner.observe(*samples(2)[:3], id=["carla"] * 10)
    assert learner.forget(ids=["anna", "carla"]) == 15
    assert len(learner.memory) == 15


def test_where_nothing_is_kept_an_id_is_taken_and_nothing_can_be_forgotten() -> None:
    learner = Finetune(*network())
    x, y, task, numbers = samples(0)
    learner.observe(x, y, task, id=numbers)
    with pytest.raises(InvalidInput, match="stores no samples"):
        learner.forget(ids=numbers)


def test_the_whole_running_task_is_forgotten_too() -> None:
    """iCaRL may hold all of it beside the memory, which has room for a part."""
    learner = ICaRL(*network(), ExemplarMemory(8), keep="task")
    for number in range(4):
        x, y, task, numbers = samples(number)
        learner.observe(x, y, task, id=numbers)
    with pytest.raises(InvalidInput, match="ids or a predicate"):
        learner.forget(slots=[0])
    assert learner.forget(ids=range(0, 40, 2)) == 20
    assert learner.forget(predicate=lambda held: numbers_of(held) >= 35) == 3
    learner.end_task()
    assert set(numbers_of(learner.memory.all()).tolist()) <= set(range(1, 35, 2))
    assert len(learner.memory) == 8  # the even samples were one of the two classes, the other has all the room now
    assert learner.forget(ids=range(40)) == 8
    x, y, task, numbers = samples(4)
    learner.observe(x, y, task, id=numbers)
    assert learner.forget(ids=numbers) == 10
    learner.end_task()  # of a task of which nothing may be kept
    assert len(learner.memory) == 0
    learner.observe(*samples(5)[:3])


def test_a_file_has_ids_from_its_first_sample_on(tmp_path: Path) -> None:
    named, plain = (Replay(*network(), ReservoirMemory(30, path=tmp_path / name)) for name in ("named", "plain"))
    named.observe(*samples(0)[:3], id=[None] * 10)
    named.observe(*samples(1)[:3], id=["anna"] * 10)
    named.observe(*samples(2)[:3])
    assert named.forget(ids=["anna"]) == 10
    plain.observe(*samples(0)[:3])
    before = plain.state_dict()
    with pytest.raises(InvalidInput, match="from the first batch on"):
        plain.observe(*samples(1)[:3], id=["anna"] * 10)
    assert_same(plain.state_dict(), before)
    plain.observe(*samples(1)[:3])


# ------------------------------------------------------------------------------------------- slots, and grown heads


@pytest.mark.parametrize("slots", [[7], [0, 12], [-1], torch.tensor([10**9])])
@pytest.mark.parametrize("policy", [ReservoirMemory, RingMemory])
def test_a_slot_that_holds_nothing_cannot_be_read(policy: type[Memory], slots: Any) -> None:
    memory = policy(12)
    memory.add(torch.zeros(5, 1), torch.arange(5))
    memory.forget(slots=[7])
    memory.forget(slots=[2])
    with pytest.raises(InvalidInput, match=r"slot .* holds no sample"):
        memory.get(slots)
    with pytest.raises(InvalidInput, match="slot 2 holds no sample"):
        memory.get([2])
    assert memory.get([4, 0]).y.tolist() == [4, 0]
    assert len(memory.get([])) == 0


def test_slots_that_are_no_numbers_are_refused() -> None:
    memory = ReservoirMemory(3)
    memory.add(torch.zeros(3, 1), torch.arange(3))
    for slots in ([0.5], "0", 1, [True], [[0]], None):
        with pytest.raises((InvalidInput, InvalidType), match="slots"):
            memory.get(slots)  # type: ignore[arg-type]


def test_a_head_does_not_outgrow_the_logits_in_a_file(tmp_path: Path) -> None:
    """Before anything is changed; and the way out that the message names is one."""
    old = Replay(*network(), ReservoirMemory(30, path=tmp_path / "samples"), loss=DarkExperience())
    assert old.grow(5) == 1  # nothing is laid out yet
    old.observe(*samples(0)[:2])
    before = old.state_dict()
    with pytest.raises(InvalidInput, match=r"laid out for 5.*grow the head before"):
        old.grow(6)
    assert_same(old.state_dict(), before)
    old.observe(*samples(1)[:3])
    model = old.model
    new = Replay(
        model, torch.optim.SGD(model.parameters(), lr=0.05), ReservoirMemory(30), loss=DarkExperience(), budget=4
    )
    new.grow(6)
    held = old.memory.all()
    assert new.remember([Batch(held.x, held.y, held.task)]) == 20
    assert torch.equal(new.memory.all().task, held.task)  # that of the first ten is unknown
    assert new.memory.all().columns["logits"].shape == (20, 6)
    new.observe(torch.rand(2, FEATURES), torch.tensor([5, 5]), 1)


def test_a_head_grows_beside_a_file_that_keeps_nothing_of_its_outputs(tmp_path: Path) -> None:
    learner = Replay(*network(), ReservoirMemory(30, path=tmp_path / "samples"))
    learner.observe(*samples(0)[:3])
    assert learner.grow(6) == 2
    learner.observe(torch.rand(2, FEATURES), torch.tensor([5, 5]), 1)
