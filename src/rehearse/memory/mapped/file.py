"""Samples in a memory-mapped file, with a way back to every checkpoint.

The file holds the samples as they are now, one row per slot. A checkpoint does not copy them: it notes a *generation*,
a number that is never given twice, and a digest of each row; from then on the old content of a slot is journaled
before it is first overwritten. Loading a checkpoint checks that every row it needs can be had, from the file or from
the journals, and only then restores them. What was forgotten in between stays forgotten.

A process that is killed at any moment, in the middle of a write too, loses nothing of a checkpoint. After a power
failure, pages that the system wrote out of order are found by the digests and refused, never used.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...batch import Tree
from ...errors import CheckpointError, InvalidInput, InvalidType
from .header import FIXED, PAGE, Header, counter, lock, opened, release
from .journal import CHUNK, FORGOTTEN, ROW, Bytes, Journal, generations, journal_path, kinds_of
from .layout import Layout

RESIDENT: Final = 128 * 2**20  # bytes of the file that may stay mapped in; the system keeps its own cache of it
AROUND: Final = 16 * PAGE  # what Linux maps in around a byte that is touched

Slots = NDArray[np.int64]


class MappedFile:
    """Room for ``capacity`` samples in the file ``path``; its journals are beside it, ``path.N.undo``."""

    _layout: Layout  # this, and all that is mapped, from `start` or `restore` on
    _raw: Tensor

    def __init__(self, path: str | os.PathLike[str], capacity: int) -> None:
        """Name the file; it is opened when it is first needed."""
        self.path, self.capacity = Path(path).absolute(), capacity
        self.digests = np.zeros(capacity, dtype=np.uint64)  # of each row; 0 if it holds nothing
        self._touched = np.zeros(capacity, dtype=bool)  # overwritten since the last checkpoint
        self._moved = False
        self._resident = 0
        self._generation = 0  # the last checkpoint of this history
        self._last = self._confirmed = 0  # the last of all that were ever tried, and the last that is known to be safe
        self._name = b""
        self._rows: Bytes = np.zeros((0, 0), dtype=np.uint8)
        self._close: Callable[[], object] | None = None

    # ------------------------------------------------------------------------------------------------- the file

    @property
    def is_open(self) -> bool:
        """Whether the file is mapped."""
        return self._close is not None

    def check_start(self) -> None:
        """Refuse a place where no new file can be started; changes nothing."""
        if not self.path.parent.is_dir():
            raise InvalidInput(f"there is no directory {self.path.parent} for the samples of the memory")
        if self.path.exists():
            with opened(self.path) as descriptor:
                lock(descriptor, self.path)
                if Header.read(descriptor, self.path).confirmed:
                    raise InvalidInput(
                        f"{self.path} holds the samples of an earlier run: load its checkpoint to resume, or delete "
                        "the file to start over"
                    )
        elif generations(self.path):
            raise InvalidInput(f"{self.path} is gone, its journals are not: delete {self.path}.*.undo to start over")

    def start(self, x: Tree, columns: dict[str, Tensor]) -> tuple[Tree, dict[str, Tensor]]:
        """Lay out a new file for samples that look like these."""
        self.check_start()
        layout = Layout.of(x, columns)
        header = Header(layout.text, self.capacity, os.urandom(16))
        size = header.size + self.capacity * layout.row_bytes
        temporary = self.path.with_name(f"{self.path.name}.new")
        try:
            with opened(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as descriptor:
                if shutil.disk_usage(self.path.parent).free < size:
                    raise OSError(28, "no space left on the disk")
                # Reserved now, because a mapped page that finds the disk full kills the process.
                (os.ftruncate if sys.platform != "linux" else _reserve)(descriptor, size)
                os.pwrite(descriptor, header.content(), 0)
                os.fsync(descriptor)
            for generation in generations(self.path):  # of a run that was killed before its first checkpoint was safe
                journal_path(self.path, generation).unlink()
            os.replace(temporary, self.path)
        except OSError as problem:
            temporary.unlink(missing_ok=True)
            raise InvalidInput(
                f"cannot create {self.path} ({size:,} bytes for {self.capacity:,} samples): {problem.strerror}"
            ) from problem
        self._open()
        return self._layout.views(self._raw)

    def close(self) -> None:
        """Close the file; what it holds stays there."""
        self._rows = np.zeros((0, 0), dtype=np.uint8)
        self._raw = torch.from_numpy(self._rows)
        if self._close is not None:
            self._close()
        self._close = None

    def discard(self) -> None:
        """Close the file and delete it: nothing was stored in it after all."""
        self.close()
        self.path.unlink()

    def _open(self) -> None:
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            lock(descriptor, self.path)
            header = Header.read(descriptor, self.path)
            layout = Layout(header.layout)
            size, found = header.size + self.capacity * layout.row_bytes, os.fstat(descriptor).st_size
            if header.capacity != self.capacity or found < size:
                raise CheckpointError(
                    f"{self.path} is made for {header.capacity} samples and has {found} bytes; this memory needs "
                    f"{self.capacity} samples, {size} bytes"
                )
            mapped = mmap.mmap(descriptor, size)
            mapped.madvise(mmap.MADV_RANDOM)  # samples are retrieved at random: reading ahead is reading in vain
            self._map, self._descriptor, self._process = mapped, descriptor, os.getpid()
            self._close = weakref.finalize(self, release, descriptor, self._process)
        except BaseException:
            if self._close is None:
                os.close(descriptor)
            raise
        self._name, self._layout = header.name, layout
        self._last, self._confirmed = header.last, header.confirmed
        rows = np.frombuffer(mapped, dtype=np.uint8, offset=header.size, count=self.capacity * layout.row_bytes)
        self._rows = rows.reshape(self.capacity, layout.row_bytes)
        self._raw = torch.from_numpy(self._rows)

    def check_process(self) -> None:
        """Refuse a forked child: its writes would reach the memory of its parent, which knows nothing of them."""
        if self.is_open and self._process != os.getpid():
            raise InvalidInput(
                f"{self.path} is in use by process {self._process}, of which this one is a copy: let the child use a "
                "predictor (learner.predictor()), or a learner with a file of its own"
            )

    # ------------------------------------------------------------------------------------------------ overwriting

    @contextlib.contextmanager
    def overwriting(self, slots: Slots) -> Iterator[None]:
        """Surround every write: journal what is overwritten for the first time, then take the new digests."""
        self._journal_held(ROW, slots)
        self.passed(len(slots))
        yield
        for slot in slots:
            self.digests[slot] = _digest(self._rows[slot])

    def passed(self, rows: int) -> None:
        """Count the rows that were touched, and release pages now and then, so that the process stays small."""
        self.check_process()
        self._resident += rows * (self._layout.row_bytes + AROUND)
        if self._resident > RESIDENT:
            self._map.madvise(mmap.MADV_DONTNEED)  # of a shared mapping: what was written stays written
            self._resident = 0

    def erase(self, slots: Slots) -> None:
        """Overwrite samples for good: loading a checkpoint will not bring them back."""
        self._journal_held(FORGOTTEN, slots)
        self._rows[slots] = 0
        self.digests[slots] = 0

    def erase_past(self, doomed: Callable[[Tree, dict[str, Tensor]], Tensor]) -> None:
        """Overwrite samples that are in the journals, if ``doomed`` returns true for them."""
        self.check_process()
        for journal in self._journals():
            for records in journal.chunks(self.capacity):
                held = np.flatnonzero(kinds_of(records) == ROW)
                if len(held):
                    rows = torch.from_numpy(np.ascontiguousarray(records["row"][held]))
                    journal.forget(records, held[doomed(*self._layout.views(rows)).numpy()])
            journal.sync()

    def sync(self) -> None:
        """Write everything to the disk."""
        self.check_process()
        if self.is_open:
            self._map.flush()
            os.fsync(self._descriptor)

    def _journal_held(self, kind: int, slots: Slots) -> None:
        self._moved = True
        fresh = slots[~self._touched[slots]]
        held = fresh[self.digests[fresh] != 0]
        if self._generation and len(held):
            try:
                self._journal(self._generation).append(kind, held, self._rows[held] if kind == ROW else None)
            except OSError as problem:
                raise CheckpointError(
                    f"cannot write the journal of {self.path}: {problem.strerror}; the samples were not overwritten"
                ) from problem
        self._touched[fresh] = True

    # ------------------------------------------------------------------------------------------------ checkpoints

    def checkpoint(self) -> dict[str, Any]:
        """Return a generation to come back to, and what there is to be found then."""
        self.check_process()
        if self._moved or not self._generation:
            self.sync()
            self._last += 1
            self._write_counter()
            self._journal(self._last).create()
            self._generation, self._moved = self._last, False
            self._touched[:] = False
        digests = torch.from_numpy(self.digests.view(np.int64).copy())
        names = {"file": self._name.hex(), "generation": self._generation, "layout": self._layout.text}
        return {**names, "digests": digests}

    def confirm(self, state: dict[str, Any]) -> None:
        """Note that this checkpoint is safe: no older one will be loaded."""
        self.check_process()
        self._confirmed = max(self._confirmed, int(state["generation"]))
        self._write_counter()
        for journal in self._journals():
            if journal.generation < state["generation"]:
                journal.delete()

    def _write_counter(self) -> None:
        os.pwrite(self._descriptor, counter(self._last, self._confirmed), FIXED.size)

    def restore(self, state: dict[str, Any], occupied: Slots) -> tuple[Tree, dict[str, Tensor], Slots]:
        """Return to a checkpoint: the columns, and the slots whose samples were forgotten since and stay so.

        Everything is checked before anything is changed.
        """
        self.check_process()
        opened_here = not self.is_open
        if opened_here:
            if not self.path.exists():
                raise CheckpointError(f"the saved memory's samples are in a file of their own; {self.path} is missing")
            self._open()
        try:
            plan = self._plan(state, occupied)
        except BaseException:
            if opened_here:
                self.close()
            raise
        forgotten = np.flatnonzero(plan.forgotten)
        self._go_back(plan, forgotten, int(state["generation"]))
        self.digests[:] = 0
        self.digests[occupied] = state["digests"].numpy().view(np.uint64)[occupied]
        self.digests[forgotten] = 0
        return (*self._layout.views(self._raw), forgotten)

    def _plan(self, state: dict[str, Any], occupied: Slots) -> _Plan:
        """Find where each row of the checkpoint is, and compare it with its digest."""
        generation, live = int(state["generation"]), generations(self.path)
        if bytes.fromhex(state["file"]) != self._name or state["layout"] != self._layout.text:
            raise CheckpointError(f"{self.path} holds the samples of another memory than the saved one")
        if generation not in live:
            raise CheckpointError(
                f"{self.path} cannot go back to checkpoint {generation} (it can to: {live or 'none'}): a later one "
                "was saved over it, or an earlier one was loaded and continued"
            )
        plan = _Plan(self.capacity)
        for number in reversed([g for g in live if g >= generation]):  # the oldest record of a slot has the last word
            plan.add(number, self._journal(number).records(self.capacity))
        wanted = state["digests"].numpy().view(np.uint64)
        checked = occupied[~plan.forgotten[occupied]].tolist()
        bad = [slot for slot in checked if _digest(plan.row(slot, self._rows)) != wanted[slot]]
        if bad:
            raise CheckpointError(
                f"{len(bad)} samples in {self.path} are not those that were saved (the first in slot {bad[0]}): the "
                "file or its journal is damaged or was altered"
            )
        return plan

    def _go_back(self, plan: _Plan, forgotten: Slots, generation: int) -> None:
        """Rewrite the file and the journals. Killed anywhere in here, the same checkpoint can be restored again."""
        plan.write(self._rows)
        self._rows[forgotten] = 0
        self.sync()
        journal = self._journal(generation)
        journal.append(FORGOTTEN, forgotten)
        journal.sync()
        for later in reversed([g for g in generations(self.path) if g > generation]):
            self._journal(later).delete()
        journal.create(forgotten)
        self._touched[:] = False
        self._generation, self._moved = generation, False

    def _journal(self, generation: int) -> Journal:
        return Journal(self.path, self._name, generation, self._layout.row_bytes)

    def _journals(self) -> list[Journal]:
        return [self._journal(generation) for generation in generations(self.path)] if self.is_open else []

    def __reduce__(self) -> NoReturn:
        raise InvalidType("a memory in a file cannot be copied or pickled; use rehearse.save and rehearse.load")


class _Plan:
    """For every slot the record that restores it, if the journals have one."""

    def __init__(self, capacity: int) -> None:
        self.forgotten = np.zeros(capacity, dtype=bool)
        self._from = np.zeros(capacity, dtype=np.int64)  # generation of the record, 0 where the file itself is right
        self._record = np.zeros(capacity, dtype=np.int64)
        self._records: dict[int, Any] = {}

    def add(self, generation: int, records: Any) -> None:
        slots = np.asarray(records["slot"])
        self._records[generation] = records
        self._from[slots], self._record[slots] = generation, np.arange(len(slots))
        self.forgotten[slots] = kinds_of(records) == FORGOTTEN

    def row(self, slot: int, rows: Bytes) -> Bytes:
        generation = self._from[slot]
        return rows[slot] if generation == 0 else np.asarray(self._records[generation]["row"][self._record[slot]])

    def write(self, rows: Bytes) -> None:
        for generation, records in self._records.items():
            slots = np.flatnonzero((self._from == generation) & ~self.forgotten)
            for some in np.split(slots, range(CHUNK, len(slots), CHUNK)):
                rows[some] = records["row"][self._record[some]]


def _digest(row: Bytes) -> int:
    return int.from_bytes(blake2b(row.data, digest_size=8).digest(), "little") or 1


def _reserve(descriptor: int, size: int) -> None:
    os.posix_fallocate(descriptor, 0, size)
