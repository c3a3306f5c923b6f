"""The look-ahead against a deep copy that really takes the step; and that nothing else notices."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse import Batch, Lookahead
from rehearse.errors import InvalidInput
from rehearse.heads import find_head, head_inputs
from rehearse.lookahead import stepped_parameters
from sameness import assert_same, frozen, outside


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


def literal_losses(model: nn.Module, rows: Batch) -> Tensor:
    """The losses of scoring, on a copy: no dropout, batch-norm with the statistics of the batch."""
    other = copy.deepcopy(model).eval()
    for module in other.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.train()
    with torch.no_grad():
        return F.cross_entropy(other(rows.x), rows.y, reduction="none")


def stepped_copy(model: nn.Module, optimizer: torch.optim.Optimizer, gradient: dict[str, Tensor]) -> nn.Module:
    """Model and optimiser copied as one, so that the copied optimiser really moves the copied model."""
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
def test_the_foreseen_step_and_losses_are_those_of_a_copy_that_steps(make: Any, optimizer: Any) -> None:
    model = make()
    look = Lookahead(model, optimizer(model))
    rows, gradient = batch(), gradient_of(model, batch())
    there = stepped_copy(model, look.optimizer, gradient)
    foreseen = look.foresee(gradient)
    assert list(foreseen) == [name for name, _ in model.named_parameters()]
    for name, parameter in there.named_parameters():
        assert torch.equal(foreseen[name], parameter), name
    before, after = look.losses(rows, gradient)
    torch.testing.assert_close(before, literal_losses(model, rows))
    torch.testing.assert_close(after, literal_losses(there, rows))
    assert not torch.allclose(before, after)


def test_by_hand() -> None:
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [0.0]]))
    look = Lookahead(model, torch.optim.SGD(model.parameters(), lr=0.5))
    foreseen = look.foresee({"weight": torch.tensor([[4.0], [-2.0]])})
    assert foreseen["weight"].tolist() == [[-1.0], [1.0]]
    before, after = look.losses(
        Batch(torch.tensor([[1.0]]), torch.tensor([0])), {"weight": torch.tensor([[4.0], [-2]])}
    )
    torch.testing.assert_close(before, torch.tensor([0.3132617]))  # log(1 + e⁻¹)
    torch.testing.assert_close(after, torch.tensor([2.1269281]))  # log(1 + e²)


def test_plain_sgd_is_foreseen_whatever_the_optimiser_adds() -> None:
    """virtual_step="sgd" is the paper's θ − α∇ℓ: no momentum, no decay, no moments."""
    model = plain()
    look = Lookahead(model, torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.3))
    gradient = gradient_of(model, batch())
    for name, value in look.foresee(gradient).items():
        torch.testing.assert_close(value, dict(model.named_parameters())[name] - 0.1 * gradient[name])


def test_the_learning_rate_is_that_of_the_moment() -> None:
    model = plain()
    look = Lookahead(model, torch.optim.SGD(model.parameters(), lr=0.1))
    gradient = gradient_of(model, batch())
    look.optimizer.param_groups[0]["lr"] = 0.7
    name, parameter = next(iter(model.named_parameters()))
    torch.testing.assert_close(look.foresee(gradient)[name], parameter - 0.7 * gradient[name])


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
def test_the_optimisers_own_step_is_what_a_copied_optimiser_does(optimizer: Any) -> None:
    model = normed()
    look = Lookahead(model, optimizer(model), virtual_step="optimizer")
    for _ in range(4):  # from no state at all to one with a history
        gradient = gradient_of(model, batch())
        known = frozen(look.optimizer.state_dict())
        there = stepped_copy(model, look.optimizer, gradient)
        foreseen = look.foresee(gradient)
        assert_same(look.optimizer.state_dict(), known)
        for name, parameter in there.named_parameters():
            assert torch.equal(foreseen[name], parameter), name
        rows = batch()
        torch.testing.assert_close(look.losses(rows, gradient)[1], literal_losses(there, rows))
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
    look = Lookahead(model, optimizer, virtual_step=virtual_step)
    assert list(stepped_parameters(model, optimizer)) == ["2.weight", "2.bias"]
    gradient = gradient_of(model, batch())
    foreseen = look.foresee(gradient)
    assert torch.equal(foreseen["0.weight"], weight)
    assert torch.equal(foreseen["0.bias"], bias)
    torch.testing.assert_close(foreseen["2.bias"], model[2].bias - 0.1 * gradient["2.bias"])  # type: ignore[index]


def test_the_head_alone() -> None:
    model = normed()
    look = Lookahead(model, sgd(0.5)(model), layers="head")
    rows, gradient = batch(), gradient_of(model, batch())
    there = stepped_copy(model, look.optimizer, {name: gradient[name] for name in ("4.weight", "4.bias")})
    before, after = look.losses(rows, gradient)
    torch.testing.assert_close(before, literal_losses(model, rows))
    torch.testing.assert_close(after, literal_losses(there, rows))
    for name, value in look.foresee(gradient).items():
        assert torch.equal(value, dict(there.named_parameters())[name])
    assert look.rows_passed == 10  # one pass through the body, not two


def test_a_head_that_is_not_the_end_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.LogSoftmax(1))
    look = Lookahead(model, sgd()(model), nn.NLLLoss(), layers="head")
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
    look = Lookahead(model, optimizer, **options)
    rows = batch()
    before = (frozen(outside(model)), frozen(optimizer.state_dict()), frozen(gradient), rows.x.clone())
    look.losses(rows, gradient)
    look.pass_through(rows)
    look.foresee(gradient)
    assert_same((outside(model), optimizer.state_dict(), gradient, rows.x), before)


def test_the_statistics_that_a_pass_would_leave_are_noted() -> None:
    model = normed()
    look = Lookahead(model, sgd()(model))
    rows = batch()
    copied = copy.deepcopy(model).train()
    copied(rows.x)
    expected = dict(copied.named_buffers())
    for passing in (lambda: look.losses(rows, gradient_of(model, batch())), lambda: look.pass_through(rows)):
        look.statistics = {}
        passing()
        assert look.statistics.keys() == expected.keys()
        for name, value in look.statistics.items():
            torch.testing.assert_close(value, expected[name])


def test_bytes_trees_and_other_dtypes() -> None:
    model = plain().double()
    look = Lookahead(model, sgd()(model))
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
        before, _ = Lookahead(both, sgd()(both)).losses(Batch(x, y), gradient)
        torch.testing.assert_close(before, expected)


def test_tied_weights_move_together() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    look = Lookahead(model, sgd()(model))
    gradient = gradient_of(model, Batch(torch.randn(10, 8), torch.randint(0, 8, (10,))))
    rows = batch()
    there = stepped_copy(model, look.optimizer, gradient)
    torch.testing.assert_close(look.losses(rows, gradient)[1], literal_losses(there, rows))


@pytest.mark.parametrize("option", [{"virtual_step": "adam"}, {"layers": "tail"}])
def test_refused_options(option: dict[str, Any]) -> None:
    model = plain()
    with pytest.raises(InvalidInput, match=next(iter(option))):
        Lookahead(model, sgd()(model), **option)


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


def test_what_enters_the_head_is_seen_only_inside_the_block() -> None:
    model = plain()
    x = torch.randn(3, 8)
    with head_inputs(model[2]) as seen:  # type: ignore[index]
        model(x)
    model(x)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], model[1](model[0](x)))  # type: ignore[index]
    assert not seen[0].requires_grad
