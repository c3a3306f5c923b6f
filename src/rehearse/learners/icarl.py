"""iCaRL: exemplars chosen by herding, distillation from the network of the last task, nearest-mean prediction."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..batch import Batch, Tree, task_column, tree_concatenate, tree_leaves, tree_map
from ..compute import evaluation_mode, in_parts
from ..errors import InvalidInput, InvalidType
from ..heads import find_head, head_inputs, outputs
from ..lookahead import Lookahead
from ..losses import as_loss, class_targets, in_full
from ..memory import ExemplarMemory
from ..memory.forgetting import matching
from ..memory.ids import ID, as_ids, no_ids
from .base import Learner
from .checks import check_positive
from .herding import class_means, herding
from .step import Step, join, mean_loss

Keep = Literal["memory", "task"]


class ICaRL(Learner):
    """iCaRL (Rebuffi et al. 2017, "Incremental Classifier and Representation Learning"), online.

        B ← B_n ∪ B_P                                      the incoming batch and ``budget`` exemplars of past tasks
        q ← σ(f_θold(B))                                   θold: the network at the end of the last task
        ℓ = Σ_{new c} bce(σ(f_θ(x))_c, [y = c]) + Σ_{old c} bce(σ(f_θ(x))_c, q_c)
        θ ← SGD(mean ℓ(B))                                 ``updates`` times (5 in Table 2 of Aljundi et al. 2019)
      when the task is over, for each of its classes, with φ the features and μ the mean of φ over what was kept:
        p_k ← argmin_x ‖ μ − (φ(x) + Σ_{j<k} φ(p_j)) / k ‖       k = 1 … capacity // classes  (herding)
      prediction:
        argmin_c ‖ φ(x) − μ_c ‖                            μ_c: the mean of φ over the exemplars of c

    φ is what enters the last linear layer, in eval mode; φ and μ are scaled to length one. The means are computed
    anew when the network or the memory has changed. Probabilities are the softmax over −‖φ(x) − μ_c‖; a class that
    never came has none. While a task runs, its means are those of its rows in the memory.

    Differs from the source because the stream is passed once:

    - exemplars can only be chosen from what is still there when the task ends. ``keep="memory"`` never holds more
      rows than the memory's capacity: the running task is sampled into the room that the exemplars leave.
      ``keep="task"`` also holds the whole task beside the memory, as the source does; `report` says how many bytes;
    - new are the classes of the running task, old all others that have come; a class that comes back is new again and
      gets exemplars of its own in each task;
    - one step joins the incoming rows with as many exemplars as the budget says, instead of passing all of both.
    """

    task_aware = True
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
        super().__init__(model, optimizer, prepare=prepare, precision=precision, clip=clip, seed=seed)
        if not isinstance(memory, ExemplarMemory):
            raise InvalidType(f"the memory must be an ExemplarMemory, this is {memory!r}")
        if keep not in get_args(Keep):
            raise InvalidInput(f"keep is {keep!r}; it must be one of {', '.join(get_args(Keep))}")
        check_positive(budget=budget, updates=updates)
        find_head(model)
        self.memory, self.budget, self.updates, self.keep = memory, budget, updates, keep
        self._old: dict[str, Tensor] | None = None  # θold
        self._past_labels: set[int] = set()
        self._labels: set[int] = set()  # of the running task
        self._kept: list[Batch] = []  # the whole running task, for keep="task"
        self._most_kept_bytes = 0
        self._means: tuple[tuple[int, int, int], tuple[Tensor, Tensor]] | None = None

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None) -> Step:
        """Learn from the incoming batch and from exemplars of past tasks, then remember it."""
        incoming = self._accept(x, y, task, id)
        labels = self._labels_of(incoming)
        self.memory.check(incoming)
        self.memory.share(incoming)
        with self._task_over(incoming), self.memory.transaction(), self._transaction(parameters=self.updates > 1):
            for _ in range(self.updates):
                recalled = None
                if self.memory.eligible(incoming.task):
                    recalled = self.memory.sample(self.budget, exclude_task=incoming.task)  # B_P
                batch = incoming if recalled is None else join(incoming, recalled)
                targets = self._targets(batch, new=self._labels | labels)
                losses = self._losses_to(targets, self._forward(batch.x))
                self._apply(self._gradient(mean_loss(losses)))  # θ ← SGD(mean ℓ(B))
        self._remember(incoming)
        self._labels |= labels
        self._settle(incoming)
        old = losses[len(incoming) :]
        return Step(losses[: len(incoming)].mean().item(), old.mean().item() if len(old) else None, recalled)

    def remember(self, data: Iterable[Any], limit: int | None = None) -> int:
        """Choose exemplars from data that the model already knows, and let it be the network to distil from.

        It is what a task with these rows would leave, without the training; see `learners.remember`. Rows that come
        without a task have exemplars of their own for each class.
        """
        if self._labels:
            raise InvalidInput("a task is running; end it before remembering other data: learner.end_task()")
        passed = self._rows_passed
        try:
            return super().remember(data, limit)
        finally:
            self.end_task()
            self._rows_passed = passed

    def _take_in(self, known: Batch) -> None:
        labels = self._labels_of(known)
        known = replace(known, columns={name: ids for name, ids in known.columns.items() if name == ID})
        self.memory.check(known)
        self.memory.share(known)
        if not bool(self._features(known.x).isfinite().all()):
            raise InvalidInput("the features of some of these rows are not finite; they cannot be exemplars")
        self._remember(known)
        self._labels |= labels

    def end_task(self) -> None:
        """Choose the exemplars of the running task, and keep the network to distil from."""
        if not self._labels:
            return
        rows = _together(self._kept) if self._kept else self.memory.get(torch.from_numpy(self.memory.running()))
        self.memory.enrol(self._exemplars(rows))
        self._most_kept_bytes = self._most_bytes()
        self._old = {name: value.detach().clone() for name, value in self._tensors()}
        self._past_labels |= self._labels
        self._labels, self._kept, self._means = set(), [], None

    def _exemplars(self, rows: Batch) -> list[Batch]:
        """The exemplars of each class of each task among the rows, best first."""
        share, features = self.memory.share(rows), self._features(rows.x).cpu()
        self._rows_passed += len(rows)
        chosen = []
        for task, label in sorted({*zip(task_column(rows.task, len(rows)).tolist(), rows.y.tolist(), strict=True)}):
            of_group = ((task_column(rows.task, len(rows)) == task) & (rows.y == label)).nonzero().flatten()
            chosen.append(rows.take(of_group[herding(features[of_group], share)]))
        return chosen

    # ---------------------------------------------------------------------------------------------------- learning

    def _labels_of(self, incoming: Batch) -> set[int]:
        if incoming.y.ndim != 1:
            raise InvalidInput(f"iCaRL learns one class a row; these targets have shape {tuple(incoming.y.shape)}")
        scores = torch.empty(len(incoming), outputs(self.model), device="meta")
        return set(class_targets(scores, incoming.y).tolist())

    @contextlib.contextmanager
    def _task_over(self, incoming: Batch) -> Iterator[None]:
        """A new task ends the one before; if its first batch is refused after all, nothing has ended."""
        if not isinstance(incoming.task, int) or incoming.task == self.task or not self._labels:
            yield
            return
        before, passed = self._own_state(), self._rows_passed
        self.end_task()
        try:
            yield
        except BaseException:
            self._load_own_state(before)
            self._rows_passed = passed
            raise

    def _targets(self, batch: Batch, new: set[int]) -> dict[int, Tensor]:
        """What the output of each class that has come should say: [y = c] if it is new, q_c if it is old."""
        targets = {label: (batch.y == label).float().to(self.device) for label in new}
        old = self._past_labels - new
        if old and self._old is not None:
            with torch.no_grad(), evaluation_mode(self.model):
                q = in_full(self._forward(batch.x, self._old)).sigmoid()
            targets |= {label: q[:, label] for label in old}
        return targets

    def _foresight(self, incoming: Batch) -> Lookahead:
        """Rows are judged as in a step of the running task: against [y = c], and against the old network."""
        new, lookahead = self._labels | self._labels_of(incoming), super()._foresight(incoming)
        lookahead.loss = as_loss(lambda scores, rows, _: self._losses_to(self._targets(rows, new), scores))
        return lookahead

    @staticmethod
    def _losses_to(targets: dict[int, Tensor], scores: Tensor) -> Tensor:
        """Binary cross-entropy summed over the classes that have come, one value a row."""
        known = sorted(targets)
        scores = in_full(scores)[:, known]
        goal = torch.stack([targets[label] for label in known], dim=1).to(scores)
        return F.binary_cross_entropy_with_logits(scores, goal, reduction="none").sum(1)

    def _remember(self, incoming: Batch) -> None:
        self.memory.keep(incoming, self.memory.check(incoming))
        if self.keep == "task":
            task = task_column(incoming.task, len(incoming))
            ids = {name: column.clone() for name, column in incoming.columns.items() if name == ID}
            copy = Batch(tree_map(torch.clone, incoming.x), incoming.y.clone(), task, columns=ids)
            self._kept.append(copy)

    def forget(self, *, ids: Any = None, slots: Any = None, predicate: Callable[[Batch], Tensor] | None = None) -> int:
        """Rows of the running task that are held beside the memory go too."""
        if slots is not None and self._kept:
            raise InvalidInput("the running task is held beside the memory too: name its rows by ids or a predicate")
        running = len(self.memory.running())
        kept = _together(self._kept) if self._kept else None
        doomed = torch.zeros(0 if kept is None else len(kept), dtype=torch.bool)
        if kept is not None and (ids is None or ID in kept.columns):
            doomed = matching(kept, None if ids is None else as_ids(ids), predicate)
        removed = super().forget(ids=ids, slots=slots, predicate=predicate)
        self._means = None
        if kept is None:
            return removed
        self._kept = [kept.take((~doomed).nonzero().flatten())]
        twice = running - len(self.memory.running())  # what the memory had of them it had as a copy
        return removed - twice + int(doomed.sum())

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()

    # -------------------------------------------------------------------------------------------------- predicting

    def _evaluate(self, x: Tree, buffers: dict[str, Tensor] | None = None) -> Tensor:
        """Minus the distance of φ(x) to the mean of each class; −∞ for classes that never came."""
        features = self._features(x, buffers)
        labels, means = self._class_means()
        if not len(labels):
            return features.new_zeros(len(features), outputs(self.model))
        scores = features.new_full((len(features), outputs(self.model)), -torch.inf)
        scores[:, labels] = -torch.cdist(features, means, compute_mode="donot_use_mm_for_euclid_dist")
        return scores

    def _class_means(self) -> tuple[Tensor, Tensor]:
        """The classes that rows are held of, and the mean of φ over the rows of each."""
        now = (self.moves, self.rows_observed, len(self.memory))
        if self._means is None or self._means[0] != now:
            self._means = (now, self._fresh_class_means())
        return self._means[1]

    def _fresh_class_means(self) -> tuple[Tensor, Tensor]:
        if not len(self.memory):
            return torch.empty(0, dtype=torch.long), torch.empty(0)
        rows = self.memory.all()
        return class_means(self._features(rows.x), rows.y.long().to(self.device))

    def _features(self, x: Tree, buffers: dict[str, Tensor] | None = None) -> Tensor:
        """φ(x): what enters the head in eval mode, scaled to length one."""
        _, head = find_head(self.model)
        parts = []
        for part in in_parts(x):
            with head_inputs(head) as seen:
                super()._evaluate(part, buffers)
            parts.append(F.normalize(in_full(seen[-1]).flatten(1), dim=1))
        return torch.cat(parts)

    # ------------------------------------------------------------------------------------------------------- state

    def report(self) -> dict[str, Any]:
        """Bytes of the exemplars, and the most that the running task took beside them."""
        return {"memory_bytes": self.memory.nbytes, "running_task_bytes": self._most_bytes()}

    def _most_bytes(self) -> int:
        return max(self._most_kept_bytes, sum(map(_bytes, self._kept)))

    def _own_state(self) -> dict[str, Any]:
        kept = _together(self._kept) if self._kept else None
        return {
            "memory": self.memory.state_dict(),
            "old": None if self._old is None else dict(self._old),
            "past_labels": sorted(self._past_labels),
            "labels": sorted(self._labels),
            "kept": None if kept is None else {name: getattr(kept, name) for name in ("x", "y", "task", "columns")},
            "most_kept_bytes": self._most_kept_bytes,
        }

    def _load_own_state(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state["memory"])
        self._old = None if state["old"] is None else {name: value.clone() for name, value in state["old"].items()}
        self._past_labels, self._labels = set(state["past_labels"]), set(state["labels"])
        kept = state["kept"]
        self._kept = [] if kept is None else [Batch(**kept)]
        self._most_kept_bytes = int(state["most_kept_bytes"])
        self._means = None


def _together(batches: list[Batch]) -> Batch:
    columns = {}
    if any(ID in batch.columns for batch in batches):
        columns[ID] = torch.cat([batch.columns.get(ID, no_ids(len(batch))) for batch in batches])
    return Batch(
        tree_concatenate([batch.x for batch in batches]),
        torch.cat([batch.y for batch in batches]),
        torch.cat([task_column(batch.task, len(batch)) for batch in batches]),
        columns=columns,
    )


def _bytes(rows: Batch) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in [*tree_leaves(rows.x), rows.y])
