"""A model's forward pass through torch.compile, with its parameters and buffers handed in."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


def compiler_at_hand() -> bool:
    """Whether there is a C++ compiler, without which torch.compile can do nothing on a processor."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError):
        return False
    return True


class CompiledCall:
    """``functional_call`` of one model, compiled at its first use for the shapes that it then sees.

    Torch keeps what it compiled on disk (``TORCHINDUCTOR_CACHE_DIR``), so that later processes need a fraction of the
    time. Copies and pickles of this object compile anew.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._call: Callable[..., Tensor] | None = None

    def __call__(self, tensors: Mapping[str, Tensor], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
        if self._call is None:
            model = self._model

            def call(tensors: dict[str, Tensor], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
                scores: Tensor = functional_call(model, tensors, arguments, keywords)
                return scores

            self._call = torch.compile(call, dynamic=False)
        return self._call(dict(tensors), arguments, keywords)

    def __getstate__(self) -> dict[str, Any]:
        return {"_model": self._model, "_call": None}


def compiled_or_none(model: nn.Module) -> CompiledCall | None:
    """The compiled call, or None and a warning where there is no compiler."""
    if compiler_at_hand():
        return CompiledCall(model)
    warnings.warn(
        "there is no C++ compiler, so candidates are scored without torch.compile; install g++, or leave compile out",
        RuntimeWarning,
        stacklevel=3,
    )
    return None
