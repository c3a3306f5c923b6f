"""SCR: steps and predictions against literal loops."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rehearse import Batch, ReservoirMemory
from rehearse.errors import InvalidInput, InvalidType
from rehearse.learners.scr import SCR, SupervisedContrastive
from rehearse.random import torch_generator
from rehearse.transforms import Crop
from sameness import assert_same, frozen

TEMPERATURE, LR = 0.2, 0.1


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def net() -> nn.Sequential:
    torch.manual_seed(0)
    projection = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 6))
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.Tanh(), projection)


def learner(**options: Any) -> SCR:
    model = net()
    options = {"temperature": TEMPERATURE, "budget": 5, "augment": Crop(1), "head": "3", **options}
    return SCR(model, torch.optim.SGD(model.parameters(), LR), ReservoirMemory(12), **options)


def batches(steps: int = 8) -> list[tuple[Tensor, Tensor]]:
    chance = torch.Generator().manual_seed(3)
    return [(torch.rand(4, 3, 3, generator=chance), torch.randint(0, 4, (4,), generator=chance)) for _ in range(steps)]


def contrast(outputs: Tensor, y: Tensor) -> list[Tensor]:
    """ℓ of each view, one pair of views at a time."""
    z, found = [one / one.norm() for one in outputs], []
    for i, own in enumerate(z):
        others = [a for a in range(len(z)) if a != i]
        total = torch.stack([(own @ z[a] / TEMPERATURE).exp() for a in others]).sum()
        positive = [own @ z[p] / TEMPERATURE - total.log() for p in others if y[p] == y[i]]
        found.append(-torch.stack(positive).mean() if positive else torch.zeros(()))
    return found


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("augment", [None, Crop(1)])
def test_the_steps_match_the_formula(augment: Any, updates: int) -> None:
    ours, literal, chance = learner(augment=augment, updates=updates), net(), torch_generator(0, "augment")
    draws: list[Batch] = []
    sample = ours.memory.sample
    ours.memory.sample = lambda *a, **k: draws.append(sample(*a, **k)) or draws[-1]  # type: ignore[method-assign, func-returns-value]
    for x, y in batches():
        draws.clear()
        step = ours.observe(x, y)
        for update in range(updates):
            views, labels = (torch.cat([x, draws[update].x]), torch.cat([y, draws[update].y])) if draws else (x, y)
            other = views if augment is None else augment(views, chance)
            losses = contrast(literal(torch.cat([views, other])), labels.repeat(2))
            gradients = torch.autograd.grad(torch.stack(losses).mean(), list(literal.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(literal.parameters(), gradients, strict=True):
                    parameter -= LR * gradient
        each = torch.stack(losses).view(2, -1).mean(0)
        assert step.incoming_loss == pytest.approx(each[:4].mean().item(), rel=1e-4)
        assert (step.replayed_loss is None) == (not draws)
        if draws:
            assert step.replayed_loss == pytest.approx(each[4:].mean().item(), rel=1e-4)
        for one, parameter in zip(ours.model.parameters(), literal.parameters(), strict=True):
            torch.testing.assert_close(one, parameter, rtol=1e-4, atol=1e-5)


def test_prediction_is_the_nearest_mean_of_what_enters_the_projection() -> None:
    ours, x = learner(), torch.rand(20, 3, 3)
    assert ours.predict_proba(x[:1]).tolist() == [pytest.approx([1 / 6] * 6)]
    for batch in batches():
        ours.observe(*batch)
    body, held = copy.deepcopy(ours.model).eval()[:3], ours.memory.all()  # type: ignore[index]
    with torch.no_grad():
        features, stored = (one / one.norm(dim=1, keepdim=True) for one in (body(x), body(held.x)))
    labels = sorted(set(held.y.tolist()))
    means = torch.stack([stored[held.y == label].mean(0) for label in labels])
    distances = torch.cdist(features, means / means.norm(dim=1, keepdim=True))
    logits = ours.logits(x)
    assert logits.shape == (20, 6)
    torch.testing.assert_close(logits[:, labels], -distances, rtol=1e-4, atol=1e-5)
    assert_same(ours.predictor().logits(x), logits)


def test_it_learns_classes_one_after_the_other() -> None:
    centers, model = 2 * torch.randn(4, 9), nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 16))
    ours = SCR(model, torch.optim.SGD(model.parameters(), 0.1), ReservoirMemory(40), budget=20)
    for label in range(4):
        for _ in range(15):
            y = torch.full((5,), label)
            ours.observe(centers[y] + 0.5 * torch.randn(5, 9), y)
    x = centers.repeat(20, 1) + 0.5 * torch.randn(80, 9)
    assert (ours.predict(x) == torch.arange(4).repeat(20)).float().mean() > 0.95


def test_a_sample_alone_in_its_class_has_no_loss() -> None:
    outputs, y = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 0, 1, 2, 2])
    losses = SupervisedContrastive(TEMPERATURE)(outputs, Batch(outputs, y), False)
    torch.testing.assert_close(losses, torch.stack(contrast(outputs, y)))
    assert losses[2] == 0
    losses.sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


def test_diagnose_speaks_of_the_contrastive_loss() -> None:
    ours = learner()
    for batch in batches():
        ours.observe(*batch)
    held = ours.memory.all()
    found = ours.diagnose(*batches()[0])
    expected = torch.stack(contrast(ours.model(held.x), held.y)).detach()
    assert held.slots is not None
    by_slot = dict(zip(held.slots.tolist(), expected.tolist(), strict=True))
    assert found.before.tolist() == pytest.approx([by_slot[slot] for slot in found.slots.tolist()], rel=1e-4, abs=1e-5)


def test_invalid_arguments_and_batches() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), LR)
    with pytest.raises(InvalidType, match="must be an instance of Memory"):
        SCR(model, optimizer, [])  # type: ignore[arg-type]
    for wrong in ({"temperature": 0}, {"temperature": -1}, {"budget": 0}, {"head": "projection"}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            learner(**wrong)
    ours = learner()
    ours.observe(*batches()[0])
    before = frozen(ours.state_dict())
    for x, y in ((torch.rand(4, 2, 2), torch.zeros(4, dtype=torch.long)), (torch.rand(4, 3, 3), torch.full((4,), 6))):
        with pytest.raises(InvalidInput):
            ours.observe(x, y)
        assert_same(ours.state_dict(), before)
