"""Learn from a stream without forgetting: replay, and choosing what to replay by interference."""

from .batch import Batch
from .checkpoint import load, save
from .errors import RehearseError
from .learners import CodeReplay, Finetune, GenerativeReplay, Learner, Replay, Step
from .learners.strong import strong_replay
from .memory import ClassBalancedMemory, Memory, ReservoirMemory, RingMemory
from .monitor import Monitor
from .padding import Padding
from .retrieval import HighestLoss, MostInterfered, Uniform

__version__ = "0.1.0"

__all__ = [
    "Batch", "ClassBalancedMemory", "CodeReplay", "Finetune", "GenerativeReplay", "HighestLoss", "Learner", "Memory",
    "Monitor", "MostInterfered", "Padding", "RehearseError", "Replay", "ReservoirMemory", "RingMemory", "Step",
    "Uniform", "__version__", "load", "save", "strong_replay",
]  # fmt: skip
