"""GDumb: store a balanced sample of the stream, and train on nothing else."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..batch import Batch, Step, Tree, checked_batch
from ..checks import check_positive, needs_two_samples
from ..engine import Plain
from ..errors import InvalidInput, InvalidType, NotFinite
from ..heads import Growth
from ..losses import as_loss, at_least_float32, columns_to_store
from ..memory import ClassBalancedMemory
from ..memory.ids import with_ids
from ..network import Network, finite
from ..random import RandomState, borrowed, numpy_generator
from ..serving import FrozenNetwork, Served
from ..undo import Operations, all_or_nothing, run
from .base import Learner


class GDumb(Learner):
    """GDumb (Prabhu et al. 2020, "GDumb: A Simple Approach that Questions Our Progress in Continual Learning").

        observe:   M ← a class-balanced sample of the stream        nothing is trained
        end_task:  θ ← θ₀                                           the initial weights
                   for each of ``epochs`` passes over M, in random order:
                       θ ← SGD(B, α)                                B: ``batch`` samples of M

    If the memory has changed since, a prediction comes from a private copy that is trained in the same way. The copy
    is kept until the memory changes again; the learner itself stays as it is. Training depends on the seed and the
    stored samples alone, so `end_task` arrives at the same weights.

    Differs from the source: the learning rate is the optimizer's, without a schedule, and inputs are not mixed
    (cutmix), so that the methods differ in nothing but what they train on.
    """

    memory: ClassBalancedMemory

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        memory: ClassBalancedMemory,
        *,
        epochs: int = 30,
        batch: int = 16,
        loss: Any = None,
        prepare: Callable[[Tree], Tree] | None = None,
        precision: str = "auto",
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        """Build a learner around a model, whose weights and optimizer as they are now are where training starts.

        Args:
            model: See `Replay`, as for the arguments that are not listed here.
            optimizer: Its settings are restored, and its state cleared, before each training.
            memory: The store.
            epochs: Passes over the memory. The paper has 256, with a schedule.
            batch: Samples per step; the paper has 16.
            loss: See `Replay`.
            prepare: See `Replay`.
            precision: See `Replay`.
            clip: See `Replay`.
            seed: Of the order of the samples, and of the random numbers that the model draws.
        """
        random = RandomState(seed)
        network = Network(model, optimizer, prepare=prepare, precision=precision, clip=clip, random=random)
        if not isinstance(memory, ClassBalancedMemory):
            raise InvalidType(f"the memory must be a ClassBalancedMemory, this is {memory!r}")
        super().__init__(network, as_loss(loss), memory=memory)
        check_positive(epochs=epochs, batch=batch)
        if batch == 1 and needs_two_samples(model):
            raise InvalidInput("batch is 1, and a lone sample has no variance for the model's BatchNorm1d")
        self.epochs, self.batch, self._seed = epochs, batch, seed
        self._initial = network.frozen()
        self._settings = [_settings(group) for group in optimizer.param_groups]
        self._trained_on = None if len(memory) else memory.changes
        self._private: tuple[Any, Network] | None = None

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None) -> Step:
        """Store an incoming batch; see `Learner.observe`. The loss is that of the model as it is, in eval mode."""
        incoming = with_ids(checked_batch(x, y, task), id)
        with self.lock, all_or_nothing(self.network, self.memory) as commit:
            self.memory.check_inputs(incoming)
            logits = self._pass(incoming.x, {})
            loss = finite(self.loss(logits, incoming.to(logits.device), False).mean())
            if len(incoming) > needs_two_samples(self.model):
                self._check_trainable(incoming)
            self.memory.keep(incoming, self.memory.check(incoming, **columns_to_store(self.loss, logits)))
            commit(map(setattr, [self], ["progress"], [self.progress.after(incoming, 0)]))
        return Step(loss)

    def _check_trainable(self, incoming: Batch) -> None:
        """Refuse samples whose gradient is not finite: once stored, no training would succeed."""
        with borrowed(self.network.random), torch.enable_grad():
            gradient = self.plain.virtual_gradient(incoming).gradient
        if not math.isfinite(gradient.norm()):
            raise NotFinite("the gradient of these samples is not finite; scale them down first")

    def end_task(self) -> None:
        """Train the model from its initial weights on the memory, unless it has been trained on these samples."""
        with self.lock:
            if self._trained_on == self.memory.changes:
                return
            with all_or_nothing(self.network) as commit:
                self.network.save_parameters()
                progress = self.progress._replace(steps=self.progress.steps + self._train(self.network))
                now = {"progress": progress, "_trained_on": self.memory.changes, "_private": None}
                commit(map(setattr, [self] * len(now), now, now.values()))

    def _train(self, network: Network) -> int:
        """Train a network from the initial weights on the memory, and return the number of steps."""
        self._reset(network)
        lone = needs_two_samples(network.model)
        if len(self.memory) <= lone:
            return 0
        samples, steps, order = self.memory.all(), 0, numpy_generator(self._seed, "order")
        engine = Plain(network, self.loss, self.batchnorm).fastest(samples.x)
        with network.training():
            for _ in range(self.epochs):
                parts = list(torch.split(torch.from_numpy(order.permutation(len(samples))), self.batch))
                if lone and len(parts[-1]) == 1:
                    parts[-2:] = [torch.cat(parts[-2:])]
                for part in parts:
                    run(engine.step(engine.gradient(samples.take(part), replayed=True).gradient))
                steps += len(parts)
        return steps

    @torch.no_grad()
    def _reset(self, network: Network) -> None:
        """Give a network the initial weights, buffers, optimizer and random numbers."""
        trainable = {name: parameter for name, (parameter, _) in network.trainable().items()}
        for name, tensor in (trainable | dict(network.model.named_buffers())).items():
            tensor.copy_(self._initial[name])
        network.optimizer.state.clear()
        for group, settings in zip(network.optimizer.param_groups, self._settings, strict=True):
            group.update(copy.deepcopy(settings))
        network.random.set(RandomState(self._seed, "fit").get())

    # -------------------------------------------------------------------------------------------------- predicting

    def _evaluate(self, x: Tree) -> Tensor:
        network = self._predicting()
        with network.looking("evaluation"):
            return at_least_float32(network(self._ready(x), network.twin.tensors()))

    def _served(self) -> Served:
        return Served(FrozenNetwork(self._predicting(), {}))

    def _predicting(self) -> Network:
        """Return a network that was trained on the memory as it is."""
        if self._trained_on == self.memory.changes:
            return self.network
        now = self.memory.changes, self.device
        if self._private is None or self._private[0] != now:
            private = copy.deepcopy(self.network)
            with all_or_nothing(private):
                self._train(private)
            self._private = now, private
        return self._private[1]

    # ------------------------------------------------------------------------------------------------------- state

    def _grow_with(self, grown: Growth) -> Operations:
        """New outputs have their first weights in every later training."""
        first = {name: self._initial[name] for name in grown.values}
        initial = {name: torch.cat([held, grown.values[name][len(held) :].to(held)]) for name, held in first.items()}
        return map(setattr, [self, self], ["_initial", "_private"], [self._initial | initial, None])

    def _own_state(self) -> dict[str, Any]:
        return {
            "initial": {name: tensor.clone() for name, tensor in self._initial.items()},
            "settings": copy.deepcopy(self._settings),
            "seed": self._seed,
            "trained": self._trained_on == self.memory.changes,
        }

    def _load_own_state(self, state: dict[str, Any]) -> None:
        self._initial = {name: tensor.clone() for name, tensor in state["initial"].items()}
        self._settings, self._seed = copy.deepcopy(state["settings"]), int(state["seed"])
        self._trained_on = self.memory.changes if state["trained"] else None
        self._private = None


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a parameter group."""
    return copy.deepcopy({name: value for name, value in group.items() if name != "params"})
