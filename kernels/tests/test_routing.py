"""Which layers and calls use the kernels, and that all others are torch's bit for bit."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from kernel_fixtures import (
    Autoencoder,
    Block,
    ResidualNetwork,
    assert_near,
    bfloat16,
    random,
    rounded,
    sequence,
    small,
)
from rehearse_kernels import install
from rehearse_kernels.sequences import Layer, _layers


def test_layers_are_combined() -> None:
    """A convolution, the batch-norm that follows and its ReLU are one layer; what is between layers is kept."""
    first, wide, norm, relu, pool = (
        nn.Conv2d(3, 4, 3, padding=1),
        nn.Conv2d(4, 4, 5, padding=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )

    def routed(*parts: nn.Module) -> list[Any]:
        return [
            (each.convolution and each.convolution[0], each.norm, each.relu) if isinstance(each, Layer) else each
            for each in _layers(list(parts))
        ]

    assert routed(first, norm, relu, pool) == [(first, norm, relu), pool]
    assert routed(first, relu, norm) == [(first, None, None), relu, (None, norm, None)]
    assert routed(wide, norm, relu) == [wide, (None, norm, relu)]
    assert routed(norm, first, pool, relu) == [(None, norm, None), (first, None, None), pool, relu]
    assert routed(pool, relu) == [pool, relu]
    assert routed() == []


def test_every_layer_of_a_network_uses_the_kernels(kernels: list[str]) -> None:
    for model, norms in ((ResidualNetwork(), 20), (Autoencoder(), 6)):
        kernels.clear()
        install(model)
        with bfloat16():
            model(random(2, 3, 32, 32))
        assert kernels.count("normalize") == norms
    assert kernels.count("convolve") == 6  # all of the autoencoder's; torch computes the wide ones of the other network


def test_a_block_is_computed_in_one_layer_with_its_sum(kernels: list[str]) -> None:
    torch.manual_seed(0)
    net = sequence(Block(4, 4))
    exact, x = copy.deepcopy(net).double(), rounded(random(3, 4, 8, 8))
    install(net)
    with bfloat16():
        found = net(x)
    assert kernels == ["convolve", "normalize"] * 2
    torch.testing.assert_close(found.double(), exact(x.double()), rtol=0.02, atol=0.02)


LEFT_ALONE: dict[str, Callable[[nn.Sequential], Any]] = {
    "a forward pre-hook": lambda net: [part.register_forward_pre_hook(lambda *_: None) for part in net],
    "a forward hook": lambda net: [part.register_forward_hook(lambda *_: None) for part in net],
    "a backward hook": lambda net: [part.register_full_backward_hook(lambda *_: None) for part in net],
    "a patched forward": lambda net: [setattr(part, "forward", part.forward) for part in net],
    "parametrized": lambda net: [
        parametrize.register_parametrization(part, "weight", nn.Identity()) for part in list(net)[:2]
    ],
    "subclassed": lambda net: [setattr(part, "__class__", type("Own", (type(part),), {})) for part in net],
    "in bfloat16 itself": lambda net: net.to(torch.bfloat16),
    "another kind of sequence": lambda net: setattr(
        net, "__class__", type("Own", (nn.Sequential,), {"forward": lambda self, x: nn.Sequential.forward(self, x)})
    ),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", LEFT_ALONE)
def test_changed_layers_are_torchs_bit_for_bit(kernels: list[str], name: str, when: str) -> None:
    if (name, when) == ("another kind of sequence", "after"):
        pytest.skip("the class of an installed module does not change")
    net, plain, x = small(), small(), rounded(random(3, 4, 8, 8))
    LEFT_ALONE[name](plain)
    if when == "after":
        install(net)
    LEFT_ALONE[name](net)
    if when == "before":
        install(net)
    with bfloat16():
        assert torch.equal(net(x), plain(x))
    assert not kernels


WAYS = ["float32", "float16", "two threads", "vmap", "autocast disabled inside", "global hook", "compile", "keyword"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # inside torch.compile
@pytest.mark.parametrize("where", WAYS)
def test_other_calls_are_torchs_bit_for_bit(kernels: list[str], where: str) -> None:
    net, x = small(), random(3, 4, 8, 8)
    plain = copy.deepcopy(net)
    install(net)

    def outcome(model: nn.Module) -> Tensor:
        if where == "vmap":
            model.eval()  # vmap cannot update running statistics
            return torch.func.vmap(lambda samples: model(samples), randomness="same")(x[None])[0]
        if where == "autocast disabled inside":
            with torch.autocast("cpu", enabled=False):
                return model(x)
        if where == "compile":
            return torch.compile(model, backend="eager")(x)
        return model(input=x) if where == "keyword" else model(x)

    dtype = {"float32": None, "float16": torch.float16}.get(where, torch.bfloat16)
    handle = register_module_forward_hook(lambda *_: None) if where == "global hook" else None
    try:
        torch.set_num_threads(2 if where == "two threads" else 1)
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            assert torch.equal(outcome(net), outcome(plain))
        assert not kernels
    finally:
        torch.set_num_threads(1)
        if handle is not None:
            handle.remove()


def test_a_batch_norm_in_eval_mode_uses_its_running_statistics(kernels: list[str]) -> None:
    net, x = small().eval(), rounded(random(3, 4, 8, 8))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    exact = copy.deepcopy(net).double()
    install(net)
    with bfloat16():
        found = net(x)
    assert kernels == ["convolve"]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    torch.testing.assert_close(found.double(), exact(x.double()), rtol=0.01, atol=0.01)


@pytest.mark.usefixtures("kernels")
def test_a_block_with_a_hook_or_a_frozen_norm() -> None:
    torch.manual_seed(0)
    model, x = ResidualNetwork(base=4), random(6, 3, 32, 32)
    exact, called = copy.deepcopy(model).double(), []
    model.body[3].residual.register_forward_hook(lambda *_: called.append(1))
    for network in (model, exact):
        network.body[4].residual[-1].eval()
    install(model)
    with bfloat16():
        found = model(x)
    assert called == [1]
    torch.testing.assert_close(found.double(), exact(x.double()), rtol=0.05, atol=0.05)


def test_float32_needs_full_and_no_gradient(kernels: list[str]) -> None:
    plain, x = sequence(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6).eval()), random(3, 4, 8, 8)
    for full, gradient in itertools.product((False, True), (False, True)):
        net = copy.deepcopy(plain)
        install(net, full=full)
        kernels.clear()
        with torch.set_grad_enabled(gradient):
            found = net(x)
        assert kernels == (["convolve"] if full and not gradient else [])
        assert_near(found, plain(x), 1e-5)


def test_a_checkpointed_body_runs_again_for_its_gradient(kernels: list[str]) -> None:
    net, x = small(), rounded(random(3, 4, 8, 8))
    install(net)
    with bfloat16():
        checkpoint(net, x, use_reentrant=False).square().sum().backward()
    assert kernels == ["convolve", "normalize"] * 2 + ["normalize_gradient", "gradients"]
    assert net[0].weight.grad is not None
