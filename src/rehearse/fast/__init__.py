"""Everything that exists for speed alone. Deleting this folder leaves the same library, slower."""

from torch import nn

from .dense import dense
from .kernels import kernels as kernels
from .repeated_batch import LinearFirst, repeated_batch

ENGINES = {nn.Sequential: dense}
"""By kind of model: a function of the plain engine and the inputs that returns a faster engine, or None."""
DESCENTS = {LinearFirst: repeated_batch}
"""By kind of model: a function of the network and the inputs that returns a faster descent, or None."""
