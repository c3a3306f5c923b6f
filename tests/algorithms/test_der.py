"""DER++: the loss by hand, and `Replay` with it against a literal loop."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from replay_by_hand import batches, learner, net, sgd
from torch import Tensor, nn

from rehearse.batch import Batch
from rehearse.errors import InvalidInput
from rehearse.lab.draws import Draws
from rehearse.learners import Replay
from rehearse.losses import CrossEntropy, DarkExperience
from rehearse.memory.columns import columns_to_store
from rehearse.retrieval import MostInterfered, Uniform
from sameness import assert_same, frozen

# ---------------------------------------------------------------------------------------------------- the losses


def test_dark_experience_by_hand() -> None:
    outputs = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), columns={"logits": torch.tensor([[2.0, 1.0], [0.0, 2.0]])})
    error = F.cross_entropy(outputs, batch.y, reduction="none")
    distance = torch.tensor([(1 + 4) / 2, (0 + 4) / 2])
    loss = DarkExperience(alpha=0.3, beta=0.7)
    torch.testing.assert_close(loss(outputs, batch, True), 0.3 * distance + 0.7 * error)
    torch.testing.assert_close(loss(outputs, batch, False), error)


def test_each_draw_has_its_own_term() -> None:
    outputs, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    columns = {"logits": torch.randn(4, 3), "draw": torch.tensor([0, 1, 0, 1])}
    batch = Batch(torch.zeros(4, 1), y, columns=columns)
    mean = DarkExperience(alpha=0.3, beta=0.7)(outputs, batch, True).mean()
    distance = F.mse_loss(outputs[[0, 2]], columns["logits"][[0, 2]])
    error = F.cross_entropy(outputs[[1, 3]], y[[1, 3]])
    torch.testing.assert_close(mean, 0.3 * distance + 0.7 * error)


def test_outputs_that_were_not_stored_do_not_count() -> None:
    outputs = torch.tensor([[1.0, 2.0, 9.0], [1.0, 2.0, 9.0]], requires_grad=True)
    nan = math.nan
    for stored in ([[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0, nan], [0.0, 0.0, nan]]):
        batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), columns={"logits": torch.tensor(stored)})
        loss = DarkExperience(alpha=1.0, beta=0.0)(outputs, batch, True)
        assert loss.tolist() == [2.5, 2.5]
        (gradient,) = torch.autograd.grad(loss.sum(), outputs)
        assert gradient.tolist() == [[1.0, 2.0, 0.0], [1.0, 2.0, 0.0]]


def test_only_losses_with_columns_store_any() -> None:
    outputs = torch.randn(2, 3, requires_grad=True)
    assert columns_to_store(CrossEntropy(), outputs) == {}
    kept = columns_to_store(DarkExperience(), outputs)
    assert list(kept) == ["logits"]
    assert torch.equal(kept["logits"], outputs)
    assert not kept["logits"].requires_grad


def test_invalid_weights() -> None:
    for weight in (-1.0, math.nan, "much", True):
        with pytest.raises(InvalidInput, match="alpha"):
            DarkExperience(alpha=weight)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="draws"):
        Draws(Uniform(), 0)


# ---------------------------------------------------------------------------------------------------- the learner


@pytest.mark.parametrize("draws", [1, 2])
def test_replay_with_dark_experience_is_the_literal_algorithm(draws: int) -> None:
    retrieval = Uniform() if draws == 1 else Draws(Uniform(), 2)
    ours, literal = learner(DarkExperience(alpha=0.4, beta=0.9), retrieval), net()
    stored: dict[tuple[float, ...], Tensor] = {}  # the logits of each sample when it arrived
    for x, y, task in batches():
        step = ours.observe(x, y, task)
        outputs = literal(x)
        for sample, logits in zip(x, outputs.detach(), strict=True):
            stored[tuple(sample.tolist())] = logits
        loss = F.cross_entropy(outputs, y)
        if step.replayed is not None:
            samples = step.replayed
            logits = torch.stack([stored[tuple(sample.tolist())] for sample in samples.x])
            first = second = torch.ones(len(samples), dtype=torch.bool)
            if draws == 2:
                first, second = samples.columns["draw"] == 0, samples.columns["draw"] == 1
                assert first.sum() == second.sum() == 3
            loss = loss + 0.4 * F.mse_loss(literal(samples.x[first]), logits[first])
            loss = loss + 0.9 * F.cross_entropy(literal(samples.x[second]), samples.y[second])
        sgd(literal, loss)
    for one, other in zip(ours.model.parameters(), literal.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_interference_is_that_of_the_replayed_loss() -> None:
    """The interference of DER-MIR, against a copy that really takes the step."""
    ours = learner(DarkExperience(alpha=0.4, beta=0.9), MostInterfered(candidates=None))
    *history, (x, y, task) = batches()
    for batch in history:
        ours.observe(*batch)
    before, memory = copy.deepcopy(ours.model), ours.memory.all()
    after = copy.deepcopy(before)
    sgd(after, F.cross_entropy(after(x), y))

    def terms(model: nn.Module) -> Tensor:
        with torch.no_grad():
            outputs = model(memory.x)
        distance = (outputs - memory.columns["logits"]).square().mean(1)
        return 0.4 * distance + 0.9 * F.cross_entropy(outputs, memory.y, reduction="none")

    expected, order = (terms(after) - terms(before)).sort(descending=True)
    step = ours.observe(x, y, task)
    assert step.replayed is not None
    assert step.interference is not None
    assert step.replayed.slots is not None
    assert memory.slots is not None
    torch.testing.assert_close(step.interference, expected[:3], rtol=1e-3, atol=1e-5)
    assert step.replayed.slots.tolist() == memory.slots[order[:3]].tolist()


def test_two_draws_are_ranked_together() -> None:
    ours = learner(DarkExperience(), Draws(MostInterfered(candidates=4), 2))
    for batch in batches():
        step = ours.observe(*batch)
    assert step.interference is not None
    assert step.replayed is not None
    assert step.interference.tolist() == sorted(step.interference.tolist(), reverse=True)
    assert sorted(step.replayed.columns["draw"].tolist()) == [0, 0, 0, 1, 1, 1]


def test_an_invalid_batch_changes_nothing() -> None:
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


def test_a_grown_head_learns_and_resumes() -> None:
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


def test_der_resumes_bit_for_bit() -> None:
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
