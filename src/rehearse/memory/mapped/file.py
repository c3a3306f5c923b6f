"""Samples in a memory-mapped file, with a way back to every checkpoint.

The file holds the samples, one row per slot. A checkpoint does not copy them: it notes a *generation*, a number that is
never given twice, and a digest of each row. The mapping is private: what is written stays in RAM until a checkpoint is
taken or many rows have changed. Then the old content of the slots is journaled, the journal is synced, and only after
that the file is overwritten. Loading a checkpoint checks that every row it needs can be had, from the file or from the
journals, and only then restores them. What was forgotten in between stays forgotten.

A process that is killed at any moment, or a power failure, loses nothing of a checkpoint.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...batch import Tree, tree_map
from ...errors import CheckpointError, InvalidInput, InvalidType
from ...files import flush, lock, remove, replace_file, unlock, write_at
from ..changes import Changes
from ..index import Slots, in_parts
from .journal import FORGOTTEN, ROW, Bytes, Journal, generations, journal_path, kinds_of
from .layout import FIXED, PAGE, Header, Layout

RESIDENT: Final = 128 * 2**20  # bytes of the file that may stay mapped in; the system keeps its own cache of it
AROUND: Final = 16 * PAGE  # what Linux maps in around a byte that is touched
CHUNK: Final = 4096  # rows or records handled at once
NO_ROWS: Final = np.zeros((0, 0), dtype=np.uint8)
NO_MAP: Final = mmap.mmap(-1, PAGE)
Moved = Iterator[tuple[Slots, Bytes]]


class MappedFile:
    """Room for ``capacity`` samples in the file ``path``; its journals are beside it, ``path.N.undo``."""

    _header: Header  # this, and all that is mapped, from `start` or `restore` on
    _layout: Layout

    def __init__(self, path: str | os.PathLike[str], capacity: int, changes: Changes) -> None:
        """Name the file; it is opened when it is first needed."""
        if not isinstance(path, str | os.PathLike):
            raise InvalidType(f"path is {path!r}; it must be the name of a file")
        self.path, self.capacity, self._changes = Path(path).absolute(), capacity, changes
        self._digests = np.zeros(capacity, dtype=np.uint64)  # of each row; 0 if it holds nothing
        self._changed = np.zeros(capacity, dtype=bool)  # in RAM, and not yet in the file
        # Slots that still hold in the file what they held at the last checkpoint, and are in no journal yet.
        self._to_journal = np.zeros(capacity, dtype=bool)
        self._news = False  # whether anything was written since the last checkpoint
        self._journal: Journal | None = None  # of the last checkpoint of this history
        self._rows: Bytes = NO_ROWS
        self._map = NO_MAP
        self._resident = 0
        self._close: Callable[[], object] | None = None

    # ------------------------------------------------------------------------------------------------- the file

    def start(self, x: Tree, columns: dict[str, Tensor]) -> tuple[Tree, dict[str, Tensor]]:
        """Lay out a new file for samples that look like these, unless there are samples in this place."""
        if not self.path.parent.is_dir():
            raise InvalidInput(f"there is no directory {self.path.parent} for the samples of the memory")
        if self.path.exists():
            if self._confirmed():
                raise InvalidInput(f"{self.path} is of an earlier run: load its checkpoint, or delete it to start over")
        elif generations(self.path):
            raise InvalidInput(f"{self.path} is gone, its journals are not: delete {self.path}.*.undo to start over")
        layout = Layout.of(x, columns)
        header = Header(layout.text, self.capacity, os.urandom(16))
        size = header.size + self.capacity * layout.row_bytes
        self._changes.add(self._discard)
        try:
            for generation in generations(self.path):  # of a run that was killed before its first save was done
                remove(journal_path(self.path, generation))
            replace_file(self.path, header.content(), mode=0o600, size=size)
        except OSError as problem:
            raise InvalidInput(f"cannot create {self.path} ({size:,} bytes): {problem.strerror}") from problem
        self._open()
        return self._layout.views(self._rows)

    @property
    def is_open(self) -> bool:
        """Whether the samples are within reach; if not, a checkpoint has to be loaded."""
        return self._close is not None

    def close(self) -> None:
        """Close the file; what was not saved is gone."""
        self._rows, self._map = NO_ROWS, NO_MAP  # a mapping holds a descriptor of its own
        if self._close is not None:
            self._close()
        self._close = None

    def _discard(self) -> None:
        """Close the file and delete it: nothing was stored in it after all."""
        if self.is_open:
            self.close()
            remove(self.path)

    def _open(self) -> None:
        try:
            descriptor, header = self._locked()
            layout, found = Layout(header.layout), os.fstat(descriptor).st_size
            size = header.size + self.capacity * layout.row_bytes
            if header.capacity != self.capacity or found < size:
                held, needed = f"{header.capacity} samples, {found} bytes", f"{self.capacity} samples, {size} bytes"
                raise CheckpointError(f"{self.path} has room for {held}; this memory needs {needed}")
            self._descriptor, self._header, self._layout = descriptor, header, layout
            header.last = max([header.last, *generations(self.path)])
            self._map = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
            self._changed[:] = False
            self._map.madvise(mmap.MADV_RANDOM)  # samples are retrieved at random: reading ahead is reading in vain
            self._rows = np.frombuffer(self._map, np.uint8, offset=header.size).reshape(self.capacity, layout.row_bytes)
        except BaseException:
            self.close()
            raise

    def _confirmed(self) -> bool:
        """Whether a checkpoint goes with the file that is there."""
        self.close()  # what an interrupted call left open
        try:
            return bool(self._locked()[1].confirmed)
        finally:
            self.close()

    def _locked(self) -> tuple[int, Header]:
        """Open the file, lock it (two memories that write to one file would undo each other) and read its header."""
        opened = ExitStack()  # owns the descriptor from the moment there is one: an interrupt leaves nothing locked
        self._process, self._close = os.getpid(), weakref.finalize(self, opened.close)
        try:
            file = opened.enter_context(FileIO(self.path, "r+"))
        except OSError as problem:
            raise InvalidInput(f"cannot open {self.path}: {problem.strerror}") from problem
        opened.callback(unlock, file.fileno(), os.getpid())
        if not lock(file):
            raise InvalidInput(f"{self.path} is in use by another memory; close that first (memory.close())")
        return file.fileno(), Header.read(file.fileno(), self.path)

    def check_process(self) -> None:
        """Refuse a forked child: its samples would not be those of its parent."""
        if self.is_open and self._process != os.getpid():
            advice = "let a forked child use learner.predictor(), or a learner with a file of its own"
            raise InvalidInput(f"{self.path} is in use by process {self._process}, this one's parent: {advice}")

    # ------------------------------------------------------------------------------------------------ overwriting

    def write(self, slots: Slots, x: Tree, columns: dict[str, Tensor]) -> None:
        """Write samples, or of those that are there the inputs alone."""
        rows = self._rows[slots]
        tree_map(lambda leaf, held: held.copy_(leaf), (x, columns), self._layout.views(rows))
        self._note(slots)
        self._write(slots, rows, [_digest(row) for row in rows])
        if self._resident > RESIDENT:
            self._write_out()
        self.passed(len(slots))

    def erase(self, slots: Slots) -> None:
        """Overwrite samples for good: loading a checkpoint will not bring them back."""
        with self._writing("; the samples were not overwritten"):
            self._keep(ROW, np.flatnonzero(self._changed))  # at the checkpoint these slots held other samples
            self._keep(FORGOTTEN, slots)
        self._note(slots)  # only now: undoing it counts as a change, and these samples must not be journaled as rows
        self._write(slots, 0, 0)
        self.sync()

    def _note(self, slots: Slots) -> None:
        self._changes.add(self._write, slots, self._rows[slots], self._digests[slots])

    def _write(self, slots: Slots, rows: Bytes | int, digests: Any) -> None:
        self._rows[slots], self._digests[slots] = rows, digests
        self._changed[slots] = self._news = True

    def _write_out(self) -> None:
        """Write what has changed in RAM into the file."""
        changed = np.flatnonzero(self._changed)
        with self._writing():
            self._keep(ROW, changed)
            for run in np.split(changed, np.flatnonzero(np.diff(changed) != 1) + 1):
                if len(run):
                    write_at(self._descriptor, self._rows[run[0] : run[-1] + 1].reshape(-1), self._place(run[0]))
        self._changed[:] = False

    def _place(self, slot: int) -> int:
        return self._header.size + int(slot) * self._layout.row_bytes

    def _keep(self, kind: np.uint64, slots: Slots) -> None:
        """Journal what the slots held at the last checkpoint, and still hold in the file."""
        held = slots[self._to_journal[slots]]
        if self._journal is not None and len(held):
            size = self._layout.row_bytes
            rows = [os.pread(self._descriptor, size, self._place(slot)) for slot in held] if kind == ROW else []
            self._journal.append(kind, held, np.frombuffer(b"".join(rows), np.uint8).reshape(-1, size) if rows else 0)
        self._to_journal[held] = False

    def passed(self, rows: int) -> None:
        """Count the rows that were touched, and release pages now and then, so that the process stays small."""
        self.check_process()
        self._resident += rows * (self._layout.row_bytes + AROUND)
        if self._resident > RESIDENT and not self._changed.any():
            self._map.madvise(mmap.MADV_DONTNEED)
            self._resident = 0

    def erase_past(self, doomed: Callable[[Tree, dict[str, Tensor]], Tensor]) -> None:
        """Overwrite samples that are in the journals, if ``doomed`` returns true for them."""
        self.sync()  # after this, samples that were replaced are in the journals alone
        for journal in self._journals():
            records = journal.records(self.capacity)
            held = in_parts(np.flatnonzero(kinds_of(records) == ROW), CHUNK)
            found = [part[doomed(*self._layout.views(records["row"][part])).numpy()] for part in held]
            with self._writing():
                journal.forget(records, np.concatenate([np.empty(0, np.int64), *found]))

    def sync(self) -> None:
        """Write everything to the disk."""
        self._write_out()
        with self._writing():
            flush(self._descriptor)

    @contextmanager
    def _writing(self, outcome: str = "") -> Iterator[None]:
        self.check_process()
        try:
            yield
        except OSError as problem:
            why = f"{problem.strerror}{outcome}"
            raise CheckpointError(f"cannot write {self.path} or its journal: {why}") from problem

    # ------------------------------------------------------------------------------------------------ checkpoints

    def checkpoint(self) -> dict[str, Any]:
        """Return a generation to come back to, and what there is to be found then."""
        self.check_process()
        header, journal = self._header, self._journal
        if journal is None or self._news:
            self.sync()
            with self._writing():
                header.last += 1
                self._write_counter()
                journal = self._begin(self._journal_of(header.last), np.empty(0, np.int64))
        names = {"file": header.name.hex(), "generation": journal.generation, "layout": header.layout}
        return names | {"digests": torch.from_numpy(self._digests.view(np.int64).copy())}

    def confirm(self, state: dict[str, Any]) -> None:
        """Note that this checkpoint is safe: no older one will be loaded."""
        with self._writing("; the checkpoint itself is safe"):
            self._header.confirmed = max(self._header.confirmed, int(state["generation"]))
            self._write_counter()
            for journal in self._journals():
                if journal.generation < state["generation"]:
                    remove(journal.path)

    def _write_counter(self) -> None:
        write_at(self._descriptor, self._header.counter(), FIXED.size)
        flush(self._descriptor)

    def restore(self, state: dict[str, Any], occupied: Slots) -> tuple[Tree, dict[str, Tensor], Slots]:
        """Return to a checkpoint: the columns, and the slots whose samples were forgotten since and stay so.

        Everything is checked before anything is changed. Killed anywhere in here, the same checkpoint can be restored
        again.
        """
        if not self.path.exists():
            raise CheckpointError(f"the saved memory's samples are in a file of their own; {self.path} is missing")
        stays_open = self.is_open
        try:
            if stays_open:
                self._write_out()
            else:
                self._open()
            journals, wanted = self._journals_since(state), state["digests"].numpy().view(np.uint64)
            kept, moved, forgotten = self._find(journals, wanted, occupied)
            stays_open = False  # samples that are restored in part are out of reach until a checkpoint is loaded
            self._journal, self._to_journal[:], self._digests[:] = None, False, 0
            self._digests[kept] = wanted[kept]
            self._go_back(journals, kept, moved, forgotten)
        except BaseException:
            if not stays_open:
                self.close()
            raise
        return (*self._layout.views(self._rows), forgotten)

    def _journals_since(self, state: dict[str, Any]) -> list[Journal]:
        """Return the journal of a checkpoint and the later ones."""
        if bytes.fromhex(state["file"]) != self._header.name or state["layout"] != self._header.layout:
            raise CheckpointError(f"{self.path} holds the samples of another memory than the saved one")
        live, generation = generations(self.path), int(state["generation"])
        if generation not in live:
            why = "a later one was saved over it, or an earlier one was loaded and continued"
            raise CheckpointError(f"{self.path} cannot go back to checkpoint {generation} (of {live}): {why}")
        return self._journals(generation)

    def _find(self, journals: list[Journal], wanted: NDArray[np.uint64], occupied: Slots) -> tuple[Slots, Moved, Slots]:
        """Find each row of a checkpoint and compare it with its digest.

        Returns the slots of those that are there, the ones to take from the journals, and the forgotten slots.
        """
        sources, forgotten = [self._rows], np.zeros(self.capacity, dtype=bool)
        source, place = np.zeros(self.capacity, dtype=np.int64), np.arange(self.capacity)
        for journal in reversed(journals):  # the oldest record of a slot has the last word
            records = journal.records(self.capacity)
            slots = np.asarray(records["slot"])
            source[slots], place[slots] = len(sources), np.arange(len(slots))
            forgotten[slots] = kinds_of(records) == FORGOTTEN
            sources.append(np.asarray(records["row"]))
        kept = occupied[~forgotten[occupied]]
        bad = [slot for slot in kept.tolist() if _digest(sources[source[slot]][place[slot]]) != wanted[slot]]
        source[bad], place[bad] = 0, bad  # a power failure cut the record off: the row was not overwritten yet
        bad = [slot for slot in bad if _digest(self._rows[slot]) != wanted[slot]]
        if bad:
            what = f"{len(bad)} samples (the first in slot {bad[0]}) are not those that were saved"
            raise CheckpointError(f"{self.path} or its journal is damaged or was altered: {what}")
        parts = in_parts(kept[source[kept] > 0], CHUNK)
        moved = ((part, np.stack([sources[source[slot]][place[slot]] for slot in part])) for part in parts)
        return kept, moved, np.flatnonzero(forgotten)

    def _go_back(self, journals: list[Journal], kept: Slots, moved: Moved, gone: Slots) -> None:
        """Rewrite the file and the journals."""
        for part, rows in moved:
            self._replace(part, rows)
        for part in in_parts(np.setdiff1d(np.arange(self.capacity), kept), CHUNK):
            self._replace(part[self._rows[part].any(1)], 0)  # samples that came later, where no id would find them
        first, *later = journals
        with self._writing("; load the checkpoint again"):
            self._write_counter()  # before the journals that prove it are gone
            first.append(FORGOTTEN, gone)
            for journal in reversed(later):
                remove(journal.path)
            self._begin(first, gone)

    def _replace(self, slots: Slots, rows: Bytes | int) -> None:
        """Write rows of a checkpoint that is being restored."""
        self._write(slots, rows, self._digests[slots])
        self._write_out()
        self._map.madvise(mmap.MADV_DONTNEED)

    def _begin(self, journal: Journal, forgotten: Slots) -> Journal:
        """Start the journal of a checkpoint, from which slots are missing already."""
        journal.create(forgotten)
        self._journal, self._news, self._to_journal = journal, False, self._digests != 0
        return journal

    def _journal_of(self, generation: int) -> Journal:
        return Journal(self.path, self._header.name, generation, self._layout.row_bytes)

    def _journals(self, first: int = 0) -> list[Journal]:
        return [self._journal_of(generation) for generation in generations(self.path) if generation >= first]

    def __reduce__(self) -> NoReturn:
        raise InvalidType("a memory in a file cannot be copied or pickled; use rehearse.save and rehearse.load")


def _digest(row: Bytes) -> int:
    return int.from_bytes(blake2b(row.data, digest_size=8).digest(), "little") or 1
