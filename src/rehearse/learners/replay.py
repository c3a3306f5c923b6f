"""Algorithm 1: experience replay, and whatever differs from it only by the loss or the retrieval."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..batch import Batch, Tree
from ..compute import batchnorms
from ..errors import InvalidInput, InvalidType, RehearseError
from ..gradients import Gradient, add_gradients
from ..heads import find_head
from ..lookahead import Lookahead
from ..losses import to_remember
from ..memory import Memory
from ..retrieval import MostInterfered, Recall, Retrieval
from .base import Learner
from .checks import check_budget, check_not_negative, check_positive, needs_two_rows
from .statistics import KeptStatistics, estimated, recalibrated_statistics
from .step import Step, join, mean_loss, without_task

BatchNorm = Literal["published", "clean", "joint", "recalibrated", "auto"]
ENOUGH = 200  # memories to re-estimate statistics from, for "auto"; decision 0044
Columns = dict[str, Tensor]


class Replay(Learner):
    """Experience replay (ER), and with `MostInterfered` retrieval ER-MIR (Algorithm 1 of the paper).

        θᵛ  ← θ − α ∇ℓ(B_n)                       the foreseen parameters
        B_C ~ M                                    C candidates
        B_MC ← the budget highest of s_MI(B_C)     what to recall
        θ  ← SGD(B_n ∪ B_MC, α)                    ∇ mean ℓ(B_n) + replay_weight · ∇ mean ℓ(B_MC)
        M  ← UpdateMemory(B_n)

    ``updates`` is the number of iterations per incoming batch, the retrieval being redone at each. With tasks given,
    memories of the current task are left out (``exclude_current_task``); without them all take part.

    ``batchnorm`` says how batch-norm is treated; without batch-norm it has no effect. In all of them incoming and
    recalled rows pass separately (each with its own batch statistics) but in ``joint``:

    - ``published``: incoming, candidates and recalled rows each move the running statistics, as in the paper's program;
    - ``clean``: candidates leave them alone;
    - ``joint``: incoming and recalled rows pass together, and move them once;
    - ``recalibrated``: trained as ``clean``; prediction uses statistics re-estimated from the memory. The first
      prediction after a step passes up to 1,000 memories for that; who predicts after every step may want ``clean``.
      The model itself, asked without the learner, has the statistics of ``clean``;
    - ``auto``: ``clean`` until there are 200 memories, and ``recalibrated`` from then on.

    All but ``joint`` train the same parameters to the bit, as running statistics have no part in training. So
    ``published`` keeps the statistics of ``clean`` beside its own, and `treatments` predicts as the two others would.

    Differs from the authors' program: the best losses of MI-2 are kept by slot, so they stay with their row, start
    at infinity and go when the row goes; the reservoir follows its law within a batch too.
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
        batchnorm: BatchNorm = "auto",
        prepare: Callable[[Tree], Tree] | None = None,
        precision: str = "auto",
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, optimizer, loss=loss, prepare=prepare, precision=precision, clip=clip, seed=seed)
        if not isinstance(memory, Memory):
            raise InvalidType(f"the memory must be a Memory such as ReservoirMemory(500), this is {memory!r}")
        check_positive(budget=budget, updates=updates)
        check_not_negative(replay_weight=replay_weight)
        if batchnorm not in get_args(BatchNorm):
            raise InvalidInput(f"batchnorm is {batchnorm!r}; it must be one of {', '.join(get_args(BatchNorm))}")
        if retrieval is not None and (isinstance(retrieval, type) or not callable(retrieval)):
            raise InvalidType(f"the retrieval must be an object like MostInterfered(), this is {retrieval!r}")
        if batchnorm != "joint":
            check_budget(budget, model)
        self.memory, self.retrieval = memory, MostInterfered() if retrieval is None else retrieval
        self.budget, self.updates, self.replay_weight = budget, updates, replay_weight
        self.exclude_current_task, self.batchnorm = exclude_current_task, batchnorm
        self.lookahead = Lookahead(
            model,
            optimizer,
            self.loss,
            virtual_step=getattr(self.retrieval, "virtual_step", "sgd"),
            layers=getattr(self.retrieval, "layers", "all"),
            prepare=self.prepare,
            computation=self.computation,
            parts=self._parts,
            compile_rows=getattr(self.retrieval, "compile_rows", None),
            clip=clip,
        )
        self._recalibrated: tuple[tuple[Any, ...], dict[str, Tensor]] | None = None
        self._clean: KeptStatistics | None = None  # until candidates move them, the model's own are the clean ones
        self._predicts_as = batchnorm

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None) -> Step:
        """Learn from the incoming batch and from the memories it would interfere with, then remember it."""
        incoming = self._accept(x, y, task, id)
        with self._transaction(parameters=self.updates > 1):
            for _ in range(self.updates):
                step, columns = (self._joint_update if self._joint else self._update)(incoming)
        self.memory.keep(incoming, columns)  # M ← UpdateMemory(B_n)
        self._settle(incoming)
        return step

    def _update(self, incoming: Batch) -> tuple[Step, Columns]:
        """One update, and what to remember of the rows. Incoming and recalled rows pass one after the other."""
        loss, gradient, scores = self._passed(incoming, recalled=False)  # ∇ℓ(B_n), once for both uses
        columns = self.memory.check(incoming, **to_remember(self.loss, scores.detach()))
        recalled, interference = self._recall(incoming, gradient)
        self._move_statistics()
        recalled_loss = None
        if recalled is not None:
            known = self.lookahead.pass_of(recalled)
            recalled_loss, replayed, _ = self._passed(recalled, recalled=True, known=known)
            gradient = add_gradients(gradient, replayed, self.replay_weight)
        self._apply(gradient)  # θ ← SGD(B_n ∪ B_MC, α)
        return Step(loss, recalled_loss, recalled, interference), columns

    def _joint_update(self, incoming: Batch) -> tuple[Step, Columns]:
        """The same with all rows in one pass.

        The gradient of the incoming rows alone serves the look-ahead: batch-norm's statistics stay in its pass, and
        there is none where nothing is foreseen.
        """
        gradient: Gradient = {}
        if getattr(self.retrieval, "needs_gradient", True) and self.memory.eligible(self._asking(incoming).task):
            gradient = self._passed(incoming, recalled=False, buffers=self._parts().buffer_copies()).gradient
        recalled, interference = self._recall(incoming, gradient)
        self._move_statistics()
        n = len(incoming)
        scores = self._forward(incoming.x if recalled is None else join(incoming, recalled).x)
        loss = total = mean_loss(self._losses(incoming, False, scores[:n]))
        columns = self.memory.check(incoming, **to_remember(self.loss, scores[:n].detach()))
        recalled_loss = None
        if recalled is not None:
            replayed = mean_loss(self._losses(recalled, True, scores[n:]))
            total, recalled_loss = loss + self.replay_weight * replayed, replayed.item()
        self._apply(self._gradient(total))
        return Step(loss.item(), recalled_loss, recalled, interference), columns

    @contextlib.contextmanager
    def _transaction(self, *, parameters: bool = False) -> Iterator[None]:
        """What the retrieval learned of the memory, and the look-ahead's notes, go back too after an error."""
        passed, clean = self.lookahead.rows_passed, self._clean
        kept = None if clean is None else clean.copy()
        try:
            with self.memory.transaction(), super()._transaction(parameters=parameters):
                yield
        except BaseException:
            self.lookahead.rows_passed, self.lookahead.statistics, self._clean = passed, {}, clean
            if clean is not None and kept is not None:
                clean.load(kept)
            raise
        finally:
            self.lookahead.clear()

    def _recall(self, incoming: Batch, gradient: Gradient) -> Recall:
        """What to replay. A lone memory has no statistics of its batch: a model that needs them waits for a second."""
        asking = self._asking(incoming)
        if self.memory.eligible(asking.task) == 1 and needs_two_rows(self.model):
            return None, None
        try:
            return self.retrieval(self.memory, asking, gradient, self.lookahead, self.budget)
        except RehearseError:
            raise
        except (RuntimeError, ValueError) as problem:
            raise InvalidInput(f"the memories cannot be scored: {problem}") from problem

    def _asking(self, incoming: Batch) -> Batch:
        return incoming if self.exclude_current_task else without_task(incoming)

    def _move_statistics(self) -> None:
        """The published treatment of batch-norm: the candidates' pass moves the running statistics too."""
        passed, self.lookahead.statistics = self.lookahead.statistics, {}
        if self.batchnorm == "published" and passed:
            if self._clean is None and batchnorms(self.model):
                self._clean = KeptStatistics(self.model)
            for name, buffer in self._parts().buffers().items():
                if name in passed:
                    buffer.copy_(passed[name])

    @property
    def _joint(self) -> bool:
        return self.batchnorm == "joint" and bool(batchnorms(self.model))

    def treatments(self) -> dict[str, Callable[[Tree], Tensor]]:
        """Predictions of the other treatments that train the same parameters; `predict` itself where none differs."""
        if self.batchnorm != "published" or not batchnorms(self.model):
            return {}
        clean = self.predict if self._clean is None else functools.partial(self._predict_as, "clean")
        return {"clean": clean, "recalibrated": functools.partial(self._predict_as, "recalibrated")}

    def _predict_as(self, treatment: BatchNorm, x: Tree) -> Tensor:
        with self._predicting_as(treatment):
            return self.predict(x)

    @contextlib.contextmanager
    def _predicting_as(self, treatment: BatchNorm) -> Iterator[None]:
        try:
            self._predicts_as = treatment
            yield
        finally:
            self._predicts_as = self.batchnorm

    def _take_in(self, known: Batch) -> None:
        """For `remember`: with the model's own statistics, as those of a memory move while it is being filled."""
        with self._predicting_as("published" if self.batchnorm == "published" else "clean"):
            super()._take_in(known)

    def _evaluate(self, x: Tree, buffers: dict[str, Tensor] | None = None) -> Tensor:
        return super()._evaluate(x, self._statistics() if buffers is None else buffers)

    def _statistics(self) -> dict[str, Tensor] | None:
        """The buffers to predict with, or None for the model's own."""
        least = {"recalibrated": 2, "auto": ENOUGH}.get(self._predicts_as)  # one row has no variance to estimate
        if least is not None and len(self.memory) >= least and estimated(self.model):
            return self.recalibrated_statistics()
        if self._predicts_as != "published" and self._clean is not None:
            return self._parts().buffers() | self._clean_values()
        return None

    def _clean_values(self) -> dict[str, Tensor]:
        """Where candidates have moved the model's statistics, those that they have not."""
        return {} if self._clean is None else self._clean.values

    def _forward_prepared(self, x: Tree, buffers: dict[str, Tensor] | None = None) -> Tensor:
        """A pass that moves the model's own statistics moves the clean ones too."""
        if buffers is not None or self._clean is None:
            return super()._forward_prepared(x, buffers)
        with self._clean.following():
            return super()._forward_prepared(x)

    def recalibrated_statistics(self) -> dict[str, Tensor]:
        """The model's buffers with batch-norm's statistics re-estimated from the memory, anew only when one of the
        two has changed."""
        tensors = (*self.model.parameters(), *self.model.buffers())
        versions = ((id(tensor), tensor._version) for tensor in tensors)  # somebody else may move the model too
        now = (self.moves, self.memory.seen, len(self.memory), *versions)
        if self._recalibrated is None or self._recalibrated[0] != now:
            clean = self._clean_values()
            self._recalibrated = (now, recalibrated_statistics(self.model, self.memory, self._forward_quietly, clean))
        return self._parts().buffers() | self._clean_values() | self._recalibrated[1]

    def _forward_quietly(self, x: Tree, buffers: dict[str, Tensor]) -> None:
        passed = self._rows_passed
        with self.random.borrowed():
            self._forward(x, buffers)
        self._rows_passed = passed

    def grow(self, classes: int) -> int:
        """See `Learner.grow`; refused where the memory could not keep what the loss wants kept of so many outputs."""
        if isinstance(classes, int) and classes > 0:
            scores = find_head(self.model)[1].weight.new_zeros(1, classes)
            self.memory.check_widths(to_remember(self.loss, scores))
        return super().grow(classes)

    def _foresight(self, incoming: Batch) -> Lookahead:
        return self.lookahead

    @property
    def rows_passed(self) -> int:
        return self._rows_passed + self.lookahead.rows_passed

    def to(self, device: torch.device | str) -> Learner:
        self._recalibrated = None
        if self._clean is not None:
            self._clean.to(device)
        return super().to(device)

    def _own_state(self) -> dict[str, Any]:
        own: dict[str, Any] = {"memory": self.memory.state_dict()}
        if self.batchnorm == "published" and batchnorms(self.model):
            own["clean"] = None if self._clean is None else self._clean.copy()
        return own

    def _load_own_state(self, state: dict[str, Any]) -> None:
        if self.batchnorm == "published" and batchnorms(self.model):
            self._clean = None if state["clean"] is None else KeptStatistics(self.model)
            if self._clean is not None:
                self._clean.load(state["clean"])
        self.memory.load_state_dict(state["memory"])
        self.lookahead.rows_passed = 0
        self._recalibrated = None
