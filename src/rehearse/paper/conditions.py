"""Under which conditions a run was made: where two runs round alike, and where their CPU seconds compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNKNOWN = "model unknown"


def rounding(result: Mapping[str, Any]) -> str:
    """What decides how a processor adds up: on two kinds of them one seed is two runs."""
    place = result["environment"]
    return f"{place.get('processor', '?')}, {place.get('cpu_capability', '?')}"


def seen_only(result: Mapping[str, Any]) -> bool:
    """Whether after each task the tasks so far alone were evaluated."""
    ahead = [entry for task, row in enumerate(result["matrices"]["test"]) for entry in row[task + 1 :]]
    return bool(ahead) and all(entry is None for entry in ahead)


def condition(result: Mapping[str, Any]) -> str:
    """The processor of a run (those of one name may differ by half in speed), and what else its CPU seconds hang on."""
    place = result["environment"]
    words = [
        f"{place.get('processor', '?')} ({place.get('processor_model') or UNKNOWN})",
        str(place.get("cpu_capability", "?")),
    ]
    if seen_only(result):
        words.append("tasks so far alone evaluated")
    if place.get("earlier"):
        words.append("begun elsewhere")
    return ", ".join(words)
