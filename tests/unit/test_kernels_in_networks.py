"""The kernels inside networks: as near to exact as torch's, and only where nobody would notice."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from having_kernels import assert_near, needs_kernels, random, recorded, reduced, rounded, sequence
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from rehearse.kernels import own_kernels
from rehearse.nets import ConvAutoencoder, ReducedResNet18

pytestmark = needs_kernels


def resnet() -> tuple[nn.Module, Tensor, Callable[[nn.Module, Tensor], Tensor]]:
    torch.manual_seed(0)
    y = torch.arange(12) % 10
    return ReducedResNet18(), random(12, 3, 32, 32), lambda model, x: F.cross_entropy(model(x).double(), y)


def autoencoder() -> tuple[nn.Module, Tensor, Callable[[nn.Module, Tensor], Tensor]]:
    torch.manual_seed(0)
    return ConvAutoencoder(), random(12, 3, 32, 32).tanh(), lambda model, x: F.mse_loss(model(x).double(), x.double())


@pytest.mark.parametrize("problem", [resnet, autoencoder])
def test_a_network_is_as_near_to_exact_as_with_torchs_kernels(problem: Callable[[], Any]) -> None:
    model, x, loss = problem()
    model.to(memory_format=torch.channels_last)
    exact, theirs = copy.deepcopy(model).double(), copy.deepcopy(model)

    def gradients(network: nn.Module, rows: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss(network, rows), list(network.parameters())))

    right = gradients(exact, x.double())
    with reduced():
        other = gradients(theirs, x)
        with own_kernels(model), recorded() as calls:
            found = gradients(model, x)
    assert {"convolve", "normalise", "gradients", "normalise_gradient"} == set(calls)

    def off(values: list[Tensor]) -> float:
        return sum(float((a.double() - b).norm() / b.norm()) for a, b in zip(values, right, strict=True))

    assert off(found) < 1.1 * off(other)
    for name, buffer in exact.named_buffers():
        torch.testing.assert_close(dict(model.named_buffers())[name].double(), buffer.double(), rtol=0.02, atol=0.02)


def test_every_layer_of_the_papers_networks_goes_through_the_kernels() -> None:
    for model, norms in ((ReducedResNet18(), 20), (ConvAutoencoder(), 12)):
        with recorded() as calls, reduced(), own_kernels(model):
            model(random(2, 3, 32, 32))
        assert calls.count("normalise") == norms
    assert calls.count("convolve") == 14  # of the autoencoder, all; the residual networks' wide ones are torch's


LEFT_ALONE: dict[str, Callable[[nn.Sequential], Any]] = {
    "a hook before": lambda net: [part.register_forward_pre_hook(lambda *_: None) for part in net],
    "a hook behind": lambda net: [part.register_forward_hook(lambda *_: None) for part in net],
    "a hook on the gradient": lambda net: [part.register_full_backward_hook(lambda *_: None) for part in net],
    "a patched forward": lambda net: [setattr(part, "forward", part.forward) for part in net],
    "parametrised": lambda net: [
        parametrize.register_parametrization(part, "weight", nn.Identity()) for part in list(net)[:2]
    ],
    "subclassed": lambda net: [setattr(part, "__class__", type("Own", (type(part),), {})) for part in net],
    "in bfloat16 itself": lambda net: net.to(torch.bfloat16),
    "a sequence of another kind": lambda net: setattr(
        net, "__class__", type("Own", (nn.Sequential,), {"forward": lambda self, x: nn.Sequential.forward(self, x)})
    ),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_somebody_elses_layers_are_left_to_torch_to_the_bit(name: str) -> None:
    torch.manual_seed(0)
    net = sequence(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
    LEFT_ALONE[name](net)
    plain, x = copy.deepcopy(net), rounded(random(3, 4, 8, 8))
    with reduced(), recorded() as calls:
        with own_kernels(net):
            found = net(x)
        assert not calls
        assert torch.equal(found, plain(x))


@pytest.mark.parametrize("where", ["float32", "float16", "two threads", "a transform", "no autocast inside"])
def test_other_ways_to_compute_are_torchs_to_the_bit(where: str) -> None:
    torch.manual_seed(0)
    net, x = sequence(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()), random(3, 4, 8, 8)
    plain = copy.deepcopy(net)

    def outcome(model: nn.Module, ours: bool) -> Tensor:
        with own_kernels(model, None if ours else ()):
            if where == "a transform":
                model.eval()  # running statistics cannot be moved in one
                return torch.func.vmap(lambda rows: model(rows), randomness="same")(x[None])[0]
            if where == "no autocast inside":
                with torch.autocast("cpu", enabled=False):
                    return model(x)
            return model(x)

    dtype = {"float32": None, "float16": torch.float16}.get(where, torch.bfloat16)
    try:
        torch.set_num_threads(2 if where == "two threads" else 1)
        with torch.autocast("cpu", dtype, enabled=dtype is not None), recorded() as calls:
            assert torch.equal(outcome(net, True), outcome(plain, False))
        assert not calls
    finally:
        torch.set_num_threads(1)


def test_a_batch_norm_in_eval_mode_uses_its_running_statistics() -> None:
    torch.manual_seed(0)
    net = sequence(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x = rounded(random(3, 4, 8, 8))
    with reduced():
        with own_kernels(net), recorded() as calls:
            found = net(x)
        assert calls == ["convolve"]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    torch.testing.assert_close(found.double(), net.double()(x.double()), rtol=0.01, atol=0.01)


def test_a_block_under_a_hook_or_with_a_frozen_norm_is_still_right() -> None:
    torch.manual_seed(0)
    model = ReducedResNet18(base=4)
    exact, x = copy.deepcopy(model).double(), random(6, 3, 32, 32)
    model.body[3].residual.register_forward_hook(lambda *_: None)
    for network in (model, exact):
        network.body[4].residual[-1].eval()
    with reduced(), own_kernels(model):
        found = model(x)
    torch.testing.assert_close(found.double(), exact(x.double()), rtol=0.05, atol=0.05)


def test_float32_goes_through_the_kernels_only_where_asked_and_without_gradients() -> None:
    net, x = sequence(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6).eval()), random(3, 4, 8, 8)
    for full, gradient in itertools.product((False, True), (False, True)):
        with torch.set_grad_enabled(gradient), own_kernels(net, full=full), recorded() as calls:
            found = net(x)
        assert calls == (["convolve"] if full and not gradient else [])
        assert_near(found, net(x), 1e-5)


def test_nothing_stays_behind_and_blocks_may_nest() -> None:
    model = ReducedResNet18(base=4)
    with reduced(), own_kernels(model):
        assert "forward" in vars(model.body)
        with own_kernels(model):
            assert "forward" in vars(model.body)
        assert "forward" in vars(model.body)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_gradient_of_a_gradient_is_torchs() -> None:
    torch.manual_seed(0)
    net, x = sequence(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()), random(3, 4, 8, 8).requires_grad_()

    def second(model: nn.Module) -> list[Tensor]:
        (slope,) = torch.autograd.grad(model(x).float().square().sum(), x, create_graph=True)
        return [
            g for g in torch.autograd.grad(slope.square().sum(), model.parameters(), allow_unused=True) if g is not None
        ]

    exact = copy.deepcopy(net).double()
    x64 = x.detach().double().requires_grad_()
    (slope,) = torch.autograd.grad(exact(x64).square().sum(), x64, create_graph=True)
    right = torch.autograd.grad(slope.square().sum(), [*exact.parameters()], allow_unused=True)
    with reduced(), own_kernels(net):
        found = second(net)
    assert len(found) == 4
    for own, value in zip(found[::2], right[::2], strict=True):  # the weights; bfloat16 leaves two digits of such
        assert float((own.double() - value).norm() / value.norm()) < 0.1


def test_gradients_that_may_be_differentiated_where_inputs_hang_together() -> None:
    """What is added is the input itself; and a convolution that is used twice."""

    class Single(nn.Module):
        relu_of_sum = ("residual", "shortcut")

        def __init__(self) -> None:
            super().__init__()
            self.residual = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
            self.shortcut = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.residual(x) + self.shortcut(x))

    torch.manual_seed(0)
    twice = nn.Conv2d(4, 4, 3, padding=1)
    for net in (sequence(Single()), sequence(twice, nn.BatchNorm2d(4), twice, nn.BatchNorm2d(4))):
        found = []
        for graph in (False, True):
            x = random(3, 4, 8, 8).requires_grad_()
            with reduced(), own_kernels(net):
                made = (net(x).float() * random(3, 4, 8, 8, seed=1)).sum()
            wanted = [x, *(each for each in net.parameters() if each.ndim > 1)]
            found.append(torch.autograd.grad(made, wanted, create_graph=graph))
        for one, other in zip(*found, strict=True):
            assert ((one - other).norm() / other.norm()).item() < 0.05
