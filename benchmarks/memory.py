"""What a large memory in a file costs: a step with 10⁶ rows in a file against one with 10³ in RAM.

    python benchmarks/memory.py [--rows 1000000] [--steps 300] [--json]

Times are of one process that takes turns between the two, resident memory of a fresh process for each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rehearse import MostInterfered, Replay, ReservoirMemory, save
from rehearse.nets import MLP

SMALL, BATCH, FILL = 1000, 10, 1000


def learner(capacity: int, path: Path | None) -> Replay:
    torch.manual_seed(0)
    model = MLP(784, (400, 400), 10)
    return Replay(
        model, torch.optim.SGD(model.parameters(), lr=0.05), ReservoirMemory(capacity, path=path), MostInterfered(50)
    )


def batch(number: int, rows: int = BATCH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randint(0, 256, (rows, 784), generator=generator, dtype=torch.uint8)
    return x, torch.randint(0, 10, (rows,), generator=generator)


def fill(one: Replay) -> None:
    """Up to the brim, and as much again: rows are replaced from here on, as in a long run."""
    for number in range(2 * one.memory.capacity // FILL):
        x, y = batch(number % 50, FILL)
        one.memory.add(x, y)


def step_times(rows: int, steps: int, folder: Path) -> dict[str, Any]:
    """Medians over steps, the two taking turns, and how long saving takes; after a checkpoint, so that it journals."""
    learners = {"ram": learner(SMALL, None), "file": learner(rows, folder / "rows")}
    saving = {}
    for name, one in learners.items():
        fill(one)
        start = time.perf_counter()
        save(one, folder / f"{name}.checkpoint")
        saving[name] = time.perf_counter() - start
    times: dict[str, list[float]] = {name: [] for name in learners}
    for number in range(steps + 20):
        x, y = batch(1000 + number)
        for name, one in learners.items():
            start = time.perf_counter()
            one.observe(x, y)
            times[name].append(time.perf_counter() - start)
    medians = {name: 1000 * statistics.median(values[20:]) for name, values in times.items()}
    return {
        "step_ms": medians,
        "step_ratio": medians["file"] / medians["ram"],
        "save_seconds": saving,
        "checkpoint_bytes": {name: (folder / f"{name}.checkpoint").stat().st_size for name in learners},
        "rows_bytes": (folder / "rows").stat().st_size,
    }


def resident(rows: int, steps: int, path: Path | None) -> dict[str, int]:
    """Resident memory of this process with a full memory after some steps, from /proc: its own, and mapped files'."""
    one = learner(rows, path)
    for number in range(20):
        one.observe(*batch(number))
    before = _status()
    fill(one)
    for number in range(steps):
        one.observe(*batch(1000 + number))
    after = _status()
    return {name: after[name] - before[name] for name in after}


def _status() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: 1024 * int(fields[key].split()[0]) for name, key in (("anonymous", "RssAnon"), ("file", "RssFile"))}


def measure(rows: int = 10**6, steps: int = 300) -> dict[str, Any]:
    """Everything this file can tell, as plain values."""
    with tempfile.TemporaryDirectory() as folder:
        result = step_times(rows, steps, Path(folder))
    result["resident_growth_bytes"] = {}
    for name, capacity in (("ram", SMALL), ("file", rows)):
        with tempfile.TemporaryDirectory() as folder:
            place = [str(Path(folder) / "rows")] if name == "file" else []
            command = [sys.executable, __file__, "--resident", str(capacity), str(steps), *place]
            answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            result["resident_growth_bytes"][name] = json.loads(answer)
    return {"rows": {"ram": SMALL, "file": rows}, **result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--resident", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.resident:
        capacity, steps, *place = options.resident
        print(json.dumps(resident(int(capacity), int(steps), Path(place[0]) if place else None)))
        return
    result = measure(options.rows, options.steps)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{'':24}{'in RAM':>14}{'in a file':>14}")
    for title, unit, values in (
        ("rows", 1, result["rows"]),
        ("step, ms", 1, result["step_ms"]),
        ("save, s", 1, result["save_seconds"]),
        ("checkpoint, MB", 1e6, result["checkpoint_bytes"]),
        ("resident, own, MB", 1e6, {k: v["anonymous"] for k, v in result["resident_growth_bytes"].items()}),
        ("resident, mapped, MB", 1e6, {k: v["file"] for k, v in result["resident_growth_bytes"].items()}),
    ):
        print(f"{title:24}{values['ram'] / unit:>14,.2f}{values['file'] / unit:>14,.2f}")
    print(f"file of rows: {result['rows_bytes'] / 1e6:,.0f} MB; step ratio {result['step_ratio']:.2f}")


if __name__ == "__main__":
    main()
