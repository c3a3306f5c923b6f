"""Descent: several steps on the same samples. `PlainDescent` is the reference for every descent in `fast/`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor

from ...batch import Tree
from ...network import NamedGradient, Network, finite
from ...undo import Operations, run


class Descended(NamedTuple):
    """Several steps on the same samples.

    ``losses`` are those before the last step; ``operations`` are what the caller's commit must still run; ``gradient``
    returns the gradient of the last step.
    """

    losses: list[float]
    operations: Operations
    gradient: Callable[[], NamedGradient]


class PlainDescent:
    """Steps on samples that remain the same, for every model and optimizer."""

    def __init__(self, network: Network, x: Tree, method: str) -> None:
        """See `descend`."""
        self.network, self.x, self.method = network, x, method
        self._gradient = NamedGradient()

    def forward(self) -> Any:
        """Pass the samples under the present parameters."""
        return self.network(self.x) if self.method == "forward" else self.network.ask(self.method, self.x)

    def step(self, loss: Tensor) -> Operations:
        """Prepare a step down the gradient of a loss of `forward`'s result."""
        self._gradient = self.network.gradient(loss)
        return self.network.step(self._gradient)

    def finish(self) -> Operations:
        """Return what is to be done after the last step."""
        return ()

    def gradient(self) -> NamedGradient:
        """Return the gradient of the last step."""
        return self._gradient


def descend(
    network: Network,
    x: Tree,
    objective: Callable[[Any], Sequence[Tensor]],
    updates: int = 1,
    *,
    method: str = "forward",
) -> Descended:
    """Take ``updates`` steps down ∇objective on the same samples, the last of them when it is committed.

    Args:
        network: In `Network.training` for so many steps, inside `all_or_nothing`.
        x: Prepared inputs.
        objective: Turns what the model returns into the loss to descend and any others to report.
        updates: The number of steps.
        method: Which method of the model passes the samples.

    Raises:
        NotFinite: If a loss or a gradient is not finite.
    """
    fast = network.descents if updates > 1 and method == "forward" else []
    descent: PlainDescent = next(filter(None, [offer(network, x) for offer in fast]), PlainDescent(network, x, method))
    operations: Operations = ()
    for _ in range(updates):
        run(operations)
        losses = objective(descent.forward())
        values = [finite(loss) for loss in losses]
        operations = descent.step(losses[0])
    return Descended(values, chain(operations, descent.finish()), descent.gradient)
