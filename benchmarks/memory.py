"""What a large memory in a file costs: a step with 10⁶ samples in a file against one with 10³ in RAM.

    python benchmarks/memory.py [--samples 1000000] [--steps 300] [--json]

Times are of one process that takes turns between the two; resident memory is that of a process of its own for each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elsewhere import Elsewhere
from rehearse import MostInterfered, Replay, ReservoirMemory, save
from rehearse.nets import MLP

SMALL, BATCH, FILL, WARM_UP = 1000, 10, 1000, 20


def make_learner(capacity: int, path: Path | None) -> Replay:
    """Return ER-MIR with a memory of this capacity, in a file if there is a path."""
    torch.manual_seed(0)
    model = MLP(784, (400, 400), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return Replay(model, optimizer, ReservoirMemory(capacity, path=path), MostInterfered(50))


def batch(number: int, samples: int = BATCH) -> tuple[Tensor, Tensor]:
    """Return a batch of random images."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randint(0, 256, (samples, 784), generator=generator, dtype=torch.uint8)
    return x, torch.randint(0, 10, (samples,), generator=generator)


def fill(learner: Replay) -> None:
    """Store twice the capacity: from here on samples are replaced, as in a long run."""
    for number in range(2 * learner.memory.capacity // FILL):
        learner.memory.add(*batch(number % 50, FILL))


def step_times(samples: int, steps: int, folder: Path) -> dict[str, Any]:
    """Return medians over steps in turns, and the time of saving; the file has a journal after a checkpoint."""
    learners = {"ram": make_learner(SMALL, None), "file": make_learner(samples, folder / "samples")}
    saving = {}
    for name, learner in learners.items():
        fill(learner)
        start = time.perf_counter()
        save(learner, folder / f"{name}.checkpoint")
        saving[name] = time.perf_counter() - start
    times: dict[str, list[float]] = {name: [] for name in learners}
    for number in range(steps + WARM_UP):
        x, y = batch(1000 + number)
        for name, learner in learners.items():
            start = time.perf_counter()
            learner.observe(x, y)
            times[name].append(time.perf_counter() - start)
    medians = {name: 1000 * statistics.median(values[WARM_UP:]) for name, values in times.items()}
    return {
        "step_ms": medians,
        "step_ratio": medians["file"] / medians["ram"],
        "save_seconds": saving,
        "checkpoint_bytes": {name: (folder / f"{name}.checkpoint").stat().st_size for name in learners},
        "file_bytes": (folder / "samples").stat().st_size,
    }


def growth(samples: int, steps: int, path: Path | None) -> dict[str, int]:
    """Return by how many bytes this process grows as the memory fills: its own memory, and that of mapped files."""
    learner = make_learner(samples, path)
    for number in range(WARM_UP):
        learner.observe(*batch(number))
    before = resident()
    fill(learner)
    for number in range(steps):
        learner.observe(*batch(1000 + number))
    return {name: value - before[name] for name, value in resident().items()}


def resident() -> dict[str, int]:
    """Return the resident memory of this process, from /proc."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: 1024 * int(fields[key].split()[0]) for name, key in (("own", "RssAnon"), ("mapped", "RssFile"))}


def measure(samples: int, steps: int) -> dict[str, Any]:
    """Return everything that this file measures, as plain values."""
    sizes = {"ram": SMALL, "file": samples}
    with tempfile.TemporaryDirectory() as folder:
        result = step_times(samples, steps, Path(folder))
    grown = {}
    for name, capacity in sizes.items():
        with tempfile.TemporaryDirectory() as folder, Elsewhere() as process:
            grown[name] = process.call(growth, capacity, steps, Path(folder) / "samples" if name == "file" else None)
    return {"samples": sizes, **result, "resident_growth_bytes": grown}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10**6)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(options.samples, options.steps)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{'':24}{'in RAM':>14}{'in a file':>14}")
    for title, unit, values in (
        ("samples", 1, result["samples"]),
        ("step, ms", 1, result["step_ms"]),
        ("save, s", 1, result["save_seconds"]),
        ("checkpoint, MB", 1e6, result["checkpoint_bytes"]),
        ("resident, own, MB", 1e6, {k: v["own"] for k, v in result["resident_growth_bytes"].items()}),
        ("resident, mapped, MB", 1e6, {k: v["mapped"] for k, v in result["resident_growth_bytes"].items()}),
    ):
        print(f"{title:24}{values['ram'] / unit:>14,.2f}{values['file'] / unit:>14,.2f}")
    print(f"file of samples: {result['file_bytes'] / 1e6:,.0f} MB; step ratio {result['step_ratio']:.2f}")


if __name__ == "__main__":
    main()
