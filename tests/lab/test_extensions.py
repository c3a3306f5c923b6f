"""What users add of their own reaches every command and every process, from a file or an entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rehearse.errors import InvalidInput
from rehearse.lab import extensions
from rehearse.lab.methods import METHODS, find_method

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN = [
    word for name in ("method", "retrieval", "stream", "network") for word in ("--import", EXAMPLES / f"own_{name}.py")
]


def rehearse(folder: Path, *words: str | Path) -> str:
    command = [sys.executable, "-c", "from rehearse.lab.cli import main; main()", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_methods_streams_and_networks_reach_run_report_and_show(tmp_path: Path) -> None:
    common = ("--stream", "blobs", "--network", "wide", *OWN)
    found = json.loads(rehearse(tmp_path, "run", "er-warm", "er-hardest", *common, "--seeds", "2", "--json"))
    assert found["methods"].keys() == {"er-warm", "er-hardest"}
    assert all(0.2 < method["accuracy"]["mean"] <= 1 for method in found["methods"].values())
    rehearse(tmp_path, "report", *OWN)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.count("er-hardest") > 3
    assert 'class="stale"' not in page
    key = found["methods"]["er-warm"]["runs"][0]
    assert "stale" not in rehearse(tmp_path, "show", key, *OWN)
    assert "stale" in rehearse(tmp_path, "show", key)


def test_an_own_method_on_an_own_stream_is_tuned_within_ranges(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="the extra tune is not installed")
    words = ("--stream", "blobs", "--trials", "2", "--seeds", "1", "--range", "lr=0.01:0.2", "--range", "warmup=5:50")
    text = rehearse(tmp_path, "tune", "er-warm", *words, *OWN)
    assert 'method = "er-warm"' in text
    assert "warmup = " in text


def test_an_entry_point_is_loaded_where_a_name_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        @staticmethod
        def load() -> None:
            METHODS["from-elsewhere"] = METHODS["er"]

    monkeypatch.setattr(extensions, "entry_points", lambda group: [Entry] if group == "rehearse" else [])
    try:
        assert find_method("from-elsewhere") is METHODS["er"]
    finally:
        METHODS.pop("from-elsewhere", None)


def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(extensions.FILES, "")
    with pytest.raises(InvalidInput, match=r"there is no file .*gone.py to import"):
        extensions.import_files([tmp_path / "gone.py"])
