"""What all tests share: one thread, and kernels that every machine can run."""

from __future__ import annotations

import pytest
import torch

import literal_kernels
from rehearse_kernels import available, functions, sequences, why_not

torch.set_num_threads(1)


@pytest.fixture(params=["literal", "compiled"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run a test with literal kernels, and with the compiled ones if available; list the kernels that were called."""
    compute = functions._call
    if request.param == "literal":
        compute = literal_kernels.call
        monkeypatch.setattr(sequences, "available", lambda: True)
    elif not available():
        pytest.skip(f"the compiled kernels are not available: {why_not()}")
    calls: list[str] = []

    def recorded(name: str, *arguments: object) -> None:
        calls.append(name)
        compute(name, *arguments)

    monkeypatch.setattr(functions, "_call", recorded)
    return calls
