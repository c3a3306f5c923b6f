"""The methods, one file each."""

from .base import Learner, Step
from .finetune import Finetune
from .generative import GenerativeReplay
from .generative_objectives import Coefficients
from .generative_retrieval import LatentRetrieval
from .replay import Replay

__all__ = ["Coefficients", "Finetune", "GenerativeReplay", "LatentRetrieval", "Learner", "Replay", "Step"]
