"""The library needs torch and numpy alone; what needs more says which extra brings it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
OTHERS = ("typer", "rich", "pooch", "scipy", "matplotlib", "jinja2", "mlxtend", "PIL")  # what the lab and GEM need
BLOCKED = f"import sys; sys.modules.update(dict.fromkeys({OTHERS!r})); "
GEM = """
import torch
from rehearse.learners import GEM
from rehearse.memory import TaskRingMemory
model = torch.nn.Linear(2, 2)
GEM(model, torch.optim.SGD(model.parameters(), lr=0.1), TaskRingMemory(4))
"""


def python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a process and a directory of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def test_importing_the_library_imports_nothing_of_the_lab(tmp_path: Path) -> None:
    done = python("import sys, rehearse, rehearse.nets, rehearse.metrics; print(*sys.modules, sep='\\n')", tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert "rehearse.learners.gem" in loaded
    assert [name for name in loaded if name.startswith("rehearse.lab") or name.partition(".")[0] in OTHERS] == []


def test_the_readmes_first_example_needs_the_library_alone(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert found is not None
    done = python(f"{BLOCKED}import torch; torch.manual_seed(0)\n{found[1]}", tmp_path)
    assert done.returncode == 0, done.stderr
    predicted = [int(digit) for digit in re.findall(r"\d+", done.stdout)]
    assert sum(said == label for label, said in enumerate(predicted)) >= 8  # of the centers of ten classes


def test_gem_without_scipy_names_its_extra(tmp_path: Path) -> None:
    done = python(BLOCKED + GEM, tmp_path)
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .endswith("MissingExtra: scipy is not installed; it comes with the extra: rehearse-torch[gem]")
    )


@pytest.mark.parametrize(
    "start",
    ["from rehearse.lab.cli import main; main()", "import runpy; runpy.run_module('rehearse', None, '__main__')"],
)
def test_the_command_without_the_lab_says_which_extra_it_needs(start: str, tmp_path: Path) -> None:
    done = python(BLOCKED + start, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "rehearse: the command line needs typer; it comes with the extra: rehearse-torch[lab]\n"
