"""What `rehearse tune` searches: for each method the values to choose from, and where they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidInput
from ..methods import find_method
from ..spec import Plain, own_table


@dataclass(frozen=True)
class Range:
    """All numbers from ``low`` to ``high``: whole ones if both are, on a logarithmic scale if they span ten times."""

    low: float
    high: float

    def suggest(self, trial: Any, name: str) -> float:
        """Return a number of the range, chosen by an Optuna trial."""
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        draw = trial.suggest_int if whole else trial.suggest_float
        value: float = draw(name, self.low, self.high, log=self.low > 0 and self.high >= 10 * self.low)
        return value


Space = Mapping[str, Sequence[Plain] | Range]


def space_of(method: str) -> Space:
    """The values to search for a method; the learning rate alone where nothing else is known."""
    parts = own_table("campaign/spaces.toml")
    space = {name: values for part in parts["methods"].get(method, ["any"]) for name, values in parts[part].items()}
    unknown = space.keys() - find_method(method).options.keys() - {"lr", "updates", "candidates"}
    if unknown:
        raise InvalidInput(f"the search space of {method} has {', '.join(sorted(unknown))}, which it does not know")
    return space


def parse_ranges(words: Sequence[str]) -> dict[str, Sequence[Plain] | Range]:
    """Return what the command line asks to search: ``lr=0.01:0.3``, or ``candidates=30,50``."""
    found: dict[str, Sequence[Plain] | Range] = {}
    for word in words:
        name, _, text = word.partition("=")
        ends = text.split(":")
        try:
            values = [json.loads(part) for part in (ends if len(ends) == 2 else text.split(","))]
        except json.JSONDecodeError:
            raise InvalidInput(f"the range {word!r} is not NAME=LOW:HIGH or NAME=VALUE,VALUE,…") from None
        if len(ends) == 2 and not values[0] < values[1]:
            raise InvalidInput(f"the range {word!r} is empty; give the lower end first")
        found[name.replace("-", "_")] = Range(*values) if len(ends) == 2 else values
    return found


def as_layer(method: str, chosen: Mapping[str, Plain]) -> dict[str, object]:
    """Chosen values as a layer of a spec: a method's own options apart from the fields that all share."""
    own = find_method(method).options
    layer: dict[str, object] = {name: value for name, value in chosen.items() if name not in own}
    options = {name: value for name, value in chosen.items() if name in own}
    return layer | ({"options": options} if options else {})
