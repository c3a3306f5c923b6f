"""Retrievals: MI-1 and MI-2 against a literal computation with deep copies, one sample at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse import Batch, HighestLoss, MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.batchnorm import Clean
from rehearse.engine import Plain
from rehearse.errors import InvalidInput
from rehearse.losses import CrossEntropy
from rehearse.network import NamedGradient, Network
from sameness import assert_same, frozen, outside

RATE = 0.5


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def setting(capacity: int = 30, samples: int = 60) -> tuple[nn.Module, Plain, ReservoirMemory]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
    memory = ReservoirMemory(capacity, seed=1)
    for start in range(0, samples, 10):
        memory.add(torch.randn(10, 8), torch.randint(0, 4, (10,)), task=[(start + i) % 3 for i in range(10)])
    network = Network(model, torch.optim.SGD(model.parameters(), lr=RATE))
    return model, Plain(network, CrossEntropy(), Clean()), memory


def incoming(task: int | None = None) -> Batch:
    return Batch(torch.randn(10, 8), torch.randint(0, 4, (10,)), task)


def gradient_of(model: nn.Module, batch: Batch) -> NamedGradient:
    other = copy.deepcopy(model).eval()
    F.cross_entropy(other(batch.x), batch.y).backward()
    return NamedGradient({name: p.grad for name, p in other.named_parameters() if p.grad is not None})


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
    """One sample at a time: (slots, interference), the highest first; ``best`` holds the lowest loss so far of MI-2."""
    there = stepped(model, gradient)
    everything = memory.all()
    assert everything.slots is not None
    scores: dict[int, float] = {}
    for slot in slots:
        position = int((everything.slots == slot).nonzero())
        before = loss_of(model, everything.x[position], everything.y[position])
        after = loss_of(there, everything.x[position], everything.y[position])
        if best is not None:
            best[slot] = min(best.get(slot, float("inf")), before)
            before = best[slot]
        scores[slot] = after - before
    ranked = sorted(scores, key=lambda slot: (-scores[slot], slot))[:budget]
    return ranked, [scores[slot] for slot in ranked]


@pytest.mark.parametrize("criterion", ["mi1", "mi2"])
@pytest.mark.parametrize("task", [None, 2])
@pytest.mark.parametrize("candidates", [None, 12, 100])
def test_the_most_interfered_match_the_literal_computation(
    criterion: Any, task: int | None, candidates: int | None
) -> None:
    """Several steps, the model moving in between, the memory too: the best losses of MI-2 stay with their samples."""
    model, engine, memory = setting()
    twin = setting()[2]
    twin.load_state_dict(memory.state_dict())
    retrieval = MostInterfered(candidates, criterion)
    best: dict[int, float] | None = {} if criterion == "mi2" else None
    for _ in range(5):
        batch = incoming(task)
        gradient = gradient_of(model, batch)
        retrieved, interference = retrieval(memory, batch, gradient, engine, 6)
        if candidates is None:
            drawn = twin.all(exclude_task=task).slots
        else:
            drawn = twin.sample(candidates, exclude_task=task).slots
        assert retrieved is not None
        assert retrieved.slots is not None
        assert interference is not None
        assert drawn is not None
        expected_slots, expected_scores = literal(model, gradient, memory, drawn.tolist(), 6, best)
        assert retrieved.slots.tolist() == expected_slots
        torch.testing.assert_close(interference, torch.tensor(expected_scores), rtol=1e-4, atol=1e-5)
        assert task is None or task not in retrieved.task.tolist()  # type: ignore[union-attr]
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
    """A sample whose loss was low before and is high now was already forgotten: only MI-2 sees that."""
    model, engine, memory = setting()
    everything = MostInterfered(None, "mi2")
    nothing = NamedGradient({name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()})
    everything(memory, incoming(), nothing, engine, 5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    _, mi1 = MostInterfered(None, "mi1")(memory, incoming(), nothing, engine, 5)
    _, mi2 = everything(memory, incoming(), nothing, engine, 5)
    assert mi1 is not None
    assert mi2 is not None
    assert mi1.tolist() == [0.0] * 5
    assert mi2.min() > 0


@pytest.mark.parametrize("candidates", [None, 9])
def test_ties_go_to_the_lower_slot(candidates: int | None) -> None:
    model, engine, _ = setting()
    same = ReservoirMemory(12)
    same.add(torch.ones(12, 8), torch.zeros(12, dtype=torch.long))
    gradient = gradient_of(model, incoming())
    for _ in range(5):
        retrieved, interference = MostInterfered(candidates)(same, incoming(), gradient, engine, 4)
        assert retrieved is not None
        assert retrieved.slots is not None
        assert interference is not None
        assert len(set(interference.tolist())) == 1
        assert retrieved.slots.tolist() == sorted(retrieved.slots.tolist())
        if candidates is None:
            assert retrieved.slots.tolist() == [0, 1, 2, 3]


def test_if_fewer_samples_than_the_budget_are_stored_all_are_retrieved() -> None:
    model, engine, _ = setting()
    memory = ReservoirMemory(30)
    memory.add(torch.randn(3, 8), torch.tensor([0, 1, 2]), task=0)
    gradient = gradient_of(model, incoming())
    for retrieval in (Uniform(), Uniform(7), MostInterfered(), MostInterfered(None), HighestLoss(), HighestLoss(None)):
        retrieved, interference = retrieval(memory, incoming(1), gradient, engine, 10)
        assert retrieved is not None
        assert retrieved.slots is not None
        assert sorted(retrieved.slots.tolist()) == [0, 1, 2]
        assert interference is None or len(interference) == 3


@pytest.mark.parametrize(
    "retrieval",
    [Uniform(), Uniform(7), MostInterfered(), MostInterfered(None, "mi2"), MostInterfered(every=2), HighestLoss()],
)
def test_without_eligible_samples_nothing_is_retrieved_drawn_or_passed(retrieval: Any) -> None:
    """The learner does not ask: of an empty memory, and of one that holds samples of the incoming task alone."""
    model, _, _ = setting()
    memory = ReservoirMemory(50)
    learner = Replay(model, torch.optim.SGD(model.parameters(), lr=RATE), memory, retrieval, budget=5)
    before = memory.state_dict()["sampling"]
    for _ in range(2):
        step = learner.observe(incoming().x, incoming().y, 4)
        assert (step.replayed, step.replayed_loss, step.interference) == (None, None, None)
    assert memory.state_dict()["sampling"] == before
    assert learner.samples_passed == 20
    assert learner.observe(incoming().x, incoming().y, 5).replayed is not None


def test_with_fewer_candidates_than_the_budget_all_candidates_are_retrieved() -> None:
    model, engine, memory = setting()
    retrieved, interference = MostInterfered(4)(memory, incoming(), gradient_of(model, incoming()), engine, 10)
    assert retrieved is not None
    assert interference is not None
    assert len(retrieved) == len(interference) == 4


def test_interference_of_nan_comes_first() -> None:
    model, engine, memory = setting()
    gradient = NamedGradient({name: torch.full_like(p, torch.nan) for name, p in model.named_parameters()})
    retrieved, interference = MostInterfered(None)(memory, incoming(), gradient, engine, 3)
    assert retrieved is not None
    assert interference is not None
    assert interference.tolist() == [torch.inf] * 3


def test_a_loss_of_nan_is_not_the_best_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as the worst while it lasts, and what was the best before remains that."""
    model, engine, memory = setting()
    nan, gradient = torch.nan, gradient_of(model, incoming())
    slots = memory.slots()
    found = []
    for before, after in ((2.0, 2.0), (nan, 3.0), (5.0, 3.0)):
        losses = torch.full((len(slots),), before), torch.full((len(slots),), after)
        monkeypatch.setattr(engine, "losses", lambda *_, losses=losses, **__: losses)
        _, interference = MostInterfered(None, "mi2")(memory, incoming(), gradient, engine, 1)
        assert interference is not None
        found += interference.tolist()
    assert found == [0.0, torch.inf, 1.0]


def test_uniform_retrieval_is_a_sample_of_the_memory() -> None:
    _, engine, memory = setting()
    twin = setting()[2]
    twin.load_state_dict(memory.state_dict())
    retrieved, interference = Uniform()(memory, incoming(0), {}, engine, 6)
    assert interference is None
    assert retrieved is not None
    assert_same(retrieved.slots, twin.sample(6, exclude_task=0).slots)
    assert engine.network.samples_passed == 0


def test_the_control_passes_candidates_and_takes_the_budget_from_them() -> None:
    _, engine, memory = setting()
    twin = setting()[2]
    twin.load_state_dict(memory.state_dict())
    retrieved, interference = Uniform(20)(memory, incoming(0), {}, engine, 6)
    assert interference is None
    assert retrieved is not None
    drawn = twin.sample(20, exclude_task=0).slots
    assert drawn is not None
    assert_same(retrieved.slots, drawn[:6])
    assert engine.network.samples_passed == len(drawn)


@pytest.mark.parametrize(
    "retrieval", [Uniform(9), MostInterfered(9, "mi2"), MostInterfered(None, layers="head"), HighestLoss(9)]
)
def test_retrieving_leaves_the_model_and_the_gradient_alone(retrieval: Any) -> None:
    model, engine, memory = setting()
    gradient = gradient_of(model, incoming())
    batch = incoming()
    before = (frozen(outside(model)), frozen(gradient))
    retrieval(memory, batch, gradient, engine, 5)
    assert_same((outside(model), gradient), before)


@pytest.mark.parametrize("candidates", [0, -1, 2.5, True, "50"])
def test_invalid_candidates(candidates: Any) -> None:
    for kind in (Uniform, MostInterfered, HighestLoss):
        with pytest.raises(InvalidInput, match="candidates"):
            kind(candidates)


def test_invalid_criterion() -> None:
    with pytest.raises(InvalidInput, match="mi3"):
        MostInterfered(50, "mi3")  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- the highest loss


@pytest.mark.parametrize("task", [None, 2])
@pytest.mark.parametrize("candidates", [None, 12])
def test_the_highest_losses_match_the_literal_computation(candidates: int | None, task: int | None) -> None:
    model, engine, memory = setting()
    twin = setting()[2]
    twin.load_state_dict(memory.state_dict())
    for _ in range(3):
        retrieved, losses = HighestLoss(candidates)(memory, incoming(task), None, engine, 6)
        drawn = twin.all(task) if candidates is None else twin.sample(candidates, task)
        assert drawn.slots is not None
        each = zip(drawn.slots.tolist(), drawn.x, drawn.y, strict=True)
        literal_losses = {slot: loss_of(model, x, y) for slot, x, y in each}
        ranked = sorted(literal_losses, key=lambda slot: (-literal_losses[slot], slot))[:6]
        assert retrieved is not None
        assert retrieved.slots is not None
        assert losses is not None
        assert retrieved.slots.tolist() == ranked
        torch.testing.assert_close(losses, torch.tensor([literal_losses[slot] for slot in ranked]))
    assert engine.network.samples_passed == 3 * len(drawn)  # one pass each


# --------------------------------------------------------------------------------------------- every so many steps


def scoring(every: int = 3, **options: Any) -> tuple[Replay, list[list[int]]]:
    """A learner, and the slots of the candidates of each scoring pass."""
    torch.manual_seed(0)
    model, passes = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)), list[list[int]]()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    retrieval = Noting(12, passes, every=every)
    return Replay(model, optimizer, Closed(30), retrieval, budget=4, **options), passes


class Noting(MostInterfered):
    """Writes down what it scores."""

    def __init__(self, candidates: int, passes: list[list[int]], **options: Any) -> None:
        super().__init__(candidates, **options)
        self.passes = passes

    def __call__(self, memory: Any, incoming: Batch, gradient: Any, engine: Any, budget: int) -> Any:
        passes = self.passes

        class Counting:
            def losses(self, batch: Batch, *arguments: Any, **options: Any) -> Any:
                assert batch.slots is not None
                passes.append(batch.slots.tolist())
                return engine.losses(batch, *arguments, **options)

        return super().__call__(memory, incoming, gradient, Counting(), budget)  # type: ignore[arg-type]


class Closed(ReservoirMemory):
    """Keeps what it has."""

    def _place(self, batch: Batch) -> Any:
        return super()._place(batch) if self.seen == 0 else np.full(len(batch), -1)


def feed(learner: Replay, steps: int) -> list[tuple[list[int], list[float]]]:
    """Return what was replayed in each step, with its interference."""
    found = []
    for number in range(steps):
        step = learner.observe(*small_batch(number))
        assert step.replayed is not None
        assert step.replayed.slots is not None
        assert step.interference is not None
        found.append((step.replayed.slots.tolist(), step.interference.tolist()))
    return found


def filled(**options: Any) -> tuple[Replay, list[list[int]]]:
    learner, passes = scoring(**options)
    learner.memory.add(torch.randn(30, 8), torch.randint(4, (30,)))
    return learner, passes


def waiting_in(learner: Replay) -> list[int]:
    slots = learner.memory.slots()
    return slots[learner.memory.fact("waiting", slots, -torch.inf) > -torch.inf].tolist()


def test_scores_are_used_for_so_many_steps_the_highest_first() -> None:
    learner, passes = filled()
    found = feed(learner, 9)
    assert len(passes) == 3
    for candidates, steps in zip(passes, (found[:3], found[3:6], found[6:]), strict=True):
        slots = [slot for chosen, _ in steps for slot in chosen]
        scores = [score for _, interference in steps for score in interference]
        assert sorted(slots) == candidates  # all twelve, each once
        assert scores == sorted(scores, reverse=True)


def test_the_first_of_them_are_those_of_every_step() -> None:
    """The scoring step replays what it would without ``every``."""
    often, rarely = filled(every=1)[0], filled(every=3)[0]
    rarely.memory.load_state_dict(often.memory.state_dict())
    assert feed(often, 1) == feed(rarely, 1)


def test_what_is_forgotten_is_not_replayed() -> None:
    learner, passes = filled()
    first = feed(learner, 1)[0][0]
    waiting = waiting_in(learner)
    assert set(waiting) == set(passes[0]) - set(first)
    learner.forget(slots=waiting[:5])
    assert set(feed(learner, 1)[0][0]) == set(waiting[5:])  # three are left
    assert len(passes) == 1
    feed(learner, 1)
    assert len(passes) == 2


def test_a_lone_one_that_is_left_is_dropped() -> None:
    learner, passes = filled()
    feed(learner, 1)
    lone, *others = waiting_in(learner)
    learner.forget(slots=others)
    steps = feed(learner, 3)
    assert sorted(slot for slots, _ in steps for slot in slots) == passes[1]
    assert len(passes) == 2
    assert lone in learner.memory.slots().tolist()


def test_samples_of_the_incoming_task_wait() -> None:
    learner, _ = scoring()
    learner.memory.add(torch.randn(30, 8), torch.randint(4, (30,)), task=[number % 2 for number in range(30)])
    x, y = small_batch(0)
    learner.observe(x, y, task=None)
    for task in (0, 1):
        step = learner.observe(x, y, task)
        assert step.replayed is not None
        assert set(step.replayed.task.tolist()) == {1 - task}  # type: ignore[union-attr]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_waiting_samples_are_saved(cut: int) -> None:
    whole, first, (other, passes) = filled()[0], filled()[0], filled()
    first.load_state_dict(whole.state_dict())
    for one in (whole, first):
        for number in range(cut):
            one.observe(*small_batch(number))
    other.load_state_dict(frozen(first.state_dict()))
    for one in (whole, other):
        for number in range(cut, 8):
            one.observe(*small_batch(number))
    assert_same(other.state_dict(), whole.state_dict())
    assert len(passes) < 8 - cut


def small_batch(number: int) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(number)
    return torch.randn(6, 8, generator=chance), torch.randint(4, (6,), generator=chance)


def test_too_few_candidates_for_so_many_steps_are_refused() -> None:
    parts = setting()
    optimizer = parts[1].network.optimizer
    for retrieval, budget in ((MostInterfered(50, every=3), 20), (MostInterfered(9), 10), (HighestLoss(9), 10)):
        with pytest.raises(InvalidInput, match=r"candidates are fewer"):
            Replay(parts[0], optimizer, parts[2], retrieval, budget=budget)
    for every in (0, 1.5, True):
        with pytest.raises(InvalidInput, match="every"):
            MostInterfered(every=every)  # type: ignore[arg-type]
