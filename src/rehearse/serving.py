"""Predictor: an immutable copy of what a learner predicts with, to serve from."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from .batch import Kind, Tree, checked_inputs, given, tree_concatenate, tree_leaves, tree_map, tree_parts
from .errors import InvalidInput
from .network import Network, Tensors
from .network.accelerate import kernels
from .network.twin import Mode, Twin


@final
@dataclass(frozen=True, repr=False)
class Predictor:
    """What a learner predicted with at one moment; `Learner.predictor` makes one.

    It shares nothing with the learner, has no lock, draws no random numbers and changes no mode, so any number of
    threads may use it at once. It can be pickled, if the model and `prepare` can, and sent to other processes.
    """

    _served: nn.Module
    _kind: Tree | None
    _collated: Callable[..., tuple[Tree, ...]] = given

    def predict(self, x: Tree) -> Tree:
        """Return the most likely class of each sample in ``x`` (values for regression, booleans for several labels)."""
        return decided(self.logits(x), self._kind)

    def predict_proba(self, x: Tree) -> Tree:
        """Return the probability of each class for inputs ``x``: softmax of the logits (sigmoid for several labels)."""
        return probabilities(self.logits(x), self._kind)

    @torch.no_grad()
    def logits(self, x: Tree) -> Tree:
        """Return the model's outputs for ``x``."""
        return evaluated(self._served, *self._collated(x))

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
        self, network: Network, tensors: Tensors | None = None, mode: Mode = "evaluation", until: str | None = None
    ) -> None:
        """Copy a network.

        Args:
            network: The network.
            tensors: Parameters and buffers by name; those that are missing are the network's own.
            mode: ``scoring`` if batch-norm uses the statistics of each batch; see `Twin.set_mode`.
            until: The name of a module at the end of the model, which then returns its input.

        Raises:
            InvalidInput: If the model cannot be copied.
        """
        twin = Twin(network.model)
        model = twin.in_mode(mode)
        if model is network.model:
            raise InvalidInput(
                f"the {network.name} cannot be copied by copy.deepcopy, and a predictor is a copy; give it a "
                "__deepcopy__, or predict with the learner itself"
            )
        live = twin.tensors()
        own = {name: tensor.detach().clone() for name, tensor in {**live, **(tensors or {})}.items()}
        trained = {name: nn.Parameter(own[name], False) for name in live if isinstance(live[name], nn.Parameter)}
        twin.place(own | trained)
        for norm in (module for module in model.modules() if module.training):
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None  # type: ignore[assignment]
            norm.training = False
        if until is not None:
            model.get_submodule(until).register_forward_hook(_input)
        shared = {name: getattr(network, name) for name in ("name", "precision", "prepare")}
        if network.observer is not None:  # it learns on
            shared["prepare"] = copy.deepcopy(network.observer)
        self.__setstate__({**shared, "model": model})

    def __getstate__(self) -> dict[str, Any]:
        """Leave compiled kernels out: another process may not have them."""
        return {name: value for name, value in vars(self).items() if name != "_fast"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what `__getstate__` returned."""
        vars(self).update(state)
        self._fast = Twin(self.model, kernels(), shared=True).in_mode("evaluation")

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def ask(self, method: str, x: Tree, tensors: Tensors | None = None, dtype: torch.dtype | None = None) -> Any:
        """Call a method of the model with prepared inputs; ``tensors`` are its own, whatever is given."""
        return self.call(self._fast, method, x, dtype)

    @contextlib.contextmanager
    def looking(self, mode: Mode) -> Iterator[None]:
        """Change no mode."""
        with torch.no_grad():
            yield


class Served(nn.Module):
    """From inputs to logits."""

    def __init__(self, network: FrozenNetwork, answer: Callable[[Network, Tree], Tree] = Network.logits) -> None:
        """Serve the answers of a network: by default its logits."""
        super().__init__()
        self.network, self.model = network, network.model  # registered, so that its tensors are this module's
        self.answer, self.training = answer, False

    def forward(self, x: Tree) -> Tree:
        """Return the logits of inputs."""
        return self.answer(self.network, x)


def evaluated(evaluate: Callable[[Tree], Tree], x: Tree) -> Tree:
    """Return the logits of inputs, computed in parts; refuse a single sample with the way to make it a batch."""
    x = checked_inputs(x)
    try:
        found = [evaluate(part) for part in tree_parts(x)]
    except InvalidInput:
        try:
            alone = tree_leaves(evaluate(tree_map(lambda leaf: leaf[None], x)))
        except InvalidInput:
            alone = []
        if alone and all(leaf.shape[1:].numel() == leaf.shape[-1] for leaf in alone):  # one row of logits each
            what = "x is one sample without the first dimension, which counts samples; pass a batch of one: x[None]"
            raise InvalidInput(what) from None
        raise
    return tree_concatenate(found)


def decided(logits: Tree, kind: Tree | None) -> Tree:
    """Return predictions, head by head: classes, booleans for several labels, or values."""
    return _by_head(logits, kind, torch.argmax, lambda head: head > 0)


def probabilities(logits: Tree, kind: Tree | None) -> Tree:
    """Return the probability of each class or label, head by head; a head of values has none, and stays."""
    if kind == "values":
        raise InvalidInput("this learner predicts values, not classes; there are no probabilities, use predict")
    return _by_head(logits, kind, torch.softmax, torch.sigmoid)


def _by_head(
    logits: Tree, kind: Tree | None, of_classes: Callable[..., Tensor], of_labels: Callable[..., Tensor]
) -> Tree:
    """Apply one function to heads of classes, with their dimension, and another to heads of labels."""

    def of_head(head: Tensor, kind: Kind | None) -> Tensor:
        if kind in ("labels", "values"):
            return of_labels(head) if kind == "labels" else head
        if head.ndim < 2:
            what = "without classes; one sample needs a batch dimension: x[None]"
            raise InvalidInput(f"the model returned shape {tuple(head.shape)}, {what}")
        return of_classes(head, dim=-1 if kind == "tokens" else 1)

    return tree_map(of_head, logits, kind if isinstance(kind, tuple | dict) else tree_map(lambda _: kind, logits))


def _input(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return inputs[0]
