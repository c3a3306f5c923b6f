"""What wrong labels do to replay by interference: Split MNIST 5k with 20 % of the labels replaced by another one.

    python benchmarks/label_noise.py

For each retrieval the test accuracy (of right labels) after clean and after noisy training, and the share of wrong
labels among the stored and among the replayed samples. Differences are paired: same weights, order, noise and draws.
``MI-1, low losses`` first leaves out the fifth of the candidates whose loss is highest at that moment.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any, NamedTuple

import torch

from rehearse import MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.batch import Batch, highest
from rehearse.engine import Engine
from rehearse.lab.statistics import paired_difference
from rehearse.lab.streams import make_stream
from rehearse.memory import Memory
from rehearse.nets import MLP
from rehearse.retrieval import Retrieved

CLASSES, STORED, RATE = 10, 500, 0.05


class LowLosses:
    """MI-1 among the candidates whose loss is not among the highest."""

    needs_gradient = True

    def __init__(self, left_out: float) -> None:
        """Set which share of 50 candidates is left out."""
        self.left_out = left_out

    def __call__(self, memory: Memory, incoming: Batch, gradient: Any, engine: Engine, budget: int) -> Retrieved:
        """Return the candidates with the highest interference."""
        candidates = memory.sample(50, exclude_task=incoming.task, ordered=True)
        before, after = engine.losses(candidates, gradient)
        low = before.argsort()[: max(round((1 - self.left_out) * len(before)), min(budget, len(before)))].sort().values
        return Retrieved(*highest(candidates.take(low), (after - before)[low], budget))


RETRIEVALS = {
    "uniform": Uniform,
    "MI-1": MostInterfered,
    "MI-2": lambda: MostInterfered(criterion="mi2"),
    "MI-1, low losses": lambda: LowLosses(0.2),
}


class Found(NamedTuple):
    """Of a run, in per cent."""

    accuracy: float
    stored: float
    replayed: float


def run(retrieval: str, seed: int, noise: float, batches: int | None) -> Found:
    """Train on the stream once."""
    stream, generator = make_stream("split-mnist-5k", seed=seed), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = MLP(784, (400, 400), CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    learner = Replay(model, optimizer, ReservoirMemory(STORED, seed=seed), RETRIEVALS[retrieval](), seed=seed)
    count = replayed = 0
    for number, batch in enumerate(stream.batches()):
        if number == batches:
            break
        flipped = torch.rand(len(batch), generator=generator) < noise
        y = torch.where(
            flipped, (batch.y + torch.randint(1, CLASSES, batch.y.shape, generator=generator)) % CLASSES, batch.y
        )
        step = learner.observe(batch.x, y, batch.task, id=flipped.long())  # the id says whether the label is wrong
        if step.replayed is not None:
            count += len(step.replayed)
            replayed += int(step.replayed.columns["id"].sum())
    wrong = float(learner.memory.all().columns["id"].float().mean())
    parts = stream.evaluation["test"]
    right = sum(int((learner.predict(part.x) == part.y).sum()) for part in parts)
    return Found(100 * right / sum(map(len, parts)), 100 * wrong, 100 * replayed / max(count, 1))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--noise", type=float, default=0.2)
    parser.add_argument("--quick", action="store_true", help="a few batches of one seed, to see that it works")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds, batches = (1, 20) if given.quick else (given.seeds, None)
    runs = {
        (name, noise): [run(name, seed, noise, batches) for seed in range(seeds)]
        for name in RETRIEVALS
        for noise in (0.0, given.noise)
    }
    print("| retrieval | clean labels | noisy labels | minus uniform | wrong, stored | wrong, replayed |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in RETRIEVALS:
        clean, noisy, uniform = runs[name, 0.0], runs[name, given.noise], runs["uniform", given.noise]
        gap = paired_difference(*(dict(enumerate(run.accuracy for run in side)) for side in (noisy, uniform)))
        half = "" if gap.interval is None else f" ± {(gap.interval[1] - gap.interval[0]) / 2:.1f}"
        means = [statistics.mean(one.accuracy for one in runs) for runs in (clean, noisy)]
        shares = [statistics.mean(getattr(one, what) for one in noisy) for what in ("stored", "replayed")]
        cells = [
            f"{means[0]:.1f}",
            f"{means[1]:.1f}",
            f"{gap.mean:+.1f}{half}",
            *(f"{share:.0f} %" for share in shares),
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
