"""Algorithm 2: replay from a generator."""

from .learner import GenerativeReplay
from .objectives import Coefficients
from .retrieval import LatentRetrieval

__all__ = ["Coefficients", "GenerativeReplay", "LatentRetrieval"]
