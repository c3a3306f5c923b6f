"""Models that are linear layers and ReLUs one after the other, passed and differentiated by hand.

A small model's step is made of calls rather than of arithmetic: on the MNIST network, autograd and the modules' own
ceremony take as long as the products. What such a model computes is known, and so is its gradient:

    a₀ = x,   zₖ = aₖ₋₁ Wₖᵀ + bₖ,   aₖ = max(zₖ, 0)
    Δₖ₋₁ = (Δₖ Wₖ) · [aₖ₋₁ > 0],    ∇Wₖ = Δₖᵀ aₖ₋₁,    ∇bₖ = Σ Δₖ
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from .batch import pick
from .errors import InvalidInput

stopped = torch.ops.aten.threshold_backward.default  # Δ where the ReLU let something through, else 0


class Link(NamedTuple):
    """A linear layer by its name in the model, whether its inputs are flattened first, and whether a ReLU follows."""

    name: str
    linear: nn.Linear
    flattens: bool
    relu: bool

    @property
    def weight(self) -> str:
        return f"{self.name}.weight"

    @property
    def bias(self) -> str:
        return f"{self.name}.bias"


def chain_of(model: nn.Module) -> tuple[Link, ...] | None:
    """The model's linear layers in order, if it is nothing but flattening, linear layers and ReLUs in a row, nobody
    listens, and every parameter is one to train."""
    if not isinstance(model, nn.Sequential) or listened_to_everywhere():
        return None
    start: nn.Module = model
    while isinstance(start, nn.Sequential) and len(start):
        start = next(iter(start))
    links: list[Link] = []
    if not _follow(model, "", links, type(start) is nn.Flatten) or not links:
        return None
    if len({id(link.linear) for link in links}) < len(links):
        return None
    shapes = [link.linear.weight.shape for link in links]
    fits = all(before[0] == after[1] for before, after in pairwise(shapes))
    return tuple(links) if fits else None


def _follow(module: nn.Module, name: str, links: list[Link], flattens: bool) -> bool:
    """Append the links of a module; False if there is something in it that is not understood."""
    held = vars(module)
    if listened_to(module):
        return False
    if isinstance(module, nn.Sequential) and passes_rows_on(type(module)):
        start = f"{name}." if name else ""
        return all(_follow(part, start + key, links, flattens) for key, part in held["_modules"].items())
    if type(module) is nn.Linear:
        parameters = held["_parameters"]
        for parameter in parameters.values():
            if parameter is not None and (not parameter.requires_grad or parameter._backward_hooks):
                return False
        links.append(Link(name, module, flattens=flattens and not links, relu=False))
        return "weight" in parameters
    if type(module) is nn.ReLU and links:
        last = links[-1]
        links[-1] = Link(last.name, last.linear, last.flattens, relu=True)
        return True
    return flattens_rows(module) and not links


def listened_to(module: nn.Module) -> bool:
    """Whether somebody hooked into this module, or put another forward in the place of its own."""
    held = vars(module)
    return bool(
        "forward" in held
        or held["_forward_hooks"]
        or held["_forward_pre_hooks"]
        or held["_backward_hooks"]
        or held["_backward_pre_hooks"]
    )


def flattens_rows(module: nn.Module) -> bool:
    return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)


def passes_rows_on(kind: type[nn.Module]) -> bool:
    """Whether a subclass of `nn.Sequential` passes rows on as that does."""
    return all(getattr(kind, name) is getattr(nn.Sequential, name) for name in ("forward", "__call__", "__iter__"))


def offers(model: nn.Module, method: str) -> bool:
    """Whether the very class of a model has this method, and nothing on the object stands in the place of the class's
    own: what a subclass or a patch changes, a pass by hand that was written before does not know."""
    own = vars(type(model))
    return method in own and not vars(model).keys() & own.keys()


def listened_to_everywhere() -> bool:
    """Whether somebody hooked into all modules there are."""
    return bool(
        hooks._global_forward_hooks
        or hooks._global_forward_pre_hooks
        or hooks._global_backward_hooks
        or hooks._global_backward_pre_hooks
    )


def can_pass(links: Sequence[Link], arguments: tuple[object, ...]) -> bool:
    """Whether these inputs go through as rows of the first layer's kind, with nothing in torch that reinterprets it."""
    if len(arguments) != 1 or not isinstance(arguments[0], Tensor):
        return False
    x, weight = arguments[0], links[0].linear.weight
    rows = x.ndim == 2 or (x.ndim > 2 and links[0].flattens)
    fits = rows and len(x) > 0 and x.dtype == weight.dtype and not x.requires_grad and x[0].numel() == weight.shape[1]
    plain = not torch.is_autocast_enabled(x.device.type) and not torch._C._are_functorch_transforms_active()
    return fits and plain


class ChainPass:
    """One forward pass, and what its gradient needs: the inputs of every link. ``scores`` is where autograd starts."""

    def __init__(self, links: Sequence[Link], inputs: list[Tensor], scores: Tensor) -> None:
        self.links, self.inputs = links, inputs
        self.scores = scores.requires_grad_()
        self._version = inputs[0]._version
        self._under = [(link.linear.weight, link.linear.weight._version) for link in links]

    @property
    def current(self) -> bool:
        """Whether the weights are still those that the pass was made under."""
        now = zip(self._under, self.links, strict=True)
        return all(weight is link.linear.weight and weight._version == version for (weight, version), link in now)

    def rows(self, picked: Tensor) -> ChainPass:
        """The pass of some of its rows: they do not depend on each other."""
        with torch.no_grad():
            return ChainPass(self.links, [pick(each, picked) for each in self.inputs], pick(self.scores, picked))

    def deltas(self, of_scores: Tensor) -> list[Tensor]:
        """Δ of every link, from the gradient of the scores."""
        if self.inputs[0]._version != self._version:
            raise InvalidInput("the inputs of this batch were changed in place after their pass; use a copy instead")
        outputs = [*self.inputs[1:], self.scores]
        found: list[Tensor] = []
        delta = of_scores
        with torch.no_grad():
            for link, output in zip(reversed(self.links), reversed(outputs), strict=True):
                if found:
                    delta = delta @ self.links[len(self.links) - len(found)].linear.weight
                if link.relu:
                    delta = stopped(delta, output, 0)
                found.append(delta)
        return found[::-1]


@torch.no_grad()
def pass_chain(links: Sequence[Link], x: Tensor) -> ChainPass:
    """Pass rows through a chain; only for inputs that `can_pass`."""
    x = x.flatten(1)
    inputs: list[Tensor] = []
    for link in links:
        inputs.append(x)
        x = F.linear(x, link.linear.weight, link.linear.bias)
        if link.relu:
            x = x.relu_()
    return ChainPass(links, inputs, x)
