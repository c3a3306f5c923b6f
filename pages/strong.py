"""The four questions about replay done well, each answered from the results of `rehearse reproduce strong`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from rehearse.lab.paper.conditions import UNKNOWN
from rehearse.lab.paper.outcome import Outcome, cpu_seconds, values_of
from rehearse.lab.paper.strong import SAME_COST, SAME_SAMPLES
from rehearse.lab.paper.targets import PARTS
from rehearse.lab.report.reproduction import markdown_table, number, settling
from rehearse.lab.report.tables import UNDEFINED
from rehearse.lab.statistics import Summary, summary

from .comparisons import Comparison, comparisons, difference_of

QUESTIONS: Mapping[str, str] = {
    "strong-parts": "Which part of `er-plus` buys what?",
    "strong-retrieval": "What does interfered retrieval add on top?",
    "strong-frontier": "Which method is the most accurate for its CPU seconds?",
    "strong-waiting": "Which method wins if the stream does not wait?",
}
NOT_RUN = "not run"
PART_WORDS = {"er-plus without ": "left out", "ER with ": "alone"}


def four_answers(outcomes: Sequence[Outcome]) -> str:
    """Return the section at the top of the page: a table or sentence for each question."""
    known = {one.target.name: one for one in outcomes}
    answers = {
        "strong-parts": _parts, "strong-retrieval": _retrievals, "strong-frontier": _frontiers,
        "strong-waiting": _rates,
    }  # fmt: skip
    parts = [
        "## Replay done well: four answers",
        "`er-plus` is plain replay with augmentation, averaged weights, the nearest mean and a larger replayed batch; "
        "`er-plus-mir` and `er-plus-loss` retrieve the most interfered samples and those of highest loss instead of "
        "samples at random. Differences are in points of accuracy, on the same seeds, of one precision; *inconclusive* "
        "means that the 95 % interval contains 0, with the estimated number of seeds that would settle it.",
    ]
    for place, (part, question) in enumerate(QUESTIONS.items(), 1):
        found = [known[name] for name in PARTS[part] if name in known]
        parts += [f"### {place}. {question}", *answers[part](found)]
    return "\n\n".join(parts)


def _verdict(comparison: Comparison | None) -> str:
    """Return a paired difference in accuracy, and whether it is settled."""
    if comparison is None:
        return UNDEFINED
    if "accuracy" not in comparison.found:
        return comparison.verdict()
    words = settling(comparison.found["accuracy"].ours)
    words = words if words in ("settled", "no difference") else f"inconclusive, {words}"
    seeds = " seeds needed" if words[-1].isdigit() else ""
    return f"{difference_of(comparison, 'accuracy')}, {words}{seeds}"


def _parts(outcomes: Sequence[Outcome]) -> list[str]:
    """Return one line for each part on each stream: what is lost without it, and what ER gains by it alone."""
    rows: dict[tuple[str, str], dict[str, Comparison]] = {}
    for comparison in (comparison for one in outcomes for comparison in comparisons(one)):
        for start, place in PART_WORDS.items():
            for row in (comparison.later, comparison.earlier):
                if row.startswith(start):
                    part = row.removeprefix(start)
                    rows.setdefault((part, comparison.where), {})[place] = comparison
    cells = [
        [part, stream, *(_verdict(found.get(place)) for place in ("left out", "alone"))]
        for (part, stream), found in rows.items()
    ]
    head = ["part", "stream", "er-plus − er-plus without it", "ER with it alone − ER"]
    return [markdown_table(head, cells, right=2)]


def _retrievals(outcomes: Sequence[Outcome]) -> list[str]:
    """Return one line for each cell: retrievals at equal samples, and at equal CPU seconds."""
    rows = []
    for one in outcomes:
        found = {(c.later, c.earlier, c.where): c for c in comparisons(one)}
        stream = one.target.title.partition(":")[0]
        for column in dict.fromkeys(entry.column for entry in one.target.entries):
            for cost, pairs in {"equal samples": SAME_SAMPLES, "equal CPU seconds": SAME_COST}.items():
                for pair in pairs:
                    words = f"{pair[0]} − {pair[1]}"
                    rows.append([stream, column, cost, words, _verdict(found.get((*pair, column)))])
    return [markdown_table(["stream", "cell", "at", "difference", "accuracy"], rows, right=5)]


class Point(NamedTuple):
    """A method in the plane of cost and accuracy."""

    cpu_seconds: float
    accuracy: Summary


def points(outcome: Outcome) -> tuple[str, dict[str, Point]]:
    """Return the kind of processor that most rows have runs on, and each row's mean cost there and its accuracy."""
    costs: dict[str, dict[str, list[float]]] = {}
    for (row, _), runs in outcome.runs.items():
        for result in runs.values():
            if UNKNOWN not in result["condition"]:
                costs.setdefault(result["condition"], {}).setdefault(row, []).append(cpu_seconds(result))
    if not costs:
        return "", {}
    condition = max(sorted(costs), key=lambda one: len(costs[one]))
    accuracies = {row: summary(values_of(runs, "accuracy").values()) for (row, _), runs in outcome.runs.items()}
    found = {row: Point(fmean(seconds), accuracies[row]) for row, seconds in costs[condition].items()}
    return condition, {row: point for row, point in found.items() if point.accuracy.n}


def on_frontier(found: Mapping[str, Point]) -> list[str]:
    """Return the rows that no other beats at the same or less cost, the cheapest first."""
    best: list[str] = []
    for row in sorted(found, key=lambda row: (found[row].cpu_seconds, -found[row].accuracy.mean)):
        if not best or found[row].accuracy.mean > found[best[-1]].accuracy.mean:
            best.append(row)
    return best


def _frontiers(outcomes: Sequence[Outcome]) -> list[str]:
    """Return one line for each stream: the methods on the frontier, and those without a comparable run."""
    rows = []
    for one in outcomes:
        condition, found = points(one)
        words = [
            f"{row} ({found[row].cpu_seconds:,.1f} s, {number(found[row].accuracy, 'accuracy')} %)"
            for row in on_frontier(found)
        ]
        lacking = [row for row, _ in one.runs if row not in found]
        stream = one.target.title.partition(":")[0]
        rows.append([stream, ", ".join(words) or NOT_RUN, ", ".join(lacking) or UNDEFINED, condition or UNDEFINED])
    head = ["stream", "on the frontier (CPU s a run, accuracy)", "without a run there", "processor"]
    return [markdown_table(head, rows, right=4)]


def _rates(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a table for each stream: accuracy of each method at each rate, and the most accurate."""
    tables = []
    for one in outcomes:
        columns = list(dict.fromkeys(column for _, column in one.runs))
        rows = list(dict.fromkeys(row for row, _ in one.runs))
        found = {place: summary(values_of(runs, "accuracy").values()) for place, runs in one.runs.items() if runs}
        known = {place: number(value, "accuracy") for place, value in found.items()}
        cells = [[row, *(known.get((row, column), NOT_RUN) for column in columns)] for row in rows]
        means = {column: {row: found[row, column].mean for row in rows if (row, column) in found} for column in columns}
        best = [max(by_row, key=by_row.__getitem__, default=UNDEFINED) for by_row in means.values()]
        tables.append(markdown_table([one.target.title, *columns], [*cells, ["**most accurate**", *best]], right=1))
    return tables
