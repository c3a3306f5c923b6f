"""Gradients through whole networks, and gradients of gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernel_fixtures import Autoencoder, ResidualNetwork, bfloat16, random, sequence, small
from rehearse_kernels import install

Problem = tuple[nn.Module, Tensor, Callable[[nn.Module, Tensor], Tensor]]


def residual_network() -> Problem:
    torch.manual_seed(0)
    y = torch.arange(12) % 10
    return ResidualNetwork(), random(12, 3, 32, 32), lambda model, x: F.cross_entropy(model(x).double(), y)


def autoencoder() -> Problem:
    torch.manual_seed(0)
    return Autoencoder(), random(12, 3, 32, 32).tanh(), lambda model, x: F.mse_loss(model(x).double(), x.double())


@pytest.mark.parametrize("problem", [residual_network, autoencoder])
def test_a_network_is_as_accurate_as_with_torch(kernels: list[str], problem: Callable[[], Problem]) -> None:
    model, x, loss = problem()
    model.to(memory_format=torch.channels_last)
    exact, theirs = copy.deepcopy(model).double(), copy.deepcopy(model)
    install(model)

    def gradients(network: nn.Module, samples: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss(network, samples), list(network.parameters())))

    right = gradients(exact, x.double())
    with bfloat16():
        other, found = gradients(theirs, x), gradients(model, x)
    assert {"convolve", "normalize", "gradients", "normalize_gradient"} == set(kernels)

    def error(values: list[Tensor]) -> float:
        return sum(float((a.double() - b).norm() / b.norm()) for a, b in zip(values, right, strict=True))

    assert error(found) < 1.1 * error(other)
    for name, buffer in exact.named_buffers():
        torch.testing.assert_close(dict(model.named_buffers())[name].double(), buffer.double(), rtol=0.02, atol=0.02)


@pytest.mark.usefixtures("kernels")
def test_a_gradient_of_a_gradient() -> None:
    net, x = small(), random(3, 4, 8, 8).requires_grad_()
    exact, x64 = copy.deepcopy(net).double(), x.detach().double().requires_grad_()
    install(net)

    def second(model: nn.Module, samples: Tensor) -> list[Tensor]:
        made = model(samples)
        total = made.square().sum() if made.dtype == torch.float64 else made.float().square().sum()
        (slope,) = torch.autograd.grad(total, samples, create_graph=True)
        found = torch.autograd.grad(slope.square().sum(), list(model.parameters()), allow_unused=True)
        return [each for each in found if each is not None]

    with bfloat16():
        found = second(net, x)
    right = second(exact, x64)
    assert len(found) == 4
    for own, value in zip(found[::2], right[::2], strict=True):  # the weights; bfloat16 leaves two digits
        assert float((own.double() - value).norm() / value.norm()) < 0.1


class Single(nn.Module):
    """A block that adds its own input."""

    relu_of_sum = ("residual", "shortcut")

    def __init__(self) -> None:
        super().__init__()
        self.residual = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.shortcut = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))


def repeated() -> nn.Sequential:
    """Return a model that uses one convolution twice."""
    twice = nn.Conv2d(4, 4, 3, padding=1)
    return sequence(twice, nn.BatchNorm2d(4), twice, nn.BatchNorm2d(4))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("build", [lambda: sequence(Single()), repeated], ids=["added input", "repeated convolution"])
def test_differentiable_gradients_of_inputs_that_depend_on_each_other(build: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    net, found = build(), []
    install(net)
    for graph in (False, True):
        x = random(3, 4, 8, 8).requires_grad_()
        with bfloat16():
            made = (net(x).float() * random(3, 4, 8, 8, seed=1)).sum()
        wanted = [x, *(each for each in net.parameters() if each.ndim > 1)]
        found.append(torch.autograd.grad(made, wanted, create_graph=graph))
    for one, other in zip(*found, strict=True):
        assert ((one - other).norm() / other.norm()).item() < 0.05


@pytest.mark.usefixtures("kernels")
def test_saved_tensors_may_return_in_another_layout_or_dtype() -> None:
    def by_parameters(pack: Callable[[Tensor], Tensor]) -> list[Tensor]:
        net = small()
        install(net)
        with bfloat16(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            made = net(random(3, 4, 8, 8).to(torch.bfloat16)).square().sum()
        return list(torch.autograd.grad(made, [*net.parameters()]))

    plain = by_parameters(lambda tensor: tensor)
    packed = by_parameters(lambda tensor: tensor.clone(memory_format=torch.contiguous_format))
    for one, other in zip(packed, plain, strict=True):
        assert torch.equal(one, other)
    smaller = by_parameters(lambda tensor: tensor.bfloat16())
    for one, other in zip(smaller[::2], plain[::2], strict=True):
        assert float((one - other).norm() / other.norm()) < 0.05
