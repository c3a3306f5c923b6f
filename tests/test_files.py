"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from rehearse.files import append, replace_file, write_whole


def test_a_file_is_replaced_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    write_whole(path, "one")
    with pytest.raises(TypeError):
        replace_file(path, b"half of the other", None)
    assert path.read_text("utf-8") == "one"
    assert os.listdir(tmp_path) == ["page.md"]


def test_a_link_stays_a_link_and_a_file_keeps_its_mode(tmp_path: Path) -> None:
    path, link = tmp_path / "page.md", tmp_path / "link.md"
    path.write_text("one", "utf-8")
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, "two")
    assert link.is_symlink()
    assert path.read_text("utf-8") == "two"
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_the_system_refuses_it_refuses_in_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such.md"
    with pytest.raises(FileNotFoundError) as refused:
        write_whole(path, "one")
    assert refused.value.filename == str(path)


def test_a_pipe_takes_the_text_as_it_comes(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    write_whole(Path(f"/proc/self/fd/{writing}"), "one")
    os.close(writing)
    assert os.read(reading, 10) == b"one"
    os.close(reading)


def test_what_a_killed_process_left_is_removed_by_the_next_that_writes(tmp_path: Path) -> None:
    path, other = tmp_path / "page.md", tmp_path / ".pages.md.abc.tmp"
    (tmp_path / ".page.md.abc.tmp").write_bytes(b"half")
    other.write_bytes(b"of another file")
    with open(tmp_path / ".page.md.def.tmp", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # it is being written by another process
        replace_file(path, b"whole")
    assert sorted(os.listdir(tmp_path)) == sorted([other.name, path.name, ".page.md.def.tmp"])


def test_an_error_says_whether_the_old_file_or_the_new_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kind_of = tmp_path / "page.md", os.fstat

    def refuse(kind: Callable[[int], bool]) -> Callable[[int], None]:
        def fsync(descriptor: int) -> None:
            if kind(kind_of(descriptor).st_mode):
                raise OSError(errno.EIO, "disk error")

        return fsync

    write_whole(path, "one")
    monkeypatch.setattr(os, "fsync", refuse(stat.S_ISREG))
    with pytest.raises(OSError, match="disk error; what was there before is untouched"):
        write_whole(path, "two")
    assert path.read_text("utf-8") == "one"
    monkeypatch.setattr(os, "fsync", refuse(stat.S_ISDIR))
    with pytest.raises(OSError, match="disk error; the new file is in place"):
        write_whole(path, "two")
    assert path.read_text("utf-8") == "two"
    assert os.listdir(tmp_path) == ["page.md"]


def test_a_file_system_without_locks_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unknown)
    write_whole(tmp_path / "page.md", "one")
    write_whole(tmp_path / "page.md", "two")
    assert (tmp_path / "page.md").read_text("utf-8") == "two"


def test_content_is_appended_where_a_file_ends_and_a_file_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    assert append(path, b"one", 0) == 3
    assert append(path, b"two", 2) == 5
    assert path.read_bytes() == b"ontwo"
    path.unlink()
    with pytest.raises(FileNotFoundError):
        append(path, b"three", 5)
    assert not path.exists()
