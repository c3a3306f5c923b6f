"""Convolution and batch-norm of our own, for images with few channels in bfloat16 on one core."""

from .library import kernels_at_hand, why_not
from .sequences import own_kernels

__all__ = ["kernels_at_hand", "own_kernels", "why_not"]
