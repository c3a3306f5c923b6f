"""Compiled kernels for convolutions and batch-norm, if the distribution rehearse-kernels is installed."""

from __future__ import annotations

from torch import nn

try:
    import rehearse_kernels
except ImportError:
    rehearse_kernels = None


def kernels(module: nn.Module) -> None:
    """Let a private copy of a model use the kernels, where they apply; see ``rehearse_kernels.install``.

    A model whose class says ``kernels_in_float32 = True`` uses them for passes in float32 too.
    """
    if rehearse_kernels is not None:
        rehearse_kernels.install(module, full=bool(getattr(module, "kernels_in_float32", False)))


def kernels_available() -> bool:
    """Return whether the kernels are installed and made for this processor."""
    return rehearse_kernels is not None and bool(rehearse_kernels.available())
