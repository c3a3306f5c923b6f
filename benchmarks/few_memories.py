"""What batch-norm's statistics from few memories do to a model that was trained before.

    python benchmarks/few_memories.py

A small network with batch-norm learns the embedded digits shuffled, then goes on with batches of one class; accuracy on
all test digits, the mean over the ten classes that may come, as the memory fills. One training, asked in both ways.
"""

from __future__ import annotations

import copy
import statistics

import torch
from torch import Tensor, nn

from rehearse import Replay, ReservoirMemory
from rehearse.lab.streams import make_stream

AFTER = (1, 2, 5, 10, 20, 40)  # batches of ten rows


def digits(stream: object, part: str) -> tuple[Tensor, Tensor]:
    sets = stream.evaluation[part]  # type: ignore[attr-defined]
    return torch.cat([rows.x for rows in sets]).float() / 255, torch.cat([rows.y for rows in sets])


def trained(x: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 10)
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        for rows in torch.randperm(len(x)).split(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model


def main() -> None:
    torch.set_num_threads(1)
    stream = make_stream("split-mnist-5k")
    learned = [(batch.x.float() / 255, batch.y) for batch in stream.batches()]
    x, y = torch.cat([rows for rows, _ in learned]), torch.cat([labels for _, labels in learned])
    test, labels = digits(stream, "test")
    model = trained(x, y)
    right = lambda scores: float((scores.argmax(1) == labels).float().mean())  # noqa: E731
    print(f"before: {100 * right(model.eval()(test)):.1f} %")
    print("| memories | clean | recalibrated |\n|--:|--:|--:|")
    found: dict[tuple[int, str], list[float]] = {}
    for kind in range(10):
        for way in ("clean", "recalibrated"):
            own = copy.deepcopy(model).train()
            learner = Replay(
                own, torch.optim.SGD(own.parameters(), lr=0.001), ReservoirMemory(1000), batchnorm=way
            )  # type: ignore[arg-type]  # fmt: skip
            rows = x[y == kind]
            for number in range(max(AFTER)):
                chosen = torch.arange(10 * number, 10 * number + 10) % len(rows)
                learner.observe(rows[chosen], torch.full((10,), kind))
                if number + 1 in AFTER:
                    found.setdefault((10 * (number + 1), way), []).append(right(learner.scores(test)))
    for count in (10 * number for number in AFTER):
        both = (f"{100 * statistics.mean(found[count, way]):.1f} %" for way in ("clean", "recalibrated"))
        print(f"| {count} | {' | '.join(both)} |")


if __name__ == "__main__":
    main()
