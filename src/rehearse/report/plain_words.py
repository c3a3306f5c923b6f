"""The controls in plain words, for two readers. Whatever is said of numbers is computed from them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..learners import Replay
from ..paper.controls import SMALLER
from ..paper.outcome import Line, Outcome, values_of
from ..paper.targets import PARTS
from ..statistics import paired_difference
from .comparisons import Comparison, Verdict, difference_of, once
from .reproduction import markdown_table, number, settling
from .tables import UNDEFINED

BEFORE = "classifier interference before"
SHOWN = ("accuracy", "forgetting")


def _treated(treatment: str, other: str = "published") -> tuple[tuple[str, str], ...]:
    """The pairs of columns that hold a treatment of batch-norm against another."""
    smaller = ((f"M={m}, {treatment}", f"M={m}, {other}") for m in SMALLER)
    return ((treatment, other), *smaller)


# What a practitioner may switch on: in words, and the pairs (later, earlier) that try it.
SWITCHES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "Recall the most interfered memories, not random ones (`MostInterfered`)": (("ER-MIR", "ER"), ("er-mir", "er")),
    'Re-estimate batch-norm\'s statistics from the memory to predict (`batchnorm="recalibrated"`)': (
        *_treated("recalibrated"),
        *_treated("recalibrated", "clean"),
    ),
    'Keep candidates from moving batch-norm\'s statistics (`batchnorm="clean"`)': _treated("clean"),
    'Pass new and recalled rows together (`batchnorm="joint"`)': (("joint", "published"),),
    "Group-norm in the place of batch-norm": (("group-norm", "published"),),
    "More updates for each batch, plain replay": tuple((f"ER, {n} updates", "ER") for n in (2, 3)),
    "More recalled memories in each, plain replay": tuple((f"ER, {n} recalled", "ER") for n in (20, 30, 40, 50, 100)),
    "The asymmetric loss (`er-ace`)": (("er-ace", "er"),),
    "Stored scores as targets (`der`)": (("der", "er"),),
    "Recall memories of the current task too": tuple(
        (f"{stream}, recalled too", f"{stream}, left out") for stream in ("Split", "Permuted")
    ),
}


def researcher(outcomes: Sequence[Outcome], compared: Sequence[Comparison]) -> str:
    """What the retrieval adds on top of each control."""
    tried = once(comparison for comparison in compared if comparison.retrieval)
    accuracy = Counter(comparison.verdict() for comparison in tried)
    forgetting = Counter(comparison.verdict("forgetting", better=-1) for comparison in tried)
    run = sum(accuracy[verdict] for verdict in ("ahead", "behind", "open"))
    rows = [
        [
            comparison.target.removeprefix("controls-"),
            f"{comparison.later} − {comparison.earlier}",
            comparison.where,
            *(difference_of(comparison, metric) for metric in SHOWN),
            _told(comparison),
        ]
        for comparison in tried
        if "accuracy" in comparison.found
    ]
    return "\n\n".join(
        (
            "### For a researcher: what the retrieval adds",
            "Each line holds an interfered retrieval against the same method with the same settings and a random one, "
            "seed by seed. A comparison is "
            "settled where the whole 95 % interval lies on one side of zero; anything else is open, whatever its mean. "
            "Of twenty comparisons in which there is nothing to be found, one will look settled by chance.",
            f"By accuracy, of {run} comparisons that were run {accuracy['ahead']} are settled for the retrieval, "
            f"{accuracy['behind']} against it, and {accuracy['open']} are open. By forgetting, {forgetting['ahead']} "
            f"are settled for it, {forgetting['behind']} against it, and {forgetting['open']} are open. "
            f"{len(tried) - run} more stand below and have not been run.",
            markdown_table(["control", "", "where", *SHOWN, "verdict on accuracy"], rows, right=3),
            *(sentence for one in outcomes for sentence in (*equal_cost(one), *searched(one))),
        )
    )


def equal_cost(outcome: Outcome) -> Iterator[str]:
    """Where CPU time is the question: the best that it buys plain replay, against ER-MIR."""
    if outcome.target.name not in PARTS["controls-cost"]:
        return
    known = [line for line in outcome.lines if line.metric == "accuracy" and line.ours and line.cpu_seconds]
    for mir in (line for line in known if line.entry.row == "ER-MIR"):
        where = f"In {outcome.target.name.removeprefix('controls-')}, {mir.entry.column}"
        others = [line for line in known if line is not mir and line.entry.column == mir.entry.column]
        elsewhere = [line for line in others if line.processors != mir.processors]
        if elsewhere:
            kinds = " and ".join(dict.fromkeys(line.processors[0] for line in (mir, *elsewhere)))
            yield (
                f"{where}: {len(elsewhere)} of the {len(others)} ways of plain replay ran on another processor than "
                f"ER-MIR ({kinds}). Accuracies compare, CPU seconds do not: no verdict on equal cost."
            )
            continue
        fits = [line for line in others if _cost(line) <= _cost(mir)]
        if fits:
            best = max(fits, key=lambda line: line.ours.mean if line.ours else 0.0)
            unmade = "" if len(others) > 1 else " (of plain replay that costs about as much nothing has been run)"
            words = "the best plain replay that was run and costs no more"
            yield f"{where}: {_reached(mir)}; {words}: {_reached(best)}{unmade}."


def _cost(line: Line) -> float:
    return line.cpu_seconds or 0.0


def _reached(line: Line) -> str:
    assert line.ours is not None
    return f"{line.entry.row} with {_cost(line):.1f} CPU s a run, {number(line.ours, 'accuracy')} % (n = {line.ours.n})"


def searched(outcome: Outcome) -> Iterator[str]:
    """Where there was a search in latent space: whether it raised what it is named after."""
    sides: dict[str, list[str]] = {"rises": [], "falls": []}
    for (row, _), runs in outcome.runs.items():
        before, after = (values_of(runs, f"classifier interference {when}") for when in ("before", "after"))
        if before and outcome.target.name == "controls-generative":
            change = paired_difference(after, before)
            words = f"{row} ({number(change, BEFORE, sign=True)} nats, n = {change.n})"
            sides["rises" if change.mean > 0 else "falls"].append(words)
    for word, rows in sides.items():
        if rows:
            yield f"In the search for the classifier, measured interference {word} with: {'; '.join(rows)}."


def _told(comparison: Comparison) -> str:
    """The verdict on accuracy in words; what is open says how many seeds there are and how many it takes."""
    verdict = comparison.verdict()
    if verdict != "open":
        return verdict
    ours = comparison.found["accuracy"].ours
    needed = settling(ours)
    return f"open (n = {ours.n}; {f'{needed} seeds would settle it' if needed.startswith('about') else needed})"


def practitioner(compared: Sequence[Comparison]) -> str:
    """What to switch on: each switch with where it was ahead, behind and open."""
    rows = []
    for words, pairs in SWITCHES.items():
        tried = once(comparison for comparison in compared if (comparison.later, comparison.earlier) in pairs)
        verdicts = Counter(comparison.verdict() for comparison in tried)
        places = [_places(tried, verdict) for verdict in ("ahead", "behind")]
        rows.append([words, advice(verdicts), *places, str(verdicts["open"]), str(verdicts["not run"])])
    default = inspect.signature(Replay).parameters["batchnorm"].default
    return "\n\n".join(
        (
            "### For a practitioner: what to switch on",
            "A switch gets a yes where it is settled to be ahead in accuracy somewhere and behind nowhere, a no where "
            "it is the other way round, and no advice where nothing is settled. Differences are in points of accuracy.",
            markdown_table(["switch", "advice", "ahead", "behind", "open", "not run"], rows, right=4),
            f"Without a word from you `Replay` treats batch-norm as `{default}`; the paper's settings say `published`.",
        )
    )


def advice(verdicts: Counter[Verdict]) -> str:
    ahead, behind = verdicts["ahead"], verdicts["behind"]
    if ahead and behind:
        return "it depends"
    if ahead or behind:
        return "yes" if ahead else "no"
    return "undecided" if verdicts["open"] else "not run"


def _places(tried: Iterable[Comparison], verdict: Verdict) -> str:
    """Where a switch has this verdict; a switch that is held against several things says against which."""
    tried = list(tried)
    several = len({(comparison.later, comparison.earlier) for comparison in tried}) > 1
    found = [comparison for comparison in tried if comparison.verdict() == verdict]
    named = [
        f"{c.target.removeprefix('controls-')}, {c.where}{f', {c.later} − {c.earlier}' if several else ''}: "
        f"{difference_of(c, 'accuracy')}"
        for c in found
    ]
    return "; ".join(named) or UNDEFINED
