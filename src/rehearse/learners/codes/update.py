"""Stored codes and the autoencoder that they are read with: one cannot change without the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from ...errors import InvalidInput
from ...memory import Memory
from .codec import Codec

BLOCK: Final = 500  # codes brought up to date at once
CALIBRATION_SAMPLES: Final = 1000


def renewed(codec: Codec, memory: Memory, sample: Tensor) -> Codec:
    """Return the present autoencoder as a codec.

    Bytes cover what it makes of up to 1,000 samples of those given, and of as many of those that are stored.
    """
    new = codec.renewed()
    if new.calibrated:
        return new
    stored, parts = memory.slots(), [sample[:CALIBRATION_SAMPLES]]
    if len(stored):
        parts.append(codec.read(memory.get(stored[:: -(-len(stored) // CALIBRATION_SAMPLES)]).x))
    return new.calibrated_on(parts)


@dataclass(frozen=True)
class Update:
    """codes ← Encode(θ_ae; Decode(θ_ae before; codes)), computed before any is written: one of them may be refused."""

    before: Codec
    after: Codec
    codes: list[tuple[Tensor, Tensor]]  # slots, and what will stand there

    @classmethod
    def of(cls, codec: Codec, memory: Memory, sample: Tensor) -> Update:
        """Compute the codes that the present autoencoder gives all stored samples."""
        new = renewed(codec, memory, sample)
        blocks = [slots for slots in torch.split(memory.slots(), BLOCK) if len(slots)]
        return cls(codec, new, [(slots, new.encode(codec.read(memory.get(slots).x))) for slots in blocks])

    def code(self, codes: Tensor) -> Tensor:
        """Return codes that are not stored yet as they will be read."""
        return self.after.encode(self.before.read(codes))

    def write(self, memory: Memory) -> Codec:
        """Write the codes, inside `all_or_nothing`; returns the codec that reads them."""
        for slots, codes in self.codes:
            memory.rewrite(slots, codes)
        return self.after


def read_ahead(codec: Codec, memory: Memory, slots: Tensor, samples: int) -> Tensor | None:
    """Return what the codes at these slots stand for, read once for an epoch in which most are replayed several times.

    For up to twice as many codes as the task has samples, which are all there anyway; of more, some are read as they
    are drawn, and the result is None.
    """
    if not 0 < len(slots) <= 2 * samples or codec.statistics == "batch":
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
