"""The kernels compute what torch does: against float64, shape by shape, and inside the paper's networks."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from having_kernels import needs_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from rehearse.batch import Batch
from rehearse.kernels import functions, own_kernels, why_not
from rehearse.kernels.functions import Form, convolve_in_full, layer
from rehearse.learners import AutoencoderReplay, CodeSearch, Replay
from rehearse.memory import ReservoirMemory
from rehearse.nets import ConvAutoencoder, ReducedResNet18
from rehearse.retrieval import MostInterfered

pytestmark = needs_kernels
HALF_A_DIGIT = 2.0**-8  # bfloat16 has eight bits; half of the last one, and the sums' own rounding


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16)


def assert_near(found: Tensor, exact: Tensor, relative: float) -> None:
    """Each number to so many digits, those near zero as well as sums of such numbers allow."""
    spread = exact.detach().double().square().mean().sqrt()
    torch.testing.assert_close(found.double(), exact.double(), rtol=relative, atol=2e-5 * float(spread) + 1e-30)


def reduced() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


def sequence(*parts: nn.Module) -> nn.Sequential:
    """Parts in a row, of a model that says it runs channels-last."""
    net = nn.Sequential(*parts)
    net.channels_last = True
    return net


def convolution(form: Form, before: int, after: int, bias: bool = True) -> nn.Conv2d | nn.ConvTranspose2d:
    torch.manual_seed(before * 100 + after)
    kind = nn.ConvTranspose2d if form.transposed else nn.Conv2d
    made = kind(before, after, form.kernel, form.stride, form.padding, bias=bias)
    with torch.no_grad():  # the weights that the kernels round to, so that nothing but the kernels is measured
        for parameter in made.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return made.to(memory_format=torch.channels_last)


PLAIN = [Form(k, s, p, False) for k, s, p in [(3, 1, 1), (1, 1, 0), (3, 2, 1), (1, 2, 0), (4, 2, 1), (2, 2, 0)]]
TRANSPOSED = [Form(k, s, p, True) for k, s, p in [(4, 2, 1), (2, 2, 0), (3, 1, 1), (1, 1, 0)]]


# ------------------------------------------------------------------------------------------------------ convolutions


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(PLAIN + TRANSPOSED),
    st.integers(1, 45),
    st.integers(1, 45),
    st.integers(1, 9),
    st.integers(1, 20),
    st.integers(1, 40),
    st.booleans(),
)
def test_a_convolution_and_its_gradients(
    form: Form, before: int, after: int, height: int, width: int, images: int, bias: bool
) -> None:
    step = 1 if form.transposed else form.stride
    x = rounded(random(images, before, height * step, width * step)).requires_grad_()
    module = convolution(form, before, after, bias)
    assert Form.of(module) == form
    assert form.fits(x, module.weight, module.bias)
    made = layer(x, module, form)[0]
    exact_module = copy.deepcopy(module).double()
    exact_x = x.detach().double().requires_grad_()
    exact = exact_module(exact_x)
    assert made.shape == exact.shape
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert_near(made, exact, HALF_A_DIGIT)
    gradient = rounded(random(*made.shape, seed=1))
    wanted = (x, *module.parameters())
    found = torch.autograd.grad(made, wanted, gradient)
    expected = torch.autograd.grad(exact, (exact_x, *exact_module.parameters()), gradient.double())
    for own, right in zip(found, expected, strict=True):
        assert_near(own, right, HALF_A_DIGIT)
    if max(before, after) < functions.FILLED:  # by the weight, sums are not rounded
        assert_near(found[1], expected[1], 2e-5)


@pytest.mark.parametrize("form", PLAIN + TRANSPOSED)
@pytest.mark.parametrize(("before", "after"), [(3, 20), (20, 3), (20, 20), (31, 7)])
def test_a_convolution_in_float32(form: Form, before: int, after: int) -> None:
    x, module = random(7, before, 12, 6), convolution(form, before, after)
    made = convolve_in_full(x, module, form)
    assert_near(made, module.double()(x.double()), 3e-6)


def test_every_tile_of_a_strip_counts() -> None:
    """Images of 4 × 4 stand forty in a strip; a last strip with fewer has nothing left of the one before."""
    form, module = PLAIN[0], convolution(PLAIN[0], 20, 20)
    x, gradient = rounded(random(110, 20, 4, 4)), rounded(random(110, 20, 4, 4, seed=1))

    def by_weight(rows: slice) -> Tensor:
        return torch.autograd.grad(layer(x[rows], module, form)[0], module.weight, gradient[rows])[0]

    parts = sum(by_weight(slice(start, start + 1)).double() for start in range(110))
    assert_near(by_weight(slice(None)), parts, 2e-5)


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(4, 4, 5, padding=2),
        nn.Conv2d(4, 4, 3, padding=0),
        nn.Conv2d(4, 4, 3, stride=3, padding=1),
        nn.Conv2d(4, 4, (3, 1), padding=(1, 0)),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.Conv2d(4, 4, 3, padding=2, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.ConvTranspose2d(4, 4, 4, stride=2, padding=1, output_padding=1),
        nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1),
    ],
)
def test_what_the_kernels_do_not_know_is_left_to_torch(module: nn.Module) -> None:
    net = sequence(module, nn.Flatten())
    x = rounded(random(3, 4, 9, 9))
    with reduced(), own_kernels(net):
        found = net(x)
    with reduced():
        assert torch.equal(found, net(x))


def test_sides_that_do_not_divide_are_left_to_torch() -> None:
    net = sequence(nn.Conv2d(4, 4, 3, stride=2, padding=1))
    for side, ours in [(8, True), (9, False)]:
        with recorded() as calls, reduced(), own_kernels(net):
            net(random(2, 4, side, side))
        assert bool(calls) is ours


# -------------------------------------------------------------------------------------------------------- batch-norm


class Block(nn.Module):
    """A batch-norm alone, its sum and its ReLU in torch's own order."""

    def __init__(self, channels: int, relu: bool, **options: Any) -> None:
        super().__init__()
        self.norm, self.relu = nn.BatchNorm2d(channels, **options), relu
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor, added: Tensor | None) -> Tensor:
        made = self.norm(x) if added is None else self.norm(x) + added
        return F.relu(made) if self.relu else made


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 70),
    st.integers(1, 5),
    st.integers(2, 9),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 3.0, -100.0]),
)
def test_a_batch_norm_and_its_gradients(
    channels: int, images: int, side: int, relu: bool, adds: bool, mean: float
) -> None:
    torch.manual_seed(channels)
    block = Block(channels, relu)
    x = rounded(2 * random(images, channels, side, side) + mean).requires_grad_()
    added = rounded(random(*x.shape, seed=2)).requires_grad_() if adds else None
    exact = copy.deepcopy(block).double()
    exact_x, exact_added = (each if each is None else each.detach().double().requires_grad_() for each in (x, added))
    made, means, variances = layer(x, None, None, block.norm, relu, added)
    right = exact(exact_x, exact_added)
    assert_near(made, right, HALF_A_DIGIT)
    axes = (0, 2, 3)
    assert_near(means, exact_x.mean(axes), 1e-5)
    assert_near(variances, exact_x.var(axes), 1e-4)
    gradient = rounded(random(*made.shape, seed=1))
    before = exact.norm(exact_x.detach()) + (0 if exact_added is None else exact_added.detach())
    gradient = gradient * (before.abs() > 1e-3)  # a hair's breadth from zero the ReLU may go either way
    wanted = [each for each in (x, *block.norm.parameters(), added) if each is not None]
    others = [each for each in (exact_x, *exact.norm.parameters(), exact_added) if each is not None]
    found = torch.autograd.grad(made, wanted, gradient)
    expected = torch.autograd.grad(right, others, gradient.double())
    for own, value in zip(found, expected, strict=True):
        torch.testing.assert_close(own.double(), value, rtol=HALF_A_DIGIT, atol=float(value.abs().max()) * 2e-4 + 1e-7)


@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"momentum": 0.3, "eps": 0.1}, {"track_running_stats": False}]
)
def test_running_statistics_move_as_torchs_do(options: dict[str, Any]) -> None:
    ours, theirs = (sequence(nn.BatchNorm2d(20, **options), nn.ReLU()) for _ in range(2))
    for seed in range(3):
        x = rounded(random(5, 20, 6, 6, seed=seed) + seed)
        with reduced():
            with own_kernels(ours), recorded() as calls:
                found = ours(x)
            assert calls == ["normalise"]
            assert_near(found, theirs(x), 2 * HALF_A_DIGIT)
    for name, buffer in theirs.named_buffers():
        torch.testing.assert_close(dict(ours.named_buffers())[name], buffer, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none(value: float) -> None:
    x = rounded(random(2, 4, 3, 3))
    x[0, 1, 0, 0] = value
    made = layer(x, None, None, nn.BatchNorm2d(4), True)[0]
    assert not made[:, 1].isfinite().any()
    assert made[:, [0, 2, 3]].isfinite().all()


def test_one_pixel_a_channel_is_refused_as_torch_does() -> None:
    net = sequence(nn.BatchNorm2d(4))
    with reduced(), own_kernels(net), pytest.raises(ValueError, match="more than 1 value per channel"):
        net(rounded(random(1, 4, 1, 1)))


# -------------------------------------------------------------------------------------------------- in whole networks


def recorded() -> Any:
    """The names of the kernels that are called in the block."""
    calls: list[str] = []
    own = functions._call

    class Block:
        def __enter__(self) -> list[str]:
            functions._call = lambda name, *rest: (calls.append(name), own(name, *rest))[1]
            return calls

        def __exit__(self, *exception: object) -> None:
            functions._call = own

    return Block()


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


# ------------------------------------------------------------------------------------------ what must not reach them


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


def test_candidates_are_scored_through_the_kernels() -> None:
    torch.manual_seed(0)
    model = ReducedResNet18(base=20)
    replay = Replay(
        model, torch.optim.SGD(model.parameters(), lr=0.05), ReservoirMemory(50), MostInterfered(candidates=20)
    )
    replay.observe(random(10, 3, 32, 32), torch.arange(10) % 2, 0)
    with recorded() as calls:
        replay.observe(random(10, 3, 32, 32, seed=1), torch.arange(10) % 2 + 2, 1)
    assert calls.count("normalise") == 2 * 20  # before the step and after it; training is in float32


@pytest.mark.parametrize(("rows", "channels", "side"), [(110, 16, 32), (40, 64, 84), (110, 20, 32)])
def test_the_variance_keeps_its_digits_in_many_and_uneven_pixels(rows: int, channels: int, side: int) -> None:
    x = random(rows, channels, side, side) + 10
    x[0, :, :4] = 0  # dark lines first
    x = rounded(x)
    _, mean, variance = layer(x, None, None, nn.BatchNorm2d(channels))
    exact = x.double()
    torch.testing.assert_close(mean.double(), exact.mean((0, 2, 3)), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variance.double(), exact.var((0, 2, 3)), rtol=1e-4, atol=0)


def test_they_compile_where_they_are_meant_to() -> None:
    assert why_not() is None


# ---------------------------------------------------------------------------------------------------- in a learner


def learner(seed: int = 0) -> AutoencoderReplay:
    torch.manual_seed(seed)
    classifier, coder = ReducedResNet18(base=4, input_shape=(3, 32, 32)), ConvAutoencoder((3, 32, 32), channels=4)
    return AutoencoderReplay(
        classifier,
        torch.optim.SGD(classifier.parameters(), lr=0.05),
        coder,
        torch.optim.Adam(coder.parameters()),
        ReservoirMemory(30),
        search=CodeSearch(candidates=20),
        budget=10,
        autoencoder_epochs=1,
        autoencoder_budget=10,
        precision="bfloat16",
    )


def learned(subject: AutoencoderReplay, steps: range) -> AutoencoderReplay:
    for step in steps:
        x, y, task = random(10, 3, 32, 32, seed=step).tanh(), torch.arange(10) % 2 + 2 * (step // 3), step // 3
        if step % 3 == 0:
            subject.begin_task(Batch(x, y, task), task)
        subject.observe(x, y, task)
    return subject


class Checkpointed(ReducedResNet18):
    """Passes its body again when its gradient is taken."""

    def features(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=False)


class Viewing(nn.Module):
    """Views what its convolutions give as flat rows, which takes torch's usual layout."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU())
        self.head = nn.Linear(5 * 8 * 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.f(x)
        return self.head(h.view(len(h), -1))


@pytest.mark.parametrize("precision", ["auto", "bfloat16"])
@pytest.mark.parametrize("kind", ["checkpointed", "viewing"])
def test_models_that_torch_takes_are_taken(kind: str, precision: str) -> None:
    torch.manual_seed(0)
    model = Viewing() if kind == "viewing" else Checkpointed(4, base=4)
    side = 8 if kind == "viewing" else 32
    replay = Replay(
        model,
        torch.optim.SGD(model.parameters(), lr=0.05),
        ReservoirMemory(50),
        MostInterfered(candidates=20),
        precision=precision,
    )
    with recorded() as calls:
        for step in range(4):
            replay.observe(random(10, 3, side, side, seed=step), torch.arange(10) % 2 + 2 * (step // 2), step // 2)
    assert bool(calls) is (kind == "checkpointed")


def test_a_search_before_there_is_a_previous_classifier() -> None:
    subject = learner()
    for step in range(3):  # without tasks all that is stored may be recalled, from the second batch on
        subject.observe(random(10, 3, 32, 32, seed=step).tanh(), torch.arange(10) % 2)
    assert subject.previous is None
    assert subject.search is not None
    assert subject.search.report()["searches"] == 2
    assert not any("forward" in vars(module) for module in subject.model.modules())


def test_a_learner_goes_on_to_the_bit_and_two_are_alike() -> None:
    with recorded() as calls:
        whole = learned(learner(), range(6))
    assert {"convolve", "normalise", "gradients", "normalise_gradient"} == set(calls)
    again = learner(1)
    again.load_state_dict(learned(learner(), range(4)).state_dict())
    learned(again, range(4, 6))
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])
    for name, value in whole.autoencoder.state_dict().items():
        assert torch.equal(value, again.autoencoder.state_dict()[name])
    x = random(8, 3, 32, 32, seed=9)
    assert torch.equal(whole.predict_proba(x), again.predict_proba(x))
