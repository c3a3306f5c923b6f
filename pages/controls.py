"""docs/what-makes-it-work.md: the controls as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rehearse.lab.paper.outcome import MOMENTS, SEARCHED, Outcome
from rehearse.lab.paper.targets import PARTS, STRONG
from rehearse.lab.report.reproduction import (
    CROSSED,
    FORGETTING,
    OURS,
    SETTLING,
    condition_marks,
    condition_words,
    cpu_words,
    explained,
    markdown_table,
    number,
    precision_words,
    settling,
    tells_precision,
)
from rehearse.lab.report.tables import UNDEFINED
from rehearse.lab.within import TIMED

from .claims import what_it_comes_to
from .comparisons import comparisons, difference_of
from .plain_words import SHOWN, every_retrieval, practitioner, researcher
from .questions import in_short
from .strong import four_answers

TITLES = {
    "strong-parts": "Replay done well: its parts",
    "strong-retrieval": "Replay done well: the retrieval",
    "strong-frontier": "Replay done well: accuracy against CPU seconds",
    "strong-waiting": "Replay done well: a stream that does not wait",
    "controls-batchnorm": "Batch-norm: statistics or retrieval?",
    "controls-cost": "Equal cost: what else would the CPU time of the retrieval have bought?",
    "controls-sensitivity": "Sensitivity: does it hang on a setting?",
    "controls-generative": "Generative: the search, its gradient, and each of its terms",
    "controls-hybrid": "Hybrid: distinct memories, and memories of fewer bits",
    "controls-retrieval-and-loss": "Retrieval against loss",
}


def controls_page(outcomes: Sequence[Outcome], figures: Mapping[str, str]) -> str:
    """Everything as one Markdown page; ``figures`` are pictures by target, relative to the page."""
    strong = [one for one in outcomes if one.target.name in STRONG]
    controls = [one for one in outcomes if one.target.name not in STRONG]
    compared = [comparison for one in controls for comparison in comparisons(one)]
    parts = [
        "# What makes it work",
        "The paper compares methods that differ in more than the retrieval. Here all else is held equal: what does the "
        "choice of samples add, and what do the other differences add? Generated from `results/` by `make "
        "reproduction`; no number is typed by hand, no seed is left out, and what was not run is shown as such.",
        "Numbers are in per cent (what a search measures of itself in nats), differences in points, seed by seed on "
        f"the same seeds; {OURS}; {FORGETTING}. {SETTLING} {CROSSED} "
        "Of twenty comparisons in which there is nothing to be found, one will look settled by chance, "
        "and comparisons that share runs err together.",
        *([four_answers(strong)] if strong else []),
        "## In plain words",
        *what_it_comes_to(compared),
        in_short(compared),
        practitioner(controls, compared),
        researcher(controls, compared),
        every_retrieval(compared),
    ]
    known = {one.target.name: one for one in outcomes}
    for part, names in PARTS.items():
        shown = [known[name] for name in names if name in known]
        if shown:
            parts += [f"## {TITLES[part]}", f"`rehearse reproduce {part}`"]
            parts += [section(one, figures.get(one.target.name)) for one in shown]
    return "\n\n".join(parts) + "\n"


def section(outcome: Outcome, figure: str | None) -> str:
    """A target: its title, note and table, its paired differences, and its figure."""
    target = outcome.target
    parts = [f"### {target.name}", f"{target.title}; {outcome.seeds} seeds are planned. {target.note}".strip()]
    parts.append(_results(outcome))
    parts += [*explained(outcome), *condition_words(condition_marks(outcome))]
    shown = [metric for metric in target.metrics if metric in (*SHOWN, *TIMED)]
    rows = [
        [
            f"{comparison.later} − {comparison.earlier}",
            comparison.where,
            *(difference_of(comparison, metric) for metric in shown),
            *(settling(comparison.found[m].ours) if m in comparison.found else comparison.verdict(m) for m in shown),
        ]
        for comparison in comparisons(outcome)
    ]
    head = ["difference", "where", *shown, *(f"estimated seeds needed for {metric}" for metric in shown)]
    parts += [markdown_table(head, rows, right=2)] if rows else []
    parts += [f"![{target.title}]({figure})"] if figure else []
    return "\n\n".join(parts)


def _results(outcome: Outcome) -> str:
    """One line for each place of the target; what a search measured stands as before → after."""
    lines = {(line.entry.row, line.entry.column, line.metric): line for line in outcome.lines}
    searched = list(dict.fromkeys(m.rpartition(" ")[0] for m in outcome.target.metrics if m in SEARCHED))
    shown = [metric for metric in outcome.target.metrics if metric not in SEARCHED]
    rows, marks = [], condition_marks(outcome)
    for entry in outcome.target.entries:
        place = (entry.row, entry.column)

        def cell(metric: str, place: tuple[str, str] = place) -> str:
            ours = lines[*place, metric].ours
            return number(ours, metric)

        accuracy = lines[*place, "accuracy"]
        n = len(outcome.runs[place])
        state = str(n) if n else accuracy.judgement
        seconds = cpu_words(accuracy, marks)
        moved = [[cell(f"{name} {when}") for when in MOMENTS] for name in searched]
        searches = [UNDEFINED if UNDEFINED in both else " → ".join(both) for both in moved]
        precision = [precision_words(accuracy)] if tells_precision(outcome) else []
        rows.append([*place, *(cell(metric) for metric in shown), *searches, state, seconds, *precision])
    names = [metric.replace("_", " ") for metric in shown]
    head = ["", "", *names, *searched, "n", "CPU s a run", *(["precision"] if tells_precision(outcome) else [])]
    return markdown_table(head, rows, right=2)
