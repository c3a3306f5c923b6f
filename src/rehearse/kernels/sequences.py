"""Where the kernels take torch's place: in the layers of an `nn.Sequential`, and in blocks that add two of them up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..batchnorm import move_statistics
from ..chain import listened_to, listened_to_everywhere, passes_rows_on
from ..gradients import ReplacedForwards
from .functions import Convolution, Form, convolve_in_full, layer
from .library import kernels_at_hand

Forward = Callable[[Tensor], Tensor]


def own_kernels(modules: Iterable[nn.Module], *, full: bool = False) -> ReplacedForwards:
    """Inside the block, convolutions and batch-norms that stand in an `nn.Sequential` go through our own kernels.

    That is where a pass is in bfloat16 on a processor for which there are kernels, and torch computes with one thread
    (`torch.set_num_threads`); with ``full``, convolutions also where it is in float32 and no gradient is taken.
    Everywhere else, and for layers that somebody subclassed, hooked into or patched, it is torch's own to the bit.

    A ReLU right behind a batch-norm is done with it; and so is, for modules whose class says ``relu_of_sum =
    ("residual", "shortcut")``, the sum of what these two attributes make of the input.
    """
    if not _is_at_work(full) or listened_to_everywhere() or not kernels_at_hand():
        return ReplacedForwards({})
    forwards: dict[nn.Module, Forward] = {}
    inside: set[nn.Module] = set()  # blocks that go through the kernels as a whole
    for module in modules:
        forward = None if module in inside else _forward(module, full)
        if forward is not None:
            forwards[module] = forward
            if not isinstance(module, nn.Sequential):
                inside.add(_summands(module)[0])
    return ReplacedForwards(forwards)


def _is_at_work(full: bool) -> bool:
    """Whether passes are of a kind that the kernels know, with one thread, and torch makes nothing else of them."""
    if torch.get_num_threads() != 1 or torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling():
        return False
    return _is_reduced() or (full and not (torch.is_autocast_enabled("cpu") or torch.is_grad_enabled()))


def _is_reduced() -> bool:
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def _forward(module: nn.Module, full: bool) -> Forward | None:
    """What stands in the place of the module's own, or None."""
    if isinstance(module, nn.Sequential):
        made = _sequence(module)
    else:
        made = _sum(module) if "relu_of_sum" in vars(type(module)) else None
    if made is None:
        return None
    ours: Forward = made

    def forward(input: Tensor) -> Tensor:
        if _is_at_work(full) and input.device.type == "cpu":
            return ours(input)
        own: Tensor = type(module).forward(module, input)
        return own

    return forward


def _sequence(module: nn.Sequential) -> Forward | None:
    if not passes_rows_on(type(module)) or "forward" in vars(module):
        return None
    layers = _layers(list(module))
    if not any(isinstance(each, Layer) for each in layers):
        return None

    def forward(input: Tensor) -> Tensor:
        for each in layers:
            input = each(input)
        return input

    return forward


def _sum(module: nn.Module) -> Forward | None:
    """relu(residual(x) + shortcut(x)), where the residual ends with a batch-norm."""
    residual, shortcut = _summands(module)
    if not isinstance(residual, nn.Sequential) or not passes_rows_on(type(residual)):
        return None
    layers = [] if listened_to(module) or listened_to(residual) else _layers(list(residual))
    last = layers[-1] if layers else None
    if not isinstance(last, Layer) or last.norm is None or last.relu is not None:
        return None

    def forward(input: Tensor) -> Tensor:
        rest = input
        for each in layers[:-1]:
            rest = each(rest)
        return last.closing(rest, shortcut(input))

    return forward


def _summands(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    residual, shortcut = (getattr(module, name) for name in type(module).relu_of_sum)  # type: ignore[attr-defined]
    return residual, shortcut


@dataclass(frozen=True)
class Layer:
    """A convolution, a batch-norm, or one behind the other, with the ReLU that follows a batch-norm."""

    convolution: Convolution | None
    form: Form | None
    norm: nn.BatchNorm2d | None
    relu: nn.Module | None

    def __call__(self, x: Tensor) -> Tensor:
        return self._passed(x, None, self.relu is not None)

    def closing(self, x: Tensor, added: Tensor) -> Tensor:
        """With what closes a residual block: a sum, and a ReLU."""
        return self._passed(x, added, True)

    def _passed(self, x: Tensor, added: Tensor | None, relu: bool) -> Tensor:
        convolution, form, norm = self.convolution, self.form, self.norm
        if convolution is not None and not (form is not None and form.fits(x) and _is_known(x)):
            x, convolution, form = convolution(x), None, None
        if norm is not None and _is_reduced() and _normalises(norm, x, convolution, form):
            made, mean, variance = layer(x, convolution, form, norm, relu, added)
            move_statistics(norm, mean, variance)
            return made
        if convolution is not None and form is not None:
            x = layer(x, convolution, form)[0] if _is_reduced() else convolve_in_full(x, convolution, form)
        x = x if norm is None else norm(x)
        x = x if added is None else x + added
        return x if not relu else x.relu() if self.relu is None else self.relu(x)


def _is_known(x: Tensor) -> bool:
    return _is_reduced() or x.dtype == torch.float32


def _normalises(norm: nn.BatchNorm2d, x: Tensor, convolution: Convolution | None, form: Form | None) -> bool:
    """Whether it takes statistics of what comes, and these are images in bfloat16 with more than one pixel."""
    if not norm.training or norm.weight is None:
        return False
    if convolution is not None and form is not None:
        n, channels, height, width = form.size(x, convolution.weight)
    elif x.ndim == 4 and x.dtype == torch.bfloat16:
        n, channels, height, width = x.shape
    else:
        return False
    return channels == norm.num_features and n * height * width > 1


def _layers(parts: list[nn.Module]) -> list[Layer | nn.Module]:
    """Parts that the kernels know, as many as they do at once; and the others as they are."""
    layers: list[Layer | nn.Module] = []
    while parts:
        convolution = norm = relu = form = None
        if _is_plain(parts[0], nn.Conv2d, nn.ConvTranspose2d):
            form = Form.of(parts[0])  # type: ignore[arg-type]
            convolution, parts = (parts[0], parts[1:]) if form is not None else (None, parts)
        if parts and _is_plain(parts[0], nn.BatchNorm2d):
            norm, *parts = parts
            if parts and type(parts[0]) is nn.ReLU and not listened_to(parts[0]):
                relu, *parts = parts
        if convolution is None and norm is None:
            part, *parts = parts
            layers.append(part)
        else:
            layers.append(Layer(convolution, form, norm, relu))  # type: ignore[arg-type]
    return layers


def _is_plain(part: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether it is of one of these very kinds, nobody listens, and its parameters are its own, in full precision."""
    if type(part) not in kinds or listened_to(part):
        return False
    parameters = vars(part)["_parameters"]
    return "weight" in parameters and all(each is None or each.dtype == torch.float32 for each in parameters.values())
