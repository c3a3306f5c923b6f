"""Algorithm 1: experience replay, and what differs from it only by the loss or the retrieval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..batch import Batch, Step, Tree, checked_batch
from ..batchnorm import BatchNormPolicy, policy
from ..checks import check_budget, check_candidates, check_memory, check_not_negative, check_positive, needs_two_samples
from ..engine import Engine, Passed
from ..errors import InvalidInput, InvalidType, RehearseError
from ..losses import columns_to_store
from ..memory import Memory
from ..memory.ids import with_ids
from ..network import Network
from ..retrieval import MostInterfered, Retrieval, Retrieved
from ..undo import Operations, all_or_nothing, assign, run
from .base import Diagnosing, Learner


class Replay(Learner):
    """Experience replay (ER), and with `MostInterfered` retrieval ER-MIR (Algorithm 1 of the paper).

        θᵛ  ← θ − α ∇ℓ(B_n)                       the look-ahead parameters
        B_C ~ M                                    C candidates
        B_MC ← the budget highest of s_MI(B_C)     the samples to replay
        θ  ← SGD(B_n ∪ B_MC, α)                    ∇ mean ℓ(B_n) + replay_weight · ∇ mean ℓ(B_MC)
        M  ← UpdateMemory(B_n)

    With plain SGD θ changes in the commit, after everything that can fail. The memory, and θ under any other optimizer
    or before the last of several updates, change just before it, and are undone if anything fails.

    Differs from the reference implementation: the best losses of MI-2 are stored by slot, so they stay with their
    sample, start at infinity and go when the sample goes; the reservoir's sampling rule holds within a batch too.
    """

    memory: Memory

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        memory: Memory,
        retrieval: Retrieval | None = None,
        *,
        budget: int = 10,
        updates: int = 1,
        loss: Any = None,
        replay_weight: float = 1.0,
        exclude_current_task: bool = True,
        batchnorm: str | BatchNormPolicy = "auto",
        prepare: Callable[[Tree], Tree] | None = None,
        precision: str = "auto",
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        """Build a learner around a model.

        Args:
            model: Any module; see `Network`.
            optimizer: Any optimizer of its parameters except LBFGS.
            memory: The store; it has a seed of its own.
            retrieval: `MostInterfered()` by default.
            budget: The number of samples to replay.
            updates: Steps per incoming batch; the retrieval is repeated for each.
            loss: Cross-entropy by default; see `losses`.
            replay_weight: The weight of the replayed samples' mean loss.
            exclude_current_task: Whether stored samples of the incoming batch's task are not eligible.
            batchnorm: ``clean``, ``joint``, ``recalibrated``, ``auto``, or a policy; see `batchnorm`. It has no effect
                on models without batch-norm.
            prepare: Turns stored inputs into model inputs; by default bytes become floats in [0, 1].
            precision: See `precision`.
            clip: The largest norm of a gradient.
            seed: Of the random numbers that the model draws.

        Raises:
            InvalidInput: If a number is out of range.
            InvalidType: If an argument is of the wrong type.
        """
        network = Network(model, optimizer, prepare=prepare, precision=precision, clip=clip, random=seed)
        check_memory(memory, Memory)
        check_positive(budget=budget)
        check_not_negative(replay_weight=replay_weight)
        if retrieval is not None and (isinstance(retrieval, type) or not callable(retrieval)):
            raise InvalidType(f"the retrieval must be an object like MostInterfered(), this is {retrieval!r}")
        super().__init__(network, loss, memory=memory, updates=updates, batchnorm=policy(batchnorm))
        if not self.batchnorm.joint:
            check_budget(budget, model)
        self.retrieval: Retrieval = MostInterfered() if retrieval is None else retrieval
        if isinstance(self.retrieval, MostInterfered):
            check_candidates(self.retrieval.candidates, budget)
        self._needs_gradient = bool(getattr(self.retrieval, "needs_gradient", True))
        self.budget, self.replay_weight = budget, replay_weight
        self.exclude_current_task = exclude_current_task
        self._policy = [self.batchnorm] if self.batchnorm.follows_scoring else []  # only then it has a state to undo

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None) -> Step:
        """Learn from an incoming batch and from stored samples, then store it; see `Learner.observe`."""
        network, memory, incoming = self.network, self.memory, with_ids(checked_batch(x, y, task), id)
        query = incoming if self.exclude_current_task else replace(incoming, task=None)
        with self.lock, all_or_nothing(network, memory, *self._policy) as commit:
            engine, joint = self.plain.fastest(incoming.x), self._passes_jointly()
            step: Operations = ()
            with network.training(self.updates):
                for _ in range(self.updates):
                    run(step)  # of the update before this one
                    if joint:  # one pass for B_n ∪ B_MC: batch-norm sees them together, or it is merely faster
                        passed, (replayed, interference) = self._joint_pass(engine, incoming, query)
                        loss, gradient, logits, replayed_loss = passed
                    else:
                        loss, gradient, logits, replayed_loss = engine.gradient(incoming, replayed=False)  # ∇ℓ(B_n)
                        replayed, interference = self._retrieve(query, gradient, engine)  # B_MC; θᵛ is in engine.losses
                        if replayed is not None:
                            replayed_loss, second, *_ = engine.gradient(replayed, replayed=True)  # ∇ℓ(B_MC)
                            gradient = gradient.plus(second, self.replay_weight)
                    step = engine.step(gradient)  # θ ← SGD(B_n ∪ B_MC, α), when it is committed
            columns = memory.check(incoming, **columns_to_store(self.loss, logits))
            memory.keep(incoming, columns)  # M ← UpdateMemory(B_n)
            commit(step, assign(self, progress=self.progress.after(incoming, self.updates)))
        return Step(loss, replayed_loss, replayed, interference)

    def _passes_jointly(self) -> bool:
        """Whether incoming and replayed samples share a pass: by policy, or as no gradient is needed between them.

        A model with buffers may keep statistics of its batches, which are not those of the joint batch.
        """
        if self.batchnorm.joint and self.network.has_batchnorm:
            return True
        return not self._needs_gradient and not any(module._buffers for module in self.model.modules())

    def _joint_pass(self, engine: Engine, incoming: Batch, query: Batch) -> tuple[Passed, Retrieved]:
        """Pass B_n ∪ B_MC at once; a retrieval that needs a gradient gets that of a pass that leaves no trace."""
        self.memory.check_inputs(incoming)
        needed = self._needs_gradient and self.memory.eligible(query.task) > 0
        gradient = self.plain.virtual_gradient(incoming).gradient if needed else None
        retrieved = self._retrieve(query, gradient, engine)
        if retrieved.batch is None:
            return engine.gradient(incoming, replayed=False), retrieved
        return engine.joint_gradient(incoming, retrieved.batch, self.replay_weight), retrieved

    def _retrieve(self, query: Batch, gradient: Any, engine: Engine) -> Retrieved:
        """Return B_MC. A lone stored sample has no batch statistics: a model that needs them waits for a second."""
        eligible = self.memory.eligible(query.task)
        if eligible == 0 or (eligible == 1 and needs_two_samples(self.model)):
            return Retrieved()
        try:
            found = self.retrieval(self.memory, query, gradient, engine, self.budget)
        except (RehearseError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, ValueError) as problem:
            raise InvalidInput(f"the stored samples cannot be scored: {problem}") from problem
        if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], Batch | None):
            raise InvalidInput(f"a retrieval returns a Batch and its scores, or (None, None); this is {found!r:.80}")
        most = self.budget * getattr(self.retrieval, "draws", 1)
        if found[0] is not None and len(found[0]) > most:
            raise InvalidInput(f"the retrieval returned {len(found[0])} samples; the budget is {most}")
        return Retrieved(*found)

    def _diagnosing(self, batch: Batch) -> Diagnosing:
        plain, passed, *_ = super()._diagnosing(batch)
        return plain, passed, getattr(self.retrieval, "virtual_step", "sgd"), getattr(self.retrieval, "layers", "all")
