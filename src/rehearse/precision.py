"""Precision and memory format of a network's passes."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import nn

from .checks import check_choice

PRECISIONS: Final = ("auto", "float32", "bfloat16", "bfloat16-scoring")


class Precision(NamedTuple):
    """The dtype of training and prediction, the dtype of scoring, whether images are stored channels-last, a name.

    The name is the ``precision`` argument that leads here.
    """

    training: torch.dtype
    scoring: torch.dtype
    channels_last: bool
    name: str


def resolve_precision(precision: str, model: nn.Module, device: torch.device) -> Precision:
    """Turn the ``precision`` argument into dtypes by a fixed rule, without timing anything.

    Args:
        precision: ``auto`` scores in bfloat16 if the model has convolutions and the hardware supports bfloat16, and
            trains in float32. ``bfloat16-scoring`` does so everywhere, ``bfloat16`` also trains in bfloat16.
        model: Runs channels-last if it has convolutions and an attribute ``channels_last = True``. A model that views
            its activations as flat cannot.
        device: Where the model is.

    Raises:
        InvalidInput: If ``precision`` is not one of `PRECISIONS`.
    """
    check_choice(PRECISIONS, precision=precision)
    convolutional = any(isinstance(module, nn.Conv2d) for module in model.modules())
    if precision == "auto":
        precision = "bfloat16-scoring" if convolutional and supports_bfloat16(device) else "float32"
    return Precision(
        training=torch.bfloat16 if precision == "bfloat16" else torch.float32,
        scoring=torch.float32 if precision == "float32" else torch.bfloat16,
        channels_last=convolutional and bool(getattr(model, "channels_last", False)),
        name=precision,
    )


def supports_bfloat16(device: torch.device) -> bool:
    """Return whether the device multiplies bfloat16 in hardware. Emulated, it is nine times slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
