"""Algorithm 1: experience replay, and what differs from it only by the loss or the retrieval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import nn

from ..batch import Batch, Step, Tree, given, unchanged
from ..batchnorm import BatchNormPolicy, policy
from ..checks import check_budget, check_candidates, check_choice, check_memory, check_not_negative, needs_two_samples
from ..diagnose import Diagnosing
from ..engine import Engine, Passed
from ..errors import InvalidInput, InvalidType, RehearseError
from ..losses import reads_average
from ..memory import Memory
from ..memory.columns import checked_samples, columns_to_store
from ..network import Network
from ..retrieval import HighestLoss, MostInterfered, Retrieval, Retrieved
from ..serving import Served
from ..transforms import Augmentation, Padding, Transform, checked_padding
from ..undo import Operations, Undoable, assign, run
from .base import Learner
from .joining import join, joined_ranks
from .nearest_mean import NearestMean

PredictBy = Literal["head", "nearest-mean"]


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

    distributable = True
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
        augment: Transform | None = None,
        pad: Padding | None = None,
        average: float | None = None,
        predict_by: PredictBy = "head",
        batchnorm: str | BatchNormPolicy = "auto",
        prepare: Callable[[Tree], Tree] | None = None,
        precision: str = "auto",
        clip: float | None = None,
        seed: int = 0,
        distributed: bool = False,
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
            augment: Transforms incoming and replayed samples before `prepare`, in training passes alone; see
                `transforms`. Samples are stored as they came, and candidates are scored as they are stored.
            pad: A `Padding` for sequences of different lengths; None if all inputs have one shape.
            average: The rate of an `Average` of the weights, which then predicts, with batch-norm statistics
                re-estimated from the memory; None for the weights themselves. 0.01 is usual.
            predict_by: ``head``, or ``nearest-mean`` of the stored samples' features (`NearestMean`), which needs a
                last linear layer and one class per sample. While nothing is stored the head predicts.
            batchnorm: ``clean``, ``joint``, ``recalibrated``, ``auto``, or a policy; see `batchnorm`. It has no effect
                on models without batch-norm.
            prepare: Turns stored inputs into model inputs; by default bytes become floats in [0, 1]. `RunningScaler()`
                standardizes them by the statistics of the stream.
            precision: See `precision`.
            clip: The largest norm of a gradient.
            seed: Of the random numbers that the model draws.
            distributed: Whether to train together with the other processes of torch's process group; see `Ranks`. The
                capacity of the memory is then that of all, and the budget that of each.

        Raises:
            InvalidInput: If a number is out of range.
            InvalidType: If an argument is of the wrong type.
        """
        ranks, seed = joined_ranks(distributed, seed)
        network = Network(model, optimizer, prepare=prepare, precision=precision, clip=clip, random=seed)
        check_memory(memory, Memory)
        check_not_negative(replay_weight=replay_weight)
        if retrieval is not None and (isinstance(retrieval, type) or not callable(retrieval)):
            raise InvalidType(f"the retrieval must be an object like MostInterfered(), this is {retrieval!r}")
        super().__init__(network, loss, memory=memory, updates=updates, batchnorm=policy(batchnorm), average=average)
        check_budget(budget, model, self.batchnorm.joint)
        self.retrieval: Retrieval = MostInterfered() if retrieval is None else retrieval
        if isinstance(self.retrieval, MostInterfered | HighestLoss):
            check_candidates(self.retrieval.candidates, budget * getattr(self.retrieval, "every", 1))
        check_choice(get_args(PredictBy), predict_by=predict_by)
        self._needs_gradient = bool(getattr(self.retrieval, "needs_gradient", True))
        self.budget, self.replay_weight, self.predict_by = budget, replay_weight, predict_by
        self.exclude_current_task, self.pad = exclude_current_task, pad
        if pad is not None:
            self.filled, self.collated = checked_padding(pad).fill, pad.collated
            if not hasattr(self.loss, "columns"):  # what a loss stores is as long as the stored samples
                self.plain.cut = pad.cut
        self.augment = None if augment is None else Augmentation(augment, seed)
        self.nearest = None if predict_by == "head" else NearestMean(network, memory, self._substitutes)
        self._seen: Callable[[Batch], Batch] = unchanged if self.augment is None else self.augment
        self._taught: Callable[..., tuple[Batch, ...]] = given
        if self.average is not None and reads_average(self.loss):
            self._taught = self.average.taught
        self._parts: list[Undoable] = [network, memory]
        self._parts += [self.batchnorm] if self.batchnorm.follows_scoring else []  # only then it has a state to undo
        self._parts += [] if self.augment is None else [self.augment]
        join(self, memory, ranks, early=self._needs_gradient)

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None, weight: Any = None, **columns: Any) -> Step:
        """Learn from an incoming batch and from stored samples, then store it; see `Learner.observe`."""
        network, memory = self.network, self.memory
        with self.lock, self._reporting(), torch.inference_mode(False):  # samples are trained on
            incoming = self.filled(checked_samples(x, y, task, {"id": id, "weight": weight, **columns}, self.collated))
            if self.nearest is not None:
                self.nearest.check(incoming.y)
        query = incoming if self.exclude_current_task else replace(incoming, task=None)
        with self.lock, self._all_or_nothing(*self._parts) as commit:
            engine, joint = self.plain.fastest(incoming.x), self._passes_jointly()
            step: Operations = ()
            with network.training(self.updates, incoming.x):
                for _ in range(self.updates):
                    run(step)  # of the update before this one
                    seen = self._seen(incoming)
                    if joint:  # one pass for B_n ∪ B_MC: batch-norm sees them together, or it is merely faster
                        passed, (replayed, interference) = self._joint_pass(engine, seen, query)
                        loss, gradient, logits, replayed_loss = passed
                    else:
                        loss, gradient, logits, replayed_loss = engine.gradient(*self._taught(seen), replayed=False)
                        replayed, interference = self._retrieve(query, gradient, engine)  # B_MC; θᵛ is in engine.losses
                        if replayed is not None:
                            seen = self._seen(replayed)
                            replayed_loss, second, *_ = engine.gradient(*self._taught(seen), replayed=True)
                            gradient = gradient.plus(second, self.replay_weight)  # ∇ℓ(B_n) + ∇ℓ(B_MC)
                    step = engine.step(gradient)  # θ ← SGD(B_n ∪ B_MC, α), when it is committed
            stored = memory.check(incoming, **columns_to_store(self.loss, logits))
            memory.keep(incoming, stored)  # M ← UpdateMemory(B_n)
            progress = self.progress.after(self.plain.cut(incoming)[0], self.updates, logits)
            follow = () if self.average is None else self.average.follow(self.progress.steps, self.updates)
            commit(step, follow, assign(self, progress=progress))
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
            return engine.gradient(*self._taught(incoming), replayed=False), retrieved
        first, second = self._taught(incoming, self._seen(retrieved.batch))
        return engine.joint_gradient(first, second, self.replay_weight), retrieved

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
        if found[0] is not None and len(found[0]) > (most := self.budget * getattr(self.retrieval, "draws", 1)):
            raise InvalidInput(f"the retrieval returned {len(found[0])} samples; the budget is {most}")
        return Retrieved(*found)

    def _diagnosing(self, batch: Batch) -> Diagnosing:
        plain, passed, *_ = super()._diagnosing(batch)
        return plain, passed, getattr(self.retrieval, "virtual_step", "sgd"), getattr(self.retrieval, "layers", "all")

    # -------------------------------------------------------------------------------------------- predicting and state

    def _evaluate(self, x: Tree) -> Tree:
        return self._pass(x) if self.nearest is None or not len(self.memory) else self.nearest.logits(x)

    def _served(self) -> Served:
        return super()._served() if self.nearest is None or not len(self.memory) else self.nearest.served()

    def _store_known(self, known: Batch) -> None:
        if self.nearest is not None:
            self.nearest.check(known.y)
        super()._store_known(self.filled(known))
