"""A small part of `make torture`, and that its runner reports what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .dividing import divided
from .result import Result
from .runner import SUITES, Kept, Outcome, available, line, main, page

ROOT = Path(__file__).parents[2]
SHARE = "0.02"


@pytest.mark.parametrize("name", available())
def test_a_small_part_of_each_suite(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture", "--only", name, "--share", SHARE],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failures" in done.stdout


def test_every_suite_has_a_line() -> None:
    modules = {path.stem for path in Path(__file__).parent.glob("*.py") if "\ndef run(tries" in path.read_text("utf-8")}
    assert modules == set(available())
    assert modules <= SUITES.keys()


def test_an_exception_in_a_suite_is_a_failure() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from tests.torture.runner import outcome; print(outcome('kills', 'no number', 0))"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Result(tries=0" in done.stdout
    assert "Traceback" in done.stdout


def test_failures_are_printed_and_written() -> None:
    found = Outcome("kills", Result(1234, ["er: differs", *["more"] * 30]), 5.0, 6.0)
    assert "1,234 tries    31 failures" in line(found)
    assert "er: differs" in line(found)
    assert "… 11 more" in line(found)
    assert "| 1,234 | 31 |" in page([found])


def test_outcomes_are_kept_for_a_page_of_full_runs_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, found = tmp_path / "kept", Outcome("kills", Result(7, ["er: differs"]), 5.0, 6.0)
    Kept(path, ["one version"]).add(found)
    assert Kept(path, ["one version"]).outcomes == {"kills": found}
    assert Kept(path, ["another"]).outcomes == {}
    for partly in (["--share", "0.5"], ["--only", "kills"]):
        with pytest.raises(SystemExit):
            main([*partly, "--write", str(tmp_path / "page")])
    assert "in full" in capsys.readouterr().err


def test_tries_are_divided_without_rest() -> None:
    assert list(divided(5, "ab")) == [("a", 3), ("b", 2)]
    assert list(divided(1, "ab")) == [("a", 1)]
