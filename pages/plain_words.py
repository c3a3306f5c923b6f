"""The controls in plain words, for two readers. Whatever is said of numbers is computed from them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rehearse.lab.paper.outcome import MOMENTS, Line, Outcome, values_of
from rehearse.lab.paper.targets import PARTS
from rehearse.lab.report.reproduction import markdown_table, number, settling
from rehearse.lab.report.tables import UNDEFINED
from rehearse.lab.statistics import paired_difference
from rehearse.learners import Replay

from .comparisons import Comparison, Verdict, common_costs, difference_of, once, side

SHOWN = ("accuracy", "forgetting")
RUN: tuple[Verdict, ...] = ("ahead", "behind", "open")  # the verdicts on what was run
ABOUT = 1.05  # times the cost is the same cost
SMALLER = (20, 50)  # stored samples per class, beside the 100 that all else is measured with
STREAM_TITLES = {"split-mnist": "Split MNIST", "permuted-mnist": "Permuted MNIST", "split-cifar10": "Split CIFAR-10"}


def _treated(treatment: str, other: str = "published") -> tuple[tuple[str, str], ...]:
    """The pairs of columns that hold a treatment of batch-norm against another."""
    smaller = ((f"M={m}, {treatment}", f"M={m}, {other}") for m in SMALLER)
    return ((treatment, other), *smaller)


# What a practitioner may switch on: in words, and the pairs (later, earlier) that try it.
SWITCHES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "Replay the most interfered samples, not random ones (`MostInterfered`)": (
        ("ER-MIR", "ER"),
        ("ER-MIR", "ER, candidates passed"),
        ("er-mir", "er"),
    ),
    'Re-estimate batch-norm\'s statistics from the memory to predict (`batchnorm="recalibrated"`)': (
        *_treated("recalibrated"),
        *_treated("recalibrated", "clean"),
    ),
    'Keep candidates from moving batch-norm\'s statistics (`batchnorm="clean"`)': _treated("clean"),
    'Pass incoming and replayed samples together (`batchnorm="joint"`)': (
        ("joint", "published"),
        ("joint", "recalibrated"),
    ),
    "Group-norm in the place of batch-norm": (("group-norm", "published"),),
    "More updates for each batch, plain replay": tuple((f"ER, {n} updates", "ER") for n in (2, 3)),
    "More replayed samples in each, plain replay": tuple((f"ER, {n} replayed", "ER") for n in (20, 30, 50, 100)),
    "The asymmetric loss (`er-ace`, which replays the current task too)": (("er-ace", "er"),),
    "Stored logits as targets (`der`, which replays the current task too)": (("der", "er"),),
    "Replay samples of the current task too": tuple(
        (f"{stream}, replayed too", f"{stream}, left out") for stream in ("Split", "Permuted")
    ),
    "In a memory of codes, search for the interfered ones (`CodeSearch`)": (("AE-MIR", "AE"),),
    'Keep codes of 8 bits, four times as many (`codes="uint8"`)': (("AE, 8-bit codes", "AE"),),
}


def researcher(outcomes: Sequence[Outcome], compared: Sequence[Comparison]) -> str:
    """What the retrieval adds on top of each control."""
    tried = [comparison for comparison in compared if comparison.retrieval]
    counted = once(tried)
    accuracy = Counter(comparison.verdict() for comparison in counted)
    forgetting = Counter(comparison.verdict("forgetting") for comparison in counted)
    run = sum(accuracy[verdict] for verdict in RUN)
    return "\n\n".join(
        (
            "### For a researcher: what the retrieval adds",
            "Each comparison holds an interfered retrieval against the same method with the same settings and a random "
            "one, seed by seed.",
            f"By accuracy, of {run} comparisons that were run {accuracy['ahead']} are settled for the retrieval, "
            f"{accuracy['behind']} against it, and {accuracy['open']} are open. By forgetting, {forgetting['ahead']} "
            f"are settled for it, {forgetting['behind']} against it, and {forgetting['open']} are open. "
            f"{len(counted) - run} more have not been run. In points of accuracy, control by control (what several "
            "controls share is shown in each, and counted once above):",
            "\n".join(_by_part(tried)),
            *(sentence for one in outcomes for sentence in searched(one)),
        )
    )


def every_retrieval(compared: Sequence[Comparison]) -> str:
    """The comparisons behind the researcher's words, one line each."""
    rows = [
        [
            _short(comparison.target),
            f"{comparison.later} − {comparison.earlier}",
            comparison.where,
            *(difference_of(comparison, metric) for metric in SHOWN),
            _told(comparison),
        ]
        for comparison in once(comparison for comparison in compared if comparison.retrieval)
        if "accuracy" in comparison.found
    ]
    table = markdown_table(["control", "", "where", *SHOWN, "verdict on accuracy"], rows, right=3)
    return f"### Every comparison of retrievals that was run\n\n{table if rows else 'None yet.'}"


def _by_part(tried: Sequence[Comparison]) -> Iterator[str]:
    """One line for each part of the controls: how many are settled, and from where to where they go."""
    for part, names in PARTS.items():
        own = once(comparison for comparison in tried if comparison.target in names)
        known = [comparison for comparison in own if "accuracy" in comparison.found]
        verdicts = Counter(comparison.verdict() for comparison in known)
        counts = {"for it": verdicts["ahead"], "against it": verdicts["behind"], "open": verdicts["open"]}
        counts["not run"] = len(own) - len(known)
        if own:
            said = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
            yield f"- {part.removeprefix('controls-')}: {said}{_span(known)}"


def _span(known: Sequence[Comparison]) -> str:
    """From the least to the largest difference, with where they are; those of one seed tell nothing."""
    told = [comparison for comparison in known if comparison.found["accuracy"].ours.interval is not None]
    ends = sorted(told, key=lambda comparison: comparison.found["accuracy"].ours.mean)
    if len(ends) < 2:
        return "".join(f"; {_named(one)}" for one in ends)
    return f"; from {_named(ends[0])} to {_named(ends[-1])}"


def _named(comparison: Comparison) -> str:
    """A difference, what it is of, and where."""
    pair = f"`{comparison.later} − {comparison.earlier}` in {_short(comparison.target)}, {comparison.where}"
    return f"{difference_of(comparison, 'accuracy')[:-1]}; {pair})"


def _short(target: str) -> str:
    return target.removeprefix("controls-")


def equal_cost(outcome: Outcome) -> Iterator[str]:
    """Where CPU time is the question: the best that it buys plain replay, against ER-MIR."""
    if outcome.target.name not in PARTS["controls-cost"]:
        return
    known = [line for line in outcome.lines if line.metric == "accuracy" and line.ours]
    for mir in (line for line in known if line.entry.row == "ER-MIR"):
        where = f"In {_short(outcome.target.name)}, {mir.entry.column}"
        others = [line for line in known if line is not mir and line.entry.column == mir.entry.column]
        costs = common_costs(outcome, mir.entry.column)
        if not costs:
            yield (
                f"{where}: the runs share no condition that is known, of processor and evaluation. Accuracies compare, "
                "CPU seconds do not: no verdict on equal cost."
            )
            continue
        limit = ABOUT * costs["ER-MIR"]
        fits = [line for line in others if costs[line.entry.row] <= limit]
        dearer = [line for line in others if line not in fits]
        said = [f"{where}: {_reached(mir, costs)}"]
        if fits:
            best = max(fits, key=lambda line: line.ours.mean if line.ours else 0.0)
            said.append(f"the best plain replay that was run and costs about as much or less: {_reached(best, costs)}")
        if dearer:
            least = min(dearer, key=lambda line: costs[line.entry.row])
            times = costs[least.entry.row] / costs["ER-MIR"]
            said.append(f"at {times:.2f} times the cost of ER-MIR: {_reached(least, costs)}")
        yield f"{'; '.join(said)}."


def _reached(line: Line, costs: Mapping[str, float]) -> str:
    assert line.ours is not None
    row = line.entry.row
    return f"{row} with {costs[row]:.1f} CPU s a run, {number(line.ours, 'accuracy')} % (n = {line.ours.n})"


def searched(outcome: Outcome) -> Iterator[str]:
    """Where there was a search in latent space: whether it raised what it is there to raise."""
    sought = outcome.target.sought
    sides: dict[Verdict, list[str]] = {verdict: [] for verdict in RUN}
    for (row, _), runs in outcome.runs.items():
        before, after = (values_of(runs, f"{sought} {when}") if sought else {} for when in MOMENTS)
        if before:
            change = paired_difference(after, before)
            told = f"`{row}` ({number(change, f'{sought} after', sign=True)}, n = {change.n})"
            sides[side(change)].append(told)
    words = {"ahead": "rises with", "behind": "falls with", "open": "is not settled with"}
    said = [f"{words[verdict]} {', '.join(rows)}" for verdict, rows in sides.items() if rows]
    if said:
        where = f"In {_short(outcome.target.name)}, from the start to the end of the retrieval"
        yield f"{where}, the {sought} {'; it '.join(said)}."


def _told(comparison: Comparison) -> str:
    """The verdict on accuracy in words; what is open says how many seeds there are and how many it takes."""
    verdict = comparison.verdict()
    if verdict != "open":
        return verdict
    ours = comparison.found["accuracy"].ours
    needed = settling(ours)
    known = needed.startswith(("about", "over"))
    return f"open (n = {ours.n}; {f'{needed} seeds would settle it' if known else needed})"


def practitioner(outcomes: Sequence[Outcome], compared: Sequence[Comparison]) -> str:
    """What to switch on: each switch with where it was ahead, behind and open."""
    rows = []
    for words, pairs in SWITCHES.items():
        tried = once(comparison for comparison in compared if (comparison.later, comparison.earlier) in pairs)
        if not tried:  # a page of some controls says nothing of the others
            continue
        verdicts = Counter(comparison.verdict() for comparison in tried)
        forgetting = Counter(comparison.verdict("forgetting") for comparison in tried)
        ahead, behind = _places(tried, "ahead"), _places(tried, "behind")
        counts = (str(verdicts[verdict]) for verdict in ("open", "not run"))
        rows.append([words, advice(verdicts, forgetting), ahead, behind, *counts])
    default = inspect.signature(Replay).parameters["batchnorm"].default
    return "\n\n".join(
        (
            "### For a practitioner: what to switch on",
            "A switch gets a yes where it is settled to be ahead in accuracy somewhere and behind nowhere, a no where "
            "it is the other way round, and no advice where nothing is settled. Where forgetting is settled against "
            "the advice, in how many of the comparisons is said. Differences are in points of accuracy.",
            markdown_table(["switch", "advice", "ahead", "behind", "open", "not run"], rows, right=4),
            f'`Replay` has `batchnorm="{default}"` by default ([the batch-norm modes](how-to/batch-norm.md)); the '
            "specs of the paper have `published`, where everything that passes the network updates its statistics.",
            *(sentence for one in outcomes for sentence in equal_cost(one)),
        )
    )


def advice(verdicts: Counter[Verdict], forgetting: Counter[Verdict]) -> str:
    """By accuracy; with what is settled against it in forgetting."""
    ahead, behind = verdicts["ahead"], verdicts["behind"]
    if not (ahead or behind):
        word = "undecided" if verdicts["open"] else "not run"
    else:
        word = "it depends" if ahead and behind else "yes" if ahead else "no"
    against, words = (forgetting["ahead"], "less") if word == "no" else (forgetting["behind"], "more")
    run = sum(forgetting[verdict] for verdict in RUN)
    return f"{word}; forgets {words} in {against} of {run}" if against else word


def _places(tried: Sequence[Comparison], verdict: Verdict) -> str:
    """Where a switch has this verdict; of more than two places the least and the largest difference."""
    found = [comparison for comparison in tried if comparison.verdict() == verdict]
    if len(found) > 2:
        streams = Counter(STREAM_TITLES.get(comparison.stream, comparison.stream) for comparison in found)
        return f"{', '.join(f'{stream} ({n})' for stream, n in streams.items())}{_span(found)}"
    return "; ".join(_named(comparison) for comparison in found) or UNDEFINED
