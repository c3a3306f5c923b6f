"""A disk that fails and forgets, in the place of the ``os`` that `rehearse.files` writes through.

Calls reach a real directory, which shows what running programs would see. Beside it stands a log of every
change with a note of what was synced: a write by syncing its file, a name (created, renamed, removed) by syncing its
directory. From the log come the *images* that a restart may find after the power failed: all that was synced, and any
part of the rest, out of order, writes torn at sectors.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECTOR = 512
Image = dict[str, bytes | None]
"""What is on the disk: contents by path; None is a directory."""
FAULTS = ("ENOSPC", "EIO", "EINTR", "short", "full", "dead")
"""What can happen to a call: an error, fewer bytes written than asked for, or errors from now on until `repair`: of
calls that need room, or of all."""


@dataclass(eq=False)
class File:
    """A file, whatever its name."""


@dataclass(eq=False)
class Change:
    """A change of a file's content, or of the names in a directory."""

    of: File | str
    what: str
    arguments: tuple[Any, ...]
    synced: bool = False


@dataclass
class LyingDisk:
    """The functions of ``os`` that write."""

    root: Path
    before_call: Callable[[], None] = lambda: None
    calls: int = 0
    fault: tuple[int, str] | None = None  # at which call, and what
    log: list[Change] = field(default_factory=list)
    names: dict[str, File] = field(default_factory=dict)
    _files: dict[int, File] = field(default_factory=dict)  # by inode
    _folders: dict[int, str] = field(default_factory=dict)  # by descriptor

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    # ------------------------------------------------------------------------------------------------- what writes

    def open(self, path: str | Path, flags: int, mode: int = 0o777) -> int:
        new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        if new:
            self._call(needs_room=True)
        descriptor = os.open(path, flags, mode)
        if os.path.isdir(path):
            self._folders[descriptor] = str(path)
        elif new:
            self._files[os.fstat(descriptor).st_ino] = self.names[str(path)] = File()
            self._renamed("link", str(path), self.names[str(path)])
        return descriptor

    def close(self, descriptor: int) -> None:
        self._folders.pop(descriptor, None)
        os.close(descriptor)

    def pwrite(self, descriptor: int, content: Any, position: int) -> int:
        grows = position + len(content) > os.fstat(descriptor).st_size
        if self._call(needs_room=grows, may_be_short=True):
            content = content[: (len(content) + 1) // 2]
        written = os.pwrite(descriptor, content, position)
        self._log(descriptor, "write", position, bytes(content[:written]))
        return written

    def ftruncate(self, descriptor: int, size: int) -> None:
        self._call()
        os.ftruncate(descriptor, size)
        self._log(descriptor, "cut", size)

    def posix_fallocate(self, descriptor: int, position: int, size: int) -> None:
        self._call(needs_room=True)
        os.posix_fallocate(descriptor, position, size)
        self._log(descriptor, "grow", position + size)

    def fsync(self, descriptor: int) -> None:
        self._call()
        about: File | str | None = self._folders.get(descriptor) or self._file(descriptor)
        for change in self.log:
            change.synced = change.synced or change.of is about or change.of == about

    def replace(self, old: Path, new: Path) -> None:
        self._call()
        os.replace(old, new)
        self.names[str(new)] = self.names.pop(str(old))
        self._renamed("move", str(new), self.names[str(new)], str(old))

    def unlink(self, path: Path) -> None:
        self._call()
        os.unlink(path)
        del self.names[str(path)]
        self._renamed("unlink", str(path))

    def mkdir(self, path: Path) -> None:
        self._call(needs_room=True)
        os.mkdir(path)
        self._renamed("mkdir", str(path))

    def _file(self, descriptor: int) -> File:
        return self._files[os.fstat(descriptor).st_ino]

    def _log(self, descriptor: int, what: str, *arguments: Any) -> None:
        assert stat.S_ISREG(os.fstat(descriptor).st_mode)
        self.log.append(Change(self._file(descriptor), what, arguments))

    def _renamed(self, what: str, path: str, *arguments: Any) -> None:
        self.log.append(Change(os.path.dirname(path), what, (path, *arguments)))

    # ------------------------------------------------------------------------------------------------------ faults

    def repair(self) -> None:
        self.fault = None

    def _call(self, needs_room: bool = False, may_be_short: bool = False) -> bool:
        """Fail if it is this call's turn; return whether it is to write half of what it should."""
        self.before_call()
        self.calls += 1
        at, what = self.fault or (self.calls + 1, "")
        if self.calls < at or (self.calls > at and what not in ("full", "dead")):
            return False
        if what == "short" or (what == "full" and not needs_room):
            return what == "short" and may_be_short
        if what == "full" and may_be_short and self.calls == at:
            return True
        number = {"full": errno.ENOSPC, "dead": errno.EIO}.get(what) or getattr(errno, what)
        raise OSError(number, os.strerror(number))

    # ------------------------------------------------------------------------------------------------------ images

    def images(self, chance: random.Random, drawn: int = 4) -> list[Image]:
        """Return what a restart may find now: all changes (a kill), the synced ones alone, and some drawn parts."""
        kept = [lambda _: 1.0, lambda _: 0.0]
        for _ in range(drawn):
            of_each: dict[Any, float] = {}  # now and then a whole file or directory is early, or late
            kept.append(lambda change, of=of_each: of.setdefault(change.of, chance.choice((0.0, 0.3, 0.7, 1.0))))
        return [self._image(share, chance) for share in kept]

    def _image(self, share: Callable[[Change], float], chance: random.Random) -> Image:
        contents: dict[File, bytearray] = {}
        names: dict[str, File | None] = {str(self.root): None}
        for change in self.log:
            reached = 1.0 if change.synced else share(change)
            if reached == 0 or (change.what != "write" and chance.random() >= reached):
                continue
            if isinstance(change.of, str):
                path, *about = change.arguments
                names.pop(about[1] if change.what == "move" else path, None)
                if change.what != "unlink":
                    names[path] = about[0] if about else None
                continue
            content = contents.setdefault(change.of, bytearray())
            if change.what == "cut":
                (size,) = change.arguments
                content[size:] = bytes(max(size - len(content), 0))
            elif change.what == "grow":
                content.extend(bytes(max(change.arguments[0] - len(content), 0)))
            else:
                _write(content, *change.arguments, reached, chance)
        return {
            os.path.relpath(path, self.root): None if file is None else bytes(contents.get(file, b""))
            for path, file in names.items()
            if all(str(above) in names for above in Path(path).parents if above.is_relative_to(self.root))
        }


def _write(content: bytearray, position: int, new: bytes, reached: float, chance: random.Random) -> None:
    """Write the sectors that reached the disk."""
    content.extend(bytes(max(position + len(new) - len(content), 0)))
    start = position
    while start < position + len(new):
        end = min((start // SECTOR + 1) * SECTOR, position + len(new))
        if chance.random() < reached:
            content[start:end] = new[start - position : end - position]
        start = end


def restore(image: Image, folder: Path) -> None:
    """Make a directory of an image."""
    for name, content in sorted(image.items()):
        if content is None:
            (folder / name).mkdir(parents=True, exist_ok=True)
        else:
            (folder / name).write_bytes(content)
