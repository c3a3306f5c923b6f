"""The gated classifier of the paper's generative experiments."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import check_positive
from ..losses import at_least_float32
from .dropout import Dropout


class GatedMLP(nn.Module):
    """One hidden layer whose units, like the outputs, pass a gate: x → Gated → Dropout → Gated.

        h = ReLU(W₁x + b₁) · σ(V₁x + c₁),   logits = (W₂h + b₂) · σ(V₂h + c₂)

    It is the classifier of the published generative numbers (636,020 parameters with the defaults), although the
    paper's text says that the MLP of experience replay was used. Inputs of any shape are flattened. As the outputs are
    gated too, there is no linear head that could grow.
    """

    def __init__(self, in_features: int = 784, hidden: int = 400, classes: int = 10, dropout: float = 0.2) -> None:
        """Set the sizes of the layers, and the probability of dropout.

        Args:
            in_features: Numbers in one input.
            hidden: The units of the hidden layer.
            classes: The number of outputs.
            dropout: The probability with which a hidden unit is left out in training.
        """
        super().__init__()
        check_positive(in_features=in_features, hidden=hidden, classes=classes)
        self.flatten = nn.Flatten()
        self.hidden = Gated(in_features, hidden)
        self.dropout = Dropout(dropout)
        self.output = Gated(hidden, classes)

    @property
    def first(self) -> Gated:
        """The first layer; with `rest`, for several steps on the same samples (`fast.repeated_batch`)."""
        return self.hidden

    def rest(self, activations: Tensor) -> Tensor:
        """Return the logits, given the first layer's outputs."""
        return F.glu(at_least_float32(self.output(self.dropout(_gated(activations)))), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return one logit per class."""
        return self.rest(self.hidden(self.flatten(x)))


class Gated(nn.Module):
    """Wx + b and Vx + c side by side: the weights of both are one matrix, initialized like torch's linear layers."""

    def __init__(self, before: int, after: int) -> None:
        """Set the numbers of inputs, and of outputs after the gate."""
        super().__init__()
        both = nn.Linear(before, 2 * after)
        self.weight, self.bias = both.weight, both.bias

    def forward(self, x: Tensor) -> Tensor:
        """Return both, side by side."""
        return F.linear(x, self.weight, self.bias)


def _gated(activations: Tensor) -> Tensor:
    """Return ReLU(v) · σ(g), which is ReLU(v · σ(g)); a product in bfloat16 is gated in float32, which is faster."""
    return F.relu(F.glu(at_least_float32(activations), dim=1))
