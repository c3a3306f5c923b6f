"""Everything that `rehearse` refuses, by name: one family, each also the builtin that fits."""

from __future__ import annotations


class RehearseError(Exception):
    """Whatever `rehearse` refuses derives from this."""


class InvalidInput(RehearseError, ValueError):
    """A value that cannot be learned from, predicted on, or used as an option."""


class NotFinite(InvalidInput):
    """Finite input of which a loss or a gradient came that is no finite number."""


class InvalidType(RehearseError, TypeError):
    """A value of a kind that cannot be used."""


class DataError(RehearseError, ValueError):
    """A data file that is missing, truncated, corrupted or of another format."""


class CheckpointError(RehearseError, ValueError):
    """A saved file that is damaged, foreign, of a newer version, or made for another learner."""


class MissingExtra(RehearseError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; it comes with the extra: rehearse-torch[{extra}]")
