"""The compiled extension: whether it can be used here, and its functions as ctypes sees them."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import platform
from typing import Any, Final

import torch

SWITCH: Final = "REHEARSE_KERNELS"
EXTENSION: Final = "rehearse_kernels._kernels"
MACHINES: Final = ("x86_64", "AMD64")


class Shape(ctypes.Structure):
    """`Shape` of convolution.c."""

    _fields_ = [
        (name, ctypes.c_long)
        for name in (
            *("images", "height", "width", "stride", "kernel", "padding", "coarse", "fine"),
            *("weight_coarse", "weight_fine", "weight_y", "weight_x", "full"),
        )
    ]


class Norm(ctypes.Structure):
    """`Norm` of normalization.c."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("pixels", "channels", "relu")),
        ("epsilon", ctypes.c_double),
    ]


TENSOR, FLAG = ctypes.c_void_p, ctypes.c_long
SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "convolve": (ctypes.POINTER(Shape), *[TENSOR] * 4, FLAG),
    "gradients": (ctypes.POINTER(Shape), *[TENSOR] * 5, FLAG),
    "normalize": (ctypes.POINTER(Norm), *[TENSOR] * 8),
    "normalize_gradient": (ctypes.POINTER(Norm), *[TENSOR] * 11),
}


def available() -> bool:
    """Return whether the kernels can be used in this process.

    The answer is determined once per process. Set ``REHEARSE_KERNELS=torch`` to switch the kernels off.

    Raises:
        ValueError: REHEARSE_KERNELS is set to something other than ``own`` or ``torch``.
    """
    return library() is not None


def why_not() -> str | None:
    """Return why the kernels cannot be used in this process, or None if they can.

    Raises:
        ValueError: REHEARSE_KERNELS is set to something other than ``own`` or ``torch``.
    """
    return _find()[1]


def library() -> Any:
    """Return the compiled functions, or None if they cannot be used."""
    return _find()[0]


@functools.cache
def _find() -> tuple[ctypes.CDLL | None, str | None]:
    """Return the compiled functions or the reason why there are none; check the processor before loading anything."""
    choice = os.environ.get(SWITCH, "own")
    if choice not in ("own", "torch"):
        raise ValueError(f"{SWITCH} is {choice!r}; it must be 'own' or 'torch'")
    if choice == "torch":
        return None, f"{SWITCH}=torch switches the kernels off"
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in MACHINES:
        return None, f"the kernels need Linux on x86-64; this is {system} on {machine}"
    if not torch.cpu._is_avx512_bf16_supported():
        return None, "the kernels need a processor with AVX-512 and bfloat16 (avx512_bf16 in /proc/cpuinfo)"
    return _load()


def _load() -> tuple[ctypes.CDLL | None, str | None]:
    try:
        functions = ctypes.CDLL(importlib.import_module(EXTENSION).__file__)
        for name, arguments in SIGNATURES.items():
            function = getattr(functions, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
    except ModuleNotFoundError:
        return None, "rehearse-kernels was installed without its C extension; install gcc, then reinstall the package"
    except (ImportError, OSError, AttributeError) as problem:
        return None, f"the C extension cannot be loaded: {problem}; reinstall rehearse-kernels"
    return functions, None
