"""Rows in a memory-mapped file, with a way back to every checkpoint.

The file holds the rows as they are now. A checkpoint does not copy them: it notes a *generation*, a number that is
never given twice, and a digest of each row; from then on the old content of a slot is journalled before it is first
overwritten. Loading a checkpoint checks that every row it speaks of can be had, from the file or from the journals,
and only then puts them back. What was forgotten in between stays forgotten.

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
from ..changes import Changes
from .header import FIXED, PAGE, Header, counter, lock, opened, release
from .journal import CHUNK, FORGOTTEN, ROW, Bytes, Journal, generations, journal_path, kinds_of
from .layout import Layout

RESIDENT: Final = 128 * 2**20  # bytes of the file that may stay mapped in; the system keeps its own cache of it
AROUND: Final = 16 * PAGE  # what Linux maps in around a byte that is touched

Slots = NDArray[np.int64]


class MappedFile:
    """``capacity`` rows in the file ``path``; journals stand beside it, ``path.N.undo``."""

    def __init__(self, path: str | os.PathLike[str], capacity: int) -> None:
        self.path, self.capacity = Path(path).absolute(), capacity
        self._digests = np.zeros(capacity, dtype=np.uint64)  # of each row; 0 where there is none
        self._touched = np.zeros(capacity, dtype=bool)  # overwritten since the last checkpoint
        self._moved = False
        self._resident = 0
        self._generation = 0  # the last checkpoint of this history
        self._last = self._confirmed = 0  # the last of all that were ever tried, and the last that is known to be safe
        self._name = b""
        self._layout: Layout | None = None
        self._raw: Tensor | None = None
        self._rows: Bytes = np.zeros((0, 0), dtype=np.uint8)
        self._close: Callable[[], object] = lambda: None

    # ------------------------------------------------------------------------------------------------- the file

    @property
    def is_open(self) -> bool:
        return self._raw is not None

    def check_start(self) -> None:
        """Refuse a place where no new file can be begun; changes nothing."""
        if not self.path.parent.is_dir():
            raise InvalidInput(f"there is no directory {self.path.parent} for the rows of the memory")
        if self.path.exists():
            with opened(self.path) as descriptor:
                lock(descriptor, self.path)
                if Header.read(descriptor, self.path).confirmed:
                    raise InvalidInput(
                        f"{self.path} holds the rows of an earlier run: load its checkpoint to go on, or delete the "
                        "file to start anew"
                    )
        elif generations(self.path):
            raise InvalidInput(f"{self.path} is gone, its journals are not: delete {self.path}.*.undo to start anew")

    def start(self, x: Tree, columns: dict[str, Tensor]) -> tuple[Tree, dict[str, Tensor]]:
        """Lay out a new file for rows that look like these."""
        self.check_start()
        layout, name = Layout.of(x, columns), os.urandom(16)
        header = Header(layout.text, self.capacity, name)
        size = header.size + self.capacity * layout.row_bytes
        temporary = self.path.with_name(f"{self.path.name}.new")
        try:
            with opened(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as descriptor:
                if shutil.disk_usage(self.path.parent).free < size:
                    raise OSError(28, "no space left on the disk")
                # Reserved now, because a mapped page that finds the disk full kills the process.
                if sys.platform == "linux":
                    os.posix_fallocate(descriptor, 0, size)
                else:
                    os.ftruncate(descriptor, size)
                os.pwrite(descriptor, header.content(), 0)
                os.fsync(descriptor)
            for generation in generations(self.path):  # of a run that was killed before its first checkpoint was safe
                journal_path(self.path, generation).unlink()
            os.replace(temporary, self.path)
        except OSError as problem:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise InvalidInput(
                f"cannot lay out {self.path} ({size:,} bytes for {self.capacity:,} rows): {problem.strerror}"
            ) from problem
        self._open(header)
        return self._views()

    def close(self) -> None:
        """Let go of the file; what it holds stays there."""
        self._raw = None
        self._rows = np.zeros((0, 0), dtype=np.uint8)
        self._close()
        self._close = lambda: None

    def discard(self) -> None:
        """Close the file and delete it: nothing was kept in it after all."""
        self.close()
        self.path.unlink()

    def note_digests(self, slots: Slots, changes: Changes) -> None:
        """Note the digests of samples that are about to be overwritten."""
        changes.note(self._digests, slots)

    def _open(self, header: Header | None = None) -> None:
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            lock(descriptor, self.path)
            header = Header.read(descriptor, self.path) if header is None else header
            layout = Layout(header.layout)
            size = header.size + self.capacity * layout.row_bytes
            if header.capacity != self.capacity or os.fstat(descriptor).st_size < size:
                raise CheckpointError(
                    f"{self.path} is made for {header.capacity} rows and has {os.fstat(descriptor).st_size} bytes; "
                    f"this memory needs {self.capacity} rows, {size} bytes"
                )
            mapped = mmap.mmap(descriptor, size)
            mapped.madvise(mmap.MADV_RANDOM)  # rows are recalled at random: reading ahead is reading in vain
        except BaseException:
            os.close(descriptor)
            raise
        self._map, self._descriptor = mapped, descriptor
        self._close = weakref.finalize(self, release, descriptor)
        self._name, self._layout = header.name, layout
        self._last, self._confirmed = header.last, header.confirmed
        rows = np.frombuffer(mapped, dtype=np.uint8, offset=header.size, count=self.capacity * layout.row_bytes)
        self._rows = rows.reshape(self.capacity, layout.row_bytes)
        self._raw = torch.from_numpy(self._rows)

    def _views(self) -> tuple[Tree, dict[str, Tensor]]:
        assert self._layout is not None
        assert self._raw is not None
        return self._layout.views(self._raw)

    # ------------------------------------------------------------------------------------------------ overwriting

    @contextlib.contextmanager
    def overwriting(self, slots: Slots) -> Iterator[None]:
        """Around every write: journal what is overwritten for the first time, then take the new digests."""
        self._journal_held(ROW, slots)
        self.passed(len(slots))
        yield
        for slot in slots:
            self._digests[slot] = _digest(self._rows[slot])

    def passed(self, rows: int) -> None:
        """Rows were touched: let go of pages now and then, so that the process stays small."""
        assert self._layout is not None
        self._resident += rows * (self._layout.row_bytes + AROUND)
        if self._resident > RESIDENT:
            self._map.madvise(mmap.MADV_DONTNEED)  # of a shared mapping: what was written stays written
            self._resident = 0

    def erase(self, slots: Slots) -> None:
        """Overwrite rows for good: going back to a checkpoint will not bring them back."""
        self._journal_held(FORGOTTEN, slots)
        self._rows[slots] = 0
        self._digests[slots] = 0

    def erase_past(self, doomed: Callable[[Tree, dict[str, Tensor]], Tensor]) -> None:
        """Overwrite rows that only the journals still hold: those for which ``doomed`` answers true."""
        if not self.is_open:
            return
        assert self._layout is not None
        for journal in self._journals():
            for records in journal.chunks(self.capacity):
                held = np.flatnonzero(kinds_of(records) == ROW)
                if len(held):
                    rows = torch.from_numpy(np.ascontiguousarray(records["row"][held]))
                    mask = np.zeros(len(records), dtype=bool)
                    mask[held] = doomed(*self._layout.views(rows)).numpy()
                    journal.forget(records, mask)
            journal.sync()

    def sync(self) -> None:
        """Everything that was written is on the disk."""
        if self.is_open:
            self._map.flush()
            os.fsync(self._descriptor)

    def _journal_held(self, kind: int, slots: Slots) -> None:
        self._moved = True
        fresh = slots[~self._touched[slots]]
        held = fresh[self._digests[fresh] != 0]
        if self._generation and len(held):
            rows = self._rows[held] if kind == ROW else np.zeros_like(self._rows[held])
            try:
                self._journal(self._generation).append(kind, held, rows)
            except OSError as problem:
                raise CheckpointError(
                    f"cannot write the journal of {self.path}: {problem.strerror}; the rows were not overwritten"
                ) from problem
        self._touched[fresh] = True

    # ------------------------------------------------------------------------------------------------ checkpoints

    def checkpoint(self) -> dict[str, Any]:
        """Note a generation to come back to, and what there is to be found then."""
        assert self._layout is not None
        if self._moved or not self._generation:
            self.sync()
            self._last += 1
            self._write_counter()
            self._journal(self._last).create()
            self._generation, self._moved = self._last, False
            self._touched[:] = False
        digests = torch.from_numpy(self._digests.view(np.int64).copy())
        return {
            "file": self._name.hex(),
            "generation": self._generation,
            "layout": self._layout.text,
            "digests": digests,
        }

    def confirm(self, state: dict[str, Any]) -> None:
        """This checkpoint is safe: nobody will go back further."""
        self._confirmed = max(self._confirmed, int(state["generation"]))
        self._write_counter()
        for journal in self._journals():
            if journal.generation < state["generation"]:
                journal.delete()

    def _write_counter(self) -> None:
        os.pwrite(self._descriptor, counter(self._last, self._confirmed), FIXED.size)

    def restore(self, state: dict[str, Any], occupied: Slots) -> tuple[Tree, dict[str, Tensor], Slots]:
        """Go back to a checkpoint: the columns, and the slots whose rows were forgotten since and stay so.

        Everything is checked before anything is changed.
        """
        opened_here = not self.is_open
        if opened_here:
            if not self.path.exists():
                raise CheckpointError(
                    f"the rows of the saved memory are in a file of their own, and {self.path} is none"
                )
            self._open()
        try:
            plan = self._plan(state, occupied)
        except BaseException:
            if opened_here:
                self.close()
            raise
        self._go_back(plan, int(state["generation"]), state["digests"], occupied)
        return (*self._views(), np.flatnonzero(plan.forgotten))

    def _plan(self, state: dict[str, Any], occupied: Slots) -> _Plan:
        """Where each row of the checkpoint is to be had, each compared with its digest."""
        assert self._layout is not None
        generation, live = int(state["generation"]), generations(self.path)
        if bytes.fromhex(state["file"]) != self._name or state["layout"] != self._layout.text:
            raise CheckpointError(f"{self.path} holds the rows of another memory than the saved one")
        if generation not in live:
            there_are = ", ".join(map(str, live)) or "none"
            raise CheckpointError(
                f"{self.path} cannot go back to checkpoint {generation} (it can to: {there_are}): a later one was "
                "saved over it, or the learner went back and took another way"
            )
        plan = _Plan(self.capacity)
        for number in reversed([g for g in live if g >= generation]):  # the oldest record of a slot has the last word
            journal = self._journal(number)
            records = journal.records(self.capacity)
            plan.add(number, records)
        wanted = state["digests"].numpy().view(np.uint64)
        bad = [
            int(slot)
            for slot in occupied[~plan.forgotten[occupied]]
            if _digest(plan.row(int(slot), self._rows)) != wanted[slot]
        ]
        if bad:
            raise CheckpointError(
                f"{len(bad)} rows in {self.path} are not those that were saved (the first in slot {bad[0]}): "
                "the file or its journal is damaged or was altered"
            )
        return plan

    def _go_back(self, plan: _Plan, generation: int, digests: Tensor, occupied: Slots) -> None:
        """Killed anywhere in here, the same checkpoint can be restored again."""
        plan.write(self._rows)
        forgotten = np.flatnonzero(plan.forgotten)
        self._rows[forgotten] = 0
        self.sync()
        journal = self._journal(generation)
        journal.append(FORGOTTEN, forgotten, np.zeros_like(self._rows[forgotten]))
        journal.sync()
        for later in reversed([g for g in generations(self.path) if g > generation]):
            self._journal(later).delete()
        journal.keep_only_forgotten(forgotten)
        self._digests[:] = 0
        self._digests[occupied] = digests.numpy().view(np.uint64)[occupied]
        self._digests[forgotten] = 0
        self._touched[:] = False
        self._generation, self._moved = generation, False

    def _journal(self, generation: int) -> Journal:
        assert self._layout is not None
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
        slots, kinds = np.asarray(records["slot"]), kinds_of(records)
        self._records[generation] = records
        self._from[slots], self._record[slots] = generation, np.arange(len(slots))
        self.forgotten[slots] = kinds == FORGOTTEN

    def row(self, slot: int, rows: Bytes) -> Bytes:
        generation = self._from[slot]
        return rows[slot] if generation == 0 else np.asarray(self._records[generation]["row"][self._record[slot]])

    def write(self, rows: Bytes) -> None:
        for generation, records in self._records.items():
            slots = np.flatnonzero((self._from == generation) & ~self.forgotten)
            for start in range(0, len(slots), CHUNK):
                some = slots[start : start + CHUNK]
                rows[some] = records["row"][self._record[some]]


def _digest(row: Bytes) -> int:
    return int.from_bytes(blake2b(row.data, digest_size=8).digest(), "little") or 1
