"""The methods, one file each."""

from .base import Learner, Step
from .finetune import Finetune
from .replay import Replay

__all__ = ["Finetune", "Learner", "Replay", "Step"]
