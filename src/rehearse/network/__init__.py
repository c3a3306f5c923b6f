"""Network: a model with its optimizer; and the only place that imports `fast`."""

from .network import NamedGradient as NamedGradient
from .network import Network as Network
from .network import Tensors as Tensors
from .network import VirtualStep as VirtualStep
from .network import finite as finite
from .network import is_plain_sgd as is_plain_sgd
from .network import prepare_unit as prepare_unit
from .network import rate as rate
from .network import watched as watched
