"""The way back to a checkpoint: what was in a slot before it was first overwritten since."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...errors import CheckpointError
from ...files import append, flush, opened, replace_file, write_at
from ..index import Slots

Bytes = NDArray[np.uint8]

MAGIC: Final = b"REHUNDO1"
ROW = np.uint64(1)  # a kind of record: the row that was there
FORGOTTEN = np.uint64(2)  # a row that was there and must not come back
ROW_AT: Final = 16  # where the row begins in a record
GOLDEN: Final = 0x9E3779B97F4A7C15  # 2⁶⁴ divided by the golden ratio


def journal_path(rows: Path, generation: int) -> Path:
    """Return the name of a journal."""
    return rows.with_name(f"{rows.name}.{generation}.undo")


def generations(rows: Path) -> list[int]:
    """Return the checkpoints that the file of rows can go back to, oldest first."""
    named = (re.fullmatch(rf"{re.escape(rows.name)}\.(\d+)\.undo", path.name) for path in rows.parent.glob("*.undo"))
    return sorted(int(match[1]) for match in named if match)


class Journal:
    """The undo records of one checkpoint.

    They are of one size, on the disk before the slot is overwritten there, and never changed except to forget. What
    follows the last complete record was cut off by a crash: its slot was not overwritten yet, and it does not count.
    """

    def __init__(self, rows: Path, file: bytes, generation: int, row_bytes: int) -> None:
        """Name the journal of a file of rows."""
        self.path, self.generation = journal_path(rows, generation), generation
        self._record = np.dtype([("head", "<u8"), ("slot", "<i8"), ("row", "u1", (row_bytes,))])
        head = struct.pack("<8s16sQI", MAGIC, file, generation, row_bytes)
        self._header = head + struct.pack("<I", zlib.crc32(head))
        self._salt = zlib.crc32(self._header)
        self._size = 0

    def create(self, forgotten: Slots) -> None:
        """Write a journal of slots that are to stay empty, on the disk; nothing was overwritten yet."""
        content = self._header + self._records(FORGOTTEN, forgotten, 0)
        replace_file(self.path, content, mode=0o600)
        self._size = len(content)

    def append(self, kind: np.uint64, slots: Slots, rows: Bytes | int = 0) -> None:
        """Write the records; after an error the next call overwrites what there is of them."""
        self._size = append(self.path, self._records(kind, slots, rows), self._size)

    def records(self, capacity: int) -> Any:
        """Return the complete records, mapped; damage is refused."""
        try:
            content = np.memmap(self.path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as problem:  # a ValueError if it is empty
            raise CheckpointError(f"cannot read {self.path}: {problem}") from problem
        start = len(self._header)
        if content[:start].tobytes() != self._header:
            raise CheckpointError(f"{self.path} is damaged or belongs to another memory")
        count = (len(content) - start) // self._record.itemsize
        records = content[start : start + count * self._record.itemsize].view(self._record)
        slots, kinds = records["slot"], kinds_of(records)
        sound = (slots >= 0) & (slots < capacity) & (records["head"] == self._heads(kinds, slots))
        complete = records[: count if sound.all() else int(sound.argmin())]
        self._size = start + complete.nbytes
        return complete

    def forget(self, records: Any, which: Slots) -> None:
        """Overwrite the rows of these records, of all; the slots stay empty after going back."""
        heads = self._heads(FORGOTTEN, records["slot"][which]).astype("<u8")
        places = (len(self._header) + which * self._record.itemsize).tolist()
        with opened(self.path) as descriptor:
            for place, head in zip(places, heads, strict=True):
                write_at(descriptor, head.tobytes(), place)  # one word: old or new, never half
            flush(descriptor)  # before the rows: a row that is gone must be known to be forgotten
            for place in places:
                write_at(descriptor, bytes(self._record["row"].itemsize), place + ROW_AT)
        self.append(ROW, which[:0])  # nothing: this cuts off what a write that failed has left, and syncs

    def _records(self, kind: np.uint64, slots: Slots, rows: Bytes | int) -> bytes:
        records = np.zeros(len(slots), dtype=self._record)
        records["slot"], records["row"] = slots, rows
        records["head"] = self._heads(kind, slots)
        return records.tobytes()

    def _heads(self, kinds: NDArray[np.uint64] | np.uint64, slots: Slots) -> NDArray[np.uint64]:
        """Return the kind in the low half of a word, and in the high half a checksum of kind, slot and journal.

        (Fibonacci hashing: any changed bit changes the upper half of the product. The row itself is checked against
        the checkpoint.)
        """
        mixed = (slots.astype(np.uint64) ^ (kinds << np.uint64(48)) ^ np.uint64(self._salt)) * np.uint64(GOLDEN)
        return kinds | (mixed & np.uint64(0xFFFFFFFF00000000))


def kinds_of(records: Any) -> NDArray[np.uint64]:
    """Return the kind of each record."""
    return np.asarray(records["head"] & np.uint64(0xFFFFFFFF))
