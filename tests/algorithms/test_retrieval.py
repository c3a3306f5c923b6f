"""Retrieval: MI-1 and MI-2 against a literal computation with deep copies and masks."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse import Batch, Lookahead, MostInterfered, ReservoirMemory, Uniform
from rehearse.errors import InvalidInput
from sameness import assert_same, frozen, outside

RATE = 0.5


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def setting(capacity: int = 30, rows: int = 60) -> tuple[nn.Module, Lookahead, ReservoirMemory]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
    memory = ReservoirMemory(capacity, seed=1)
    for start in range(0, rows, 10):
        memory.add(torch.randn(10, 8), torch.randint(0, 4, (10,)), task=[(start + i) % 3 for i in range(10)])
    return model, Lookahead(model, torch.optim.SGD(model.parameters(), lr=RATE)), memory


def incoming(task: int | None = None) -> Batch:
    return Batch(torch.randn(10, 8), torch.randint(0, 4, (10,)), task)


def gradient_of(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    other = copy.deepcopy(model).eval()
    F.cross_entropy(other(batch.x), batch.y).backward()
    return {name: p.grad for name, p in other.named_parameters() if p.grad is not None}


def stepped(model: nn.Module, gradient: dict[str, Tensor]) -> nn.Module:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            parameter -= RATE * gradient[name]
    return other


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return F.cross_entropy(copy.deepcopy(model).eval()(x[None]), y[None]).item()


def literal(
    model: nn.Module,
    gradient: dict[str, Tensor],
    memory: ReservoirMemory,
    slots: list[int],
    budget: int,
    best: dict[int, float] | None,
) -> tuple[list[int], list[float]]:
    """One row at a time: (slots, scores), the highest first; ``best`` holds the lowest loss so far of MI-2."""
    there = stepped(model, gradient)
    everything = memory.all()
    assert everything.slots is not None
    scores: dict[int, float] = {}
    for slot in slots:
        row = int((everything.slots == slot).nonzero())
        before = loss_of(model, everything.x[row], everything.y[row])
        after = loss_of(there, everything.x[row], everything.y[row])
        if best is not None:
            best[slot] = min(best.get(slot, float("inf")), before)
            before = best[slot]
        scores[slot] = after - before
    ranked = sorted(scores, key=lambda slot: (-scores[slot], slot))[:budget]
    return ranked, [scores[slot] for slot in ranked]


@pytest.mark.parametrize("criterion", ["mi1", "mi2"])
@pytest.mark.parametrize("task", [None, 2])
@pytest.mark.parametrize("candidates", [None, 12, 100])
def test_the_most_interfered_are_those_of_the_literal_computation(
    criterion: Any, task: int | None, candidates: int | None
) -> None:
    """Several steps, the model moving in between, the memory too: the best losses of MI-2 stay with their rows."""
    model, look, memory = setting()
    twin = setting()[2]
    twin.load_state_dict(memory.state_dict())
    retrieval = MostInterfered(candidates, criterion)
    best: dict[int, float] | None = {} if criterion == "mi2" else None
    for _ in range(5):
        batch = incoming(task)
        gradient = gradient_of(model, batch)
        replayed, scores = retrieval(memory, batch, gradient, look, 6)
        if candidates is None:
            drawn = twin.all(exclude_task=task).slots
        else:
            drawn = twin.sample(candidates, exclude_task=task).slots
        assert replayed is not None
        assert replayed.slots is not None
        assert scores is not None
        assert drawn is not None
        expected_slots, expected_scores = literal(model, gradient, memory, drawn.tolist(), 6, best)
        assert replayed.slots.tolist() == expected_slots
        torch.testing.assert_close(scores, torch.tensor(expected_scores), rtol=1e-4, atol=1e-5)
        assert task is None or task not in replayed.task.tolist()  # type: ignore[union-attr]
        model.load_state_dict(stepped(model, gradient).state_dict())
        new = (torch.randn(10, 8), torch.randint(0, 4, (10,)))
        taken = memory.add(*new, task=1)
        assert twin.add(*new, task=1).tolist() == taken.tolist()
        if best is not None:
            for slot in taken.tolist():
                best.pop(slot, None)
    if best is not None:
        known = memory.fact("best_loss", torch.tensor(sorted(best)), fill=torch.inf)
        torch.testing.assert_close(known, torch.tensor([best[slot] for slot in sorted(best)]), rtol=1e-4, atol=1e-5)


def test_the_two_criteria_differ() -> None:
    """A row whose loss was low before and is high now has been forgotten already: only MI-2 sees that."""
    model, look, memory = setting()
    everything = MostInterfered(None, "mi2")
    nothing = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    everything(memory, incoming(), nothing, look, 5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    _, mi1 = MostInterfered(None, "mi1")(memory, incoming(), nothing, look, 5)
    _, mi2 = everything(memory, incoming(), nothing, look, 5)
    assert mi1 is not None
    assert mi2 is not None
    assert mi1.tolist() == [0.0] * 5
    assert mi2.min() > 0


@pytest.mark.parametrize("candidates", [None, 9])
def test_ties_go_to_the_lower_slot(candidates: int | None) -> None:
    model, look, _ = setting()
    same = ReservoirMemory(12)
    same.add(torch.ones(12, 8), torch.zeros(12, dtype=torch.long))
    gradient = gradient_of(model, incoming())
    for _ in range(5):
        replayed, scores = MostInterfered(candidates)(same, incoming(), gradient, look, 4)
        assert replayed is not None
        assert replayed.slots is not None
        assert scores is not None
        assert len(set(scores.tolist())) == 1
        assert replayed.slots.tolist() == sorted(replayed.slots.tolist())
        if candidates is None:
            assert replayed.slots.tolist() == [0, 1, 2, 3]


def test_fewer_rows_than_the_budget_are_all_recalled() -> None:
    model, look, _ = setting()
    memory = ReservoirMemory(30)
    memory.add(torch.randn(3, 8), torch.tensor([0, 1, 2]), task=0)
    gradient = gradient_of(model, incoming())
    for retrieval in (Uniform(), Uniform(7), MostInterfered(), MostInterfered(None)):
        replayed, scores = retrieval(memory, incoming(1), gradient, look, 10)
        assert replayed is not None
        assert replayed.slots is not None
        assert sorted(replayed.slots.tolist()) == [0, 1, 2]
        assert scores is None or len(scores) == 3


@pytest.mark.parametrize("retrieval", [Uniform(), Uniform(7), MostInterfered(), MostInterfered(None, "mi2")])
def test_with_nothing_eligible_nothing_is_recalled_and_nothing_is_drawn(retrieval: Any) -> None:
    model, look, _ = setting()
    gradient = gradient_of(model, incoming())
    empty, own = ReservoirMemory(5), ReservoirMemory(5)
    own.add(torch.randn(3, 8), torch.tensor([0, 1, 2]), task=4)
    before = frozen(own.state_dict())
    assert retrieval(empty, incoming(), gradient, look, 5) == (None, None)
    assert retrieval(own, incoming(4), gradient, look, 5) == (None, None)
    assert_same(own.state_dict(), before)
    assert look.samples_passed == 0


def test_fewer_candidates_than_the_budget_recall_the_candidates() -> None:
    model, look, memory = setting()
    replayed, scores = MostInterfered(4)(memory, incoming(), gradient_of(model, incoming()), look, 10)
    assert replayed is not None
    assert scores is not None
    assert len(replayed) == len(scores) == 4


def test_scores_that_are_no_numbers_come_first() -> None:
    model, look, memory = setting()
    gradient = {name: torch.full_like(parameter, torch.nan) for name, parameter in model.named_parameters()}
    replayed, scores = MostInterfered(None)(memory, incoming(), gradient, look, 3)
    assert replayed is not None
    assert scores is not None
    assert scores.tolist() == [torch.inf] * 3


def test_plain_replay_recalls_a_sample() -> None:
    _, look, memory = setting()
    twin = setting()[2]
    twin.load_state_dict(memory.state_dict())
    replayed, scores = Uniform()(memory, incoming(0), {}, look, 6)
    assert scores is None
    assert replayed is not None
    assert_same(replayed.slots, twin.sample(6, exclude_task=0).slots)
    assert look.samples_passed == 0


def test_the_control_passes_candidates_and_takes_the_budget_from_them() -> None:
    _, look, memory = setting()
    twin = setting()[2]
    twin.load_state_dict(memory.state_dict())
    replayed, scores = Uniform(20)(memory, incoming(0), {}, look, 6)
    assert scores is None
    assert replayed is not None
    drawn = twin.sample(20, exclude_task=0).slots
    assert drawn is not None
    assert_same(replayed.slots, drawn[:6])
    assert look.samples_passed == len(drawn)


@pytest.mark.parametrize("retrieval", [Uniform(9), MostInterfered(9, "mi2"), MostInterfered(None, layers="head")])
def test_the_model_does_not_notice(retrieval: Any) -> None:
    model, look, memory = setting()
    gradient = gradient_of(model, incoming())
    batch = incoming()
    before = (frozen(outside(model)), frozen(gradient))
    retrieval(memory, batch, gradient, look, 5)
    assert_same((outside(model), gradient), before)


@pytest.mark.parametrize("candidates", [0, -1, 2.5, True, "50"])
def test_refused_candidates(candidates: Any) -> None:
    for kind in (Uniform, MostInterfered):
        with pytest.raises(InvalidInput, match="candidates"):
            kind(candidates)


def test_refused_criterion() -> None:
    with pytest.raises(InvalidInput, match="mi3"):
        MostInterfered(50, "mi3")  # type: ignore[arg-type]
