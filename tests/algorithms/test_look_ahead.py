"""The look-ahead against a deep copy that really takes the step; and that nothing else notices."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse import Batch
from rehearse.batchnorm import Clean
from rehearse.engine import Plain
from rehearse.errors import InvalidInput
from rehearse.heads import find_head
from rehearse.losses import as_loss
from rehearse.network import NamedGradient, Network
from rehearse.random import borrowed
from rehearse.retrieval import MostInterfered
from sameness import assert_same, frozen, outside


class LookAhead:
    """A virtual step of a network, and the losses before and after it."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Any = None, policy: Any = None, **options: Any
    ) -> None:
        self.network, self.optimizer, self.options = Network(model, optimizer), optimizer, options
        self.plain = Plain(self.network, as_loss(loss), policy or Clean())

    def parameters(self, gradient: dict[str, Tensor]) -> dict[str, Tensor]:
        ahead = self.network.look_ahead(NamedGradient(gradient), self.options.get("virtual_step", "sgd"))
        return {name: ahead.get(name, parameter.detach()) for name, parameter in self.network.model.named_parameters()}

    def losses(self, batch: Batch, gradient: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.plain.losses(batch, NamedGradient(gradient), **self.options)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))


class Noisy(nn.Module):
    """Draws random numbers in every mode, and counts its passes in a buffer that it replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes = self.passes + 1
        return self.linear(F.dropout(x, 0.1, training=True))


def batch(n: int = 10) -> Batch:
    return Batch(torch.randn(n, 8), torch.randint(0, 4, (n,)))


def gradient_of(model: nn.Module, incoming: Batch) -> dict[str, Tensor]:
    """By way of a copy's .grad, so that the model itself is left alone."""
    other = copy.deepcopy(model).train()
    for module in other.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    other.zero_grad()
    F.cross_entropy(other(incoming.x), incoming.y).backward()
    return {name: p.grad for name, p in other.named_parameters() if p.grad is not None}


def literal_losses(model: nn.Module, samples: Batch) -> Tensor:
    """The losses of scoring, on a copy: no dropout, batch-norm with the statistics of the batch."""
    other = copy.deepcopy(model).eval()
    for module in other.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.train()
    with torch.no_grad():
        return F.cross_entropy(other(samples.x), samples.y, reduction="none")


def stepped_copy(model: nn.Module, optimizer: torch.optim.Optimizer, gradient: dict[str, Tensor]) -> nn.Module:
    """Model and optimizer copied as one, so that the copied optimizer really moves the copied model."""
    other, step = copy.deepcopy((model, optimizer))
    for name, parameter in other.named_parameters():
        parameter.grad = gradient.get(name)
    step.step()
    return other


def sgd(lr: float = 0.1) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr)


def two_groups(kind: type[torch.optim.Optimizer], **options: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    def build(model: nn.Module) -> torch.optim.Optimizer:
        first, *rest = model.parameters()
        return kind([{"params": [first], "lr": 0.5}, {"params": rest}], lr=0.05, **options)  # type: ignore[call-arg]

    return build


@pytest.mark.parametrize("make", [plain, normed])
@pytest.mark.parametrize("optimizer", [sgd(0.1), two_groups(torch.optim.SGD)], ids=["one group", "two groups"])
def test_the_ahead_step_and_losses_are_those_of_a_copy_that_steps(make: Any, optimizer: Any) -> None:
    model = make()
    look = LookAhead(model, optimizer(model))
    samples, gradient = batch(), gradient_of(model, batch())
    there = stepped_copy(model, look.optimizer, gradient)
    ahead = look.parameters(gradient)
    assert list(ahead) == [name for name, _ in model.named_parameters()]
    for name, parameter in there.named_parameters():
        assert torch.equal(ahead[name], parameter), name
    before, after = look.losses(samples, gradient)
    torch.testing.assert_close(before, literal_losses(model, samples))
    torch.testing.assert_close(after, literal_losses(there, samples))
    assert not torch.allclose(before, after)


def test_by_hand() -> None:
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [0.0]]))
    look = LookAhead(model, torch.optim.SGD(model.parameters(), lr=0.5))
    ahead = look.parameters({"weight": torch.tensor([[4.0], [-2.0]])})
    assert ahead["weight"].tolist() == [[-1.0], [1.0]]
    before, after = look.losses(
        Batch(torch.tensor([[1.0]]), torch.tensor([0])), {"weight": torch.tensor([[4.0], [-2]])}
    )
    torch.testing.assert_close(before, torch.tensor([0.3132617]))  # log(1 + e⁻¹)
    torch.testing.assert_close(after, torch.tensor([2.1269281]))  # log(1 + e²)


def test_plain_sgd_is_ahead_whatever_the_optimizer_adds() -> None:
    """virtual_step="sgd" is the paper's θ − α∇ℓ: no momentum, no decay, no moments."""
    model = plain()
    look = LookAhead(model, torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.3))
    gradient = gradient_of(model, batch())
    for name, value in look.parameters(gradient).items():
        torch.testing.assert_close(value, dict(model.named_parameters())[name] - 0.1 * gradient[name])


def test_the_learning_rate_is_that_of_the_moment() -> None:
    model = plain()
    look = LookAhead(model, torch.optim.SGD(model.parameters(), lr=0.1))
    gradient = gradient_of(model, batch())
    look.optimizer.param_groups[0]["lr"] = 0.7
    name, parameter = next(iter(model.named_parameters()))
    torch.testing.assert_close(look.parameters(gradient)[name], parameter - 0.7 * gradient[name])


@pytest.mark.parametrize(
    "optimizer",
    [
        two_groups(torch.optim.SGD, momentum=0.9),
        two_groups(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.1),
        two_groups(torch.optim.SGD, maximize=True),
        two_groups(torch.optim.Adam, weight_decay=0.01),
        two_groups(torch.optim.AdamW, amsgrad=True),
        two_groups(torch.optim.RMSprop, momentum=0.5),
    ],
    ids=["momentum", "nesterov+decay", "maximize", "adam", "adamw", "rmsprop"],
)
def test_the_optimizers_own_step_is_what_a_copied_optimizer_does(optimizer: Any) -> None:
    model = normed()
    look = LookAhead(model, optimizer(model), virtual_step="optimizer")
    for _ in range(4):  # from no state at all to one with a history
        gradient = gradient_of(model, batch())
        known = frozen(look.optimizer.state_dict())
        there = stepped_copy(model, look.optimizer, gradient)
        ahead = look.parameters(gradient)
        assert_same(look.optimizer.state_dict(), known)
        for name, parameter in there.named_parameters():
            assert torch.equal(ahead[name], parameter), name
        samples = batch()
        torch.testing.assert_close(look.losses(samples, gradient)[1], literal_losses(there, samples))
        for name, parameter in model.named_parameters():
            parameter.grad = gradient[name]
        look.optimizer.step()


@pytest.mark.parametrize("virtual_step", ["sgd", "optimizer"])
def test_frozen_and_foreign_parameters_stay_where_they_are(virtual_step: Any) -> None:
    model = plain()
    weight, bias, *_ = model.parameters()
    weight.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p is not bias], lr=0.1)
    weight.grad = torch.ones_like(weight)  # left over from before it was frozen
    look = LookAhead(model, optimizer, virtual_step=virtual_step)
    assert list(look.network.trainable()) == ["2.weight", "2.bias"]
    gradient = {name: value for name, value in gradient_of(model, batch()).items() if name.startswith("2")}
    ahead = look.parameters(gradient)
    assert torch.equal(ahead["0.weight"], weight)
    assert torch.equal(ahead["0.bias"], bias)
    torch.testing.assert_close(ahead["2.bias"], model[2].bias - 0.1 * gradient["2.bias"])  # type: ignore[index]


def test_the_head_alone() -> None:
    model = normed()
    look = LookAhead(model, sgd(0.5)(model), layers="head")
    samples, gradient = batch(), gradient_of(model, batch())
    there = stepped_copy(model, look.optimizer, {name: gradient[name] for name in ("4.weight", "4.bias")})
    before, after = look.losses(samples, gradient)
    torch.testing.assert_close(before, literal_losses(model, samples))
    torch.testing.assert_close(after, literal_losses(there, samples))
    assert look.network.samples_passed == 10  # one pass through the body, not two


def test_a_head_that_is_not_the_end_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.LogSoftmax(1))
    look = LookAhead(model, sgd()(model), nn.NLLLoss(), layers="head")
    with pytest.raises(InvalidInput, match="layers='head'"):
        look.losses(batch(), gradient_of(model, batch()))


@pytest.mark.parametrize("make", [plain, normed, Noisy])
@pytest.mark.parametrize("options", [{}, {"virtual_step": "optimizer"}, {"layers": "head"}])
@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_touched(make: Any, options: dict[str, Any], training: bool) -> None:
    model = make().train(training)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gradient = gradient_of(model, batch())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    look = LookAhead(model, optimizer, **options)
    samples = batch()
    before = (frozen(outside(model)), frozen(optimizer.state_dict()), frozen(gradient), samples.x.clone())
    with borrowed(look.network.random):
        look.losses(samples, gradient)
        look.plain.losses(samples)
        look.parameters(gradient)
    assert_same((outside(model), optimizer.state_dict(), gradient, samples.x), before)


class Following(Clean):
    """Notes the buffers that scoring moved."""

    follows_scoring = True

    def scored(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        self.moved = tensors


def test_a_policy_receives_the_statistics_that_scoring_moved() -> None:
    model, policy = normed(), Following()
    look = LookAhead(model, sgd()(model), policy=policy)
    samples = batch()
    copied = copy.deepcopy(model).train()
    copied(samples.x)
    for passing in (
        lambda: look.losses(samples, gradient_of(model, batch())),
        lambda: look.plain.losses(samples),
    ):
        policy.moved = {}
        passing()
        for name, buffer in copied.named_buffers():
            torch.testing.assert_close(policy.moved[name], buffer)


def test_bytes_trees_and_other_dtypes() -> None:
    model = plain().double()
    look = LookAhead(model, sgd()(model))
    bytes_ = Batch(torch.randint(0, 256, (5, 8), dtype=torch.uint8), torch.randint(0, 4, (5,)))
    gradient = {name: torch.ones_like(parameter) for name, parameter in model.named_parameters()}
    before, _ = look.losses(bytes_, gradient)
    expected = F.cross_entropy(model(bytes_.x.double() / 255), bytes_.y, reduction="none")
    torch.testing.assert_close(before, expected.detach())

    class TwoInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.linear(left) - right

    both = TwoInputs()
    left, right, y = torch.randn(5, 8), torch.randn(5, 4), torch.randint(0, 4, (5,))
    expected = F.cross_entropy(both(left, right), y, reduction="none").detach()
    gradient = {name: torch.ones_like(parameter) for name, parameter in both.named_parameters()}
    for x in ((left, right), {"right": right, "left": left}):
        before, _ = LookAhead(both, sgd()(both)).losses(Batch(x, y), gradient)
        torch.testing.assert_close(before, expected)


def test_tied_weights_move_together() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    look = LookAhead(model, sgd()(model))
    gradient = gradient_of(model, Batch(torch.randn(10, 8), torch.randint(0, 8, (10,))))
    samples = batch()
    there = stepped_copy(model, look.optimizer, gradient)
    torch.testing.assert_close(look.losses(samples, gradient)[1], literal_losses(there, samples))


@pytest.mark.parametrize("option", [{"virtual_step": "adam"}, {"layers": "tail"}])
def test_refused_options(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(option))):
        MostInterfered(**option)


# ------------------------------------------------------------------------------------------------------------ heads


def test_the_head_is_the_one_called_so_or_the_last_linear_layer() -> None:
    model = plain()
    assert find_head(model) == ("2", model[2])  # type: ignore[index]
    named = nn.ModuleDict({"head": nn.Linear(2, 3), "other": nn.Linear(3, 2)})
    assert find_head(named) == ("head", named["head"])
    nested = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 2)), nn.ReLU())
    assert find_head(nested)[0] == "0.1"
    with pytest.raises(InvalidInput, match="no linear layer"):
        find_head(nn.Sequential(nn.ReLU()))
