"""A run, frozen: everything that changes a number, and nothing else.

A spec serialises to sorted JSON, and the hash of that is the key of its result. What the user leaves out is taken
from the settings of the stream (``settings/*.toml``: the paper's, or ours where the paper has none).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ..checks import is_number
from ..errors import InvalidInput
from .limits import read_plain

Plain = bool | int | float | str | None | list[Any]
LARGEST = 3e38  # a number of a spec fits in float32
MOST = {"seed": 2**63 - 1, "split_seed": 2**63 - 1, "tasks": 1_000}  # tasks: an accuracy for each pair of them
MOST_OTHERWISE = 10_000_000  # of samples, for instance: the index of a memory of so many takes 0.2 GB
WHEN_SET = ("every", "step_cost")
"""Fields that a spec without them does not mention, so that they leave its key as it was before they existed."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One run. A field that the method does not use is None, so that it does not change the key."""

    method: str
    stream: str
    seed: int = 0
    # the stream
    split_seed: int = 0
    tasks: int | None = None
    samples_per_task: int | None = None
    batch_size: int = 10
    class_order: tuple[int, ...] | None = None
    # the learner
    network: str = "mlp"
    lr: float = 0.05
    capacity: int | None = None
    updates: int | None = None
    budget: int | None = None
    candidates: int | str | None = None
    criterion: str | None = None
    batchnorm: str | None = None
    exclude_current_task: bool | None = None
    task_free: bool = False
    precision: str = "auto"
    options: Mapping[str, Plain] = field(default_factory=dict)
    every: int | None = None
    """Evaluate within tasks too, after so many batches; it changes nothing that is learned."""
    step_cost: float | None = None
    """How many batches arrive during one step of a stream that does not wait; those in between are dropped."""
    # raised by hand when the numbers of a method or stream change
    method_version: int = 1
    stream_version: int = 1

    def __post_init__(self) -> None:
        for name in ("method", "stream", "network", "precision", "criterion", "batchnorm"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name not in ("criterion", "batchnorm")):
                raise InvalidInput(f"{name} is {value!r}; it must be a name")
        for name in ("task_free", "exclude_current_task"):
            value = getattr(self, name)
            if not isinstance(value, bool) and (value is not None or name == "task_free"):
                raise InvalidInput(f"{name} is {value!r}; it must be true or false")
        for name in ("seed", "split_seed", "method_version", "stream_version"):
            _check_whole(name, getattr(self, name), 0)
        _check_whole("batch_size", self.batch_size, 1)
        for name in ("tasks", "samples_per_task", "capacity", "updates", "budget", "every"):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name), 1)
        if not is_number(self.lr) or not 0 < self.lr <= LARGEST:
            raise InvalidInput(f"lr is {self.lr!r}; a learning rate is a positive number, at most {LARGEST:g}")
        object.__setattr__(self, "lr", float(self.lr))  # 1 and 1.0 are one learning rate, and one key
        if self.step_cost is not None:
            if not is_number(self.step_cost) or not 1 <= self.step_cost <= LARGEST:
                bounds = f"at least 1 and at most {LARGEST:g}"
                raise InvalidInput(f"step_cost is {self.step_cost!r}; it must be a number of batches, {bounds}")
            object.__setattr__(self, "step_cost", float(self.step_cost))
        if self.candidates is not None and self.candidates != "all":
            _check_whole("candidates", self.candidates, 1, 'or "all"')
        if self.class_order is not None:
            if not isinstance(self.class_order, list | tuple):
                raise InvalidInput(f"class_order is {self.class_order!r}; it must be a list of classes")
            object.__setattr__(self, "class_order", tuple(self.class_order))
            for label in self.class_order:
                _check_whole("a class of class_order", label, 0)
        if not isinstance(self.options, Mapping):
            raise InvalidInput(f"options is {self.options!r}; it must be a table of names and values")
        for name, value in self.options.items():
            if not _is_plain(value):
                raise InvalidInput(f"the option {name} is {value!r}; it must be a number, true, false, text or a list")
        object.__setattr__(self, "options", dict(sorted(self.options.items())))

    def to_dict(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        values["class_order"] = None if self.class_order is None else list(self.class_order)
        return {name: value for name, value in values.items() if name not in WHEN_SET or value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Spec:
        unknown = values.keys() - {f.name for f in dataclasses.fields(cls)}
        if unknown:
            raise InvalidInput(f"a spec has no field {', '.join(sorted(unknown))}; this may be of a newer version")
        for name in ("method", "stream"):
            if not isinstance(values.get(name), str):
                raise InvalidInput(f"a spec needs a {name}")
        return cls(**values)

    @property
    def canonical(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def key(self) -> str:
        """16 hex digits of SHA-256 over the canonical JSON: the name of the result on disk."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()[:16]

    @property
    def group(self) -> str:
        """What runs of one table cell share: the spec without its seed, its precision and evaluation within tasks."""
        return dataclasses.replace(self, seed=0, precision="auto", every=None).canonical


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(part) for part in value)
    if isinstance(value, int | float):
        return abs(value) <= LARGEST
    return value is None or isinstance(value, str)


def _check_whole(name: str, value: Any, least: int, otherwise: str = "") -> None:
    most = MOST.get(name, MOST_OTHERWISE)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        bounds = f"at least {least} and at most {most:,}"
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number, {bounds} {otherwise}".rstrip())


# ------------------------------------------------------------------------------------------------------- settings


def stream_settings(stream: str) -> dict[str, Any]:
    """The settings file of a stream: ``[common]``, ``[methods.NAME]`` and ``[specs.NAME]``."""
    return {"common": {}, "methods": {}, "specs": {}} | _settings_files().get(stream, {})


def named_specs() -> dict[str, dict[str, Any]]:
    """The specs that ``--spec NAME`` knows, each with its method and stream."""
    return {
        name: {"stream": stream, **values}
        for stream, settings in _settings_files().items()
        for name, values in settings.get("specs", {}).items()
    }


def own_table(path: str) -> dict[str, Any]:
    """A TOML file of this package."""
    return tomllib.loads(resources.files("rehearse.lab").joinpath(path).read_text("utf-8"))


@cache
def _settings_files() -> dict[str, dict[str, Any]]:
    """What the settings files say, by stream; read once, and changed by nobody."""
    files = sorted(resources.files("rehearse.lab").joinpath("settings").iterdir(), key=lambda file: file.name)
    return {
        file.name.removesuffix(".toml"): tomllib.loads(file.read_text("utf-8"))
        for file in files
        if file.name.endswith(".toml")
    }


def load_spec_values(name_or_file: str) -> dict[str, Any]:
    """The fields of a named spec, or of a TOML or JSON file (also the spec.json of an earlier run)."""
    named = named_specs()
    if name_or_file in named:
        return named[name_or_file]
    path = Path(name_or_file)
    if not path.is_file():
        raise InvalidInput(f"{name_or_file!r} is neither a file nor a named spec; named: {', '.join(named) or 'none'}")
    try:
        values = read_plain(path)
    except ValueError as problem:
        raise InvalidInput(f"{path} is no spec: {problem}") from problem
    if not isinstance(values, dict):
        raise InvalidInput(f"{path} is no spec: it must be a table of fields")
    for name in ("method", "stream"):
        if not isinstance(values.get(name, ""), str):
            raise InvalidInput(f"{path} is no spec: {name} is {values[name]!r}; it must be a name")
    _check_whole("seed", values.get("seed", 0), 0)
    if not isinstance(values.get("options", {}), dict):
        raise InvalidInput(f"{path} is no spec: options is {values['options']!r}; give a table of names and values")
    return values


def merge(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Later layers win; ``options`` are merged one by one."""
    merged: dict[str, Any] = {"options": {}}
    for layer in layers:
        merged["options"] = {**merged["options"], **layer.get("options", {})}
        merged.update({name: value for name, value in layer.items() if name != "options"})
    return merged
