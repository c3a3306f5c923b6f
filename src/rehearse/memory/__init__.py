"""What is kept of the stream."""

from .base import Memory
from .reservoir import ReservoirMemory

__all__ = ["Memory", "ReservoirMemory"]
