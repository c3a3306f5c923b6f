"""Convolution and batch-norm as autograd functions that call the kernels: bfloat16 in and out, sums in float32."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .library import Norm, Shape, library

FILLED: Final = 32  # channels that fill two registers
WIDEST: Final = 160  # most channels for which the kernels have been measured
LARGEST: Final = 2**28  # most numbers in an image: the kernels use 32-bit distances
aten: Final = torch.ops.aten
Convolution = nn.Conv2d | nn.ConvTranspose2d


@dataclass(frozen=True)
class Form:
    """The options of a convolution that the kernels support.

    A convolution relates a coarse grid of pixels to a fine grid, which is ``stride`` times as wide and high. A plain
    convolution computes the coarse grid from the fine one, a transposed convolution the fine grid from the coarse one.
    """

    kernel: int
    stride: int
    padding: int
    transposed: bool

    @classmethod
    def of(cls, module: Convolution) -> Form | None:
        """Return the options of a module, or None if the kernels do not support it."""
        if module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str):
            return None
        sides = (module.kernel_size, module.stride, module.padding, module.dilation, module.output_padding)
        plain = all(isinstance(side, tuple) for side in sides)  # users may have assigned numbers
        return _form(*sides, isinstance(module, nn.ConvTranspose2d)) if plain else None

    def fits(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        """Return whether the kernels can read these images, this weight and this bias."""
        shape, into = (self.kernel, self.kernel), 1 if self.transposed else 0
        if not is_images(x) or weight.shape[2:] != shape or x.shape[1] != weight.shape[1 - into]:
            return False
        if not _is_dense(weight) or (bias is not None and not is_vector(bias, weight.shape[into])):
            return False
        if math.prod(self.size(x, weight)[1:]) > LARGEST:
            return False
        if self.transposed:
            return True
        made = [(side + 2 * self.padding - self.kernel) // self.stride + 1 for side in x.shape[2:]]
        return all(side == self.stride * small for side, small in zip(x.shape[2:], made, strict=True))

    def size(self, x: Tensor, weight: Tensor) -> tuple[int, int, int, int]:
        """Return the shape of the output for these images."""
        n, _, height, width = x.shape
        if self.transposed:
            return n, weight.shape[1], height * self.stride, width * self.stride
        return n, weight.shape[0], height // self.stride, width // self.stride

    def shape(self, coarse: Tensor, weight: Tensor) -> Any:
        """Return the shape that the kernels expect as their first argument."""
        n, channels, height, width = coarse.shape
        sides = (n, height, width, self.stride, self.kernel, self.padding, channels, weight.shape[1])
        return ctypes.byref(Shape(*sides, *weight.stride(), coarse.dtype == torch.float32))

    @property
    def options(self) -> tuple[Any, ...]:
        """Stride, padding, dilation, transposed, output padding and groups, in the order of torch's own kernels."""
        return [self.stride] * 2, [self.padding] * 2, [1, 1], self.transposed, [0, 0], 1


@functools.cache
def _form(
    kernels: tuple[int, ...],
    strides: tuple[int, ...],
    paddings: tuple[int, ...],
    dilations: tuple[int, ...],
    more: tuple[int, ...],
    transposed: bool,
) -> Form | None:
    if any(len(set(sides)) > 1 for sides in (kernels, strides, paddings)) or set(dilations) != {1} or any(more):
        return None
    kernel, stride, padding = kernels[0], strides[0], paddings[0]
    near = padding <= stride and kernel - 1 - padding < 2 * stride  # every term is in a pixel or one of its neighbors
    supported = near and kernel <= 4 and stride <= 2 and (not transposed or kernel - 2 * padding == stride)
    return Form(kernel, stride, padding, transposed) if supported else None


# The kernels receive addresses, so these functions check what lies there.


def _is_memory(values: Tensor) -> bool:
    """Return whether the tensor is nothing more than numbers at its address."""
    plain = type(values) in (Tensor, nn.Parameter) and values.is_cpu and values.layout == torch.strided
    return plain and values.numel() > 0 and not values.is_neg()


def is_images(x: Tensor) -> bool:
    """Return whether the kernels can read these as a batch of images."""
    plain = x.ndim == 4 and x.dtype in (torch.bfloat16, torch.float32) and _is_memory(x)
    return plain and x.numel() <= LARGEST * len(x)


def is_vector(values: Tensor | None, length: int) -> bool:
    """Return whether these are float32 numbers without gaps, one for each of ``length`` channels."""
    if values is None or values.shape != (length,) or values.dtype != torch.float32:
        return False
    return _is_memory(values) and values.is_contiguous()


def _is_dense(weight: Tensor) -> bool:
    """Return whether this is a float32 weight without gaps."""
    if weight.dtype != torch.float32 or not _is_memory(weight):
        return False
    return weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)


# ------------------------------------------------------------------------------------------------------------ layers


def layer(
    x: Tensor,
    convolution: Convolution | None,
    form: Form | None,
    norm: nn.BatchNorm2d | None = None,
    relu: bool = False,
    added: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute relu(norm(convolution(x)) + added), in which everything except x is optional.

    Args:
        x: images, which are converted to bfloat16.
        convolution: the convolution, or None.
        form: its options, or None without a convolution.
        norm: the batch-norm, which uses the statistics of this batch, or None.
        relu: whether to apply a ReLU. Without a batch-norm it is ignored, and so is ``added``.
        added: images to add before the ReLU, or None.

    Returns:
        The output, and the mean and the unbiased variance of each channel before normalization (None without a norm).
    """
    weights = (None, None) if convolution is None else (convolution.weight, convolution.bias)
    scales = (None, None) if norm is None else (norm.weight, norm.bias)
    rest = None if added is None else _bfloat16(added)
    epsilon = None if norm is None else norm.eps
    made: tuple[Tensor, Tensor, Tensor] = _Layer.apply(  # type: ignore[no-untyped-call]
        _bfloat16(x), *weights, *scales, rest, form, epsilon, relu
    )
    return made


@torch.no_grad()
def convolve_float32(x: Tensor, convolution: Convolution, form: Form) -> Tensor:
    """Compute a convolution in float32, without a gradient."""
    return _convolve(x.contiguous(memory_format=torch.channels_last), convolution.weight, convolution.bias, form)


class _Layer(torch.autograd.Function):
    """A whole layer as one autograd function, because autograd's overhead per function is high for small images."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        scale: Tensor | None,
        offset: Tensor | None,
        added: Tensor | None,
        form: Form | None,
        epsilon: float | None,
        relu: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        ctx.form, ctx.epsilon, ctx.relu = form, epsilon, relu
        cast, convolved = None, x
        if weight is not None and form is not None:
            cast = None if _is_faster(weight, form, False) else weight.to(x.dtype)  # for torch, forward and backward
            convolved = _convolve(x, weight, bias, form, cast)
        given = (x, weight, bias, scale, offset, added, cast)
        if epsilon is None:
            ctx.save_for_backward(*given)
            return convolved, None, None
        mean, inverse, variance = torch.empty(3, convolved.shape[1], dtype=torch.float32, device="cpu").unbind()
        made = torch.empty_like(convolved)
        norm = _norm(convolved, epsilon, relu)
        _call("normalize", norm, convolved, added, scale, offset, made, mean, inverse, variance)
        ctx.save_for_backward(*given, convolved, mean, inverse)
        ctx.mark_non_differentiable(mean, variance)
        return made, mean, variance

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: every access unpacks them again
        given, cast, normalized = saved[:6], saved[6], saved[7:]
        if torch.is_grad_enabled():
            return (*_differentiable(ctx, given, gradient), None, None, None)
        x, weight, _, scale, offset, added = given
        for_x, for_weight, for_bias, *_ = ctx.needs_input_grad
        gradient = _bfloat16(gradient)
        by_x = by_weight = by_bias = by_scale = by_offset = by_added = None
        if normalized:
            convolved, mean, inverse = normalized
            convolved, added = _bfloat16(convolved), None if added is None else _bfloat16(added)
            scale, offset, mean, inverse = map(_float32, (scale, offset, mean, inverse))
            by_convolved, by_scale, by_offset = (torch.empty_like(each) for each in (convolved, scale, offset))
            by_added = None if added is None else torch.empty_like(added) if ctx.relu else gradient
            norm, by = _norm(convolved, ctx.epsilon, ctx.relu), (by_convolved, by_added, by_scale, by_offset)
            _call("normalize_gradient", norm, gradient, convolved, added, scale, offset, mean, inverse, *by)
            by_x = gradient = by_convolved
        if ctx.form is not None:
            weight = weight if _is_dense(weight) else _float32(weight)
            by_x, by_weight = _gradients(_bfloat16(x), gradient, weight, ctx.form, for_x, for_weight, cast)
            by_bias = gradient.sum((0, 2, 3), dtype=weight.dtype) if for_bias else None
        return by_x, by_weight, by_bias, by_scale, by_offset, by_added, None, None, None


def _differentiable(ctx: Any, given: Sequence[Tensor | None], gradient: Tensor) -> list[Tensor | None]:
    """Compute the gradient with torch's own operations, so that it can be differentiated again."""
    given = [None if each is None else each.view_as(each) for each in given]  # one input may depend on another
    x, weight, bias, scale, offset, added = given
    made = x
    if weight is not None and ctx.form is not None and x is not None:
        cast = None if bias is None else bias.to(x.dtype)
        made = aten.convolution(x, weight.to(x.dtype), cast, *ctx.form.options)
    if ctx.epsilon is not None and made is not None:
        made = F.batch_norm(made, None, None, scale, offset, training=True, eps=ctx.epsilon)
        made = made if added is None else made + added
        made = F.relu(made) if ctx.relu else made
    wanted = [each for each, needed in zip(given, ctx.needs_input_grad[:6], strict=True) if needed]
    found = iter(torch.autograd.grad(made, wanted, gradient, create_graph=True, allow_unused=True))  # type: ignore[arg-type]
    return [next(found) if needed else None for needed in ctx.needs_input_grad[:6]]


# ------------------------------------------------------------------------------------------------------------ kernels


def _is_faster(weight: Tensor, form: Form, to_fine: bool) -> bool:
    """Return whether our kernel is faster than torch's for this weight.

    It is with few channels, and for a fine grid that is computed from a coarse one, if the channels do not fill
    registers.
    """
    channels = weight.shape[:2]
    if to_fine and form.stride > 1:
        return max(channels) <= WIDEST and any(each % FILLED for each in channels)
    return max(channels) < FILLED


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, form: Form, cast: Tensor | None = None) -> Tensor:
    """Compute a convolution. ``cast`` is the weight in the dtype of x, if the caller has it already."""
    if not _is_faster(weight, form, form.transposed):
        offset = None if bias is None else bias.to(x.dtype)
        plain: Tensor = aten.convolution(x, weight.to(x.dtype) if cast is None else cast, offset, *form.options)
        return plain.contiguous(memory_format=torch.channels_last)  # torch may choose another layout for one channel
    made = torch.empty(form.size(x, weight), dtype=x.dtype, device="cpu", memory_format=torch.channels_last)
    _call("convolve", form.shape(x if form.transposed else made, weight), x, weight, bias, made, form.transposed)
    return made


def _gradients(
    x: Tensor, gradient: Tensor, weight: Tensor, form: Form, for_x: bool, for_weight: bool, cast: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the gradients of x and of the weight; None for one that is not needed."""
    by_x = torch.empty_like(x) if for_x and _is_faster(weight, form, not form.transposed) else None
    by_weight = torch.empty_like(weight) if for_weight and _is_faster(weight, form, False) else None
    if by_x is not None or by_weight is not None:
        coarse, fine = (x, gradient) if form.transposed else (gradient, x)
        _call("gradients", form.shape(coarse, weight), coarse, fine, weight, by_x, by_weight, form.transposed)
    rest = [for_x and by_x is None, for_weight and by_weight is None, False]
    if any(rest):
        plain = weight.to(x.dtype) if cast is None else cast
        others = aten.convolution_backward(gradient, x, plain, None, *form.options, rest)
        by_x = others[0] if rest[0] else by_x
        by_weight = others[1].to(weight.dtype) if rest[1] else by_weight
    return by_x, by_weight


def _call(name: str, structure: Any, *given: Tensor | bool | None) -> None:
    """Call one function of the extension with the addresses of tensors."""
    arguments = [each.data_ptr() if isinstance(each, Tensor) else each for each in given]
    if getattr(library(), name)(structure, *arguments):
        raise MemoryError(
            "not enough memory for a convolution or batch-norm of images of this size; use smaller batches"
        )


def _norm(x: Tensor, epsilon: float, relu: bool) -> Any:
    n, channels, height, width = x.shape
    return ctypes.byref(Norm(n * height * width, channels, relu, epsilon))


def _float32(values: Tensor) -> Tensor:
    """Return float32 without gaps: hooks on saved tensors may have changed dtype and layout."""
    return values.to(torch.float32).contiguous()


def _bfloat16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
