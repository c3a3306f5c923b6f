"""Tensors whose address the kernels must not receive, and models that change during a call."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from kernel_fixtures import Block, bfloat16, random, rounded, sequence, small
from rehearse_kernels import install


def parameter(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.detach())


UNUSUAL: dict[str, Callable[[nn.Sequential], Any]] = {
    "a norm without a bias": lambda net: net[1].register_parameter("bias", None),
    "a weight with gaps": lambda net: setattr(net[0], "weight", parameter(random(6, 64, 3, 3)[:, :4])),
    "an expanded weight": lambda net: setattr(net[0], "weight", parameter(random(6, 1, 3, 3).expand(6, 4, 3, 3))),
    "a bias with gaps": lambda net: setattr(net[0], "bias", parameter(random(12)[::2])),
    "a scale with gaps": lambda net: setattr(net[1], "weight", parameter(random(12)[::2])),
    "a kernel of another size": lambda net: setattr(net[0], "weight", parameter(random(6, 4, 1, 1))),
}


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", UNUSUAL)
def test_parameters_that_the_kernels_cannot_read(name: str) -> None:
    net, x = small(), rounded(random(3, 4, 8, 8))
    with torch.no_grad():
        UNUSUAL[name](net)
    plain = copy.deepcopy(net)
    install(net)
    with bfloat16():
        expected = torch.autograd.grad(plain(x).square().sum(), [*plain.parameters()])
        found = torch.autograd.grad(net(x).square().sum(), [*net.parameters()])
    largest = max(float(other.abs().max()) for other in expected)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=0.05, atol=0.02 * largest)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("x", "problem"),
    [
        (rounded(random(3, 5, 8, 8)), "to have 4 channels"),
        (rounded(random(3, 1, 8, 8)), "to have 4 channels"),
        (torch.zeros(3, 4, 8, 8, dtype=torch.uint8), "."),
        (random(3, 4), "."),
    ],
)
def test_inputs_that_do_not_fit_raise_torchs_errors(x: Tensor, problem: str) -> None:
    net = small()
    install(net)
    with bfloat16(), pytest.raises(RuntimeError, match=problem):
        net(x)


def test_bfloat16_tensors_instead_of_the_parameters(kernels: list[str]) -> None:
    net = sequence(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(6).eval())
    plain, x = copy.deepcopy(net), rounded(random(3, 4, 8, 8))
    install(net)
    others = {name: value.to(torch.bfloat16) for name, value in net[0].named_parameters("0")}
    with bfloat16():
        expected = torch.func.functional_call(plain, others, (x,))
        assert torch.equal(torch.func.functional_call(net, others, (x,)), expected)
    assert not kernels


class Broadcasting(nn.Module):
    """A block whose shortcut has one number per channel."""

    relu_of_sum = ("residual", "shortcut")

    def __init__(self) -> None:
        super().__init__()
        self.residual = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6))
        self.shortcut = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 6, 1))

    def forward(self, x: Tensor) -> Tensor:
        total = self.residual(x)
        total += self.shortcut(x)
        return F.relu(total)


def test_torch_adds_a_shortcut_of_another_shape(kernels: list[str]) -> None:
    torch.manual_seed(0)
    net = sequence(Broadcasting())
    exact, x = copy.deepcopy(net).double(), rounded(random(3, 4, 8, 8))
    install(net)
    with bfloat16():
        found = net(x)
    assert kernels.count("normalize") == 1
    torch.testing.assert_close(found.double(), exact(x.double()), rtol=0.02, atol=0.02)


@pytest.mark.usefixtures("kernels")
def test_a_block_accepts_a_keyword_and_keeps_its_dtype() -> None:
    torch.manual_seed(0)
    block, x = Block(4, 4), random(3, 4, 8, 8)
    block.channels_last = True
    block.residual[-1].eval()
    plain = copy.deepcopy(block)
    install(block)
    with bfloat16():
        assert block(x=x).dtype == block(x).dtype == plain(x).dtype == torch.bfloat16


class Restless(nn.Module):
    """A model that exchanges a layer and adds a hook while it runs."""

    channels_last = True

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.f = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.other = nn.Conv2d(4, 4, 3, padding=1)
        self.called = 0

    def count(self, *_: Any) -> None:
        self.called += 1

    def forward(self, x: Tensor) -> Tensor:
        first = self.f(x)
        self.f[0] = self.other
        handle = self.f[0].register_forward_hook(self.count)
        try:
            return first - self.f(x)
        finally:
            handle.remove()


@pytest.mark.usefixtures("kernels")
def test_layers_that_change_during_a_call() -> None:
    net, x = Restless(), rounded(random(3, 4, 8, 8))
    install(net)
    with bfloat16():
        assert net(x).abs().max() > 0.1
    assert net.called == 1


class Subclass(Tensor):
    """A tensor that is more than its memory."""


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # inside torch's forward-mode gradients
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
@pytest.mark.parametrize("kind", ["subclass", "negative bits", "fake", "dual", "no channels", "patched residual"])
def test_tensors_that_are_more_than_memory_are_torchs(kernels: list[str], kind: str) -> None:
    net, x = small(), rounded(random(3, 4, 8, 8))
    if kind == "no channels":
        net = sequence(nn.Conv2d(4, 0, 3, padding=1))
    if kind == "patched residual":
        block = Block(4, 4)
        block.residual.forward = lambda images: images * 0 + 7
        net = sequence(block)
    install(net)
    with contextlib.ExitStack() as stack:
        stack.enter_context(bfloat16())
        if kind == "subclass":
            x = x.as_subclass(Subclass)
        elif kind == "negative bits":
            x = torch.complex(random(3, 4, 8, 8), random(3, 4, 8, 8)).conj().imag
        elif kind == "dual":
            stack.enter_context(torch.autograd.forward_ad.dual_level())
            x = torch.autograd.forward_ad.make_dual(x, x)
        elif kind == "fake":
            mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            x = mode.from_tensor(x)
        if kind == "no channels":
            with pytest.raises(RuntimeError):
                net(x)
        elif kind == "patched residual":
            assert torch.equal(net(x), F.relu(x * 0 + 7 + x))
        else:
            net(x)
    assert not kernels


def test_defaults_and_options_that_a_user_changed(kernels: list[str]) -> None:
    net, x = small(), rounded(random(3, 4, 8, 8))
    install(net)
    try:
        torch.set_default_dtype(torch.float64)
        with bfloat16():
            net(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert kernels == ["convolve", "normalize"]
    kernels.clear()
    net[0].stride = 1  # a number instead of a tuple
    with bfloat16():
        net(x)
    assert kernels == ["normalize"]
