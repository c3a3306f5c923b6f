"""Defects that a strict reading found, each held down by a test."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rehearse
from rehearse import MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.errors import InvalidInput, InvalidType
from rehearse.losses import DarkExperience
from rehearse.retrieval import Draws


def test_inputs_by_name_are_kept_by_name() -> None:
    memory = ReservoirMemory(4)
    zeros, ones = torch.zeros(2, 3), torch.ones(2, 3)
    memory.add({"a": zeros, "b": ones}, torch.zeros(2))
    memory.add({"b": ones, "a": zeros}, torch.zeros(2))
    held = memory.all()
    assert held.x["a"].sum() == 0
    assert held.x["b"].sum() == 12


class Viewing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8 * 36, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.convolution(x).relu()
        scores: Tensor = self.head(features.view(features.size(0), -1))
        return scores


def test_a_convolutional_model_that_views_its_activations_works() -> None:
    model = Viewing()
    learner = Replay(model, torch.optim.SGD(model.parameters(), 0.1), ReservoirMemory(20))
    for _ in range(3):
        learner.observe(torch.rand(4, 3, 8, 8), torch.randint(0, 4, (4,)))
    assert learner.predict(torch.rand(4, 3, 8, 8)).shape == (4,)


def test_recalibration_leaves_frozen_batch_norm_alone() -> None:
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    frozen = model[0].eval()
    frozen.running_mean.fill_(5.0)  # type: ignore[union-attr]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    learner = Replay(model, optimizer, ReservoirMemory(20), Uniform(), batchnorm="recalibrated")
    for _ in range(3):
        learner.observe(torch.rand(5, 6), torch.randint(0, 3, (5,)))
    statistics = learner.recalibrated_statistics()
    assert torch.equal(statistics["0.running_mean"], torch.full((6,), 5.0))
    assert not torch.equal(statistics["2.running_mean"], model[2].running_mean)


def test_the_real_step_is_foreseen_with_its_clipping() -> None:
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    learner = Replay(model, optimizer, ReservoirMemory(20), MostInterfered(virtual_step="optimizer"), clip=0.01)
    before = model.weight.detach().clone()
    x, y = torch.rand(6, 5), torch.randint(0, 3, (6,))
    loss = nn.functional.cross_entropy(model(x), y)
    gradient = dict(zip(["weight", "bias"], torch.autograd.grad(loss, [model.weight, model.bias]), strict=True))
    foreseen = learner.lookahead.foresee(gradient)["weight"]
    learner.observe(x, y)  # nothing to recall yet: the step is the incoming batch's own
    assert not torch.equal(model.weight, before)
    torch.testing.assert_close(foreseen, model.weight.detach())


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.register_buffer("passes", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.passes, Tensor)
        if self.training:
            self.passes.add_(1)
        scores: Tensor = self.head(x) * (1 + self.passes)
        return scores


def test_buffers_that_torch_does_not_save_are_saved() -> None:
    def make() -> Replay:
        model = Counting()
        return Replay(model, torch.optim.SGD(model.parameters(), 0.01), ReservoirMemory(8), Uniform())

    learner, other = make(), make()
    for _ in range(3):
        learner.observe(torch.rand(4, 4), torch.randint(0, 2, (4,)))
    other.load_state_dict(learner.state_dict())
    x = torch.rand(3, 4)
    assert torch.equal(learner.scores(x), other.scores(x))


def test_files_are_as_readable_as_any_and_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    learner = Replay(model, torch.optim.SGD(model.parameters(), np.float64(0.1)), ReservoirMemory(8))
    learner.observe(torch.rand(4, 4), torch.randint(0, 2, (4,)))
    mask = os.umask(0o022)
    try:
        rehearse.save(learner, tmp_path / "saved")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "saved").stat().st_mode) == 0o644
    rehearse.load(tmp_path / "saved", into=learner)


def test_tasks_to_leave_out_may_be_a_list() -> None:
    memory = ReservoirMemory(9)
    for task in range(3):
        memory.add(torch.rand(3, 2), torch.zeros(3), task=task)
    assert set(memory.sample(9, exclude_task=[0, 1]).task.tolist()) == {2}  # type: ignore[arg-type, union-attr]


def test_a_retrieval_is_an_object_not_a_class() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(InvalidType, match="MostInterfered"):
        Replay(model, torch.optim.SGD(model.parameters(), 0.1), ReservoirMemory(8), MostInterfered)  # type: ignore[arg-type]


def test_one_draw_is_the_retrieval_itself_and_three_are_refused() -> None:
    def learner(draws: int) -> Replay:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return Replay(model, optimizer, ReservoirMemory(20), Draws(Uniform(), draws), loss=DarkExperience())

    x, y = torch.rand(4, 4), torch.randint(0, 2, (4,))
    one, three = learner(1), learner(3)
    one.observe(x, y)
    step = one.observe(x, y)
    assert step.recalled is not None
    assert "draw" not in step.recalled.columns
    three.observe(x, y)
    with pytest.raises(InvalidInput, match="two draws"):
        three.observe(x, y)
