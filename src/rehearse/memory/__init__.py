"""What is kept of the stream."""

from .balanced import ClassBalancedMemory
from .base import Memory
from .exemplars import ExemplarMemory
from .reservoir import ReservoirMemory
from .ring import RingMemory
from .task_rings import TaskRingMemory

__all__ = ["ClassBalancedMemory", "ExemplarMemory", "Memory", "ReservoirMemory", "RingMemory", "TaskRingMemory"]
