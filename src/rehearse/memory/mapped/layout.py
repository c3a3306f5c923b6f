"""The form of a file of samples: its header, and how a sample lies in a row."""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ...batch import Tree, tree_map
from ...errors import CheckpointError
from .journal import Bytes

MAGIC: Final = b"REHROWS\0"
VERSION: Final = 1
FIXED: Final = struct.Struct("<8sIIQ16sQ")  # magic, version, length of the layout's text, capacity, name, checksum
COUNTER: Final = struct.Struct("<QQI")  # the last generation given out, the last confirmed, a checksum; rewritten
PAGE: Final = 4096
WORD: Final = 8  # bytes; every column starts at a multiple, so that any dtype can be viewed in place


@dataclass
class Header:
    """What comes before the rows: the layout, the file's own name, and the count of its checkpoints."""

    layout: str
    capacity: int
    name: bytes
    last: int = 0  # of all checkpoints that were ever tried
    confirmed: int = 0  # the last that is known to be safe

    @property
    def size(self) -> int:
        """Where the rows begin."""
        return -(-(FIXED.size + COUNTER.size + len(self.layout.encode())) // PAGE) * PAGE

    def content(self) -> bytes:
        """Return the header as bytes."""
        text = self.layout.encode()
        checksum = zlib.crc32(text + self.name + struct.pack("<IQ", VERSION, self.capacity))
        fixed = FIXED.pack(MAGIC, VERSION, len(text), self.capacity, self.name, checksum)
        return fixed + self.counter() + text

    def counter(self) -> bytes:
        """Return the count of checkpoints as bytes, which are at ``FIXED.size``."""
        return COUNTER.pack(self.last, self.confirmed, zlib.crc32(struct.pack("<QQ", self.last, self.confirmed)))

    @classmethod
    def read(cls, descriptor: int, path: Path) -> Header:
        """Read the header of an open file, or refuse it."""
        content = os.pread(descriptor, FIXED.size + COUNTER.size, 0)
        if len(content) < FIXED.size + COUNTER.size or content[: len(MAGIC)] != MAGIC:
            raise CheckpointError(f"{path} is not a file of a memory's samples")
        _, version, length, capacity, name, _ = FIXED.unpack_from(content)
        last, confirmed, _ = COUNTER.unpack_from(content, FIXED.size)
        if version > VERSION:
            raise CheckpointError(f"{path} has format version {version}, written by a newer rehearse")
        text = os.pread(descriptor, length, FIXED.size + COUNTER.size)
        header = cls(text.decode(errors="replace"), capacity, name, last, confirmed)
        if header.content() != content + text:
            raise CheckpointError(f"the header of {path} is damaged")
        return header


class Layout:
    """Dtype, shape and offset of every column; a row is padded to whole words.

    ``text`` describes it whole: what a file's header says.
    """

    def __init__(self, text: str) -> None:
        """Read a description."""
        self.text = text
        described = json.loads(text)
        self.row_bytes = int(described["row_bytes"])
        self._x, self._columns = described["x"], described["columns"]

    @classmethod
    def of(cls, x: Tree, columns: dict[str, Tensor]) -> Layout:
        """Return the layout for samples that look like these."""
        offset = 0

        def leaf(samples: Tensor) -> list[Any]:
            nonlocal offset
            place = [str(samples.dtype).removeprefix("torch."), list(samples.shape[1:]), offset]
            offset += -(-samples[0].numel() * samples.element_size() // WORD) * WORD
            return place

        described = _describe(tree_map(leaf, x)), {n: _describe(tree_map(leaf, part)) for n, part in columns.items()}
        return cls(json.dumps({"row_bytes": offset, "x": described[0], "columns": described[1]}, sort_keys=True))

    def views(self, rows: Bytes) -> tuple[Tree, dict[str, Tensor]]:
        """Return the columns of rows given as bytes, without copying."""
        raw = torch.from_numpy(rows)

        def leaf(dtype_name: str, shape: list[int], offset: int) -> Tensor:
            dtype: torch.dtype = getattr(torch, dtype_name)
            size = torch.Size(shape).numel() * dtype.itemsize
            part = raw[:, offset : offset + size]
            values = part.view(dtype) if size else torch.empty(len(raw), 0, dtype=dtype)
            return values.view(len(raw), *shape)

        return _build(self._x, leaf), {name: _build(part, leaf) for name, part in self._columns.items()}


# JSON has no tuples, and a leaf is a list itself: every node says what it is.


def _describe(tree: Any) -> dict[str, Any]:
    if isinstance(tree, tuple):
        return {"tuple": [_describe(part) for part in tree]}
    if isinstance(tree, dict):
        return {"dict": [[key, _describe(part)] for key, part in tree.items()]}
    return {"leaf": tree}


def _build(node: dict[str, Any], leaf: Any) -> Tree:
    if "tuple" in node:
        return tuple(_build(part, leaf) for part in node["tuple"])
    if "dict" in node:
        return {key: _build(part, leaf) for key, part in node["dict"]}
    return leaf(*node["leaf"])
