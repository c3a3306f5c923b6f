"""Codes as they are stored: the autoencoder that reads and writes them, and in how many bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import torch
from torch import Tensor

from ...checks import check, check_literals
from ...errors import CheckpointError, InvalidInput
from ...latent import check_rebuilt
from ...memory import Memory
from ...network import Network
from ...network.states import copied
from ...serving import FrozenNetwork

CodeType = Literal["float32", "float16", "uint8"]
Statistics = Literal["running", "batch"]
CALIBRATION_SAMPLES: Final = 1000
LEVELS: Final = 255  # steps between the lowest and the highest value of a byte


@dataclass(frozen=True)
class Codec:
    """An autoencoder at one point of its training: it made the stored codes, and reads them.

    As long as it stays the same, everything that the classifier sees (incoming, replayed and predicted samples) has
    passed the same encoder and decoder, in the same number of bits, always in float32.

    Attributes:
        network: The autoencoder.
        tensors: Its parameters and buffers at that point.
        codes: The dtype of stored codes. As ``uint8`` each channel has a scale and an offset of its own, for all
            samples; `calibrated_on` sets them, and values outside are clipped.
        statistics: Which statistics batch-norm uses: the ``running`` ones, or those of the ``batch``, as in the
            reference implementation, whose predictions then depend on what is predicted together.
        low: The lowest value of each channel, for bytes.
        step: The distance between two bytes of each channel.
    """

    network: Network
    tensors: Mapping[str, Tensor]
    codes: CodeType = "float32"
    statistics: Statistics = "running"
    low: Tensor = field(default_factory=lambda: torch.zeros(()))
    step: Tensor = field(default_factory=lambda: torch.zeros(()))

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_literals(self)

    def renewed(self, memory: Memory, sample: Tensor) -> Codec:
        """Return the same with the present autoencoder.

        Bytes cover the codes of up to 1,000 of the given samples, and of as many stored ones.
        """
        new = Codec(self.network, self.network.frozen(), self.codes, self.statistics)
        if new.calibrated:
            return new
        stored, parts = memory.slots(), [sample[:CALIBRATION_SAMPLES]]
        if len(stored):
            parts.append(self.read(memory.get(stored[:: -(-len(stored) // CALIBRATION_SAMPLES)]).x))
        return new.calibrated_on(parts)

    def frozen(self) -> Codec:
        """Return a copy with a network of its own, which never changes."""
        network = FrozenNetwork(self.network, self.tensors, "scoring" if self.statistics == "batch" else "evaluation")
        return replace(self, network=network, tensors=dict(network.model.named_parameters()), statistics="running")

    @property
    def calibrated(self) -> bool:
        """Whether bytes have their scale; other codes need none."""
        return self.codes != "uint8" or self.step.ndim > 0

    def calibrated_on(self, parts: Iterable[Tensor]) -> Codec:
        """Return a codec whose bytes cover the codes of these inputs."""
        channels = torch.cat([self._encoded(part).transpose(0, 1).flatten(1) for part in parts], dim=1)
        low, high = channels.aminmax(dim=1)
        return replace(self, low=low, step=((high - low) / LEVELS).clamp_min(torch.finfo(low.dtype).tiny))

    def encode(self, x: Tensor) -> Tensor:
        """Return the codes of inputs, as they are stored."""
        if not self.calibrated:
            raise InvalidInput("codes of 8 bits need a scale first: call begin_task or observe before")
        floats = self._encoded(x)
        if not _all_finite(floats.square().sum()):  # nor would distances between codes be
            raise InvalidInput("the codes of these inputs are not finite; scale the inputs down first")
        if self.codes == "uint8":
            levels = (floats - _by_channel(self.low, floats)) / _by_channel(self.step, floats)
            return levels.round_().clamp_(0, LEVELS).to(torch.uint8).cpu()
        stored = floats.to(torch.float16 if self.codes == "float16" else torch.float32)
        if not _all_finite(stored):
            raise InvalidInput("the codes of these inputs are too large for 16 bits; use codes='float32'")
        return stored.contiguous().cpu()

    def floats(self, stored: Tensor) -> Tensor:
        """Return stored codes as numbers to compute with."""
        like = next(tensor for tensor in self.tensors.values() if tensor.is_floating_point())
        floats = stored.to(like.device, like.dtype)
        if self.codes == "uint8":
            floats = floats * _by_channel(self.step, floats) + _by_channel(self.low, floats)
        return floats

    def decode(self, floats: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return inputs from codes given as numbers; differentiable in them. Inside `looking`."""
        decoded: Tensor = self.network.ask("decode", floats, self._held(), dtype)
        return decoded

    def read(self, stored: Tensor) -> Tensor:
        """Return inputs from codes as they are stored."""
        with self.looking():
            return self.decode(self.floats(stored))

    def through(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the codes of inputs as they are stored, and the inputs read from those."""
        stored = self.encode(x)
        rebuilt = self.read(stored)
        check_rebuilt(x, rebuilt, "autoencoder")
        return stored, rebuilt

    def rebuild(self, x: Tensor) -> Tensor:
        """Return the inputs read from the codes of inputs; as long as bytes have no scale, from codes as floats."""
        if self.calibrated:
            return self.through(x)[1]
        with self.looking():
            return self.decode(self._encoded(x))

    def looking(self) -> AbstractContextManager[None]:
        """Set the autoencoder's twin to the mode in which codes are made and read."""
        return self.network.looking("evaluation" if self.statistics == "running" else "scoring")

    @property
    def nbytes(self) -> int:
        """The bytes of the autoencoder, without which no code can be read."""
        held = [*self.tensors.values(), *([self.low, self.step] if self.codes == "uint8" else [])]
        return sum(value.nbytes for value in held)

    def state_dict(self) -> dict[str, Any]:
        """Return what `loaded` takes."""
        kinds = {"codes": self.codes, "statistics": self.statistics}
        return {"tensors": dict(self.tensors), "low": self.low, "step": self.step, **kinds}

    def loaded(self, state: dict[str, Any]) -> Codec:
        """Return the codec of a state.

        Raises:
            CheckpointError: If it stores codes in another way.
        """
        for name in ("codes", "statistics"):
            if state[name] != (own := getattr(self, name)):
                raise CheckpointError(f"the saved learner has {name}={state[name]!r}, this one {name}={own!r}")
        form = {"tensors": dict(self.tensors), "low": self.low, "step": self.step, "codes": str, "statistics": str}
        check(state, form, "what reads the saved codes")
        device = self.network.device
        tensors, low, step = copied(state["tensors"], device), state["low"].to(device), state["step"].to(device)
        return replace(self, tensors=tensors, low=low, step=step)

    def _encoded(self, x: Tensor) -> Tensor:
        with self.looking():
            return encoded(self.network, x, self._held(), torch.float32)

    def _held(self) -> Mapping[str, Tensor]:
        """Return the tensors for a pass."""
        return self.tensors if self.statistics == "running" else with_own_buffers(self.network, self.tensors)


def with_own_buffers(network: Network, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with copies of the buffers, for passes that move them."""
    buffers = {name for name, _ in network.model.named_buffers()}
    return {name: tensor.clone() if name in buffers else tensor for name, tensor in tensors.items()}


def encoded(network: Network, x: Tensor, *how: Any) -> Tensor:
    """Return the codes of inputs as floats; refuse an autoencoder whose codes cannot be stored and searched."""
    codes = network.ask("encode", x, *how)
    if not isinstance(codes, Tensor) or not codes.is_floating_point() or codes.ndim < 2 or len(codes) != len(x):
        found = tuple(codes.shape) if isinstance(codes, Tensor) else f"a {type(codes).__name__}"
        needed = "autoencoder.encode must return one tensor of floats, one or more numbers per sample"
        raise InvalidInput(f"{needed}; for {len(x)} inputs it returns {found}")
    return codes


def _all_finite(values: Tensor) -> bool:
    """Return whether all values are finite; a program that is being exported cannot know."""
    return torch.compiler.is_compiling() or bool(values.isfinite().all())


def _by_channel(values: Tensor, codes: Tensor) -> Tensor:
    """Return one value per channel, in a shape that fits the codes."""
    return values.view(1, -1, *[1] * (codes.ndim - 2))
