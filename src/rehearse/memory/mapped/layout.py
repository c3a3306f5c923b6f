"""How a sample lies in a row of the file: every column at an offset, the row padded to whole words."""

from __future__ import annotations

import json
from typing import Any, Final

import torch
from torch import Tensor

from ...batch import Tree, tree_map
from .journal import Bytes

WORD: Final = 8  # bytes; every column starts at a multiple, so that any dtype can be viewed in place


class Layout:
    """Dtype, shape and offset of every column. ``text`` describes it whole: what a file's header says."""

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
