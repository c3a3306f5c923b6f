"""Tries, divided among what is tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

Part = TypeVar("Part")


def divided(tries: int, parts: Sequence[Part]) -> Iterator[tuple[Part, int]]:
    """Yield each part with its number of tries, as equal as can be; parts without any are left out."""
    for number, part in enumerate(parts):
        share = tries // len(parts) + (number < tries % len(parts))
        if share:
            yield part, share
