"""Stored codes and the autoencoder that they are read with: one cannot change without the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import InvalidInput
from ..memory import Memory
from .hybrid_codec import Codec

BLOCK: Final = 500  # codes brought up to date at once
CALIBRATION_ROWS: Final = 1000


def renewed(codec: Codec, memory: Memory, autoencoder: nn.Module, sample: Tensor) -> tuple[Codec, int]:
    """The present autoencoder as a codec, and how many rows passed an encoder or a decoder for that.

    Bytes cover what it makes of up to 1,000 rows of the sample, and of as many of those that are stored.
    """
    new = codec.renewed(autoencoder)
    if new.calibrated:
        return new, 0
    stored, parts = memory.slots(), [sample[:CALIBRATION_ROWS]]
    if len(stored):
        parts.append(codec.read(memory.get(stored[:: -(-len(stored) // CALIBRATION_ROWS)]).x))
    new.calibrate(parts)
    return new, len(parts[0]) + 2 * sum(len(part) for part in parts[1:])


@dataclass(frozen=True)
class Update:
    """codes ← Encode(θ_ae; Decode(θ_ae before; codes)), computed before any is written: one of them may be refused."""

    before: Codec
    after: Codec
    codes: list[tuple[Tensor, Tensor]]  # slots, and what will stand there
    rows: int  # that passed an encoder or a decoder for it

    @classmethod
    def of(cls, codec: Codec, memory: Memory, autoencoder: nn.Module, sample: Tensor) -> Update:
        new, passed = renewed(codec, memory, autoencoder, sample)
        blocks = [slots for slots in torch.split(memory.slots(), BLOCK) if len(slots)]
        codes = [(slots, new.encode(codec.read(memory.get(slots).x))) for slots in blocks]
        return cls(codec, new, codes, passed + 2 * len(memory))

    def code(self, codes: Tensor) -> Tensor:
        """A code that is not stored yet, as it will be read."""
        return self.after.encode(self.before.read(codes))

    def carried_out(self, memory: Memory) -> Codec:
        """Write them, all or none; gives the codec that reads them now."""
        replaced: list[tuple[Tensor, Tensor]] = []
        try:
            for slots, codes in self.codes:
                replaced.append((slots, memory.get(slots).x))
                memory.rewrite(slots, codes)
        except BaseException:
            for slots, codes in replaced:
                memory.rewrite(slots, codes)
            raise
        return self.after


def read_ahead(codec: Codec, memory: Memory, slots: Tensor, rows: int) -> Tensor | None:
    """What the codes at these slots stand for, read once for an epoch in which most are rehearsed several times.

    For up to twice as many codes as the task has rows, which are all there anyway; of more, some as they are drawn.
    """
    if not 0 < len(slots) <= 2 * rows or codec.statistics == "batch":
        return None
    return torch.cat([codec.read(memory.get(some).x) for some in torch.split(slots, BLOCK)])


class Form(NamedTuple):
    """Dtype and shape of a row of inputs, which nobody could tell from its code."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, x: Tensor) -> Form:
        return cls(str(x.dtype), tuple(x.shape[1:]))

    @property
    def nbytes(self) -> int:
        size: int = getattr(torch, self.dtype.removeprefix("torch.")).itemsize
        return size * math.prod(self.shape)

    def check(self, x: Tensor) -> None:
        """Refuse inputs of another form."""
        other = Form.of(x)
        if other.shape != self.shape:
            raise InvalidInput(f"inputs of this batch have shape {other.shape} a row, those before had {self.shape}")
        if other.dtype != self.dtype:
            raise InvalidInput(
                f"inputs of this batch are {other.dtype}, those before were {self.dtype}; convert them first"
            )


def sizes(memory: Memory, codec: Codec, form: Form | None) -> dict[str, int]:
    """Bytes of the memory with everything that stands in it, and of an equal memory of raw inputs."""
    rows, image = len(memory), 0 if form is None else form.nbytes
    code = Form.of(memory.get(memory.slots()[:1]).x).nbytes if rows else 0
    return {
        "codes": rows,
        "bytes": memory.nbytes,
        "bytes_as_inputs": memory.nbytes + rows * (image - code),
        "code_bytes": code,
        "input_bytes": image,
        "autoencoder_bytes": codec.nbytes,
    }
