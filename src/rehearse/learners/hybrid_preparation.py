"""What the autoencoder's training has made of a task, for another learner that would make the same of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..errors import CheckpointError
from .hybrid_codes import Form

if TYPE_CHECKING:
    from .hybrid import AutoencoderReplay


def preparation(learner: AutoencoderReplay) -> dict[str, Any] | None:
    """The trained autoencoder and the codes as it reads them, once a task is prepared."""
    if learner._prepared_task is None or learner._input is None:
        return None
    stored = learner.memory.get(learner.memory.slots()) if len(learner.memory) else None
    return {
        "training": learner.training.state_dict(),
        "codec": learner.codec.state_dict(),
        "stored": None if stored is None else {"slots": stored.slots, "y": stored.y, "codes": stored.x},
        "begun": learner._begun,
        "input": tuple(learner._input),
    }


def take_preparation(learner: AutoencoderReplay, prepared: dict[str, Any]) -> None:
    """As if the learner had trained. One that has begun to, or that holds other rows, is refused and stays as it is."""
    stored, memory = prepared["stored"], learner.memory
    task, rows, steps = prepared["begun"]
    if learner._begun is not None and learner._begun[0] == task:
        raise CheckpointError(f"task {task} has been begun")
    slots = memory.slots()
    alike = len(slots) == 0 if stored is None else torch.equal(stored["slots"], slots)
    if not alike or (stored is not None and not torch.equal(stored["y"], memory.get(slots).y)):
        raise CheckpointError("this was prepared with other memories")
    with learner.training.restored():
        learner.training.load_state_dict(prepared["training"])
        codec = learner.codec.renewed(learner.autoencoder)
        codec.load_state_dict(prepared["codec"])
        if stored is not None:
            memory.rewrite(slots, stored["codes"])
    learner.codec, learner._begun, learner._prepared_task = codec, (task, rows, steps), task
    learner._input = Form(prepared["input"][0], tuple(prepared["input"][1]))
