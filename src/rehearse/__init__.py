"""Learn from a stream without forgetting: replay, and choosing what to replay by interference."""

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .batch import Batch
from .checkpoint import load, save
from .errors import RehearseError
from .learners import AGEM, GEM, CodeReplay, Finetune, GenerativeReplay, ICaRL, Learner, Replay, Step
from .learners.strong import strong_replay
from .losses import AsymmetricCrossEntropy, DarkExperience
from .memory import ClassBalancedMemory, Memory, ReservoirMemory, RingMemory, TaskRingMemory
from .monitor import Monitor
from .retrieval import HighestLoss, MostInterfered, Uniform
from .transforms import Padding, RunningScaler

__version__ = "0.1.0"

__all__ = [
    "AGEM", "GEM", "AsymmetricCrossEntropy", "Batch", "ClassBalancedMemory", "CodeReplay", "DarkExperience", "Finetune",
    "GenerativeReplay", "HighestLoss", "ICaRL", "Learner", "Memory", "Monitor", "MostInterfered", "Padding",
    "RehearseError", "Replay", "ReservoirMemory", "RingMemory", "RunningScaler", "Step", "TaskRingMemory", "Uniform",
    "__version__", "load", "save", "strong_replay",
]  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a module of the library when it is first asked for; of one of the laboratory say where it is."""
        if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
            return importlib.import_module(f"{__name__}.{name}")
        of_lab = not name.startswith("_") and find_spec(f"{__name__}.lab.{name}")
        where = f"; it is rehearse.lab.{name}, which is imported by that name" if of_lab else ""
        raise AttributeError(f"module 'rehearse' has no attribute {name!r}{where}")
