"""Where the kernels take torch's place: in the layers of an `nn.Sequential`, and in blocks that add two of them up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..batchnorm import move_statistics
from ..chain import listened_to, listened_to_everywhere, passes_rows_on
from ..gradients import ReplacedForwards
from .functions import Convolution, Form, convolve_in_full, is_images, is_row, layer
from .library import kernels_at_hand

Forward = Callable[[Tensor], Tensor]


def own_kernels(
    model: nn.Module,
    modules: Iterable[nn.Module] | None = None,
    *,
    dtype: torch.dtype = torch.bfloat16,
    full: bool = False,
) -> ReplacedForwards:
    """Inside the block, convolutions and batch-norms that stand in an `nn.Sequential` go through our own kernels.

    That is for models that run channels-last (``channels_last = True``), where a pass is in bfloat16 on a processor for
    which there are kernels, and torch computes with one thread (`torch.set_num_threads`); with ``full``, convolutions
    also where it is in float32 and no gradient is taken. Everywhere else, and for layers that somebody subclassed,
    hooked into or patched, it is torch's own to the bit. ``modules`` are the model's, for those who know them already;
    with another ``dtype`` than bfloat16, for passes that are not meant to be in it, the block does nothing.

    A ReLU right behind a batch-norm is done with it; and so is, for modules whose class says ``relu_of_sum =
    ("residual", "shortcut")``, the sum of what these two attributes make of the input.
    """
    meant = dtype == torch.bfloat16 and getattr(model, "channels_last", False) and torch.get_num_threads() == 1
    if not meant or not kernels_at_hand():
        return ReplacedForwards({})
    found = {module: _forward(module, full) for module in (model.modules() if modules is None else modules)}
    return ReplacedForwards({module: forward for module, forward in found.items() if forward is not None})


def _forward(module: nn.Module, full: bool) -> Callable[..., Tensor] | None:
    """What stands in the place of the module's own. What it is made of is looked at in every call: a model may hook
    into its layers, or exchange them, on its way."""
    sequence = isinstance(module, nn.Sequential) and passes_rows_on(type(module))
    if "forward" in vars(module) or not (sequence or "relu_of_sum" in vars(type(module))):
        return None
    planned = _sequence if sequence else _sum

    def forward(*arguments: Any, **keywords: Any) -> Tensor:
        if len(arguments) == 1 and not keywords and _is_at_work(arguments[0], full):
            ours = planned(module)  # type: ignore[arg-type]
            if ours is not None:
                return ours(arguments[0])
        own: Tensor = type(module).forward(module, *arguments, **keywords)
        return own

    return forward


def _is_at_work(x: Any, full: bool) -> bool:
    """Whether a pass is of a kind that the kernels know, and torch makes nothing else of it."""
    if not isinstance(x, Tensor) or not is_images(x) or torch.get_num_threads() != 1 or listened_to_everywhere():
        return False
    if torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return False
    return _get_current_dispatch_mode() is None and (_is_reduced() or (full and _is_full(x)))


def _is_reduced() -> bool:
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def _is_full(x: Tensor) -> bool:
    return x.dtype == torch.float32 and not (torch.is_autocast_enabled("cpu") or torch.is_grad_enabled())


def _sequence(module: nn.Sequential) -> Forward | None:
    layers = _layers(list(module))
    if not any(isinstance(each, Layer) for each in layers):
        return None

    def forward(x: Tensor) -> Tensor:
        for each in layers:
            x = each(x)
        return x

    return forward


def _sum(module: nn.Module) -> Forward | None:
    """relu(residual(x) + shortcut(x)), where the residual ends with a batch-norm."""
    residual, shortcut = (getattr(module, name) for name in type(module).relu_of_sum)  # type: ignore[attr-defined]
    if not isinstance(residual, nn.Sequential) or not passes_rows_on(type(residual)) or _is_changed(residual):
        return None
    layers = _layers(list(residual))
    last = layers[-1] if layers else None
    if not isinstance(last, Layer) or last.norm is None or last.relu is not None:
        return None

    def forward(x: Tensor) -> Tensor:
        rest = x
        for each in layers[:-1]:
            rest = each(rest)
        return last.closing(rest, shortcut(x))

    return forward


def _is_changed(module: nn.Module) -> bool:
    """Whether somebody listens, or put another forward in the place of its own; ours does not count."""
    held = vars(module)
    patched = "forward" in held and getattr(held["forward"], "__module__", None) != __name__
    return patched or any(held[f"_{kind}_hooks"] for kind in ("forward", "forward_pre", "backward", "backward_pre"))


@dataclass(frozen=True)
class Layer:
    """A convolution, a batch-norm, or one behind the other, with the ReLU that follows a batch-norm."""

    convolution: tuple[Convolution, Form] | None
    norm: nn.BatchNorm2d | None
    relu: nn.Module | None

    def __call__(self, x: Tensor) -> Tensor:
        x, convolution = self._entered(x)
        if self._normalises(x, convolution):
            return self._normalised(x, convolution, self.relu is not None)
        return self._apart(x, convolution)

    def closing(self, x: Tensor, added: Tensor) -> Tensor:
        """With what closes a residual block: a sum, and a ReLU."""
        x, convolution = self._entered(x)
        if not self._normalises(x, convolution):
            made = self._apart(x, convolution)
        elif is_images(added) and added.shape == _size(x, convolution):
            return self._normalised(x, convolution, True, added)
        else:
            made = self._normalised(x, convolution, False)
        made += added
        return made.relu()

    def _entered(self, x: Tensor) -> tuple[Tensor, tuple[Convolution, Form] | None]:
        """Where the convolution is not one for the kernels, what it makes of x, and none that is left to do."""
        if self.convolution is None:
            return x, None
        module, form = self.convolution
        taken = (_is_reduced() or _is_full(x)) and form.fits(x, module.weight, module.bias)
        return (x, self.convolution) if taken else (module(x), None)

    def _normalises(self, x: Tensor, convolution: tuple[Convolution, Form] | None) -> bool:
        """Whether batch-norm takes statistics of what comes, and these are images in bfloat16 of several pixels."""
        norm = self.norm
        if norm is None or not norm.training or not _is_reduced():
            return False
        if convolution is None and (not is_images(x) or x.dtype != torch.bfloat16):
            return False
        n, channels, height, width = _size(x, convolution)
        return n * height * width > 1 and is_row(norm.weight, channels) and is_row(norm.bias, channels)

    def _normalised(
        self, x: Tensor, convolution: tuple[Convolution, Form] | None, relu: bool, added: Tensor | None = None
    ) -> Tensor:
        assert self.norm is not None
        module, form = convolution or (None, None)
        made, mean, variance = layer(x, module, form, self.norm, relu, added)
        move_statistics(self.norm, mean, variance)
        return made

    def _apart(self, x: Tensor, convolution: tuple[Convolution, Form] | None) -> Tensor:
        """The convolution by the kernels, the rest by torch."""
        if convolution is not None:
            x = layer(x, *convolution)[0] if _is_reduced() else convolve_in_full(x, *convolution)
        for module in (self.norm, self.relu):
            x = x if module is None else module(x)
        return x


def _size(x: Tensor, convolution: tuple[Convolution, Form] | None) -> tuple[int, ...]:
    """Of what the convolution makes of x."""
    if convolution is None:
        return tuple(x.shape)
    module, form = convolution
    return form.size(x, module.weight)


def _layers(parts: list[nn.Module]) -> list[Layer | nn.Module]:
    """Parts that the kernels know, as many as they do at once; and the others as they are."""
    layers: list[Layer | nn.Module] = []
    while parts:
        convolution = norm = relu = None
        if _is_plain(parts[0], nn.Conv2d, nn.ConvTranspose2d):
            form = Form.of(parts[0])  # type: ignore[arg-type]
            if form is not None:
                convolution, parts = (parts[0], form), parts[1:]
        if parts and _is_plain(parts[0], nn.BatchNorm2d):
            norm, *parts = parts
            if parts and type(parts[0]) is nn.ReLU and not listened_to(parts[0]):
                relu, *parts = parts
        if convolution is None and norm is None:
            part, *parts = parts
            layers.append(part)
        else:
            layers.append(Layer(convolution, norm, relu))  # type: ignore[arg-type]
    return layers


def _is_plain(part: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether it is of one of these very kinds, nobody listens, and its weight is a parameter of its own."""
    return type(part) in kinds and "weight" in vars(part)["_parameters"] and not listened_to(part)
