"""``predict_by="nearest-mean"`` against a literal computation, and when the means are computed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rehearse import Finetune, Replay, ReservoirMemory, Uniform
from rehearse.errors import InvalidInput, InvalidType, RehearseError
from rehearse.learners import nearest_mean
from sameness import assert_same, frozen


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def learner(capacity: int = 30, average: float | None = None, normed: bool = False, **options: Any) -> Replay:
    torch.manual_seed(0)
    norm = [nn.BatchNorm1d(8)] if normed else []
    model = nn.Sequential(nn.Linear(5, 8), *norm, nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Replay(
        model, optimizer, ReservoirMemory(capacity), Uniform(), predict_by="nearest-mean", average=average, **options
    )


def batches(count: int = 8, classes: int = 3) -> list[tuple[Tensor, Tensor]]:
    chance = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 5, generator=chance), torch.randint(classes, (6,), generator=chance)) for _ in range(count)]


def literal(ours: Replay, x: Tensor) -> Tensor:
    """One sample and one class at a time, over a copy of the network that `ours` predicts with."""
    model = copy.deepcopy(ours.model).eval()
    assert isinstance(model, nn.Sequential)
    assert ours.network.has_batchnorm == isinstance(model[1], nn.BatchNorm1d)
    substitutes = {name: tensor.clone() for name, tensor in ours._substitutes().items()}
    model.load_state_dict({**model.state_dict(), **substitutes})
    body, outputs = model[:-1], model[-1].out_features
    held = ours.memory.all()

    def feature(one: Tensor) -> Tensor:
        with torch.no_grad():
            value = body(one[None])[0]
        return value / value.norm()

    logits = torch.full((len(x), outputs), -torch.inf)
    for label in sorted(set(held.y.tolist())):
        mean = torch.stack([feature(one) for one, y in zip(held.x, held.y, strict=True) if y == label]).mean(0)
        for row, one in enumerate(x):
            logits[row, label] = -(feature(one) - mean / mean.norm()).norm()
    return logits


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("average", [None, 0.1])
def test_it_equals_the_literal_computation_at_every_step(average: float | None, normed: bool) -> None:
    ours, x = learner(average=average, normed=normed), torch.randn(9, 5)
    for batch in batches():
        ours.observe(*batch)
        expected = literal(ours, x)
        torch.testing.assert_close(ours.logits(x), expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(ours.predict(x), expected.argmax(1))
        torch.testing.assert_close(ours.predict_proba(x), expected.softmax(1), rtol=1e-4, atol=1e-5)
        assert_same(ours.predictor().logits(x), ours.logits(x))
    assert (ours.predict_proba(x)[:, 3] == 0).all()  # never seen


@pytest.mark.parametrize("average", [None, 0.1])
def test_after_forgetting_growing_and_loading(average: float | None) -> None:
    ours, x = learner(average=average), torch.randn(9, 5)
    for batch in batches():
        ours.observe(*batch)
    assert ours.forget(predicate=lambda held: held.y == 1) > 0
    torch.testing.assert_close(ours.logits(x), literal(ours, x), rtol=1e-4, atol=1e-5)
    assert not (ours.predict(x) == 1).any()
    ours.grow(6)
    ours.observe(torch.randn(6, 5), torch.tensor([4, 5, 4, 5, 0, 2]))
    torch.testing.assert_close(ours.logits(x), literal(ours, x), rtol=1e-4, atol=1e-5)
    assert ours.logits(x).shape == (9, 6)
    other = learner(average=average)
    other.predict(x)
    other.load_state_dict(frozen(ours.state_dict()))
    assert_same(other.logits(x), ours.logits(x))
    ours.forget(predicate=lambda held: held.y >= 0)
    assert_same(ours.logits(x), ours._pass(x))  # nothing is stored: the head
    assert_same(ours.predictor().logits(x), ours._pass(x))


def test_while_nothing_is_stored_the_head_predicts() -> None:
    ours, x = learner(), torch.randn(9, 5)
    with torch.no_grad():
        torch.testing.assert_close(ours.logits(x), copy.deepcopy(ours.model).eval()(x))


def test_remembered_samples_are_enough() -> None:
    ours, x = learner(), torch.randn(9, 5)
    ours.remember(batches())
    torch.testing.assert_close(ours.logits(x), literal(ours, x), rtol=1e-4, atol=1e-5)


def test_means_are_computed_again_only_if_model_or_memory_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    means = nearest_mean.class_means
    monkeypatch.setattr(nearest_mean, "class_means", lambda *parts: (calls.append(1), means(*parts))[1])
    ours, x = learner(), torch.randn(9, 5)
    first, *rest = batches()
    ours.observe(*first)
    assert calls == []
    ours.predict(x)
    ours.logits(x[:2])
    ours.predictor()
    ours.state_dict()
    assert len(calls) == 1
    changes = [
        lambda: ours.observe(*rest[0]),
        lambda: ours.remember([rest[1]]),
        lambda: ours.forget(slots=[0]),
        lambda: ours.load_state_dict(ours.state_dict()),
        lambda: nn.init.normal_(ours.model[0].weight),  # type: ignore[index]
    ]
    for number, change in enumerate(changes, 2):
        change()
        ours.predict(x)
        ours.predict(x)
        assert len(calls) == number


def test_predicting_changes_nothing() -> None:
    ours = learner(average=0.1, normed=True)
    for batch in batches():
        ours.observe(*batch)
    x = torch.randn(5, 5)
    before, random, passed = frozen(ours.state_dict()), torch.get_rng_state(), ours.samples_passed
    ours.predict_proba(x)
    ours.predictor()
    assert_same((ours.state_dict(), torch.get_rng_state(), ours.samples_passed), (before, random, passed))


def test_a_large_memory_is_passed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, x = learner(capacity=60), torch.randn(9, 5)
    for batch in batches(10):
        ours.observe(*batch)
    expected = ours.logits(x)
    monkeypatch.setattr(nearest_mean, "AT_ONCE", 7)
    ours.nearest._cached = None  # type: ignore[union-attr]
    torch.testing.assert_close(ours.logits(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("y", [torch.rand(6), torch.ones(6, 4), torch.tensor([0, 1, 2, 3, 4, 0]), torch.full((6,), -1)])
def test_targets_that_are_no_classes_are_refused(y: Tensor) -> None:
    ours = learner(loss=lambda logits, y: logits.square().mean(1))
    before = frozen(ours.state_dict())
    for call in (lambda: ours.observe(torch.randn(6, 5), y), lambda: ours.remember([(torch.randn(6, 5), y)])):
        with pytest.raises(RehearseError, match=r"label|targets"):
            call()
    assert_same(ours.state_dict(), before)


def test_a_model_without_a_head_and_another_choice_are_refused() -> None:
    model = nn.Sequential(nn.Conv1d(1, 3, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    parts = model, torch.optim.SGD(model.parameters(), 0.1), ReservoirMemory(9)
    with pytest.raises(InvalidInput, match="no linear layer"):
        Replay(*parts, predict_by="nearest-mean")
    with pytest.raises(InvalidInput, match="one of head, nearest-mean"):
        Replay(*parts, predict_by="mean")  # type: ignore[arg-type]


def test_a_predictor_needs_a_model_that_ends_in_its_head() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return 1 + self.head(self.body(x))

    model = Shifted()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ours = Replay(model, optimizer, ReservoirMemory(9), Uniform(), predict_by="nearest-mean")
    ours.observe(*batches(1)[0])
    assert ours.logits(torch.randn(2, 5)).shape == (2, 4)
    with pytest.raises(InvalidInput, match="output is that of 'head'"):
        ours.predictor()


def test_features_of_another_size_are_refused() -> None:
    """A model of linear layers takes inputs with a further dimension, and makes more features of them."""
    means = torch.eye(2, 4)
    assert nearest_mean.minus_distances(torch.ones(3, 4), torch.arange(2), means, 2).shape == (3, 2)
    with pytest.raises(InvalidInput, match="features of size 12, the stored samples of size 4"):
        nearest_mean.minus_distances(torch.ones(3, 12), torch.arange(2), means, 2)


@pytest.mark.parametrize("wrong", [torch.zeros(0), None, "yes", 1])
def test_distributed_is_true_or_false(wrong: object) -> None:
    model = nn.Linear(4, 2)
    for kind in (Finetune, Replay):
        parts = (model, torch.optim.SGD(model.parameters(), 0.1), *([ReservoirMemory(5)] if kind is Replay else []))
        with pytest.raises(InvalidType, match=r"distributed is .*; it must be True or False"):
            kind(*parts, distributed=wrong)
