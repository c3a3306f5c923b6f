"""The methods, one file or folder each."""

from ..batch import Progress as Progress
from ..batch import Step as Step
from .agem import AGEM as AGEM
from .base import Learner as Learner
from .codes.learner import CodeReplay as CodeReplay
from .codes.search import CodeSearch as CodeSearch
from .finetune import Finetune as Finetune
from .gem import GEM as GEM
from .generative.learner import GenerativeReplay as GenerativeReplay
from .generative.objectives import Coefficients as Coefficients
from .generative.retrieval import LatentRetrieval as LatentRetrieval
from .icarl import ICaRL as ICaRL
from .replay import Replay as Replay
