"""What batch-norm statistics from few stored samples do to a model that was trained before.

    python benchmarks/few_memories.py

A small network with batch-norm learns the embedded digits shuffled, and then batches of one class. The table has its
accuracy on all test digits as the memory fills, averaged over the ten classes, with both batch-norm modes.
"""

from __future__ import annotations

import argparse
import copy
import statistics

import torch
from torch import Tensor, nn

from rehearse import Replay, ReservoirMemory
from rehearse.batch import Batch
from rehearse.lab.streams import make_stream

AFTER = (1, 2, 5, 10, 20, 40)  # batches of ten samples
MODES = ("clean", "recalibrated")


def joined(parts: list[Batch]) -> tuple[Tensor, Tensor]:
    """Return the images and labels of several batches."""
    return torch.cat([part.x for part in parts]).float() / 255, torch.cat([part.y for part in parts])


def trained(x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    """Return a network that has learned all classes."""
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(784, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 10)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for some in torch.randperm(len(x)).split(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[some]), y[some]).backward()
            optimizer.step()
    return model


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one epoch and one class, to see that the script works")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    stream = make_stream("split-mnist-5k")
    x, y = joined(list(stream.batches()))
    test, labels = joined(stream.evaluation["test"])
    model = trained(x, y, epochs=1 if quick else 20)
    accuracy = lambda logits: 100 * float((logits.argmax(1) == labels).float().mean())  # noqa: E731
    print(f"before: {accuracy(model.eval()(test)):.1f} %\n\n| stored | {' | '.join(MODES)} |\n|--:|--:|--:|")
    found: dict[tuple[int, str], list[float]] = {(count, mode): [] for count in AFTER for mode in MODES}
    for kind in range(1 if quick else 10):
        for mode in MODES:
            own, samples = copy.deepcopy(model).train(), x[y == kind]
            optimizer = torch.optim.SGD(own.parameters(), lr=0.001)
            learner = Replay(own, optimizer, ReservoirMemory(1000), batchnorm=mode)
            for number in range(max(AFTER)):
                chosen = torch.arange(10 * number, 10 * number + 10) % len(samples)
                learner.observe(samples[chosen], torch.full((10,), kind))
                if number + 1 in AFTER:
                    found[number + 1, mode].append(accuracy(learner.logits(test)))
    for count in AFTER:
        print(f"| {10 * count} | {' | '.join(f'{statistics.mean(found[count, mode]):.1f} %' for mode in MODES)} |")


if __name__ == "__main__":
    main()
