"""Averaged weights against a literal loop."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rehearse import MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.errors import CheckpointError, InvalidInput
from rehearse.random import numpy_generator
from sameness import assert_same, frozen

RATE = 0.1


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def learner(
    model: nn.Module | None = None, kind: Any = torch.optim.SGD, average: float | None = RATE, **options: Any
) -> Replay:
    model = model or nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = kind([p for p in model.parameters() if p.requires_grad], lr=0.05)
    return Replay(model, optimizer, ReservoirMemory(40), Uniform(), budget=4, average=average, **options)


def batches(count: int = 10) -> list[tuple[Tensor, Tensor]]:
    chance = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 5, generator=chance), torch.randint(3, (6,), generator=chance)) for _ in range(count)]


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().double().clone() for name, parameter in model.named_parameters()}


def with_average(ours: Replay, average: dict[str, Tensor]) -> nn.Module:
    model = copy.deepcopy(ours.model).eval()
    model.load_state_dict({**model.state_dict(), **{name: tensor.float() for name, tensor in average.items()}})
    return model


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_it_equals_a_literal_loop_and_predicts(kind: Any, updates: int) -> None:
    """θ̄ moves as often as there are steps, to where the batch's last step has arrived."""
    ours, literal = learner(kind=kind, updates=updates), dict[str, Tensor]()
    x = torch.randn(7, 5)
    for number, batch in enumerate(batches(25), 1):
        ours.observe(*batch)
        live = weights(ours.model)
        if number == 1:
            literal = dict(live)
        for name, value in live.items():
            kept = (1 - RATE) ** updates
            literal[name] = literal[name] + max(1 - kept, 1 / number) * (value - literal[name])
        assert ours.average is not None
        assert ours.average.tensors.keys() == literal.keys()
        for name, tensor in ours.average.tensors.items():
            torch.testing.assert_close(tensor.double(), literal[name], rtol=1e-4, atol=1e-6)
        with torch.no_grad():
            torch.testing.assert_close(ours.logits(x), with_average(ours, literal)(x), rtol=1e-4, atol=1e-5)
    assert_same(ours.predictor().logits(x), ours.logits(x))
    assert not torch.allclose(ours.logits(x), ours.model(x))


@pytest.mark.parametrize("retrieval", [Uniform(), MostInterfered(8)])
def test_it_does_not_change_what_is_learned(retrieval: Any) -> None:
    torch.manual_seed(0)
    one = learner()
    torch.manual_seed(0)
    other = learner(average=None)
    for batch in batches():
        one.observe(*batch)
        other.observe(*batch)
    assert_same(one.model.state_dict(), other.model.state_dict())


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("batchnorm", ["clean", "joint"])
def test_its_batch_statistics_are_re_estimated_from_the_memory(batchnorm: str) -> None:
    ours, x = learner(normed(), batchnorm=batchnorm), torch.randn(7, 5)
    for batch in batches():
        ours.observe(*batch)
        if len(ours.memory) < 2:
            continue
        assert ours.average is not None
        literal = with_average(ours, ours.average.tensors)
        stored, norm = ours.memory.all().x, literal[1]
        order = torch.from_numpy(numpy_generator(0, "recalibrate").permutation(len(stored)))
        inside = literal[0](stored[order])  # fewer than 100: one batch
        norm.running_mean, norm.running_var = inside.mean(0), inside.var(0)
        with torch.no_grad():
            torch.testing.assert_close(ours.logits(x), literal(x), rtol=1e-4, atol=1e-5)
    assert_same(ours.predictor().logits(x), ours.logits(x))


def test_many_stored_samples_are_passed_in_batches_of_a_hundred() -> None:
    torch.manual_seed(0)
    model = normed()
    ours = Replay(model, torch.optim.SGD(model.parameters(), 0.1), ReservoirMemory(250), Uniform(), average=RATE)
    for _ in range(5):
        ours.observe(torch.randn(50, 5), torch.randint(3, (50,)))
    assert ours.average is not None
    literal = with_average(ours, ours.average.tensors)
    order = torch.from_numpy(numpy_generator(0, "recalibrate").permutation(250))
    parts = [literal[0](part) for part in ours.memory.all().x[order].split(100)]
    literal[1].running_mean = torch.stack([part.mean(0) for part in parts]).mean(0)
    literal[1].running_var = torch.stack([part.var(0) for part in parts]).mean(0)
    x = torch.randn(7, 5)
    with torch.no_grad():
        torch.testing.assert_close(ours.logits(x), literal(x), rtol=1e-4, atol=1e-5)


def test_frozen_parameters_stay_out_and_join_when_they_are_unfrozen() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    ours = Replay(model, torch.optim.SGD(model.parameters(), 0.1), ReservoirMemory(40), Uniform(), average=RATE)
    assert ours.average is not None
    assert ours.average.tensors.keys() == {"2.weight", "2.bias"}
    stream = batches(20)
    for batch in stream[:10]:
        ours.observe(*batch)
    assert ours.average.tensors.keys() == {"2.weight", "2.bias"}
    model[0].requires_grad_(True)
    first = weights(model)["0.weight"]
    ours.observe(*stream[10])
    second = weights(model)["0.weight"]
    torch.testing.assert_close(ours.average.tensors["0.weight"].double(), first + RATE * (second - first))
    resumed = learner()
    resumed.load_state_dict(frozen(ours.state_dict()))
    assert_same(resumed.state_dict(), ours.state_dict())
    model[0].requires_grad_(False)
    for batch in stream[11:]:
        ours.observe(*batch)
    gap = (1 - RATE) ** 10 * (first - second)
    torch.testing.assert_close(ours.average.tensors["0.weight"].double(), second + gap, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_head_that_grows(kind: Any) -> None:
    """Old outputs keep their average, new ones start where the live ones do; a checkpoint loads into a smaller head."""
    torch.manual_seed(0)
    ours, x = learner(kind=kind), torch.randn(7, 5)
    for batch in batches():
        ours.observe(*batch)
    assert ours.average is not None
    before, answers = dict(ours.average.tensors), ours.logits(x)
    assert ours.grow(5) == 2
    head = ours.average.tensors["2.weight"]
    assert_same(head[:3], before["2.weight"])
    assert_same(head[3:], ours.model[2].weight.detach()[3:])  # type: ignore[index]
    torch.testing.assert_close(ours.logits(x)[:, :3], answers)
    ours.observe(torch.randn(6, 5), torch.tensor([3, 4, 0, 1, 3, 4]))
    torch.manual_seed(0)
    other = learner(kind=kind)
    other.load_state_dict(frozen(ours.state_dict()))
    for one in (ours, other):
        one.observe(*batches()[0])
    assert_same(other.state_dict(), ours.state_dict())
    assert_same(other.logits(x), ours.logits(x))


def test_it_resumes_bit_for_bit() -> None:
    made = []
    for _ in range(3):
        torch.manual_seed(0)
        made.append(learner(updates=2))
    whole, first, second = made
    for batch in batches():
        whole.observe(*batch)
    for batch in batches()[:4]:
        first.observe(*batch)
    second.load_state_dict(frozen(first.state_dict()))
    for batch in batches()[4:]:
        second.observe(*batch)
    assert_same(second.state_dict(), whole.state_dict())


def test_states_of_other_parameters_are_refused() -> None:
    ours = learner()
    state = frozen(ours.state_dict())
    state["own"]["average"]["2.bias"] = torch.zeros(7)
    before = frozen(ours.state_dict())
    with pytest.raises(CheckpointError, match="the averaged weights"):
        ours.load_state_dict(state)
    assert_same(ours.state_dict(), before)


@pytest.mark.parametrize("rate", [0, -0.1, 1.5, True, "0.01"])
def test_invalid_rates(rate: Any) -> None:
    with pytest.raises(InvalidInput, match="a rate between 0 and 1"):
        learner(average=rate)
