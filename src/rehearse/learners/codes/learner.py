"""Algorithm 3: a memory of compressed codes, retrieved at random (AE) or by interference (AE-MIR)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...batch import Batch, Step, Tree, checked_inputs, one_tensor, tree_map, tree_parts, unchanged
from ...batchnorm import Clean
from ...checks import (
    check,
    check_fractions,
    check_memory,
    check_positive,
    check_second,
    check_switches,
    check_task,
    count,
)
from ...diagnose import Diagnosing
from ...engine import Plain
from ...errors import CheckpointError, InvalidInput, RehearseError
from ...latent import LatentSearch, View
from ...losses import at_least_float32
from ...memory import Memory
from ...network import NamedGradient, Network, Tensors, finite
from ...network.states import copied_frozen
from ...random import RandomState, borrowed
from ...serving import FrozenNetwork, Served
from ...undo import Operations, Restore, all_or_nothing, assign, run
from ..base import Learner
from .codec import Codec, CodeType, Statistics, with_own_buffers
from .coded import CodedMemory, Refresh, Schedule
from .search import CodeSearch, check_search


class CodeReplay(Learner):
    """Replay from a memory of codes (AE), and with a `CodeSearch` AE-MIR (Algorithm 3 of the paper).

        θ_ae ← Adam(MSE)                        ``autoencoder_epochs`` over the task, given to `begin_task`
        h, B̃_n ← Encode(B_n), Decode(h)         the incoming batch is autoencoded
        θᵛ   ← θ − α ∇ℓ(B̃_n)                    the virtual step, for the search alone
        B_M  ← the stored codes to replay, decoded
        θ    ← SGD(B̃_n ∪ B_M, α)                [(1 − s) Σ ℓ(B̃_n) + s Σ ℓ(B_M)] / (|B̃_n| + |B_M|),  s = ``replay_share``
        M    ← UpdateMemory(h)

    The last two are one commit. As long as there is nothing to replay, the loss is the mean of ℓ(B̃_n), without 1 − s.
    The virtual step is of B_n itself with ``autoencode_virtual=False``.

    The memory stores codes (any `Memory`; their dtype is ``codes``). The autoencoder learns from incoming inputs
    together with ``autoencoder_budget`` inputs that are read from codes of other tasks. When it has changed, after each
    epoch or each task (``refresh``), every code is read with the old autoencoder and written with the new one. Without
    `begin_task`, or without tasks, it takes ``autoencoder_epochs`` steps on each incoming batch, and the codes are
    updated after 2, 4, 8, … and then every ``refresh_every`` batches.

    Incoming and replayed samples pass the classifier together.

    Differs from the reference implementation: the first task is autoencoded like all others; everything that the
    classifier sees has passed one and the same autoencoder, which does not move while the classifier learns; replayed
    codes are distinct (``copies=10`` for ten codes ten times); batch-norm of the autoencoder uses running statistics
    outside its training (``statistics="batch"``: those of what passes together); no slot is left out when codes are
    updated. ``forward_passes`` counts samples through the classifier, the encoder or the decoder.
    """

    classes_only = True
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
        """Build a learner around a classifier and an autoencoder.

        Args:
            classifier: Any classifier; see `Network`.
            optimizer: Of the classifier.
            autoencoder: A module with ``encode`` and ``decode``; see `latent.Autoencoder`.
            autoencoder_optimizer: Of the autoencoder; the paper has Adam.
            memory: Stores the codes.
            search: How codes are retrieved; None draws at random.
            budget: The number of samples to replay.
            copies: Replay ``budget / copies`` codes, each so many times.
            updates: Steps of the classifier per incoming batch.
            replay_share: The share s of the replayed samples in the loss.
            autoencoder_epochs: Passes over a task's inputs in `begin_task`.
            autoencoder_budget: Codes replayed in a step of the autoencoder.
            autoencoder_batch: Inputs of the task in a step of the autoencoder.
            autoencode_incoming: Whether the classifier sees incoming samples through the autoencoder.
            autoencode_test: Whether it sees what it predicts through the autoencoder.
            autoencode_virtual: Whether the virtual step is of the autoencoded batch.
            codes: The dtype of stored codes.
            statistics: Which statistics the autoencoder's batch-norm uses outside its training.
            refresh: Whether codes are updated after each ``epoch`` or each ``task``.
            refresh_every: Batches between updates of the codes if tasks are not prepared.
            snapshot_every: Batches between snapshots of the classifier if tasks are unknown.
            exclude_current_task: Whether codes of the incoming batch's task are not replayed.
            prepare: Turns inputs into those of both networks.
            precision: See `precision`.
            clip: The largest norm of each gradient.
            seed: Of all random numbers but the memory's.

        Raises:
            InvalidInput: If a number is out of range.
            InvalidType: If an argument is of the wrong type.
        """
        shared: dict[str, Any] = {"precision": precision, "clip": clip}
        network = Network(classifier, optimizer, prepare=prepare, random=RandomState(seed), **shared)
        random = RandomState(seed, "autoencoder")
        coding = Network(autoencoder, autoencoder_optimizer, random=random, name="autoencoder", **shared)
        check_second(autoencoder, "autoencoder", ("encode", "decode"))
        check_memory(memory, Memory)
        schedule = Schedule(autoencoder_epochs, autoencoder_budget, autoencoder_batch, refresh, refresh_every)
        check_positive(budget=budget, copies=copies, snapshot_every=snapshot_every)
        if budget % copies:
            raise InvalidInput(f"a budget of {budget} cannot be {copies} copies of each code; it must be a multiple")
        check_fractions(replay_share=replay_share)
        check_switches(autoencode_incoming=autoencode_incoming, autoencode_test=autoencode_test)
        check_switches(autoencode_virtual=autoencode_virtual, exclude_current_task=exclude_current_task)
        check_search(search, budget // copies)
        super().__init__(network, None, memory=memory, updates=updates)
        self.plain.prepare = unchanged  # inputs are prepared here
        self.search = search
        self.budget, self.copies, self.replay_share = budget, copies, replay_share
        self.autoencode_incoming, self.autoencode_test = autoencode_incoming, autoencode_test
        self.autoencode_virtual = autoencode_virtual
        self.snapshot_every, self.exclude_current_task = snapshot_every, exclude_current_task
        self.coded = CodedMemory(memory, coding, Codec(coding, coding.frozen(), codes, statistics), schedule, seed)
        self.previous: dict[str, Tensor] | None = None  # θ′, for the search alone
        self._batches_since_snapshot = 0

    @property
    def autoencoder(self) -> nn.Module:
        """The autoencoder."""
        return self.coded.network.model

    @property
    def codec(self) -> Codec:
        """What reads and writes the codes now."""
        return self.coded.codec

    # --------------------------------------------------------------------------------------------- the classifier

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None, weight: Any = None, **columns: Any) -> Step:
        """Learn from the autoencoded batch and from decoded codes, then store its codes; see `Learner.observe`."""
        incoming = self._accept(x, y, task, id=id, weight=weight, **columns)
        network, memory, coded = self.network, self.memory, self.coded
        with self.lock, all_or_nothing(*self._networks(), memory, coded, self, *self._searches()) as commit:
            self._check_inputs(incoming.x)
            self._enter(incoming)
            prepared = isinstance(incoming.task, int) and incoming.task == coded.prepared_task
            step: Operations = ()
            with network.training(self.updates):
                real = Batch(self._inputs(incoming.x), incoming.y.to(self.device))
                if not prepared:
                    coded.train_on(real.x, memory.slots(self._excluded(incoming.task)))  # θ_ae ← Adam(MSE)
                codes, rebuilt = self.codec.through(real.x)  # h, B̃_n
                seen = replace(real, x=rebuilt if self.autoencode_incoming else real.x)
                virtual = replace(real, x=rebuilt if self.autoencode_virtual else real.x)
                for _ in range(self.updates):
                    run(step)
                    replayed = self._retrieve(self._excluded(incoming.task), codes, virtual)  # B_M
                    loss, replayed_loss, gradient = self._pass_batch(seen, replayed)
                    step = network.step(gradient)  # θ ← SGD(B̃_n ∪ B_M, α), when it is committed
                if not prepared and coded.due and len(memory):
                    before = self.codec
                    coded.update(real.x)
                    codes = self.codec.encode(before.read(codes))
            coded.keep(replace(incoming, x=codes), incoming.x)  # M ← UpdateMemory(h)
            coded.unprepared_batches += not prepared
            self._batches_since_snapshot += 1
            commit(step, assign(self, progress=self.progress.after(incoming, self.updates)))
        return Step(loss, replayed_loss, replayed)

    def end_task(self) -> None:
        """Take a snapshot: θ′ ← θ."""
        with self.lock:
            self._take_snapshot()

    def _enter(self, incoming: Batch) -> None:
        """Take a snapshot at the start of a task, and without tasks every ``snapshot_every`` batches."""
        begins = self.task is not None and incoming.task != self.task
        if begins if isinstance(incoming.task, int) else self._batches_since_snapshot >= self.snapshot_every:
            self._take_snapshot()

    def _take_snapshot(self) -> None:
        if self._batches_since_snapshot:
            previous = None if self.search is None else self.network.frozen()
            run(assign(self, previous=previous, _batches_since_snapshot=0))  # at once, for an interrupt

    def _pass_batch(self, seen: Batch, replayed: Batch | None) -> tuple[float, float | None, NamedGradient]:
        """Return the losses of B̃_n and B_M, and the gradient of their weighted sum."""
        n = len(seen)
        logits = self.network(seen.x if replayed is None else torch.cat([seen.x, replayed.x]))
        first = self.loss(logits[:n], seen, False).mean()
        if replayed is None:
            return finite(first), None, self.network.gradient(first)
        m, share, second = len(replayed), self.replay_share, self.loss(logits[n:], replayed, True).mean()
        loss = ((1 - share) * n * first + share * m * second) / (n + m)
        return finite(first), finite(second), self.network.gradient(loss)

    # --------------------------------------------------------------------------------------------- what to replay

    def _retrieve(self, excluded: Any, codes: Tensor, virtual: Batch) -> Batch | None:
        """Return B_M: stored samples with decoded inputs, or None if there are none."""
        if not self.memory.eligible(excluded):
            return None
        distinct = self.budget // self.copies
        stored = None if self.search is None else self._interfered(self.search, codes, virtual, excluded, distinct)
        if stored is None:  # there is no search, or it led too far out
            stored = self.memory.sample(distinct, exclude_task=excluded)
        replayed = replace(stored, x=self.codec.read(stored.x), y=stored.y.to(self.device))
        return replayed.take(torch.arange(len(stored)).repeat(self.copies))

    def _interfered(self, search: CodeSearch, codes: Tensor, virtual: Batch, excluded: Any, count: int) -> Batch | None:
        """Return the stored codes nearest to where the search from the incoming ones leads."""
        network = self.network
        gradient = self.plain.virtual_gradient(virtual).gradient  # ∇ℓ(B̃_n)
        with network.looking("scoring"), self.codec.looking():
            before = network.twin.tensors() | with_own_buffers(network, self.previous or {})
            ahead = network.twin.tensors() | network.look_ahead(gradient)  # θᵛ
            views = View.scoring(network, before), View.scoring(network, ahead)
            try:
                return search.retrieve(self.memory, self.codec, codes, *views, excluded, count)
            except RehearseError:
                raise
            except (RuntimeError, ValueError) as problem:
                raise InvalidInput(f"the codes cannot be searched: {problem}") from problem

    def _excluded(self, task: Tensor | int | None) -> Tensor | int | None:
        return task if self.exclude_current_task else None

    # --------------------------------------------------------------------------------------------- the autoencoder

    def begin_task(self, data: Batch | None, task: int, on_step: Callable[[int, int], None] | None = None) -> None:
        """Train the autoencoder on the task, unless that has been done already; see `Learner.begin_task`."""
        if data is not None:
            check_task(data, task)
        if not data:
            return
        x = checked_inputs(data.x)
        with self.lock:
            self._check_inputs(x)
            self.coded.prepare(x, task, self._excluded(task), self._inputs, on_step)

    def rebuild(self, x: Tree) -> Tensor:
        """Return inputs ``x`` as they are read after they have been stored: what the classifier learns from."""
        return torch.cat([rebuilt for _, rebuilt in self._rebuilt(x)])

    def _rebuilt(self, x: Tree) -> list[tuple[Tensor, Tensor]]:
        """Return prepared inputs, and the same read from their codes, part by part."""
        with self._read_only(), borrowed(self.network.random):
            prepared = [self._inputs(part) for part in tree_parts(checked_inputs(x))]
            return [(part, self.codec.rebuild(part)) for part in prepared]

    def diagnostics(self) -> dict[str, Any]:
        """Return the memory in bytes, beside what as many raw inputs would take; and what the search did."""
        with self._read_only():
            found: dict[str, Any] = {"memory": self.coded.sizes()}
            return found if self.search is None else found | {"search": self.search.report()}

    def _store_known(self, known: Batch) -> None:
        self._check_inputs(known.x)
        self._known_logits(known)  # raises if they could not be replayed
        with all_or_nothing(self.memory, self.coded) as commit, borrowed(self.network.random):
            inputs = self._inputs(known.x)
            if not self.codec.calibrated:
                self.coded.codec = self.codec.renewed(self.memory, inputs)
            self.coded.keep(replace(known, x=self.codec.encode(inputs)), known.x)
            commit()

    def _pass(self, x: Tree, substitutes: dict[str, Tensor] | None = None) -> Tensor:
        with self.network.looking("evaluation"):
            return rebuilt_logits(self.network, x, self.network.twin.tensors(), self._test_codec())

    def _served(self) -> Served:
        codec = self._test_codec()
        answer = partial(rebuilt_logits, tensors=None, codec=codec and codec.frozen())
        return Served(FrozenNetwork(self.network), answer)

    def _test_codec(self) -> Codec | None:
        return self.codec if self.autoencode_test else None

    def _diagnosing(self, batch: Batch) -> Diagnosing:
        x = self._inputs(batch.x)
        virtual = replace(batch, x=self.codec.through(x)[1] if self.autoencode_virtual else x)
        plain = Plain(self.network, self.loss, Clean(), self.codec.read)
        return plain, self.plain.virtual_gradient(virtual), "sgd", "all"

    def _check_inputs(self, x: Tree) -> None:
        """Refuse inputs that are not one tensor, or do not look like those before."""
        with borrowed(self.network.random):
            self._inputs(tree_map(lambda leaf: leaf[:1], x))
        self.coded.check(x)

    # -------------------------------------------------------------------------------------------------------- state

    def _networks(self) -> list[Network]:
        return [self.network, self.coded.network]

    def _searches(self) -> list[LatentSearch]:
        return [] if self.search is None else [self.search.search]

    def snapshot(self) -> Restore:
        """Return a function that restores the previous classifier."""
        return partial(vars(self).update, previous=self.previous, _batches_since_snapshot=self._batches_since_snapshot)

    def _stored_inputs(self, stored: Batch) -> Tensor:
        return self.codec.read(stored.x)

    def _own_state(self) -> dict[str, Any]:
        return self.coded.state_dict() | {
            "previous": None if self.previous is None else dict(self.previous),
            "batches_since_snapshot": self._batches_since_snapshot,
            "search": None if self.search is None else self.search.search.state_dict(),
        }

    def _load_own_state(self, state: dict[str, Any]) -> None:
        check(state["batches_since_snapshot"], count, "the number of batches since the snapshot")
        if (state["search"] is None) != (self.search is None):
            saved, own = ("by a search" if one is not None else "at random" for one in (state["search"], self.search))
            raise CheckpointError(f"the saved learner retrieves codes {saved}, this one {own}")
        self.coded.load_state_dict(state)
        old = state["previous"]
        self.previous = None if old is None else copied_frozen(self.network, old)
        self._batches_since_snapshot = state["batches_since_snapshot"]
        for search in self._searches():
            search.load_state_dict(state["search"])


def rebuilt_logits(network: Network, x: Tree, tensors: Tensors | None, codec: Codec | None) -> Tensor:
    """Return the logits of what is read from the codes of inputs; of the inputs themselves if there is no codec."""
    inputs = one_tensor(network.ready(x) if isinstance(x, Tensor) else None, "autoencoder")
    if codec is not None and len(inputs):
        inputs = codec.rebuild(inputs)
    return at_least_float32(network(inputs, tensors))
