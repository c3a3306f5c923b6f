"""Inputs at replay time: samples are stored raw, and statistics that move apply to all of them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import rehearse
from rehearse import (
    AGEM,
    GEM,
    Finetune,
    ICaRL,
    Learner,
    Replay,
    ReservoirMemory,
    RunningScaler,
    TaskRingMemory,
    Uniform,
)
from rehearse.errors import CheckpointError, InvalidInput, NotFinite
from rehearse.fast.dense import Dense
from rehearse.learners.gdumb import GDumb
from rehearse.learners.scr import SCR
from rehearse.memory import ExemplarMemory
from rehearse.nets import MLP
from sameness import assert_same


def stream(batches: int, first: int = 0, features: int = 5) -> list[tuple[Tensor, Tensor]]:
    """Features whose scales differ by orders of magnitude, the last one constant."""
    generator = torch.Generator().manual_seed(first)
    scales, centers = torch.tensor([1, 100, 0.01, 5000, 0.0]), torch.tensor([0, 50, 3, -1e5, 7.0])
    return [
        (torch.randn(6, features, generator=generator) * scales + centers, torch.arange(6) % 3) for _ in range(batches)
    ]


def learner(kind: Any = Replay, scaler: Any = None, **options: Any) -> Learner:
    torch.manual_seed(0)
    model = MLP(5, (8,), 3)
    memory = {
        Replay: lambda: (ReservoirMemory(20),),
        SCR: lambda: (ReservoirMemory(20),),
        GDumb: lambda: (rehearse.ClassBalancedMemory(20),),
        ICaRL: lambda: (ExemplarMemory(20),),
        GEM: lambda: (TaskRingMemory(20),),
        AGEM: lambda: (TaskRingMemory(20),),
        Finetune: lambda: (),
    }[kind]()
    return kind(
        model, torch.optim.SGD(model.parameters(), lr=0.05), *memory, prepare=scaler or RunningScaler(), **options
    )


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 1000), st.floats(-1e4, 1e4))
def test_statistics_are_exact_under_batches_of_any_size(sizes: list[int], seed: int, center: float) -> None:
    x = torch.randn(sum(sizes), 2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + center
    scaler = RunningScaler(torch.float64)
    for part in x.split(sizes):
        scaler.observe(part)
    torch.testing.assert_close(scaler.mean, x.mean(0), rtol=1e-12, atol=1e-9)
    if len(x) > 1:
        torch.testing.assert_close(scaler.std, x.std(0, correction=0), rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(scaler(x), (x - x.mean(0)) / x.std(0, correction=0), rtol=1e-5, atol=1e-5)


def test_a_constant_feature_becomes_zero_and_nothing_changes_before_the_first_batch() -> None:
    scaler, x = RunningScaler(), torch.tensor([[1.0, 0.1], [3.0, 0.1], [8.0, 0.1]])
    assert torch.equal(scaler(x), x)
    for part in x.split(1):
        scaler.observe(part)
    assert scaler(x)[:, 1].abs().max() < 1e-6
    assert scaler(x.to(torch.uint8)).dtype == torch.float32


def test_inputs_of_another_form_are_refused() -> None:
    scaler = RunningScaler()
    with pytest.raises(InvalidInput, match="one tensor"):
        scaler.observe((torch.ones(2, 2),))
    scaler.observe(torch.ones(4, 3))
    for call in (scaler, scaler.observe):
        with pytest.raises(InvalidInput, match="shape"):
            call(torch.ones(4, 1))


@pytest.mark.parametrize("fast", [True, False])
def test_samples_are_stored_raw_and_replayed_with_the_present_statistics(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with a learner whose inputs are standardized by hand, before each step, with the statistics so far."""
    if not fast:
        monkeypatch.setattr("rehearse.engine.offers", lambda *_: [])
    ours = learner(retrieval=Uniform(), budget=4, seed=1)
    by_hand = RunningScaler()
    hand = learner(scaler=by_hand.__call__, retrieval=Uniform(), budget=4, seed=1)
    assert isinstance(ours.plain.fastest(torch.ones(1, 5)), Dense) is fast
    for x, y in stream(8):
        by_hand.observe(x)
        hand.observe(x, y)
        ours.observe(x, y)
    assert_same(dict(ours.model.state_dict()), dict(hand.model.state_dict()))
    seen = torch.cat([x for x, _ in stream(8)])
    assert all(any(torch.equal(row, other) for other in seen) for row in ours.memory.all().x)


@pytest.mark.parametrize("kind", [Replay, Finetune, GEM, AGEM, ICaRL, SCR, GDumb])
def test_every_learner_of_stored_inputs_observes_them_once(kind: Any) -> None:
    one = learner(kind, updates=1) if kind is not GDumb else learner(kind)
    for number, (x, y) in enumerate(stream(3)):
        one.observe(x, y, task=number)
    assert one.network.prepare.count == 18
    torch.testing.assert_close(one.network.prepare.mean, torch.cat([x for x, _ in stream(3)]).double().mean(0))


def test_augmented_inputs_are_not_what_is_observed() -> None:
    one = learner(augment=lambda x, _: x + 1000)
    for x, y in stream(2):
        one.observe(x, y)
    torch.testing.assert_close(one.network.prepare.mean, torch.cat([x for x, _ in stream(2)]).double().mean(0))


@pytest.mark.parametrize(
    "bad", [(torch.zeros(6, 5), torch.full((6,), 9)), (torch.full((6, 5), 1e38), torch.arange(6) % 3)]
)
def test_a_batch_that_fails_moves_no_statistics(bad: tuple[Tensor, Tensor]) -> None:
    one = learner()
    for x, y in stream(3):
        one.observe(x, y)
    with torch.no_grad():
        one.model[-1].weight.mul_(1e38) if bad[1].max() < 3 else None
    before = copy.deepcopy(one.state_dict())
    with pytest.raises((InvalidInput, NotFinite)):
        one.observe(*bad)
    assert_same(one.state_dict(), before)
    assert before["network"]["prepare"]["count"] == 18


def saved(one: Learner, folder: Path) -> Learner:
    rehearse.save(one, folder / "learner")
    other = learner()
    rehearse.load(folder / "learner", into=other)
    return other


@pytest.mark.parametrize(
    "copied", [saved, lambda one, _: copy.deepcopy(one), lambda one, _: pickle.loads(pickle.dumps(one))]
)
def test_a_copy_goes_on_with_statistics_of_its_own(copied: Callable[[Learner, Path], Learner], tmp_path: Path) -> None:
    one = learner()
    for x, y in stream(4):
        one.observe(x, y)
    other = copied(one, tmp_path)
    for x, y in stream(4, first=1):
        other.observe(x, y)
    assert (one.network.prepare.count, other.network.prepare.count) == (24, 48)
    for x, y in stream(4, first=1):
        one.observe(x, y)
    assert_same(one.state_dict(), other.state_dict())


def test_a_predictor_keeps_the_statistics_of_its_moment() -> None:
    one, x = learner(), stream(1)[0][0]
    for batch in stream(4):
        one.observe(*batch)
    served = pickle.loads(pickle.dumps(one.predictor()))
    predictor, answers = one.predictor(), one.logits(x)
    for batch, y in stream(2, first=3):
        one.observe(batch * 10, y)
    assert torch.equal(predictor.logits(x), answers)
    assert torch.equal(served.logits(x), answers)
    assert not torch.equal(one.logits(x), answers)


def test_a_state_is_refused_where_only_one_has_statistics_or_they_are_damaged() -> None:
    one, other = learner(), learner(scaler=lambda x: x)
    one.observe(*stream(1)[0])
    other.observe(*stream(1)[0])
    for into, state in ((one, other.state_dict()), (other, one.state_dict())):
        with pytest.raises(CheckpointError, match="prepare"):
            into.load_state_dict(state)
    good = one.state_dict()
    statistics = good["network"]["prepare"]
    for damage in ({"count": -1}, {"mean": statistics["mean"] * torch.nan}, {"squares": -statistics["squares"] - 1}):
        state = {**good, "network": {**good["network"], "prepare": {**statistics, **damage}}}
        with pytest.raises(CheckpointError):
            one.load_state_dict(state)
        assert_same(one.state_dict(), good)


class Largest:
    """A user's own: divides by the largest value so far."""

    def __init__(self) -> None:
        self.largest = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return x / self.largest

    def observe(self, x: Tensor) -> None:
        self.largest = max(self.largest, x.abs().max().item())

    def snapshot(self) -> Callable[[], object]:
        largest = self.largest
        return lambda: setattr(self, "largest", largest)

    def state_dict(self) -> dict[str, Any]:
        return {"largest": self.largest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.largest = state["largest"]


def test_a_prepare_of_ones_own_takes_part() -> None:
    one = learner(scaler=Largest())
    one.observe(*stream(1)[0])
    largest = one.network.prepare.largest
    with pytest.raises(InvalidInput):
        one.observe(stream(1)[0][0] * 100, torch.full((6,), 9))
    assert one.network.prepare.largest == largest > 1e5
    other = learner(scaler=Largest())
    other.load_state_dict(one.state_dict())
    assert other.network.prepare.largest == largest


def test_learners_of_prepared_inputs_refuse_it() -> None:
    torch.manual_seed(0)
    model, generator = nn.Linear(5, 3), rehearse.nets.VAE((5,), hidden=4, latent=2)
    one = rehearse.GenerativeReplay(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        generator,
        torch.optim.Adam(generator.parameters()),
        prepare=RunningScaler(),
    )
    with pytest.raises(InvalidInput, match="prepare must not change"):
        one.observe(torch.rand(6, 5), torch.arange(6) % 3)
