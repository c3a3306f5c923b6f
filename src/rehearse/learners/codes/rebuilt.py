"""Prediction from what the autoencoder rebuilds."""

from __future__ import annotations

from torch import Tensor, nn

from ...batch import Tree
from ...checks import one_tensor
from ...losses import at_least_float32
from ...serving import FrozenNetwork, Served
from .codec import Codec


class Rebuilt(Served):
    """From inputs to the logits of what is read from their codes."""

    def __init__(self, network: FrozenNetwork, codec: Codec | None) -> None:
        """Serve from a classifier.

        Args:
            network: The classifier.
            codec: Makes and reads the codes; without it the classifier gets the inputs as they are.
        """
        super().__init__(network)
        self.codec, self.autoencoder = codec, nn.Identity() if codec is None else codec.network.model

    def forward(self, x: Tree) -> Tensor:
        """Return the logits of inputs."""
        inputs = one_tensor(self.ready(x) if isinstance(x, Tensor) else None, "autoencoder")
        if self.codec is not None and len(inputs):
            inputs = self.codec.rebuild(inputs)
        return at_least_float32(self.network(inputs))
