"""GEM: the projection against brute force, the learner against a literal loop over copies."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks_by_hand import Vector, flat_gradient, net, stream, take_step
from torch import Tensor

from rehearse.errors import InvalidInput
from rehearse.learners import GEM
from rehearse.learners.gem import project
from rehearse.memory import TaskRingMemory
from rehearse.nets import ReducedResNet18


def brute_force(g: Vector, past: Vector, margin: float) -> Vector:
    """The shortest g + Gᵀv over v ≥ margin, in exact arithmetic.

    Every choice of independent rows whose multipliers stand above the margin is tried; one of them is the solution.
    """
    if (past @ g >= 0).all():
        return g
    exact_g, rows = [Fraction(x) for x in g], [[Fraction(x) for x in row] for row in past]
    start = [x + Fraction(margin) * sum(column) for x, column in zip(exact_g, zip(*rows, strict=True), strict=True)]
    steps = [start]
    for n in range(1, len(rows) + 1):
        for free in itertools.combinations(rows, n):
            u = solved([[inner(one, other) for other in free] for one in free], [-inner(row, start) for row in free])
            if u is not None and min(u) >= 0:
                steps.append([x + inner(u, column) for x, column in zip(start, zip(*free, strict=True), strict=True)])
    return np.array([float(x) for x in min(steps, key=lambda step: inner(step, step))])


def inner(one: Sequence[Fraction], other: Sequence[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(one, other, strict=True)), Fraction(0))


def solved(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction] | None:
    """The solution of a linear system by Gauss and Jordan; None where it is singular."""
    table = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for k in range(len(table)):
        pivot = next((row for row in table[k:] if row[k] != 0), None)
        if pivot is None:
            return None
        table.remove(pivot)
        table.insert(k, [x / pivot[k] for x in pivot])
        for i, row in enumerate(table):
            if i != k:
                table[i] = [x - row[k] * y for x, y in zip(row, table[k], strict=True)]
    return [row[-1] for row in table]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Vector, Vector, float]:
    """Gradients of a few tasks, many of them zero, parallel, opposed or nearly dependent, at every size.

    Whole numbers times powers of two: inner products are exact, and zero where they should be. With a margin the step
    jumps where one changes its sign.
    """
    size = draw(st.integers(1, 6))
    vector = st.lists(st.integers(-3, 3), min_size=size, max_size=size)
    rows = [np.array(draw(vector), dtype=float) for _ in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(0, 2))):
        near = draw(st.sampled_from([0.0, 2.0**-7, 2.0**-14, 2.0**-20]))
        rows.append(draw(st.sampled_from([1.0, -1.0, 2.0])) * rows[0] + near * np.array(draw(vector)))
    scale = 2.0 ** draw(st.integers(-20, 10))
    return scale * np.array(draw(vector), dtype=float), scale * np.array(rows), draw(st.sampled_from([0.0, 0.5]))


@settings(max_examples=400, deadline=None)
@given(problems())
def test_the_step_matches_brute_force(problem: tuple[Any, Any, float]) -> None:
    g, past, margin = problem
    step = project(torch.from_numpy(g), torch.from_numpy(past), margin).numpy()
    size = np.linalg.norm(g) + np.linalg.norm(past, axis=1).sum() + 1e-300
    assert np.linalg.norm(step - brute_force(g, past, margin)) <= 1e-6 * size
    lengths = np.linalg.norm(past, axis=1) + 1e-300
    assert (past @ step >= -1e-7 * size * lengths).all()


def test_projections_by_hand() -> None:
    g, past = torch.tensor([1.0, 0.0]).double(), torch.tensor([[-1.0, 1.0]]).double()
    # Without a margin the part of g along g_1 goes: g − (⟨g, g_1⟩ / 2) g_1.
    assert project(g, past, 0.0).tolist() == pytest.approx([0.5, 0.5])
    # v = 0.5 is what the condition asks for, so a margin of 0.5 changes nothing, and a margin of 2 is the step.
    assert project(g, past, 0.5).tolist() == pytest.approx([0.5, 0.5])
    assert project(g, past, 2.0).tolist() == pytest.approx([-1.0, 2.0])


def test_nothing_changes_if_no_past_loss_rises() -> None:
    g, past = torch.tensor([1.0, 2.0]).double(), torch.tensor([[1.0, 0.0], [0.0, 0.0], [2.0, -1.0]]).double()
    assert project(g, past, 0.5) is g


@pytest.mark.parametrize("near", [10.0**-power for power in range(1, 17)])
def test_opposed_gradients_at_any_distance_from_dependence_give_a_finite_step_no_longer_than_the_start(
    near: float,
) -> None:
    chance = torch.Generator().manual_seed(0)
    direction = torch.randn(50, generator=chance).double()
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]).double()
    past = signs[:, None] * direction + near * torch.randn(5, 50, generator=chance).double()
    g = torch.randn(50, generator=chance).double()
    step = project(g, past, 0.0)
    assert step.isfinite().all()
    assert step.norm() <= g.norm() * (1 + 1e-6)


def test_a_projection_that_does_not_converge_is_our_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nnls(*_: Any, **__: Any) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr("scipy.optimize.nnls", nnls)
    with pytest.raises(InvalidInput, match=r"no past task's loss: Maximum number of iterations"):
        project(torch.tensor([-1.0, 1.0]).double(), torch.eye(2).double())


# ------------------------------------------------------------------------------------------------------- learners


def test_gem_is_the_literal_algorithm() -> None:
    model, literal = net(), net()
    learner = GEM(model, torch.optim.SGD(model.parameters(), lr=0.5), TaskRingMemory(30, tasks=3), margin=0.5)
    rings: dict[int, list[tuple[Tensor, Tensor]]] = {}
    projected = 0
    for x, y, task in stream():
        result = learner.observe(x, y, task)
        g = flat_gradient(literal, x, y)
        past = [
            flat_gradient(literal, torch.stack([row for row, _ in ring]), torch.stack([label for _, label in ring]))
            for other, ring in rings.items()
            if other != task
        ]
        step = brute_force(g, np.array(past), 0.5) if past else g
        projected += step is not g
        take_step(literal, step, 0.5)
        rings[task] = (rings.get(task, []) + list(zip(x, y, strict=True)))[-10:]
        assert (result.replayed is None) == (task == 0)
    assert projected > 3
    for ours, theirs in zip(model.parameters(), literal.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    held = {(task, tuple(x.tolist())) for task, x in zip(learner.memory.all().task.tolist(), learner.memory.all().x)}
    assert held == {(task, tuple(x.tolist())) for task, ring in rings.items() for x, _ in ring}


def test_invalid_margins() -> None:
    model = net()
    for margin in (-0.1, float("nan"), "half", True):
        with pytest.raises(InvalidInput, match="margin"):
            GEM(model, torch.optim.SGD(model.parameters(), lr=0.1), TaskRingMemory(5), margin=margin)


def test_gem_steps_the_resnet() -> None:
    torch.manual_seed(0)
    model = ReducedResNet18()
    learner = GEM(model, torch.optim.SGD(model.parameters(), lr=0.1), TaskRingMemory(20, tasks=5))
    chance = torch.Generator().manual_seed(2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for task in (0, 0, 1, 1, 2):
        x = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=chance)
        step = learner.observe(x, torch.randint(2 * task, 2 * task + 2, (4,), generator=chance), task)
    assert step.replayed is not None
    assert sorted(set(step.replayed.task.tolist())) == [0, 1]
    assert all(not torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
    assert learner.predict_proba(x).sum(1).tolist() == pytest.approx([1.0] * 4, abs=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16-scoring", "bfloat16"])
def test_past_tasks_pass_in_the_precision_of_scoring_and_the_incoming_batch_in_that_of_training(precision: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 3))
    learner = GEM(model, torch.optim.SGD(model.parameters(), lr=0.1), TaskRingMemory(12, tasks=3), precision=precision)
    passed = learner.network.precision
    chance = torch.Generator().manual_seed(1)
    batches = [(torch.rand(6, 1, 6, 6, generator=chance), torch.tensor([0, 1, 2] * 2), task) for task in range(3)]
    for x, y, task in batches[:2]:
        learner.observe(x, y, task)
    past = learner.memory.all(exclude_task=1)
    full = learner.plain.gradient(past, replayed=True).gradient
    found = learner.plain.gradient(past, replayed=True, dtype=passed.scoring).gradient
    dtypes: list[tuple[int, torch.dtype]] = []
    wanted = torch.cat([value.flatten() for value in full.values()])
    close = torch.cat([found[name].flatten() for name in full])
    assert found.keys() == full.keys()
    assert torch.nn.functional.cosine_similarity(wanted, close, 0) > 0.999
    assert torch.equal(wanted, close) == (passed.training == passed.scoring)
    for module in (model, learner.network._trained.module if learner.network._trained else model):
        module[0].register_forward_hook(lambda _, x, y: dtypes.append((len(x[0]), y.dtype)))
    learner.observe(*batches[2])
    assert set(dtypes) == {(6, passed.training), (4, passed.scoring)}
