"""The errors of rehearse: one family, each also the builtin that fits."""

from __future__ import annotations


class RehearseError(Exception):
    """The base of all errors that rehearse raises on purpose."""


class InvalidInput(RehearseError, ValueError):
    """A value that cannot be learned from, predicted on, or used as an option."""


class NotFinite(InvalidInput):
    """A loss or a gradient that is not finite although the input is."""


class InvalidType(RehearseError, TypeError):
    """A value of a type that cannot be used."""


class DataError(RehearseError, ValueError):
    """A data file that is missing, truncated, corrupted or of another format."""


class CheckpointError(RehearseError, ValueError):
    """A saved file that is damaged, foreign, of another version, or made for another learner."""


class RefusedElsewhere(InvalidInput):
    """What no rank has done, because another rank refused its own part: a batch, a save or a load."""


class RankLost(RehearseError, RuntimeError):
    """Another rank that does not answer, or that is at another point of the stream."""


class MissingExtra(RehearseError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        """Name the package, and the extra that installs it."""
        super().__init__(f"{package} is not installed; it comes with the extra: rehearse-torch[{extra}]")
