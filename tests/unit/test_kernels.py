"""The kernels compute what torch does: against float64, shape by shape."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from having_kernels import HALF_A_DIGIT, assert_near, needs_kernels, random, recorded, reduced, rounded, sequence
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from rehearse.kernels import functions, own_kernels, why_not
from rehearse.kernels.functions import Form, convolve_in_full, layer

pytestmark = needs_kernels


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
