"""Algorithm 3: replay from a memory of compressed codes."""

from .learner import CodeReplay
from .search import CodeSearch

__all__ = ["CodeReplay", "CodeSearch"]
