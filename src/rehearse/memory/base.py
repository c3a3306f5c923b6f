"""Memory: what every store of samples can do: add, sample, forget, save itself."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch, Tree, checked_batch, pick, task_column, tree_leaves, tree_map
from ..checks import Form, check, count
from ..described import Described
from ..errors import CheckpointError, InvalidInput
from ..random import numpy_generator
from ..undo import Restore, all_or_nothing
from .changes import Changes, attributes
from .columns import OPTIONAL, checked_columns, matching, named_ids, slot_numbers
from .index import EMPTY, Slots, TaskIndex, in_parts
from .mapped import MappedFile
from .rows import ARRIVED, TARGET, TASK, Rows, as_batch
from .saved import generator_state, saved_form, saved_samples

AT_ONCE = 10_000  # samples that a predicate gets, or that are forgotten, at once


class Shares(Protocol):
    """How several ranks hold one memory."""

    def place(self, memory: Memory, batch: Batch, arrived: Tensor) -> Slots:
        """Return the slot of each of this rank's samples, −1 if it is not kept."""


class Memory(Described, ABC):
    """A fixed number of slots for samples of a stream. A policy (a subclass) decides which samples are kept where.

    The *slot* of a sample is its address. Everything known of a sample is in a column at that slot: what came with it
    (`add(..., logits=...)`), and *facts* that are learned later (its best loss so far) and go when the sample goes.
    Insertion and sampling draw from two generators, so that methods which sample differently hold the same samples.

    With a ``path`` the samples are in that file, memory-mapped, with journals beside it (``path.N.undo``): many more
    samples than fit in RAM, at the same speed. A `state_dict` then refers to the file and does not copy it, and
    loading one restores the file, also after a crash. It can do so for every state since the last one that was
    confirmed (`rehearse.save` does that), as long as file and journals stay together.
    """

    _policy: ClassVar[tuple[str, ...]] = ()
    """The attributes that hold what the policy knows beyond the count of samples seen."""
    _numbered: ClassVar[bool] = False
    """Whether a sample's number in the stream decides its slot, and not the number of samples before it."""

    def __init__(self, capacity: int, *, path: str | os.PathLike[str] | None = None, seed: int = 0) -> None:
        """Start empty.

        Args:
            capacity: The largest number of samples.
            path: A file for the samples, or None to hold them in RAM.
            seed: Decides which samples are kept and drawn.
        """
        if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer) or not 0 < capacity < 2**48:
            raise InvalidInput(f"capacity is {capacity!r}; it must be a positive number of samples (less than 2**48)")
        self.capacity = int(capacity)
        self.seen = 0
        self.shares: Shares | None = None  # with other ranks
        self.changes = 0  # grows whenever samples come or go: whatever was computed from them is as old as this says
        self._changes = Changes()
        file = None if path is None else MappedFile(path, self.capacity, self._changes)
        self._rows = Rows(self.capacity, self._changes, file)
        self._index = TaskIndex(self.capacity, self._changes)
        self._facts: dict[str, tuple[float, Tensor]] = {}
        self._insertion = numpy_generator(seed, "insert")
        self._sampling = numpy_generator(seed, "sample")

    @abstractmethod
    def _place(self, batch: Batch) -> Slots:
        """Return the slot of each arriving sample, −1 if it is not kept. If two draw one slot, the later has it."""

    def _check_policy(self, batch: Batch) -> None:
        """Refuse a batch that the policy cannot place."""

    def _room_for_each(self, groups: int, what: str) -> int:
        """Return how many samples each of some groups may keep, or refuse more groups than samples."""
        if groups > self.capacity:
            raise InvalidInput(f"{self.capacity} samples are too few for {what}; enlarge the memory")
        return self.capacity // groups

    def _policy_state(self) -> dict[str, Any]:
        """Return what the policy knows as tensors and plain values."""
        return {name.removeprefix("_"): getattr(self, name) for name in self._policy}

    def _policy_form(self, seen: int) -> Form:
        """Return the form of what `_policy_state` returns, for so many samples seen."""
        return {name.removeprefix("_"): lambda value: count(value) and value <= seen for name in self._policy}

    def _load_policy_state(self, state: dict[str, Any]) -> None:
        """Load what `_policy_state` returned; called when the samples are in place."""
        vars(self).update({name: state[name.removeprefix("_")] for name in self._policy})

    # ------------------------------------------------------------------------------------------------- storing

    def __len__(self) -> int:
        return self._index.count()

    def __bool__(self) -> bool:
        """A memory is true, also an empty one: ``memory or default`` is the memory."""
        return True

    def check(self, batch: Batch, **columns: Tensor) -> dict[str, Tensor]:
        """Refuse a ``batch`` or ``columns`` unlike the stored ones; changes nothing. Returns what `keep` needs besides.

        Whether a new file can be started is found out by `keep`, which then raises before it changes anything.
        """
        self.check_open()
        self._check_policy(batch)
        n = len(batch)
        stored = {TARGET: batch.y, TASK: task_column(batch.task, n), ARRIVED: self.seen + torch.arange(n)}
        if twice := batch.columns.keys() & columns.keys():
            raise InvalidInput(f"the loss stores a column {min(twice)!r} itself; choose another name for yours")
        stored |= checked_columns({**batch.columns, **columns}, n)
        lacking = (OPTIONAL.keys() & self._rows.columns.keys()) - stored.keys()
        stored |= {name: OPTIONAL[name](n) for name in lacking}
        self._rows.check(batch.x, stored)
        return stored

    def check_inputs(self, batch: Batch) -> None:
        """Refuse a ``batch`` whose inputs or targets do not look like the stored ones; changes nothing."""
        self._check_policy(batch)
        self._rows.check_alike(batch.x, {TARGET: batch.y})

    def check_widths(self, columns: dict[str, Tensor]) -> None:
        """Refuse ``columns`` that have become too wide for the file that the samples are in."""
        self._rows.check_widths(columns)

    def add(self, x: Tree, y: Any, task: Any = None, **columns: Any) -> Tensor:
        """Offer samples to the memory, in their order; returns the slot of each, −1 for those not kept.

        Args:
            x: Inputs.
            y: Targets, one per sample.
            task: The task of all samples or of each, if it is known.
            columns: Further tensors with one entry per sample (logits, say), the same ones for every sample. ``id``
                among them is what `forget(ids=...)` goes by: integers, or strings, of which a hash is stored; None in
                that list, or no ``id`` at all, for samples without one.
        """
        batch = checked_batch(x, y, task)
        return self.keep(batch, self.check(batch, **columns))

    def keep(self, batch: Batch, columns: dict[str, Tensor]) -> Tensor:
        """Add a ``batch`` that `check` has just accepted, with the ``columns`` that it returned."""
        self.check_open()
        if self._rows.x is None:
            self._rows.allocate(batch.x, columns)
        slots = self._place(batch) if self.shares is None else self.shares.place(self, batch, columns[ARRIVED])
        self.seen += len(batch)
        kept = _last_of_each(slots)
        if len(kept):
            taken = slots[kept]
            where, of = torch.from_numpy(taken), torch.from_numpy(kept)
            x, columns = tree_map(lambda leaf: pick(leaf, of), (batch.x, columns))
            self._rows.write(where, x, columns)
            self._index.put(taken, columns[TASK].numpy())
            self.changes += 1
            self._clear_facts(where)
            slots.fill(-1)
            slots[kept] = taken
        return torch.from_numpy(slots)

    def adopt(self, other: Memory) -> int:
        """Take over another memory's samples with all of their columns, and its count of samples seen.

        The samples are offered to this policy in the order in which they came, so that it keeps those that it would
        keep of them: of a larger reservoir a uniform choice, in a ring the last ones. Later samples are treated as
        those of a stream of which so many have been seen. Facts such as best losses are about a model and stay behind.

        Args:
            other: Of any policy and capacity; it stays as it is.

        Returns:
            The number of samples that are stored now.

        Raises:
            InvalidInput: If this memory is not new.
        """
        if self.seen:
            raise InvalidInput(f"only a new memory can adopt another's samples, this one has seen {self.seen:,}")
        held = other.slots()
        ordered = held[other._rows.columns[ARRIVED][held].argsort()] if len(held) else held
        with all_or_nothing(self) as commit:
            self.seen = other.seen - len(held) if self._numbered else 0
            for some in torch.split(ordered, AT_ONCE) if len(held) else ():
                batch = other.get(some)
                columns = self.check(batch)
                self.keep(batch, columns | {ARRIVED: other._rows.columns[ARRIVED][some]})
            self.seen = other.seen
            self._adopt_policy(other)
            commit(())
        return len(self)

    def _adopt_policy(self, other: Memory) -> None:
        """Take over what the policy knows of the samples that another memory has seen."""

    # ----------------------------------------------------------------------------------------------- retrieving

    def eligible(self, exclude_task: int | Tensor | None = None) -> int:
        """Return how many samples can be drawn; see `Memory.sample`."""
        return self._index.count(_task_set(exclude_task))

    def sample(self, n: int | None, exclude_task: int | Tensor | None = None, *, ordered: bool = False) -> Batch:
        """Return ``n`` distinct samples at random (all where there are fewer), none of the task ``exclude_task``; O(n).

        They come in random order, or in the order of their slots if ``ordered``. None is all of them, ordered.
        """
        if n is None:
            return self.all(exclude_task)
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
            raise InvalidInput(f"cannot sample {n!r}; ask for a number of samples")
        self.check_open()
        slots = self._index.draw(self._sampling, int(n), _task_set(exclude_task))
        if ordered:
            slots.sort()
        return self._at(torch.from_numpy(slots))

    def all(self, exclude_task: int | Tensor | None = None) -> Batch:
        """Return every sample outside the task ``exclude_task``, in the order of the slots."""
        return self._at(self.slots(exclude_task))

    def slots(self, exclude_task: int | Tensor | None = None) -> Tensor:
        """Return the slots of samples outside the task ``exclude_task``, in ascending order; reads no sample."""
        slots = self._index.occupied()
        return torch.from_numpy(slots[~np.isin(self._index.task[slots], list(_task_set(exclude_task)))])

    def get(self, slots: Collection[int] | Tensor) -> Batch:
        """Return the samples at the given ``slots``, as they were stored; each slot must hold one."""
        numbers = slot_numbers(slots)
        outside = (numbers < 0) | (numbers >= self.capacity)
        bad = numbers[outside | (self._index.task.take(numbers, mode="clip") == EMPTY)]
        if len(bad) and self._rows.x is not None:
            raise InvalidInput(f"slot {int(bad[0])} holds no sample: {len(self)} slots do, see memory.slots()")
        return self._at(torch.from_numpy(numbers))

    def _at(self, slots: Tensor) -> Batch:
        self.check_open()
        if self._rows.x is None:
            raise InvalidInput("the memory is empty; add samples before retrieving any")
        x, columns = self._rows.read(slots)
        return as_batch(x, columns, slots)

    def rewrite(self, slots: Tensor, x: Tree) -> None:
        """Replace the inputs at these ``slots`` by ``x``; everything else that is known of the samples stays."""
        self.check_open()
        self._rows.check_alike(x, {})
        self._rows.write(slots, x, {})
        self.changes += 1

    # ---------------------------------------------------------------------------------------------------- facts

    def fact(self, name: str, slots: Tensor, fill: float) -> Tensor:
        """Return what is known under ``name`` of the samples at ``slots``; ``fill`` where nothing is known yet."""
        if name not in self._facts:
            self._facts[name] = (fill, torch.full((self.capacity,), fill))
        return pick(self._facts[name][1], slots)

    def note(self, name: str, slots: Tensor, values: Tensor | float) -> None:
        """Write ``values`` back to the samples at ``slots``, as the fact of that ``name``."""
        fact = self._facts[name][1]
        self._changes.note(fact, slots)
        fact[slots] = values.to(fact) if isinstance(values, Tensor) else values

    def _clear_facts(self, slots: Tensor) -> None:
        for name, (fill, _) in self._facts.items():
            self.note(name, slots, fill)

    # --------------------------------------------------------------------------------------------------- undoing

    def snapshot(self) -> Restore:
        """Return a function that restores samples, facts, index, counters, both generators and the policy's state.

        What is overwritten from now on is noted, as long as the returned function lives: that takes the time of the
        change, whatever the capacity. Only the last snapshot is valid.
        """
        notes, generators = self._changes.start(), (self._insertion.bit_generator, self._sampling.bit_generator)
        notes += [partial(setattr, generator, "state", generator.state) for generator in generators]
        notes += [attributes(self._index, "lists"), attributes(self._rows, "columns")]
        notes.append(attributes(self, "_facts", *self._policy))
        return notes.roll_back

    # ------------------------------------------------------------------------------------------------ forgetting

    def forget(
        self,
        *,
        ids: Collection[int | str] | Tensor | None = None,
        slots: Collection[int] | Tensor | None = None,
        predicate: Callable[[Batch], Tensor] | None = None,
    ) -> int:
        """Remove samples for good and overwrite their bytes; returns how many the memory held.

        The emptied slots stay open until the policy's own draw falls on them, so the memory remains a fair sample of
        what may still be stored. In a memory-mapped file the bytes are overwritten, and (by ids and predicate) in its
        journals too: loading an earlier checkpoint does not bring them back. A call that fails can be repeated.

        What this cannot do: the model's weights have learned from the sample, earlier checkpoints with samples inside
        still hold it, and so may backups and the disk beneath the file system.

        Args:
            ids: The ids that the samples were added with: a list, or a single one.
            slots: Their slots.
            predicate: Gets samples as batches (of at most 10,000) and returns one boolean per sample.
        """
        if sum(choice is not None for choice in (ids, slots, predicate)) != 1:
            raise InvalidInput("say what to forget by exactly one of ids, slots or predicate")
        self.check_open()
        occupied, file = self._index.occupied(), None if self._rows.x is None else self._rows.file
        if slots is not None:
            doomed = np.intersect1d(occupied, slot_numbers(slots))
        else:
            chosen = partial(matching, ids=None if ids is None else named_ids(ids), predicate=predicate)
            held = ((part, self._at(torch.from_numpy(part))) for part in in_parts(occupied, AT_ONCE))
            doomed = np.concatenate([occupied[:0], *(part[chosen(samples).numpy()] for part, samples in held)])
            if file is not None:
                file.erase_past(lambda x, columns: chosen(as_batch(x, columns)))
        for some in in_parts(doomed, AT_ONCE):
            with all_or_nothing(self) as commit:
                self.discard(some)
                commit(())
        return len(doomed)

    def discard(self, slots: Slots) -> None:
        """Erase the samples at these ``slots``, inside `all_or_nothing`."""
        if len(slots):
            where = torch.from_numpy(slots)
            self._rows.erase(where)
            self._clear_facts(where)
            self._index.clear(slots)
            self.changes += 1

    # ------------------------------------------------------------------------------------------------- reporting

    @property
    def nbytes(self) -> int:
        """The bytes of the stored samples."""
        self.check_open()
        return len(self) * sum(column[0].numel() * column.element_size() for column in self._rows.leaves())

    def summary(self) -> dict[str, Any]:
        """Return what is stored: samples by class, by task and by age (samples seen since), and how many bytes."""
        held = {"samples": len(self), "capacity": self.capacity, "seen": self.seen, "bytes": self.nbytes}
        if not len(self):
            return {**held, "classes": {}, "tasks": {}}
        slots, columns = torch.from_numpy(self._index.occupied()), self._rows.columns
        y, ages = columns[TARGET], (self.seen - 1 - columns[ARRIVED][slots]).double()
        labeled = isinstance(y, Tensor) and y.ndim == 1 and not y.is_floating_point()
        return {
            **held,
            "classes": _tally(y[slots]) if labeled else {},
            "tasks": _tally(columns[TASK][slots]),
            "age": {"least": ages.min().item(), "median": ages.median().item(), "most": ages.max().item()},
        }

    # ---------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Return everything: samples, facts, the count of what was seen, both generators; tensors and plain values.

        Samples in a file are not copied: the state says what is to be found there, and where to return to.
        """
        self.check_open()
        return self.present_state()

    def present_state(self) -> dict[str, Any]:
        """Return the state; that of a closed memory is without samples, and good for undoing a load alone."""
        used = int(self._index.occupied().max()) + 1 if len(self) else 0
        rows, file = self._rows, self._rows.file
        held = (None, {}) if rows.x is None or file is not None else (rows.x, rows.columns)
        x, columns = tree_map(lambda column: None if column is None else column[:used].clone(), held)
        return {
            "policy": type(self).__name__,
            "capacity": self.capacity,
            "seen": self.seen,
            "x": x,
            "columns": columns,
            "file": file.checkpoint() if file is not None and file.is_open else None,
            "facts": {name: (fill, fact[:used].clone()) for name, (fill, fact) in self._facts.items()},
            "index": self._index.state(),
            "insertion": json.dumps(self._insertion.bit_generator.state),
            "sampling": json.dumps(self._sampling.bit_generator.state),
            "own": self._policy_state(),
        }

    def confirm(self, state: dict[str, Any]) -> None:
        """Note that a ``state`` is safely on a disk; a memory in a file then deletes what only older states need."""
        file = self._rows.file
        if state["file"] is not None and file is not None and file.is_open:
            file.confirm(state["file"])

    def close(self) -> None:
        """Close the file, if the samples are in one, for another memory to open; load a checkpoint to go on."""
        if self._rows.file is not None:
            self._rows.file.close()
            self._rows.x, self._rows.columns = None, {}

    def check_open(self) -> None:
        """Refuse a memory whose file was closed: its samples are out of reach, and it must not start another file."""
        file = self._rows.file
        if file is not None and not file.is_open and (len(self) or self._rows.x is not None):
            raise InvalidInput(f"the memory's file {file.path} is closed; load a checkpoint to go on")

    def load_state_dict(self, state: dict[str, Any], check_stored: Callable[[Batch], object] | None = None) -> None:
        """Load what `state_dict` returned.

        Args:
            state: The state.
            check_stored: Refuses samples in RAM that it cannot use; those in a file are the ones that were saved.

        Raises:
            CheckpointError: If it is of another policy or capacity, or its file cannot be restored.
        """
        check(state, saved_form(self.capacity), "the saved memory")
        for name, own in (("policy", type(self).__name__), ("capacity", self.capacity)):
            if state[name] != own:
                raise CheckpointError(f"the saved memory has {name} {state[name]!r}, this one {own!r}")
        index = TaskIndex.from_state(self.capacity, self._changes, state["index"])
        occupied = index.occupied()
        used = int(occupied[-1]) + 1 if len(occupied) else 0
        check(state["facts"], dict.fromkeys(state["facts"], (float, torch.empty(used))), "the memory's facts")
        check(state["own"], self._policy_form(state["seen"]), f"what this {type(self).__name__} knows")
        insertion, sampling = (generator_state(state[name]) for name in ("insertion", "sampling"))
        samples = saved_samples(state, index)
        if samples is not None:
            self._check_policy(samples)
            if check_stored is not None:
                check_stored(samples)
        rows, forgotten = self._load_rows(state, occupied)
        index.clear(forgotten)
        facts = {name: (fill, torch.full((self.capacity,), fill)) for name, (fill, _) in state["facts"].items()}
        for name, (_, values) in facts.items():
            values[:used] = state["facts"][name][1]
        self._rows, self._index, self._facts, self.seen = rows, index, facts, state["seen"]
        self.changes += 1
        self._clear_facts(torch.from_numpy(forgotten))
        self._insertion.bit_generator.state, self._sampling.bit_generator.state = insertion, sampling
        self._load_policy_state(state["own"])

    def _load_rows(self, state: dict[str, Any], occupied: Slots) -> tuple[Rows, Slots]:
        """Return the samples of a state, and those of the occupied slots that were forgotten for good since."""
        rows, forgotten = Rows(self.capacity, self._changes, self._rows.file), occupied[:0]
        if state["x" if rows.file else "file"] is not None and len(occupied):
            inside, outside = ("its file", "the checkpoint") if rows.file else ("the checkpoint", "a file")
            raise CheckpointError(f"the saved memory's samples are in {outside}, this one keeps them in {inside}")
        if state["x"] is not None:
            rows.allocate(state["x"], state["columns"])
            rows.write(torch.arange(len(tree_leaves(state["x"])[0])), state["x"], state["columns"])
        elif rows.file is not None and state["file"] is not None:
            rows.x, rows.columns, forgotten = rows.file.restore(state["file"], occupied)
        elif rows.file is not None:
            rows.file.close()
        return rows, np.intersect1d(forgotten, occupied)


def _task_set(task: int | Tensor | None) -> set[int]:
    """Return the tasks to leave out; unknown ones (−1) are never left out."""
    if task is None:
        return set()
    if type(task) is int:
        return {task} - {-1}
    values = torch.as_tensor(list(task) if isinstance(task, set | frozenset) else task)
    return set(values.reshape(-1).tolist()) - {-1}


def _last_of_each(slots: Slots) -> Slots:
    """Return the positions of the samples that end up stored, in order: the last one that drew each slot."""
    return np.array(sorted({slot: at for at, slot in enumerate(slots.tolist()) if slot >= 0}.values()), dtype=np.int64)


def _tally(values: Tensor) -> dict[int, int]:
    names, counts = torch.unique(values, return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))
