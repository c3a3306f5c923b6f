"""Where compiled kernels come from: a folder of the user's own, made once, and done without where that fails."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from having_kernels import needs_kernels

TOLD = "from rehearse.kernels import kernels_at_hand; print(kernels_at_hand())"
WHY = "from rehearse.kernels import why_not; print(why_not())"
COMPUTED = """
import torch
from torch import nn
from rehearse.kernels import kernels_at_hand, own_kernels
torch.set_num_threads(1)
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU())
net.channels_last = True
with torch.autocast("cpu", torch.bfloat16), own_kernels(net):
    print(kernels_at_hand(), net(torch.randn(2, 3, 8, 8)).sum().item())
"""


def started(code: str, cache: Path, **environment: str) -> subprocess.Popen[str]:
    settings = {**os.environ, "XDG_CACHE_HOME": str(cache), **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-W", "error", "-c", code], env=settings, **pipes)


def told(process: subprocess.Popen[str]) -> str:
    out, problem = process.communicate(timeout=120)
    assert not process.returncode, problem
    return out.strip()


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "rehearse" / "kernels").iterdir())


@needs_kernels
def test_compiled_once_for_all_that_come_at_once_and_later(tmp_path: Path) -> None:
    several = [started(COMPUTED, tmp_path) for _ in range(3)]
    answers = {told(process) for process in several}
    assert len(answers) == 1
    (file,) = kept(tmp_path)
    assert stat.S_IMODE((tmp_path / "rehearse" / "kernels").stat().st_mode) == 0o700
    made = file.stat().st_mtime_ns
    assert {told(started(COMPUTED, tmp_path, CC="cc"))} == answers
    assert file in kept(tmp_path)
    assert file.stat().st_mtime_ns == made


@needs_kernels
@pytest.mark.parametrize("damage", ["emptied", "cut", "one bit", "another's"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, damage: str) -> None:
    right = told(started(COMPUTED, tmp_path))
    (file,) = kept(tmp_path)
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    file.write_bytes(
        {"emptied": b"", "cut": whole[: len(whole) // 2], "one bit": bytes(flipped)}.get(damage, b"\x7fELF")
    )
    assert told(started(COMPUTED, tmp_path)) == right
    assert file.read_bytes() == whole


@needs_kernels
def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "rehearse" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert told(started(TOLD, tmp_path)) == "True"
    assert not kept(tmp_path)


@needs_kernels
def test_no_folder_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert told(started(TOLD, tmp_path / "file")) == "True"


@needs_kernels
def test_a_user_without_a_home_has_kernels(tmp_path: Path) -> None:
    """An id that no account has, and no HOME, as in some containers."""
    program = f"import os; os.environ.pop('HOME', None); os.environ.pop('XDG_CACHE_HOME', None); {TOLD}"
    program = program.replace("import os;", "import os, pwd; pwd.getpwuid = {}.__getitem__;", 1)
    assert told(started(program, tmp_path)) == "True"


@needs_kernels
def test_what_else_lies_in_the_folder_is_passed_over(tmp_path: Path) -> None:
    told(started(TOLD, tmp_path))
    (file,) = kept(tmp_path)
    file.unlink()
    (file.parent / f"{file.stem.partition('-')[0]}-folder.so").mkdir()
    assert told(started(TOLD, tmp_path)) == "True"


@needs_kernels
@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("false", "cannot be compiled"),
        ("no-such-compiler", "there is no C compiler no-such-compiler"),
        ("echo", "cannot be compiled or loaded"),
        ('gcc "-O2', "No closing quotation"),
        ("gcc -include nothing.h", "nothing.h"),
    ],
)
def test_without_a_compiler_that_works_torchs_kernels_are_used(tmp_path: Path, compiler: str, reason: str) -> None:
    assert told(started(COMPUTED, tmp_path, CC=compiler)).startswith("False ")
    assert reason in told(started(WHY, tmp_path, CC=compiler))


def test_nobody_has_to_use_them(tmp_path: Path) -> None:
    assert told(started(TOLD, tmp_path, REHEARSE_KERNELS="torch")) == "False"
    assert not (tmp_path / "rehearse").exists()


def test_another_word_is_refused(tmp_path: Path) -> None:
    process = started(TOLD, tmp_path, REHEARSE_KERNELS="off")
    assert "REHEARSE_KERNELS is 'off'; it must be own or torch" in process.communicate()[1]
