"""The learner contract, and the few things that every learner does the same way."""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..batch import Batch, Tree, checked_batch, checked_inputs, tree_leaves, tree_map
from ..chain import ChainPass, can_pass, pass_chain
from ..compute import (
    RandomState,
    evaluation_mode,
    in_parts,
    keep_freed_memory,
    prepare_for_model,
    resolve_precision,
    training_mode,
)
from ..errors import CheckpointError, InvalidInput, InvalidType, RehearseError
from ..gradients import Gradient, chain_gradient, gradient_of, linear_uses
from ..heads import fit, grow, outputs
from ..kernels import own_kernels
from ..lookahead import Lookahead, call_arguments
from ..losses import CrossEntropy, Kind, as_loss, in_full
from ..memory import Memory
from ..memory.ids import ID, one_id_a_row
from ..parts import KeptBuffers, Parts, load_unsaved, parts_of, unsaved_copies
from .checks import check_optimizer_fits, check_parts
from .diagnose import Diagnosis, diagnose, optimizer_foresight
from .remember import remember, take_in
from .step import Passed, Step, check_rows, mean_loss, refuse_overflown, step_along


class Learner(ABC):
    """A model that learns from a stream, one batch at a time, each batch once.

    `observe` learns, `predict` never changes anything, `state_dict` holds everything: after `load_state_dict` the
    learner goes on bit for bit. It owns its random numbers; nothing global is changed, and a refused batch leaves
    everything as it was.
    """

    task_aware: ClassVar[bool] = False
    """Whether the method needs to be told the task of each batch."""

    memory: Memory | None = None
    """What the method keeps of the stream, if it keeps anything."""

    exclude_current_task: bool = True
    """Whether memories of the task that is being learned are left out of replay."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        loss: Any = None,
        prepare: Callable[[Tree], Tree] | None = None,
        precision: str = "auto",
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        check_parts(model, optimizer, clip, prepare)
        self.model, self.optimizer = model, optimizer
        self.loss = as_loss(loss)
        self.prepare = prepare or prepare_for_model(model)
        self.clip = clip
        self.computation = resolve_precision(precision, model, self.device)
        if self.computation.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        keep_freed_memory()
        self.random = RandomState(seed)
        self.task: int | None = None
        self.kind: Kind | None = self.loss.kind
        self.rows_observed = 0
        self._rows_passed = 0
        self._held_parts: Parts | None = None
        self.moves = 0  # steps taken: whatever is derived from the model is as old as this says
        self._least_outputs = outputs(model)

    # ------------------------------------------------------------------------------------------------ the contract

    @abstractmethod
    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None) -> Step:
        """Learn from a batch of the stream. With an ``id`` for each row, `forget` finds what is kept of it again."""

    def begin_task(self, data: Batch | None, task: int, on_step: Callable[[int, int], None] | None = None) -> None:
        """A task begins; ``data`` is all of it, for those who may look ahead. Optional, and nothing by default.

        Long preparations call ``on_step`` with how many steps of how many are done; `state_dict` is whole inside it,
        and after loading that a second call goes on where it was.
        """

    def before_preparation(self, task: int) -> dict[str, Any] | None:
        """All that `begin_task` starts from but the task's rows and what `prepare` makes of them; where two learners
        have the same, either's `preparation` serves both. None: there is nothing that another could take over."""
        return None

    def preparation(self) -> dict[str, Any]:
        """What `begin_task` has made of the task."""
        raise CheckpointError(f"{type(self).__name__} prepares nothing that another learner could take over")

    def take_preparation(self, prepared: dict[str, Any], rows_passed: int) -> None:
        """Take what `preparation` gave in the place of `begin_task`, which had passed so many rows."""
        raise CheckpointError(f"{type(self).__name__} prepares nothing that another learner could take over")

    def end_task(self) -> None:
        """The task is over; called before evaluation. Optional, and nothing by default."""

    def evaluation_metrics(self, x: Tree, y: Tensor) -> dict[str, float]:
        """What the method can measure of itself on a test set, beyond accuracy. Nothing by default."""
        return {}

    def report(self) -> dict[str, Any]:
        """What a finished run should tell of the learner, as plain values. Nothing by default."""
        return {}

    def treatments(self) -> dict[str, Callable[[Tree], Tensor]]:
        """Other ways to predict that the same training serves, by name. None by default."""
        return {}

    def predict(self, x: Tree) -> Tensor:
        """The most likely class of each row (for regression the values, for multi-label streams a boolean each)."""
        scores = self.scores(x)
        if self.kind == "values":
            return scores
        return scores > 0 if self.kind == "labels" else scores.argmax(1)

    def predict_proba(self, x: Tree) -> Tensor:
        """The probability of each class: softmax of the scores (sigmoid for multi-label streams)."""
        if self.kind == "values":
            raise InvalidInput("this learner predicts values, not classes; there are no probabilities, use predict")
        scores = self.scores(x)
        return scores.sigmoid() if self.kind == "labels" else scores.softmax(1)

    def scores(self, x: Tree) -> Tensor:
        """What the model gives for each row, in eval mode."""
        return torch.cat([self._evaluate(part) for part in in_parts(checked_inputs(x))])

    @property
    def device(self) -> torch.device:
        parameter = next(self.model.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device

    def to(self, device: torch.device | str) -> Learner:
        """Move model and optimiser state; memories stay where they are and are moved as they are recalled."""
        self.model.to(device)
        for state in self.optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.ndim > 0:
                    state[name] = value.to(device)
        return self

    def grow(self, classes: int) -> int:
        """Give the model's head ``classes`` outputs in all, and say how many are new; see `rehearse.heads.grow`.

        What was learned stays to the bit, the optimiser's momentum or moments too; new outputs start from the
        learner's own random numbers. A checkpoint of a grown learner loads into one that has not grown yet.
        """
        if self.kind in ("labels", "values"):
            raise InvalidInput("only a head of classes can grow: other targets are stored as wide as they came")
        with self.random:
            added = grow(self.model, self.optimizer, classes)
        self.moves += added > 0
        return added

    def remember(self, data: Iterable[Any], limit: int | None = None) -> int:
        """Fill the memory from data that the model already knows, without training; see `learners.remember`."""
        return remember(self, data, limit)

    def _take_in(self, known: Batch) -> None:
        take_in(self, known)

    def forget(self, *, ids: Any = None, slots: Any = None, predicate: Callable[[Batch], Tensor] | None = None) -> int:
        """Remove rows for good from all that is kept of the stream, and say how many; see `Memory.forget`."""
        if self.memory is None:
            raise InvalidInput(f"{type(self).__name__} keeps no rows; there is nothing to remove")
        return self.memory.forget(ids=ids, slots=slots, predicate=predicate)

    def diagnose(self, x: Tree, y: Any, task: Any = None, limit: int | None = None) -> Diagnosis:
        """Which memories a step on this batch would interfere with, and by how much; see `learners.diagnose`."""
        return diagnose(self, x, y, task, limit)

    def _foresight(self, incoming: Batch) -> Lookahead:
        """What foresees a step of this learner on that batch, for `diagnose`."""
        return optimizer_foresight(self)

    def _count(self, rows: int) -> None:
        """So many rows more have passed forward."""
        self._rows_passed += rows

    @property
    def forward_passes(self) -> float:
        """Rows passed forward through the model for each row observed: what the method costs."""
        return self.rows_passed / max(self.rows_observed, 1)

    @property
    def rows_passed(self) -> int:
        """Rows passed forward so far."""
        return self._rows_passed

    # ----------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what happens next: tensors and plain values only."""
        return {
            "learner": type(self).__name__,
            "model": copy.deepcopy(dict(self.model.state_dict())),
            "buffers": unsaved_copies(self.model),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "optimizer_kind": type(self.optimizer).__name__,
            "random": dict(self.random.get()),
            "task": self.task,
            "kind": self.kind,
            "rows_observed": self.rows_observed,
            "rows_passed": self.rows_passed,
            "moves": self.moves,
            "own": self._own_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back a `state_dict`; one that does not fit is refused and changes nothing."""
        if not isinstance(state, dict):
            raise CheckpointError(f"a state is a dict, as state_dict gives it; this is a {type(state).__name__}")
        if state.get("learner") != type(self).__name__:
            raise CheckpointError(f"the state is of a {state.get('learner')}, this is a {type(self).__name__}")
        before = self.state_dict()
        try:
            self._load(state)
        except RehearseError:
            self._load(before)
            raise
        except KeyError as problem:
            self._load(before)
            raise CheckpointError(f"the state lacks {problem}; another version of rehearse saved it") from problem
        except Exception as problem:
            self._load(before)
            raise CheckpointError(f"the state does not fit this {type(self).__name__}: {problem}") from problem

    def confirm(self, state: dict[str, Any]) -> None:
        """The state is safely on a disk: nothing is needed any more to go back further than that (`rehearse.save`)."""
        if self.memory is not None and "memory" in state["own"]:
            self.memory.confirm(state["own"]["memory"])

    def _load(self, state: dict[str, Any]) -> None:
        fit(self.model, self.optimizer, state["model"], self._least_outputs)
        self.model.load_state_dict(state["model"])
        load_unsaved(self.model, state["buffers"])
        check_optimizer_fits(state["optimizer"], self.optimizer, state["optimizer_kind"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.random.set(state["random"])
        self.task, self.kind = state["task"], state["kind"]
        self.rows_observed, self._rows_passed = state["rows_observed"], state["rows_passed"]
        self.moves = state["moves"]
        self._load_own_state(state["own"])

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """What this method holds beyond model, optimiser and random state."""

    @abstractmethod
    def _load_own_state(self, state: dict[str, Any]) -> None:
        """Take back what `_own_state` gave."""

    # ------------------------------------------------------------------------------------- what observing is made of

    def _accept(self, x: Tree, y: Any, task: Any, id: Any = None) -> Batch:
        """Validate everything first, change nothing."""
        if self.task_aware and task is None:
            raise InvalidInput(f"{type(self).__name__} needs to know the task of each batch: observe(x, y, task=...)")
        batch = checked_batch(x, y, task)
        return batch if id is None else replace(batch, columns={ID: one_id_a_row(id, len(batch))})

    def _settle(self, incoming: Batch) -> None:
        """The batch was learned: note what it tells about the stream."""
        if isinstance(incoming.task, int):
            self.task = incoming.task
        self._note_kind(incoming)
        self.rows_observed += len(incoming)

    def _note_kind(self, rows: Batch) -> None:
        """A user's own loss does not say what the model's outputs mean; the targets do."""
        if self.kind is None:
            self.kind = "values" if rows.y.is_floating_point() else "classes"

    @contextlib.contextmanager
    def _transaction(self, *, parameters: bool = False) -> Iterator[None]:
        """Train mode and the learner's own random numbers; after an error everything is put back as it was.

        ``parameters`` says that the block may take more than one step, so that their start must be kept too.
        """
        self._held_parts = parts = parts_of(self.model, self.optimizer)
        buffers = KeptBuffers(parts.modules)
        random, counts = self.random.get(), (self._rows_passed, self.moves)
        weights = {name: p.detach().clone() for name, p in self.model.named_parameters()} if parameters else {}
        optimizer = copy.deepcopy(self.optimizer.state_dict()) if parameters else None
        try:
            with torch.enable_grad(), training_mode(self.model, parts.modules), self.random:
                yield
        except BaseException:
            with torch.no_grad():
                buffers.put_back()
                for name, parameter in self.model.named_parameters():
                    if name in weights:
                        parameter.copy_(weights[name])
            if optimizer is not None:
                self.optimizer.load_state_dict(optimizer)
            self.random.set(random)
            self._rows_passed, self.moves = counts
            raise
        finally:
            self._held_parts = None

    def _parts(self) -> Parts:
        """What the model is made of; looked up once for a transaction."""
        return self._held_parts or parts_of(self.model, self.optimizer)

    def _forward(self, x: Tree, buffers: dict[str, Tensor] | None = None) -> Tensor:
        """The model's scores for stored or incoming rows; with ``buffers``, those are used and moved instead."""
        return check_rows(self._forward_prepared(self._ready(x), buffers), len(tree_leaves(x)[0]))

    def _ready(self, x: Tree) -> Tree:
        """Rows as the model takes them."""
        device = self._parts().device
        return self.prepare(tree_map(lambda leaf: leaf.to(device), x))

    def _forward_prepared(self, x: Tree, buffers: dict[str, Tensor] | None = None) -> Tensor:
        parts = self._parts()
        arguments, keywords = call_arguments(self.computation.layout(x))
        try:
            kernels = own_kernels(self.model, parts.modules, dtype=self.computation.training)
            with self.computation.autocast(parts.device, scoring=False), kernels:
                if buffers is None:
                    scores = self.model(*arguments, **keywords)
                else:
                    scores = functional_call(self.model, buffers, arguments, keywords)
        except RehearseError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError) as problem:
            raise InvalidInput(f"the model cannot take this batch: {problem}") from problem
        if not isinstance(scores, Tensor):
            raise InvalidType(f"the model must give one tensor of scores, it gave {type(scores).__name__}")
        if scores.ndim == 0:
            raise InvalidInput("the model gave a single number; it must give scores (or values) for every row")
        self._rows_passed += len(scores)
        return scores

    def _scores_of(self, rows: Tensor, buffers: dict[str, Tensor] | None = None) -> Tensor:
        """The same of prepared rows in one tensor, as many scores as rows."""
        return check_rows(self._forward_prepared(rows, buffers), len(rows))

    def _losses(self, batch: Batch, recalled: bool, scores: Tensor | None = None) -> Tensor:
        """One loss a row; passes the batch through the model unless its scores are given."""
        scores = self._forward(batch.x) if scores is None else scores
        return self.loss(scores, batch.to(self._parts().device), recalled)

    def _gradient(self, loss: Tensor) -> Gradient:
        """∇loss by parameter name."""
        parts = self._parts()
        with own_kernels(self.model, parts.modules, dtype=self.computation.training):  # it may pass some parts again
            return gradient_of(loss, parts.stepped)

    def _passed(
        self,
        batch: Batch,
        recalled: bool,
        buffers: dict[str, Tensor] | None = None,
        known: ChainPass | None = None,
    ) -> Passed:
        """Pass a batch, and take the gradient of its mean loss: cheaper than the one after the other.

        A chain of linear layers is passed by hand; with ``known`` that was done already, and is only counted.
        """
        parts = self._parts()
        x = self._ready(batch.x) if known is None else None
        by_hand = self._passed_by_hand(x, parts) if known is None else known
        if by_hand is None:
            noting = linear_uses(parts)
            with noting:
                scores = check_rows(self._forward_prepared(x, buffers), len(batch))
            loss = mean_loss(self._losses(batch, recalled, scores))
            with noting as uses, own_kernels(self.model, parts.modules, dtype=self.computation.training):
                return Passed(loss.item(), gradient_of(loss, parts.stepped, uses), scores)
        scores = by_hand.scores
        self._rows_passed += len(scores)
        if type(self.loss) is CrossEntropy:
            losses, of_scores = self.loss.with_gradient(scores.detach(), batch.to(parts.device), recalled)
            return Passed(mean_loss(losses).item(), chain_gradient(by_hand, of_scores, parts.stepped), scores)
        loss = mean_loss(self._losses(batch, recalled, scores.clone()))  # a loss may write into what it is given
        return Passed(loss.item(), gradient_of(loss, parts.stepped, [by_hand]), scores)

    def _passed_by_hand(self, x: Tree, parts: Parts) -> ChainPass | None:
        """The pass of a chain of linear layers, where these rows can go through one."""
        if parts.chain is None or self.computation.training != torch.float32 or not can_pass(parts.chain, (x,)):
            return None
        return pass_chain(parts.chain, x)

    def _apply(self, gradient: Gradient) -> None:
        parts = self._parts()
        refuse_overflown(parts.modules)
        step_along(gradient, self.model, self.optimizer, self.clip, parts.stepped)
        self.moves += 1

    def _evaluate(self, x: Tree, buffers: dict[str, Tensor] | None = None) -> Tensor:
        """Scores in eval mode, without gradients, leaving counts, modes, buffers and random state alone."""
        passed = self._rows_passed
        kept = {name: buffer.clone() for name, buffer in (buffers or dict(self.model.named_buffers())).items()}
        try:
            with torch.no_grad(), evaluation_mode(self.model), self.random.borrowed():
                return in_full(self._forward(x, kept or None))
        finally:
            self._rows_passed = passed
