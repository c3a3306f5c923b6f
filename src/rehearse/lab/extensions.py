"""Methods, retrievals, streams and networks of the user's own.

A file named by ``--import``, or a module behind an entry point of the group ``rehearse``, adds to `METHODS`,
`STREAMS` and `NETWORKS` when it is imported. The files stand in an environment variable, so that the processes of a
campaign import them too.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

from ..errors import InvalidInput

FILES = "REHEARSE_IMPORT"
Known = TypeVar("Known")


def import_files(files: list[Path] | None) -> list[Path] | None:
    """Import these files and the entry points, here and in the processes that follow."""
    os.environ[FILES] = os.pathsep.join(dict.fromkeys([*_files(), *(str(file.resolve()) for file in files or [])]))
    load()
    return files


def _files() -> list[str]:
    return [file for file in os.environ.get(FILES, "").split(os.pathsep) if file]


def load() -> None:
    """Import every file and entry point that was not imported yet."""
    for entry in entry_points(group="rehearse"):
        entry.load()
    for file in _files():
        _run(file)


@cache
def _run(file: str) -> None:
    if not Path(file).is_file():
        raise InvalidInput(f"there is no file {file} to import")
    runpy.run_path(file, run_name=Path(file).stem)


def find(known: Mapping[str, Known], kind: str, name: str, listed: str = "") -> Known:
    """Return what has that name, of the user's own too, or say which there are, or where they are ``listed``."""
    if name not in known:
        load()
    if name not in known:
        where = listed or f"there are {', '.join(known)}"
        raise InvalidInput(f"there is no {kind} {name!r}{did_you_mean(name, known)}; {where}")
    return known[name]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the name that is most like this one as a question in brackets; nothing if none is."""
    near = get_close_matches(name, [*known], n=1)
    return f" (did you mean {near[0]}?)" if near else ""
