"""Targets as tables: for the terminal, as CSV, and as Markdown."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from string import ascii_lowercase

from rich.table import Table

from ...errors import InvalidInput
from ..paper.conditions import UNKNOWN
from ..paper.costs import Estimate
from ..paper.outcome import SEARCHED, Difference, Judgement, Line, Outcome
from ..paper.published import PUBLISHED
from ..paper.reference import source
from ..spec import Spec
from ..statistics import Summary, seeds_needed
from . import tables
from .compare import settings_that_differ
from .tables import FORGETTING as FORGETTING
from .tables import SPREAD, UNDEFINED

END = "<!-- end -->"
DIFFERENCES = ("", "column", "metric", "difference", "n", "estimated seeds needed")
FORECASTS = ("target", "runs", "done", "to run", "CPU hours", "disk")
KINDS = ("learning", "anytime", "pooled", "validation", "anytime_average", "worst_case")
PER_CENT = ("accuracy", "forgetting", "stability_gap", *(f"{kind}_accuracy" for kind in KINDS))
VERDICTS: tuple[Judgement, ...] = ("agrees", "differs", "inconclusive", "not run")
NOT_RUN = ("stale", "no number")
OURS = f"ours: mean {SPREAD}"
DETAILS = ("median", "reference", "precision")  # what a terminal shows only on request
MANY_SEEDS = 1000  # a guess from a handful of seeds says no more than that
SETTLING = (
    "*Estimated seeds needed*: settled where the 95 % interval excludes zero; else the number of seeds at which it "
    "would, with probability 0.8, if the true difference were the one measured: rough, above all from few seeds."
)
CROSSED = (
    "×: some or all of the pairs were run on two kinds of processors, which round differently, so that one seed is two "
    "runs there: the interval holds, the pairing helps less."
)
PRECISION = (
    "*Precision*: bfloat16-scoring trains in float32 and scores candidates, or searches, in bfloat16; bfloat16 trains "
    "and predicts in it too; where two are named, seeds of both are counted. A paired difference is of one precision "
    "where both rows have one in common."
)


def _criteria(outcome: Outcome) -> list[str]:
    """Which criterion of `MostInterfered` its rows have."""
    rows: dict[str, dict[str, None]] = {}
    for entry in outcome.target.entries:
        rows.setdefault(entry.spec().criterion or "", {})[entry.row] = None
    said = [f'`MostInterfered(criterion="{name}")` in {", ".join(found)}' for name, found in rows.items() if name]
    return [f"Retrieval: {'; '.join(said)} (the library's default is mi1)."] if said else []


def explained(outcome: Outcome) -> list[str]:
    """What stands under a table: criterion, settings that differ, the reference's source, precision."""
    parts = [*_criteria(outcome), *_differing(outcome)]
    parts += [f"*Reference*: {source()}"] if _has_reference(outcome) else []
    return [*parts, *([PRECISION] if tells_precision(outcome) else [])]


def _differing(outcome: Outcome) -> list[str]:
    """The settings in which rows of one column differ, a sentence for the columns that have it."""
    specs: dict[str, dict[str, Spec]] = {}
    for entry in outcome.target.entries:
        specs.setdefault(entry.column, {})[entry.row] = entry.spec()
    columns: dict[str, list[str]] = {}
    for column, rows in specs.items():
        columns.setdefault(settings_that_differ(rows), []).append(column)
    places = {sentence: f"{', '.join(where)}: " if len(columns) > 1 else "" for sentence, where in columns.items()}
    return [f"{place}{sentence}" for sentence, place in places.items() if sentence]


def legend(metrics: Collection[str]) -> str:
    """What the numbers under these metrics are."""
    return f"{OURS}; {FORGETTING}" if "forgetting" in metrics else OURS


def units(metrics: Collection[str], fraction: str = "%") -> str:
    """The units of these metrics: ``fraction`` for those that are fractions; losses, divergences, entropies in nats."""
    fractions = [metric for metric in metrics if metric in PER_CENT]
    if len(fractions) in (0, len(metrics)):
        return f"in {fraction if fractions else 'nats'}"
    return f"{', '.join(name.replace('_', ' ') for name in fractions)} in {fraction}, all else in nats"


def outcome_table(outcome: Outcome, *, verbose: bool = False) -> Table:
    target = outcome.target
    columns = {name: cell for name, cell in _columns(outcome).items() if verbose or name not in DETAILS}
    rows = [[cell(line) for cell in columns.values()] for line in _told(outcome)]
    title = f"{target.name}: {target.title} ({units(target.metrics)})\n{counted(outcome)}"
    told = [f"reference: {source()}"] if verbose and _has_reference(outcome) else []
    return tables.table_of(title, [*columns], rows, 3, "; ".join([legend(target.metrics), *told]))


def _told(outcome: Outcome) -> list[Line]:
    """Its lines, without what only searches measure in rows that were run and have none."""
    return [
        line for line in outcome.lines if line.metric not in SEARCHED or line.ours is not None or not line.conditions
    ]


def tells_precision(outcome: Outcome) -> bool:
    """Whether some of its runs were computed in another precision than float32."""
    return any(precision not in ("auto", "float32") for line in outcome.lines for precision in line.precisions)


def _columns(outcome: Outcome) -> dict[str, Callable[[Line], str]]:
    """What a table of the target shows of a line, by the name of the column."""
    return {
        "": lambda line: line.entry.row,
        "column": lambda line: line.entry.column,
        "metric": lambda line: line.metric,
        "ours": lambda line: number(line.ours, line.metric),
        "median": _median,
        "n": lambda line: _count(line, min(outcome.seeds, line.entry.seeds or outcome.seeds)),
        "published": lambda line: (line.published.printed if line.published else "") or UNDEFINED,
        **({"reference": _reference} if _has_reference(outcome) else {}),
        "verdict": judgement,
        **({"precision": precision_words} if tells_precision(outcome) else {}),
    }


def _markdown(columns: Mapping[str, Callable[[Line], str]], lines: Iterable[Line]) -> str:
    return markdown_table([*columns], [[cell(line) for cell in columns.values()] for line in lines], right=3)


def _has_reference(outcome: Outcome) -> bool:
    return any(line.reference is not None for line in outcome.lines)


def outcome_differences_table(outcome: Outcome) -> Table | None:
    if not outcome.differences:
        return None
    caption = " ".join([SETTLING.replace("*", ""), *_crossed_words(outcome)])
    title = f"paired differences on the same seeds, {_difference_units(outcome)}"
    return tables.table_of(title, DIFFERENCES, map(_difference_cells, outcome.differences), 3, caption)


def _difference_units(outcome: Outcome) -> str:
    return units(list(dict.fromkeys(difference.metric for difference in outcome.differences)), "points")


def _difference_cells(difference: Difference) -> tuple[str, ...]:
    ours, metric = difference.ours, difference.metric
    name = f"{difference.later} − {difference.earlier}"
    return name, difference.column, metric, number(ours, metric, sign=True), count(difference), settling(ours)


def count(difference: Difference) -> str:
    """How many pairs there are, marked where some are of two kinds of processors."""
    return f"{difference.ours.n}{' ×' if difference.crossed else ''}"


def settling(difference: Summary) -> str:
    """Whether the interval of a paired difference leaves out zero, or how many seeds would make it (`seeds_needed`)."""
    if difference.shown is None:
        return "too few seeds"
    low, high = difference.shown
    if low > 0 or high < 0:
        return "settled"
    needed = seeds_needed(difference.sd, difference.mean)
    if needed is None:
        return "no difference"
    return _about(needed)


def _about(number: int) -> str:
    """Rounded up to two digits: a standard deviation from a few seeds tells no more."""
    unit = int(10 ** max(len(str(number)) - 2, 0))
    return f"about {-(-number // unit) * unit:,}" if number <= MANY_SEEDS else f"over {MANY_SEEDS:,}"


def _median(line: Line) -> str:
    value = None if line.ours is None else _unit(line.metric) * line.ours.median
    return tables.number(value, digits=_digits(line.metric))


def _reference(line: Line) -> str:
    theirs = line.reference
    return UNDEFINED if theirs is None else f"{number(theirs, line.metric)} (n = {theirs.n})"


def _count(line: Line, seeds: int) -> str:
    """How many runs there are; of how many, where some are still to come, and how many have no such number."""
    n = 0 if line.ours is None else line.ours.n
    runs = n + line.undefined
    words = str(n) if runs == 0 or runs >= seeds else f"{n} of {seeds}"
    return f"{words}, {line.undefined} undefined" if line.undefined else words


def precision_words(line: Line) -> str:
    return ", ".join(line.precisions) or UNDEFINED


def judgement(line: Line) -> str:
    """The verdict with what it needs or by how much it differs; how many results are stale."""
    found = line.verdict
    notes = [f"{line.stale} stale"] if line.stale and line.judgement != "stale" else []
    if found is not None and found.word == "inconclusive":
        needed = found.seeds_needed
        enough = "the published ± alone is too wide" if needed is None else f"{_about(needed)} seeds"
        notes.append("one run" if found.half is None else enough)
    if found is not None and found.word == "differs" and found.half is not None:
        few = line.ours is None or line.ours.shown is None
        half = "" if few else f" ± {_unit(line.metric) * found.half:.1f}"
        notes.append(f"{_unit(line.metric) * found.difference:+.1f}{half}")
    return f"{line.judgement} ({'; '.join(notes)})" if notes else line.judgement


def number(value: Summary | None, metric: str, *, sign: bool = False) -> str:
    """Mean and spread; per cent where the metric is a fraction."""
    if value is None:
        return UNDEFINED
    return tables.with_spread(value, _unit(metric), _digits(metric), sign=sign)


def _digits(metric: str) -> int:
    return 2 if metric in SEARCHED else 1


def _unit(metric: str) -> float:
    return 100.0 if metric in PER_CENT else 1.0


def outcome_csv(outcome: Outcome) -> str:
    """Every number at full precision: fractions, empty where undefined."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["target", "row", "column", "method", "stream", "metric", "mean", "low", "high", "median", "sd", "n",
         "published", "published_value", "published_se", "reference", "verdict", "difference", "difference_half",
         "seeds_needed", "stale", "cpu_seconds", "precision"]
    )  # fmt: skip
    for line in outcome.lines:
        ours, cell = line.ours, line.published
        mean = ["", "", "", "", "", 0]
        if ours is not None:
            low, high = ours.interval or ("", "")
            mean = [ours.mean, low, high, ours.median, ours.sd if ours.n > 1 else "", ours.n]
        printed = cell.number if cell is not None else None
        writer.writerow(
            [outcome.target.name, line.entry.row, line.entry.column, line.entry.method, line.entry.stream, line.metric,
             *mean, cell.printed if cell else "", *(getattr(printed, name, None) for name in ("value", "se")),
             line.reference.mean if line.reference else "", line.judgement,
             *(getattr(line.verdict, name, None) for name in ("difference", "half", "seeds_needed")), line.stale,
             "" if line.cpu_seconds is None else f"{line.cpu_seconds:.2f}", " ".join(line.precisions)]
        )  # fmt: skip
    return text.getvalue()


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: int) -> str:
    """Columns from the ``right``-th on are numbers."""
    rule = ["---" if i < right else "--:" for i in range(len(head))]
    lines = [head, rule, *([part.replace("|", "\\|") for part in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def outcome_markdown(outcome: Outcome) -> str:
    """The target as a section: its table, its paired differences, its note."""
    target = outcome.target
    marks = condition_marks(outcome)
    columns = _columns(outcome) | {
        "CPU s a run": lambda line: cpu_words(line, marks),
        "command": lambda line: f"`{command(line, target.name)}`",
    }
    seeds = f"{outcome.seeds} seed{'s are' if outcome.seeds > 1 else ' is'} asked for; n says how many there are."
    parts = [f"## {target.name}", f"**{counted(outcome)}**"]
    parts.append(f"{target.title}. {seeds} Numbers: {units(target.metrics)}.")
    parts += [target.note] if target.note else []
    parts.append(_markdown(columns, _told(outcome)))
    parts += [*explained(outcome), *condition_words(marks)]
    if outcome.differences:
        parts.append(_differences_markdown(outcome))
    return "\n\n".join(parts) + "\n"


def _differences_markdown(outcome: Outcome) -> str:
    table = markdown_table(DIFFERENCES, [_difference_cells(difference) for difference in outcome.differences], right=3)
    head = f"Paired differences on the same seeds, {_difference_units(outcome)}:"
    return "\n\n".join([head, table, *_crossed_words(outcome)])


def _crossed_words(outcome: Outcome) -> list[str]:
    return [CROSSED] if any(difference.crossed for difference in outcome.differences) else []


def condition_marks(outcome: Outcome) -> dict[str, str]:
    """A letter for each condition that its runs were made under, but where that is one and known."""
    conditions = sorted({condition for line in outcome.lines for condition in line.conditions})
    plain = len(conditions) == 1 and UNKNOWN not in conditions[0]
    return {} if plain else dict(zip(conditions, ascii_lowercase, strict=False))


def cpu_words(line: Line, marks: Mapping[str, str]) -> str:
    """CPU seconds of a run, with the letters of its conditions."""
    letters = ", ".join(marks[condition] for condition in line.conditions) if marks else ""
    return f"{tables.number(line.cpu_seconds)} {letters}".rstrip()


def condition_words(marks: Mapping[str, str]) -> list[str]:
    kinds = "; ".join(f"{letter}: {condition}" for condition, letter in marks.items())
    return [f"*CPU s a run* compare only under one letter, and of known models alone. {kinds}."] if marks else []


def _short_markdown(outcome: Outcome) -> str:
    """What a reader of the first page wants: the lines that were run, and the paired differences."""
    lines = [line for line in outcome.lines if line.ours is not None]
    if not lines:
        return f"`rehearse reproduce {outcome.target.name}` has not been run yet."
    parts = [counted(outcome), _markdown(_columns(outcome), lines), *explained(outcome)]
    if outcome.differences:
        parts.append(_differences_markdown(outcome))
    parts.append(f"`rehearse reproduce {outcome.target.name}`; {legend(outcome.target.metrics)}.")
    return "\n\n".join(parts)


def filled(text: str, outcomes: Sequence[Outcome]) -> str:
    """The text with what stands between ``<!-- generated: TARGET -->`` and ``<!-- end -->`` written anew."""
    for one in outcomes:
        text = between_marks(text, one.target.name, _short_markdown(one))
    return text


def between_marks(text: str, name: str, content: str) -> str:
    """The text with ``content`` at the mark of that name, if there is one."""
    before, mark, rest = text.partition(f"<!-- generated: {name} -->\n")
    _, end, after = rest.partition(END)
    if mark and not end:
        raise InvalidInput(f"the mark {mark.strip()} has no {END} after it; nothing is written")
    return f"{before}{mark}{content}\n{END}{after}" if mark else text


def command(line: Line, target: str) -> str:
    by_itself = line.precisions != ("bfloat16",)  # which nobody gets without asking
    precision = "" if by_itself else " --precision bfloat16"
    return f"rehearse reproduce {target} --only {line.entry.method}{precision}"


def reproduction_page(outcomes: Sequence[Outcome], figures: Mapping[str, str]) -> str:
    """Everything as one Markdown page; ``figures`` are files, relative to it, by name (`Target.drawings`)."""
    text = files("rehearse.lab.report").joinpath("assets/reproduction.md").read_text("utf-8")
    hours = _cpu_seconds(outcomes) / 3600
    parts = [text.format(summary=_summary_table(outcomes), hours=hours, settling=SETTLING)]
    for one in outcomes:
        parts.append(outcome_markdown(one))
        for name, caption in one.target.drawings.items():
            if name in figures:
                parts.append(f"![{one.target.title}]({figures[name]})\n")
                parts += [f"{caption}\n"] if one.target.pictures else []
    return "\n".join(parts)


def _verdicts(outcomes: Sequence[Outcome]) -> Counter[Judgement]:
    """Count the judgements on published numbers, each number once, though several cells may show it."""
    found = {
        (line.entry.runs, line.published.metric, line.published.number): line.judgement
        for one in outcomes
        for line in one.lines
        if line.published is not None and line.published.number is not None
    }
    return Counter("not run" if judgement in NOT_RUN else judgement for judgement in found.values())


def counted(outcome: Outcome) -> str:
    """What a target comes to in one line: how many of its published numbers agree, differ, are inconclusive."""
    found = _verdicts([outcome])
    if not found:
        run = sum(bool(runs) for runs in outcome.runs.values())
        return f"No published numbers; {run} of {len(outcome.runs)} cells run."
    return f"Of {found.total()} published numbers: {', '.join(f'{word} {found[word]}' for word in VERDICTS)}."


def _summary_table(outcomes: Sequence[Outcome]) -> str:
    """The paper's tables and figures, a line each, with the counts of their verdicts."""
    named = {f"[{one.target.name}](#{one.target.name})": one for one in outcomes}
    printed = {name: one for name, one in named.items() if one.target.name in PUBLISHED}
    groups = [(name, one.target.title, [one]) for name, one in printed.items()]
    groups += [("**all tables**", "", list(printed.values()))]
    rows = [[name, title, *(str(_verdicts(group)[word]) for word in VERDICTS)] for name, title, group in groups]
    figures = {name: one for name, one in named.items() if one.target.name.startswith("figure")}
    rows += [[name, f"{one.target.title}. {counted(one)}", *4 * [UNDEFINED]] for name, one in figures.items()]
    return markdown_table(["", "", *VERDICTS], rows, right=2)


def _cpu_seconds(outcomes: Sequence[Outcome]) -> float:
    """Of all runs, each counted once."""
    runs = {result["key"]: result for one in outcomes for found in one.runs.values() for result in found.values()}
    costs = [result["cost"] for result in runs.values()]
    return sum(float(cost["cpu_seconds"]) - float(cost.get("shared_cpu_seconds", 0.0)) for cost in costs)


Forecast = tuple[str, int, int, Sequence[Estimate]]  # target, runs, done, estimates of those to run


def cost_table(forecasts: Sequence[Forecast], together: Forecast) -> Table:
    """What would run, and what it would cost; ``together`` counts the runs that several targets share once."""
    guessed = any(not estimate.measured for *_, estimates in forecasts for estimate in estimates)
    caption = "* estimated, for want of a run with the same settings; " if guessed else ""
    caption += "together counts a run that several need once; checkpoints come and go beside these files"
    table = tables.table_of("what would run", FORECASTS, map(_forecast_cells, forecasts), caption=caption)
    if len(forecasts) > 1:
        table.add_section()
        table.add_row(*_forecast_cells(together))
    return table


def _forecast_cells(forecast: Forecast) -> tuple[str, ...]:
    name, runs, done, estimates = forecast
    rough = "" if all(estimate.measured for estimate in estimates) else "*"
    hours = sum(estimate.cpu_seconds for estimate in estimates) / 3600
    disk = sum(estimate.disk_bytes for estimate in estimates) / 1e6
    return name, str(runs), str(done), str(runs - done), f"{hours:.1f}{rough}", f"{disk:.1f} MB"
