"""A private copy of a model, for every pass that must leave the model as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Mode = Literal["scoring", "evaluation", "training"]
Held = dict[str, Any]
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Twin:
    """A copy of a model that holds no data of its own: it is called with the tensors that it is given.

    Scoring, look-ahead, prediction and diagnosis use it. Modes, buffers and parameters of the model itself never
    change, not even for a moment, so that other threads and interrupts find it as it is. The copy is renewed when a
    module, a hook or an attribute of the model changes (`Dropout.p`, say); modes, shapes and ``requires_grad`` need no
    renewal. A model that cannot be copied is called itself, with its own tensors and modes restored afterwards; that
    is safe under the learner's lock alone.
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
        self._live: list[nn.Module] = []
        self._attributes: list[Held] = []
        self._hooks: list[list[int]] = []
        self._modules: list[nn.Module] = []
        self._places: list[tuple[Held, Held, str, str, bool]] = []
        self.has_batchnorm = False

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a twin begins anew."""
        return Twin(self.model, self._install, shared=self._shared).__dict__

    def follow(self) -> None:
        """Renew the copy if the model has changed."""
        live = _modules(self.model)
        hooks = [[*module._forward_hooks, *module._forward_pre_hooks] for module in live]
        try:
            same = live == self._live and hooks == self._hooks
            for module, before in zip(live, self._attributes if same else (), strict=same):
                before["training"] = module.training
                same = same and module.__dict__ == before
        except (RuntimeError, ValueError):  # another tensor or array among the attributes
            same = False
        if not same:
            self._renew(live, hooks)

    def set_mode(self, mode: Mode) -> None:
        """Set the modes of the copy.

        Args:
            mode: ``evaluation`` is eval mode; ``scoring`` the same, but batch-norm uses the statistics of the batch;
                ``training`` is train mode. Modules that the user froze (in eval mode inside a model in train mode)
                remain so.
        """
        training = self.model.training
        for live, own in zip(self._live, self._modules, strict=True):
            wanted = mode == "training" or (mode == "scoring" and isinstance(own, _BatchNorm))
            wanted = wanted and (live.training or not training)
            if own.training != wanted:
                object.__setattr__(own, "training", wanted)  # nn.Module's own looks for parameters first

    def in_mode(self, mode: Mode) -> nn.Module:
        """Return the copy, up to date and in this mode."""
        self.follow()
        self.set_mode(mode)
        return self.module

    def tensors(self) -> dict[str, Tensor]:
        """Return the model's parameters and copies of its buffers, by name."""
        return {
            name: held[key].clone() if is_buffer else held[key]
            for held, _, key, name, is_buffer in self._places
            if held.get(key) is not None
        }

    def place(self, tensors: Mapping[str, Tensor]) -> list[Tensor] | None:
        """Let the copy compute with these tensors; returns the model's own if there is no copy, for `put_back`."""
        own = [held[key] for held, _, key, _, _ in self._places] if self.module is self.model else None
        for _, held, key, name, _ in self._places:
            held[key] = tensors.get(name)
        return own

    def put_back(self, own: list[Tensor] | None) -> None:
        """Restore the model's own tensors, if the model itself was called."""
        for (_, held, key, _, _), tensor in zip(self._places, own or (), strict=False):
            held[key] = tensor

    def _renew(self, live: list[nn.Module], hooks: list[list[int]]) -> None:
        tensors = [*self.model.parameters(), *self.model.buffers()]
        memo: dict[int, Any] = {id(t): t if self._shared else torch.empty_like(t, device="meta") for t in tensors}
        try:
            self.module = copy.deepcopy(self.model, memo)
            if self._install is not None:
                self._install(self.module)
        except Exception:  # whatever a user's module raises
            self.module = self.model
        self._live, self._hooks, self._attributes = live, hooks, [dict(module.__dict__) for module in live]
        self._modules = _modules(self.module)
        names = {id(module): name for name, module in self.model.named_modules()}
        first: dict[int, str] = {}  # a tensor in several places has one name, its first, as in `named_parameters`
        self._places = []
        for module, own in zip(live, self._modules, strict=True):
            for held, twins, is_buffer in (
                (module._parameters, own._parameters, 0),
                (module._buffers, own._buffers, 1),
            ):
                for key, tensor in held.items():
                    if tensor is not None:
                        name = first.setdefault(id(tensor), f"{names[id(module)]}.{key}".lstrip("."))
                        self._places.append((held, twins, key, name, bool(is_buffer)))
        self.has_batchnorm = any(isinstance(module, _BatchNorm) for module in live)


def _modules(model: nn.Module) -> list[nn.Module]:
    """Return what ``model.modules()`` does, in a third of its time."""
    found: dict[nn.Module, None] = {}
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is not None and module not in found:
            found[module] = None
            waiting += reversed(module._modules.values())
    return list(found)
