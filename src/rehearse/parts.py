"""What a model is made of, looked up in one walk through its modules.

Torch needs 30 µs to list the parameters of three layers, and a step of a small model asks a dozen times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .chain import Link, chain_of
from .errors import CheckpointError

Stepped = Mapping[str, tuple[Tensor, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Parts:
    """A model's modules, and by name its buffers and the parameters that a step moves.

    ``stepped`` has the parameters that are trainable and in the optimiser, each with its parameter group. ``linears``
    are the linear layers that are what torch made them: not subclassed, parametrised or patched. ``tied`` says that
    some parameter or buffer stands in more than one place. ``chain`` are the links of a model that is nothing but a
    chain of linear layers.
    """

    modules: list[nn.Module]
    linears: list[nn.Linear]
    chain: tuple[Link, ...] | None
    stepped: Stepped
    device: torch.device
    tied: bool
    _buffers: list[tuple[str, dict[str, Tensor | None], str]]

    def buffers(self) -> dict[str, Tensor]:
        """The buffers as they are now: a module may put another tensor in the place of one."""
        return {name: value for name, holder, key in self._buffers if (value := holder.get(key)) is not None}

    def buffer_copies(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.buffers().items()}


def parts_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Parts:
    """The parts of a model as of now."""
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    modules: list[nn.Module] = []
    stepped: dict[str, tuple[Tensor, dict[str, Any]]] = {}
    buffers: list[tuple[str, dict[str, Tensor | None], str]] = []
    met: set[int] = set()
    places = 0
    device: torch.device | None = None
    linears: list[nn.Linear] = []
    for start, module in _named_modules(model, "", set()):
        modules.append(module)
        if type(module) is nn.Linear and "forward" not in vars(module) and "weight" in module._parameters:
            linears.append(module)
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            places += 1
            device = device or parameter.device
            known = id(parameter)
            if known not in met and known in groups and parameter.requires_grad:
                stepped[start + name] = (parameter, groups[known])
            met.add(known)
        for name, buffer in module._buffers.items():
            if buffer is None:
                continue
            places += 1
            if id(buffer) not in met:
                buffers.append((start + name, module._buffers, name))
            met.add(id(buffer))
    tied = places != len(met)
    chain = None if tied else chain_of(model)
    return Parts(modules, linears, chain, stepped, device or torch.device("cpu"), tied, buffers)


def _named_modules(module: nn.Module, start: str, met: set[int]) -> list[tuple[str, nn.Module]]:
    """`named_modules` with a full stop after the names, as a list: half the time of torch's generators."""
    if id(module) in met:
        return []
    met.add(id(module))
    found = [(start, module)]
    for name, part in module._modules.items():
        if part is not None:
            found += _named_modules(part, f"{start}{name}.", met)
    return found


def stepped_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> Stepped:
    """The parameters that a step moves: trainable and in the optimiser; each with its parameter group."""
    return parts_of(model, optimizer).stepped


def buffer_copies(model: nn.Module) -> dict[str, Tensor]:
    """Copies that a pass may move in place of the model's own."""
    met: set[int] = set()
    copies: dict[str, Tensor] = {}
    for start, module in _named_modules(model, "", set()):
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in met:
                met.add(id(buffer))
                copies[start + name] = buffer.clone()
    return copies


class Substitutes:
    """Inside the block a model computes with these tensors in place of its own of the same names, wherever they stand.

    What `torch.func.functional_call` does for one call; here the places are looked up once for any number of them.
    """

    def __init__(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        places: list[tuple[dict[str, Any], str, int]] = []
        instead: dict[int, Tensor] = {}
        left = set(tensors)
        for start, module in _named_modules(model, "", set()):
            for held in (module._parameters, module._buffers):
                for key, value in held.items():
                    if value is None:
                        continue
                    places.append((held, key, id(value)))
                    name = start + key
                    if name in left:
                        instead[id(value)] = tensors[name]
                        left.remove(name)
        if left:
            raise KeyError(f"the model has no {', '.join(sorted(left))}")
        self._places = [(held, key, instead[value]) for held, key, value in places if value in instead]

    def __enter__(self) -> None:
        self._own = [held[key] for held, key, _ in self._places]
        for held, key, tensor in self._places:
            held[key] = tensor

    def __exit__(self, *exception: object) -> None:
        for (held, key, _), own in zip(self._places, self._own, strict=True):
            held[key] = own


class KeptBuffers:
    """The buffers of modules as they are now, to be put back: also those that are created, replaced, resized or
    dropped on the way."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._kept = [
            (module._buffers, {key: (value, _copied(value)) for key, value in module._buffers.items()})
            for module in modules
        ]

    @torch.no_grad()
    def put_back(self) -> None:
        for held, kept in self._kept:
            for key in held.keys() - kept.keys():
                del held[key]
            for key, (own, copy) in kept.items():
                if own is None or copy is None or own.shape != copy.shape:
                    held[key] = copy
                else:
                    own.copy_(copy)
                    held[key] = own


def _copied(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.clone()


def unsaved_copies(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the buffers that torch leaves out of a state, but that a pass may move."""
    saved = model.state_dict()
    return {name: buffer.clone() for name, buffer in model.named_buffers() if name not in saved}


def load_unsaved(model: nn.Module, copies: Mapping[str, Tensor]) -> None:
    """Take back what `unsaved_copies` gave."""
    saved = model.state_dict()
    unsaved = {name: buffer for name, buffer in model.named_buffers() if name not in saved}
    if copies.keys() != unsaved.keys():
        raise CheckpointError("the model's buffers are others than those that were saved")
    for name, buffer in unsaved.items():
        buffer.copy_(copies[name])
