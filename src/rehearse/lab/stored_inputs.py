"""Checkpoints without stored inputs: the stream gives them again, by the positions at which they arrived."""

from __future__ import annotations

import zlib
from typing import Any, Final

import torch
from torch import Tensor

from ..batch import Tree, tree_leaves, tree_map
from ..errors import CheckpointError
from ..learners import AGEM, GEM, Learner, Replay
from ..learners.gdumb import GDumb
from ..learners.scr import SCR
from ..memory.rows import ARRIVED
from .streams import Stream

OFFER_ALL: Final = (AGEM, GDumb, GEM, Replay, SCR)
"""Learners that offer every sample of the stream once to their memory, as it is."""


def without_inputs(state: dict[str, Any], learner: Learner) -> dict[str, Any]:
    """Return a learner's state without the inputs in its memory, if they are the stream's; a checksum remains."""
    memory = learner.memory
    if not isinstance(learner, OFFER_ALL) or memory is None or state["memory"]["x"] is None:
        return state
    if memory.seen != learner.samples_observed:  # some are from elsewhere
        return state
    x = state["memory"]["x"]
    left_out = {"slots": memory.slots(), "rows": len(tree_leaves(x)[0]), "checksum": _checksum(x)}
    return {**state, "memory": {**state["memory"], "x": None}, "left_out": left_out}


def with_inputs(state: dict[str, Any], stream: Stream) -> dict[str, Any]:
    """Return what `without_inputs` was given, with the inputs from the stream.

    Raises:
        CheckpointError: If the stream does not give the same inputs again.
    """
    if "left_out" not in state:
        return state
    whole = dict(state)
    left_out, memory = whole.pop("left_out"), state["memory"]
    x = _inputs(stream, left_out["slots"], memory["columns"][ARRIVED], left_out["rows"])
    if _checksum(x) != left_out["checksum"]:
        raise CheckpointError(f"the stream {stream.name} gives other samples than when the checkpoint was written")
    return whole | {"memory": {**memory, "x": x}}


def _inputs(stream: Stream, slots: Tensor, arrived: Tensor, rows: int) -> Tree:
    """Return the inputs that arrived at these positions of the stream in their slots; zeros in the others."""
    x, first = tree_map(lambda leaf: leaf.new_zeros(rows, *leaf.shape[1:]), next(stream.batches()).x), 0
    for batch in stream.batches():
        at = arrived[slots] - first
        here = (at >= 0) & (at < len(batch))
        tree_map(lambda held, leaf, here=here, at=at: held.index_copy_(0, slots[here], leaf[at[here]]), x, batch.x)
        first += len(batch)
        if not bool((at >= len(batch)).any()):
            break
    return x


def _checksum(x: Tree) -> int:
    checksum = 0
    for leaf in tree_leaves(x):
        checksum = zlib.crc32(leaf.contiguous().view(torch.uint8).numpy(), checksum)
    return checksum
