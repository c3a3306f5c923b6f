"""The way back to a checkpoint: what was in a slot before it was first overwritten since."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...errors import CheckpointError
from .header import opened

Bytes = NDArray[np.uint8]

MAGIC: Final = b"REHUNDO1"
HEADER: Final = struct.Struct("<8s16sQII")  # magic, file, generation, bytes of a row, checksum
ROW, FORGOTTEN = 1, 2  # kinds of record: the row that was there; a row that was there and must not come back
GOLDEN: Final = 0x9E3779B97F4A7C15  # 2⁶⁴ divided by the golden ratio
CHUNK: Final = 4096  # records handled at once


def journal_path(rows: Path, generation: int) -> Path:
    """Return the name of a journal."""
    return rows.with_name(f"{rows.name}.{generation}.undo")


def generations(rows: Path) -> list[int]:
    """Return the checkpoints that the file of rows can go back to, oldest first."""
    names = (path.name for path in rows.parent.iterdir()) if rows.parent.is_dir() else ()
    numbers = (
        name[len(rows.name) + 1 : -5] for name in names if name.startswith(f"{rows.name}.") and name.endswith(".undo")
    )
    return sorted(int(number) for number in numbers if number.isdecimal())


class Journal:
    """The undo records of one checkpoint.

    They are of one size, appended before the slot is overwritten, and never changed except to forget. A record that
    was cut off by a crash is one whose slot was not overwritten yet; it does not count.
    """

    def __init__(self, rows: Path, file: bytes, generation: int, row_bytes: int) -> None:
        """Name the journal of a file of rows."""
        self.path, self.generation = journal_path(rows, generation), generation
        self._record = np.dtype([("head", "<u8"), ("slot", "<i8"), ("row", "u1", (row_bytes,))])
        head = struct.pack("<8s16sQI", MAGIC, file, generation, row_bytes)
        self._header = head + struct.pack("<I", zlib.crc32(head))
        self._salt = zlib.crc32(self._header)

    def create(self, forgotten: NDArray[np.int64] | tuple[()] = ()) -> None:
        """Write a journal of slots that are to stay empty, on the disk; nothing was overwritten yet."""
        temporary = self.path.with_suffix(".new")
        with open(temporary, "wb") as file:
            file.write(self._header + self._records(FORGOTTEN, np.asarray(forgotten, np.int64)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)

    def append(self, kind: int, slots: NDArray[np.int64], rows: Bytes | None = None) -> None:
        """Write the records, or, if the disk is full, nothing."""
        content = memoryview(self._records(kind, slots, rows))
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            try:
                while content:
                    content = content[os.write(descriptor, content) :]
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)

    def records(self, capacity: int, *, writable: bool = False) -> Any:
        """Return the complete records, mapped; damage is refused."""
        try:
            size = self.path.stat().st_size
            with open(self.path, "rb") as file:
                header = file.read(HEADER.size)
        except OSError as problem:
            raise CheckpointError(f"cannot read {self.path}: {problem.strerror}") from problem
        if header != self._header:
            raise CheckpointError(f"{self.path} is damaged or belongs to another memory")
        count = (size - HEADER.size) // self._record.itemsize
        if not count:
            return np.empty(0, dtype=self._record)
        mode = "r+" if writable else "r"
        records = np.memmap(self.path, dtype=self._record, mode=mode, offset=HEADER.size, shape=(count,))  # type: ignore[call-overload]
        slots, kinds = records["slot"], kinds_of(records)
        sound = (slots >= 0) & (slots < capacity) & (records["head"] == self._heads(kinds, slots))
        if not sound.all():
            raise CheckpointError(f"{self.path} is damaged: {int((~sound).sum())} of its {count} records")
        return records

    def chunks(self, capacity: int) -> Iterator[Any]:
        """Yield all records, some at a time, writable in place."""
        records = self.records(capacity, writable=True)
        for start in range(0, len(records), CHUNK):
            yield records[start : start + CHUNK]

    def forget(self, records: Any, which: NDArray[np.int64]) -> None:
        """Overwrite the rows of these records; the slots stay empty after going back."""
        kinds = np.full(len(which), FORGOTTEN, dtype=np.uint64)
        records["head"][which] = self._heads(kinds, records["slot"][which])  # one word each: old or new, never half
        records["row"][which] = 0

    def sync(self) -> None:
        """Write everything to the disk."""
        with opened(self.path) as descriptor:
            os.fsync(descriptor)

    def delete(self) -> None:
        """Delete the journal."""
        self.path.unlink(missing_ok=True)

    def _records(self, kind: int, slots: NDArray[np.int64], rows: Bytes | None = None) -> bytes:
        records = np.zeros(len(slots), dtype=self._record)
        records["slot"], records["row"] = slots, 0 if rows is None else rows
        records["head"] = self._heads(np.full(len(slots), kind, dtype=np.uint64), slots)
        return records.tobytes()

    def _heads(self, kinds: NDArray[np.uint64], slots: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the kind in the low half of a word, and in the high half a checksum of kind, slot and journal.

        (Fibonacci hashing: any changed bit changes the upper half of the product. The row itself is checked against
        the checkpoint.)
        """
        mixed = (slots.astype(np.uint64) ^ (kinds << np.uint64(48)) ^ np.uint64(self._salt)) * np.uint64(GOLDEN)
        return kinds | (mixed & np.uint64(0xFFFFFFFF00000000))


def kinds_of(records: Any) -> NDArray[np.uint64]:
    """Return the kind of each record."""
    return np.asarray(records["head"] & np.uint64(0xFFFFFFFF))
