"""Averaged weights, to predict with and to learn from."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch, tree_concatenate
from ..checks import check, is_number
from ..errors import InvalidInput
from ..heads import Growth
from ..losses import AVERAGED, at_least_float32
from ..network import Network
from ..network.states import copied
from ..undo import Operations, assign


class Average:
    """The exponential moving average of a network's trainable parameters.

        θ̄ ← θ̄ + rate · (θ − θ̄)        after every step

    It moves once for each batch, as far as it would in all of the batch's steps. The initial weights have no part in
    it: in batch number n it moves by at least 1/n of the difference. A parameter that is unfrozen later joins then.
    """

    def __init__(self, network: Network, rate: float) -> None:
        """Start at the present parameters.

        Args:
            network: The network.
            rate: Between 0 and 1. 0.01 averages over the last hundred steps or so.

        Raises:
            InvalidInput: If the rate is out of range.
        """
        if not is_number(rate) or not 0 < rate <= 1:
            raise InvalidInput(f"average is {rate!r}; it must be a rate between 0 and 1, such as 0.01, or None")
        self.network, self.rate = network, float(rate)
        self.tensors = {name: parameter.detach().clone() for name, (parameter, _) in network.trainable().items()}

    def follow(self, before: int, steps: int) -> Operations:
        """Return what moves the average after the steps of a batch, for the commit.

        Args:
            before: The number of steps before this batch.
            steps: The number of steps in this batch.
        """
        trainable = self.network.trainable()
        joining = {name: trainable[name][0].detach().clone() for name in trainable.keys() - self.tensors.keys()}
        live, tensors = dict(self.network.model.named_parameters()), self.tensors | joining
        theirs = [live[name].detach() for name in tensors]
        share = max(1 - (1 - self.rate) ** steps, steps / (before + steps))
        return chain(
            assign(self, tensors=tensors), map(torch._foreach_lerp_, [list(tensors.values())], [theirs], [share])
        )

    def taught(self, *batches: Batch) -> tuple[Batch, ...]:
        """Return batches with the logits of the averaged weights for them, computed in one pass."""
        network, both = self.network, tree_concatenate([batch.x for batch in batches])
        with network.looking("scoring"):
            tensors = network.twin.tensors() | self.tensors
            logits = at_least_float32(network(network.ready(both), tensors, network.precision.scoring))
        parts = torch.tensor_split(logits, [len(batches[0])]) if len(batches) > 1 else [logits]
        return tuple(replace(b, columns={**b.columns, AVERAGED: p}) for b, p in zip(batches, parts, strict=True))

    def grow(self, grown: Growth) -> Operations:
        """Return what gives the averaged head the new outputs too."""
        return assign(self, tensors=grown.appended_to(self.tensors))

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the averaged parameters, by name."""
        return {name: tensor.clone() for name, tensor in self.tensors.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        own = {name: one for name, one in self.network.model.named_parameters() if name in self.tensors}
        check(state, own, "the averaged weights")
        self.tensors = copied(state, self.network.device)

    def __repr__(self) -> str:
        """Name the rate."""
        return repr(self.rate)
