"""Sample weights and columns of the user's own: stored, replayed, handed to the loss, undone, saved, forgotten."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rehearse import Batch, Finetune, Replay, ReservoirMemory, RingMemory, Uniform, load, save
from rehearse.errors import InvalidInput
from rehearse.losses import DarkExperience
from sameness import assert_same


def learner(memory: Any = None, loss: Any = None, retrieval: Any = None) -> Replay:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Replay(
        model, optimizer, RingMemory(8) if memory is None else memory, retrieval or Uniform(), budget=4, loss=loss
    )


def samples(n: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=generator), torch.randint(4, (n,), generator=generator)


def test_the_loss_gets_what_was_given_when_a_sample_is_replayed():
    seen = []

    def loss(logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        seen.append((replayed, batch.columns["source"].tolist(), batch.columns["weight"].tolist()))
        return cross_entropy(logits, batch.y, reduction="none")

    one = learner(loss=loss)
    one.observe(*samples(), source=[1, 2, 3, 4], weight=[0.1, 0.2, 0.3, 0.4])
    one.observe(*samples(seed=1), source=[5, 6, 7, 8], weight=[0.5, 0.6, 0.7, 0.8])
    replayed, sources, weights = seen[-1]
    assert replayed
    assert sorted(sources) == [1, 2, 3, 4]
    assert [round(10 * w) for w in weights] == sources, "each weight stays with its sample"


def test_they_are_saved_and_resumed_and_forgotten(tmp_path):
    one, other = learner(ReservoirMemory(6)), learner(ReservoirMemory(6))
    for seed in range(4):
        x, y = samples(seed=seed)
        one.observe(x, y, id=range(4 * seed, 4 * seed + 4), weight=torch.rand(4), source=torch.arange(4))
    save(one, tmp_path / "learner.pt")
    load(tmp_path / "learner.pt", other)
    for each in (one, other):
        each.observe(*samples(seed=9), id=range(90, 94), weight=torch.ones(4), source=torch.arange(4))
    assert_same(one.state_dict(), other.state_dict())
    ids = one.memory.all().columns["id"].tolist()
    assert one.forget(ids=ids[:2]) == 2
    assert one.memory.all().columns["id"].tolist() == ids[2:]
    assert len(one.memory.all().columns["weight"]) == 4


def test_samples_without_a_weight_weigh_one():
    one = learner()
    one.observe(*samples())
    one.observe(*samples(seed=1), weight=[2, 3, 4, 5])
    assert one.memory.all().columns["weight"].tolist() == [1, 1, 1, 1, 2, 3, 4, 5]
    one.observe(*samples(seed=2))
    assert one.memory.all().columns["weight"].tolist() == [1, 1, 1, 1, 2, 3, 4, 5]


def test_a_memory_in_a_file_has_weights_from_the_first_batch_on(tmp_path):
    one = learner(RingMemory(8, path=tmp_path / "rows"))
    one.observe(*samples(), weight=[2, 3, 4, 5])
    one.observe(*samples(seed=1))
    assert one.memory.all().columns["weight"].tolist() == [2, 3, 4, 5, 1, 1, 1, 1]
    late = learner(RingMemory(8, path=tmp_path / "late"))
    late.observe(*samples())
    with pytest.raises(InvalidInput, match="no column weight"):
        late.observe(*samples(), weight=[2, 3, 4, 5])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"weight": [1, 2, 3]}, "one for each of 4 samples"),
        ({"weight": [1, 2, 3, -1]}, "from 0 on"),
        ({"weight": [1, 2, 3, float("nan")]}, "finite"),
        ({"weight": 2.0}, "one for each"),
        ({"source": [1, 2, 3]}, "the batch has 4 samples"),
        ({"source": 1}, "the batch has 4 samples"),
        ({"arrived": [1, 2, 3, 4]}, "'arrived' is taken"),
        ({"slots": [1, 2, 3, 4]}, "'slots' is taken"),
        ({"draw": [1, 2, 3, 4]}, "'draw' is taken"),
        ({"averaged": [1, 2, 3, 4]}, "'averaged' is taken"),
        ({"logits": torch.zeros(4, 4)}, "the loss stores a column 'logits' itself"),
    ],
)
def test_bad_columns_change_nothing(given, words):
    one = learner(loss=DarkExperience())
    one.observe(*samples())
    before = one.state_dict()
    with pytest.raises(InvalidInput, match=words):
        one.observe(*samples(seed=1), **given)
    assert_same(one.state_dict(), before)
    one.observe(*samples(seed=1))


def test_a_column_called_x_is_refused_wherever_it_comes_from():
    with pytest.raises(InvalidInput, match="'x' is taken"):
        learner().remember([Batch(*samples(), columns={"x": torch.zeros(4)})])


def test_columns_are_the_same_in_every_batch():
    one = learner()
    one.observe(*samples(), source=[1, 2, 3, 4])
    for given in ({}, {"source": [1, 2, 3, 4], "other": [1, 2, 3, 4]}):
        before = one.state_dict()
        with pytest.raises(InvalidInput, match="columns"):
            one.observe(*samples(), **given)
        assert_same(one.state_dict(), before)


def test_finetuning_hands_columns_to_the_loss_too():
    model = nn.Linear(3, 4)

    def loss(logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        return batch.columns["cost"] * cross_entropy(logits, batch.y, reduction="none")

    one = Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss)
    x, y = samples()
    cost = torch.tensor([0.0, 1.0, 2.0, 3.0])
    expected = (cost * cross_entropy(model(x), y, reduction="none")).mean().item()
    assert one.observe(x, y, cost=cost).incoming_loss == pytest.approx(expected)
