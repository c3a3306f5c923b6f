"""Replay done well: which part buys what, and what interfered retrieval adds to it; `rehearse reproduce strong`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, Final

from ..methods import METHODS, resolve
from ..spec import own_table, stream_settings
from .target import Entry, Target

STREAMS: Final[dict[str, Any]] = own_table("paper/strong.toml")
target = partial(Target, one_precision=True)
CIFAR10, SPLIT, PERMUTED = "split-cifar10", "split-mnist", "permuted-mnist"

# ------------------------------------------------------------------------------------------- 1. which part buys what

OFF: Final[dict[str, Any]] = {
    "augment": "none", "average": 0.0, "predict_by": "head", "distill": 0.0, "loss": "cross-entropy",
    "replay_weight": 1.0,
}  # fmt: skip
FIELDS = ("budget", "updates", "lr", "batchnorm", "exclude_current_task")
PARTS = {
    "augment": "augmentation", "average": "averaged weights", "predict_by": "the nearest mean",
    "distill": "distillation", "loss": "its loss", "replay_weight": "its replay weight", "budget": "its replayed batch",
    "updates": "its updates", "lr": "its learning rate", "batchnorm": "a joint pass",
    "exclude_current_task": "samples of the current task",
}  # fmt: skip


def _parts(stream: str) -> Iterator[Entry]:
    """Yield ER, er-plus, er-plus without each part that it has on this stream, and ER with that part alone.

    Averaged weights teach in distillation: it goes where they go, and they come where it comes.
    """
    column = STREAMS[stream]["title"]
    plain, plus = resolve("er", stream), resolve("er-plus", stream)
    off = {**OFF, **{name: getattr(plain, name) for name in FIELDS}}
    on = {**plus.options, **{name: getattr(plus, name) for name in FIELDS}}

    def entry(row: str, values: dict[str, Any]) -> Entry:
        options, fields = ({name: values[name] for name in names} for names in (OFF, FIELDS))
        return Entry(row, column, "er-plus", stream, {"options": options, **fields})

    yield from (Entry("ER", column, "er", stream), entry("er-plus", on))
    for name, part in PARTS.items():
        if on[name] != off[name]:
            taught = {"distill": off["distill"]} if name == "average" else {}
            teacher = {"average": on["average"]} if name == "distill" else {}
            yield entry(f"er-plus without {part}", on | {name: off[name]} | taught)
            yield entry(f"ER with {part}", off | {name: on[name]} | teacher)


def which_part(name: str, streams: tuple[str, ...], seeds: int) -> Target:
    title = f"{' and '.join(STREAMS[stream]['title'] for stream in streams)}: which part buys what"
    entries = tuple(entry for stream in streams for entry in _parts(stream))
    others = [row for row in dict.fromkeys(entry.row for entry in entries) if row not in ("ER", "er-plus")]
    pairs = [("er-plus", row) if row.startswith("er-plus") else (row, "ER") for row in others]
    note = "Each part is left out of er-plus in turn, and added to plain ER alone."
    return target(name, title, entries, seeds, pairs=(("er-plus", "ER"), *pairs), note=note)


# ------------------------------------------------------------------------------- 2. what interfered retrieval adds

UNIFORM, LOSS, INTERFERED = "uniform", "highest loss", "most interfered"
AS_LOSS, AS_INTERFERED = f"uniform at the cost of {LOSS}", f"uniform at the cost of {INTERFERED}"
TWICE = "uniform, twice the updates"
SAME_SAMPLES = ((INTERFERED, UNIFORM), (INTERFERED, LOSS), (LOSS, UNIFORM))
SAME_COST = ((INTERFERED, AS_INTERFERED), (INTERFERED, TWICE), (LOSS, AS_LOSS))


def retrieval(stream: str, seeds: int, others: int | None = None) -> Target:
    """Retrievals at equal samples and at equal cost; ``others`` is the number of seeds of all but the first column."""
    known, entries = STREAMS[stream], list[Entry]()
    for augmented, sizes in product((True, False), known["retrieval"]):
        budget, scored = sizes["budget"], {name: sizes[name] for name in ("budget", "candidates")}
        rows: dict[str, tuple[str, dict[str, Any]]] = {
            UNIFORM: ("er-plus", {"budget": budget}),
            LOSS: ("er-plus-loss", scored),
            INTERFERED: ("er-plus-mir", scored),
            AS_LOSS: ("er-plus", {"budget": sizes["as_loss"]}),
            AS_INTERFERED: ("er-plus", {"budget": sizes["as_interfered"]}),
            TWICE: ("er-plus", {"budget": budget, "updates": 2 * (resolve("er-plus", stream).updates or 1)}),
        }
        column = f"{budget} replayed, {'augmented' if augmented else 'not augmented'}"
        enough = others if entries else None
        augment = {"options": {"augment": known["augment"] if augmented else "none"}}
        entries += [Entry(row, column, m, stream, own | augment, seeds=enough) for row, (m, own) in rows.items()]
    title = f"{known['title']}: what interfered retrieval adds to er-plus"
    note = "Equal cost: as measured before these runs; CPU s a run says how equal it came out."
    name, pairs = f"strong-retrieval-{stream}", (*SAME_SAMPLES, *SAME_COST)
    return target(name, title, tuple(entries), seeds, pairs=pairs, note=note, retrievals=SAME_SAMPLES)


# ------------------------------------------------------ 3. who is on the frontier; 4. who wins where the stream goes on

OF_SOME_STREAMS = ("gen", "gen-mir", "ae", "ae-mir")  # which have settings for those that they were published on
RATES = (0, 1, 2, 4)  # batches that arrive during one step of plain replay; 0: the stream waits


def frontier(stream: str, seeds: int) -> Target:
    """Every method that learns from the stream as it comes, as it is set for it, and some of another cost."""
    known, set_here = STREAMS[stream], stream_settings(stream)["methods"]
    methods = [name for name, method in METHODS.items() if not method.iid_epochs]
    rows = {name: {"method": name} for name in methods if name in set_here or name not in OF_SOME_STREAMS}
    entries = tuple(
        Entry(row, known["title"], own["method"], stream, own) for row, own in (rows | known["frontier"]).items()
    )
    note = "Each method as it is set for this stream. On the frontier: none is as accurate at less cost."
    title = f"{known['title']}: accuracy against CPU seconds"
    return target(f"strong-frontier-{stream}", title, entries, seeds, ("accuracy",), note=note)


def waiting(stream: str, seeds: int) -> Target:
    known, entries = STREAMS[stream], []
    for rate in RATES:
        for row, own in known["waiting"].items():
            arriving = round(rate * known["costs"][row], 1)
            column = f"{rate} batches a step of ER" if rate else "it waits"
            waited = {"step_cost": arriving} if arriving > 1 else {}
            entries.append(Entry(row, column, own["method"], stream, own | waited))
    pairs = [("er-plus", row) for row in known["waiting"] if row != "er-plus"]
    costs = ", ".join(f"{row} {cost}" for row, cost in known["costs"].items())
    note = (
        "The stream goes on while a learner computes: of the batches that arrive during a step the newest is learned "
        f"next, and the others are lost. Steps of ER that a step costs, as measured before these runs: {costs}."
    )
    title = f"{known['title']} as a stream that does not wait"
    return target(f"strong-waiting-{stream}", title, tuple(entries), seeds, pairs=(("er-mir", "er"), *pairs), note=note)


# ------------------------------------------------------------------------------------------------------- all of them


def targets() -> list[Target]:
    """The targets that follow from the settings of methods and streams, and from measured costs."""
    return [
        which_part("strong-parts-cifar10", (CIFAR10,), 5), which_part("strong-parts-mnist", (SPLIT, PERMUTED), 20),
        retrieval(CIFAR10, 15, 5), retrieval(SPLIT, 20),
        frontier(CIFAR10, 3), frontier(SPLIT, 5), frontier(PERMUTED, 5),
        waiting(CIFAR10, 5), waiting(SPLIT, 20),
    ]  # fmt: skip
