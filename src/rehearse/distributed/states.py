"""Saves of several ranks for another number of them: the stored samples are divided anew."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Tree, tree_map
from ..errors import CheckpointError, RehearseError
from ..memory.columns import OPTIONAL
from ..memory.rows import TASK
from .ranks import Ranks

State = dict[str, Any]
MALFORMED: Final = (LookupError, AttributeError, TypeError, ValueError, RuntimeError)
"""What reading a state of another form raises."""


def divided(states: list[State], new: State, ranks: Ranks | None) -> State:
    """Return the state of this rank, given those of learners that were saved by another number of ranks.

    The model and the optimizer's state are the same in all of them. Every slot of the memory is occupied in one state
    at most, so that its samples are those of all; of the occupied slots, in order, each rank gets every so many.

    Args:
        states: What each rank saved.
        new: The state of this rank's new learner: there are its random numbers, if fewer ranks have saved.
        ranks: The ranks now; None is one process.

    Raises:
        CheckpointError: If the samples are in files of their own, or the states are not what such learners save.
    """
    for state in states:
        if state.get("learner") != new["learner"]:
            raise CheckpointError(f"the state is of a {state.get('learner')}, this is a {new['learner']}")
    try:
        return _divided(states, new, *((0, 1) if ranks is None else (ranks.rank, ranks.count)))
    except RehearseError:
        raise
    except MALFORMED as problem:
        raise CheckpointError(f"the files of the ranks do not fit together: {problem!r:.200}") from problem


def _divided(states: list[State], new: State, rank: int, count: int) -> State:
    if not all(state.get("memory") and not state["memory"].get("file") for state in [*states, new]):
        raise CheckpointError("only samples in RAM are divided among another number of ranks")
    own = states[rank] if rank < len(states) else new
    task, kind, _, steps = states[0]["progress"]
    samples = sum(state["progress"][2] for state in states)
    private = {"augment": own["own"]["augment"]} if "augment" in own["own"] else {}
    memory = _memory([state["memory"] for state in states], rank, count)
    return {
        **states[0],
        "random": own["random"],
        "progress": (task, kind, samples // count + (rank < samples % count), steps),
        "memory": {**memory, "sampling": own["memory"]["sampling"]},
        "own": {**states[0]["own"], **private},
    }


def _memory(states: list[State], rank: int, count: int) -> State:
    """Return the state of a memory that holds this rank's part of the samples in all of these."""
    holders = {slot: state for state in states for slot in state["index"]["members"].tolist()}
    if len(holders) < sum(len(state["index"]["members"]) for state in states):
        raise CheckpointError("a slot of the memory is held twice in the files of the ranks")
    slots = sorted(holders)[rank::count]
    x, columns, facts = None, {}, {}
    if slots:
        x = _joined([_row(holders[slot]["x"], slot) for slot in slots], slots)
        for name in sorted({name for state in states for name in state["columns"]}):
            held = [holders[slot]["columns"].get(name) for slot in slots]
            rows = [
                _row(*((own, slot) if own is not None else (OPTIONAL[name](1), 0))) for own, slot in zip(held, slots)
            ]
            columns[name] = _joined(rows, slots)
    for name, fill in {name: fill for state in states for name, (fill, _) in state["facts"].items()}.items():
        facts[name] = fill, torch.full((slots[-1] + 1 if slots else 0,), fill)
        for slot in slots:
            if name in holders[slot]["facts"]:
                facts[name][1][slot] = holders[slot]["facts"][name][1][slot]
    tasks = columns[TASK][slots] if slots else torch.zeros(0, dtype=torch.int64)
    named = tasks.unique().tolist()
    members = [torch.tensor(slots)[tasks == task] for task in named]
    index = {
        "tasks": named,
        "counts": torch.tensor([len(part) for part in members], dtype=torch.int64),
        "members": torch.cat([*members, tasks[:0]]),
    }
    return {**states[0], "x": x, "columns": columns, "facts": facts, "index": index}


def _row(columns: Tree, slot: int) -> Tree:
    return tree_map(lambda leaf: leaf[slot], columns)


def _joined(rows: list[Tree], slots: list[int]) -> Tree:
    """Return columns with these rows in these slots, and zeros elsewhere."""

    def join(*values: Tensor) -> Tensor:
        if values[0].ndim == 1 and values[0].is_floating_point():  # lists, which may have grown with the head
            wide = max(map(len, values))
            values = tuple(F.pad(value, (0, wide - len(value)), value=torch.nan) for value in values)
        whole = values[0].new_zeros(slots[-1] + 1, *values[0].shape)
        whole[slots] = torch.stack(values)
        return whole

    return tree_map(join, *rows)
