"""Under which conditions a run was made: where two runs round alike, and where their CPU seconds compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNKNOWN = "model unknown"


def rounding(result: Mapping[str, Any]) -> str:
    """What decides how its processors add up: on two kinds of them one seed is two runs."""
    places = {f"{place.get('processor', '?')}, {place.get('cpu_capability', '?')}" for place in _places(result)}
    return "; ".join(sorted(places | _kernels(result)))


def seen_only(result: Mapping[str, Any]) -> bool:
    """Whether after each task the tasks so far alone were evaluated."""
    ahead = [entry for task, row in enumerate(result["matrices"]["test"]) for entry in row[task + 1 :]]
    return bool(ahead) and all(entry is None for entry in ahead)


def condition(result: Mapping[str, Any]) -> str:
    """The processor of a run (those of one name may differ by half in speed), and what else its CPU seconds hang on."""
    processors = sorted({_processor(place) for place in _places(result)})
    words = [processors[0] if len(processors) == 1 else f"{' and '.join(processors)} ({UNKNOWN} by parts)"]
    words += sorted(_kernels(result))
    if seen_only(result):
        words.append("tasks so far alone evaluated")
    return ", ".join(words)


def _kernels(result: Mapping[str, Any]) -> set[str]:
    """Whether our own kernels had a part, in all of it or in some: where convolutions pass in bfloat16, or code."""
    spec = result["spec"]
    passes = spec.get("precision") != "float32" or "codes" in spec.get("options", {})
    if not str(spec.get("network")).startswith("resnet") or not passes:
        return set()
    used = {place.get("kernels", "torch") for place in _places(result)}
    return {"own kernels" if used == {"own"} else "own kernels in part"} if "own" in used else set()


def _processor(place: Mapping[str, Any]) -> str:
    model = place.get("processor_model") or UNKNOWN
    return f"{place.get('processor', '?')} ({model}), {place.get('cpu_capability', '?')}"


def _places(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The environments of its parts: a run may go on elsewhere."""
    return [result["environment"], *result["environment"].get("earlier", [])]
