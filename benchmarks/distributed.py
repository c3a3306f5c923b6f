"""Several processes that train one model: what they cost, what exchanging candidates buys, and what kills leave.

    python benchmarks/distributed.py accuracy --seeds 20     # Split MNIST 5k: 4 ranks against one process
    python benchmarks/distributed.py cost                    # bytes and time of a step, and what that means at scale
    python benchmarks/distributed.py bits                    # 500 steps on 4 ranks: the same bits everywhere
    python benchmarks/distributed.py kills --times 50        # random ranks killed at random moments

All of it runs on this machine, over the loopback.
"""

from __future__ import annotations

import argparse
import datetime
import math
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import rehearse
from rehearse import MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.batch import Batch
from rehearse.errors import RankLost
from rehearse.lab.streams import make_stream
from rehearse.nets import MLP, ReducedResNet18
from rehearse.retrieval import Retrieved

RANKS = 4
MEMORY, BUDGET, CANDIDATES, BATCH = 500, 10, 50, 10
BITS_PER_SECOND, LATENCY = 25e9, 50e-6  # of the plan: the network, and one exchange of a few bytes


def started(call: Callable[..., Any], count: int, *arguments: Any) -> tuple[list[Any], list[Any]]:
    """Fork the ranks of a process group, which call ``call(rank, *arguments)``; return processes and pipes."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    folder, fork = tempfile.mkdtemp(), multiprocessing.get_context("fork")
    pipes = [fork.Pipe(duplex=False) for _ in range(count)]

    def run(rank: int) -> None:
        torch.set_num_threads(1)
        store = dist.FileStore(f"{folder}/store", count)
        limit = datetime.timedelta(seconds=30)
        try:
            dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=limit)
            pipes[rank][1].send(call(rank, *arguments))
        except (RankLost, RuntimeError) as problem:
            pipes[rank][1].send(problem)

    processes = [fork.Process(target=run, args=(rank,)) for rank in range(count)]
    for process in processes:
        process.start()
    for _, writer in pipes:
        writer.close()
    return processes, [reader for reader, _ in pipes]


def results(processes: list[Any], readers: list[Any]) -> list[Any]:
    """Return what each rank returned or raised; None of one that was killed."""
    found = []
    for process, reader in zip(processes, readers, strict=True):
        try:
            found.append(reader.recv())
        except EOFError:
            found.append(None)
        process.join()
    return found


# ----------------------------------------------------------------------------------------------------------- accuracy


class Exchanging(Replay):
    """Replays the candidates with the highest interference among those of all ranks, each on the rank that has it."""

    def _retrieve(self, query: Batch, gradient: Any, engine: Any) -> Retrieved:
        own, self.budget = self.budget, self.budget * self.ranks.count
        try:
            found = super()._retrieve(query, gradient, engine)
        finally:
            self.budget = own
        width = own * self.ranks.count
        scores = torch.full((width,), -torch.inf)
        if found.batch is not None:
            scores[: len(found.interference)] = found.interference
        self.ranks.agree("a gradient")
        every = torch.cat(self.ranks.gather(scores))
        order = every.sort(descending=True, stable=True).indices[:width]
        kept = int(((order // width == self.ranks.rank) & (every[order] > -torch.inf)).sum())
        if found.batch is None or not kept:
            return Retrieved()
        return Retrieved(found.batch.take(torch.arange(kept)), found.interference[:kept])


def new_learner(kind: type[Replay], seed: int, scale: int, distributed: bool) -> Replay:
    """Return a learner whose batch, budget and candidates are multiplied by ``scale``."""
    torch.manual_seed(seed)
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    memory, retrieval = ReservoirMemory(MEMORY, seed=seed), MostInterfered(CANDIDATES * scale)
    return kind(model, optimizer, memory, retrieval, budget=BUDGET * scale, seed=seed, distributed=distributed)


def learned(rank: int, kind: type[Replay], stream: Any, seed: int, shares: int) -> tuple[float, list[int]]:
    """Return the accuracy after a stream of which each of so many ranks observes a share, and what was replayed."""
    learner, replayed = new_learner(kind, seed, RANKS // shares, shares > 1), []
    for batch in stream.batches():
        x, y = (torch.tensor_split(values, shares)[rank] for values in (batch.x, batch.y))
        step = learner.observe(x, y, batch.task)
        replayed.append(0 if step.replayed is None else len(step.replayed))
    correct = [float((learner.predict(test.x) == test.y).float().mean()) for test in stream.evaluation["test"]]
    return 100 * statistics.mean(correct), replayed


def accuracy(seeds: int) -> None:
    """Print the accuracy of one process, of ranks, and of ranks that exchange candidates."""
    found: dict[str, list[float]] = {"one process": [], "4 ranks": [], "4 ranks, exchanging": []}
    most = []
    for seed in range(seeds):
        stream = make_stream("split-mnist-5k", seed=seed, batch_size=BATCH * RANKS)
        found["one process"].append(learned(0, Replay, stream, seed, 1)[0])
        for name, kind in (("4 ranks", Replay), ("4 ranks, exchanging", Exchanging)):
            ranks = results(*started(learned, RANKS, kind, stream, seed, RANKS))
            found[name].append(ranks[0][0])
            if kind is Exchanging:
                most += [max(counts) for counts in zip(*(replayed for _, replayed in ranks)) if sum(counts)]
        print(seed, *(f"{values[-1]:.2f}" for values in found.values()), flush=True)
    print("\n| | accuracy (%) | paired difference from 4 ranks (95 %) |\n|---|--:|--:|")
    for name, values in found.items():
        differences = [one - other for one, other in zip(values, found["4 ranks"], strict=True)]
        spread = statistics.stdev(differences) if seeds > 1 else math.nan
        low, high = (statistics.mean(differences) + sign * t_95(seeds) * spread / math.sqrt(seeds) for sign in (-1, 1))
        difference = f"{statistics.mean(differences):+.2f} ({low:+.2f} to {high:+.2f})"
        print(f"| {name} | {statistics.mean(values):.2f} | {difference} |")
    print(f"\nexchanging: the busiest rank replays {statistics.mean(most):.1f} of {BUDGET * RANKS} samples on average")


def t_95(seeds: int) -> float:
    """Return the 97.5 % quantile of Student's distribution for so many differences."""
    from scipy.stats import t

    return float(t.ppf(0.975, seeds - 1)) if seeds > 1 else math.nan


# --------------------------------------------------------------------------------------------------------------- cost


def costs(rank: int, kind: str, steps: int, interfered: bool) -> dict[str, float]:
    """Return milliseconds, bytes and exchanges of a step."""
    torch.manual_seed(0)
    resnet = kind == "resnet"
    model = ReducedResNet18(10) if resnet else MLP()
    retrieval = MostInterfered(CANDIDATES) if interfered else Uniform()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    learner = Replay(model, optimizer, ReservoirMemory(MEMORY), retrieval, distributed=True, precision="float32")
    ranks, sent, waited, calls = learner.ranks, [0.0], [0.0], [0]
    exchange = ranks._exchange

    def measured(collective: Callable[..., Any], *arguments: Any) -> None:
        n, size = ranks.count, arguments[-1].numel() * arguments[-1].element_size()
        sent[0] += 2 * size * (n - 1) / n if collective is dist.all_reduce else size * (n - 1)
        calls[0] += 1
        start = time.perf_counter()
        exchange(collective, *arguments)
        waited[0] += time.perf_counter() - start

    x, y = torch.rand(BATCH, *((3, 32, 32) if resnet else (784,))), torch.randint(10, (BATCH,))
    for _ in range(5):
        learner.observe(x, y)
    ranks._exchange = measured  # type: ignore[method-assign]
    start = time.perf_counter()
    for _ in range(steps):
        learner.observe(x, y)
    seconds = time.perf_counter() - start
    parameters = sum(parameter.numel() for parameter in model.parameters())
    n = ranks.count
    flat = torch.zeros(parameters)
    dist.all_reduce(flat)  # connects
    begin = time.perf_counter()
    for _ in range(10):
        dist.all_reduce(flat)
    return {
        "parameters": parameters, "step": 1e3 * seconds / steps, "waiting": 1e3 * waited[0] / steps,
        "bytes": sent[0] / steps, "minimum": 2 * parameters * 4 * (n - 1) / n, "exchanges": calls[0] / steps,
        "bare": 1e2 * (time.perf_counter() - begin),
    }  # fmt: skip


def cost(steps: int) -> None:
    """Print what a step of two ranks sends and waits, and what that means for more of them."""
    columns = (
        "model, method", "parameters", "one process (ms)", "2 ranks (ms)", "of it in exchanges", "a bare all-reduce",
        "exchanges",
        "bytes sent by a rank", "÷ 2 · 4 P (n − 1)/n",
    )  # fmt: skip
    print(f"| {' | '.join(columns)} |\n|---|{'--:|' * (len(columns) - 1)}")
    computing = {}
    for kind in ("mlp", "resnet"):
        for interfered in (False, True):
            found = results(*started(costs, 2, kind, steps, interfered))[0]
            found["alone"] = results(*started(costs, 1, kind, steps, interfered))[0]["step"]
            name = f"{kind}, {'ER-MIR' if interfered else 'ER'}"
            computing[name] = found
            times = " | ".join(f"{found[what]:.1f}" for what in ("alone", "step", "waiting", "bare"))
            sent = f"{found['bytes']:,.0f} | {found['bytes'] / found['minimum']:.4f}"
            print(f"| {name} | {found['parameters']:,} | {times} | {found['exchanges']:.0f} | {sent} |", flush=True)
    print(f"\nOn paper, at {BITS_PER_SECOND / 1e9:g} Gbit/s and {LATENCY * 1e6:g} µs × log₂ n for each exchange:\n")
    print("| model, method | computing (ms) | " + " | ".join(f"{n} ranks" for n in (8, 64, 512)) + " |")
    print("|---|" + "--:|" * 4)
    for name, found in computing.items():
        alone, cells = found["step"] - found["waiting"], []
        for n in (8, 64, 512):
            sums = 2 if "MIR" in name else 1
            sent = sums * 2 * found["parameters"] * 4 * (n - 1) / n
            exchanging = 1e3 * (8 * sent / BITS_PER_SECOND + found["exchanges"] * LATENCY * math.log2(n))
            cells.append(f"{exchanging:.1f} ms, {1e3 * n * BATCH / (alone + exchanging):,.0f} samples/s")
        print(f"| {name} | {alone:.1f} | {' | '.join(cells)} |")


# ----------------------------------------------------------------------------------------------------- bits and kills


def small_learner() -> Replay:
    """Return a learner with batch-norm, dropout and momentum of Adam."""
    layers = [nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 4)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return Replay(model, optimizer, ReservoirMemory(40), MostInterfered(15), budget=5, distributed=True)


def share(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """Return the incoming batch of a rank."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    y = torch.randint(4, (2 + rank + step % 3,), generator=generator)
    return torch.randn(len(y), 6, generator=generator) + y[:, None], y


def weights(learner: Replay) -> np.ndarray:
    """Return all parameters."""
    return torch.cat([parameter.detach().flatten() for parameter in learner.model.parameters()]).numpy()


def observing(rank: int, path: str, steps: int, every: int) -> list[np.ndarray]:
    """Resume from the last save, if there is one, and learn the rest; return the parameters after each step."""
    learner, seen = small_learner(), []
    if Path(path).exists():
        rehearse.load(path, into=learner)
    for step in range(learner.progress.steps, steps):
        learner.observe(*share(rank, step), task=step // 40)
        seen.append(weights(learner).copy())
        if step % every == every - 1:
            rehearse.save(learner, path)
    return seen or [weights(learner)]


def bits(steps: int) -> None:
    """Print whether all ranks have the same parameters after each step."""
    found = results(*started(observing, RANKS, "/nonexistent", steps, steps + 1))
    same = [all((own[step] == found[0][step]).all() for own in found) for step in range(steps)]
    print(f"{sum(same)} of {steps} steps: the same bits on all {RANKS} ranks")


def kills(times: int) -> None:
    """Kill random ranks at random moments; print whether anything was lost, and how long the others waited."""
    steps, count, random = 400, 3, np.random.default_rng(0)
    whole = results(*started(observing, count, "/nonexistent", steps, steps + 1))[0][-1]
    with tempfile.TemporaryDirectory() as folder:
        done, waits, finished = 0, [], 0
        while done < times:
            processes, readers = started(observing, count, f"{folder}/{finished}", steps, 5)
            time.sleep(random.uniform(0.1, 1.5))
            victim = processes[int(random.integers(count))]
            if victim.is_alive():
                os.kill(victim.pid, signal.SIGKILL)
            begin = time.monotonic()
            found = results(processes, readers)
            if any(one is None for one in found):
                done += 1
                waits.append(time.monotonic() - begin)
                assert not any(isinstance(one, list) for one in found) or processes[0].exitcode == 0, found
            else:
                assert all((own[-1] == whole).all() for own in found), "another result"
                finished += 1
        found = results(*started(observing, count, f"{folder}/{finished}", steps, 5))
        assert all((own[-1] == whole).all() for own in found), "another result"
    print(f"{done} kills, {finished + 1} streams completed with the bits of an uninterrupted one; "
          f"the others stopped after {max(waits):.1f} s at most")  # fmt: skip


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("accuracy", "cost", "bits", "kills"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=0, help="200 for cost, 500 for bits")
    parser.add_argument("--times", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "accuracy":
        accuracy(options.seeds)
    elif options.what == "cost":
        cost(options.steps or 200)
    elif options.what == "bits":
        bits(options.steps or 500)
    else:
        kills(options.times)


if __name__ == "__main__":
    main()
