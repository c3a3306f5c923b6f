"""The gated classifier of the paper's generative experiments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..chain import stopped
from ..errors import InvalidInput
from ..losses import in_full
from .dropout import Dropout

_through_gates = torch.ops.aten.glu_backward.default


class GatedMLP(nn.Module):
    """One hidden layer whose units, like the outputs, pass a gate: x → Gated → Dropout → Gated.

        h = ReLU(W₁x + b₁) · σ(V₁x + c₁),   logits = (W₂h + b₂) · σ(V₂h + c₂)

    It is the classifier with which the published generative numbers were made (636,020 parameters with the
    defaults), where the paper's text says that the MLP of experience replay was kept. Inputs of any shape are
    flattened. As the outputs are gated too, there is no linear head to split off or to grow.
    """

    def __init__(self, in_features: int = 784, hidden: int = 400, classes: int = 10, dropout: float = 0.2) -> None:
        super().__init__()
        if min(in_features, hidden, classes) < 1:
            raise InvalidInput(
                "every layer needs at least one unit; got "
                f"in_features={in_features}, hidden={hidden}, classes={classes}"
            )
        self.flatten = nn.Flatten()
        self.hidden = Gated(in_features, hidden)
        self.dropout = Dropout(dropout)
        self.output = Gated(hidden, classes)

    @property
    def first(self) -> Gated:
        """The layer that the inputs meet first; with `rest`, for whoever steps several times on the same rows."""
        return self.hidden

    def rest(self, activations: Tensor) -> Tensor:
        """From what the first layer's weights make of the inputs to the logits."""
        return F.glu(in_full(self.output(self.dropout(_gated(activations)))), dim=1)

    def rest_by_hand(self) -> Callable[[Tensor], RestPass] | None:
        """What passes activations as `rest` does, for a gradient by hand; None where a part is not what it was made
        as."""
        plain = type(self.dropout) is Dropout and type(self.output) is Gated and type(self.hidden) is Gated
        names = {f"{layer}.{part}" for layer in ("hidden", "output") for part in ("weight", "bias")}
        if not plain or {name for name, _ in self.named_parameters()} != names:  # one that is shared has one name alone
            return None
        return partial(RestPass, self)

    def features(self, x: Tensor) -> Tensor:
        """The hidden layer, one row an example."""
        return _gated(self.hidden(self.flatten(x)))

    def forward(self, x: Tensor) -> Tensor:
        """One logit a class."""
        return self.rest(self.hidden(self.flatten(x)))


class RestPass:
    """`GatedMLP.rest` of some rows, with the random numbers that it draws, and what its gradient needs.

    With a = (v, g) and t = v σ(g): Δv = Δt σ(g), Δg = Δt t (1 − σ(g)), which torch has as one function.
    """

    @torch.no_grad()
    def __init__(self, model: GatedMLP, activations: Tensor) -> None:
        self._activations, self._weight = activations, model.output.weight
        self._hidden = F.glu(activations, dim=1).relu_()
        self._kept = model.dropout.mask(self._hidden)
        self._passed_on = self._hidden if self._kept is None else self._hidden * self._kept
        self._outputs = model.output(self._passed_on)
        self.scores = F.glu(self._outputs, dim=1)

    @torch.no_grad()
    def gradient(self, of_scores: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Δ of the activations, and the gradient of the parameters by name, from that of the scores."""
        of_outputs = _through_gates(of_scores, self._outputs, 1)
        gradient = {"output.weight": of_outputs.t() @ self._passed_on, "output.bias": of_outputs.sum(0)}
        delta = of_outputs @ self._weight
        if self._kept is not None:
            delta = delta.mul_(self._kept)
        return _through_gates(stopped(delta, self._hidden, 0), self._activations, 1), gradient


class Gated(nn.Module):
    """Wx + b and Vx + c side by side: the weights of both are one matrix, initialised as torch's linear layers are."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        both = nn.Linear(before, 2 * after)
        self.weight, self.bias = both.weight, both.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def _gated(activations: Tensor) -> Tensor:
    """ReLU(v) · σ(g), which is ReLU(v · σ(g)); a product in bfloat16 is gated in float32, which is faster."""
    return F.relu(F.glu(in_full(activations), dim=1))
