"""A step of several ranks is that of one process with all their samples."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from processes import in_ranks
from rank_learners import batch, learner, momentum, network, statistics, weights
from torch import Tensor, nn

from rehearse import Batch, ClassBalancedMemory, DarkExperience, MostInterfered, ReservoirMemory, RingMemory, Uniform
from rehearse.distributed.memory import RankShares
from sameness import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

ADAM_MIR: dict[str, Any] = {}
MOMENTUM_ER: dict[str, Any] = {"optimizer": momentum, "retrieval": Uniform(), "lr": 0.02}
ADAM_ER: dict[str, Any] = {"retrieval": Uniform()}


def followed(rank: int, steps: int, options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    made = learner(rank, **options)
    seen = []
    for step in range(steps):
        made.observe(*batch(rank, step), task=step // 40)
        seen.append(torch.cat([weights(made).double(), statistics(made)]))
    return torch.stack(seen).numpy(), made.model(torch.ones(3, 6)).detach().numpy()  # dropout: the global generator


@pytest.mark.parametrize(
    ("ranks", "steps", "options"),
    [(2, 500, ADAM_MIR), (4, 60, MOMENTUM_ER), (4, 25, {**ADAM_MIR, "updates": 2, "average": 0.1, "clip": 1.0})],
    ids=["2-mir-adam", "4-er-momentum", "4-mir-updates"],
)
def test_parameters_and_statistics_are_the_same_bits_on_all_ranks_at_every_step(ranks, steps, options):
    found = in_ranks(followed, ranks, steps, options)
    for values, _ in found[1:]:
        assert (values == found[0][0]).all()
    assert np.isfinite(found[0][0]).all()
    assert (found[0][0][0] != found[0][0][-1]).mean() > 0.9  # they learn


def alone(rank: int, distributed: bool, options: dict[str, Any]) -> dict[str, Any]:
    made = learner(3, **{**options, "distributed": distributed})
    for step in range(25):
        made.observe(*batch(0, step), task=step // 10)
    return made.state_dict()


@pytest.mark.parametrize("options", [ADAM_MIR, MOMENTUM_ER, {"model": "mlp", "optimizer": torch.optim.SGD}])
def test_one_rank_learns_the_same_bits_as_without(options):
    options = {**options, **({"model": network(False, 0.0)} if "model" in options else {})}
    assert_same(in_ranks(alone, 1, True, copy.deepcopy(options))[0], alone(0, False, copy.deepcopy(options)))


def recorded(rank: int, options: dict[str, Any], weighted: bool) -> list[Any]:
    """The weights before and after each step, the incoming batch, the replayed samples, and their interference."""
    made, found = learner(rank, network(False, 0.0).double(), **options), []
    for step in range(12):
        (x, y), before = batch(rank, step), weights(made).clone()
        weight = torch.rand(len(y), generator=torch.Generator().manual_seed(step)) if weighted else None
        taken = made.observe(x, y, task=step // 4, weight=weight)
        found.append((before, weights(made).clone(), (x, y, weight), taken.replayed, taken.interference))
    return found


def mean_loss(model: nn.Module, parts: list[Any]) -> Tensor:
    x, y, weight = (torch.cat([part[i] for part in parts]) for i in range(3))
    losses = nn.functional.cross_entropy(model(x.double()), y, reduction="none")
    return (losses * weight).sum() / weight.sum()


def gradients(model: nn.Module, loss: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("retrieval", [MostInterfered(15), Uniform()], ids=["mir", "er"])
def test_the_step_is_that_of_one_process_with_all_samples(retrieval, weighted):
    """Also where ranks have different numbers of incoming and of replayed samples, or none to replay."""
    options = {"retrieval": retrieval, "optimizer": torch.optim.SGD, "lr": 0.1, "replay_weight": 0.7}
    ranks, model, lacking = in_ranks(recorded, 3, options, weighted), network(False, 0.0).double(), 0
    for steps in zip(*ranks, strict=True):
        before, after = steps[0][:2]
        nn.utils.vector_to_parameters(before, model.parameters())
        ones = [torch.ones(len(y)) if weight is None else weight for _, (_, y, weight) in ((0, s[2]) for s in steps)]
        incoming = [(x, y, own) for (_, _, (x, y, _), *_), own in zip(steps, ones)]
        held = [step[3] for step in steps if step[3] is not None]
        replayed = [(b.x, b.y, b.columns.get("weight", torch.ones(len(b)))) for b in held]
        lacking += 0 < len(held) < len(steps)
        own = gradients(model, mean_loss(model, incoming))
        if isinstance(retrieval, MostInterfered) and held:
            for one in (step for step in steps if step[3] is not None):
                nn.utils.vector_to_parameters(before, model.parameters())
                first = nn.functional.cross_entropy(model(one[3].x.double()), one[3].y, reduction="none")
                nn.utils.vector_to_parameters(before - 0.1 * own, model.parameters())
                second = nn.functional.cross_entropy(model(one[3].x.double()), one[3].y, reduction="none")
                rise = (second - first) * (one[3].columns["weight"] if weighted else 1)
                torch.testing.assert_close(one[4].double(), rise, atol=1e-6, rtol=1e-6)
            nn.utils.vector_to_parameters(before, model.parameters())
        total = own + (0.7 * gradients(model, mean_loss(model, replayed)) if replayed else 0)
        torch.testing.assert_close(after, before - 0.1 * total, atol=1e-6, rtol=0)
        assert (before - after).abs().max() > 1e-4


def test_losses_that_store_logits_are_averaged_like_others():
    found = in_ranks(followed, 2, 15, {"loss": DarkExperience(), "retrieval": Uniform()})
    assert (found[0][0] == found[1][0]).all()


class TwoHeads(nn.Module):
    """Of which each input uses one, by its sign."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) if float(x[0, 0]) > 0 else self.second(x)


def with_heads(rank: int, sign: int) -> list[Tensor]:
    made = learner(0, TwoHeads(), retrieval=Uniform(), lr=0.1)
    before = [parameter.detach().clone() for parameter in made.model.parameters()]
    x, y = batch(rank, 0)
    made.observe(x.abs() * (sign if rank else 1), y, task=0)
    moved = [not torch.equal(one, other) for one, other in zip(before, made.model.parameters())]
    return [weights(made), moved]


def test_a_parameter_with_a_gradient_on_one_rank_moves_on_all():
    for sign, moved in ((1, [True, True, False, False]), (-1, [True] * 4)):
        (one, own), (other, theirs) = in_ranks(with_heads, 2, sign)
        assert torch.equal(one, other)
        assert own == theirs == moved


def grown(rank: int) -> tuple[Tensor, int, int]:
    made = learner(rank, average=0.1)
    for step in range(6):
        made.observe(*batch(rank, step), task=step // 3)
    added = made.grow(7)
    for step in range(6, 9):
        made.observe(*batch(rank, step), task=step // 3)
    return torch.cat([weights(made), *(one.flatten() for one in made.average.tensors.values())]), added, rank


def test_heads_grow_alike():
    (one, added, _), (other, *_) = in_ranks(grown, 2)
    assert torch.equal(one, other)
    assert added == 3


def kept(rank: int, kind: Any, steps: int) -> tuple[list[int], Tensor, Tensor, int]:
    made = learner(0, network(False), memory=kind(30, seed=4), retrieval=Uniform())
    for step in range(steps):
        made.observe(*batch(rank, step, 1 + 3 * rank + step % 2))
    memory = made.memory
    held = memory.all() if len(memory) else Batch(torch.zeros(0, 6), torch.zeros(0))
    return memory.slots().tolist(), held.x, memory._rows.columns["arrived"][memory.slots()], memory.seen


@pytest.mark.parametrize("kind", [ReservoirMemory, RingMemory, ClassBalancedMemory])
def test_the_union_of_the_shards_is_what_one_process_holds(kind):
    """Slot by slot, with shares of 1 : 4 : 7; so the policy's law, which has its own tests, holds for all ranks."""
    whole = kind(30, seed=4)
    for step in range(25):
        batches = [batch(rank, step, 1 + 3 * rank + step % 2) for rank in range(3)]
        whole.add(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
    shards = in_ranks(kept, 3, kind, 25)
    slots = [slot for slots, *_ in shards for slot in slots]
    assert sorted(slots) == whole.slots().tolist()  # each on one rank
    order, numbers = torch.tensor(slots).argsort(), whole._rows.columns["arrived"][whole.slots()]
    assert torch.equal(torch.cat([x for _, x, _, _ in shards])[order], whole.all().x)
    assert torch.equal(torch.cat([arrived for _, _, arrived, _ in shards])[order], numbers)
    assert {seen for *_, seen in shards} == {whole.seen}
    assert len(shards[0][0]) < len(shards[2][0])


class TwoOfThree:
    """Stands for the ranks: what one of them knows of a step."""

    def __init__(self, rank: int, arriving: list[int]) -> None:
        self.rank, self.arriving = rank, arriving


def test_each_sample_of_any_rank_is_held_with_the_same_probability():
    """Chi-square over samples, and over the number of them that each rank holds, with shares of 2 : 5 : 1."""
    arriving, capacity, times = [2, 5, 1], 12, 600
    total, held = 5 * sum(arriving), np.zeros(40)
    of_rank = np.zeros(3)
    for seed in range(times):
        for rank, count in enumerate(arriving):
            memory = ReservoirMemory(capacity, seed=seed)
            memory.shares = RankShares(TwoOfThree(rank, arriving))
            for step in range(5):
                numbers = 8 * step + sum(arriving[:rank]) + torch.arange(count)
                memory.add(numbers[:, None].float(), torch.zeros(count, dtype=torch.int64))
            stored = memory.all().x[:, 0].long().numpy() if len(memory) else []
            held[stored] += 1
            of_rank[rank] += len(stored)
    share = capacity / total
    expected = times * share
    assert held.sum() == times * capacity
    assert ((held - expected) ** 2).sum() / (expected * (1 - share)) * (total - 1) / total < 72.05  # 0.999, 39 d. f.
    means = times * capacity * np.array(arriving) / sum(arriving)
    assert ((of_rank - means) ** 2 / means).sum() < 13.8  # 0.999, 2 d. f.; drawn without replacement, so less
