"""When the kernels are available, and what `why_not` reports otherwise."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rehearse_kernels
from rehearse_kernels import library

SUPPORTED = (
    platform.system() == "Linux"
    and platform.machine() in library.MACHINES
    and torch.cpu._is_avx512_bf16_supported()
    and os.environ.get(library.SWITCH, "own") == "own"
)


@pytest.fixture(autouse=True)
def _search_again() -> Any:
    library._find.cache_clear()
    yield
    library._find.cache_clear()


def on(monkeypatch: pytest.MonkeyPatch, system: str = "Linux", machine: str = "x86_64", supported: bool = True) -> None:
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)


def refuse_to_load(name: str) -> Any:
    raise AssertionError(f"{name} was imported")


def test_the_public_names() -> None:
    assert rehearse_kernels.__all__ == ["available", "install", "why_not"]


def test_this_machine() -> None:
    assert rehearse_kernels.available() is SUPPORTED
    assert (rehearse_kernels.why_not() is None) is SUPPORTED


@pytest.mark.parametrize(
    ("system", "machine", "reason"),
    [
        ("Darwin", "arm64", "this is Darwin on arm64"),
        ("Linux", "aarch64", "this is Linux on aarch64"),
        ("Windows", "AMD64", "this is Windows on AMD64"),
    ],
)
def test_other_platforms(monkeypatch: pytest.MonkeyPatch, system: str, machine: str, reason: str) -> None:
    on(monkeypatch, system, machine)
    monkeypatch.setattr(importlib, "import_module", refuse_to_load)
    assert not rehearse_kernels.available()
    assert reason in str(rehearse_kernels.why_not())


def test_other_processors_load_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, supported=False)
    monkeypatch.setattr(importlib, "import_module", refuse_to_load)
    assert not rehearse_kernels.available()
    assert "avx512_bf16" in str(rehearse_kernels.why_not())


def test_the_variable_switches_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch)
    monkeypatch.setattr(importlib, "import_module", refuse_to_load)
    monkeypatch.setenv(library.SWITCH, "torch")
    assert not rehearse_kernels.available()
    assert rehearse_kernels.why_not() == "REHEARSE_KERNELS=torch switches the kernels off"


def test_other_values_of_the_variable_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.SWITCH, "off")
    with pytest.raises(ValueError, match="REHEARSE_KERNELS is 'off'; it must be 'own' or 'torch'"):
        rehearse_kernels.available()


def test_an_installation_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch)
    monkeypatch.setattr(library, "EXTENSION", "rehearse_kernels._missing")
    assert not rehearse_kernels.available()
    assert "installed without its C extension" in str(rehearse_kernels.why_not())


def test_a_file_that_is_not_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch)
    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(__file__=__file__))
    assert not rehearse_kernels.available()
    assert "cannot be loaded" in str(rehearse_kernels.why_not())


def test_importing_the_package_does_not_load_the_extension() -> None:
    code = "import sys, rehearse_kernels; print('rehearse_kernels._kernels' in sys.modules, 'rehearse' in sys.modules)"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


def test_the_extension_can_be_loaded_on_every_x86_processor() -> None:
    """Loading it must be harmless even where none of its functions can run."""
    pytest.importorskip("rehearse_kernels._kernels", reason="the package is not installed with its extension")
    functions, reason = library._load()
    assert reason is None
    assert functions is not None
    assert all(getattr(functions, name).restype is not None for name in library.SIGNATURES)
