"""The four C functions, written with torch in float64. They also check what the C functions assume about memory."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rehearse_kernels.library import Norm, Shape


def call(name: str, structure: Any, *arguments: Any) -> None:
    """Compute what `functions._call` computes, on any processor."""
    kernels = {
        "convolve": convolve,
        "gradients": gradients,
        "normalize": normalize,
        "normalize_gradient": normalize_gradient,
    }
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        kernels[name](structure._obj, *arguments)


def convolve(s: Shape, given: Tensor, weight: Tensor, bias: Tensor | None, made: Tensor, to_fine: bool) -> None:
    coarse, fine = (given, made) if to_fine else (made, given)
    check_shape(s, coarse, fine, weight)
    check_vectors(made.shape[1], bias)
    exact = to_fine_grid(s, given, weight) if to_fine else to_coarse_grid(s, given, weight)
    made.copy_(exact if bias is None else exact + bias.double()[:, None, None])


def gradients(
    s: Shape,
    coarse: Tensor,
    fine: Tensor,
    weight: Tensor,
    by_given: Tensor | None,
    by_weight: Tensor | None,
    given_coarse: bool,
) -> None:
    check_shape(s, coarse, fine, weight)
    assert coarse.dtype == torch.bfloat16
    if by_given is not None:
        check_images(by_given, coarse if given_coarse else fine)
        by_given.copy_(to_coarse_grid(s, fine, weight) if given_coarse else to_fine_grid(s, coarse, weight))
    if by_weight is not None:
        assert by_weight.stride() == weight.stride()
        sides = {"stride": s.stride, "padding": s.padding}
        by_weight.copy_(torch.nn.grad.conv2d_weight(fine.double(), weight.shape, coarse.double(), **sides))


def to_coarse_grid(s: Shape, fine: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(fine.double(), weight.to(fine.dtype).double(), stride=s.stride, padding=s.padding)


def to_fine_grid(s: Shape, coarse: Tensor, weight: Tensor) -> Tensor:
    size = (s.images, s.fine, s.height * s.stride, s.width * s.stride)
    rounded = weight.to(coarse.dtype).double()
    return torch.nn.grad.conv2d_input(size, rounded, coarse.double(), stride=s.stride, padding=s.padding)


def normalize(
    n: Norm,
    x: Tensor,
    added: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    y: Tensor,
    mean: Tensor,
    inverse: Tensor,
    variance: Tensor,
) -> None:
    check_norm(n, x, added, y)
    check_vectors(n.channels, weight, bias, mean, inverse, variance)
    axes, pixels = (0, 2, 3), x.double()
    mean.copy_(pixels.mean(axes))
    inverse.copy_((pixels.var(axes, correction=0) + n.epsilon).rsqrt())
    variance.copy_(pixels.var(axes))
    total = before_relu(pixels, added, weight, bias, mean, inverse)
    y.copy_(total.relu() if n.relu else total)


def normalize_gradient(
    n: Norm,
    gradient: Tensor,
    x: Tensor,
    added: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inverse: Tensor,
    by_x: Tensor,
    by_added: Tensor | None,
    by_weight: Tensor,
    by_bias: Tensor,
) -> None:
    check_norm(n, x, added, gradient, by_x, by_added)
    check_vectors(n.channels, weight, bias, mean, inverse, by_weight, by_bias)
    pixels, axes, slope = x.double(), (0, 2, 3), gradient.double()
    if n.relu:
        slope = slope * (before_relu(pixels, added, weight, bias, mean, inverse) > 0)
        if by_added is not None:
            by_added.copy_(slope)
    scaled = (pixels - columns(mean)) * columns(inverse)
    by_bias.copy_(slope.sum(axes))
    by_weight.copy_((slope * scaled).sum(axes))
    rest = slope - slope.mean(axes, keepdim=True) - scaled * (slope * scaled).mean(axes, keepdim=True)
    by_x.copy_(columns(weight) * columns(inverse) * rest)


def before_relu(
    pixels: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor
) -> Tensor:
    value = (pixels - columns(mean)) * columns(inverse) * columns(weight) + columns(bias)
    return value if added is None else value + added.double()


def columns(vector: Tensor) -> Tensor:
    return vector.double()[:, None, None]


# ------------------------------------------------------------------------------------------ what the C functions assume


def check_shape(s: Shape, coarse: Tensor, fine: Tensor, weight: Tensor) -> None:
    assert coarse.shape == (s.images, s.coarse, s.height, s.width)
    assert fine.shape == (s.images, s.fine, s.height * s.stride, s.width * s.stride)
    assert coarse.dtype == fine.dtype == (torch.float32 if s.full else torch.bfloat16)
    check_images(coarse)
    check_images(fine)
    assert weight.shape == (s.coarse, s.fine, s.kernel, s.kernel)
    assert weight.stride() == (s.weight_coarse, s.weight_fine, s.weight_y, s.weight_x)
    assert weight.dtype == torch.float32
    assert weight.is_cpu


def check_images(x: Tensor, like: Tensor | None = None) -> None:
    assert x.is_cpu
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert like is None or (x.shape == like.shape and x.dtype == like.dtype)


def check_norm(n: Norm, x: Tensor, *others: Tensor | None) -> None:
    assert (n.pixels, n.channels) == (x.shape[0] * x.shape[2] * x.shape[3], x.shape[1])
    assert x.dtype == torch.bfloat16
    for each in (x, *others):
        if each is not None:
            check_images(each, x)


def check_vectors(length: int, *vectors: Tensor | None) -> None:
    for each in vectors:
        if each is not None:
            assert each.shape == (length,)
            assert each.dtype == torch.float32
            assert each.is_contiguous()
