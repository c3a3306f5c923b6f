"""What a saved memory must look like."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batch import DTYPES, Batch, checked_batch, pick, tree_leaves, tree_map
from ..checks import Form, anything, check, count, optional
from ..errors import CheckpointError
from .columns import OPTIONAL
from .index import TaskIndex
from .rows import ARRIVED, TARGET, TASK, as_batch


def saved_form(capacity: int) -> Form:
    """Return the form of a state; what is inside of its parts is for others to check."""
    digests = torch.empty(capacity, dtype=torch.int64)
    file = optional({"file": str, "generation": count, "layout": str, "digests": digests})
    plain = {"policy": str, "capacity": count, "seen": count, "insertion": str, "sampling": str}
    return plain | dict.fromkeys(("columns", "facts", "index", "own"), dict) | {"x": anything, "file": file}


def saved_samples(state: dict[str, Any], index: TaskIndex) -> Batch | None:
    """Return the samples in a state, if there are any in RAM; refuse those that could not have been stored."""
    x, columns, slots = state["x"], state["columns"], index.occupied()
    used = int(slots[-1]) + 1 if len(slots) else 0
    if len(slots) > state["seen"] or (x is None and (columns or (used and state["file"] is None))):
        raise CheckpointError(f"the saved memory lacks the samples of its {len(slots)} slots")
    if x is None:
        return None
    number = torch.empty(used, dtype=torch.int64)
    own = {name: OPTIONAL[name](used) for name in OPTIONAL.keys() & columns.keys()} | {TASK: number, ARRIVED: number}
    check(columns, dict.fromkeys(columns, Tensor) | own | {TARGET: anything}, "the saved memory's columns")
    leaves = tree_leaves((x, columns))
    if not all(isinstance(leaf, Tensor) and leaf.dtype in DTYPES and leaf.shape[:1] == (used,) for leaf in leaves):
        raise CheckpointError(f"the saved memory's columns are not tensors of {used} real numbers or lists of them")
    if not used:
        return None
    where = torch.from_numpy(slots)
    samples = as_batch(*tree_map(lambda leaf: pick(leaf, where), (x, columns)))
    checked_batch(samples.x, samples.y)
    if not torch.equal(columns[TASK][where], torch.from_numpy(index.task[slots])):
        raise CheckpointError("the saved memory's index has other tasks than its samples")
    return samples


def generator_state(text: str) -> dict[str, Any]:
    """Return the state of a generator; whatever is none raises."""
    generator = np.random.PCG64()
    generator.state = json.loads(text)
    return dict(generator.state)
