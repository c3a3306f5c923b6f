"""GDumb: store a balanced sample of the stream, and train on nothing else."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..batch import Step, Tree
from ..checks import check, check_memory, check_positive, count, needs_two_samples
from ..engine import Plain
from ..errors import InvalidInput, NotFinite
from ..heads import Growth
from ..memory import ClassBalancedMemory
from ..memory.columns import columns_to_store
from ..network import Network, finite
from ..network.states import check_optimizer_state
from ..random import RandomState, borrowed, numpy_generator
from ..undo import Operations, all_or_nothing, assign, run
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
        network = Network(model, optimizer, prepare=prepare, precision=precision, clip=clip, random=seed)
        check_memory(memory, ClassBalancedMemory)
        super().__init__(network, loss, memory=memory)
        check_positive(epochs=epochs, batch=batch)
        if batch == 1 and needs_two_samples(model):
            raise InvalidInput("batch is 1, and a lone sample has no variance for the model's BatchNorm1d")
        self.epochs, self.batch, self._seed = epochs, batch, seed
        self._initial = network.frozen()
        self._settings = copy.deepcopy(optimizer.state_dict()["param_groups"])
        # After which changes of the memory it was trained, and what that gave if it was not the model that was trained.
        self._trained: tuple[int | None, dict[str, Tensor]] = None if len(memory) else memory.changes, {}

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None, weight: Any = None, **columns: Any) -> Step:
        """Store an incoming batch; see `Learner.observe`. The loss is that of the model as it is, in eval mode."""
        memory, incoming = self.memory, self._accept(x, y, task, id=id, weight=weight, **columns)
        with self.lock, all_or_nothing(self.network, memory) as commit:
            memory.check_inputs(incoming)
            self.network.observe(incoming.x)
            logits = self._pass(incoming.x, {})
            loss = finite(incoming.to(self.device).mean_loss(self.loss, logits, False))
            if len(incoming) > needs_two_samples(self.model):
                with borrowed(self.network.random):
                    gradient = self.plain.virtual_gradient(incoming).gradient
                if not math.isfinite(gradient.norm()):  # once stored, no training would succeed
                    raise NotFinite("the gradient of these samples is not finite; scale them down first")
            stored = memory.check(incoming, **columns_to_store(self.loss, logits))
            memory.keep(incoming, stored)  # M
            commit(assign(self, progress=self.progress.after(incoming, 0, logits)))
        return Step(loss)

    def end_task(self) -> None:
        """Train the model from its initial weights on the memory, unless it has been trained on these samples."""
        with self.lock:
            if self._trained == (self.memory.changes, {}):
                return
            with all_or_nothing(self.network) as commit:
                self.network.save_parameters()
                progress = self.progress._replace(steps=self.progress.steps + self._train(self.network))
                commit(assign(self, progress=progress, _trained=(self.memory.changes, {})))

    def _train(self, network: Network) -> int:
        """Train a network from the initial weights on the memory, and return the number of steps."""
        self._reset(network)
        lone = needs_two_samples(network.model)
        if len(self.memory) <= lone:
            return 0
        samples, order = self.memory.all(), numpy_generator(self._seed, "order")
        engine = Plain(network, self.loss, self.batchnorm).fastest(samples.x)
        with network.training():
            for _ in range(self.epochs):
                parts = list(torch.split(torch.from_numpy(order.permutation(len(samples))), self.batch))
                if lone and len(parts[-1]) == 1:
                    parts[-2:] = [torch.cat(parts[-2:])]
                for part in parts:
                    run(engine.step(engine.gradient(samples.take(part), replayed=True).gradient))
        return self.epochs * len(parts)

    @torch.no_grad()
    def _reset(self, network: Network) -> None:
        """Give a network the initial weights, buffers, optimizer and random numbers."""
        trainable = {name: parameter for name, (parameter, _) in network.trainable().items()}
        for name, tensor in (trainable | dict(network.model.named_buffers())).items():
            tensor.copy_(self._initial[name])
        network.optimizer.state.clear()
        for group, settings in zip(network.optimizer.param_groups, copy.deepcopy(self._settings), strict=True):
            group.update({**settings, "params": group["params"]})
        network.random.set(RandomState(self._seed, "fit").get())

    # -------------------------------------------------------------------------------------------------- predicting

    def _substitutes(self) -> dict[str, Tensor]:
        """Return what training on the memory as it is gives, as far as it is not the model."""
        if self._trained[0] != self.memory.changes:
            private = copy.deepcopy(self.network)
            # It outlives the caller's autocast.
            with torch.autocast(self.device.type, enabled=False), all_or_nothing(private):
                self._train(private)
            self._trained = self.memory.changes, private.frozen()
        return {name: tensor.to(self.device) for name, tensor in self._trained[1].items()}

    # ------------------------------------------------------------------------------------------------------- state

    def _grow_with(self, grown: Growth) -> Operations:
        """New outputs have their first weights in every later training."""
        trained = (None, {}) if self._trained[1] else self._trained
        return assign(self, _initial=grown.appended_to(self._initial), _trained=trained)

    def _own_state(self) -> dict[str, Any]:
        trained = self._trained == (self.memory.changes, {})
        own = {"initial": self._initial, "settings": self._settings, "seed": self._seed, "trained": trained}
        return copy.deepcopy(own)

    def _load_own_state(self, state: dict[str, Any]) -> None:
        initial = {name: tensor for name, tensor in self.network.frozen().items() if name in self._initial}
        check(state, {"initial": initial, "settings": list, "seed": count, "trained": bool}, "what GDumb starts from")
        check_optimizer_state({"state": {}, "param_groups": state["settings"]}, self.optimizer)
        self._initial, self._settings = copy.deepcopy((state["initial"], state["settings"]))
        self._seed = state["seed"]

    def _load(self, state: dict[str, Any]) -> None:
        super()._load(state)
        self._trained = self.memory.changes if state["own"]["trained"] else None, {}  # the memory was loaded last
