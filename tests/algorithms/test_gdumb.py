"""GDumb, compared with a deep copy that is trained by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse import ClassBalancedMemory, Finetune, ReservoirMemory
from rehearse.errors import InvalidInput, InvalidType, NotFinite
from rehearse.learners import gdumb
from rehearse.learners.gdumb import GDumb
from rehearse.random import RandomState, numpy_generator
from sameness import assert_same, frozen, outside

EPOCHS, BATCH = 3, 4


def network(dropout: float = 0.0, norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 4)]
    return nn.Sequential(*layers)


def learner(model: nn.Module | None = None, *, adam: bool = False, capacity: int = 10, **options: Any) -> GDumb:
    model = network() if model is None else model
    parameters = model.parameters()
    optimizer = torch.optim.Adam(parameters, lr=0.02) if adam else torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return GDumb(model, optimizer, ClassBalancedMemory(capacity), **{"epochs": EPOCHS, "batch": BATCH, **options})


def samples(number: int, n: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(n, 6, generator=generator), torch.randint(0, 4, (n,), generator=generator)


def observe(one: GDumb, first: int, last: int) -> None:
    for number in range(first, last):
        one.observe(*samples(number))


def by_hand(model: nn.Module, one: GDumb, *, adam: bool = False, seed: int = 0) -> nn.Module:
    """Train a model on what the memory holds: passes in the order that the seed draws, in batches."""
    held, order, model = one.memory.all(), numpy_generator(seed, "order"), model.train()
    parameters = model.parameters()
    optimizer = torch.optim.Adam(parameters, lr=0.02) if adam else torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    with RandomState(seed, "fit"):
        for _ in range(EPOCHS):
            for part in torch.split(torch.from_numpy(order.permutation(len(held))), BATCH):
                optimizer.zero_grad()
                F.cross_entropy(model(held.x[part]), held.y[part]).backward()
                optimizer.step()
    return model


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_the_end_of_a_task_trains_from_the_initial_weights_on_the_memory(adam: bool, dropout: float) -> None:
    one = learner(network(dropout), adam=adam)
    for last in (4, 9):
        observe(one, last - 4, last)
        one.end_task()
        reference = by_hand(network(dropout), one, adam=adam)
        for name, value in reference.state_dict().items():
            torch.testing.assert_close(one.model.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_observing_stores_and_trains_nothing() -> None:
    one = learner(network(0.3, norm=True))
    before = outside(one.model)
    for number in range(6):
        x, y = samples(number)
        step = one.observe(x, y)
        expected = F.cross_entropy(copy.deepcopy(one.model).eval()(x), y).item()
        assert step.incoming_loss == pytest.approx(expected, rel=1e-5)
        assert step.replayed is None
    assert_same(outside(one.model), before)
    assert (len(one.memory), one.samples_observed, one.progress.steps) == (10, 30, 0)
    classes = one.memory.summary()["classes"]
    assert max(classes.values()) - min(classes.values()) <= 1


def test_a_prediction_within_a_task_comes_from_a_private_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    one, x = learner(network(0.2)), samples(99)[0]
    observe(one, 0, 4)
    trainings = []
    train = GDumb._train
    monkeypatch.setattr(GDumb, "_train", lambda self, network: (trainings.append(network), train(self, network))[1])
    state, before, random = frozen(one.state_dict()), outside(one.model), torch.get_rng_state()
    logits = one.logits(x)
    assert_same(one.logits(x), logits)
    assert len(trainings) == 1, "it is kept as long as the memory stays"
    assert trainings[0] is not one.network
    assert_same(frozen(one.state_dict()), state)
    assert_same(outside(one.model), before)
    assert torch.equal(torch.get_rng_state(), random)
    one.end_task()
    assert_same(one.logits(x), logits)
    assert len(trainings) == 2
    one.end_task()
    one.predict(x)
    assert len(trainings) == 2, "the model has been trained on these samples"
    while not (one.memory.add(*samples(50)) >= 0).any():
        pass
    assert not torch.equal(one.logits(x), logits)
    assert len(trainings) == 3


def test_before_the_first_sample_it_is_the_model_as_it_came() -> None:
    one, x = learner(), samples(0)[0]
    assert_same(one.logits(x), network().eval()(x).detach())
    one.end_task()
    assert_same(one.model.state_dict(), network().state_dict())


def test_what_is_forgotten_leaves_the_weights_too() -> None:
    one, other, x = learner(), learner(), samples(99)[0]
    observe(one, 0, 2)
    one.end_task()
    one.forget(predicate=lambda held: held.y >= 2)
    kept = one.memory.all()
    other.observe(kept.x, kept.y)
    assert_same(other.memory.all().y, kept.y)
    assert_same(one.logits(x), other.logits(x))
    one.forget(predicate=lambda held: held.y >= 0)
    assert_same(one.logits(x), network().eval()(x).detach())


@pytest.mark.parametrize("ended", [False, True])
def test_a_saved_learner_resumes_bit_for_bit_in_one_with_other_weights(ended: bool) -> None:
    one = learner(network(0.3), adam=True)
    observe(one, 0, 5)
    if ended:
        one.end_task()
        observe(one, 5, 6)
    torch.manual_seed(7)
    fresh = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4))
    other = learner(fresh, adam=True, seed=5)
    other.load_state_dict(one.state_dict())
    assert_same(other.state_dict(), one.state_dict())
    for each in (one, other):
        observe(each, 6, 8)
        each.predict(samples(9)[0])
        each.end_task()
    assert_same(other.state_dict(), one.state_dict())


def test_a_training_that_fails_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    one = learner(network(0.3, norm=True), adam=True)
    observe(one, 0, 4)
    one.end_task()
    observe(one, 4, 6)
    before, outer = frozen(one.state_dict()), outside(one.model)
    calls = 0

    def interrupted(operations: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt
        list(operations)

    with monkeypatch.context() as patched:
        patched.setattr(gdumb, "run", interrupted)
        for act in (one.end_task, lambda: one.predict(samples(9)[0])):
            calls = 0
            with pytest.raises(KeyboardInterrupt):
                act()
            assert_same(frozen(one.state_dict()), before)
            assert_same(outside(one.model), outer)
    one.end_task()
    one.optimizer.param_groups[0]["lr"] = 1e30  # is restored before it trains
    observe(one, 6, 7)
    one.end_task()
    assert one.optimizer.param_groups[0]["lr"] == 0.02


def test_a_grown_head_is_trained_from_its_first_weights() -> None:
    one, x = learner(), samples(99)[0]
    observe(one, 0, 2)
    one.end_task()
    assert one.grow(6) == 2
    first = one.model[-1].weight.detach()[4:].clone()
    assert torch.equal(one._initial["3.weight"][4:], first)
    one.observe(torch.randn(3, 6), torch.tensor([4, 5, 4]))
    assert one.logits(x).shape == (5, 6)
    other = learner()
    other.load_state_dict(one.state_dict())
    one.end_task(), other.end_task()
    assert_same(other.state_dict(), one.state_dict())


def test_a_lone_last_sample_goes_with_the_batch_before_where_there_is_batch_norm() -> None:
    one = learner(network(norm=True), capacity=20)
    observe(one, 0, 1)
    one.end_task()  # five samples: one batch of five instead of four and one
    assert one.progress.steps == EPOCHS
    alone = learner(network(norm=True))
    alone.observe(*samples(0, 1))
    alone.end_task()  # nothing to train on
    assert alone.progress.steps == 0


def test_refusals() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidType, match="ClassBalancedMemory"):
        GDumb(model, optimizer, ReservoirMemory(5))  # type: ignore[arg-type]
    for name in ("epochs", "batch"):
        with pytest.raises(InvalidInput, match=name):
            learner(**{name: 0})
    with pytest.raises(InvalidInput, match="lone sample"):
        learner(network(norm=True), batch=1)
    one = learner()
    before = frozen(one.state_dict())
    with pytest.raises(NotFinite):
        one.observe(torch.full((2, 6), 1e38), torch.tensor([0, 1]))
    assert_same(frozen(one.state_dict()), before)


def test_it_learns_a_stream_that_plain_training_forgets() -> None:
    centers = 2 * torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    one, plain = learner(epochs=30), network()
    other = Finetune(plain, torch.optim.SGD(plain.parameters(), lr=0.3))
    for step in range(40):
        y = torch.full((5,), step // 10)
        x = centers[y] + 0.3 * torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
        one.observe(x, y), other.observe(x, y)
    assert one.predict(centers).tolist() == [0, 1, 2, 3]
    assert other.predict(centers).tolist() != [0, 1, 2, 3]
