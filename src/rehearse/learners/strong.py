"""Replay done well, for people who do not want to choose its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import torch
from torch import nn

from ..checks import check_choice
from ..memory import Memory
from ..retrieval import Uniform
from ..transforms import Chain, Crop, Flip
from .replay import Replay

Inputs = Literal["images", "vectors"]
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "images": {"budget": 30, "augment": Chain(Crop(), Flip()), "predict_by": "nearest-mean"},
    "vectors": {"budget": 50, "updates": 2},
}
"""Chosen on validation splits; see docs/log.md."""
SHARED: Final[Mapping[str, Any]] = {"exclude_current_task": False, "average": 0.01, "batchnorm": "joint"}


def strong_replay(
    model: nn.Module, optimizer: torch.optim.Optimizer, memory: Memory, kind: Inputs = "images", **overrides: Any
) -> Replay:
    """Return `Replay` with settings that work well; its ``repr`` shows them.

    Incoming samples pass together with several times as many stored ones, drawn at random from all tasks; averaged
    weights predict. Images are padded, cropped and mirrored in training, and classified by the nearest mean.

    Args:
        model: Any module; for images one that ends in a linear layer.
        optimizer: Any optimizer of its parameters except LBFGS.
        memory: The store.
        kind: ``images`` of objects and scenes (for digits and letters override ``augment``: `Crop(1, fill=0)`), or
            ``vectors`` for everything else.
        overrides: Arguments of `Replay`.
    """
    check_choice(get_args(Inputs), kind=kind)
    return Replay(model, optimizer, memory, **{"retrieval": Uniform(), **SHARED, **SETTINGS[kind], **overrides})
