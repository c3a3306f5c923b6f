"""One step under every loss of torch is the step of torch's own mean: weights, ignored targets, layouts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rehearse import Batch, Finetune, MostInterfered, Replay, ReservoirMemory
from rehearse.engine import Plain
from rehearse.learners import AGEM, GEM
from rehearse.losses import DarkExperience, as_loss
from rehearse.memory import TaskRingMemory

CLASSES, FEATURES, RATE = 4, 3, 0.5


class Positions(nn.Module):
    """A linear layer at each of some positions, with the classes in dimension 1 or in the last one."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(FEATURES, CLASSES), last

    def forward(self, x: Tensor) -> Tensor:
        logits = self.linear(x)
        return logits if self.last or x.ndim == 2 else logits.movedim(-1, 1)


def labels(draw: Any, shape: tuple[int, ...], ignored: int | None) -> Tensor:
    y = torch.tensor(draw(st.lists(st.integers(0, CLASSES - 1), min_size=shape.numel(), max_size=shape.numel())))
    if ignored is not None:
        y[torch.tensor(draw(st.lists(st.booleans(), min_size=len(y), max_size=len(y))))] = ignored
        y[0] = 0  # of nothing but ignored targets torch's mean is NaN
    return y.view(shape)


@st.composite
def settings_of(draw: Any) -> tuple[nn.Module, Callable[[int], Tensor], int, bool]:
    """A loss of torch, how to draw targets for so many samples, the number of positions (0: none), and the layout."""
    positions, last = draw(st.sampled_from([0, 0, 3, 5])), draw(st.booleans())
    name = draw(st.sampled_from(["ce", "ce", "soft", "nll", "bce", "mse", "margin", "kl"]))
    weight = draw(st.none() | st.lists(st.floats(0.1, 5), min_size=CLASSES, max_size=CLASSES).map(torch.tensor))
    weight = None if weight is None else weight.double()
    ignored, smoothing = draw(st.sampled_from([None, -100, 2, 255])), draw(st.sampled_from([0.0, 0.1, 0.7]))
    if name == "margin":
        positions = 0
    shape = [positions] * (positions > 0)

    def index(n: int) -> Tensor:
        return labels(draw, torch.Size([n, *shape]), ignored)

    def dense(n: int) -> Tensor:
        full = [n, *shape, CLASSES] if last or not positions else [n, CLASSES, *shape]
        generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        return torch.rand(full, generator=generator, dtype=torch.float64)

    skip: dict[str, Any] = {} if ignored is None else {"ignore_index": ignored}
    made: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
        "ce": (lambda: nn.CrossEntropyLoss(weight, label_smoothing=smoothing, **skip), index),
        "soft": (lambda: nn.CrossEntropyLoss(weight, label_smoothing=smoothing), dense),
        "nll": (lambda: nn.NLLLoss(weight, **skip), index),
        "bce": (lambda: nn.BCEWithLogitsLoss(pos_weight=None if positions and not last else weight), dense),
        "mse": (nn.MSELoss, dense),
        "margin": (
            lambda: nn.MultiMarginLoss(weight=weight, margin=0.5),
            lambda n: labels(draw, torch.Size([n]), None),
        ),
        "kl": (lambda: nn.KLDivLoss(reduction="batchmean"), dense),
    }
    loss, targets = made[name]
    return loss(), targets, positions, last


def torchs(loss: nn.Module, logits: Tensor, y: Tensor, last: bool) -> Tensor:
    """Torch's own mean; its losses of classes have them in dimension 1."""
    if last and logits.ndim > 2 and isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        logits, y = logits.movedim(-1, 1), y.movedim(-1, 1) if y.is_floating_point() else y
    return loss(logits, y)


def stepped(model: nn.Module, loss: Tensor) -> list[Tensor]:
    parameters = list(model.parameters())
    return [p - RATE * g for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True)]


def inputs(n: int, positions: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, *[positions] * (positions > 0), FEATURES, generator=generator, dtype=torch.float64)


def close(model: nn.Module, expected: list[Tensor]) -> None:
    for own, theirs in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(own.detach(), theirs.detach(), atol=1e-6, rtol=1e-6)


def build(kind: Any, model: nn.Module, loss: Any, *memory: Any, **options: Any) -> Any:
    return kind(model, torch.optim.SGD(model.parameters(), lr=RATE), *memory, loss=loss, **options)


@settings(max_examples=150, deadline=None)
@given(settings_of(), st.integers(1, 6), st.integers(1, 6), st.integers(0, 9))
def test_a_step_is_that_of_torchs_mean(setting, n, m, seed):
    loss, targets, positions, last = setting
    dim = -1 if last else 1
    torch.manual_seed(seed)
    model = Positions(last).double()
    given_loss = as_loss(loss, dim=dim)
    x, y = inputs(n, positions, seed), targets(n)
    expected = stepped(model, torchs(loss, model(x), y, last))
    one = build(Finetune, copy.deepcopy(model), given_loss)
    one.observe(x, y)
    close(one.model, expected)
    replay = build(Replay, copy.deepcopy(model), given_loss, ReservoirMemory(9), MostInterfered(9), budget=m)
    old = inputs(m, positions, seed + 10), targets(m)
    replay.remember([old])
    total = torchs(loss, model(x), y, last) + torchs(loss, model(old[0]), old[1], last)
    expected = stepped(model, total)
    step = replay.observe(x, y)
    assert step.replayed is not None
    close(replay.model, expected)


@settings(max_examples=40, deadline=None)
@given(settings_of(), st.lists(st.integers(0, 3), min_size=2, max_size=5).filter(any), st.integers(0, 9))
def test_a_whole_weight_is_that_many_samples(setting, weights, seed):
    loss, targets, positions, last = setting
    torch.manual_seed(seed)
    model, given_loss = Positions(last).double(), as_loss(loss, dim=-1 if last else 1)
    n, times = len(weights), torch.tensor(weights)
    x, y = inputs(n, positions, seed), targets(n)
    weighted, repeated = (build(Finetune, copy.deepcopy(model), given_loss) for _ in range(2))
    weighted.observe(x, y, weight=times)
    more = y.repeat_interleave(times, 0)
    if not y.is_floating_point() and bool((more == getattr(loss, "ignore_index", -1)).all()):
        close(weighted.model, list(model.parameters()))  # nothing counts: no step
        return
    repeated.observe(x.repeat_interleave(times, 0), more)
    close(weighted.model, list(repeated.model.parameters()))


@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize("retrieval", [MostInterfered(6), None])
def test_weights_count_in_every_engine(chain, retrieval):
    """A chain of linear layers takes the fast engine; the reference computes the same with autograd."""
    torch.manual_seed(0)
    middle = nn.ReLU() if chain else nn.Tanh()
    model = nn.Sequential(nn.Linear(FEATURES, 5), middle, nn.Linear(5, CLASSES)).double()
    learner = build(Replay, copy.deepcopy(model), None, ReservoirMemory(6), retrieval, budget=6)
    assert (type(learner.plain.fastest(torch.zeros(1, FEATURES))) is not Plain) == chain
    batches = [(inputs(4, 0, i), torch.arange(4) % CLASSES, torch.tensor([1.0, 0.0, 3.0, 0.5]) + i) for i in range(2)]

    def mean(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        return (w * losses).sum() / w.sum()

    first = mean(*batches[0])
    assert learner.observe(*batches[0][:2], weight=batches[0][2]).incoming_loss == pytest.approx(first.item())
    with torch.no_grad():
        for own, theirs in zip(list(model.parameters()), stepped(model, first), strict=True):
            own.copy_(theirs)
    expected = stepped(model, mean(*batches[1]) + mean(*batches[0]))
    step = learner.observe(*batches[1][:2], weight=batches[1][2])
    assert step.replayed is not None
    close(learner.model, expected)
    if step.interference is not None:
        assert sorted(step.replayed.columns["weight"].tolist()) == [0.0, 0.5, 1.0, 3.0]
        assert bool((step.interference[step.replayed.columns["weight"] == 0] == 0).all())


def test_terms_beside_a_weighted_loss_count_as_it_does():
    """DER: α · the weighted mean of the distances + β · torch's weighted mean."""
    weight = torch.tensor([1.0, 4.0, 2.0, 0.5])
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, CLASSES)
    loss = DarkExperience(0.3, 0.7, nn.CrossEntropyLoss(weight))
    learner = build(Replay, model, loss, ReservoirMemory(6), MostInterfered(6), budget=6)
    x, y = torch.randn(5, FEATURES), torch.tensor([0, 1, 2, 3, 1])
    learner.observe(x, y)
    stored = learner.memory.all()
    logits = learner.model(stored.x)
    distances = (logits - stored.columns["logits"]).square().mean(1)
    expected = 0.3 * (weight[stored.y] * distances).sum() / weight[stored.y].sum()
    expected = expected + 0.7 * nn.CrossEntropyLoss(weight)(logits, stored.y)
    torch.testing.assert_close(stored.mean_loss(learner.loss, logits, True), expected)


def test_samples_are_judged_one_by_one():
    """A candidate's loss does not depend on which other candidates were drawn with it."""
    loss = as_loss(nn.CrossEntropyLoss(torch.tensor([1.0, 4.0, 2.0, 0.5])))
    learner = build(Finetune, nn.Linear(FEATURES, CLASSES), loss)
    batch = Batch(torch.randn(6, FEATURES), torch.arange(6) % CLASSES, columns={"weight": torch.rand(6)})
    together, _ = learner.plain.losses(batch)
    alone = torch.cat([learner.plain.losses(batch.take(torch.tensor([i])))[0] for i in range(6)])
    torch.testing.assert_close(together, alone)


def test_a_batch_of_ignored_targets_takes_no_step():
    model = nn.Linear(FEATURES, CLASSES)
    learner = build(Finetune, copy.deepcopy(model), nn.CrossEntropyLoss())
    assert learner.observe(torch.randn(3, FEATURES), torch.full((3,), -100)).incoming_loss == 0
    close(learner.model, list(model.parameters()))


@pytest.mark.parametrize("kind", [AGEM, GEM])
def test_projected_steps_know_weights(kind):
    model = nn.Linear(FEATURES, CLASSES)
    weighted, one = (build(kind, copy.deepcopy(model), None, TaskRingMemory(6)) for _ in range(2))
    x, y = torch.randn(3, FEATURES), torch.tensor([0, 1, 2])
    weighted.observe(x, y, task=0, weight=[1, 0, 0])
    one.observe(x[:1], y[:1], task=0)
    close(weighted.model, list(one.model.parameters()))


def test_targets_that_may_be_laid_out_in_two_ways_are_refused():
    model = Positions(last=True)
    learner = build(Finetune, model, nn.CrossEntropyLoss())
    x, y = torch.randn(2, CLASSES, FEATURES), torch.zeros(2, CLASSES, dtype=torch.long)
    with pytest.raises(ValueError, match=r"dim=-1"):
        learner.observe(x, y)
    told = build(Finetune, model, as_loss(nn.CrossEntropyLoss(), dim=-1))
    told.observe(x, y)
    assert told.predict(x).equal(model(x).argmax(-1))


def test_a_loss_of_ones_own_says_what_a_sample_counts_for():
    class ByLabel:
        def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
            return (1 + y) * nn.functional.cross_entropy(logits, y, reduction="none")

        def counts(self, batch: Batch) -> Tensor:
            return 1 + batch.y

    weighted = nn.CrossEntropyLoss(torch.arange(1.0, 1 + CLASSES))
    model, x, y = nn.Linear(FEATURES, CLASSES), torch.randn(5, FEATURES), torch.tensor([0, 1, 2, 3, 1])
    expected = weighted(model(x), y).item()
    assert build(Finetune, model, ByLabel()).observe(x, y).incoming_loss == pytest.approx(expected)
