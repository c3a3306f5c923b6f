"""Retrievals: which stored samples to replay, one file each. To write one, see `Retrieval`."""

from .base import Retrieval as Retrieval
from .base import Retrieved as Retrieved
from .highest_loss import HighestLoss as HighestLoss
from .interfered import MostInterfered as MostInterfered
from .uniform import Uniform as Uniform
