"""Predictor: an immutable copy of what a learner predicts with, to serve from."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .accelerate import kernels
from .batch import Kind, Tree, checked_inputs, tree_map, tree_parts
from .errors import InvalidInput
from .losses import at_least_float32
from .network import Network
from .twin import Mode


@final
@dataclass(frozen=True, repr=False)
class Predictor:
    """What a learner predicted with at one moment; `Learner.predictor` makes one.

    It shares nothing with the learner, has no lock, draws no random numbers and changes no mode, so any number of
    threads may use it at once. It can be pickled, if the model and `prepare` can, and sent to other processes.
    """

    _served: nn.Module
    _kind: Kind | None

    def predict(self, x: Tree) -> Tensor:
        """Return the most likely class of each sample (values for regression, booleans for several labels)."""
        return decided(self.logits(x), self._kind)

    def predict_proba(self, x: Tree) -> Tensor:
        """Return the probability of each class: softmax of the logits (sigmoid for several labels)."""
        check_has_probabilities(self._kind)
        return probabilities(self.logits(x), self._kind)

    @torch.no_grad()
    def logits(self, x: Tree) -> Tensor:
        """Return the model's outputs."""
        found = [self._served(part) for part in tree_parts(checked_inputs(x))]
        return found[0] if len(found) == 1 else torch.cat(found)

    def module(self) -> nn.Module:
        """Return a new module in eval mode that does what `logits` does, for `torch.export.export` and the like.

        It takes inputs as `predict` does, `prepare` included, and does not check them.
        """
        return copy.deepcopy(self._served)

    def __repr__(self) -> str:
        """Name the model."""
        return f"Predictor({type(self._served.model).__name__})"


class FrozenNetwork(Network):
    """A network in eval mode with tensors of its own, which never change."""

    def __init__(
        self,
        network: Network,
        tensors: Mapping[str, Tensor],
        *,
        batch_statistics: bool = False,
        until: str | None = None,
    ) -> None:
        """Copy a network.

        Args:
            network: The network; inside its `looking`.
            tensors: Parameters and buffers by name; those that are missing are the network's own.
            batch_statistics: Whether batch-norm uses the statistics of each batch, as in the mode ``scoring``.
            until: The name of a module at the end of the model, to return its input in place of its output.

        Raises:
            InvalidInput: If the model cannot be copied.
        """
        self.name, self.precision, self.prepare = network.name, network.precision, network.prepare
        self._device = network.device
        self.model = _copied(network, tensors)
        for live, own in zip(network.model.modules(), self.model.modules(), strict=True):
            own.training = False
            if batch_statistics and isinstance(own, _BatchNorm) and (live.training or not network.model.training):
                own.running_mean = own.running_var = own.num_batches_tracked = None
        if until is not None:
            self.model = _without(self.model, until)
        self._fast = self._with_kernels()

    def __getstate__(self) -> dict[str, Any]:
        """Leave compiled kernels out: another process may not have them."""
        return {name: value for name, value in vars(self).items() if name != "_fast"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what `__getstate__` returned."""
        vars(self).update(state)
        self._fast = self._with_kernels()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._device

    def ask(
        self, method: str, x: Tree, tensors: Mapping[str, Tensor] | None = None, dtype: torch.dtype | None = None
    ) -> Any:
        """Call a method of the model with prepared inputs; ``tensors`` are its own, whatever is given."""
        return self.call(self._fast, method, x, dtype)

    @contextlib.contextmanager
    def looking(self, mode: Mode) -> Iterator[None]:
        """Change no mode."""
        with torch.no_grad():
            yield

    def _with_kernels(self) -> nn.Module:
        """Return a copy that shares the tensors and uses compiled kernels, if there are any."""
        install = kernels()
        if install is None:
            return self.model
        fast = copy.deepcopy(self.model, {id(t): t for t in (*self.model.parameters(), *self.model.buffers())})
        install(fast)
        return fast


class Served(nn.Module):
    """From inputs to logits."""

    def __init__(self, network: FrozenNetwork) -> None:
        """Serve from a network."""
        super().__init__()
        self.network, self.model = network, network.model  # registered, so that its tensors are this module's
        self.training = False

    def ready(self, x: Tree) -> Tree:
        """Return inputs as the model takes them."""
        device = self.network.device
        return self.network.prepare(tree_map(lambda leaf: leaf if leaf.device == device else leaf.to(device), x))

    def forward(self, x: Tree) -> Tensor:
        """Return the logits of inputs."""
        return at_least_float32(self.network(self.ready(x)))


def decided(logits: Tensor, kind: Kind | None) -> Tensor:
    """Return predictions: classes, booleans for several labels, or values."""
    if kind == "values":
        return logits
    return logits > 0 if kind == "labels" else logits.argmax(1)


def probabilities(logits: Tensor, kind: Kind | None) -> Tensor:
    """Return the probability of each class or label."""
    return logits.sigmoid() if kind == "labels" else logits.softmax(1)


def check_has_probabilities(kind: Kind | None) -> None:
    """Refuse to give probabilities of values."""
    if kind == "values":
        raise InvalidInput("this learner predicts values, not classes; there are no probabilities, use predict")


def _without(model: nn.Module, name: str) -> nn.Module:
    """Return the model with the module of this name replaced by nothing."""
    if not name:
        return nn.Identity()
    model.set_submodule(name, nn.Identity())
    return model


def _copied(network: Network, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of the model with copies of these tensors, which need no gradient."""
    memo: dict[int, Any] = {}
    for named in (network.model.named_parameters(), network.model.named_buffers()):
        for name, live in named:
            own = tensors.get(name, live).detach().clone()
            memo[id(live)] = nn.Parameter(own, requires_grad=False) if isinstance(live, nn.Parameter) else own
    try:
        return copy.deepcopy(network.model, memo)
    except Exception as problem:  # whatever a user's module raises
        raise InvalidInput(
            f"the {network.name} cannot be copied ({problem}), and a predictor is a copy; give it a __deepcopy__, or "
            "predict with the learner itself"
        ) from problem
