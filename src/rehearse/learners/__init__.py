"""The methods, one file or folder each."""

from ..batch import Progress, Step
from .agem import AGEM
from .base import Learner
from .codes import CodeReplay, CodeSearch
from .finetune import Finetune
from .gem import GEM
from .generative import Coefficients, GenerativeReplay, LatentRetrieval
from .icarl import ICaRL
from .replay import Replay

__all__ = [
    "AGEM",
    "GEM",
    "CodeReplay",
    "CodeSearch",
    "Coefficients",
    "Finetune",
    "GenerativeReplay",
    "ICaRL",
    "LatentRetrieval",
    "Learner",
    "Progress",
    "Replay",
    "Step",
]
