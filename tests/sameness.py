"""Equal to the last bit, through any nesting of dicts, lists and tensors."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two nested values differ; empty if they are the same to the last bit."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        same = isinstance(one, Tensor) and isinstance(other, Tensor)
        same = same and (one.dtype, one.shape) == (other.dtype, other.shape) and _bytes(one) == _bytes(other)
        return [] if same else [where]
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return [f"{where}: keys {sorted(map(str, one.keys() ^ other.keys()))}"]
        return [place for key in one for place in differences(one[key], other[key], f"{where}[{key!r}]")]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return [f"{where}: lengths"]
        return [place for i, pair in enumerate(zip(one, other)) for place in differences(*pair, f"{where}[{i}]")]
    return [] if type(one) is type(other) and one == other else [f"{where}: {one!r} and {other!r}"]


def assert_same(one: Any, other: Any) -> None:
    found = differences(one, other)
    assert not found, f"differ at {', '.join(found)}"


def frozen(state: Any) -> Any:
    """A copy that nothing can reach: what `assert_same` compares with later."""
    return copy.deepcopy(state)


def outside(model: nn.Module) -> dict[str, Any]:
    """What of a model a pass must not change, beyond parameters and buffers."""
    return {
        "modes": {name: module.training for name, module in model.named_modules()},
        "requires_grad": {name: parameter.requires_grad for name, parameter in model.named_parameters()},
        "grad": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "values": {name: value.clone() for name, value in model.state_dict().items()},
        "hooks": {name: len(module._forward_pre_hooks) for name, module in model.named_modules()},
        "random": torch.get_rng_state(),
        "grad mode": torch.is_grad_enabled(),
    }


def _bytes(tensor: Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    return plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""
