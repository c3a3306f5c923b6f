"""What a suite reports."""

from __future__ import annotations

from typing import NamedTuple


class Result(NamedTuple):
    """How often a suite tried to break a promise, and what it broke."""

    tries: int
    failures: list[str]
