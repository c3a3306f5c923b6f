"""Arguments of learners, memories and retrievals: invalid values are refused at once, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rehearse import Finetune, Learner, MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.errors import InvalidInput, InvalidType, RehearseError
from rehearse.lab.draws import Draws
from rehearse.learners import AGEM, GEM, ICaRL, LatentRetrieval
from rehearse.memory import ExemplarMemory, TaskRingMemory
from sameness import assert_same, frozen


def parts(model: nn.Module | None = None) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = model or nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


BUILDERS: dict[str, Callable[..., Any]] = {
    "replay": lambda **options: Replay(*parts(), ReservoirMemory(9), **options),
    "finetune": lambda **options: Finetune(*parts(), **options),
    "gem": lambda **options: GEM(*parts(), TaskRingMemory(9), **options),
    "agem": lambda **options: AGEM(*parts(), TaskRingMemory(9), **options),
    "icarl": lambda **options: ICaRL(*parts(), ExemplarMemory(9), **options),
    "search": lambda **options: LatentRetrieval(**options),
    "draws": lambda **options: Draws(**{"retrieval": Uniform(), **options}),
    "memory": lambda **options: ReservoirMemory(9, **options),
}
NUMBERS: list[Any] = ["1", [], {}, 1j, True, -1, float("nan")]
OPTIONS = [
    *(("replay", name) for name in ("budget", "updates", "replay_weight", "clip")),
    *((learner, name) for learner in ("finetune", "gem", "agem", "icarl") for name in ("updates", "clip")),
    ("gem", "margin"),
    ("agem", "budget"),
    ("icarl", "budget"),
    ("search", "rate"),
    ("draws", "draws"),
]


@pytest.mark.parametrize(("kind", "name"), OPTIONS, ids=lambda value: str(value))
@pytest.mark.parametrize("value", NUMBERS, ids=repr)
def test_what_is_no_number_is_refused_by_name(kind: str, name: str, value: Any) -> None:
    with pytest.raises(RehearseError, match=name):
        BUILDERS[kind](**{name: value})


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        ("replay", "prepare", ["x", 1.5, True]),
        ("finetune", "prepare", ["x", 1.5, True]),
        ("draws", "retrieval", ["uniform", Uniform, None]),
        ("memory", "path", [3, [], True]),
    ],
)
def test_things_of_another_kind_are_refused_by_name(kind: str, name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidType, match=name):
            BUILDERS[kind](**{name: value})


def test_of_a_class_it_is_said_to_construct_it() -> None:
    model, optimizer = parts()
    with pytest.raises(
        InvalidType, match=r"this is the class SGD: construct it, SGD\(model\.parameters\(\), \.\.\.\)$"
    ):
        Finetune(model, torch.optim.SGD)  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=r"this is the class Linear: construct it, Linear\(\.\.\.\)$"):
        Finetune(nn.Linear, optimizer)  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=r"one of torch\.optim, this is str$"):
        Finetune(model, "sgd")  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    learner = Replay(
        *parts(), ReservoirMemory(9), budget=np.int64(3), replay_weight=np.float32(0.5), clip=np.float64(1.0)
    )
    for task in range(2):
        step = learner.observe(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), task)
    assert step.replayed is not None
    assert len(step.replayed) == 3


# --------------------------------------------------------------------------------------------- what a model gives


class Gives(nn.Module):
    """Whatever is asked for, of the right scores."""

    def __init__(self, what: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.what = nn.Linear(3, 2), what

    def forward(self, x: Tensor) -> Any:
        return self.what(self.layer(x))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda scores: scores.mean(), r"shape \(\) for 4 samples"),
        (lambda scores: scores.t(), r"shape \(2, 4\) for 4 samples"),
        (lambda scores: scores[:-1], r"shape \(3, 2\) for 4 samples"),
        (lambda scores: scores.mean(0, keepdim=True), r"shape \(1, 2\) for 4 samples"),
        (lambda scores: (scores, None), "one tensor"),
        (lambda scores: None, "one tensor"),
    ],
)
@pytest.mark.parametrize("kind", ["replay", "finetune", "regression"])
def test_an_output_that_is_not_one_entry_per_sample_is_refused(what: Any, words: str, kind: str) -> None:
    model, optimizer = parts(Gives(what))
    learner: Learner = Finetune(model, optimizer)
    if kind != "finetune":
        learner = Replay(model, optimizer, ReservoirMemory(9), loss=nn.MSELoss() if kind == "regression" else None)
    x, y = torch.randn(4, 3), torch.randn(4, 2) if kind == "regression" else torch.tensor([0, 1, 0, 1])
    before = frozen(learner.state_dict())
    for call in (lambda: learner.observe(x, y), lambda: learner.predict(x)):
        with pytest.raises(RehearseError, match=words):
            call()
    if kind != "finetune":
        with pytest.raises(RehearseError, match=words):
            learner.remember([(x, y)])
    assert_same(learner.state_dict(), before)


# --------------------------------------------------------------------------------- lone samples and batch-norm


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_one_replayed_sample_is_too_few_for_batch_norm_over_samples() -> None:
    with pytest.raises(InvalidInput, match="at least 2"):
        Replay(*parts(normed()), ReservoirMemory(9), budget=1)
    with pytest.raises(InvalidInput, match="at least 2"):
        AGEM(*parts(normed()), TaskRingMemory(9), budget=1)


def test_fewer_candidates_than_the_budget_are_refused() -> None:
    with pytest.raises(InvalidInput, match="5 candidates are fewer than the 20 samples to retrieve"):
        Replay(*parts(), ReservoirMemory(50), MostInterfered(5), budget=20)
    Replay(*parts(), ReservoirMemory(50), MostInterfered(20), budget=20)
    Replay(*parts(), ReservoirMemory(50), MostInterfered(None), budget=20)


def test_one_replayed_sample_is_enough_where_nothing_needs_its_variance() -> None:
    frozen_norm = normed()
    frozen_norm[1].eval()  # type: ignore[index, union-attr]
    learners: list[Replay] = [
        Replay(*parts(normed()), ReservoirMemory(9), budget=1, batchnorm="joint"),
        Replay(*parts(frozen_norm), ReservoirMemory(9), budget=1),
        Replay(*parts(), ReservoirMemory(9), MostInterfered(3), budget=1),
    ]
    for learner in learners:
        steps = [learner.observe(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), task) for task in range(3)]
        assert [step.replayed is None for step in steps] == [True, False, False]


@pytest.mark.parametrize("kind", [GEM, AGEM])
def test_a_lone_sample_of_the_past_waits_for_a_second(kind: Any) -> None:
    learner = kind(*parts(normed()), TaskRingMemory(3))  # room for one sample of each of three tasks
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    steps = [learner.observe(x, y, task) for task in (0, 1, 2)]
    assert [step.replayed is None for step in steps] == ([True, False, False] if kind is AGEM else [True, False, True])
    assert all((step.replayed is None) == (step.replayed_loss is None) for step in steps)
