"""Growing heads: what was learned stays bit for bit, and everything that depends on the head grows with it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rehearse
from rehearse import Finetune, MostInterfered, Replay, ReservoirMemory
from rehearse.errors import CheckpointError, InvalidInput
from rehearse.heads import find_head, growth
from rehearse.losses import DarkExperience
from rehearse.undo import run
from sameness import assert_same, frozen

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "adadelta": torch.optim.Adadelta,
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


def network(bias: bool = True, outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs, bias=bias))


def learner(make: str = "momentum", model: nn.Module | None = None, **options: Any) -> Replay:
    model = model or network()
    return Replay(model, OPTIMIZERS[make](model.parameters()), ReservoirMemory(30), **options)


def batch(number: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(6, 4, generator=generator), torch.randint(0, classes, (6,), generator=generator)


@pytest.mark.parametrize("bias", [True, False])
def test_old_outputs_stay_bit_for_bit_and_new_ones_are_small(bias: bool) -> None:
    one = learner(model=network(bias))
    for number in range(4):
        one.observe(*batch(number))
    x = batch(9)[0]
    old = [parameter.detach().clone() for parameter in find_head(one.model)[1].parameters()]
    before, places = one.logits(x), [[id(p) for p in group["params"]] for group in one.optimizer.param_groups]
    assert one.grow(7) == 4
    after = one.logits(x)
    assert after.shape == (6, 7)
    _, head = find_head(one.model)
    for parameter, kept in zip(head.parameters(), old, strict=True):
        assert torch.equal(parameter[:3], kept)
    torch.testing.assert_close(after[:, :3], before)  # a product with more columns may round another way
    assert head.out_features == 7
    bound = 1 / 6**0.5
    new = [parameter[3:] for parameter in head.parameters()]
    assert all(part.abs().max() <= bound and part.std() > 0 for part in new)
    assert [[id(p) for p in group["params"]] for group in one.optimizer.param_groups] == places


def test_growing_to_the_present_size_changes_nothing() -> None:
    one = learner()
    one.observe(*batch(0))
    before = frozen(one.state_dict())
    assert one.grow(3) == 0
    after = one.state_dict()
    assert_same({**after, "random": None}, {**before, "random": None})


@pytest.mark.parametrize("classes", [2, 0, -1, True, 3.5, "5", None])
def test_invalid_numbers_of_outputs(classes: Any) -> None:
    one = learner()
    before = frozen(one.state_dict())
    with pytest.raises(InvalidInput, match="cannot be grown"):
        one.grow(classes)
    assert_same(one.state_dict(), before)


def test_new_outputs_come_from_the_learners_own_random_numbers() -> None:
    weights = []
    for outer in (1, 2):
        one = learner(seed=5)
        torch.manual_seed(outer)
        before = torch.get_rng_state()
        one.grow(6)
        assert torch.equal(torch.get_rng_state(), before)
        weights.append(find_head(one.model)[1].weight.detach().clone())
    assert torch.equal(*weights)
    other = learner(seed=6)
    other.grow(6)
    assert not torch.equal(find_head(other.model)[1].weight, weights[0])


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_optimizer_state_continues_for_old_outputs_and_starts_fresh_for_new_ones(make: str) -> None:
    """Against a head that had all outputs from the start, whose extra rows never had a gradient.

    For the comparison the new rows are given the same weights, and every step the same gradient.
    """

    def step(layer: nn.Linear, optimizer: torch.optim.Optimizer, number: int, rows: int) -> None:
        generator = torch.Generator().manual_seed(number)
        layer.weight.grad, layer.bias.grad = torch.zeros_like(layer.weight), torch.zeros_like(layer.bias)
        layer.weight.grad[:rows] = torch.randn(5, 6, generator=generator)[:rows]
        layer.bias.grad[:rows] = torch.randn(5, generator=generator)[:rows]
        optimizer.step()

    torch.manual_seed(0)
    wide, small = nn.Linear(6, 5), nn.Linear(6, 3)
    with torch.no_grad():
        small.weight.copy_(wide.weight[:3])
        small.bias.copy_(wide.bias[:3])
    wide_optimizer, optimizer = OPTIMIZERS[make](wide.parameters()), OPTIMIZERS[make](small.parameters())
    for number in range(3):
        step(wide, wide_optimizer, number, 3)
        step(small, optimizer, number, 3)
    run(growth(small, optimizer, 5).operations)
    with torch.no_grad():
        small.weight[3:] = wide.weight[3:]
        small.bias[3:] = wide.bias[3:]
    for number in range(3, 6):
        step(wide, wide_optimizer, number, 5)
        step(small, optimizer, number, 5)
    # Adafactor's column statistics are means over rows, and so differ by their number; Rprop's new rows start at lr.
    tolerance = {"adafactor": 0.05}.get(make, 1e-6)
    torch.testing.assert_close(small.weight, wide.weight, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(small.bias, wide.bias, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_new_classes_are_learned(make: str) -> None:
    one = learner(make)
    for number in range(4):
        one.observe(*batch(number))
    with pytest.raises(InvalidInput, match="grow the head"):
        one.observe(batch(0)[0], torch.tensor([0, 1, 2, 3, 4, 5]))
    one.grow(6)
    for number in range(4, 10):
        step = one.observe(*batch(number, classes=6))
    assert step.replayed is not None
    assert one.predict(batch(0)[0]).shape == (6,)


def test_a_module_called_head_is_the_head_and_groups_keep_their_order() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(6, 3), nn.Linear(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).relu())

    net = Net()
    optimizer = torch.optim.SGD(
        [{"params": net.head.parameters(), "lr": 0.5}, {"params": net.body.parameters()}], lr=0.1, momentum=0.9
    )
    one = Replay(net, optimizer, ReservoirMemory(20))
    for number in range(3):
        one.observe(*batch(number))
    body = copy.deepcopy(net.body.state_dict())
    one.grow(5)
    assert_same(dict(net.body.state_dict()), dict(body))
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]
    assert optimizer.param_groups[0]["params"][0] is net.head.weight
    assert optimizer.state[net.head.weight]["momentum_buffer"].shape == (5, 6)
    one.observe(*batch(5, classes=5))


def test_a_frozen_head_stays_frozen() -> None:
    model = network()
    model[2].requires_grad_(False)
    one = learner(model=model)
    one.observe(*batch(0))
    one.grow(5)
    weight = model[2].weight.detach().clone()
    assert not model[2].weight.requires_grad
    one.observe(*batch(1, classes=5))
    assert torch.equal(model[2].weight, weight)


def test_heads_that_cannot_grow() -> None:
    tied = network()
    tied.append(nn.Linear(6, 3))
    tied[3].weight = tied[2].weight
    normed = network()
    nn.utils.parametrizations.weight_norm(normed[2])
    for model, words in ((tied, "shares its weights"), (normed, "made from other parameters")):
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(InvalidInput, match=words):
            growth(model, torch.optim.SGD(model.parameters(), lr=0.1), 5)
        assert_same(dict(model.state_dict()), dict(before))
    with pytest.raises(InvalidInput, match="no linear layer"):
        growth(nn.Conv2d(1, 1, 1), torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), 5)


@pytest.mark.parametrize("virtual_step", ["sgd", "optimizer"])
@pytest.mark.parametrize("layers", ["all", "head"])
def test_the_look_ahead_follows_the_head(virtual_step: str, layers: str) -> None:
    one = learner("adam", retrieval=MostInterfered(layers=layers, virtual_step=virtual_step))
    for number in range(3):
        one.observe(*batch(number))
    one.grow(8)
    step = one.observe(*batch(3, classes=8))
    assert step.interference is not None
    assert step.interference.isfinite().all()


def test_recalibration_and_stored_logits_follow_the_head() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    one = Replay(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        ReservoirMemory(30),
        batchnorm="recalibrated",
        loss=DarkExperience(),
    )

    def images(number: int, classes: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(number)
        return torch.rand(6, 1, 6, 6, generator=generator), torch.randint(0, classes, (6,), generator=generator)

    for number in range(3):
        one.observe(*images(number, 2))
    one.predict(images(0, 2)[0])
    one.grow(5)
    assert one.logits(images(0, 2)[0]).shape == (6, 5)
    for number in range(3, 8):
        one.observe(*images(number, 5))
    assert one.logits(images(0, 2)[0]).isfinite().all()


# ---------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("make", ["momentum", "adam", "adagrad"])
def test_a_grown_checkpoint_loads_into_a_learner_that_has_not_grown(tmp_path: Path, make: str) -> None:
    one, other = learner(make), learner(make)
    for number in range(3):
        one.observe(*batch(number))
    one.grow(6)
    for number in range(3, 6):
        one.observe(*batch(number, classes=6))
    rehearse.save(one, tmp_path / "checkpoint")
    rehearse.load(tmp_path / "checkpoint", into=other)
    assert_same(other.state_dict(), one.state_dict())
    for number in range(6, 9):
        assert one.observe(*batch(number, classes=6)).incoming_loss == (
            other.observe(*batch(number, classes=6)).incoming_loss
        )
    assert_same(other.state_dict(), one.state_dict())


def test_an_earlier_checkpoint_undoes_the_growth(tmp_path: Path) -> None:
    one = learner()
    one.observe(*batch(0))
    rehearse.save(one, tmp_path / "checkpoint")
    before = frozen(one.state_dict())
    one.grow(9)
    one.observe(*batch(1, classes=9))
    rehearse.load(tmp_path / "checkpoint", into=one)
    assert_same(one.state_dict(), before)
    one.observe(*batch(1))


def test_a_checkpoint_never_shrinks_the_original_head(tmp_path: Path) -> None:
    small, large = learner(), learner(model=network(outputs=5))
    rehearse.save(small, tmp_path / "checkpoint")
    before = frozen(large.state_dict())
    with pytest.raises(CheckpointError, match="does not fit"):
        rehearse.load(tmp_path / "checkpoint", into=large)
    assert_same(large.state_dict(), before)


def test_a_checkpoint_that_does_not_fit_leaves_the_head_as_it_was(tmp_path: Path) -> None:
    """The head grows first, and is restored when the rest does not fit."""
    one, other = learner(model=nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))), learner()
    one.grow(8)
    rehearse.save(one, tmp_path / "checkpoint")
    other.observe(*batch(0))
    before = frozen(other.state_dict())
    with pytest.raises(CheckpointError):
        rehearse.load(tmp_path / "checkpoint", into=other)
    assert_same(other.state_dict(), before)
    assert find_head(other.model)[1].out_features == 3
    other.observe(*batch(1))


def test_a_learner_without_a_memory_grows_too() -> None:
    model = network()
    one = Finetune(model, torch.optim.Adam(model.parameters()))
    one.observe(*batch(0))
    one.grow(4)
    one.observe(*batch(1, classes=4))
