"""AveragedDistillation: steps against a literal computation with copies of the network."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse import Batch, Finetune, HighestLoss, Replay, ReservoirMemory, Uniform
from rehearse.errors import InvalidInput
from rehearse.losses import AveragedDistillation, DarkExperience
from rehearse.random import torch_generator
from rehearse.transforms import Crop
from sameness import assert_same, frozen

WEIGHT, T, RATE, LR = 2.0, 3.0, 0.3, 0.1


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def net(normed: bool) -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8) if normed else nn.Identity()
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 8), norm, nn.Tanh(), nn.Linear(8, 4))


def learner(normed: bool = False, loss: Any = None, **options: Any) -> Replay:
    model = net(normed)
    options = {"average": RATE, "retrieval": Uniform(), "budget": 3, **options}
    loss = loss or AveragedDistillation(WEIGHT, T)
    return Replay(model, torch.optim.SGD(model.parameters(), LR), ReservoirMemory(12), loss=loss, **options)


def batches(steps: int = 8) -> list[tuple[Tensor, Tensor]]:
    chance = torch.Generator().manual_seed(3)
    return [(torch.randn(4, 3, 3, generator=chance), torch.randint(0, 4, (4,), generator=chance)) for _ in range(steps)]


def divergence(own: Tensor, taught: Tensor) -> Tensor:
    """KL( softmax(taught / T) ‖ softmax(own / T) ), term by term."""
    p, q = (taught / T).softmax(1), (own / T).softmax(1)
    return T * T * (p * (p.log() - q.log())).sum(1)


@pytest.mark.parametrize("augment", [None, Crop(1)])
@pytest.mark.parametrize(("normed", "batchnorm"), [(False, "auto"), (True, "clean"), (True, "joint")])
def test_the_steps_match_the_formula(normed: bool, batchnorm: str, augment: Any) -> None:
    ours, chance = learner(normed, batchnorm=batchnorm, augment=augment), torch_generator(0, "augment")
    student, teacher = net(normed), net(normed)
    shown = augment or (lambda x, _: x)

    def losses(passes: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Student and teacher in one pass each, with the statistics of the batch."""
        x, sizes = torch.cat([x for x, _ in passes]), [len(x) for x, _ in passes]
        own, taught = student(x), teacher(x).detach()
        total = F.cross_entropy(own, torch.cat([y for _, y in passes]), reduction="none")
        return [part.mean() for part in (total + WEIGHT * divergence(own, taught)).split(sizes)]

    for number, (x, y) in enumerate(batches(), 1):
        teacher.train()
        incoming = shown(x, chance), y
        step = ours.observe(x, y)
        replayed = None if step.replayed is None else (shown(step.replayed.x, chance), step.replayed.y)
        if replayed is not None and batchnorm == "clean":
            parts = [*losses([incoming]), *losses([replayed])]
        else:
            parts = losses([incoming] if replayed is None else [incoming, replayed])
        assert step.incoming_loss == pytest.approx(parts[0].item(), rel=1e-4)
        gradients = torch.autograd.grad(sum(parts), list(student.parameters()))  # type: ignore[arg-type]
        with torch.no_grad():
            for parameter, gradient in zip(student.parameters(), gradients, strict=True):
                parameter -= LR * gradient
            for mean, parameter in zip(teacher.parameters(), student.parameters(), strict=True):
                mean += max(RATE, 1 / number) * (parameter - mean)
        for one, other in zip(ours.model.parameters(), student.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_candidates_are_scored_without_it() -> None:
    ours = learner(retrieval=HighestLoss(12))
    for x, y in batches():
        before = copy.deepcopy(ours.model)
        step = ours.observe(x, y)
        if step.replayed is not None:
            losses = F.cross_entropy(before(step.replayed.x), step.replayed.y, reduction="none")
            torch.testing.assert_close(step.interference, losses.detach(), rtol=1e-4, atol=1e-5)


def test_weight_zero_is_the_loss_itself() -> None:
    one, other = learner(loss=AveragedDistillation(0.0, loss=DarkExperience())), learner(loss=DarkExperience())
    for batch in batches():
        one.observe(*batch)
        other.observe(*batch)
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert "logits" in one.memory.all().columns


def test_inside_another_loss_it_is_heard_too() -> None:
    inside = learner(loss=DarkExperience(0.1, 1.0, AveragedDistillation(WEIGHT, T)))
    without = learner(loss=DarkExperience(0.1, 1.0))
    for batch in batches():
        first, second = inside.observe(*batch), without.observe(*batch)
    assert first.incoming_loss != second.incoming_loss


@pytest.mark.parametrize("loss", [AveragedDistillation(), DarkExperience(loss=AveragedDistillation())])
def test_without_averaged_weights_it_is_refused(loss: Any) -> None:
    with pytest.raises(InvalidInput, match="give their rate: average"):
        learner(loss=loss, average=None)
    model = net(False)
    with pytest.raises(InvalidInput, match="give their rate: average"):
        Finetune(model, torch.optim.SGD(model.parameters(), LR), loss=loss)


def test_it_resumes_bit_for_bit() -> None:
    whole, first, second = (learner(True, augment=Crop(1), updates=2) for _ in range(3))
    for batch in batches():
        whole.observe(*batch)
    for batch in batches()[:3]:
        first.observe(*batch)
    second.load_state_dict(frozen(first.state_dict()))
    for batch in batches()[3:]:
        second.observe(*batch)
    assert_same(second.state_dict(), whole.state_dict())


def test_bfloat16_logits_are_judged_in_float32() -> None:
    own, taught = torch.randn(5, 4).bfloat16(), torch.randn(5, 4).bfloat16()
    y = torch.tensor([0, 1, 2, 3, 0])
    expected = F.cross_entropy(own.float(), y, reduction="none") + WEIGHT * divergence(own.float(), taught.float())
    found = AveragedDistillation(WEIGHT, T)(own, Batch(taught, y, columns={"averaged": taught}), True)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("settings", [{"weight": -1}, {"temperature": 0}, {"temperature": "4"}])
def test_invalid_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"weight|temperature"):
        AveragedDistillation(**settings)
