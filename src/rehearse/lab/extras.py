"""What is imported only where it is used, because it comes with an extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import MissingExtra


@contextmanager
def needs(package: str, extra: str) -> Iterator[None]:
    """Say which extra installs a package that the block cannot import."""
    try:
        yield
    except ImportError as problem:
        raise MissingExtra(package, extra) from problem
