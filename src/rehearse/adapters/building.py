"""What both adapters build: a replaying learner from plain settings."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import nn

from ..batchnorm import BatchNormPolicy
from ..errors import InvalidInput, InvalidType
from ..heads import outputs
from ..learners import Replay
from ..memory import ClassBalancedMemory, Memory, ReservoirMemory, RingMemory
from ..nets import MLP
from ..random import seed_sequence
from ..retrieval import MostInterfered, Retrieval, Uniform

Network: TypeAlias = nn.Module | Callable[[tuple[int, ...], int], nn.Module] | None

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
MEMORIES: dict[str, type[Memory]] = {
    "reservoir": ReservoirMemory,
    "class-balanced": ClassBalancedMemory,
    "ring": RingMemory,
}
RETRIEVALS = ("most-interfered", "uniform")


def build_learner(
    network: Network,
    input_shape: tuple[int, ...],
    classes: int,
    *,
    hidden: Sequence[int],
    optimizer: str,
    learning_rate: float,
    memory: str,
    memory_size: Any,
    retrieval: str,
    candidates: Any,
    budget: Any,
    updates: Any,
    seed: int,
    batchnorm: str | BatchNormPolicy = "auto",
) -> Replay:
    """A learner for that many classes; a network with fewer outputs is grown, one with more keeps the spare ones."""
    _check_choice("optimizer", optimizer, OPTIMIZERS)
    if isinstance(learning_rate, bool) or not isinstance(learning_rate, Real) or not learning_rate > 0:
        raise InvalidInput(f"learning_rate is {learning_rate!r}; it must be positive")
    model = _build_network(network, input_shape, classes, hidden, seed)
    learner = Replay(
        model,
        OPTIMIZERS[optimizer](model.parameters(), lr=float(learning_rate)),
        _build_memory(memory, memory_size, seed),
        _build_retrieval(retrieval, candidates, optimizer),
        budget=whole("budget", budget),
        updates=whole("updates", updates),
        batchnorm=batchnorm,
        seed=seed,
    )
    if outputs(model) < classes:
        learner.grow(classes)
    return learner


def check_choices(*, optimizer: Any, memory: Any, retrieval: Any) -> None:
    """Refuse what `build_learner` would refuse once the first rows are there."""
    _check_choice("optimizer", optimizer, OPTIMIZERS)
    _check_choice("memory", memory, MEMORIES)
    _check_choice("retrieval", retrieval, RETRIEVALS)


def whole(name: str, value: Any) -> int:
    """A whole number of whatever type: searches over parameters hand in numpy's."""
    try:
        return operator.index(value)
    except TypeError as problem:
        raise InvalidType(f"{name} is {value!r}; it must be a whole number") from problem


def _check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise InvalidInput(f"{name} is {value!r}; it must be one of {', '.join(choices)}")


def _widths(hidden: Any) -> tuple[int, ...]:
    if isinstance(hidden, str) or not isinstance(hidden, Iterable):
        raise InvalidType(f"hidden is {hidden!r}; it must be the units of each hidden layer, as in (100,)")
    return tuple(whole("hidden", units) for units in hidden)


def _build_network(
    network: Network, input_shape: tuple[int, ...], classes: int, hidden: Sequence[int], seed: int
) -> nn.Module:
    """A copy of the prototype, or a new network whose weights are drawn from the seed."""
    if isinstance(network, nn.Module):
        return copy.deepcopy(network)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed_sequence(seed, "init").generate_state(1)[0]))
        if network is None:
            return MLP(math.prod(input_shape), _widths(hidden), classes)
        if not callable(network):
            raise InvalidType(f"network must be a module or a function that makes one, this is {network!r}")
        made = network(input_shape, classes)
    if not isinstance(made, nn.Module):
        raise InvalidType(f"the network function must give an nn.Module, it gave {type(made).__name__}")
    return made


def _build_memory(policy: str, size: Any, seed: int) -> Memory:
    _check_choice("memory", policy, MEMORIES)
    return MEMORIES[policy](whole("memory_size", size), seed=seed)


def _build_retrieval(name: str, candidates: Any, optimizer: str) -> Retrieval:
    _check_choice("retrieval", name, RETRIEVALS)
    if name == "uniform":
        return Uniform()
    count = None if candidates is None else whole("candidates", candidates)
    # Adam's step is nothing like plain gradient descent with its learning rate: foresee the one that will be taken.
    return MostInterfered(count, virtual_step="sgd" if optimizer == "sgd" else "optimizer")
