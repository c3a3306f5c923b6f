"""Finetune: plain steps on the incoming batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rehearse import Finetune
from rehearse.errors import InvalidInput
from rehearse.random import RandomState


@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize("width", [16, 96])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_finetune_is_a_plain_loop(updates: int, width: int, kind: Any) -> None:
    model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 96), nn.ReLU())
    model.append(nn.Linear(96, 4))
    twin = copy.deepcopy(model)
    learner = Finetune(model, kind(model.parameters(), lr=0.05), updates=updates, seed=5)
    optimizer, random = kind(twin.parameters(), lr=0.05), RandomState(5)
    generator = torch.Generator().manual_seed(0)
    for task in range(2):
        for _ in range(5):
            x, y = torch.randn(10, 8, generator=generator), torch.randint(0, 4, (10,), generator=generator)
            step = learner.observe(x, y, task)
            with random:
                for _ in range(updates):
                    optimizer.zero_grad()
                    loss = F.cross_entropy(twin(x), y)
                    loss.backward()
                    optimizer.step()
            assert step.incoming_loss == pytest.approx(loss.item(), rel=1e-3)
            assert (step.replayed, step.replayed_loss, step.interference) == (None, None, None)
    for (name, mine), theirs in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    assert learner.samples_observed == 100
    assert learner.forward_passes == updates


@pytest.mark.parametrize("updates", [0, -1, 1.0, True, None])
def test_invalid_updates(updates: Any) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(InvalidInput, match="updates"):
        Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1), updates=updates)
