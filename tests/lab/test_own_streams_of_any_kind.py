"""Streams that are not images of classes: regression, several labels, dicts, tuples, token ids, rare classes; and
what people hang on a learner: schedules, clipping, another device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rehearse import ClassBalancedMemory, MostInterfered, Replay, ReservoirMemory
from rehearse.errors import InvalidInput

RETRIEVALS = [MostInterfered(20), MostInterfered(20, "mi2"), MostInterfered(None, virtual_step="optimizer")]


def build(model: nn.Module, lr: float = 0.05, **options: Any) -> Replay:
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=lr)
    return Replay(model, optimizer, ReservoirMemory(options.pop("capacity", 60)), **options)


def foreseen_rise(model: nn.Module, loss: Any, x: Any, y: Tensor, rows: Any, targets: Tensor, lr: float) -> Tensor:
    """The interference of rows by a literal step on the batch, and back: one value a row."""

    def each(inputs: Any, wanted: Tensor) -> Tensor:
        outputs = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
        return loss(outputs, wanted).flatten(1).mean(1)

    before = each(rows, targets).detach()
    gradients = torch.autograd.grad(each(x, y).mean(), list(model.parameters()))
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= lr * gradient
        after = each(rows, targets).detach()
        for parameter, value in zip(model.parameters(), kept, strict=True):
            parameter.copy_(value)
    return after - before


# --------------------------------------------------------------------------------------------------- regression


def sines(task: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """One function, seen on one interval after the other."""
    generator = torch.Generator().manual_seed(task)
    for _ in range(count):
        x = 2 * torch.rand(10, 1, generator=generator) - 1 + 2 * task
        yield x, torch.sin(1.5 * x[:, 0])


@pytest.mark.parametrize(
    ("loss", "retrieval"),
    [
        (nn.MSELoss(), RETRIEVALS[0]),
        (lambda scores, y: (scores[:, 0] - y).square(), RETRIEVALS[1]),
        (nn.SmoothL1Loss(), RETRIEVALS[2]),
    ],
    ids=["module mi1", "callable mi2", "module optimizer"],
)
def test_a_regression_stream_is_learned_without_forgetting(loss: Any, retrieval: MostInterfered) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    one = build(model, loss=loss, retrieval=retrieval, capacity=200, optimizer=optimizer)
    for task in (0, 1):
        for x, y in sines(task, 250):
            step = one.observe(x, y)
    assert step.interference is not None
    for task in (0, 1):
        x, y = next(sines(task, 1))
        values = one.predict(x)
        assert values.shape == (10, 1)
        assert (values[:, 0] - y).square().mean() < 0.05
    with pytest.raises(InvalidInput, match="no probabilities"):
        one.predict_proba(x)


def test_interference_of_a_regression_is_the_rise_of_its_loss() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    one = build(model, loss=nn.MSELoss(), retrieval=MostInterfered(None), budget=5)
    for x, y in sines(0, 4):
        one.observe(x, y)
    rows = one.memory.all()
    x, y = next(sines(1, 1))
    squared = nn.MSELoss(reduction="none")
    expected = foreseen_rise(model, squared, x, y[:, None], rows.x, rows.y[:, None], lr=0.05)
    step = one.observe(x, y)
    torch.testing.assert_close(step.interference, expected.sort(descending=True).values[:5], rtol=1e-4, atol=1e-6)


# -------------------------------------------------------------------------------------------------- multi-label


def test_a_multi_label_stream() -> None:
    torch.manual_seed(0)
    weights = torch.randn(4, 3)
    model = nn.Linear(4, 3)
    one = build(model, lr=1.0, loss=nn.BCEWithLogitsLoss())
    for number in range(150):
        x = torch.randn(10, 4, generator=torch.Generator().manual_seed(number))
        step = one.observe(x, (x @ weights > 0).float())
    assert step.interference is not None
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(999))
    answers = one.predict(x)
    assert answers.dtype == torch.bool
    assert (answers == (x @ weights > 0)).float().mean() > 0.9
    assert torch.equal(one.predict_proba(x) > 0.5, answers)


def test_interference_of_several_labels_is_the_rise_of_their_mean_loss() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    one = build(model, loss=nn.BCEWithLogitsLoss(), retrieval=MostInterfered(None), budget=4)
    generator = torch.Generator().manual_seed(1)
    data = [
        (torch.randn(8, 4, generator=generator), torch.randint(0, 2, (8, 3), generator=generator).float())
        for _ in range(3)
    ]
    one.observe(*data[0])
    one.observe(*data[1])
    rows = one.memory.all()
    expected = foreseen_rise(model, nn.BCEWithLogitsLoss(reduction="none"), *data[2], rows.x, rows.y, lr=0.05)
    step = one.observe(*data[2])
    torch.testing.assert_close(step.interference, expected.sort(descending=True).values[:4], rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------------------------------------- other inputs


class Text(nn.Module):
    """Mean of word vectors, with a mask: token ids and a mask as keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(30, 16), nn.Linear(16, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        vectors = self.embedding(tokens) * mask[..., None]
        return self.head(vectors.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


class Pair(nn.Module):
    """Two inputs, as positional arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 2)

    def forward(self, image: Tensor, number: Tensor) -> Tensor:
        return self.head(torch.cat([image.flatten(1), number[:, None]], 1))


def texts(number: int) -> tuple[dict[str, Tensor], Tensor]:
    """Class 1 has the token 7 in it."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(8, 30, (10, 6), generator=generator)
    y = torch.randint(0, 2, (10,), generator=generator)
    tokens[y == 1, 2] = 7
    return {"tokens": tokens, "mask": torch.rand(10, 6, generator=generator).gt(0.1) | (tokens == 7)}, y


@pytest.mark.parametrize("retrieval", RETRIEVALS, ids=["mi1", "mi2", "optimizer"])
def test_token_ids_and_a_mask_by_name(retrieval: MostInterfered) -> None:
    torch.manual_seed(0)
    one = build(Text(), lr=1.0, retrieval=retrieval)
    for number in range(120):
        step = one.observe(*texts(number))
    assert step.replayed is not None
    assert step.replayed.x["tokens"].dtype == torch.int64
    assert step.interference is not None
    x, y = texts(999)
    assert (one.predict(x) == y).float().mean() >= 0.9


def test_a_tuple_of_inputs_is_scored_as_one() -> None:
    torch.manual_seed(0)
    model = Pair()
    one = build(model, retrieval=MostInterfered(None), budget=6)

    def pairs(number: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        generator = torch.Generator().manual_seed(number)
        x = (torch.randn(8, 2, 2, generator=generator), torch.randn(8, generator=generator))
        return x, torch.randint(0, 2, (8,), generator=generator)

    one.observe(*pairs(0))
    one.observe(*pairs(1))
    rows = one.memory.all()

    def loss(scores: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(scores, y, reduction="none")[:, None]

    expected = foreseen_rise(model, loss, *pairs(2), rows.x, rows.y, lr=0.05)
    step = one.observe(*pairs(2))
    torch.testing.assert_close(step.interference, expected.sort(descending=True).values[:6], rtol=1e-4, atol=1e-6)


def test_parts_of_different_length_are_refused() -> None:
    one = build(Pair())
    with pytest.raises(InvalidInput, match="the parts of x have different numbers of samples"):
        one.observe((torch.zeros(3, 2, 2), torch.zeros(2)), torch.zeros(3, dtype=torch.long))


# ------------------------------------------------------------------------------- schedules, clipping, devices


def data(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)


@pytest.mark.parametrize("retrieval", [MostInterfered(None), MostInterfered(None, virtual_step="optimizer")])
def test_a_schedule_steps_between_batches_and_the_look_ahead_follows(retrieval: MostInterfered) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    one = build(model, optimizer=optimizer, retrieval=retrieval, budget=6)

    def loss(scores: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(scores, y, reduction="none")[:, None]

    one.observe(*data(0))
    for number in range(1, 5):
        schedule.step()
        rate = 0.8 * 0.5**number
        rows = one.memory.all()
        expected = foreseen_rise(model, loss, *data(number), rows.x, rows.y, lr=rate)
        before = model.weight.detach().clone()
        step = one.observe(*data(number))
        torch.testing.assert_close(step.interference, expected.sort(descending=True).values[:6], rtol=1e-4, atol=1e-6)
        assert not torch.equal(model.weight, before)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_a_schedule_is_saved_with_the_optimiser() -> None:
    model = nn.Linear(4, 3)
    one = build(model, lr=0.8)
    schedule = torch.optim.lr_scheduler.StepLR(one.optimizer, 1, gamma=0.1)
    one.observe(*data(0))
    schedule.step()
    other = build(nn.Linear(4, 3), lr=0.8)
    other.load_state_dict(one.state_dict())
    assert other.optimizer.param_groups[0]["lr"] == pytest.approx(0.08)


@pytest.mark.parametrize("clip", [1e-3, 0.05, 1e6])
def test_clipping_bounds_the_step_as_torch_s_does(clip: float) -> None:
    torch.manual_seed(0)
    model, reference = nn.Linear(4, 3), nn.Linear(4, 3)
    reference.load_state_dict(model.state_dict())
    one = build(model, lr=1.0, clip=clip)
    x, y = data(0)
    one.observe(x, y)  # the first step recalls nothing
    nn.functional.cross_entropy(reference(x), y).backward()
    nn.utils.clip_grad_norm_(reference.parameters(), clip)
    torch.optim.SGD(reference.parameters(), lr=1.0).step()
    torch.testing.assert_close(model.weight, reference.weight)
    torch.testing.assert_close(model.bias, reference.bias)


def test_clipping_bounds_incoming_and_replayed_together() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    one = build(model, lr=1.0, clip=0.01, replay_weight=50.0)
    one.observe(*data(0))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    one.observe(*data(1))
    moved = torch.cat([(p - q).flatten() for p, q in zip(model.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_moving_to_where_it_is_changes_nothing() -> None:
    losses = []
    for moves in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        one = build(model, optimizer=torch.optim.Adam(model.parameters()))
        for number in range(4):
            if moves:
                assert one.to("cpu") is one
            losses.append(one.observe(*data(number)).incoming_loss)
    assert losses[:4] == losses[4:]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_learns_from_rows_on_the_cpu() -> None:
    model = nn.Linear(4, 3)
    one = build(model, optimizer=torch.optim.Adam(model.parameters()))
    one.observe(*data(0))
    one.to("cuda")
    assert one.optimizer.state[model.weight]["exp_avg"].device.type == "cuda"
    assert one.memory.all().x.device.type == "cpu"
    for number in range(1, 5):
        one.observe(*data(number))
    assert one.predict(data(0)[0]).device.type == "cuda"


# ---------------------------------------------------------------------------------------------------- imbalance


def test_a_rare_class_is_replayed_more_from_a_balanced_memory() -> None:
    """One row in fifty is of class 1, in the first half only."""

    def stream() -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        for number in range(120):
            y = (torch.rand(10, generator=generator) < (0.02 if number < 60 else 0)).long()
            yield torch.randn(10, 4, generator=generator) + 3 * y[:, None], y

    recall = {}
    for policy in (ReservoirMemory, ClassBalancedMemory):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        one = Replay(model, torch.optim.SGD(model.parameters(), lr=0.1), policy(40))
        for x, y in stream():
            one.observe(x, y)
        rare = torch.randn(200, 4, generator=torch.Generator().manual_seed(1)) + 3
        recall[policy] = (one.predict(rare) == 1).float().mean().item()
    assert recall[ClassBalancedMemory] > 0.9
    assert recall[ClassBalancedMemory] >= recall[ReservoirMemory]
