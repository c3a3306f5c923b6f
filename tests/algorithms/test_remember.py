"""Learner.remember: filling a memory without training."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from samples_and_learner import batches, learner
from torch import Tensor, nn

from rehearse import Batch, Finetune, Replay, ReservoirMemory
from rehearse.batchnorm import BatchNormPolicy
from rehearse.errors import InvalidInput, InvalidType
from rehearse.lab.batchnorm import Published
from rehearse.losses import DarkExperience
from sameness import assert_same, frozen, outside


def test_remember_fills_the_memory_and_changes_nothing_else() -> None:
    one = learner()
    before, world = frozen(one.state_dict()), outside(one.model)
    assert one.remember(batches(4)) == 32
    after = one.state_dict()
    assert len(one.memory) == 32
    assert torch.equal(one.memory.all().x, torch.cat([x for x, _ in batches(4)]))
    after["memory"], before["memory"] = None, None
    assert_same(after, before)
    assert_same(outside(one.model), world)


def test_remember_stores_what_observe_would_have_stored() -> None:
    one, other = learner(), ReservoirMemory(50)
    one.remember(batches(20))
    for x, y in batches(20):
        other.add(x, y)
    assert_same(one.memory.state_dict(), other.state_dict())


def test_an_endless_stream_needs_a_limit_and_has_no_length() -> None:
    def endless() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from batches(5)

    one = learner()
    assert one.remember(endless(), limit=21) == 21
    assert one.memory.seen == 21
    with pytest.raises(InvalidInput, match="limit"):
        one.remember(endless(), limit=0)


def test_tasks_batches_and_ids() -> None:
    one = learner()
    x, y = next(batches(1))
    one.remember([Batch(x, y, 3, columns={"id": ["ann", "bob"] * 4})])
    assert one.memory.all().task.tolist() == [3] * 8
    assert one.memory.forget(ids=["bob"]) == 4
    other = learner()
    other.remember([(x, y, 7)])
    assert other.memory.all().task.tolist() == [7] * 8


def test_samples_that_could_not_be_replayed_raise_and_those_before_stay() -> None:
    one = learner()
    good = next(batches(1))
    with pytest.raises(InvalidInput, match="label 3 is outside"):
        one.remember([good, (torch.randn(2, 5), torch.tensor([0, 3]))])
    with pytest.raises(InvalidInput, match="cannot take"):
        one.remember([(torch.randn(2, 4), torch.tensor([0, 1]))])
    with pytest.raises(InvalidType, match="it yielded a"):
        one.remember([torch.zeros(3)])
    assert one.memory.seen == 8
    one.observe(*good)


@pytest.mark.parametrize("batchnorm", ["auto", "recalibrated", "clean", Published(), "joint"])
def test_columns_of_the_loss_are_stored(batchnorm: str | BatchNormPolicy) -> None:
    """They come from the model's own statistics: those of the memory move while it is filled."""
    one = learner(loss=DarkExperience(), batchnorm=batchnorm)
    x = torch.cat([x for x, _ in batches(2)])
    logits = one.logits(x)
    one.remember(batches(2))
    (name,) = one.memory.all().columns
    assert torch.equal(one.memory.all().columns[name], logits)
    one.observe(*next(batches(1)))


def test_without_a_memory_there_is_nothing_to_fill() -> None:
    model = nn.Linear(5, 3)
    one = Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(InvalidInput, match="no memory"):
        one.remember(batches(1))
    with pytest.raises(InvalidInput, match="no memory"):
        one.diagnose(*next(batches(1)))


def test_a_deployed_model_learns_new_classes_and_keeps_the_old() -> None:
    """Load, remember, grow, observe: after new classes the old ones are still predicted."""
    torch.manual_seed(0)
    means = 4 * torch.eye(4)[:, :4]

    def draw(labels: list[int], samples: int) -> tuple[Tensor, Tensor]:
        y = torch.tensor(labels)[torch.randint(0, len(labels), (samples,))]
        return means[y] + 0.3 * torch.randn(samples, 4), y

    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        x, y = draw([0, 1], 32)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    one = Replay(model, torch.optim.SGD(model.parameters(), lr=0.1), ReservoirMemory(100))
    one.remember(draw([0, 1], 32) for _ in range(4))
    one.grow(4)
    for _ in range(60):
        one.observe(*draw([2, 3], 10))
    x, y = draw([0, 1, 2, 3], 400)
    assert (one.predict(x) == y).float().mean() > 0.95
