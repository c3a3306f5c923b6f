"""Run the suites in two processes, report as they end, and write docs/reliability.md.

A suite is a module beside this one with ``run(tries, seed) -> Result``. Those that are not there yet are left out.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import multiprocessing
import resource
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from rehearse.lab.environment import environment

from .result import Result

HERE = Path(__file__).parent
PROCESSES, SHOWN = 2, 20


class Suite(NamedTuple):
    """How often the whole tries, and what must hold every time."""

    tries: int
    title: str
    promise: str


SUITES = {  # those that take longest first
    "endless": Suite(
        1_000_000,
        "Steps of a small learner, in RAM and mapped, with saves and deletions",
        "Memory, open files, files on disk and the time of a step do not grow.",
    ),
    "threads": Suite(
        1_000_000,
        "Predictions from four threads beside a learning one",
        "Each is the prediction of a state that the learner went through; readers change nothing, torch's random state "
        "included; a second learner in a thread of its own learns what it learns alone.",
    ),
    "file_layer": Suite(
        12_000,  # more than there are: every one
        "Failed, lost and reordered writes, and a stop at every call: learning, saving, loading, deleting, a campaign",
        "After a restart the state is the last completed one, or an error says what to do.",
    ),
    "hostile_checkpoints": Suite(
        20_000,
        "Damaged and well-formed hostile checkpoints",
        "Each is refused with an error of rehearse and changes nothing, or is a valid state.",
    ),
    "hostile_results": Suite(
        10_000,
        "Hostile result, spec and data files",
        "Each is refused with an error of rehearse, in little time and memory.",
    ),
    "kills": Suite(
        1_000,
        "SIGKILLs while learning and saving: all methods, memories in RAM and mapped",
        "A restart loads the last checkpoint, and the end is that of an uninterrupted run, bit for bit.",
    ),
    "bad_inputs": Suite(
        100_000,
        "Calls with a bad argument: learning, looking, deleting, loading, constructing",
        "Each is refused with an error of rehearse and changes nothing, or works.",
    ),
    "interrupts": Suite(
        10_000,
        "Exceptions inside observe and forget, for every learner",
        "The state is that before the call or that after it, bit for bit; nothing is left replaced.",
    ),
}


class Outcome(NamedTuple):
    """What a suite found, what it took, and at which commit."""

    name: str
    result: Result
    seconds: float
    cpu: float
    commit: str = ""


def available() -> list[str]:
    """Return the suites that are there."""
    return [name for name in SUITES if importlib.util.find_spec(f"{__package__}.{name}")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the tries of each suite")
    parser.add_argument("--only", nargs="+", choices=available(), default=available(), metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", type=Path, help="a file of outcomes: suites in it are not run again, others are added"
    )
    parser.add_argument("--write", type=Path, help="the page to write; of all suites, in full")
    asked = parser.parse_args(arguments)
    if asked.write and (asked.share < 1 or asked.only != available()):
        parser.error("the page is of all suites, in full: leave --share and --only out")
    machine = {name: value for name, value in environment().items() if name != "commit"}
    kept = Kept(asked.keep, [machine, asked.share, asked.seed])
    tries = {name: max(round(SUITES[name].tries * asked.share), 1) for name in asked.only}
    for found in run([(name, tries[name]) for name in asked.only if name not in kept.outcomes], asked.seed):
        kept.add(found)
        print(line(found), flush=True)
    outcomes = [kept.outcomes[name] for name in asked.only]
    if asked.write:
        asked.write.write_text(page(outcomes), "utf-8")
    return int(any(outcome.result.failures for outcome in outcomes))


class Kept:
    """Outcomes of one machine, in a file: one run of all suites may be many commands.

    To run a suite again, after what it found was mended say, remove its outcome from the file.
    """

    def __init__(self, path: Path | None, of: Any) -> None:
        self.path, self.of = path, json.loads(json.dumps(of))
        held = json.loads(path.read_text("utf-8")) if path and path.exists() else {}
        known = held["outcomes"] if held.get("of") == self.of else []
        self.outcomes = {one[0]: Outcome(one[0], Result(*one[1]), *one[2:]) for one in known}

    def add(self, found: Outcome) -> None:
        self.outcomes[found.name] = found
        if self.path:
            self.path.write_text(json.dumps({"of": self.of, "outcomes": [*self.outcomes.values()]}), "utf-8")


def run(suites: list[tuple[str, int]], seed: int) -> Iterator[Outcome]:
    """Run suites, each with its number of tries in a process of its own; yield the outcomes as they come."""
    sys.path[:0] = [str(HERE.parent / "contract"), str(HERE.parent)]  # which the processes inherit
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=fresh, max_tasks_per_child=1) as pool:
        for future in as_completed([pool.submit(outcome, name, tries, seed) for name, tries in suites]):
            yield future.result()


def outcome(name: str, tries: int, seed: int) -> Outcome:
    """Run a suite in this process."""
    import torch

    torch.set_num_threads(1)
    started = time.perf_counter()
    try:
        result = importlib.import_module(f"{__package__}.{name}").run(tries, seed)
    except Exception:
        result = Result(0, [traceback.format_exc()])
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in used)
    return Outcome(name, Result(*result), time.perf_counter() - started, cpu, environment()["commit"])


def line(found: Outcome) -> str:
    """Return what is printed of a suite."""
    tries, failures = found.result
    took = f"{found.seconds:>7.1f} s {found.cpu:>7.1f} CPU s"
    text = f"{found.name:<20} {tries:>9,} tries {len(failures):>5} failures {took}"
    more = [f"    … {len(failures) - SHOWN} more"] if len(failures) > SHOWN else []
    return "\n".join([text, *(f"    {failure}" for failure in failures[:SHOWN]), *more])


def page(outcomes: list[Outcome]) -> str:
    """Return the page: the template with a table of what was tried, and with what."""
    rows = [
        f"| {SUITES[found.name].title} | {found.result.tries:,} | {len(found.result.failures):,} "
        f"| {SUITES[found.name].promise} | {found.cpu:,.0f} | {found.commit} |"
        for found in outcomes
    ]
    facts = {name: value for name, value in environment().items() if isinstance(value, str)}
    cpu = f"{sum(found.cpu for found in outcomes):,.0f}"
    return Template((HERE / "reliability.md").read_text("utf-8")).substitute(facts, rows="\n".join(rows), cpu=cpu)
