"""The names on the command line: name -> how to build that learner.

A new method is one file in learners/ and one entry here (or the entry alone, where only the loss or the retrieval
differs). The contract tests pick it up by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..batch import Tree, tree_map
from ..errors import InvalidInput
from ..learners import Learner
from ..network import prepare_unit
from . import builders
from .builders import (
    Build,
    asymmetric,
    dark,
    in_draws,
    most_interfered,
    most_interfered_by_head,
    replay,
    uniform,
)
from .builders import Problem as Problem
from .generative_builder import GENERATOR_OPTIONS, SEARCH_OPTIONS, generative
from .hybrid_builder import CODE_OPTIONS, CODE_SEARCH_OPTIONS, WITHOUT_PART, coded, coded_and_searched
from .spec import Plain, Spec, merge, stream_settings
from .streams import STREAMS


@dataclass(frozen=True)
class Method:
    """A name on the command line.

    ``uses`` are the fields of a spec that this method looks at; ``options`` its own hyper-parameters with their
    defaults, and ``not_preparing`` those of them that have no part in what it prepares before a task (None: it
    prepares nothing that another run could use); ``iid_epochs`` how often the shuffled stream is passed (0: the stream
    as it comes); ``version`` is raised by hand when the method's numbers change.
    """

    summary: str
    build: Build
    uses: frozenset[str] = frozenset()
    options: Mapping[str, Plain] = field(default_factory=dict)
    not_preparing: frozenset[str] | None = None
    iid_epochs: int = 0
    version: int = 1
    candidates: int | None = None  # where neither the stream's settings nor the user say how many

    @property
    def scores(self) -> bool:
        """Whether it looks for what the coming update interferes with."""
        return "criterion" in self.uses or "search_steps" in self.options


REPLAY = frozenset({"capacity", "updates", "budget", "candidates", "batchnorm", "exclude_current_task"})
CODES = frozenset({"capacity", "updates", "budget", "exclude_current_task"})
COMMON = frozenset({"capacity", "updates", "budget", "candidates", "criterion", "batchnorm", "exclude_current_task"})


# DER++: the weights of the two terms; draws=2 recalls a batch for each, as published.
DARK_OPTIONS: dict[str, Plain] = {"alpha": 0.1, "beta": 0.5, "draws": 1}

METHODS: dict[str, Method] = {
    "finetune": Method("a step on each batch, no replay: the lower bound", builders.finetune, frozenset({"updates"})),
    "iid-online": Method(
        "one pass over the shuffled stream: an upper bound", builders.finetune, frozenset({"updates"}), iid_epochs=1
    ),
    "iid-offline": Method(
        "five passes over the shuffled stream: an upper bound",
        builders.finetune,
        frozenset({"updates"}),
        iid_epochs=5,
    ),
    "er": Method("experience replay: memories recalled at random", replay(uniform), REPLAY),
    "er-mir": Method(
        "experience replay of the memories that the coming update interferes with most",
        replay(most_interfered),
        COMMON,
    ),
    "er-mir-head": Method(
        "ER-MIR that foresees the update of the last layer alone: one pass through the body instead of two",
        replay(most_interfered_by_head),
        COMMON,
    ),
    "er-ace": Method(
        "ER with the asymmetric loss: what arrives does not push away the classes that are not there",
        replay(uniform, asymmetric, all_tasks=True),
        REPLAY - {"exclude_current_task"},
    ),
    "er-ace-mir": Method(
        "ER-ACE of the most interfered memories",
        replay(most_interfered, asymmetric, all_tasks=True),
        COMMON - {"exclude_current_task"},
    ),
    "der": Method(
        "DER++: memories are recalled with the scores that they were stored with",
        replay(in_draws(uniform), dark, all_tasks=True),
        REPLAY - {"exclude_current_task"},
        DARK_OPTIONS,
    ),
    "der-mir": Method(
        "DER++ of the most interfered memories",
        replay(in_draws(most_interfered), dark, all_tasks=True),
        COMMON - {"exclude_current_task"},
        DARK_OPTIONS,
    ),
    "gem": Method(
        "GEM: no step that raises the loss of a past task",
        builders.gem,
        frozenset({"capacity", "updates"}),
        {"margin": 0.5},
    ),
    "agem": Method(
        "A-GEM: no step that raises the average loss of the past",
        builders.agem,
        frozenset({"capacity", "updates", "budget"}),
    ),
    "icarl": Method(
        "iCaRL: exemplars chosen by herding, distillation, the nearest mean of exemplars",
        builders.icarl,
        frozenset({"capacity", "updates", "budget"}),
        {"keep": "memory"},
    ),
    "gen": Method(
        "replay of what a generator, itself learned from the stream, imagines of the past",
        generative,
        frozenset({"updates"}),
        GENERATOR_OPTIONS,
    ),
    "gen-mir": Method(
        "replay of what a generator imagines, searched for what the coming update interferes with most",
        generative,
        frozenset({"updates"}),
        GENERATOR_OPTIONS | SEARCH_OPTIONS,
    ),
    "ae": Method(
        "replay from a memory of codes that an autoencoder, itself learned from the stream, reads and writes",
        coded,
        CODES,
        CODE_OPTIONS,
        WITHOUT_PART,
    ),
    "ae-mir": Method(
        "replay of the stored codes nearest to where, in the space of codes, the coming update interferes most",
        coded_and_searched,
        CODES | {"candidates"},
        CODE_OPTIONS | CODE_SEARCH_OPTIONS,
        WITHOUT_PART,
        candidates=500,
    ),
}


# ------------------------------------------------------------------------------------------------------ resolving

SPEC_FIELDS = frozenset(Spec.__dataclass_fields__) - {"method", "stream", "method_version", "stream_version"}


def find_method(name: str) -> Method:
    if name not in METHODS:
        raise InvalidInput(f"there is no method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]


def resolve(method: str, stream: str, *layers: Mapping[str, Any]) -> Spec:
    """The spec of a run: the stream's settings, then the method's own, then what the user says, later ones winning.

    ``memory`` (rows per class) stands for ``capacity`` (rows in all). Fields that the method does not use are
    cleared; the user naming one that does not exist, or an option of another method, is refused.
    """
    known = find_method(method)
    if stream not in STREAMS:
        raise InvalidInput(f"there is no stream {stream!r}; there are {', '.join(STREAMS)}")
    settings = stream_settings(stream)
    defaults = {"options": dict(known.options)}
    values = merge([defaults, settings["common"], settings["methods"].get(method, {}), *map(_with_capacity, layers)])
    values = _memory_as_capacity(values, settings["common"].get("classes", 10))
    unknown = values.keys() - SPEC_FIELDS - {"options"}
    if unknown:
        raise InvalidInput(
            f"a run has no setting {', '.join(sorted(unknown))}; there are {', '.join(sorted(SPEC_FIELDS))}"
        )
    foreign = values["options"].keys() - known.options.keys()
    if foreign:
        there_are = f"it has {', '.join(known.options)}" if known.options else "it has none of its own"
        raise InvalidInput(f"{method} has no option {', '.join(sorted(foreign))}; {there_are}")
    values["options"] = {
        name: _checked_option(name, value, known.options[name]) for name, value in values["options"].items()
    }
    for name in COMMON - known.uses:
        values[name] = None
    if known.candidates is not None and values.get("candidates") is None:
        recalled = (values.get("budget") or 0) // values["options"].get("copies", 1)
        values["candidates"] = max(known.candidates, recalled)
    _check_candidates(values)
    values.update(method_version=known.version, stream_version=STREAMS[stream].version)
    return Spec(method=method, stream=stream, **values)


def _check_candidates(values: Mapping[str, Any]) -> None:
    candidates, budget, copies = values.get("candidates"), values.get("budget"), values["options"].get("copies", 1)
    if not all(isinstance(value, int) for value in (candidates, budget, copies)):
        return  # all of them, or nothing that a spec takes
    recalled = budget // max(copies, 1)
    if candidates < recalled:
        raise InvalidInput(
            f"{candidates} candidates are fewer than the {recalled} that are to be recalled of them; "
            "raise candidates or lower budget"
        )


def precision_of(spec: Spec) -> str:
    """The precision that a run is computed in: one that scores nothing knows none of scoring."""
    scores = spec.criterion is not None or spec.candidates is not None or "search_steps" in spec.options
    return "float32" if spec.precision == "bfloat16-scoring" and not scores else spec.precision


def preparation_key(spec: Spec) -> str | None:
    """What runs share that prepare every task in the same way, as a name for a folder; None: there is nothing to share.

    Which method, network and learning rate, what is recalled, in which precision that is looked for, and who sees what
    through the autoencoder play no part.
    """
    method = find_method(spec.method)
    if method.not_preparing is None or spec.task_free:
        return None
    options = {name: value for name, value in spec.options.items() if name not in method.not_preparing}
    training = "float32" if spec.precision == "bfloat16-scoring" else spec.precision
    alike = replace(spec, method="any", network="any", lr=1.0, updates=None, budget=None, candidates=None)
    return replace(alike, options=options, precision=training).key


def _checked_option(name: str, value: Any, default: Plain) -> Any:
    """An option is of the kind of its default; what values of that kind mean something, the learner knows.

    3 and 3.0 are the same number, and make the same run.
    """
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InvalidInput(f"{name} is {value!r}; it must be true or false")
    elif isinstance(default, int | float) or isinstance(value, float):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidInput(f"{name} is {value!r}; it must be a number")
        if name.endswith("_lr") and value <= 0:
            raise InvalidInput(f"{name} is {value!r}; a learning rate is a positive number")
        if isinstance(default, float):
            return float(value)
        if isinstance(default, int) and value == int(value):
            return int(value)
    return value


def _with_capacity(layer: Mapping[str, Any]) -> dict[str, Any]:
    """A layer that names one of memory and capacity overrides both."""
    layer = dict(layer)
    layer.pop("method", None), layer.pop("stream", None)
    layer.pop("method_version", None), layer.pop("stream_version", None)
    if layer.get("memory") is not None and layer.get("capacity") is not None:
        raise InvalidInput("give memory (rows per class) or capacity (rows in all), not both")
    if layer.get("memory") is not None:
        layer["capacity"] = None
    elif layer.get("capacity") is not None:
        layer["memory"] = None
    return layer


def _memory_as_capacity(values: dict[str, Any], classes: int) -> dict[str, Any]:
    memory = values.pop("memory", None)
    values.pop("classes", None)
    if memory is not None:
        if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
            raise InvalidInput(f"memory is {memory!r}; it must be a positive number of rows per class")
        values["capacity"] = memory * classes
    return values


def build(spec: Spec, problem: Problem) -> Learner:
    """The learner of a spec, for that problem."""
    return find_method(spec.method).build(spec, problem)


def prepare_for(scaling: str) -> Callable[[Tree], Tree]:
    return prepare_symmetric if scaling == "symmetric" else prepare_unit


def prepare_symmetric(x: Tree, dtype: torch.dtype = torch.float32) -> Tree:
    """Turn bytes into floats in [−1, 1], the scaling of the CIFAR-10 and Mini-ImageNet experiments: 2x − 1."""

    def leaf(values: Tensor) -> Tensor:
        return values.to(dtype).mul_(2 / 255).sub_(1) if values.dtype == torch.uint8 else values

    return prepare_unit(tree_map(leaf, x), dtype)
