"""Whether the fast paths that are on by default change accuracy: the same seeds with them and without, as Markdown.

    REHEARSE_DATA=... python benchmarks/accuracy.py split-mnist --seeds 20
    REHEARSE_DATA=... python benchmarks/accuracy.py split-cifar10 --seeds 3 --samples 1000

Without them a learner multiplies out every gradient, lets the optimiser take every step and computes in float32 in
torch's default layout. Accuracy is measured once, after the last task. One line a run is written to ``--out`` as it
ends, and a run that is there is not made again.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from rehearse.lab.environment import environment
from rehearse.lab.experiment import Run
from rehearse.lab.methods import resolve
from rehearse.lab.statistics import Summary, paired_difference, summary
from rehearse.learners import Replay
from subjects import without_fast_paths

METHODS = ("er", "er-mir")


def final_accuracies(method: str, stream: str, seed: int, samples: int | None, *, fast: bool) -> dict[str, float]:
    """Average accuracy over the tasks after the last one, and the CPU seconds of the training."""
    layer: dict[str, Any] = {"seed": seed} | ({} if samples is None else {"samples_per_task": samples})
    if not fast:
        layer["precision"] = "float32"
    run = Run(resolve(method, stream, layer))
    learner = run.learner
    assert isinstance(learner, Replay)
    if not fast:
        without_fast_paths(learner)
    started = time.process_time()
    for batch in run.stream:
        learner.observe(batch.x, batch.y, batch.task)
    seconds = time.process_time() - started
    right = [float((learner.predict(task.x) == task.y).double().mean()) for task in run.stream.evaluation["test"]]
    return {"accuracy": sum(right) / len(right), "seconds": seconds}


def told(difference: Summary) -> str:
    low, high = difference.interval or (float("nan"), float("nan"))
    return f"{100 * difference.mean:+.2f} ({100 * low:+.2f} to {100 * high:+.2f}), n = {difference.n}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--samples", type=int, help="of each task; default: the paper's")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--out", type=Path, default=Path("runs/accuracy.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    there = environment()
    runs: dict[tuple[str, bool], dict[int, dict[str, float]]] = {}
    for seed in range(arguments.seeds):
        for method in arguments.methods:
            for fast in (True, False):
                name = {"stream": arguments.stream, "samples": arguments.samples, "method": method, "fast": fast}
                name |= {"seed": seed, "commit": there["commit"]}
                found = next((line["found"] for line in done if line["run"] == name), None)
                if found is None:
                    found = final_accuracies(method, arguments.stream, seed, arguments.samples, fast=fast)
                    with arguments.out.open("a") as file:
                        file.write(json.dumps({"run": name, "found": found}) + "\n")
                runs.setdefault((method, fast), {})[seed] = found
    samples = "" if arguments.samples is None else f", {arguments.samples:,} samples a task"
    print(f"Fast paths on and off, {arguments.stream}{samples}; accuracy in per cent; {there['processor']}, ", end="")
    print(f"{there['cpu_capability']}, torch {there['torch']}, commit {there['commit']}.\n")
    print("| method | on | off | on − off, paired (95 %) | CPU seconds of training, off / on |\n|---|---|---|---|---|")
    for method in arguments.methods:
        on, off = ({seed: run["accuracy"] for seed, run in runs[method, fast].items()} for fast in (True, False))
        seconds = [sum(run["seconds"] for run in runs[method, fast].values()) for fast in (True, False)]
        means = " | ".join(f"{100 * summary(values.values()).mean:.2f}" for values in (on, off))
        print(f"| {method} | {means} | {told(paired_difference(on, off))} | {seconds[1] / seconds[0]:.2f} |")


if __name__ == "__main__":
    main()
