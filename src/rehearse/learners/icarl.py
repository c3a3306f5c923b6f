"""iCaRL: exemplars chosen by herding, distillation from the network of the last task, nearest-mean prediction."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..batch import Batch, Step, Tree, checked_batch, task_column, tree_concatenate, tree_leaves
from ..batchnorm import Clean
from ..checks import anything, check, check_choice, check_memory, check_positive, count, each, optional
from ..diagnose import Diagnosing
from ..engine import Plain, joined
from ..errors import InvalidInput
from ..heads import outputs
from ..losses import as_loss, at_least_float32
from ..memory import ExemplarMemory
from ..memory.columns import ID, matching, named_ids, no_ids
from ..network import Network, finite
from ..network.states import copied_frozen
from ..undo import Restore, Undoable, all_or_nothing, assign, restoring
from .nearest_mean import NearestMean, NearestMeanLearner
from .steps import Updates

Keep = Literal["memory", "task"]


class Tasks(NamedTuple):
    """What is known of the tasks so far; replaced as a whole, so that an undo needs no copy."""

    old: dict[str, Tensor] | None = None
    """θold: the network at the end of the last task."""
    past_labels: frozenset[int] = frozenset()
    labels: frozenset[int] = frozenset()
    """Of the running task."""
    kept: tuple[Batch, ...] = ()
    """The whole running task, for ``keep="task"``."""
    most_kept_bytes: int = 0


class ICaRL(NearestMeanLearner):
    """iCaRL (Rebuffi et al. 2017, "Incremental Classifier and Representation Learning"), online.

        B ← B_n ∪ B_P                                      the incoming batch and ``budget`` exemplars of past tasks
        q ← σ(f_θold(B))                                   θold: the network at the end of the last task
        ℓ = Σ_{new c} bce(σ(f_θ(x))_c, [y = c]) + Σ_{old c} bce(σ(f_θ(x))_c, q_c)
        θ ← SGD(mean ℓ(B))                                 ``updates`` times (5 in Table 2 of Aljundi et al. 2019)
      when the task is over, for each of its classes, with φ the features and μ the mean of φ over what was kept:
        p_k ← argmin_x ‖ μ − (φ(x) + Σ_{j<k} φ(p_j)) / k ‖       k = 1 … capacity // classes  (herding)
      prediction:
        argmin_c ‖ φ(x) − μ_c ‖                            μ_c: the mean of φ over the exemplars of c

    φ is what enters the last linear layer, in eval mode; φ and μ are scaled to length one. The means are recomputed
    when the network or the memory has changed. Probabilities are the softmax over −‖φ(x) − μ_c‖; a class that was
    never seen has probability 0. While a task runs, its means are those of its samples in the memory.

    Differs from the source because the stream is passed once:

    - exemplars can only be chosen from what is still there when the task ends. ``keep="memory"`` never stores more
      samples than the memory's capacity: the running task is sampled into the room that the exemplars leave.
      ``keep="task"`` also keeps the whole task beside the memory, as the source does; `diagnostics` says how many
      bytes that takes;
    - new are the classes of the running task, old all others that were seen; a class that comes back is new again and
      gets exemplars of its own in each task;
    - one step joins the incoming samples with as many exemplars as the budget says, instead of passing all of both.
    """

    task_aware = True
    classes_only = True
    memory: ExemplarMemory

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        memory: ExemplarMemory,
        *,
        budget: int = 10,
        updates: int = 1,
        keep: Keep = "memory",
        prepare: Callable[[Tree], Tree] | None = None,
        precision: str = "auto",
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        """Build a learner around a model; see `Replay` for the arguments.

        Args:
            model: A module whose last linear layer computes the logits.
            optimizer: Any optimizer of its parameters except LBFGS.
            memory: Holds exemplars and the running task's samples.
            keep: ``memory`` or ``task``; see above.
        """
        network = Network(model, optimizer, prepare=prepare, precision=precision, clip=clip, random=seed)
        super().__init__(network, None, memory=memory, updates=updates)
        check_memory(memory, ExemplarMemory)
        check_choice(get_args(Keep), keep=keep)
        check_positive(budget=budget)
        self.nearest = NearestMean(network, memory)
        self.budget, self.keep = budget, keep
        self.tasks = Tasks()

    def _admit(self, incoming: Batch) -> dict[str, Tensor]:
        columns = super()._admit(incoming)
        if isinstance(incoming.task, int) and incoming.task != self.task:
            self._end_task()
        return columns

    def _steps(self, incoming: Batch) -> Updates:
        network, memory, new = self.network, self.memory, self._new_labels(incoming)
        for _ in range(self.updates):
            stored = memory.eligible(incoming.task) > 0
            replayed = memory.sample(self.budget, exclude_task=incoming.task) if stored else None  # B_P
            batch = incoming if replayed is None else joined(incoming, replayed)  # B
            losses = self._losses(network(network.ready(batch.x)), batch, new)  # ℓ
            finite(losses.mean())
            first, second = losses.detach().tensor_split([len(incoming)])
            step = Step(first.mean().item(), second.mean().item() if len(second) else None, replayed)
            yield step, None, network.step(network.gradient(losses.mean()))  # θ ← SGD(mean ℓ(B))

    def remember(self, data: Iterable[Any], limit: int | None = None) -> int:
        """Choose exemplars from data that the model already knows, and distill from the model as it is.

        It is what a task with these samples would leave, without the training; see `Learner.remember`. Samples without
        a task have exemplars of their own for each class.
        """
        if self.tasks.labels:
            raise InvalidInput("a task is running; end it before storing other data: learner.end_task()")
        with self._read_only(), restoring(self.end_task):  # once begun it ends, even if it is interrupted
            return super().remember(data, limit)

    def _store_known(self, known: Batch) -> None:
        self.nearest.check(known.y)
        known = replace(known, columns={name: ids for name, ids in known.columns.items() if name == ID})
        columns = self.memory.check(known)
        if not bool(self.nearest.features(known.x).isfinite().all()):
            raise InvalidInput("the features of some of these samples are not finite; they cannot be exemplars")
        with all_or_nothing(self.memory, self) as commit:
            self._store(known, columns)
            commit()

    def end_task(self) -> None:
        """Choose the exemplars of the running task, and keep the network to distill from."""
        with self.lock, all_or_nothing(self.network, self.memory, self) as commit:
            self._end_task()
            commit()

    def _end_task(self) -> None:
        tasks = self.tasks
        if not tasks.labels:
            return
        running = self.memory.get(torch.from_numpy(self.memory.running())) if not tasks.kept else _together(tasks.kept)
        self.memory.enrol(self._exemplars(running))
        past = tasks.past_labels | tasks.labels
        self.tasks = Tasks(self.network.frozen(), past, most_kept_bytes=self._most_bytes())

    def _exemplars(self, samples: Batch) -> Iterator[Batch]:
        """Yield the exemplars of each class of each task among the samples, best first."""
        share, features = self.memory.share(samples), self.nearest.features(samples.x).cpu()
        tasks = task_column(samples.task, len(samples))
        for task, label in sorted({*zip(tasks.tolist(), samples.y.tolist(), strict=True)}):
            of_group = ((tasks == task) & (samples.y == label)).nonzero().flatten()
            yield samples.take(of_group[herding(features[of_group], share)])

    # ---------------------------------------------------------------------------------------------------- learning

    def _new_labels(self, samples: Batch) -> frozenset[int]:
        return self.tasks.labels.union(samples.y.tolist())

    def _losses(self, logits: Tensor, samples: Batch, new: frozenset[int]) -> Tensor:
        """Return ℓ of each sample: to [y = c] for every new class c, and to q_c for every old one."""
        old, known, y = self.tasks.past_labels - new, sorted(self.tasks.past_labels | new), samples.y.to(logits.device)
        goals = {c: (y == c).float() for c in new}
        if old:
            theirs = {name: tensor.to(logits.device) for name, tensor in (self.tasks.old or {}).items()}
            q = self._pass(samples.x, theirs).sigmoid()
            goals |= {c: q[:, c] for c in old}
        logits = at_least_float32(logits)[:, known]
        goal = torch.stack([goals[c] for c in known], dim=1).to(logits)
        return F.binary_cross_entropy_with_logits(logits, goal, reduction="none").sum(1)

    def _diagnosing(self, batch: Batch) -> Diagnosing:
        """Judge samples as in a step of the running task: against [y = c], and against the old network."""
        self.nearest.check(batch.y)
        new = self._new_labels(batch)
        plain = Plain(self.network, as_loss(lambda logits, samples, _: self._losses(logits, samples, new)), Clean())
        return plain, plain.virtual_gradient(batch), "optimizer", "all"

    def _store(self, samples: Batch, columns: dict[str, Tensor]) -> None:
        super()._store(samples, columns)
        kept = [samples.take(torch.arange(len(samples)))] if self.keep == "task" else []  # a copy
        self.tasks = self.tasks._replace(labels=self._new_labels(samples), kept=(*self.tasks.kept, *kept))

    def forget(self, *, ids: Any = None, slots: Any = None, predicate: Callable[[Batch], Tensor] | None = None) -> int:
        """Remove samples for good, also those of the running task that are kept beside the memory."""
        with self.lock:
            if not self.tasks.kept or (slots is None and (ids is None) == (predicate is None)):
                return super().forget(ids=ids, slots=slots, predicate=predicate)
            if slots is not None:
                raise InvalidInput("the running task is kept beside the memory too: use ids or a predicate")
            names, kept = None if ids is None else named_ids(ids), _together(self.tasks.kept)
            running, stored = self.memory.running(), self.memory.slots()
            named = names is None or ID in kept.columns
            doomed = matching(kept, names, predicate) if named else torch.zeros(len(kept), dtype=torch.bool)
            removed = stored[matching(self.memory.get(stored), names, predicate)].numpy()
            tasks = self.tasks._replace(kept=(kept.take((~doomed).nonzero().flatten()),))
            with all_or_nothing(self.memory) as commit:
                self.memory.discard(removed)
                commit(assign(self, tasks=tasks))
            twice = np.isin(removed, running).sum()  # the memory's samples of the running task are copies
            return len(removed) - int(twice) + int(doomed.sum())

    def _undone(self) -> list[Undoable]:
        return [*super()._undone(), self]

    def snapshot(self) -> Restore:
        """Return a function that restores what is known of the tasks."""
        return partial(setattr, self, "tasks", self.tasks)

    # ------------------------------------------------------------------------------------------------------- state

    def diagnostics(self) -> dict[str, Any]:
        """Return the bytes of the exemplars, and the most that the running task took beside them."""
        with self.lock:
            return {"memory_bytes": self.memory.nbytes, "running_task_bytes": self._most_bytes()}

    def _most_bytes(self) -> int:
        running: int = sum(leaf.nbytes for part in self.tasks.kept for leaf in [*tree_leaves(part.x), part.y])
        return max(self.tasks.most_kept_bytes, running)

    def _own_state(self) -> dict[str, Any]:
        tasks = self.tasks
        kept = _together(tasks.kept) if tasks.kept else None
        parts = None if kept is None else {name: getattr(kept, name) for name in ("x", "y", "task", "columns")}
        labels = {"past_labels": sorted(tasks.past_labels), "labels": sorted(tasks.labels)}
        return {**tasks._asdict(), **labels, "kept": parts}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        label = each(lambda one: count(one) and one < (outputs(self.model) or 2**53))
        form = {"old": anything, "past_labels": label, "labels": label}
        samples = {"x": anything, "y": Tensor, "task": Tensor, "columns": dict}
        check(state, {**form, "kept": optional(samples), "most_kept_bytes": count}, "what ICaRL knows of its tasks")
        old, past, labels, kept, most = copy.deepcopy([state[name] for name in Tasks._fields])
        batch = None if kept is None else Batch(**kept)
        if batch is not None:
            ids = {name: torch.empty(len(batch), dtype=torch.int64) for name in ("task", *batch.columns)}
            check({"task": batch.task, **batch.columns}, ids, "the running task's samples")
            self._check_stored(checked_batch(batch.x, batch.y))
        old = None if old is None else copied_frozen(self.network, old)
        self.tasks = Tasks(old, frozenset(past), frozenset(labels), () if batch is None else (batch,), most)


def _together(batches: Sequence[Batch]) -> Batch:
    """Return several batches as one; it has ids if some of them have."""
    x, y = tree_concatenate([batch.x for batch in batches]), torch.cat([batch.y for batch in batches])
    task = torch.cat([task_column(batch.task, len(batch)) for batch in batches])
    ids = torch.cat([batch.columns.get(ID, no_ids(len(batch))) for batch in batches])
    return Batch(x, y, task, columns={ID: ids} if any(ID in batch.columns for batch in batches) else {})


def herding(features: Tensor, n: int) -> Tensor:
    """Return the ``n`` samples (or all) whose running mean stays nearest to the mean of all, best first."""
    features = features.double()
    mean, total = features.mean(0), torch.zeros_like(features[0])
    left = torch.ones(len(features), dtype=torch.bool, device=features.device)
    chosen: list[int] = []
    for k in range(1, min(n, len(features)) + 1):
        distances = (mean - (features + total) / k).norm(dim=1).masked_fill(~left, torch.inf)
        chosen.append(int(distances.argmin()))
        left[chosen[-1]] = False
        total = total + features[chosen[-1]]
    return torch.tensor(chosen, dtype=torch.long, device=features.device)
