"""What `rehearse reproduce` knows by name: the paper's tables and figures, and our own, as lists of specs.

A target has entries, one for each place of its table: the run to make, over how many seeds, and the cells of the paper
that it measures again. What cannot be built yet is an entry too, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..extensions import find
from ..predictors import REAL_TEST
from ..streams import STREAMS
from . import controls, own, strong
from .missing import MISSING, STAGES, Stage
from .published import PUBLISHED, Cell, Setting, Table
from .target import Entry, Picture, Target

# All training rows of a task: a spec that asks for all of them and one that asks for none in particular are one run.
WHOLE_TASK = {"split-cifar10": 9750}
SEEDS = 20  # where the paper does not say how many


# ------------------------------------------------------------------------------------------------- the paper's tables

# Generative rows have settings of their own for each table, which are named specs: (table, stream, method, variant).
PAPER_SPECS: Mapping[tuple[str, str, str, str | None], str] = {
    ("table5", "split-mnist", "gen", None): "gen-elbo",
    ("table5", "split-mnist", "gen-mir", None): "gen-mir-elbo",
    ("table5", "permuted-mnist", "gen", None): "permuted-gen-elbo",
    ("table5", "permuted-mnist", "gen-mir", None): "permuted-gen-mir-elbo",
}


def _from_table(table: Table, seeds: int, pairs: tuple[tuple[str, str], ...] = (("ER-MIR", "ER"),)) -> Target:
    places: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in table.cells:
        places.setdefault((cell.row, cell.column), {})[cell.metric] = cell
    entries = []
    for (row, column), cells in places.items():
        setting = next(iter(cells.values())).setting
        name = PAPER_SPECS.get((table.name, setting.stream, setting.method, setting.variant))
        if setting.variant is not None:
            name = f"{setting.method}-{setting.variant}"
        entries.append(Entry(row, column, setting.method, setting.stream, run_settings(setting), name, cells))
    metrics = tuple(dict.fromkeys(cell.metric for cell in table.cells))
    return Target(table.name, table.caption, tuple(entries), table.runs or seeds, metrics, pairs, table.note)


def run_settings(setting: Setting) -> dict[str, Any]:
    """A published setting in the fields of a spec, without what the stream does by itself."""
    settings: dict[str, Any] = {"memory": setting.memory, "updates": setting.updates}
    whole = STREAMS[setting.stream].samples_per_task or WHOLE_TASK.get(setting.stream)
    if setting.samples_per_task != whole:
        settings["samples_per_task"] = setting.samples_per_task
    return {name: value for name, value in settings.items() if value is not None}


def _tables() -> Iterable[Target]:
    gen = ("GEN-MIR", "GEN")
    pairs = {
        "table1": (("ER-MIR", "ER"), gen),
        "table5": (gen,),
        "table6": (gen,),
        "cifar10-1k": (("ER-res-MIR", "ER-res"),),
    }
    for name, table in PUBLISHED.items():
        yield _from_table(table, SEEDS, pairs.get(name, (("ER-MIR", "ER"),)))


def _table6(target: Target) -> Target:
    """It probably prints validation accuracies: ours stand beside the same numbers. Each ablation is held against
    GEN-MIR on the same seeds."""
    entries = [replace(e, cells={**e.cells, "validation_accuracy": e.cells["accuracy"]}) for e in target.entries]
    ablations = dict.fromkeys(e.row for e in entries if e.row not in ("GEN", "GEN-MIR"))
    pairs = (*target.pairs, *((row, "GEN-MIR") for row in ablations))
    metrics = (*target.metrics, "validation_accuracy")
    note = f"{target.note} The verdicts that are counted are those on validation accuracies."
    return replace(target, entries=tuple(entries), metrics=metrics, pairs=pairs, note=note)


# -------------------------------------------------------------------------------------------------------- the figures


def _figure4() -> Target:
    """Accuracy on the tasks seen so far: the runs of Table 1's right half."""
    methods = ("er", "er-mir", "gem", "gen", "gen-mir")
    entries = tuple(
        Entry(e.row, e.column, e.method, e.stream, e.settings, e.spec_name)
        for e in _from_table(PUBLISHED["table1"], 20).entries
        if e.stream == "permuted-mnist" and e.method in methods
    )
    title = "Permuted MNIST, test accuracy on the tasks seen so far, for rehearsal methods"
    note = "The figure of the paper has no numbers in its source."
    return Target(
        "figure4", title, entries, 20, ("accuracy", "anytime_accuracy"), (("ER-MIR", "ER"), ("GEN-MIR", "GEN")), note
    )


def _pictures(name: str, title: str, *pictures: Picture) -> Target:
    """Figures 2 and 3 are pictures of one run of each method."""
    entries = tuple(Entry(p.method.upper(), "MNIST Split", p.method, "split-mnist") for p in pictures)
    return Target(name, title, entries, 1, ("accuracy", "generator-loss"), pictures=pictures)


def _figure2() -> Target:
    title = "Pictures: what GEN-MIR retrieves for the classifier in the last task of Split MNIST"
    caption = (
        "Top row: the last incoming batch, eights and nines. Below: the 20 of highest interference, highest first, of "
        "the 100 samples that GEN-MIR retrieved for the classifier."
    )
    return _pictures("figure2", title, Picture("gen-mir", "retrieved-for-classifier", "figure2", caption))


def _figure3() -> Target:
    imagined = "(a) Samples of GEN's generator after the last task."
    retrieved = (
        "(b) Top row: the last incoming batch, eights and nines. Rows 2 and 3: the 20 of highest interference, highest "
        "first, of the 100 samples that GEN-MIR retrieved for the classifier. Rows 4 and 5: the first 20, in no order, "
        "of the 100 that it retrieved for the generator."
    )
    return _pictures(
        "figure3",
        "Pictures: what GEN imagines of Split MNIST, and what GEN-MIR retrieves in its last task",
        Picture("gen", "imagined", "figure3a", imagined),
        Picture("gen-mir", "retrieved", "figure3b", retrieved),
    )


def _hybrid(name: str, title: str, rows: Rows, also: str = "") -> Target:
    entries = tuple(
        Entry(row, f"{codes:,} codes", method, "split-cifar10", {"capacity": codes}, spec, treatment=treatment)
        for codes in (1000, 5000, 10000)
        for row, (method, spec, treatment) in rows.items()
    )
    note = (
        "The figure of the paper has no numbers in its source. "
        "1,000 codes of 320 numbers take as many numbers as 104 images."
    ) + also
    pairs = tuple((row, "AE-Random") for row in rows if row != "AE-Random")
    return Target(name, title, entries, 5, pairs=pairs, note=note)


Rows = dict[str, tuple[str, str | None, str | None]]  # row -> method, named spec, and how it predicts
AE: Rows = {"AE-Random": ("ae", None, None)}
AE_MIR: Rows = {"AE-MIR": ("ae-mir", None, None)}
PUBLISHED_COPIES: Rows = {"AE-MIR, ten codes ten times": ("ae-mir", "ae-mir-ten-times", None)}
COPIES_NOTE = (
    " The AE-MIR of the reference implementation replays ten codes ten times each, its AE 100 distinct ones: the row "
    "with ten codes ten times is that comparison. controls-hybrid takes the codes and their repetition apart."
)
ABLATED: Rows = {  # what is asked at test time plays no part in training: the first row is read from the runs of AE
    "- test AE": ("ae", None, REAL_TEST),
    "- train & test AE": ("ae", "ae-without-train-and-test", None),
}


def _figures() -> Iterable[Target]:
    yield _figure2()
    yield _figure3()
    yield _figure4()
    by_codes = "The hybrid on Split CIFAR-10 by the number of stored codes"
    yield _hybrid("figure5", by_codes, AE | AE_MIR | PUBLISHED_COPIES, COPIES_NOTE)
    yield _hybrid("figure6", "The hybrid with real images at test time, and in training too", AE | ABLATED)
    yield _hybrid("figure7", "The hybrid on Split CIFAR-10, for reference beside Figure 6", AE | AE_MIR)


def _targets() -> dict[str, Target]:
    tables = {target.name: target for target in _tables()}
    tables["table6"] = _table6(tables["table6"])
    ours = [own.learning_rate(), own.methods(), own.batchnorm(), own.generative_controls()]
    return tables | {target.name: target for target in [*_figures(), *ours]}


_CONTROLS, _STRONG = controls.parts(), strong.parts()
PARTS: Mapping[str, tuple[str, ...]] = {
    name: tuple(target.name for target in targets) for name, targets in (_STRONG | _CONTROLS).items()
}
CONTROLS: Mapping[str, Target] = {target.name: target for targets in _CONTROLS.values() for target in targets}
STRONG: Mapping[str, Target] = {target.name: target for targets in _STRONG.values() for target in targets}
PAPER: Mapping[str, Target] = _targets()
TARGETS: Mapping[str, Target] = {**PAPER, **CONTROLS, **STRONG}
# `all` is what docs/reproduction.md shows, `strong` and `controls` what docs/what-makes-it-work.md does; the runs of
# the groups in QUEUES are queued by their value.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "all": tuple(PAPER),
    "missing": MISSING,
    "controls": tuple(CONTROLS),
    "strong": tuple(STRONG),
    **{name: names for name, names in PARTS.items() if name not in TARGETS},
}
QUEUES: Mapping[str, Sequence[Stage]] = {"missing": STAGES, **dict.fromkeys(("strong", *_STRONG), strong.STAGES)}


def find_targets(names: Sequence[str]) -> list[Target]:
    """The targets of these names, groups taken apart, each once."""
    found: dict[str, Target] = {}
    for name in names:
        for part in find({**dict.fromkeys(TARGETS, (name,)), **GROUPS}, "target", name):
            found[part] = TARGETS[part]
    return list(found.values())
