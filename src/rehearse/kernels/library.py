"""The kernels, compiled once for this processor and kept where programs keep such things."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from ..errors import InvalidInput

SWITCH: Final = "REHEARSE_KERNELS"
SOURCES: Final = ("convolution.c", "normalisation.c")
FEATURES: Final = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512bf16", "fma")
FLAGS: Final = ("-O3", "-std=c11", "-fPIC", "-shared", *(f"-m{feature}" for feature in FEATURES))
PATIENCE_SECONDS: Final = 120


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
    """`Norm` of normalisation.c."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("pixels", "channels", "relu")),
        ("epsilon", ctypes.c_double),
    ]


TENSOR, FLAG = ctypes.c_void_p, ctypes.c_long
SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "convolve": (ctypes.POINTER(Shape), *[TENSOR] * 4, FLAG),
    "gradients": (ctypes.POINTER(Shape), *[TENSOR] * 5, FLAG),
    "normalise": (ctypes.POINTER(Norm), *[TENSOR] * 8),
    "normalise_gradient": (ctypes.POINTER(Norm), *[TENSOR] * 11),
}


def kernels_at_hand() -> bool:
    """Whether there are kernels for this processor; ``REHEARSE_KERNELS=torch`` does without them."""
    return library() is not None


def why_not() -> str | None:
    """Why torch's kernels are used, or None where ours are at hand."""
    return _sought()[1]


def library() -> Any:
    """The compiled kernels, or None where they cannot be had."""
    return _sought()[0]


@functools.cache
def _sought() -> tuple[ctypes.CDLL | None, str | None]:
    wanted = os.environ.get(SWITCH, "own")
    if wanted not in ("own", "torch"):
        raise InvalidInput(f"{SWITCH} is {wanted!r}; it must be own or torch")
    if wanted == "torch":
        return None, f"{SWITCH} is torch"
    if platform.system() != "Linux" or not torch.cpu._is_avx512_bf16_supported():
        return None, "they are for Linux on processors with AVX-512 and bfloat16"
    try:
        return _loaded(_compiler()), None
    except subprocess.CalledProcessError as problem:
        return None, f"they cannot be compiled: {problem.stderr.decode(errors='replace').strip() or problem}"
    except (OSError, ValueError, AttributeError, subprocess.SubprocessError) as problem:
        return None, f"they cannot be compiled or loaded: {problem}"


def _compiler() -> list[str]:
    wanted = os.environ.get("CC")
    for command in [shlex.split(wanted)] if wanted else [["cc"], ["gcc"]]:
        if command and shutil.which(command[0]):
            return command
    raise FileNotFoundError(f"there is no C compiler {wanted or 'cc'}; install gcc")


def _loaded(compiler: list[str]) -> ctypes.CDLL:
    """Compiled before, or now. A file is named after what it was made of and after what is in it."""
    sources = [Path(__file__).parent / name for name in SOURCES]
    made_of = _digest("\0".join([*compiler, *FLAGS]).encode(), *(source.read_bytes() for source in sources))
    with _folder() as folder:
        for kept in folder.glob(f"{made_of}-*.so"):
            if kept.is_file() and kept.stem == f"{made_of}-{_digest(kept.read_bytes())}":
                return _declared(ctypes.CDLL(str(kept)))
        with tempfile.TemporaryDirectory(dir=folder) as making:
            made = Path(making) / "kernels.so"
            command = [*compiler, *FLAGS, *map(str, sources), "-o", str(made), "-lm"]
            subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
            kept = made.replace(folder / f"{made_of}-{_digest(made.read_bytes())}.so")  # whoever else is at it
        return _declared(ctypes.CDLL(str(kept)))


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Of this user alone, for what is in it will be run."""
    try:
        kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rehearse" / "kernels"
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        safe = kept.stat().st_uid == os.getuid() and not kept.stat().st_mode & 0o022 and os.access(kept, os.W_OK)
    except (OSError, RuntimeError):
        safe = False
    if safe:
        yield kept
        return
    with tempfile.TemporaryDirectory() as once:  # a library that is loaded stays, its file may go
        yield Path(once)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    return library
