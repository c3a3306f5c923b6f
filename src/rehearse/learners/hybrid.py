"""Algorithm 3: a memory of compressed codes, recalled at random (AE) or by interference (AE-MIR)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final, get_args

import torch
from torch import Tensor, nn

from ..batch import Batch, Tree, checked_inputs
from ..compute import evaluation_mode, in_parts, modes_of, scoring_mode
from ..errors import CheckpointError, InvalidInput, InvalidType, RehearseError
from ..gradients import Gradient
from ..kernels import own_kernels
from ..lookahead import Lookahead
from ..losses import in_full
from ..memory import Memory
from ..parts import buffer_copies
from .base import Learner
from .checks import check_positive, check_second, check_switches, check_task, is_number, one_tensor
from .hybrid_codec import Codec, CodeType, Statistics
from .hybrid_codes import Form, renewed
from .hybrid_memory import CodedMemory, Refresh, Schedule
from .hybrid_search import CodeSearch, check_search
from .hybrid_training import AutoencoderTraining
from .snapshots import PreviousClassifier
from .step import Step, mean_loss
from .view import View

REAL_TEST: Final = "real-test"  # the treatment that predicts from inputs as they are


class AutoencoderReplay(Learner):
    """Replay from a memory of codes (AE), and with a `CodeSearch` AE-MIR (Algorithm 3 of the paper).

        θ_ae ← Adam(MSE)                        ``autoencoder_epochs`` over the task, given to `begin_task`
        θᵛ   ← θ − α ∇ℓ(B_n)                    the foreseen step, for the search alone
        h, B̃_n ← Encode(B_n), Decode(h)         what arrives is autoencoded
        B_M  ← the stored codes to recall, decoded
        M    ← UpdateMemory(h)
        θ    ← SGD(B̃_n ∪ B_M, α)                [(1 − s) Σ ℓ(B̃_n) + s Σ ℓ(B_M)] / (|B̃_n| + |B_M|),  s = ``replay_share``

    The memory holds codes (any `Memory`; their dtype is ``codes``). The autoencoder learns from what arrives together
    with ``autoencoder_budget`` inputs that are read from codes of other tasks. When it has changed, after each epoch
    or each task (``refresh``), every code is read with the old autoencoder and written with the new one. Without
    `begin_task`, or without tasks, it takes ``autoencoder_epochs`` steps on each batch as it comes, and the codes are
    brought up to date after 2, 4, 8, … and then every ``refresh_every`` batches.

    ``autoencode_incoming`` and ``autoencode_test`` say whether the classifier sees what arrives, and what it is asked
    about, through the autoencoder; ``autoencode_virtual`` the same for the batch of the foreseen step. Incoming and
    recalled rows pass the classifier together. ``copies`` recalls so many times fewer codes, each so many times.

    Differs from the authors' program: the first task is autoencoded like all others; all that the classifier sees has
    gone through one and the same autoencoder, which does not move while the classifier learns; recalled codes are
    distinct (``copies=10`` for ten codes ten times); batch-norm of the autoencoder uses running statistics outside its
    training (``statistics="batch"``: those of what passes together); no slot is left out when codes are brought up to
    date. ``forward_passes`` counts rows through the classifier, the encoder or the decoder.
    """

    memory: Memory

    def __init__(
        self,
        classifier: nn.Module,
        optimizer: torch.optim.Optimizer,
        autoencoder: nn.Module,
        autoencoder_optimizer: torch.optim.Optimizer,
        memory: Memory,
        *,
        search: CodeSearch | None = None,
        budget: int = 100,
        copies: int = 1,
        updates: int = 1,
        replay_share: float = 0.5,
        autoencoder_epochs: int = 5,
        autoencoder_budget: int = 100,
        autoencoder_batch: int = 10,
        autoencode_incoming: bool = True,
        autoencode_test: bool = True,
        autoencode_virtual: bool = True,
        codes: CodeType = "float32",
        statistics: Statistics = "running",
        refresh: Refresh = "epoch",
        refresh_every: int = 100,
        snapshot_every: int = 100,
        exclude_current_task: bool = True,
        prepare: Callable[[Tree], Tree] | None = None,
        precision: str = "auto",
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(classifier, optimizer, prepare=prepare, precision=precision, clip=clip, seed=seed)
        check_second(autoencoder, autoencoder_optimizer, clip, "autoencoder", ("encode", "decode"))
        if not isinstance(memory, Memory):
            raise InvalidType(f"the memory must be a Memory such as ReservoirMemory(1000), this is {memory!r}")
        check_positive(
            budget=budget,
            copies=copies,
            updates=updates,
            autoencoder_epochs=autoencoder_epochs,
            autoencoder_budget=autoencoder_budget,
            autoencoder_batch=autoencoder_batch,
            refresh_every=refresh_every,
            snapshot_every=snapshot_every,
        )
        if budget % copies:
            raise InvalidInput(f"a budget of {budget} cannot be {copies} copies of each code; it must be a multiple")
        if not is_number(replay_share) or not 0 <= replay_share <= 1:
            raise InvalidInput(f"replay_share is {replay_share!r}; it must be between 0 and 1")
        if refresh not in get_args(Refresh):
            raise InvalidInput(f"refresh is {refresh!r}; it must be {' or '.join(get_args(Refresh))}")
        check_switches(
            autoencode_incoming=autoencode_incoming,
            autoencode_test=autoencode_test,
            autoencode_virtual=autoencode_virtual,
            exclude_current_task=exclude_current_task,
        )
        if search is not None:
            check_search(search, budget // copies)
        self.memory, self.search = memory, search
        self.budget, self.copies, self.updates, self.replay_share = budget, copies, updates, replay_share
        self.autoencode_incoming, self.autoencode_test = autoencode_incoming, autoencode_test
        self.autoencode_virtual = autoencode_virtual
        self.snapshot_every, self.exclude_current_task = snapshot_every, exclude_current_task
        training = AutoencoderTraining(autoencoder, autoencoder_optimizer, precision, clip, seed)
        schedule = Schedule(autoencoder_epochs, autoencoder_budget, autoencoder_batch, refresh, refresh_every)
        self.coded = CodedMemory(memory, training, Codec(autoencoder, codes, statistics), schedule, self._count)
        self.previous: PreviousClassifier | None = None  # θ′, for the search alone
        self._batches_since_snapshot = 0

    @property
    def autoencoder(self) -> nn.Module:
        return self.coded.autoencoder

    @property
    def autoencoder_optimizer(self) -> torch.optim.Optimizer:
        return self.coded.training.optimizer

    @property
    def codec(self) -> Codec:
        """What reads and writes the codes now."""
        return self.coded.codec

    # --------------------------------------------------------------------------------------------- the classifier

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None) -> Step:
        """Learn from the autoencoded batch and from decoded memories, then remember its codes."""
        incoming = self._accept(x, y, task, id)
        prepared = isinstance(incoming.task, int) and incoming.task == self.coded.prepared_task
        with self._own_transaction(prepared), self._transaction(parameters=self.updates > 1):
            batch = self._enter(incoming, prepared)
            codes, rebuilt = self.coded.through(batch.x)  # h, B̃_n
            seen = Batch(rebuilt if self.autoencode_incoming else batch.x, batch.y)
            kept = replace(incoming, x=codes)
            columns = self.memory.check(kept)
            update = None if prepared else self.coded.update_if_due(batch.x)
            if update is not None:
                kept = replace(kept, x=update.code(codes))
                self._count(2 * len(codes))
            for _ in range(self.updates):
                recalled = self._recall(incoming, codes, Batch(self._virtual(batch.x, rebuilt), batch.y))
                losses = self._step(seen, recalled)  # θ ← SGD(B̃_n ∪ B_M, α)
        if update is not None:
            self._count(self.coded.carry_out(update))
        self.memory.keep(kept, columns)  # M ← UpdateMemory(h)
        self._settle(incoming)
        self.coded.input = Form.of(incoming.x)
        self._batches_since_snapshot += 1
        self.coded.unprepared_batches += not prepared
        return Step(*losses, recalled)

    def end_task(self) -> None:
        """θ′ ← θ."""
        if self._batches_since_snapshot:
            self._take_snapshot()

    def _enter(self, incoming: Batch, prepared: bool) -> Batch:
        """Take the snapshot if one is due, train the autoencoder if nobody has, give the rows as networks see them."""
        known = isinstance(incoming.task, int)
        begins = known and self.task is not None and incoming.task != self.task
        if (begins if known else self._batches_since_snapshot >= self.snapshot_every) and self._batches_since_snapshot:
            self._take_snapshot()
        x = self._prepared(incoming.x)
        if not prepared:
            self.coded.train_on(x, self.memory.slots(self._excluded(incoming.task)))
        return Batch(x, incoming.y.to(self.device))

    def _step(self, seen: Batch, recalled: Batch | None) -> tuple[float, float | None]:
        n = len(seen)
        rows = seen.x if recalled is None else torch.cat([seen.x, recalled.x])
        scores = self._scores_of(rows)
        loss = incoming = mean_loss(self._losses(seen, False, scores[:n]))
        memories = None
        if recalled is not None:
            memories = mean_loss(self._losses(recalled, True, scores[n:]))
            m, share = len(recalled), self.replay_share
            loss = ((1 - share) * n * incoming + share * m * memories) / (n + m)
        self._apply(self._gradient(loss))
        return incoming.item(), None if memories is None else memories.item()

    # ----------------------------------------------------------------------------------------------- what to recall

    def _recall(self, incoming: Batch, codes: Tensor, virtual: Batch) -> Batch | None:
        """B_M: memories with decoded inputs, or None where there are none."""
        excluded = self._excluded(incoming.task)
        if not self.memory.eligible(excluded):
            return None
        distinct = self.budget // self.copies
        if self.search is None:
            stored = self.memory.sample(distinct, exclude_task=excluded)
        else:
            stored = self._interfered(codes, virtual, excluded, distinct)
        x = self.coded.read(stored.x)
        recalled = Batch(x, stored.y.to(self.device), stored.task, stored.slots, stored.columns)
        return recalled if self.copies == 1 else recalled.take(torch.arange(len(x)).repeat(self.copies))

    def _interfered(self, codes: Tensor, virtual: Batch, excluded: Any, count: int) -> Batch:
        """The stored codes nearest to where the search from the incoming ones leads."""
        assert self.search is not None
        lookahead = Lookahead(self.model, self.optimizer, self.loss, parts=self._parts)
        foreseen = lookahead.foresee(self._virtual_gradient(virtual))
        model, previous = self.model, self.model if self.previous is None else self.previous.network
        modules = self._parts().modules
        with (
            scoring_mode(model, modules),
            modes_of(model, previous),
            self.computation.autocast(self.device, scoring=True),
            own_kernels(model, modules, dtype=self.computation.scoring),
            own_kernels(previous, dtype=self.computation.scoring),
        ):
            before = View(previous, buffer_copies(previous))
            after = View(model, foreseen | buffer_copies(model))
            try:
                stored = self.search.recall(self.memory, self.codec, codes, before, after, excluded, count)
            except RehearseError:
                raise
            except (RuntimeError, ValueError) as problem:
                raise InvalidInput(f"the codes cannot be searched: {problem}") from problem
        self._count(2 * before.rows + after.rows)  # the decoder passes what each classifier does
        return stored

    def _virtual(self, x: Tensor, rebuilt: Tensor) -> Tensor:
        return rebuilt if self.autoencode_virtual else x

    def _virtual_gradient(self, batch: Batch) -> Gradient:
        """∇ℓ(B_n) for the foreseen step; batch-norm's statistics stay."""
        scores = self._scores_of(batch.x, buffer_copies(self.model) or None)
        return self._gradient(mean_loss(self._losses(batch, False, scores)))

    def _excluded(self, task: Tensor | int | None) -> Tensor | int | None:
        return task if self.exclude_current_task else None

    def _take_snapshot(self) -> None:
        if self.search is not None:
            self.previous = PreviousClassifier.of(self.model)
        self._batches_since_snapshot = 0

    # --------------------------------------------------------------------------------------------- the autoencoder

    def begin_task(self, data: Batch | None, task: int, on_step: Callable[[int, int], None] | None = None) -> None:
        """Train the autoencoder on the task, unless that has been done already.

        ``on_step`` is told after each step how many of how many are done. In it the state is whole: loaded again, a
        second call goes on from there.
        """
        if data is None:
            return
        check_task(data, task)
        if not len(data):
            return
        self.coded.prepare(self._accepted_inputs(data.x), task, self._excluded(task), self._prepared, on_step)

    def before_preparation(self, task: int) -> dict[str, Any] | None:
        return self.coded.before_preparation(task, self._excluded(task))

    def preparation(self) -> dict[str, Any]:
        return self.coded.preparation()

    def take_preparation(self, prepared: dict[str, Any], rows_passed: int) -> None:
        self.coded.take_preparation(prepared)
        self._count(rows_passed)

    # ------------------------------------------------------------------------------------- through the autoencoder

    def rebuild(self, x: Tree) -> Tensor:
        """What is left of inputs after they have been stored: the pictures that the classifier learns from."""
        return torch.cat([rebuilt for _, rebuilt in self._rebuilt(x)])

    def evaluation_metrics(self, x: Tree, y: Tensor) -> dict[str, float]:
        """The mean squared error of inputs that have been stored, on the scale that the classifier sees."""
        errors = torch.cat(
            [(rebuilt - rows).square().flatten(1).double().mean(1) for rows, rebuilt in self._rebuilt(x)]
        )
        return {"reconstruction": errors.mean().item()}

    def _rebuilt(self, x: Tree) -> Iterator[tuple[Tensor, Tensor]]:
        """Prepared inputs, and what is left of them, part by part; draws without moving any random numbers."""
        for part in in_parts(checked_inputs(x)):
            with self.random.borrowed():
                rows = self._prepared(part)
                rebuilt = self.codec.rebuild(rows)
            yield rows, rebuilt

    def treatments(self) -> dict[str, Callable[[Tree], Tensor]]:
        """Also what would be predicted of inputs as they are: the same training, asked without the autoencoder."""
        return {REAL_TEST: self._predict_real} if self.autoencode_test else {}

    def _predict_real(self, x: Tree) -> Tensor:
        try:
            self.autoencode_test = False
            return self.predict(x)
        finally:
            self.autoencode_test = True

    def report(self) -> dict[str, Any]:
        """The memory in bytes, beside what the same number of raw inputs would take; and what the search did."""
        told: dict[str, Any] = {"memory": self.coded.sizes()}
        return told if self.search is None else told | {"search": self.search.report()}

    def _take_in(self, known: Batch) -> None:
        """For `remember`: the codes of rows that the classifier knows already."""
        x = self._accepted_inputs(known.x)
        losses = self.loss(self.scores(x), known.to(self.device), False)
        if not bool(losses.isfinite().all()):
            raise InvalidInput("the loss of some of these rows is not finite; they cannot be replayed")
        codec = self.codec
        with self.random.borrowed():
            rows = self._prepared(x)
            if not codec.calibrated:
                codec, _ = renewed(codec, self.memory, self.autoencoder, rows)
            codes = replace(known, x=codec.encode(rows))
        self.memory.keep(codes, self.memory.check(codes))
        self.coded.codec, self.coded.input = codec, Form.of(x)

    def _forward(self, x: Tree, buffers: dict[str, Tensor] | None = None) -> Tensor:
        """Scores of rows as they come, for `diagnose`: as the foreseen step sees them."""
        x = self._prepared(x)
        return self._scores_of(self.codec.through(x)[1] if self.autoencode_virtual else x, buffers)

    def _foresight(self, incoming: Batch) -> Lookahead:
        return Lookahead(self.model, self.optimizer, self.loss, prepare=self.codec.read, computation=self.computation)

    def _evaluate(self, x: Tree, buffers: dict[str, Tensor] | None = None) -> Tensor:
        passed, kept = self._rows_passed, buffers or buffer_copies(self.model)
        try:
            with torch.no_grad(), evaluation_mode(self.model), self.random.borrowed():
                rows = self._prepared(x)
                if self.autoencode_test and len(rows):
                    rows = self.codec.rebuild(rows)
                return in_full(self._scores_of(rows, kept or None))
        finally:
            self._rows_passed = passed

    def _accept(self, x: Tree, y: Any, task: Any, id: Any = None) -> Batch:
        incoming = super()._accept(x, y, task, id)
        self._accepted_inputs(incoming.x)
        return incoming

    def _accepted_inputs(self, x: Tree) -> Tensor:
        """One tensor, such as came before: what a memory of codes could not tell by looking at them."""
        x = checked_inputs(x)
        with self.random.borrowed():
            self._prepared(x[:1] if isinstance(x, Tensor) else x)
        self.coded.check(x)
        accepted: Tensor = x
        return accepted

    def _prepared(self, x: Tree) -> Tensor:
        return one_tensor(self.prepare(x.to(self.device)) if isinstance(x, Tensor) else None, "autoencoder")

    # -------------------------------------------------------------------------------------------------------- state

    def to(self, device: torch.device | str) -> AutoencoderReplay:
        super().to(device)
        self.coded.to(device)
        if self.previous is not None:
            self.previous.network.to(device)
        return self

    @contextlib.contextmanager
    def _own_transaction(self, prepared: bool) -> Iterator[None]:
        """After an error everything beyond the classifier is put back as it was."""
        kept = self.coded.codec, self.previous, self._batches_since_snapshot
        search = None if self.search is None else self.search.state_dict()
        try:
            with self.memory.transaction(), nullcontext() if prepared else self.coded.training.restored():
                yield
        except BaseException:
            self.coded.codec, self.previous, self._batches_since_snapshot = kept
            if self.search is not None and search is not None:
                self.search.load_state_dict(search)
            raise

    def _own_state(self) -> dict[str, Any]:
        return self.coded.state_dict() | {
            "previous": None if self.previous is None else self.previous.state_dict(),
            "batches_since_snapshot": self._batches_since_snapshot,
            "search": None if self.search is None else self.search.state_dict(),
        }

    def _load_own_state(self, state: dict[str, Any]) -> None:
        if (state["search"] is None) != (self.search is None):
            saved, own = ("by a search" if one is not None else "at random" for one in (state["search"], self.search))
            raise CheckpointError(f"the saved learner recalls codes {saved}, this one {own}")
        self.coded.load_state_dict(state)
        self.previous = None
        if state["previous"] is not None:
            self.previous = PreviousClassifier.of(self.model)
            self.previous.load_state_dict(state["previous"])
        self._batches_since_snapshot = int(state["batches_since_snapshot"])
        if self.search is not None:
            self.search.load_state_dict(state["search"])
