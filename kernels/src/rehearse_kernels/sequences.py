"""Forwards that use the kernels: in the layers of an `nn.Sequential`, and in blocks that add two branches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode

from .functions import Convolution, Form, convolve_float32, is_images, is_vector, layer
from .library import available
from .modules import has_global_hooks, has_hooks, is_unchanged, move_statistics, runs_in_order

Forward = Callable[[Tensor], Tensor]


def install(module: nn.Module, *, full: bool = False) -> None:
    """Let the convolutions and batch-norms of a module use the kernels.

    The forwards of the module's `nn.Sequential` parts are replaced permanently, so install the kernels only into a
    module of your own, for example a deep copy of a user's model. A deep copy of the module has forwards of its own.

    A call uses the kernels if it runs under bfloat16 autocast on the CPU with one thread (`torch.set_num_threads(1)`).
    Any other call, and layers that are subclassed, patched or have hooks, compute exactly what torch computes. This is
    checked in every call.

    A ReLU that follows a batch-norm is computed together with it. If the class of a block has an attribute such as
    ``relu_of_sum = ("residual", "shortcut")``, its forward must be relu(residual(x) + shortcut(x)), and that sum is
    computed together with the last batch-norm of the first branch.

    This function does nothing if the kernels are not `available`, or if the module has no ``channels_last = True``.

    Args:
        module: the module to change. It must accept images in the channels-last memory format, and say so with the
            attribute ``channels_last = True``.
        full: whether convolutions also use the kernels in float32, without autocast, where no gradient is recorded.
    """
    if not getattr(module, "channels_last", False) or not available():
        return
    for part in module.modules():
        if _can_be_replaced(part):
            vars(part)["forward"] = KernelForward(part, full)


def _can_be_replaced(module: nn.Module) -> bool:
    forward = vars(module).get("forward")
    if forward is not None and not isinstance(forward, KernelForward):
        return False
    return _is_sequence(module) or "relu_of_sum" in vars(type(module))


def _is_sequence(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and runs_in_order(type(module))


class KernelForward:
    """The forward of one module, which uses the kernels in the calls that they support.

    It is an object with a reference to the module, not a closure or a bound method of another object: `copy.deepcopy`
    copies the reference too, so that the forward of a copied module belongs to the copy.

    The layers are inspected in every call, because a model may add hooks to its layers or exchange them at any time.
    """

    def __init__(self, module: nn.Module, full: bool) -> None:
        self.module, self.full = module, full
        self._plan: Callable[[Any], Forward | None] = _sequence if _is_sequence(module) else _sum

    def __call__(self, *arguments: Any, **keywords: Any) -> Tensor:
        module = self.module
        if len(arguments) == 1 and not keywords and _is_supported(arguments[0], self.full):
            with_kernels = self._plan(module)
            if with_kernels is not None:
                return with_kernels(arguments[0])
        own: Tensor = type(module).forward(module, *arguments, **keywords)
        return own


def _is_supported(x: Any, full: bool) -> bool:
    """Return whether the kernels support this call, and no mode of torch gives it another meaning."""
    if torch.compiler.is_compiling() or not isinstance(x, Tensor) or not is_images(x):
        return False
    if torch.get_num_threads() != 1 or has_global_hooks():
        return False
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    return _get_current_dispatch_mode() is None and (_is_bfloat16() or (full and _is_float32(x)))


def _is_bfloat16() -> bool:
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def _is_float32(x: Tensor) -> bool:
    return x.dtype == torch.float32 and not (torch.is_autocast_enabled("cpu") or torch.is_grad_enabled())


def _sequence(module: nn.Sequential) -> Forward | None:
    """Return a forward of the whole sequence, or None if the kernels support none of its layers."""
    layers = _layers(list(module))
    if not any(isinstance(each, Layer) for each in layers):
        return None

    def forward(x: Tensor) -> Tensor:
        for each in layers:
            x = each(x)
        return x

    return forward


def _sum(module: nn.Module) -> Forward | None:
    """Return a forward relu(residual(x) + shortcut(x)), or None if the residual does not end with a batch-norm."""
    residual, shortcut = (getattr(module, name) for name in type(module).relu_of_sum)  # type: ignore[attr-defined]
    if not _is_sequence(residual) or _is_patched(residual) or has_hooks(residual):
        return None
    layers = _layers(list(residual))
    last = layers[-1] if layers else None
    if not isinstance(last, Layer) or last.norm is None or last.relu is not None:
        return None

    def forward(x: Tensor) -> Tensor:
        rest = x
        for each in layers[:-1]:
            rest = each(rest)
        return last.call_and_add(rest, shortcut(x))

    return forward


def _is_patched(module: nn.Module) -> bool:
    """Return whether the module has another forward than that of its class, other than ours."""
    attributes = vars(module)
    return "forward" in attributes and not isinstance(attributes["forward"], KernelForward)


@dataclass(frozen=True)
class Layer:
    """A convolution, a batch-norm, or both in this order, with the ReLU that follows a batch-norm."""

    convolution: tuple[Convolution, Form] | None
    norm: nn.BatchNorm2d | None
    relu: nn.Module | None

    def __call__(self, x: Tensor) -> Tensor:
        x, convolution = self._start(x)
        if self._can_normalize(x, convolution):
            return self._normalize(x, convolution, self.relu is not None)
        return self._run_separately(x, convolution)

    def call_and_add(self, x: Tensor, added: Tensor) -> Tensor:
        """Compute the layer, the sum that ends a residual block, and the ReLU of the sum."""
        x, convolution = self._start(x)
        if not self._can_normalize(x, convolution):
            total = self._run_separately(x, convolution)
        elif is_images(added) and added.shape == _size(x, convolution):
            return self._normalize(x, convolution, True, added)
        else:
            total = self._normalize(x, convolution, False)
        total += added
        return total.relu()

    def _start(self, x: Tensor) -> tuple[Tensor, tuple[Convolution, Form] | None]:
        """Return the input and the convolution that remains, or its output and None if torch has to compute it."""
        if self.convolution is None:
            return x, None
        module, form = self.convolution
        supported = (_is_bfloat16() or _is_float32(x)) and form.fits(x, module.weight, module.bias)
        return (x, self.convolution) if supported else (module(x), None)

    def _can_normalize(self, x: Tensor, convolution: tuple[Convolution, Form] | None) -> bool:
        """Return whether batch-norm uses the statistics of this batch, which has several bfloat16 pixels."""
        norm = self.norm
        if norm is None or not norm.training or not _is_bfloat16():
            return False
        if convolution is None and (not is_images(x) or x.dtype != torch.bfloat16):
            return False
        n, channels, height, width = _size(x, convolution)
        return n * height * width > 1 and is_vector(norm.weight, channels) and is_vector(norm.bias, channels)

    def _normalize(
        self, x: Tensor, convolution: tuple[Convolution, Form] | None, relu: bool, added: Tensor | None = None
    ) -> Tensor:
        assert self.norm is not None
        module, form = convolution or (None, None)
        output, mean, variance = layer(x, module, form, self.norm, relu, added)
        move_statistics(self.norm, mean, variance)
        return output

    def _run_separately(self, x: Tensor, convolution: tuple[Convolution, Form] | None) -> Tensor:
        """Compute the convolution with the kernels and the rest with torch."""
        if convolution is not None:
            x = layer(x, *convolution)[0] if _is_bfloat16() else convolve_float32(x, *convolution)
        for module in (self.norm, self.relu):
            x = x if module is None else module(x)
        return x


def _size(x: Tensor, convolution: tuple[Convolution, Form] | None) -> tuple[int, ...]:
    """Return the shape of the convolution's output."""
    if convolution is None:
        return tuple(x.shape)
    module, form = convolution
    return form.size(x, module.weight)


def _layers(parts: list[nn.Module]) -> list[Layer | nn.Module]:
    """Combine parts that the kernels support to layers, as many as one call computes; keep the others."""
    layers: list[Layer | nn.Module] = []
    while parts:
        convolution = norm = relu = None
        if _is_plain(parts[0], nn.Conv2d, nn.ConvTranspose2d):
            form = Form.of(parts[0])  # type: ignore[arg-type]
            if form is not None:
                convolution, parts = (parts[0], form), parts[1:]
        if parts and _is_plain(parts[0], nn.BatchNorm2d):
            norm, *parts = parts
            if parts and type(parts[0]) is nn.ReLU and is_unchanged(parts[0]):
                relu, *parts = parts
        if convolution is None and norm is None:
            part, *parts = parts
            layers.append(part)
        else:
            layers.append(Layer(convolution, norm, relu))  # type: ignore[arg-type]
    return layers


def _is_plain(part: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Return whether the part is exactly of one of these classes, is unchanged, and its weight is a parameter."""
    return type(part) in kinds and "weight" in vars(part)["_parameters"] and is_unchanged(part)
