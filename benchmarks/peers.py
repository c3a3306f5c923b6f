"""Accuracy and CPU time of a step on Split MNIST, beside avalanche and CapyMOA.

    python3 -m venv ENV/avalanche && ENV/avalanche/bin/pip install torch==2.13.0 avalanche-lib==0.6.0
    python3 -m venv ENV/capymoa && ENV/capymoa/bin/pip install torch==2.13.0 capymoa==0.15.1
    ENV/capymoa/bin/pip install --no-deps torchvision==0.28.0
    python benchmarks/peers.py --environments ENV --seeds 20                                     # accuracy
    python benchmarks/peers.py --environments ENV --seeds 5 --out benchmarks/peers-times.json    # on an idle machine
    python -m pages                            # from these two files, the tables of README.md and docs/peers.md

Each library has an environment of its own, and a process of its own with one thread; what is not below ENV is left out.
All get the same samples in the same batches of 10 (avalanche shuffles within a task), the same weights to start from,
500 stored samples and 10 replayed ones. The libraries take turns seed by seed, in reversed order for every second seed.
CPU time is that of training alone, and of the whole process.

Learning rates are *matched*: rehearse adds the mean losses of the incoming and of the replayed samples, as MIR and
DER++ of avalanche do; plain replay of avalanche and of CapyMOA averages over both together, so that twice the rate is
the same step. CapyMOA needs a Java runtime.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from peer_runs import network
from rehearse.lab.environment import environment
from rehearse.lab.streams import Stream, make_stream

HERE = Path(__file__).parent
RATE, PLUS_RATE = 0.05, 0.2  # of the paper's text; of er-plus, in settings/split-mnist.toml
# Library, method, and the learning rate that matches RATE.
COMPARED = (
    ("rehearse", "ER", RATE), ("rehearse", "MIR", RATE), ("rehearse", "DER++", RATE), ("rehearse", "DER++-MIR", RATE),
    ("rehearse", "er-plus", PLUS_RATE),
    ("avalanche", "ER, online", 2 * RATE), ("avalanche", "MIR, online", RATE), ("avalanche", "DER++, online", RATE),
    ("avalanche", "ER", 2 * RATE), ("avalanche", "MIR", RATE), ("avalanche", "DER++", RATE),
    ("capymoa", "ER", 2 * RATE),
)  # fmt: skip


class Peer:
    """The process of a library."""

    def __init__(self, library: str, python: Path | str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if library != "rehearse":
            environment.pop("PYTHONPATH", None)
        command = [str(python), str(HERE / "peer_runs.py"), library]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.versions = self._answer()

    def ask(self, **question: Any) -> dict[str, Any]:
        """Return what a run measured."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self.process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        if not (line := self.process.stdout.readline()):
            raise SystemExit(f"{' '.join(map(str, self.process.args))} failed; its message is above")  # type: ignore[arg-type]
        found: dict[str, Any] = json.loads(line)
        return found


def write_data(stream: Stream, seed: int, file: Path) -> None:
    """Write the samples of each task in order, the test sets and initial weights, as floats between 0 and 1."""
    tasks: list[list[Any]] = [[] for _ in range(stream.n_tasks or 1)]
    for batch in stream.batches():
        assert batch.task is not None
        tasks[int(batch.task)].append((batch.x.float() / 255, batch.y))
    tests = [(batch.x.float() / 255, batch.y) for batch in stream.evaluation["test"]]
    torch.manual_seed(seed)
    joined = [tuple(torch.cat(parts) for parts in zip(*batches, strict=True)) for batches in tasks]
    torch.save({"tasks": joined, "tests": tests, "weights": network().state_dict()}, file)


def measure(peers: dict[str, Peer], seeds: int, **stream: Any) -> list[dict[str, Any]]:
    """Return one row of each library and method, with the values of all seeds."""
    asked = [one for one in COMPARED if one[0] in peers]
    rows: list[dict[str, Any]] = [
        {"library": library, "method": method, "lr": lr, "matrices": [], "ms": []} for library, method, lr in asked
    ]
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            file = Path(folder) / f"{seed}.pt"
            write_data(make_stream(**stream, seed=seed), seed, file)
            for row in reversed(rows) if seed % 2 else rows:
                found = peers[row["library"]].ask(method=row["method"], lr=row["lr"], seed=seed, file=str(file))
                row["matrices"].append([[round(value, 6) for value in line] for line in found["matrix"]])
                row["ms"].append(round(found["ms"], 4))
    return rows


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, help="folder with the environments avalanche and capymoa")
    parser.add_argument("--stream", default="split-mnist", help="of MNIST; default: %(default)s")
    parser.add_argument("--seeds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--samples", type=int, help="of each task; default: 1,000")
    parser.add_argument("--data-dir", help="where MNIST is; default: REHEARSE_DATA")
    parser.add_argument("--out", type=Path, default=HERE / "peers.json", help="default: %(default)s")
    arguments = parser.parse_args()
    pythons: dict[str, Path | str] = {"rehearse": sys.executable}
    for library in ("avalanche", "capymoa") if arguments.environments else ():
        python = (arguments.environments / library / "bin" / "python").absolute()
        if python.exists():
            pythons[library] = python
    peers = {library: Peer(library, python) for library, python in pythons.items()}
    stream = {"name": arguments.stream, "samples_per_task": arguments.samples, "data_dir": arguments.data_dir}
    result: dict[str, Any] = {
        "made": datetime.date.today().isoformat(),
        "environment": environment(),
        "versions": {library: peer.versions for library, peer in peers.items()},
        "rows": measure(peers, arguments.seeds, **stream),
    }
    for peer in peers.values():
        peer.close()
    rows = ",\n  ".join(json.dumps(row) for row in result.pop("rows"))
    head = json.dumps(result, indent=1).removesuffix("\n}")
    arguments.out.write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n', "utf-8")
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
