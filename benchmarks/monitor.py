"""Whether `rehearse.Monitor` raises its alarm where a learner forgets, and not where it does not.

    python benchmarks/monitor.py [--seeds 20] [--first-seed 0]

The embedded digits once as Split MNIST, two digits after two digits, and once shuffled: a stationary stream of the same
samples, of which nothing is forgotten. The tables have the seeds with an alarm, when it came first, what the monitor
estimated at the end of the stream and what the test set says; and the CPU time of a step without and with a monitor.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections.abc import Iterator
from functools import partial
from itertools import cycle

import torch

from measuring import interleaved
from rehearse import Learner, Monitor
from rehearse.batch import Batch
from rehearse.lab.methods import resolve
from rehearse.lab.setup import spec_learner, spec_stream
from rehearse.lab.spec import Spec
from rehearse.lab.streams import Stream

STREAM = "split-mnist-5k"
LEARNERS = {"er-mir, 100 stored": ("er-mir", 100), "er, 500 stored": ("er", 500)}
ORDERS = ("split", "shuffled")
QUICK = 5  # batches


def learner(spec: Spec, stream: Stream) -> Learner:
    """Return the learner of a spec, the same for both orders."""
    return spec_learner(spec, stream)


def batches(stream: Stream, order: str) -> Iterator[Batch]:
    """Yield the stream's batches, with their tasks; shuffled they have none."""
    return iter(stream) if order == "split" else (Batch(b.x, b.y) for b in stream.iid().batches())


def accuracy(learner: Learner, stream: Stream) -> float:
    """Return the accuracy on the test samples of all tasks."""
    x, y = (torch.cat([getattr(part, name) for part in stream.evaluation["test"]]) for name in "xy")
    return float((learner.predict(x) == y).double().mean())


def watched(method: str, capacity: int, order: str, seed: int, quick: bool) -> dict[str, float | None]:
    """Run one stream under a monitor with its defaults."""
    spec = resolve(method, STREAM, {"capacity": capacity, "seed": seed})
    stream = spec_stream(spec)
    raised: list[int] = []
    monitor = Monitor(learner(spec, stream), seed=seed, notify=lambda _, m: raised.append(m.tally.samples))
    for number, batch in enumerate(batches(stream, order)):
        if not quick or number < QUICK:
            monitor.observe(batch.x, batch.y, batch.task)
    monitor.look()
    found = {name: monitor.report()[name] for name in ("heldout_accuracy", "forgetting")}
    return {"first": min(raised, default=None), "test": accuracy(monitor.learner, stream), **found}


def alarms(seeds: range, quick: bool) -> Iterator[str]:
    """Yield the table of alarms."""
    yield "| learner | order | alarms | samples before the first | held-out accuracy | forgetting | test accuracy |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for name, (method, capacity) in LEARNERS.items():
        for order in ORDERS:
            runs = [watched(method, capacity, order, seed, quick) for seed in seeds]
            first = [run["first"] for run in runs if run["first"] is not None]
            when = f"{statistics.median(first):,.0f} ({min(first):,} – {max(first):,})" if first else "–"
            cells = [name, order, f"{len(first)} of {len(runs)}", when]
            cells += [percent([run[key] for run in runs]) for key in ("heldout_accuracy", "forgetting", "test")]
            yield f"| {' | '.join(cells)} |"


def percent(values: list[float | None]) -> str:
    """Return a mean in percent."""
    known = [value for value in values if value is not None]
    return f"{100 * statistics.mean(known):.1f}" if known else "–"


def costs(quick: bool) -> Iterator[str]:
    """Yield the table of costs."""
    yield "| learner | ms a step | with a monitor | ratio |"
    yield "|---|--:|--:|--:|"
    for name, (method, capacity) in LEARNERS.items():
        spec = resolve(method, STREAM, {"capacity": capacity})
        stream = spec_stream(spec)
        kept = list(stream)
        observers = {"without": learner(spec, stream), "with": Monitor(learner(spec, stream))}
        subjects = {name: partial(again, observer, cycle(kept)) for name, observer in observers.items()}
        for _ in range(QUICK if quick else 2 * len(kept)):  # until the reservoir is full
            for subject in subjects.values():
                subject()
        times = interleaved(subjects, repeats=1 if quick else 9, steps=2 if quick else 100)
        cells = [
            name,
            f"{times.median('without'):.2f}",
            f"{times.median('with'):.2f}",
            str(times.ratio("with", "without")),
        ]
        yield f"| {' | '.join(cells)} |"


def again(observer: Learner | Monitor, kept: Iterator[Batch]) -> None:
    """Observe the next batch."""
    batch = next(kept)
    observer.observe(batch.x, batch.y, batch.task)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few batches, to see that the script works")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("rehearse.monitor").setLevel(logging.ERROR)
    seeds = range(chosen.first_seed, chosen.first_seed + (1 if chosen.quick else chosen.seeds))
    for line in alarms(seeds, chosen.quick):
        print(line, flush=True)
    print()
    for line in costs(chosen.quick):
        print(line, flush=True)


if __name__ == "__main__":
    main()
