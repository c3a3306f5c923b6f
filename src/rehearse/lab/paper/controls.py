"""The controls that the paper lacks: what the retrieval adds when all else is held equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import own
from .outcome import SEARCHED_CODES, SEARCHED_GENERATIVE
from .target import Entry, Target

Settings = Mapping[str, Any]
CIFAR10, SPLIT, PERMUTED = "split-cifar10", "split-mnist", "permuted-mnist"
BOTH = {"ER": "er", "ER-MIR": "er-mir"}
SHORT = 2500
SHORT_NOTE = (
    f"{SHORT:,} samples a task: a cheaper picture of its own, not to be held against Table 2, which has 9,750. "
)
TOLD = ("published", "clean", "recalibrated")
SMALLER = (20, 50)  # memories per class in Table 2, beside the 100 that all else is measured with


@dataclass(frozen=True)
class Extent:
    """Split CIFAR-10 at 100 memories per class: the whole stream, or a shortened one that is told apart."""

    name: str
    settings: Settings
    seeds: int
    title: str = "Split CIFAR-10, 100 memories per class"
    note: str = ""


FULL = Extent("full", {"memory": 100}, 3)
SHORTENED = Extent(
    "2500",
    {"memory": 100, "samples_per_task": SHORT},
    5,
    f"Split CIFAR-10, {SHORT:,} samples a task, 100 memories per class",
    SHORT_NOTE,
)


# ------------------------------------------------------------------------------------------------------- batch-norm


def batchnorm(extent: Extent) -> Target:
    """ER, ER that passes candidates as MIR does, and ER-MIR, under every treatment and without batch-norm."""
    passed = "ER, candidates passed"
    entries = [
        entry
        for told in TOLD
        for entry in (
            _told("ER", told, "er", extent.settings),
            _told(passed, told, "er", {**extent.settings, "candidates": 50}, passes=True),
            _told("ER-MIR", told, "er-mir", extent.settings, passes=True),
        )
    ]
    others: dict[str, Settings] = {"joint": {"batchnorm": "joint"}, "group-norm": {"network": "resnet18-groupnorm"}}
    entries += [
        Entry(row, column, method, CIFAR10, {**extent.settings, **extra})
        for column, extra in others.items()
        for row, method in BOTH.items()
    ]
    return Target(
        f"controls-batchnorm-{extent.name}",
        f"{extent.title}: what the retrieval adds under each treatment of batch-norm's statistics, and with "
        "group-norm, which has none",
        tuple(entries),
        extent.seeds,
        pairs=(("ER-MIR", "ER"), ("ER-MIR", passed), (passed, "ER")),
        retrievals=(("ER-MIR", "ER"), ("ER-MIR", passed)),
        note=extent.note
        + "Published, clean and recalibrated are one training; passed: as many candidates pass through the network as "
        "with MIR, and ten of them are replayed at random. ER passes none, so that published and clean are the same.",
        column_pairs=(
            *((column, "published") for column in ("recalibrated", "clean", "joint", "group-norm")),
            ("recalibrated", "clean"),
            ("joint", "recalibrated"),
        ),
    )


def batchnorm_by_memory() -> Target:
    """Table 2's own runs with smaller memories: every one of them tells three treatments."""
    entries = tuple(
        replace(_told(row, told, method, {"memory": memory}, passes=method == "er-mir"), column=f"M={memory}, {told}")
        for memory in SMALLER
        for told in TOLD
        for row, method in BOTH.items()
    )
    told_apart = (("recalibrated", "published"), ("clean", "published"), ("recalibrated", "clean"))
    pairs = tuple((f"M={m}, {later}", f"M={m}, {earlier}") for m in SMALLER for later, earlier in told_apart)
    return Target(
        "controls-batchnorm-memory",
        "Split CIFAR-10 by memories per class M: what the retrieval adds under each treatment of the statistics",
        entries,
        3,
        pairs=(("ER-MIR", "ER"),),
        retrievals=(("ER-MIR", "ER"),),
        note="The runs of Table 2, each of which tells the three treatments.",
        column_pairs=pairs,
    )


def _told(row: str, treatment: str, method: str, settings: Settings, *, passes: bool = False) -> Entry:
    """An entry that reads a treatment from the one training; without candidates that pass, clean is published."""
    same = treatment == "published" or (treatment == "clean" and not passes)
    return Entry(row, treatment, method, CIFAR10, settings, treatment=None if same else treatment)


# ------------------------------------------------------------------------------------------------------- equal cost


def _more(updates: Iterable[int], budgets: Iterable[int]) -> dict[str, Settings]:
    """Plain replay with more updates for each batch, or with more replayed samples in each."""
    return {
        "ER": {},
        **{f"ER, {number} updates": {"updates": number} for number in updates},
        **{f"ER, {number} replayed": {"budget": number} for number in budgets},
    }


def _cost_target(name: str, title: str, entries: Sequence[Entry], seeds: int, note: str = "") -> Target:
    rows = dict.fromkeys(entry.row for entry in entries)
    more = [row for row in rows if row not in BOTH]
    pairs = (*(("ER-MIR", row) for row in ("ER", *more)), *((row, "ER") for row in more))
    note += (
        "ER-MIR against plain replay with as many more updates, or as large a replayed batch, as its CPU time buys. "
        "CPU seconds are of whole runs, evaluation included, without loading and without that of treatments."
    )
    return Target(name, title, tuple(entries), seeds, pairs=tuple(pairs), note=note, retrievals=(("ER-MIR", "ER"),))


def cost_mnist() -> Target:
    more = _more((2, 3), (20, 50, 100))
    entries = [Entry(row, "Split MNIST", "er", SPLIT, extra) for row, extra in more.items()]
    entries.append(Entry("ER-MIR", "Split MNIST", "er-mir", SPLIT))
    return _cost_target("controls-cost-mnist", "Split MNIST, 50 memories per class, at equal cost", entries, 20)


def cost_cifar10(extent: Extent) -> Target:
    more = _more((2,), (30,))
    entries = []
    for told in ("published", "recalibrated"):
        entries += [_told(row, told, "er", {**extent.settings, **extra}) for row, extra in more.items()]
        entries.append(_told("ER-MIR", told, "er-mir", extent.settings, passes=True))
    name, title = f"controls-cost-cifar10-{extent.name}", f"{extent.title}, at equal cost"
    return _cost_target(name, title, entries, extent.seeds, extent.note)


# ------------------------------------------------------------------------------------------------------ sensitivity

DIGITS = {"Split": SPLIT, "Permuted": PERMUTED}


def _sensitivity(
    name: str,
    title: str,
    columns: Mapping[str, Settings],
    column_pairs: Iterable[tuple[str, str]] = (),
    mir_alone: bool = False,
) -> Target:
    """One setting varied, the others the paper's. With ``mir_alone`` ER has no such setting: one run, all columns."""
    entries = tuple(
        Entry(row, f"{label}, {column}", method, stream, {} if mir_alone and method == "er" else settings)
        for label, stream in DIGITS.items()
        for column, settings in columns.items()
        for row, method in BOTH.items()
    )
    pairs = tuple((f"{label}, {later}", f"{label}, {earlier}") for label in DIGITS for later, earlier in column_pairs)
    return Target(
        f"controls-{name}",
        f"Split and Permuted MNIST, 50 memories per class, by {title}",
        entries,
        20,
        pairs=(("ER-MIR", "ER"),),
        retrievals=(("ER-MIR", "ER"),),
        column_pairs=pairs,
        note="All other settings are the paper's.",
    )


def sensitivity() -> list[Target]:
    def varied(field: str, values: Iterable[Any], words: str) -> dict[str, Settings]:
        return {words.format(value): {field: value} for value in values}

    criteria = {"MI-1": {"criterion": "mi1"}, "MI-2": {"criterion": "mi2"}}
    current = {"left out": {"exclude_current_task": True}, "replayed too": {"exclude_current_task": False}}
    many = varied("candidates", (20, 50, 100, 150, "all"), "C = {}")
    return [
        _sensitivity("learning-rate", "the learning rate", varied("lr", (0.01, 0.02, 0.05, 0.1, 0.2), "lr {}")),
        _sensitivity("candidates", "the number of candidates", many, mir_alone=True),
        _sensitivity("budget", "the number of replayed samples", varied("budget", (5, 10, 20), "{} replayed")),
        _sensitivity("criterion", "the criterion", criteria, [("MI-2", "MI-1")], mir_alone=True),
        _sensitivity(
            "current-task", "replay of stored samples of the current task", current, [("replayed too", "left out")]
        ),
    ]


# ------------------------------------------------------------------------------- generative, hybrid, retrieval and loss


OWN_SETTINGS = ("gen-mir-generator", "gen-mir-classifier")  # rows of the release that differ in more than the search


def generative() -> Target:
    """The generative controls on Split MNIST, with what the search did to interference and entropy."""
    everything = own.generative_controls()
    entries = tuple(
        entry for entry in everything.entries if entry.stream == SPLIT and entry.spec_name not in OWN_SETTINGS
    )
    rows = [entry.row for entry in entries]
    note = (
        "The two published rows differ in replayed examples, depth and dropout too; the control has GEN-MIR's settings "
        "and no search. Interference and entropy, in nats, are what the search starts from and what it ends at."
    )
    return replace(
        everything,
        name="controls-generative",
        title="Split MNIST: generative replay with all but the search held equal",
        entries=entries,
        metrics=("accuracy", "forgetting", *SEARCHED_GENERATIVE),
        pairs=tuple(pair for pair in everything.pairs if pair[0] in rows),
        retrievals=tuple(
            (row, control)
            for row, control in everything.pairs
            if row in rows and control == own.CONTROL and row != own.CONFIDENCE  # which asks for no interference
        ),
        note=note,
        sought="classifier interference",
    )


CODES, CODE_NUMBERS, IMAGE_BYTES, RECALLED = 1000, 320, 3072, 100


def hybrid() -> Target:
    """Distinct neighbours against ten codes ten times, a search that climbs against the published one that jumps, and
    codes of fewer bits at equal bytes against raw images."""
    bytes_in_all = CODES * CODE_NUMBERS * 4
    images = bytes_in_all // IMAGE_BYTES
    rows: dict[str, tuple[str, str | None, int]] = {
        "AE": ("ae", None, CODES),
        "AE, ten codes ten times": ("ae", "ae-ten-times", CODES),
        "AE-MIR": ("ae-mir", None, CODES),
        "AE-MIR, ten codes ten times": ("ae-mir", "ae-mir-ten-times", CODES),
        "AE-MIR, short step": ("ae-mir", "ae-mir-short-step", CODES),
        "AE, 16-bit codes": ("ae", "ae-16-bit", 2 * CODES),
        "AE, 8-bit codes": ("ae", "ae-8-bit", 4 * CODES),
        f"ER, {images} raw images": ("er", None, images),
    }
    settings = {"samples_per_task": SHORT, "budget": RECALLED}
    entries = tuple(
        Entry(row, "equal bytes", method, CIFAR10, {**settings, "capacity": capacity}, spec)
        for row, (method, spec, capacity) in rows.items()
    )
    pairs = [("AE-MIR", "AE"), ("AE-MIR", "AE, ten codes ten times"), ("AE-MIR", "AE-MIR, ten codes ten times")]
    pairs += [(f"{method}, ten codes ten times", "AE") for method in ("AE", "AE-MIR")]
    pairs += [("AE-MIR, ten codes ten times", "AE, ten codes ten times")]
    pairs += [("AE-MIR, short step", "AE"), ("AE-MIR, short step", "AE-MIR")]
    pairs += [(row, row.partition(",")[0]) for row in rows if "-bit" in row]
    pairs += [(row, f"ER, {images} raw images") for row in ("AE", "AE, 8-bit codes")]
    return Target(
        "controls-hybrid",
        f"Split CIFAR-10, {SHORT:,} samples a task: the hybrid with {bytes_in_all:,} bytes of memory",
        entries,
        3,
        ("accuracy", "forgetting", "learning_accuracy", *SEARCHED_CODES),
        pairs=tuple(pairs),
        retrievals=(
            ("AE-MIR", "AE"),
            ("AE-MIR, ten codes ten times", "AE, ten codes ten times"),
            ("AE-MIR, short step", "AE"),
        ),
        note=SHORT_NOTE
        + f"{CODES:,} codes of {CODE_NUMBERS} 32-bit numbers, twice as many of 16 bits, four times as many "
        f"of 8, or {images} raw images of {IMAGE_BYTES:,} bytes; the autoencoder itself is not "
        f"counted. All of them replay {RECALLED} samples at a time. Learning accuracy: of each task right after "
        "it, so that who learns a task less has less to forget. The objective of the search (20 · interference − "
        "both entropies) and the interference are what it starts from and what it ends at.",
        sought="search objective",
    )


LOSSES = ("er", "er-mir", "er-ace", "er-ace-mir", "der", "der-mir")
LOSS_PAIRS = (("er-mir", "er"), ("er-ace-mir", "er-ace"), ("der-mir", "der"), ("er-ace", "er"), ("der", "er"))


ALL_TASKS = (
    "er-ace and der replay stored samples of the current task too, er leaves them out: er-ace − er and der − er "
    "differ in that as well."
)


def losses_cifar10(extent: Extent) -> Target:
    """Retrieval against loss; every run tells three treatments of batch-norm, so that the best need not be known."""
    entries = tuple(
        _told(method, told, method, extent.settings, passes=method.endswith("-mir"))
        for told in TOLD
        for method in LOSSES
    )
    note = extent.note + "The weights of DER++ are those chosen on Split MNIST. " + ALL_TASKS
    name, title = f"controls-losses-cifar10-{extent.name}", f"{extent.title}: retrieval against loss"
    return Target(name, title, entries, extent.seeds, pairs=LOSS_PAIRS, retrievals=LOSS_PAIRS[:3], note=note)


def losses_mnist() -> Target:
    entries = tuple(Entry(method, "Split MNIST", method, SPLIT, {"lr": 0.1}) for method in LOSSES)
    note = "All at learning rate 0.1, which validation chose for each of them from one grid. " + ALL_TASKS
    title = "Split MNIST, 50 memories per class: retrieval against loss"
    return Target("controls-losses-mnist", title, entries, 20, pairs=LOSS_PAIRS, retrievals=LOSS_PAIRS[:3], note=note)


# ----------------------------------------------------------------------------------------------------------- by name


def parts() -> dict[str, list[Target]]:
    """The parts of ``controls`` by the names under which they can be asked for, in the order of the page."""
    return {
        "controls-batchnorm": [batchnorm(FULL), batchnorm_by_memory(), batchnorm(SHORTENED)],
        "controls-cost": [cost_mnist(), cost_cifar10(FULL), cost_cifar10(SHORTENED)],
        "controls-sensitivity": sensitivity(),
        "controls-generative": [generative()],
        "controls-hybrid": [hybrid()],
        "controls-retrieval-and-loss": [losses_mnist(), losses_cifar10(FULL), losses_cifar10(SHORTENED)],
    }
