"""How a row lies in a file: every column at an offset, the row padded to whole words."""

from __future__ import annotations

import json
from typing import Any, Final

import torch
from torch import Tensor

from ...batch import Tree, tree_map

WORD: Final = 8  # bytes; every column starts at a multiple, so that any dtype can be viewed in place
DTYPES: Final = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
    )
}


class Layout:
    """Dtype, shape and offset of every column. ``text`` describes it whole: what a file's header says."""

    def __init__(self, text: str) -> None:
        self.text = text
        described = json.loads(text)
        self.row_bytes = int(described["row_bytes"])
        self._x, self._columns = described["x"], described["columns"]

    @classmethod
    def of(cls, x: Tree, columns: dict[str, Tensor]) -> Layout:
        """The layout for rows that look like these."""
        offset = 0

        def leaf(rows: Tensor) -> list[Any]:
            nonlocal offset
            place = [str(rows.dtype).removeprefix("torch."), list(rows.shape[1:]), offset]
            offset += -(-rows[0].numel() * rows.element_size() // WORD) * WORD
            return place

        described = {
            "x": _describe(tree_map(leaf, x)),
            "columns": {name: {"leaf": leaf(column)} for name, column in columns.items()},
        }
        return cls(json.dumps({"row_bytes": offset, **described}, sort_keys=True))

    def views(self, raw: Tensor) -> tuple[Tree, dict[str, Tensor]]:
        """The columns of rows given as bytes, without copying."""

        def leaf(dtype_name: str, shape: list[int], offset: int) -> Tensor:
            dtype = DTYPES[dtype_name]
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
