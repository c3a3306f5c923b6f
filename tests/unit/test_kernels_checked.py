"""What must not reach the kernels by its address, and models that do unusual things."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from having_kernels import needs_kernels, random, recorded, reduced, rounded, sequence
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from rehearse.kernels import own_kernels
from rehearse.nets import ReducedResNet18

pytestmark = needs_kernels


class Broadcasting(nn.Module):
    """A block whose shortcut has one number a channel."""

    relu_of_sum = ("residual", "shortcut")

    def __init__(self) -> None:
        super().__init__()
        self.residual = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6))
        self.shortcut = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 6, 1))

    def forward(self, x: Tensor) -> Tensor:
        total = self.residual(x)
        total += self.shortcut(x)
        return F.relu(total)


def odd(change: Callable[[nn.Sequential], Any]) -> nn.Sequential:
    torch.manual_seed(0)
    net = sequence(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
    with torch.no_grad():
        change(net)
    return net


def parameter(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.detach())


UNUSUAL: dict[str, Callable[[nn.Sequential], Any]] = {
    "a norm without a bias": lambda net: net[1].register_parameter("bias", None),
    "a weight with gaps": lambda net: setattr(net[0], "weight", parameter(random(6, 64, 3, 3)[:, :4])),
    "an expanded weight": lambda net: setattr(net[0], "weight", parameter(random(6, 1, 3, 3).expand(6, 4, 3, 3))),
    "a bias with gaps": lambda net: setattr(net[0], "bias", parameter(random(12)[::2])),
    "a scale with gaps": lambda net: setattr(net[1], "weight", parameter(random(12)[::2])),
    "another kernel than it says": lambda net: setattr(net[0], "weight", parameter(random(6, 4, 1, 1))),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_parameters_that_are_not_as_the_kernels_take_them(name: str) -> None:
    net = odd(UNUSUAL[name])
    plain, x = copy.deepcopy(net), rounded(random(3, 4, 8, 8))
    with reduced():
        expected = torch.autograd.grad(plain(x).square().sum(), [*plain.parameters()])
        with own_kernels(net):
            found = torch.autograd.grad(net(x).square().sum(), [*net.parameters()])
    largest = max(float(other.abs().max()) for other in expected)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=0.05, atol=0.02 * largest)


@pytest.mark.parametrize(
    ("x", "problem"),
    [
        (rounded(random(3, 5, 8, 8)), "to have 4 channels"),
        (rounded(random(3, 1, 8, 8)), "to have 4 channels"),
        (torch.zeros(3, 4, 8, 8, dtype=torch.uint8), "."),
        (random(3, 4), "."),
    ],
)
def test_inputs_that_do_not_fit_are_refused_as_torch_does(x: Tensor, problem: str) -> None:
    net = odd(lambda net: None)
    with reduced(), own_kernels(net), pytest.raises(RuntimeError, match=problem):
        net(x)


def test_tensors_of_another_kind_in_the_parameters_place() -> None:
    net = sequence(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(6).eval())
    others = {name: value.to(torch.bfloat16) for name, value in net[0].named_parameters("0")}
    x = rounded(random(3, 4, 8, 8))
    with reduced():
        expected = torch.func.functional_call(copy.deepcopy(net), others, (x,))
        with own_kernels(net), recorded() as calls:
            assert torch.equal(torch.func.functional_call(net, others, (x,)), expected)
        assert not calls


def test_a_shortcut_of_another_shape_is_added_by_torch() -> None:
    torch.manual_seed(0)
    net = sequence(Broadcasting())
    exact, x = copy.deepcopy(net).double(), rounded(random(3, 4, 8, 8))
    with reduced(), own_kernels(net), recorded() as calls:
        found = net(x)
    assert calls.count("normalise") == 1
    torch.testing.assert_close(found.double(), exact(x.double()), rtol=0.02, atol=0.02)


def test_a_block_may_be_called_by_name_and_keeps_its_dtype() -> None:
    torch.manual_seed(0)
    block = ReducedResNet18(base=4).body[3]
    block.channels_last = True
    block.residual[-1].eval()
    x = random(3, 4, 8, 8)
    with reduced():
        expected = block(x)
        with own_kernels(block):
            assert block(x=x).dtype == block(x).dtype == expected.dtype == torch.bfloat16


def test_a_model_that_does_not_run_channels_last_is_torchs_to_the_bit() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
    plain, x = copy.deepcopy(net), random(3, 4, 8, 8)
    with reduced(), own_kernels(net), recorded() as calls:
        found = net(x)
        assert found.is_contiguous()
        assert torch.equal(found, plain(x))
    assert not calls


def test_layers_that_a_model_hooks_into_or_exchanges_on_its_way() -> None:
    class Restless(nn.Module):
        channels_last = True

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.f = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
            self.other = nn.Conv2d(4, 4, 3, padding=1)
            self.heard: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            first = self.f(x)
            self.f[0] = self.other
            handle = self.f[0].register_forward_hook(lambda *_: self.heard.append(1))
            try:
                return first - self.f(x)
            finally:
                handle.remove()

    net, x = Restless(), rounded(random(3, 4, 8, 8))
    with reduced(), own_kernels(net):
        assert net(x).abs().max() > 0.1
    assert net.heard == [1]


def test_saved_tensors_may_come_back_in_another_layout() -> None:
    def by_weight(net: nn.Module, packed: Callable[[Tensor], Tensor]) -> list[Tensor]:
        hooks = torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor)
        with reduced(), own_kernels(net), hooks:
            made = net(rounded(random(3, 4, 8, 8))).square().sum()
        return list(torch.autograd.grad(made, [*net.parameters()]))

    plain = by_weight(odd(lambda net: None), lambda tensor: tensor)
    packed = by_weight(odd(lambda net: None), lambda tensor: tensor.clone(memory_format=torch.contiguous_format))
    for one, other in zip(packed, plain, strict=True):
        assert torch.equal(one, other)
    smaller = by_weight(odd(lambda net: None), lambda tensor: tensor.bfloat16())
    for one, other in zip(smaller[::2], plain[::2], strict=True):
        assert float((one - other).norm() / other.norm()) < 0.05


class Doubled(Tensor):
    """A tensor that is more than its memory."""


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of torch's own, in forward-mode gradients
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
@pytest.mark.parametrize("kind", ["subclass", "negative bits", "fake", "dual", "no channels", "patched residual"])
def test_what_only_looks_like_memory_is_torchs(kind: str) -> None:
    net, x = odd(lambda net: None), rounded(random(3, 4, 8, 8))
    if kind == "no channels":
        net = sequence(nn.Conv2d(4, 0, 3, padding=1))
    if kind == "patched residual":
        block = ReducedResNet18(base=4).body[3]
        block.residual.forward = lambda rows: rows * 0 + 7
        net = sequence(block)
    with contextlib.ExitStack() as stack:
        stack.enter_context(reduced())
        calls = stack.enter_context(recorded())
        if kind == "subclass":
            x = x.as_subclass(Doubled)
        elif kind == "negative bits":
            x = torch.complex(random(3, 4, 8, 8), random(3, 4, 8, 8)).conj().imag
        elif kind == "dual":
            stack.enter_context(torch.autograd.forward_ad.dual_level())
            x = torch.autograd.forward_ad.make_dual(x, x)
        elif kind == "fake":
            mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            x = mode.from_tensor(x)
        with own_kernels(net):
            if kind == "no channels":
                with pytest.raises(RuntimeError):
                    net(x)
            elif kind == "patched residual":
                assert torch.equal(net(x), F.relu(x * 0 + 7 + x))
            else:
                net(x)
        assert not calls


def test_what_the_user_made_the_default_does_not_reach_them() -> None:
    net, x = odd(lambda net: None), rounded(random(3, 4, 8, 8))
    try:
        torch.set_default_dtype(torch.float64)
        with reduced(), own_kernels(net), recorded() as calls:
            net(x)
        assert calls == ["convolve", "normalise"]
    finally:
        torch.set_default_dtype(torch.float32)
    net[0].stride = 1
    with reduced(), own_kernels(net), recorded() as calls:
        net(x)
    assert calls == ["normalise"]
