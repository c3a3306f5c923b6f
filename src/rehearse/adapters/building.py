"""What both adapters share: a replay learner from plain settings."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Collection, Iterable
from numbers import Real
from typing import Any, Protocol, TypeAlias

import torch
from torch import nn

from ..batchnorm import BatchNormPolicy
from ..checks import check_positive
from ..errors import InvalidInput, InvalidType
from ..heads import outputs
from ..learners import Replay
from ..memory import ClassBalancedMemory, Memory, ReservoirMemory, RingMemory
from ..nets import MLP
from ..network import VirtualStep
from ..random import seed_sequence
from ..retrieval import MostInterfered, Uniform

Network: TypeAlias = nn.Module | Callable[[tuple[int, ...], int], nn.Module] | None

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
MEMORIES: dict[str, type[Memory]] = {
    "reservoir": ReservoirMemory,
    "class-balanced": ClassBalancedMemory,
    "ring": RingMemory,
}
CHOICES: dict[str, Collection[str]] = {
    "optimizer": OPTIMIZERS,
    "memory": MEMORIES,
    "retrieval": ("most-interfered", "uniform"),
}


class Settings(Protocol):
    """What an adapter's user may set; the values may be of any type."""

    network: Any
    hidden: Any
    memory: Any
    memory_size: Any
    retrieval: Any
    candidates: Any
    budget: Any
    updates: Any
    optimizer: Any
    learning_rate: Any
    batch_size: Any


def build_learner(
    of: Settings,
    input_shape: tuple[int, ...],
    classes: int,
    seed: int,
    batchnorm: str | BatchNormPolicy = "auto",
) -> Replay:
    """Return a learner for that many classes; a network with fewer outputs is grown, one with more keeps the others."""
    check_choices(of)
    rate = of.learning_rate
    if isinstance(rate, bool) or not isinstance(rate, Real) or not float(rate) > 0:
        raise InvalidInput(f"learning_rate is {rate!r}; it must be positive")
    model = _build_network(of.network, input_shape, classes, of.hidden, seed)
    learner = Replay(
        model,
        OPTIMIZERS[of.optimizer](model.parameters(), lr=float(rate)),
        MEMORIES[of.memory](whole("memory_size", of.memory_size), seed=seed),
        Uniform() if of.retrieval == "uniform" else _most_interfered(of),
        budget=whole("budget", of.budget),
        updates=whole("updates", of.updates),
        batchnorm=batchnorm,
        seed=seed,
    )
    if outputs(model) < classes:
        learner.grow(classes)
    return learner


def _most_interfered(of: Settings) -> MostInterfered:
    # Adam's step is nothing like plain gradient descent with its learning rate: look ahead to the one that is taken.
    virtual_step: VirtualStep = "sgd" if of.optimizer == "sgd" else "optimizer"
    candidates = None if of.candidates is None else whole("candidates", of.candidates)
    return MostInterfered(candidates, virtual_step=virtual_step)


def check_choices(of: Settings) -> None:
    """Refuse names that do not exist."""
    for name, choices in CHOICES.items():
        value = getattr(of, name)
        if not isinstance(value, str) or value not in choices:
            raise InvalidInput(f"{name} is {value!r}; it must be one of {', '.join(choices)}")


def whole(name: str, value: Any, least: int | None = None) -> int:
    """Return an integer of any type as an int: parameter searches hand in numpy's."""
    try:
        number = operator.index(value)
    except TypeError as problem:
        raise InvalidType(f"{name} is {value!r}; it must be an integer") from problem
    if least is not None and number < least:
        raise InvalidInput(f"{name} is {number}; it must be at least {least}")
    return number


def _build_network(network: Network, input_shape: tuple[int, ...], classes: int, hidden: Any, seed: int) -> nn.Module:
    """Return a copy of the user's module, or a new network whose weights are drawn from the seed."""
    if isinstance(network, nn.Module):
        return copy.deepcopy(network)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed_sequence(seed, "init").generate_state(1)[0]))
        if network is None:
            if isinstance(hidden, str) or not isinstance(hidden, Iterable):
                raise InvalidType(f"hidden is {hidden!r}; it must be the units of each hidden layer, as in (100,)")
            units = [whole("hidden", units) for units in hidden]
            check_positive(hidden=min(units, default=1))
            return MLP(math.prod(input_shape), units, classes)
        if not callable(network):
            raise InvalidType(f"network must be a module or a function that makes one, this is {network!r}")
        made = network(input_shape, classes)
    if not isinstance(made, nn.Module):
        raise InvalidType(f"the network function must return an nn.Module, it returned {type(made).__name__}")
    return made
