"""ER-ACE and DER++: the losses by hand, and `Replay` with them against literal loops."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse.batch import Batch
from rehearse.errors import InvalidInput
from rehearse.learners import Replay
from rehearse.losses import AsymmetricCrossEntropy, CrossEntropy, DarkExperience, columns_to_store
from rehearse.memory import ReservoirMemory
from rehearse.retrieval import Draws, MostInterfered, Uniform
from sameness import assert_same, frozen

# ---------------------------------------------------------------------------------------------------- the losses


def test_what_arrives_competes_with_its_own_classes_alone() -> None:
    scores = torch.tensor([[math.log(3.0), 50.0, 0.0], [0.0, 50.0, math.log(4.0)]])
    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 2]))
    by_hand = torch.tensor([-math.log(3 / 4), -math.log(4 / 5)])
    torch.testing.assert_close(AsymmetricCrossEntropy()(scores, batch, False), by_hand)
    over_all = F.cross_entropy(scores, batch.y, reduction="none")
    torch.testing.assert_close(AsymmetricCrossEntropy()(scores, batch, True), over_all)


def test_absent_classes_get_no_gradient_and_a_single_class_none_at_all() -> None:
    scores = torch.randn(4, 5, requires_grad=True)
    batch = Batch(torch.zeros(4, 1), torch.tensor([1, 3, 3, 1]))
    (gradient,) = torch.autograd.grad(AsymmetricCrossEntropy()(scores, batch, False).sum(), scores)
    assert (gradient[:, [0, 2, 4]] == 0).all()
    assert (gradient[:, [1, 3]] != 0).all()
    alone = Batch(torch.zeros(4, 1), torch.tensor([2, 2, 2, 2]))
    (gradient,) = torch.autograd.grad(AsymmetricCrossEntropy()(scores, alone, False).sum(), scores)
    assert (gradient == 0).all()


def test_dark_experience_by_hand() -> None:
    scores = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), columns={"logits": torch.tensor([[2.0, 1.0], [0.0, 2.0]])})
    error = F.cross_entropy(scores, batch.y, reduction="none")
    distance = torch.tensor([(1 + 4) / 2, (0 + 4) / 2])
    loss = DarkExperience(alpha=0.3, beta=0.7)
    torch.testing.assert_close(loss(scores, batch, True), 0.3 * distance + 0.7 * error)
    torch.testing.assert_close(loss(scores, batch, False), error)


def test_each_draw_bears_its_own_term() -> None:
    scores, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    columns = {"logits": torch.randn(4, 3), "draw": torch.tensor([0, 1, 0, 1])}
    batch = Batch(torch.zeros(4, 1), y, columns=columns)
    mean = DarkExperience(alpha=0.3, beta=0.7)(scores, batch, True).mean()
    distance = F.mse_loss(scores[[0, 2]], columns["logits"][[0, 2]])
    error = F.cross_entropy(scores[[1, 3]], y[[1, 3]])
    torch.testing.assert_close(mean, 0.3 * distance + 0.7 * error)


def test_only_logits_that_were_stored_count() -> None:
    scores = torch.tensor([[1.0, 2.0, 9.0], [1.0, 2.0, 9.0]], requires_grad=True)
    nan = math.nan
    for stored in ([[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0, nan], [0.0, 0.0, nan]]):
        batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), columns={"logits": torch.tensor(stored)})
        loss = DarkExperience(alpha=1.0, beta=0.0)(scores, batch, True)
        assert loss.tolist() == [2.5, 2.5]
        (gradient,) = torch.autograd.grad(loss.sum(), scores)
        assert gradient.tolist() == [[1.0, 2.0, 0.0], [1.0, 2.0, 0.0]]


def test_only_a_loss_that_asks_is_remembered_for() -> None:
    scores = torch.randn(2, 3, requires_grad=True)
    assert columns_to_store(CrossEntropy(), scores) == {}
    kept = columns_to_store(DarkExperience(), scores)
    assert list(kept) == ["logits"]
    assert torch.equal(kept["logits"], scores)
    assert not kept["logits"].requires_grad


def test_refused_weights() -> None:
    for weight in (-1.0, math.nan, "much", True):
        with pytest.raises(InvalidInput, match="alpha"):
            DarkExperience(alpha=weight)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="draws"):
        Draws(Uniform(), 0)


# ---------------------------------------------------------------------------------------------------- the learner


def net(outputs: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))


def learner(loss: Any, retrieval: Any, model: nn.Module | None = None, **options: Any) -> Replay:
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    memory = ReservoirMemory(12, seed=0)
    return Replay(model, optimizer, memory, retrieval, loss=loss, budget=3, exclude_current_task=False, **options)


def batches(steps: int = 12) -> list[tuple[Tensor, Tensor, int]]:
    chance = torch.Generator().manual_seed(3)
    return [
        (torch.randn(4, 3, generator=chance), torch.randint(0, 4, (4,), generator=chance), step // 6)
        for step in range(steps)
    ]


def sgd(model: nn.Module, loss: Tensor) -> None:
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= 0.2 * gradient


@pytest.mark.parametrize("draws", [1, 2])
def test_replay_with_dark_experience_is_the_literal_algorithm(draws: int) -> None:
    retrieval = Uniform() if draws == 1 else Draws(Uniform(), 2)
    ours, literal = learner(DarkExperience(alpha=0.4, beta=0.9), retrieval), net()
    stored: dict[tuple[float, ...], Tensor] = {}  # the logits of each row when it arrived
    for x, y, task in batches():
        step = ours.observe(x, y, task)
        scores = literal(x)
        for row, logits in zip(x, scores.detach(), strict=True):
            stored[tuple(row.tolist())] = logits
        loss = F.cross_entropy(scores, y)
        if step.replayed is not None:
            rows = step.replayed
            logits = torch.stack([stored[tuple(row.tolist())] for row in rows.x])
            first = second = torch.ones(len(rows), dtype=torch.bool)
            if draws == 2:
                first, second = rows.columns["draw"] == 0, rows.columns["draw"] == 1
                assert first.sum() == second.sum() == 3
            loss = loss + 0.4 * F.mse_loss(literal(rows.x[first]), logits[first])
            loss = loss + 0.9 * F.cross_entropy(literal(rows.x[second]), rows.y[second])
        sgd(literal, loss)
    for one, other in zip(ours.model.parameters(), literal.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_replay_with_the_asymmetric_loss_is_the_literal_algorithm() -> None:
    ours, literal = learner(AsymmetricCrossEntropy(), Uniform()), net()
    current = 0
    for x, y, task in batches():
        step = ours.observe(x, y, task)
        present = sorted(set(y.tolist()))
        places = torch.tensor([present.index(label) for label in y.tolist()])
        loss = F.cross_entropy(literal(x)[:, present], places)
        if step.replayed is not None:
            loss = loss + F.cross_entropy(literal(step.replayed.x), step.replayed.y)
            current += task in step.replayed.task.tolist()
        sgd(literal, loss)
    assert current >= 5  # memories of the current task are replayed too
    for one, other in zip(ours.model.parameters(), literal.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_interference_is_that_of_the_terms_a_memory_bears() -> None:
    """The scores of DER-MIR, against a copy that really takes the step."""
    ours = learner(DarkExperience(alpha=0.4, beta=0.9), MostInterfered(candidates=None))
    *history, (x, y, task) = batches()
    for batch in history:
        ours.observe(*batch)
    before, memory = copy.deepcopy(ours.model), ours.memory.all()
    after = copy.deepcopy(before)
    sgd(after, F.cross_entropy(after(x), y))

    def terms(model: nn.Module) -> Tensor:
        with torch.no_grad():
            scores = model(memory.x)
        distance = (scores - memory.columns["logits"]).square().mean(1)
        return 0.4 * distance + 0.9 * F.cross_entropy(scores, memory.y, reduction="none")

    expected, order = (terms(after) - terms(before)).sort(descending=True)
    step = ours.observe(x, y, task)
    assert step.replayed is not None
    assert step.interference is not None
    assert step.replayed.slots is not None
    assert memory.slots is not None
    torch.testing.assert_close(step.interference, expected[:3], rtol=1e-3, atol=1e-5)
    assert step.replayed.slots.tolist() == memory.slots[order[:3]].tolist()


def test_two_interfered_draws_come_ranked_together() -> None:
    ours = learner(DarkExperience(), Draws(MostInterfered(candidates=4), 2))
    for batch in batches():
        step = ours.observe(*batch)
    assert step.interference is not None
    assert step.replayed is not None
    assert step.interference.tolist() == sorted(step.interference.tolist(), reverse=True)
    assert sorted(step.replayed.columns["draw"].tolist()) == [0, 0, 0, 1, 1, 1]


def test_a_refused_batch_leaves_everything() -> None:
    ours = learner(DarkExperience(), MostInterfered(candidates=6), updates=2)
    for batch in batches():
        ours.observe(*batch)
    before = frozen(ours.state_dict())
    for x, y in (
        (torch.ones(2, 3), torch.tensor([0, 4])),
        (torch.ones(2, 5), torch.tensor([0, 1])),
        (torch.ones(2, 3).double(), torch.tensor([0, 1])),
        (torch.ones(2, 3), torch.tensor([0, 1], dtype=torch.int32)),
    ):
        with pytest.raises(InvalidInput):
            ours.observe(x, y, 1)
        assert_same(ours.state_dict(), before)


def test_a_grown_head_goes_on_and_resumes() -> None:
    ours = learner(DarkExperience(alpha=1.0, beta=0.5), Uniform(), seed=4)
    for batch in batches(6):
        ours.observe(*batch)
    ours.grow(6)
    x, y = torch.randn(4, 3), torch.tensor([4, 5, 4, 5])
    ours.observe(x, y, 1)
    ours.observe(x + 1, y, 1)
    logits = ours.memory.all().columns["logits"]
    assert logits.shape[1] == 6
    old = logits[:, 4:].isnan().all(1)
    assert old.any()
    assert not logits[~old].isnan().any()
    other = learner(DarkExperience(alpha=1.0, beta=0.5), Uniform(), seed=4)
    other.load_state_dict(copy.deepcopy(ours.state_dict()))
    for one in (ours, other):
        one.observe(x - 1, y, 1)
    assert_same(other.state_dict(), ours.state_dict())


def test_resuming_goes_on_bit_for_bit() -> None:
    def fresh() -> Replay:
        return learner(DarkExperience(), Draws(MostInterfered(candidates=6, criterion="mi2"), 2), updates=2)

    whole, first, second = fresh(), fresh(), fresh()
    for batch in batches():
        whole.observe(*batch)
    for batch in batches()[:7]:
        first.observe(*batch)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for batch in batches()[7:]:
        second.observe(*batch)
    assert_same(second.state_dict(), whole.state_dict())
