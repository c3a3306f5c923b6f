"""A drawn share of what `make torture` tries in full."""

from __future__ import annotations

from .file_layer import run


def test_a_restart_finds_the_last_completed_state() -> None:
    assert run(80, seed=0).failures == []
