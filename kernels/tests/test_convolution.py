"""Convolutions and their gradients, compared with float64."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernel_fixtures import HALF_A_DIGIT, assert_near, bfloat16, random, rounded, sequence
from rehearse_kernels import functions, install
from rehearse_kernels.functions import Form, convolve_float32, layer

PLAIN = [Form(k, s, p, False) for k, s, p in [(3, 1, 1), (1, 1, 0), (3, 2, 1), (1, 2, 0), (4, 2, 1), (2, 2, 0)]]
TRANSPOSED = [Form(k, s, p, True) for k, s, p in [(4, 2, 1), (2, 2, 0), (3, 1, 1), (1, 1, 0)]]
# torch computes wider layers, and rounds sums to bfloat16 on processors without bfloat16 instructions.
WIDEST = 45 if torch.cpu._is_avx512_bf16_supported() else functions.FILLED - 1


def convolution(form: Form, before: int, after: int, bias: bool = True) -> nn.Conv2d | nn.ConvTranspose2d:
    """Return a convolution whose weights are bfloat16 numbers, so that only the kernels round."""
    torch.manual_seed(before * 100 + after)
    kind = nn.ConvTranspose2d if form.transposed else nn.Conv2d
    module = kind(before, after, form.kernel, form.stride, form.padding, bias=bias)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return module.to(memory_format=torch.channels_last)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(PLAIN + TRANSPOSED),
    st.integers(1, WIDEST),
    st.integers(1, WIDEST),
    st.integers(1, 9),
    st.integers(1, 20),
    st.integers(1, 40),
    st.booleans(),
)
@pytest.mark.usefixtures("kernels")
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
    found = torch.autograd.grad(made, (x, *module.parameters()), gradient)
    expected = torch.autograd.grad(exact, (exact_x, *exact_module.parameters()), gradient.double())
    for own, right in zip(found, expected, strict=True):
        assert_near(own, right, HALF_A_DIGIT)
    if max(before, after) < functions.FILLED:  # the gradient of the weight is not rounded to bfloat16
        assert_near(found[1], expected[1], 2e-5)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("form", PLAIN + TRANSPOSED)
@pytest.mark.parametrize(("before", "after"), [(3, 20), (20, 3), (20, 20), (31, 7)])
def test_a_convolution_in_float32(form: Form, before: int, after: int) -> None:
    x, module = random(7, before, 12, 6), convolution(form, before, after)
    made = convolve_float32(x, module, form)
    assert_near(made, module.double()(x.double()), 3e-6)


@pytest.mark.usefixtures("kernels")
def test_all_strips_contribute_to_the_gradient_of_the_weight() -> None:
    """A strip holds 40 images of 4 × 4; the last strip has fewer and must not contain images of the previous one."""
    form, module = PLAIN[0], convolution(PLAIN[0], 20, 20)
    x, gradient = rounded(random(110, 20, 4, 4)), rounded(random(110, 20, 4, 4, seed=1))

    def by_weight(samples: slice) -> Tensor:
        return torch.autograd.grad(layer(x[samples], module, form)[0], module.weight, gradient[samples])[0]

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
def test_torch_computes_unsupported_convolutions(kernels: list[str], module: nn.Module) -> None:
    net, x = sequence(module, nn.Flatten()), rounded(random(3, 4, 9, 9))
    plain = copy.deepcopy(net)
    install(net)
    with bfloat16():
        assert torch.equal(net(x), plain(x))
    assert not kernels


def test_torch_computes_sides_that_the_stride_does_not_divide(kernels: list[str]) -> None:
    net = sequence(nn.Conv2d(4, 4, 3, stride=2, padding=1))
    install(net)
    for side, calls in [(8, ["convolve"]), (9, [])]:
        kernels.clear()
        with bfloat16():
            net(random(2, 4, side, side))
        assert kernels == calls
