"""What both adapters share: a replay learner from plain settings, weights of samples, and scaled targets."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..batch import Batch, Kind
from ..batchnorm import BatchNormPolicy
from ..checks import check_above_zero, check_choice, check_positive, check_switches
from ..errors import InvalidType
from ..heads import outputs
from ..learners import Learner, Replay
from ..memory import ClassBalancedMemory, Memory, ReservoirMemory, RingMemory
from ..nets import MLP
from ..random import seed_sequence
from ..retrieval import MostInterfered, Retrieval, Uniform
from ..transforms import RunningScaler
from ..undo import all_or_nothing

Network: TypeAlias = nn.Module | Callable[[tuple[int, ...], int], nn.Module] | None

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
MEMORIES: dict[str, type[Memory]] = {
    "reservoir": ReservoirMemory,
    "class-balanced": ClassBalancedMemory,
    "ring": RingMemory,
}


@dataclass(eq=False, repr=False)
class Settings:
    """The arguments that both adapters have. They are checked when a learner is built."""

    network: Network = None
    hidden: Sequence[int] = (100,)
    memory: str = "reservoir"
    memory_size: int = 1000
    retrieval: str = "most-interfered"
    candidates: int | None = 50
    budget: int = 10
    updates: int = 1
    optimizer: str = "adam"
    learning_rate: float = 0.005
    batch_size: int = 10
    scale: bool = True


class ScaledSquaredError:
    """The squared error of predictions of standardized targets; the targets themselves are stored as they came."""

    kind: Kind | None = "values"

    def __init__(self) -> None:
        """Start without statistics: targets stay as they are until `learn` has seen some."""
        self.scaler = RunningScaler()

    def __call__(self, outputs: Tensor, batch: Batch, replayed: bool) -> Tensor:
        """Return one value per sample."""
        return (outputs - self.scaler(batch.y).to(outputs).view_as(outputs)).square().mean(1)


def build_learner(
    of: Settings,
    input_shape: tuple[int, ...],
    classes: int,
    seed: int,
    batchnorm: str | BatchNormPolicy = "auto",
    loss: Any = None,
    floats: bool = True,
) -> Replay:
    """Return a learner for that many classes; a network with fewer outputs is grown, one with more keeps the others.

    Args:
        of: The settings.
        input_shape: The shape of a sample.
        classes: The number of classes, or of other outputs.
        seed: Of initial weights, memory and learner.
        batchnorm: See `Replay`.
        loss: See `Replay`.
        floats: Whether inputs are measurements, to be scaled, and not bytes or token ids.
    """
    check_choices(of)
    check_above_zero(learning_rate=of.learning_rate)
    retrieval: Retrieval = Uniform()
    if of.retrieval == "most-interfered":
        # Adam's step is nothing like gradient descent with its learning rate: look ahead to the one that is taken.
        retrieval = MostInterfered(of.candidates, virtual_step="sgd" if of.optimizer == "sgd" else "optimizer")
    model = _build_network(of, input_shape, classes, seed)
    if of.network is None and isinstance(loss, ScaledSquaredError):
        model.double()  # values have more digits than float32, and must not depend on what is predicted beside them
    dtype = next(model.parameters()).dtype
    learner = Replay(
        model,
        OPTIMIZERS[of.optimizer](model.parameters(), lr=float(of.learning_rate)),
        MEMORIES[of.memory](of.memory_size, seed=seed),
        retrieval,
        budget=of.budget,
        updates=of.updates,
        loss=loss,
        batchnorm=batchnorm,
        prepare=RunningScaler(dtype) if of.scale and floats else None,
        seed=seed,
    )
    if outputs(model) < classes:
        learner.grow(classes)
    return learner


def learn(learner: Learner, x: Tensor, y: Tensor, weight: Tensor | None = None, *, scale: bool = True) -> None:
    """Let a learner observe a batch, with the weight of each sample if there is one, and its targets' scale first."""
    targets = [learner.loss.scaler] if scale and isinstance(learner.loss, ScaledSquaredError) else []
    with all_or_nothing(*targets) as commit:
        for scaler in targets:
            scaler.observe(y)
        learner.observe(x, y, weight=weight)
        commit(())


def predicted_values(learner: Any, outputs: Tensor) -> Tensor:
    """Return outputs, in float64, in the units of the targets."""
    scaler: RunningScaler = learner.loss.scaler
    return outputs * scaler.std + scaler.mean if scaler.count else outputs


def check_choices(of: Settings) -> None:
    """Refuse names that do not exist, and sizes that are none."""
    check_positive(memory_size=of.memory_size, batch_size=of.batch_size)
    check_switches(scale=of.scale)
    check_choice(OPTIMIZERS, optimizer=of.optimizer)
    check_choice(MEMORIES, memory=of.memory)
    check_choice(("most-interfered", "uniform"), retrieval=of.retrieval)


def _build_network(of: Settings, input_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Return a copy of the user's module, or a new network whose weights are drawn from the seed."""
    network, hidden = of.network, of.hidden
    if isinstance(network, nn.Module):
        return copy.deepcopy(network)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed_sequence(seed, "init").generate_state(1)[0]))
        if network is None:
            if not isinstance(hidden, Iterable):
                raise InvalidType(f"hidden is {hidden!r}; it must be the units of each hidden layer, as in (100,)")
            return MLP(math.prod(input_shape), hidden, classes)
        if not callable(network):
            raise InvalidType(f"network must be a module or a function that makes one, this is {network!r}")
        made = network(input_shape, classes)
    if not isinstance(made, nn.Module):
        raise InvalidType(f"the network function must return an nn.Module, it returned {type(made).__name__}")
    return made
