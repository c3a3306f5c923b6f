"""A-GEM against a literal loop over copies; what is shared with GEM."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tasks_by_hand import flat_gradient, net, stream, take_step

from rehearse.errors import InvalidInput, InvalidType
from rehearse.learners import AGEM, GEM
from rehearse.memory import ReservoirMemory, TaskRingMemory
from sameness import assert_same, frozen


def test_agem_is_the_literal_algorithm() -> None:
    model, literal = net(), net()
    learner = AGEM(model, torch.optim.SGD(model.parameters(), lr=0.5), TaskRingMemory(30, tasks=3), budget=7)
    projected = 0
    for x, y, task in stream():
        result = learner.observe(x, y, task)
        g = flat_gradient(literal, x, y)
        if result.replayed is not None:
            assert len(result.replayed) == 7
            assert task not in result.replayed.task.tolist()
            r = flat_gradient(literal, result.replayed.x, result.replayed.y)
            if g @ r < 0:
                g = g - (g @ r) / (r @ r) * r
                projected += 1
        take_step(literal, g, 0.5)
    assert projected > 3
    for ours, theirs in zip(model.parameters(), literal.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [GEM, AGEM])
def test_gem_and_agem_resume_bit_for_bit(kind: Any) -> None:
    def fresh() -> Any:
        model = net()
        return kind(model, torch.optim.SGD(model.parameters(), lr=0.3), TaskRingMemory(12), updates=2, seed=5)

    batches = stream()
    whole, first = fresh(), fresh()
    for batch in batches:
        whole.observe(*batch)
    for batch in batches[:9]:
        first.observe(*batch)
    second = fresh()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for batch in batches[9:]:
        second.observe(*batch)
    assert_same(second.state_dict(), whole.state_dict())


@pytest.mark.parametrize("kind", [GEM, AGEM])
def test_invalid_batches_change_nothing(kind: Any) -> None:
    model = net()
    learner = kind(model, torch.optim.SGD(model.parameters(), lr=0.1), TaskRingMemory(2))
    for task in (0, 1):
        learner.observe(torch.ones(3, 4), torch.tensor([0, 1, 2]), task)
    before = frozen(learner.state_dict())
    with pytest.raises(InvalidInput, match="needs to know the task"):
        learner.observe(torch.ones(3, 4), torch.tensor([0, 1, 2]))
    with pytest.raises(InvalidInput, match="too few for 3 tasks"):
        learner.observe(torch.ones(3, 4), torch.tensor([0, 1, 2]), 2)
    with pytest.raises(InvalidInput, match="outside the model's 3 outputs"):
        learner.observe(torch.ones(3, 4), torch.tensor([0, 1, 3]), 1)
    assert_same(learner.state_dict(), before)
    with pytest.raises(InvalidType, match="TaskRingMemory"):
        kind(model, torch.optim.SGD(model.parameters(), lr=0.1), ReservoirMemory(5))
