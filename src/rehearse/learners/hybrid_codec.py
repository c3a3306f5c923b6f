"""Codes as they are stored: the autoencoder that reads and writes them, and in how many bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..compute import scoring_mode
from ..errors import CheckpointError, InvalidInput, RehearseError
from ..kernels import own_kernels
from ..parts import Substitutes, buffer_copies
from .snapshots import frozen_copy, load_network, network_state

CodeType = Literal["float32", "float16", "uint8"]
Statistics = Literal["running", "batch"]
LEVELS = 255  # steps between the lowest and the highest value that a byte tells apart


class Codec:
    """A frozen copy of an autoencoder: what the stored codes were made with, and what they are read with.

    As long as it stays, whatever the classifier sees (what arrives, what is recalled, what is predicted) has gone
    through the same encoder and decoder, in the same number of bits.

    ``codes`` is the dtype that they are stored in. As ``uint8`` each channel has a scale and an offset of its own, for
    all rows; `calibrate` sets them, and what lies beyond is clipped. ``statistics`` says which batch-norm uses: the
    ``running`` ones, or those of the ``batch``, as the paper's program does, whose predictions then depend on what
    they are asked together with.
    """

    def __init__(self, autoencoder: nn.Module, codes: CodeType = "float32", statistics: Statistics = "running") -> None:
        for name, value, choice in (("codes", codes, CodeType), ("statistics", statistics, Statistics)):
            if value not in get_args(choice):
                raise InvalidInput(f"{name} is {value!r}; it must be one of {', '.join(get_args(choice))}")
        self.autoencoder = frozen_copy(autoencoder)
        self.codes, self.statistics = codes, statistics
        self.low = self.step = torch.zeros(())

    def renewed(self, autoencoder: nn.Module) -> Codec:
        """The same with the autoencoder as it is now; bytes need to be calibrated anew."""
        return Codec(autoencoder, self.codes, self.statistics)

    @property
    def calibrated(self) -> bool:
        """Whether bytes have their scale; other codes need none."""
        return self.codes != "uint8" or self.step.ndim > 0

    def calibrate(self, parts: Iterable[Tensor]) -> None:
        """Let bytes cover what the encoder makes of these inputs."""
        if self.codes != "uint8":
            return
        floats = [self._floats(part) for part in parts]
        low = torch.stack([part.amin(_all_but_channels(part)) for part in floats]).amin(0)
        high = torch.stack([part.amax(_all_but_channels(part)) for part in floats]).amax(0)
        self.low, self.step = low, ((high - low) / LEVELS).clamp_min(torch.finfo(low.dtype).tiny)

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """The codes of inputs, as they are stored."""
        if not self.calibrated:
            raise InvalidInput("codes of 8 bits need a scale first: train on a task, or calibrate on some inputs")
        floats = self._floats(x)
        if not bool(floats.square().sum().isfinite()):  # nor would distances between codes be
            raise InvalidInput("the codes of these inputs are not finite; scale the inputs down first")
        if self.codes == "uint8":
            low, step = _by_channel(self.low, floats), _by_channel(self.step, floats)
            return ((floats - low) / step).round_().clamp_(0, LEVELS).to(torch.uint8).cpu()
        stored = floats.to(torch.float16 if self.codes == "float16" else torch.float32)
        if not bool(stored.isfinite().all()):
            raise InvalidInput("the codes of these inputs are too large for 16 bits; use codes='float32'")
        return stored.contiguous().cpu()

    def floats(self, stored: Tensor) -> Tensor:
        """Stored codes as numbers to compute with."""
        device = next(self.autoencoder.parameters()).device
        floats = stored.to(device, self._dtype)
        if self.codes == "uint8":
            floats = floats * _by_channel(self.step, floats) + _by_channel(self.low, floats)
        return floats

    def decode(self, floats: Tensor) -> Tensor:
        """Inputs from codes given as numbers; differentiable in them."""
        return self._pass("decode", floats)

    @torch.no_grad()
    def read(self, stored: Tensor) -> Tensor:
        """Inputs from codes as they are stored."""
        return self.decode(self.floats(stored))

    def through(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The codes of inputs as they are stored, and what can be read from those."""
        stored = self.encode(x)
        rebuilt = self.read(stored)
        check_rebuilt(x, rebuilt)
        return stored, rebuilt

    def rebuild(self, x: Tensor) -> Tensor:
        """What can be read from the codes of inputs; as long as bytes have no scale, from codes in full."""
        if self.calibrated:
            return self.through(x)[1]
        with torch.no_grad():
            return self.decode(self._floats(x))

    def to(self, device: torch.device | str) -> None:
        self.autoencoder.to(device)
        self.low, self.step = self.low.to(device), self.step.to(device)

    @property
    def nbytes(self) -> int:
        """Of the autoencoder, without which no code can be read."""
        held = [*self.autoencoder.state_dict().values(), *([self.low, self.step] if self.codes == "uint8" else [])]
        return sum(value.numel() * value.element_size() for value in held)

    def state_dict(self) -> dict[str, Any]:
        numbers = {"low": self.low.clone(), "step": self.step.clone()}
        kinds = {"codes": self.codes, "statistics": self.statistics}
        return {"autoencoder": network_state(self.autoencoder), **numbers, **kinds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, own in (("codes", self.codes), ("statistics", self.statistics)):
            if state[name] != own:
                raise CheckpointError(f"the saved learner has {name}={state[name]!r}, this one {name}={own!r}")
        load_network(self.autoencoder, state["autoencoder"])
        device = next(self.autoencoder.parameters()).device
        self.low, self.step = state["low"].clone().to(device), state["step"].clone().to(device)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.autoencoder.parameters()).dtype

    @torch.no_grad()
    def _floats(self, x: Tensor) -> Tensor:
        floats = self._pass("encode", x)
        check_codes(x, floats)
        return floats

    def _pass(self, method: str, rows: Tensor) -> Tensor:
        try:
            if self.statistics == "running":
                return self._code(method, rows)
            with scoring_mode(self.autoencoder), Substitutes(self.autoencoder, buffer_copies(self.autoencoder)):
                return self._code(method, rows)
        except RehearseError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError) as problem:
            raise InvalidInput(f"the autoencoder cannot take this batch: {problem}") from problem

    def _code(self, method: str, rows: Tensor) -> Tensor:
        with own_kernels(self.autoencoder, full=True):
            coded: Tensor = getattr(self.autoencoder, method)(rows)
        return coded


def check_codes(x: Tensor, codes: Any) -> None:
    """Refuse what an encoder made of these inputs if it cannot be stored and searched."""
    if not isinstance(codes, Tensor) or not codes.is_floating_point() or codes.ndim < 2 or len(codes) != len(x):
        found = tuple(codes.shape) if isinstance(codes, Tensor) else f"a {type(codes).__name__}"
        raise InvalidInput(
            "the autoencoder must encode inputs as one tensor of floats, a row of one or more numbers for each input; "
            f"of {len(x)} inputs it makes {found}"
        )


def check_rebuilt(x: Tensor, rebuilt: Any) -> None:
    """Refuse what a decoder gave back for these inputs if it is something else than inputs."""
    if not isinstance(rebuilt, Tensor) or rebuilt.shape != x.shape:
        found = (
            f"with shape {tuple(rebuilt.shape)}" if isinstance(rebuilt, Tensor) else f"as a {type(rebuilt).__name__}"
        )
        raise InvalidInput(f"inputs of shape {tuple(x.shape)} come back from the autoencoder {found}")


def _all_but_channels(codes: Tensor) -> list[int]:
    return [0, *range(2, codes.ndim)]


def _by_channel(values: Tensor, codes: Tensor) -> Tensor:
    """One value a channel, in the shape that fits codes."""
    return values.view(1, -1, *[1] * (codes.ndim - 2))
