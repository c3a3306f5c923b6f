"""Replay in less usual settings: models, losses, optimizers and batch-norm layers of many kinds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from rehearse import MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.errors import InvalidInput, InvalidType
from rehearse.lab.batchnorm import Published
from rehearse.lab.draws import Draws
from rehearse.lab.predictors import alternative_predictors
from rehearse.losses import DarkExperience


def wide() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 3))


def replay(model: nn.Module, **options: Any) -> Replay:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return Replay(model, optimizer, ReservoirMemory(50), budget=5, **options)


def samples(n: int = 10, features: int = 200, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, features, generator=generator), torch.randint(0, 3, (n,), generator=generator)


class Viewing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8 * 36, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.convolution(x).relu()
        logits: Tensor = self.head(features.view(features.size(0), -1))
        return logits


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
    with learner.network.looking("evaluation"):
        statistics = learner._substitutes()
    assert "0.running_mean" not in statistics
    assert not torch.equal(statistics["2.running_mean"], model[2].running_mean)


def test_the_look_ahead_of_the_optimizer_is_clipped() -> None:
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    learner = Replay(model, optimizer, ReservoirMemory(20), MostInterfered(virtual_step="optimizer"), clip=0.01)
    before = model.weight.detach().clone()
    x, y = torch.rand(6, 5), torch.randint(0, 3, (6,))
    loss = nn.functional.cross_entropy(model(x), y)
    ahead = learner.network.look_ahead(learner.network.gradient(loss), "optimizer")["weight"]
    learner.observe(x, y)  # nothing to replay yet: the step is the incoming batch's own
    assert not torch.equal(model.weight, before)
    torch.testing.assert_close(ahead, model.weight.detach())


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.register_buffer("passes", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.passes, Tensor)
        if self.training:
            self.passes.add_(1)
        logits: Tensor = self.head(x) * (1 + self.passes)
        return logits


def test_buffers_that_torch_does_not_save_are_saved() -> None:
    def make() -> Replay:
        model = Counting()
        return Replay(model, torch.optim.SGD(model.parameters(), 0.01), ReservoirMemory(8), Uniform())

    learner, other = make(), make()
    for _ in range(3):
        learner.observe(torch.rand(4, 4), torch.randint(0, 2, (4,)))
    other.load_state_dict(learner.state_dict())
    x = torch.rand(3, 4)
    assert torch.equal(learner.logits(x), other.logits(x))


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
    assert step.replayed is not None
    assert "draw" not in step.replayed.columns
    three.observe(x, y)
    with pytest.raises(InvalidInput, match="two draws"):
        three.observe(x, y)


def test_a_chain_takes_its_inputs_in_a_tuple() -> None:
    learner, (x, y) = replay(wide()), samples()
    for _ in range(3):
        step = learner.observe((x,), y)
    assert step.replayed is not None


def test_a_chain_that_does_not_flatten_takes_flat_samples_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    learner, (x, y) = replay(model), samples(features=4)
    for shape in ((10, 2, 2), (10, 1, 4)):
        with pytest.raises(InvalidInput):
            learner.observe(x.reshape(shape), y)
    learner.observe(x, y)


def test_a_loss_may_write_into_the_logits() -> None:
    def halving(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits.mul_(0.5), y, reduction="none")

    def half(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits * 0.5, y, reduction="none")

    first, second = replay(wide(), loss=halving), replay(wide(), loss=half)
    for seed in range(4):
        one, other = first.observe(*samples(seed=seed)), second.observe(*samples(seed=seed))
        assert one.replayed_loss == pytest.approx(other.replayed_loss) if other.replayed_loss else True
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_global_optimizer_hook_sees_the_steps() -> None:
    seen = []
    handle = register_optimizer_step_post_hook(lambda *arguments: seen.append(1))
    try:
        replay(wide()).observe(*samples())
    finally:
        handle.remove()
    assert seen == [1]


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(input=self.first(x)))
        return logits


def test_a_layer_may_be_called_by_keyword() -> None:
    learner = replay(ByKeyword(), batchnorm=Published())
    for seed in range(3):
        learner.observe(*samples(features=4, seed=seed))
    assert alternative_predictors(learner)["clean"](samples(features=4)[0]).shape == (10,)


def test_with_one_stored_sample_recalibrated_is_clean() -> None:
    def made(batchnorm: Any) -> Replay:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        return Replay(model, optimizer, ReservoirMemory(1), budget=1, batchnorm=batchnorm)

    published, recalibrated = made(Published()), made("recalibrated")
    for seed in range(4):
        x, y = samples(features=4, seed=seed)
        for learner in (published, recalibrated):
            learner.observe(x.view(10, 1, 2, 2), y)
    x = samples(features=4)[0].view(10, 1, 2, 2)
    assert torch.equal(alternative_predictors(published)["recalibrated"](x), recalibrated.predict(x))


def test_outputs_and_targets_that_broadcast_are_refused() -> None:
    learner = replay(nn.Linear(200, 1), loss=lambda logits, y: (logits - y) ** 2)
    x, _ = samples()
    with pytest.raises(InvalidInput, match="squeeze"):
        learner.observe(x, torch.randn(10))
    learner.observe(x, torch.randn(10, 1))


def test_only_a_head_of_classes_grows() -> None:
    learner, (x, _) = replay(nn.Linear(200, 3), loss=nn.BCEWithLogitsLoss()), samples()
    learner.observe(x, torch.ones(10, 3))
    with pytest.raises(InvalidInput, match="head of classes"):
        learner.grow(4)
    learner.observe(x, torch.ones(10, 3))


def test_stored_samples_are_grouped_by_what_is_known_of_them() -> None:
    learner = replay(wide(), retrieval=Uniform())
    for seed in range(2):
        learner.observe(*samples(seed=seed), task=seed)
    diagnosis: Any = learner.diagnose(*samples(seed=5))
    with pytest.raises(InvalidInput, match="one of class, task"):
        diagnosis.by("id")
