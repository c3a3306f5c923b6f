"""The paper's networks. Each has ``features(x)``, what its last layer sees, and ``head``, that last layer."""

from rehearse.nets.mlp import MLP
from rehearse.nets.resnet import ReducedResNet18

__all__ = ["MLP", "ReducedResNet18"]
