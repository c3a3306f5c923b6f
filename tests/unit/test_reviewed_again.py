"""What a second reading and a first trial found: each stays mended."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import rehearse
from rehearse import Replay, ReservoirMemory, Uniform
from rehearse.batch import Batch
from rehearse.chain import chain_of
from rehearse.errors import CheckpointError, InvalidInput, InvalidType
from rehearse.learners import ICaRL
from rehearse.losses import CrossEntropy
from rehearse.memory import ExemplarMemory


def wide() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 3))


def replay(model: nn.Module, **options: Any) -> Replay:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return Replay(model, optimizer, ReservoirMemory(50), budget=5, **options)


def rows(n: int = 10, features: int = 200, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, features, generator=generator), torch.randint(0, 3, (n,), generator=generator)


# ------------------------------------------------------------------------------------------------ chains by hand


def test_a_chain_takes_its_inputs_in_a_tuple() -> None:
    learner, (x, y) = replay(wide()), rows()
    for _ in range(3):
        step = learner.observe((x,), y)
    assert step.recalled is not None


def test_a_chain_that_does_not_flatten_takes_rows_of_features_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    learner, (x, y) = replay(model), rows(features=4)
    for shape in ((10, 2, 2), (10, 1, 4)):
        with pytest.raises(InvalidInput):
            learner.observe(x.reshape(shape), y)
    learner.observe(x, y)


@pytest.mark.parametrize("name", ["0.weight", "0.bias"])
def test_a_hook_on_a_parameter_is_asked(name: str) -> None:
    model = wide()
    parameter = dict(model.named_parameters())[name]
    parameter.register_hook(torch.zeros_like)
    assert chain_of(model) is None
    before, learner = parameter.detach().clone(), replay(model)
    learner.observe(*rows())
    assert torch.equal(parameter, before)
    assert not torch.equal(dict(model.named_parameters())["2.weight"], wide()[2].weight)


def test_scoring_leaves_torchs_random_state_alone() -> None:
    def noisy(scores: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(scores + 0.01 * torch.randn_like(scores), y, reduction="none")

    learner, (x, y) = replay(wide(), loss=noisy), rows()
    with torch.enable_grad():
        gradient = learner._passed(Batch(x, y), recalled=False).gradient
    before = torch.get_rng_state()
    learner.lookahead.losses(Batch(x, y), gradient)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loss_may_write_into_the_scores() -> None:
    def halving(scores: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(scores.mul_(0.5), y, reduction="none")

    def half(scores: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(scores * 0.5, y, reduction="none")

    first, second = replay(wide(), loss=halving), replay(wide(), loss=half)
    for seed in range(4):
        one, other = first.observe(*rows(seed=seed)), second.observe(*rows(seed=seed))
        assert one.recalled_loss == pytest.approx(other.recalled_loss) if other.recalled_loss else True
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_losses_of_half_precision_are_judged_in_full() -> None:
    scores = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    batch = Batch(torch.zeros(6, 1), torch.tensor([0, 1, 2, 0, 1, 2]))
    losses, gradient = CrossEntropy().with_gradient(scores, batch, False)
    torch.testing.assert_close(losses, CrossEntropy()(scores, batch, False))
    assert losses.dtype == torch.float32
    assert gradient.dtype == torch.bfloat16


def test_somebody_who_watches_every_optimiser_sees_its_steps() -> None:
    seen = []
    handle = register_optimizer_step_post_hook(lambda *arguments: seen.append(1))
    try:
        replay(wide()).observe(*rows())
    finally:
        handle.remove()
    assert seen == [1]


# --------------------------------------------------------------------------------------------------- ids, exemplars


def icarl() -> ICaRL:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    return ICaRL(model, torch.optim.SGD(model.parameters(), lr=0.05), ExemplarMemory(20), keep="task")


def test_ids_that_the_caller_changes_afterwards_stay_what_they_were() -> None:
    learner, (x, y) = icarl(), rows(features=4)
    ids = torch.arange(10)
    learner.observe(x, y, task=0, id=ids)
    ids += 100
    assert learner.forget(ids=[0]) == 1
    learner.end_task()
    assert not any(torch.equal(row, x[0]) for row in learner.memory.all().x)


def test_forgetting_by_id_leaves_a_running_task_without_ids_alone() -> None:
    learner = icarl()
    learner.observe(*rows(features=4), task=0, id=torch.arange(10))
    learner.end_task()
    learner.observe(*rows(features=4, seed=1), task=1)
    held = learner.memory.all().columns["id"].tolist()
    removed = [name for name in held if 0 <= name < 10][:1]
    assert learner.forget(ids=removed) == 1
    learner.end_task()


def test_exemplars_are_chosen_from_rows_with_columns_of_another_method() -> None:
    learner, (x, y) = icarl(), rows(features=4)
    learner.remember([Batch(x, y, 0, columns={"logits": torch.zeros(10, 3)})])
    assert len(learner.memory)
    learner.observe(*rows(features=4, seed=1), task=1)
    learner.end_task()


def test_ids_of_another_shape_are_refused_before_anything_is_kept() -> None:
    memory, (x, y) = ReservoirMemory(50), rows(5, 4)
    memory.add(x, y)
    with pytest.raises(InvalidInput, match="one for each"):
        memory.add(x, y, id=torch.zeros(5, 2, dtype=torch.int64))
    assert (memory.seen, len(memory)) == (5, 5)


# ------------------------------------------------------------------------------------------------------ batch-norm


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(input=self.first(x)))
        return scores


def test_a_layer_may_be_called_by_keyword() -> None:
    learner = replay(ByKeyword(), batchnorm="published")
    for seed in range(3):
        learner.observe(*rows(features=4, seed=seed))
    assert learner.treatments()["clean"](rows(features=4)[0]).shape == (10,)


def test_with_one_memory_recalibrated_is_clean() -> None:
    def made(batchnorm: Any) -> Replay:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        return Replay(model, optimizer, ReservoirMemory(1), budget=1, batchnorm=batchnorm)

    published, recalibrated = made("published"), made("recalibrated")
    for seed in range(4):
        x, y = rows(features=4, seed=seed)
        for learner in (published, recalibrated):
            learner.observe(x.view(10, 1, 2, 2), y)
    x = rows(features=4)[0].view(10, 1, 2, 2)
    assert torch.equal(published.treatments()["recalibrated"](x), recalibrated.predict(x))


# ------------------------------------------------------------------------------------------------- a first trial


def test_a_state_of_another_optimiser_is_refused(tmp_path: Path) -> None:
    model = wide()
    adam = Replay(model, torch.optim.Adam(model.parameters()), ReservoirMemory(50))
    adam.observe(*rows())
    rehearse.save(adam, tmp_path / "file")
    for other in (torch.optim.SGD, torch.optim.AdamW):
        model = wide()
        into = Replay(model, other(model.parameters(), lr=0.5), ReservoirMemory(50))
        before = copy.deepcopy(into.state_dict()["optimizer"])
        with pytest.raises(CheckpointError, match="Adam"):
            rehearse.load(tmp_path / "file", into=into)
        assert into.state_dict()["optimizer"] == before


def test_saving_with_the_arguments_swapped_says_so(tmp_path: Path) -> None:
    swapped: Callable[..., None] = rehearse.save
    with pytest.raises(InvalidType, match="first argument is a"):
        swapped(tmp_path / "file", replay(wide()))


def test_outputs_and_targets_that_broadcast_are_refused() -> None:
    learner = replay(nn.Linear(200, 1), loss=lambda scores, y: (scores - y) ** 2)
    x, _ = rows()
    with pytest.raises(InvalidInput, match="squeeze"):
        learner.observe(x, torch.randn(10))
    learner.observe(x, torch.randn(10, 1))


def test_only_a_head_of_classes_grows() -> None:
    learner, (x, _) = replay(nn.Linear(200, 3), loss=nn.BCEWithLogitsLoss()), rows()
    learner.observe(x, torch.ones(10, 3))
    with pytest.raises(InvalidInput, match="head of classes"):
        learner.grow(4)
    learner.observe(x, torch.ones(10, 3))


def test_memories_are_grouped_by_what_is_known_of_them() -> None:
    learner = replay(wide(), retrieval=Uniform())
    for seed in range(2):
        learner.observe(*rows(seed=seed), task=seed)
    diagnosis: Any = learner.diagnose(*rows(seed=5))
    with pytest.raises(InvalidInput, match="'class' or 'task'"):
        diagnosis.by("id")
