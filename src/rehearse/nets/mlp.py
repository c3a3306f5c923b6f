"""The multilayer perceptron of the paper's MNIST experiments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from ..checks import check_positive


class MLP(nn.Sequential):
    """Fully connected layers with ReLU between them, ``head`` the last: x → Linear → ReLU → … → Linear.

    The defaults are those of Split and Permuted MNIST in Aljundi et al. 2019, "Online Continual Learning with
    Maximally Interfered Retrieval" (appendix: two hidden layers of 400; 478,410 parameters). Inputs of any
    shape are flattened, so images need no reshaping. Initialization is torch's own.
    """

    def __init__(self, in_features: int = 784, hidden: Sequence[int] = (400, 400), classes: int = 10) -> None:
        """Set the sizes of the layers.

        Args:
            in_features: Numbers in one input.
            hidden: The units of each hidden layer.
            classes: The number of outputs.
        """
        widths = [in_features, *hidden]
        check_positive(in_features=in_features, classes=classes)
        for units in widths[1:]:
            check_positive(hidden=units)
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(OrderedDict(body=nn.Sequential(*layers), head=nn.Linear(widths[-1], classes)))
