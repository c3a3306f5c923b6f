"""Retrievals of one's own: what they may ask of the engine, and what they must return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse import Batch, Replay, ReservoirMemory
from rehearse.errors import InvalidInput
from rehearse.losses import CrossEntropy
from rehearse.nets import MLP, GatedMLP
from sameness import assert_same, frozen

MODELS: dict[str, Callable[[], nn.Module]] = {
    "chain": lambda: MLP(6, (8,), 4),
    "dropout": lambda: GatedMLP(6, 8, 4, dropout=0.3),
    "norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)),
}


class Mine:
    """A retrieval that returns what a function says."""

    def __init__(self, answer: Callable[..., Any], *, needs_gradient: bool) -> None:
        self.answer, self.needs_gradient = answer, needs_gradient

    def __call__(self, memory: Any, incoming: Any, gradient: Any, engine: Any, budget: int) -> Any:
        return self.answer(memory, gradient, engine)


def learner(model: str, answer: Callable[..., Any], *, needs_gradient: bool, **options: Any) -> Replay:
    torch.manual_seed(0)
    made, retrieval = MODELS[model](), Mine(answer, needs_gradient=needs_gradient)
    return Replay(made, torch.optim.SGD(made.parameters(), 0.1), ReservoirMemory(20), retrieval, budget=5, **options)


def batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(8, 6, generator=generator), torch.randint(0, 4, (8,), generator=generator)


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "nothing": (lambda *_: None, r"returns a Batch and its scores, or \(None, None\); this is None"),
    "a batch alone": (lambda memory, *_: memory.sample(3), "returns a Batch and its scores"),
    "slots": (lambda memory, *_: (memory.sample(3).slots, None), "returns a Batch and its scores"),
    "too many": (lambda memory, *_: (memory.sample(6), None), "returned 6 samples; the budget is 5"),
}


@pytest.mark.parametrize("needs_gradient", [True, False])
@pytest.mark.parametrize("what", WRONG)
def test_anything_but_a_pair_within_the_budget_is_refused(what: str, needs_gradient: bool) -> None:
    answer, words = WRONG[what]
    made = learner("chain", lambda *_: (None, None), needs_gradient=needs_gradient)
    for number in range(2):
        made.observe(*batch(number))
    made.retrieval, before = Mine(answer, needs_gradient=needs_gradient), frozen(made.state_dict())
    with pytest.raises(InvalidInput, match=words):
        made.observe(*batch(2))
    assert_same(made.state_dict(), before)


@pytest.mark.parametrize("policy", ["clean", "joint", "recalibrated"])
@pytest.mark.parametrize("model", MODELS)
def test_without_a_gradient_every_model_tells_its_losses(model: str, policy: str) -> None:
    """They are those of the model as it is, and cost one pass."""
    passed = []

    def highest(memory: Any, gradient: Any, engine: Any) -> tuple[Batch, Tensor]:
        candidates, before = memory.sample(8), made.samples_passed
        losses, same = engine.losses(candidates)
        passed.append(made.samples_passed - before)
        assert torch.equal(losses, same)
        if model != "norm":  # scoring has no dropout; batch-norm takes the statistics of these samples
            exact = F.cross_entropy(made.logits(candidates.x), candidates.y, reduction="none")
            torch.testing.assert_close(losses, exact)
        order = losses.argsort(descending=True)[:5]
        return candidates.take(order), losses[order]

    made = learner(model, highest, needs_gradient=False, batchnorm=policy)
    made.remember([batch(9)])
    for number in range(4):
        step = made.observe(*batch(number))
    assert passed == 4 * [8]
    assert step.replayed is not None
    assert len(step.replayed) == 5


@pytest.mark.parametrize("model", MODELS)
def test_the_incoming_gradient_is_read_by_parameter_name(model: str) -> None:
    seen: list[dict[str, Tensor]] = []

    def reading(memory: Any, gradient: Any, engine: Any) -> tuple[None, None]:
        seen.append(dict(engine.named(gradient)))
        return None, None

    made = learner(model, reading, needs_gradient=True, batchnorm="clean")
    made.remember([batch(9)])
    before = {name: parameter.detach().clone() for name, parameter in made.model.named_parameters()}
    made.observe(*batch(0))
    (gradient,) = seen
    assert gradient.keys() == before.keys()
    for name, parameter in made.model.named_parameters():  # nothing was replayed: the step is −α × this gradient
        torch.testing.assert_close(before[name] - 0.1 * gradient[name], parameter.detach())


def test_losses_without_a_gradient_are_those_of_the_loss_for_replayed_samples() -> None:
    class Doubled(CrossEntropy):
        def __call__(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
            return super().__call__(logits, batch, replayed) * (2 if replayed else 1)

    made = learner("chain", lambda *_: (None, None), needs_gradient=False, loss=Doubled())
    x, y = batch(0)
    expected = 2 * F.cross_entropy(made.logits(x), y, reduction="none")
    torch.testing.assert_close(made.plain.losses(Batch(x, y))[0], expected)
