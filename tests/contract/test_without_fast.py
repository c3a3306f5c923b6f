"""Speed is deletable: without the folder fast/ the library computes the same.

The whole contract runs there with

    d=$(mktemp -d) && cp -r src/rehearse $d && rm -r $d/rehearse/fast && PYTHONPATH=$d python -m pytest tests/contract

This file runs a part of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rehearse

PACKAGE = Path(rehearse.__file__).parent
TESTS = ("observe_returns", "predicting_changes_nothing", "resumes_bit_for_bit", "bad_input_is_refused")
METHODS = ("finetune-mlp", "er-mlp", "er-mir-mlp", "er-mir-normed", "gen-gated")
ALONE = """
import rehearse.network.accelerate
assert rehearse.__file__.startswith({folder!r}), rehearse.__file__
assert rehearse.network.accelerate._fast() is None and rehearse.network.accelerate.kernels() is None
"""


@pytest.mark.skipif(not (PACKAGE / "fast").exists(), reason="this is the package without fast/")
def test_the_contract_holds_without_fast(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "rehearse", ignore=shutil.ignore_patterns("fast", "__pycache__"))
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", ALONE.format(folder=str(tmp_path))], env=environment, check=True)
    chosen = f"({' or '.join(TESTS)}) and ({' or '.join(METHODS)}) and not plain"
    contract = Path(__file__).with_name("test_contract.py")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        str(contract),
        "-k",
        chosen,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


@pytest.mark.skipif(not (PACKAGE / "fast").exists(), reason="this is the package without fast/")
@pytest.mark.parametrize("broken", ["from ..engine import nothing", "import rehearse.nothing"])
def test_a_broken_fast_is_an_error(broken: str, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "rehearse", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "rehearse" / "fast" / "dense.py").write_text(broken)
    code = "import rehearse.network.accelerate; rehearse.network.accelerate.kernels()"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nothing" in done.stderr.splitlines()[-1]
