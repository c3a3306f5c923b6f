"""A private copy of a model, for every pass that must leave the model as it is."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..undo import run

Mode = Literal["scoring", "evaluation", "training"]
Held = dict[str, Any]
PARTS = ("_modules", "_parameters", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Of a module: dicts whose entries change without the dict being replaced."""
STANDARD = frozenset(vars(nn.Module()))
CHANGEABLE = (list, set, dict)


class Place(NamedTuple):
    """Where a tensor is: in which dict of the model, in which of the copy, under which key, and its name."""

    live: Held
    own: Held
    key: str
    name: str
    is_buffer: bool


class Twin:
    """A copy of a model that holds no data of its own: it is called with the tensors that it is given.

    Scoring, look-ahead, prediction and diagnosis use it. Modes, buffers and parameters of the model itself never
    change, not even for a moment, so that other threads and interrupts find it as it is. The copy is renewed when a
    module, a parameter object, a hook or an attribute of the model changes (`Dropout.p`, say, or what a list, set or
    dict holds; inside other objects changes go unseen); modes, values, shapes, ``requires_grad`` and activations that
    the model keeps need no renewal. A model that cannot be copied, or that calls itself through a closure, is called
    itself, with its own tensors and modes restored afterwards; that is safe under the learner's lock alone.
    """

    def __init__(
        self, model: nn.Module, install: Callable[[nn.Module], None] | None = None, *, shared: bool = False
    ) -> None:
        """Take a model; it is copied when the twin is first used.

        Args:
            model: The model.
            install: Called with every copy, to make it faster.
            shared: Whether the copy computes with the model's own tensors: one for training.
        """
        self.model = self.module = model
        self._install, self._shared = install, shared
        self.modules: list[nn.Module] = []
        self._live: list[nn.Module] = []  # the model's, in the same order
        self._watched: list[Any] = []  # all dicts of the model's modules, and the keys of their buffers
        self._known: list[Any] = [None]  # the same, as they were when it was copied; it is not yet
        self._places: list[Place] = []
        self.has_batchnorm = False

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a twin begins anew."""
        return Twin(self.model, self._install, shared=self._shared).__dict__

    def follow(self) -> None:
        """Renew the copy if the model has changed."""
        for module, attributes in zip(self._live, self._known, strict=False):
            attributes["training"] = module.training
        try:
            same = self._watched == self._known or self._lasting() == self._known
        except (RuntimeError, ValueError):  # another tensor or array among the attributes
            same = False
        if not same:
            self._renew()

    def set_mode(self, mode: Mode) -> None:
        """Set the modes of the copy.

        Args:
            mode: ``evaluation`` is eval mode; ``scoring`` the same, but batch-norm uses the statistics of the batch;
                ``training`` is train mode. Modules that the user froze (in eval mode inside a model in train mode)
                remain so.
        """
        live = [module.training for module in self._live]
        for trains, own in zip(live, self.modules, strict=True):
            wanted = mode == "training" or (mode == "scoring" and isinstance(own, _BatchNorm))
            vars(own)["training"] = wanted and (trains or not live[0])  # ten times as fast as `own.training = `

    def in_mode(self, mode: Mode) -> nn.Module:
        """Return the copy, up to date and in this mode."""
        self.follow()
        self.set_mode(mode)
        return self.module

    def tensors(self) -> dict[str, Tensor]:
        """Return the model's parameters and copies of its buffers, by name."""
        return {
            name: tensor.clone() if is_buffer else tensor
            for held, _, key, name, is_buffer in self._places
            if (tensor := held.get(key)) is not None
        }

    def place(self, tensors: Mapping[str, Tensor]) -> None:
        """Let the copy compute with these tensors."""
        for _, held, key, name, _ in self._places:
            held[key] = tensors.get(name)

    def own_tensors(self) -> list[Any]:
        """Return the model's own tensors, to `put_back` after a call of a model that cannot be copied."""
        return [place.live.get(place.key) for place in self._places]

    def put_back(self, own: list[Any]) -> None:
        """Restore what `own_tensors` returned."""
        run(map(dict.__setitem__, [place.live for place in self._places], [place.key for place in self._places], own))

    def _lasting(self) -> list[Any]:
        """Return what is watched, without the activations that passes leave: all tensors if looks call the model."""
        looks = self.module is self.model
        return [_without_activations(own, looks) if isinstance(own, dict) else own for own in self._watched]

    def _renew(self) -> None:
        live = list(self.model.modules())
        held = [vars(module) for module in live] + [vars(module)[part] for module in live for part in PARTS]
        keys = [module._buffers.keys() for module in live]
        tensors = [*self.model.parameters(), *self.model.buffers()]
        memo: dict[int, Any] = {id(t): t.detach() for own in held for t in own.values() if _is_activation(t, False)}
        memo |= {id(t): t if self._shared else torch.empty_like(t, device="meta") for t in tensors}
        try:
            module = self.model if _calls_itself(held, live) else copy.deepcopy(self.model, memo)
            if self._install is not None and module is not self.model:
                self._install(module)
        except Exception:  # whatever a user's module raises
            module = self.model
        modules = list(module.modules())
        first: dict[int, str] = {}  # a tensor in several places has one name, its first, as in `named_parameters`
        places = []
        for (prefix, one), other in zip(self.model.named_modules(), modules, strict=True):
            for part in ("_parameters", "_buffers"):
                for key, tensor in vars(one)[part].items():
                    name = f"{prefix}.{key}".lstrip(".")
                    name = name if tensor is None else first.setdefault(id(tensor), name)
                    places.append(Place(vars(one)[part], vars(other)[part], key, name, part == "_buffers"))
        known = [_copied(_without_activations(own, module is self.model)) for own in held] + [*map(frozenset, keys)]
        self.has_batchnorm = any(isinstance(module, _BatchNorm) for module in live)
        # Last and at once: an interrupt must not leave half a copy.
        self.module, self.modules, self._places, self._live, self._watched, self._known = (
            module, modules, places, live, [*held, *keys], known
        )  # fmt: skip


def _is_activation(value: Any, looks: bool) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and (looks or value.grad_fn is not None)


def _without_activations(held: Held, looks: bool) -> Held:
    return {key: value for key, value in held.items() if not _is_activation(value, looks)}


def _copied(held: Held) -> Held:
    """Return attributes with copies of those that may be changed in place."""
    own = {key: value for key, value in held.items() if type(value) in CHANGEABLE and key not in STANDARD}
    return {**held, **{key: copy.copy(value) for key, value in own.items()}}


def _calls_itself(held: list[Held], modules: list[nn.Module]) -> bool:
    """Return whether a function among the attributes holds one of the modules, so that a copy would call the model."""
    own, seen = set(map(id, modules)), set[int]()
    values = [value for one in held for key, value in one.items() if key != "_compiled_call_impl"]  # is not copied
    left: list[Any] = [getattr(value, "__func__", value) for value in values]
    left = [value for value in left if isinstance(value, FunctionType)]
    while left:
        value = left.pop()
        if id(value) in own:
            return True
        if isinstance(value, MethodType):
            left += [value.__self__, value.__func__]
        elif isinstance(value, FunctionType) and id(value) not in seen:
            seen.add(id(value))
            left += gc.get_referents(*(value.__closure__ or ()))
            left += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            left += map(value.__globals__.get, value.__code__.co_names)  # of a notebook
    return False
