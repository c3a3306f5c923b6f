"""What is kept of the stream."""

from .balanced import ClassBalancedMemory as ClassBalancedMemory
from .base import Memory as Memory
from .exemplars import ExemplarMemory as ExemplarMemory
from .reservoir import ReservoirMemory as ReservoirMemory
from .ring import RingMemory as RingMemory
from .task_rings import TaskRingMemory as TaskRingMemory
