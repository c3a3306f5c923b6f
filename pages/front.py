"""The generated parts of the front pages: which method to choose, results in six rows, and the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rehearse.lab.paper.outcome import Outcome, values_of
from rehearse.lab.paper.target import Entry, Target
from rehearse.lab.report.reproduction import between_marks, markdown_table, number
from rehearse.lab.report.tables import UNDEFINED
from rehearse.lab.statistics import summary
from rehearse.metrics import accuracy_seen

from .claims import supported, what_it_comes_to
from .comparisons import Comparison, comparisons, difference_of
from .peers import peer_parts

FILLED = (
    "README.md",
    "docs/index.md",
    "docs/choose.md",
    "docs/results.md",
    "docs/peers.md",
)  # the pages that have marks
NOT_RUN = "not run"
SPLIT, CIFAR10 = "Split MNIST", "Split CIFAR-10"
# For whom, what to build, and its name on the command line.
CHOICES = (
    ("You want the most accurate, and have time for more replayed samples", "`strong_replay(…)`", "er-plus"),
    ("You want a simple and cheap baseline", "`Replay(…, Uniform())`", "er"),
    ("Small model, few stored samples", "`Replay(…, MostInterfered())`", "er-mir"),
    (
        "The same, and the outputs of the model may be stored",
        "`Replay(…, MostInterfered(), loss=DarkExperience())`",
        "der-mir",
    ),
    ("No sample may be stored", "`GenerativeReplay(…)`", "gen-mir"),
)
TUNED = {"er": {"lr": 0.1}, "er-mir": {"lr": 0.1}}  # as in the target `methods`; the others' are in settings/*.toml
FINETUNE, ER = "fine-tuning", "er"
FRONT = Target(
    "front",
    "Split MNIST: accuracy on the tasks seen so far",
    (
        Entry(FINETUNE, SPLIT, "finetune", "split-mnist"),
        *(Entry(m, SPLIT, m, "split-mnist", TUNED.get(m, {})) for *_, m in CHOICES),
        *(Entry(m, CIFAR10, m, "split-cifar10", {"memory": 100}) for *_, m in CHOICES if m != "gen-mir"),
    ),
    20,
    ("accuracy",),
)
# Target, its column, later and earlier row, and what to call the place.
SIX = (
    ("table1", "MNIST Split", "ER-MIR", "ER", "Split MNIST, 500 stored"),
    ("table1", "Permuted MNIST", "ER-MIR", "ER", "Permuted MNIST, 500 stored"),
    ("table1", "MNIST Split", "GEN-MIR", "GEN", "Split MNIST, a generator"),
    ("table2", "M=50", "ER-MIR", "ER", "Split CIFAR-10, 500 stored"),
    ("table2", "M=100", "ER-MIR", "ER", "Split CIFAR-10, 1,000 stored"),
    ("strong-parts-mnist", "Split MNIST", "er-plus", "ER", "Split MNIST, 500 stored"),
)
USED = tuple(dict.fromkeys(target for target, *_ in SIX))
ON_CIFAR10 = (
    "On Split CIFAR-10 with batch-norm statistics re-estimated from the memory, "  # how the honest sentence begins
)


def front_parts(front: Outcome, outcomes: Sequence[Outcome], compared: Sequence[Comparison]) -> dict[str, str]:
    """Return the generated parts by the name of their mark."""
    claims = [claim for claim in supported(compared).splitlines() if claim.startswith(f"- {ON_CIFAR10}")]
    return {
        "claims": "\n\n".join(what_it_comes_to(compared)),
        "choose": choose(front),
        "picture": caption(front),
        **peer_parts(),
        "results": "\n\n".join([six_rows(outcomes), *(claim.removeprefix("- ") for claim in claims)]),
    }


def fill(text: str, parts: Mapping[str, str]) -> str:
    """Return the text of a page with the parts at their marks."""
    for name, part in parts.items():
        text = between_marks(text, name, part)
    return text


def choose(front: Outcome) -> str:
    """Return the table of situations: what to build, what it costs, and the accuracy to expect."""
    rows = []
    for situation, build, method in CHOICES:
        runs = front.runs[method, SPLIT].values()
        passes = f"{fmean(run['cost']['forward_passes'] for run in runs):.1f}" if runs else NOT_RUN
        rows.append(
            [situation, f"{build}; `{method}`", passes, *(_accuracy(front, method, c) for c in (SPLIT, CIFAR10))]
        )
    return markdown_table(["situation", "class; command", "passes", SPLIT, CIFAR10], rows, right=2)


def _accuracy(outcome: Outcome, row: str, column: str) -> str:
    """Return mean ± half the interval with the number of seeds."""
    if (row, column) not in outcome.runs:
        return UNDEFINED
    found = summary(values_of(outcome.runs[row, column], "accuracy").values())
    return f"{number(found, 'accuracy')} (n = {found.n})" if found.n else NOT_RUN


def six_rows(outcomes: Sequence[Outcome]) -> str:
    """Return the table of results: two methods on the same seeds, beside what the paper prints."""
    known = {one.target.name: one for one in outcomes}
    rows = []
    for name, column, later, earlier, where in SIX:
        outcome = known[name]
        lines = {(line.entry.row, line.entry.column, line.metric): line for line in outcome.lines}
        both = [lines[row, column, "accuracy"] for row in (earlier, later)]
        ours = " → ".join(number(line.ours, "accuracy") if line.ours else NOT_RUN for line in both)
        printed = [line.published.printed if line.published else UNDEFINED for line in both]
        published = UNDEFINED if UNDEFINED in printed else " → ".join(printed)
        place = (name, later, earlier, column)
        comparison = next(one for one in comparisons(outcome) if one.place == place)
        difference = difference_of(comparison, "accuracy") if comparison.found else NOT_RUN
        rows.append([where, f"{earlier} → {later}", ours, published, difference])
    return markdown_table(["stream", "methods", "accuracy", "published", "paired difference"], rows, right=2)


def _shown(front: Outcome) -> list[str]:
    """Return the rows of the picture: fine-tuning, plain replay, and the most accurate with all its seeds."""
    means = {
        method: summary(values_of(runs, "accuracy").values()).mean
        for (method, column), runs in front.runs.items()
        if column == SPLIT and len(runs) >= front.target.seeds
    }
    return [FINETUNE, ER, max(means, key=means.__getitem__)]


def caption(front: Outcome) -> str:
    """Return the numbers of the picture in words."""
    shown = ", ".join(f"`{row}` {_accuracy(front, row, SPLIT)}" for row in _shown(front))
    return (
        f"{SPLIT}, five tasks of two digits; replay stores 500 samples. Accuracy on all ten digits at the end, in "
        f"per cent, mean ± half the 95 % interval: {shown}."
    )


def draw_front(front: Outcome, figure: Any) -> None:
    """Draw accuracy on the tasks seen so far, mean and range of seeds, after each task."""
    axes = figure.subplots()
    for row, colour, marker in zip(_shown(front), ("#000000", "#0072B2", "#D55E00"), "xos", strict=True):
        curves = [accuracy_seen(run["matrices"]["test"]) for run in front.runs[row, SPLIT].values()]
        means = [100 * fmean(values) for values in zip(*curves, strict=True)]
        axes.plot(range(1, len(means) + 1), means, color=colour, marker=marker, label=row)
    axes.set_xticks(range(1, len(means) + 1))
    axes.set_ylim(0, 102)
    axes.set_xlabel("tasks seen")
    axes.set_ylabel("accuracy on tasks seen so far (%)")
    axes.grid(axis="x", visible=False)
    axes.legend(loc="lower left")
