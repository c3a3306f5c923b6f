"""What `rehearse tune` searches: for each method the values to choose from, and where they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidInput
from ..methods import find_method
from ..spec import Plain


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

# The paper chose the learning rate of experience replay by validation without saying from what; its C from these four.
LEARNING_RATE: Space = {"lr": (0.01, 0.05, 0.1, 0.2)}
CANDIDATES: Space = {"candidates": (30, 50, 100, 150)}

# The appendix of the paper. Its depths are 2, 3 and 4; the released settings have 1 too. It prints 218 hidden units
# where the released program has 128.
GENERATOR: Space = {
    "lr": (0.5, 0.1, 0.01),
    "updates": (2, 5, 10, 15, 20),
    "dropout": (0.0, 0.1, 0.2, 0.3, 0.4),
    "beta": (0.2, 0.5, 1.0),
    "warmup": (1, 250, 500, 1000),
    "memories": (1, 2, 4, 10),
    "replay_weight": (1.0, 2.0, 3.0, 5.0),
    "latent": (50, 100),
    "depth": (1, 2, 3, 4),
    "hidden": (128, 256),
}
COEFFICIENT = (0.0, 0.1, 1.0, 2.0)
SEARCH: Space = {
    "mir_on": ("classifier", "generator", "both"),
    "search_steps": (2, 3, 5, 10),
    **{
        f"{network}_{term}": COEFFICIENT
        for network, terms in {
            "classifier": ("kl", "entropy", "diversity", "shell"),
            "generator": ("kl", "reconstruction", "entropy", "diversity", "shell"),
        }.items()
        for term in terms
    },
}
# Ours: around the values that users report for this setting.
DISTILLATION: Space = {"alpha": (0.1, 0.2, 0.5, 1.0), "beta": (0.1, 0.5, 1.0)}

SPACES: Mapping[str, Space] = {
    "er-mir": {**LEARNING_RATE, **CANDIDATES},
    "er-mir-head": {**LEARNING_RATE, **CANDIDATES},
    "er-ace-mir": {**LEARNING_RATE, **CANDIDATES},
    "der": {**LEARNING_RATE, **DISTILLATION},
    "der-mir": {**LEARNING_RATE, **CANDIDATES, **DISTILLATION},
    "gen": GENERATOR,
    "gen-mir": {**GENERATOR, **SEARCH},
}


def space_of(method: str) -> Space:
    """The values to search for a method; the learning rate alone where nothing else is known."""
    options = find_method(method).options
    space = SPACES.get(method, LEARNING_RATE)
    fields = {"lr", "updates", "candidates"}
    unknown = space.keys() - options.keys() - fields
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
