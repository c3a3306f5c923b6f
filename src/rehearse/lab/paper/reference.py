"""What the reference implementation, the authors' own program, was measured to give; see reference.toml."""

from __future__ import annotations

from functools import cache
from math import nan
from typing import Any

from ..methods import resolve
from ..spec import Spec, own_table
from ..statistics import Summary, interval


def source() -> str:
    """Return where the numbers are from, and how they were measured."""
    words: str = _file()["source"]
    return words


def reference(spec: Spec, metric: str) -> Summary | None:
    """Return the number of the reference implementation at the settings of a spec, if it was measured there."""
    for setting in _file()["settings"]:
        same = resolve(setting["method"], setting["stream"], {"lr": setting["lr"]})
        if metric in setting and same.group == spec.group:
            mean, sd = setting[metric]["mean"] / 100, setting[metric]["sd"] / 100
            return Summary(mean, interval(mean, sd, setting["n"]), nan, sd, setting["n"], ())
    return None


@cache
def _file() -> dict[str, Any]:
    return own_table("paper/reference.toml")
