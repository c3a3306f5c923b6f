"""The distribution builds with a C compiler, and without one."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools", reason="setuptools builds the distribution")
PROJECT = Path(__file__).parent.parent
PYTHON_FILES = {"__init__.py", "functions.py", "library.py", "modules.py", "sequences.py", "py.typed"}
can_compile = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64") or shutil.which("gcc") is None,
    reason="the extension is compiled with gcc on x86-64 Linux",
)


def built(folder: Path, **environment: str) -> set[str]:
    """Build a wheel from a copy of the project; return the names of its files in the package."""
    ignored = shutil.ignore_patterns("build", "*.egg-info", "*.so", "__pycache__", "tests")
    shutil.copytree(PROJECT, folder / "project", ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    command += ["--disable-pip-version-check", "--wheel-dir", str(folder), str(folder / "project")]
    subprocess.run(command, check=True, env={**os.environ, **environment}, capture_output=True)
    (wheel,) = folder.glob("rehearse_kernels-*.whl")
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    return {name.name for name in names if name.parts[0] == "rehearse_kernels"}


@can_compile
def test_with_a_compiler(tmp_path: Path) -> None:
    files = built(tmp_path, CC="gcc")
    (extension,) = files - PYTHON_FILES
    assert extension.startswith("_kernels.")
    assert extension.endswith(".so")


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_without_a_compiler(tmp_path: Path, compiler: str) -> None:
    assert built(tmp_path, CC=compiler) == PYTHON_FILES
