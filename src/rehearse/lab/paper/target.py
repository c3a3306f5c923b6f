"""A target: what one table or figure needs to be run, as entries that become frozen specs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import InvalidInput
from ..methods import resolve
from ..predictors import REAL_TEST
from ..spec import Spec, named_specs
from .published import Cell

Place = tuple[str, str]  # a row and a column


@dataclass(frozen=True)
class Entry:
    """One row and column of a target: what is run for it, and what the paper printed there, by metric."""

    row: str
    column: str
    method: str
    stream: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    spec_name: str | None = None
    """A named spec of settings/*.toml that the run starts from."""
    cells: Mapping[str, Cell] = field(default_factory=dict)
    treatment: str | None = None
    """The way to predict whose numbers are read from the run, where it is not the run's own: a treatment of
    batch-norm, or real images at test time."""
    seeds: int | None = None
    """How many seeds are enough for it, where that is fewer than its target's."""

    def spec(self, seed: int = 0) -> Spec:
        base = named_specs()[self.spec_name] if self.spec_name is not None else {}
        return resolve(self.method, self.stream, base, self.settings, {"seed": seed})

    @property
    def runs(self) -> str:
        """What is run for it, and which of its numbers are read."""
        return f"{self.spec().canonical} {self.treatment}"

    def alone(self, seed: int = 0) -> Spec:
        """A run with the entry's treatment as its own, for where one training did not report it."""
        spec = self.spec(seed)
        if self.treatment == REAL_TEST:
            return replace(spec, options={**spec.options, "autoencode_test": False})
        return replace(spec, batchnorm=self.treatment)


@dataclass(frozen=True)
class Picture:
    """A figure that is a picture of a run, drawn after its last task: whose run, which picture, and the file's name."""

    method: str
    drawn: str
    file: str
    caption: str


@dataclass(frozen=True)
class Target:
    """A table or figure: its entries, the seeds it was published with, and the pairs whose difference is shown.

    ``pairs`` are (later row, earlier row), compared seed by seed in every column that has both; ``column_pairs`` are
    columns, compared so in every row. ``metrics`` are the columns of numbers, in their order. ``retrievals`` are the
    pairs of rows that differ in how memories are chosen and in what comes with it, not in their settings.
    """

    name: str
    title: str
    entries: tuple[Entry, ...]
    seeds: int
    metrics: tuple[str, ...] = ("accuracy", "forgetting")
    pairs: tuple[tuple[str, str], ...] = ()
    note: str = ""
    column_pairs: tuple[tuple[str, str], ...] = ()
    retrievals: tuple[tuple[str, str], ...] = ()
    pictures: tuple[Picture, ...] = ()
    """For a figure that is made of pictures of its runs."""
    sought: str | None = None
    """What the searches of its rows are there to raise: a metric that is measured before and after."""
    one_precision: bool = False
    """Whether all its numbers are of one precision, that of most runs: because costs are compared, say."""

    def compared(self) -> Iterator[tuple[str, str, str, tuple[Place, Place]]]:
        """The pairs in every place that has both: later, earlier, the column (or for columns the row), both places."""
        entries = {(entry.row, entry.column) for entry in self.entries}
        rows, columns = (dict.fromkeys(getattr(entry, name) for entry in self.entries) for name in ("row", "column"))
        pairs = [(*pair, column, ((pair[0], column), (pair[1], column))) for pair in self.pairs for column in columns]
        pairs += [(*pair, row, ((row, pair[0]), (row, pair[1]))) for pair in self.column_pairs for row in rows]
        for later, earlier, where, places in pairs:
            if entries.issuperset(places):
                yield later, earlier, where, places

    def has(self, methods: Sequence[str]) -> bool:
        """Whether it has an entry of any of these methods."""
        return any(entry.method in methods for entry in self.entries)

    def only(self, methods: Sequence[str]) -> Target:
        """The target with the entries of these methods alone; one that has none of them says so."""
        if not self.has(methods):
            there_are = ", ".join(dict.fromkeys(entry.method for entry in self.entries))
            raise InvalidInput(f"{self.name} has no method {', '.join(sorted(methods))}; it has {there_are}")
        kept = tuple(entry for entry in self.entries if entry.method in methods)
        pictures = tuple(picture for picture in self.pictures if picture.method in methods)
        return replace(self, entries=kept, pictures=pictures)

    @property
    def drawings(self) -> dict[str, str]:
        """The names of its files, where it is drawn, with what stands under each."""
        return {picture.file: picture.caption for picture in self.pictures} or {self.name: self.title}

    def specs(self, seeds: int | None = None) -> list[Spec]:
        """What to run, every spec once: seed by seed, so that an early stop leaves pairs that can be compared."""
        specs = [entry.spec(seed) for seed, entry in self.places(seeds)]
        return list({spec.key: spec for spec in specs}.values())

    def places(self, seeds: int | None = None, first_seed: int = 0) -> Iterator[tuple[int, Entry]]:
        """Every entry under each of its seeds; seed by seed."""
        for seed in range(seeds or self.seeds):
            for entry in self.entries:
                if entry.seeds is None or seed < entry.seeds:
                    yield first_seed + seed, entry
