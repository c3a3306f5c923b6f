"""What the autoencoder's training starts from, and what it makes of a task: for learners that would make the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError
from .hybrid_codes import Form

if TYPE_CHECKING:
    from .hybrid import AutoencoderReplay


def before(learner: AutoencoderReplay, task: int) -> dict[str, Any] | None:
    """All that has a part in the training for this task but the task's rows; None where it has begun."""
    if learner._begun is not None and learner._begun[0] == task:
        return None
    return {
        "training": learner.training.state_dict(),
        "codec": learner.codec.state_dict(),
        "memory": _stored(learner),
        "random": learner.random.get(),
    }


def after(learner: AutoencoderReplay) -> dict[str, Any]:
    """The trained autoencoder and the codes as it reads them."""
    return {
        "training": learner.training.state_dict(),
        "codec": learner.codec.state_dict(),
        "codes": _stored(learner).get("codes"),
        "random": learner.random.get(),
        "begun": learner._begun,
        "input": None if learner._input is None else tuple(learner._input),
    }


def take(learner: AutoencoderReplay, prepared: dict[str, Any]) -> None:
    """As if the learner had trained; what does not fit is refused, and nothing changed."""
    try:
        (task, rows, steps), form = prepared["begun"], Form(*prepared["input"])
        codec = learner.codec.renewed(learner.autoencoder)
        codec.load_state_dict(prepared["codec"])
        slots, random = learner.memory.slots(), learner.random.get()
        try:
            learner.random.set(prepared["random"])
            with learner.random, learner.training.restored():  # to enter a random state that is none is refused
                learner.training.load_state_dict(prepared["training"])
                if len(slots):
                    learner.memory.rewrite(slots, prepared["codes"])
        except BaseException:
            learner.random.set(random)
            raise
    except Exception as problem:
        raise CheckpointError(f"this preparation does not fit: {problem}") from problem
    learner.codec, learner._begun, learner._prepared_task, learner._input = codec, (task, rows, steps), task, form


def _stored(learner: AutoencoderReplay) -> dict[str, Any]:
    slots = learner.memory.slots()
    if not len(slots):
        return {}
    rows = learner.memory.get(slots)
    return {"slots": slots, "y": rows.y, "task": rows.task, "codes": rows.x}
