"""Files over the network: continued where they broke off, trusted after their checksum, unpacked safely."""

from __future__ import annotations

import logging
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from rehearse.errors import DataError

Progress: TypeAlias = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all where known

CHUNK = 1 << 16
UNPACKED = 400_000_000  # bytes in all: twice what CIFAR-10 takes
PATIENCE = 30  # seconds without a byte before a connection counts as broken


@dataclass(frozen=True, slots=True)
class Remote:
    """A file, the addresses it can be had from (tried in this order), and its "algorithm:checksum"."""

    name: str
    addresses: tuple[str, ...]
    checksum: str


def download(remote: Remote, folder: Path, on_progress: Progress | None = None) -> Path:
    """The file in ``folder``, fetched unless it is there and right.

    Bytes gather in NAME.part, which the next attempt continues; the file gets its name only when its checksum
    is right, so that a file with a right name is a right file.
    """
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)  # what to print is the caller's business
    downloader = _Continuing(folder / f"{remote.name}.part", remote.name, on_progress)
    problems = []
    for address in remote.addresses:
        try:
            return Path(pooch.retrieve(address, remote.checksum, remote.name, folder, downloader=downloader))
        except (ValueError, requests.RequestException, OSError) as problem:
            problems.append(f"{address}: {problem}")
    again = "the same command again continues where it broke off"
    raise DataError(f"{remote.name} could not be fetched into {folder} ({'; '.join(problems)}); {again}")


class _Continuing:
    """How pooch gets its bytes here: into a file that outlives a broken connection."""

    def __init__(self, part: Path, name: str, on_progress: Progress | None) -> None:
        self._part, self._name, self._on_progress = part, name, on_progress

    def __call__(self, url: str, output_file: Any, pooch: Any, check_only: bool = False) -> None:
        import requests

        have = self._part.stat().st_size if self._part.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, headers=headers, stream=True, timeout=PATIENCE) as response:
            if have and _cannot_continue(response, have):
                self._part.unlink()
                return self(url, output_file, pooch)
            response.raise_for_status()
            if response.status_code == requests.codes.ok:
                have = 0  # it sends the whole file, whatever was asked for
            length = response.headers.get("Content-Length")
            total = have + int(length) if length else None
            with self._part.open("ab" if have else "wb") as file:
                for chunk in response.iter_content(CHUNK):
                    file.write(chunk)
                    have += len(chunk)
                    if self._on_progress is not None:
                        self._on_progress(self._name, have, total)
        if total is not None and have != total:
            raise requests.ConnectionError(f"broke off after {have:,} of {total:,} bytes")
        os.replace(self._part, output_file)
        return None


def _cannot_continue(response: Any, have: int) -> bool:
    """Whether the server has no byte there (416), or sends another part (206) than the one asked for."""
    status: int = response.status_code
    content_range: str = response.headers.get("Content-Range", "")
    return status == 416 or (status == 206 and not content_range.startswith(f"bytes {have}-"))


def extract(archive: Path, folder: Path) -> list[Path]:
    """Unpack a tar file into ``folder``, or refuse it whole: only plain files and directories inside it."""
    try:
        with tarfile.open(archive) as tar, tempfile.TemporaryDirectory(dir=folder) as temporary:
            size, files = 0, []
            for member in tar:
                size += member.size
                if size > UNPACKED:
                    raise DataError(f"{archive} declares more than {UNPACKED:,} bytes; nothing was unpacked")
                files += [member] if _harmless(member).isfile() else []
            for member in files:
                target = Path(temporary, member.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                source = tar.extractfile(member)
                assert source is not None  # a regular file has content
                with source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
            for member in files:
                (folder / member.name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(Path(temporary, member.name), folder / member.name)
    except (tarfile.TarError, EOFError, zlib.error) as problem:
        raise DataError(f"{archive} is no complete archive ({problem}); delete it and fetch it again") from problem
    return [folder / member.name for member in files]


def _harmless(member: tarfile.TarInfo) -> tarfile.TarInfo:
    path = PurePosixPath(member.name)
    outside = path.is_absolute() or ".." in path.parts or "\\" in member.name or ":" in member.name
    if outside or not (member.isfile() or member.isdir()):
        raise DataError(f"the archive holds {member.name!r}, which is no plain file inside it; nothing was unpacked")
    return member
