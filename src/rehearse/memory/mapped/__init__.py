"""Samples in a memory-mapped file, with a way back to every checkpoint."""

from .file import MappedFile

__all__ = ["MappedFile"]
