"""The methods, one file each."""

from .agem import AGEM
from .base import Learner
from .finetune import Finetune
from .gem import GEM
from .generative import GenerativeReplay
from .generative_objectives import Coefficients
from .generative_retrieval import LatentRetrieval
from .hybrid import AutoencoderReplay
from .hybrid_search import CodeSearch
from .icarl import ICaRL
from .replay import Replay
from .step import Step

__all__ = [
    "AGEM",
    "GEM",
    "AutoencoderReplay",
    "CodeSearch",
    "Coefficients",
    "Finetune",
    "GenerativeReplay",
    "ICaRL",
    "LatentRetrieval",
    "Learner",
    "Replay",
    "Step",
]
