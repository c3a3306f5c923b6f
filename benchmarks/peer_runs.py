"""One library's runs for peers.py, in that library's own environment: only its public API is called.

Started as ``python peer_runs.py LIBRARY``. Each line of the standard input is a JSON object with arguments of `run`,
each line of the output the JSON object of what was measured. The ``file`` has the training samples of each task in
order, the test sets, and the weights to start from, so that all libraries have the same.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import contextlib
import json
import sys
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

BATCH, BUDGET, CANDIDATES, STORED, CLASSES = 10, 10, 50, 500, 10
DISTRIBUTION = {"rehearse": "rehearse-torch", "avalanche": "avalanche-lib", "capymoa": "capymoa"}
Samples = tuple[Tensor, Tensor]


class Trained:
    """A library's learner: how it learns the samples of one task, each once, and how it predicts."""

    def __init__(self, learn: Callable[[int], None], predict: Callable[[Tensor], Tensor]) -> None:
        self.learn, self.predict = learn, predict


@dataclass
class Clock:
    """CPU seconds of this process within the block."""

    seconds: float = 0.0
    started: float = field(default=0.0, repr=False)

    def __enter__(self) -> None:
        self.started = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self.started


def network(weights: dict[str, Tensor] | None = None) -> nn.Module:
    """Return the MLP 784–400–400–10."""
    layers: list[tuple[str, nn.Module]] = [("flat", nn.Flatten())]
    for number, (inputs, outputs) in enumerate([(784, 400), (400, 400), (400, CLASSES)]):
        layers += [(f"linear{number}", nn.Linear(inputs, outputs)), (f"relu{number}", nn.ReLU())]
    model = nn.Sequential(OrderedDict(layers[:-1]))
    if weights is not None:
        model.load_state_dict(weights)
    return model


def rehearse(method: str, model: nn.Module, lr: float, tasks: list[Samples], seed: int) -> Trained:
    """Return a learner of this library."""
    from rehearse import MostInterfered, Replay, ReservoirMemory, Uniform, strong_replay
    from rehearse.losses import DarkExperience
    from rehearse.transforms import Crop

    parts: Any = (model, torch.optim.SGD(model.parameters(), lr=lr), ReservoirMemory(STORED))
    interfered = MostInterfered(candidates=CANDIDATES, criterion="mi2")
    if method == "ER":
        learner = Replay(*parts, Uniform(), seed=seed)
    elif method == "MIR":
        learner = Replay(*parts, interfered, seed=seed)
    elif method in ("DER++", "DER++-MIR"):
        retrieval = Uniform() if method == "DER++" else interfered
        loss = DarkExperience(alpha=1.0, beta=1.0)
        learner = Replay(*parts, retrieval, loss=loss, exclude_current_task=False, seed=seed)
    else:  # er-plus, with its settings of Split MNIST
        learner = strong_replay(*parts, "vectors", augment=Crop(1, fill=0), seed=seed)

    def learn(task: int) -> None:
        for x, y in zip(*(part.split(BATCH) for part in tasks[task]), strict=True):
            learner.observe(x, y, task=task)

    return Trained(learn, learner.predict)


def avalanche(method: str, model: nn.Module, lr: float, tasks: list[Samples], seed: int) -> Trained:
    """Return a strategy of avalanche; "online" gives it every batch as an experience, otherwise every task is one."""
    declare_operators()
    from avalanche.benchmarks import tensors_benchmark
    from avalanche.benchmarks.scenarios.online import split_online_stream
    from avalanche.training.plugins import MIRPlugin, ReplayPlugin
    from avalanche.training.storage_policy import ReservoirSamplingBuffer
    from avalanche.training.supervised import DER, Naive

    torch.manual_seed(seed)
    method, _, online = method.partition(", ")
    shared: Any = {
        "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=lr), "criterion": nn.CrossEntropyLoss(),
        "train_mb_size": BATCH, "evaluator": None,
    }  # fmt: skip
    if method == "ER":
        store = ReservoirSamplingBuffer(max_size=STORED)
        strategy = Naive(**shared, plugins=[ReplayPlugin(STORED, BATCH, BUDGET, storage_policy=store)])
    elif method == "MIR":
        strategy = Naive(**shared, plugins=[MIRPlugin(BUDGET, STORED, CANDIDATES)])
    else:
        strategy = DER(**shared, mem_size=STORED, batch_size_mem=BUDGET, alpha=1.0, beta=1.0)
    benchmark = tensors_benchmark(train_tensors=tasks, test_tensors=tasks, task_labels=[0] * len(tasks))

    def learn(task: int) -> None:
        whole = benchmark.train_stream[task]
        for experience in split_online_stream([whole], BATCH) if online else [whole]:
            strategy.train(experience, num_workers=0)

    return Trained(learn, lambda x: model.eval()(x).argmax(1))


def capymoa(method: str, model: nn.Module, lr: float, tasks: list[Samples], seed: int) -> Trained:
    """Return a learner of CapyMOA."""
    declare_operators()
    from capymoa.classifier import Finetune
    from capymoa.ocl.strategy import ExperienceReplay
    from capymoa.stream import Schema

    if method != "ER":
        raise ValueError(f"CapyMOA has no {method}")
    names = [f"pixel{number}" for number in range(784)]
    classes = [str(label) for label in range(CLASSES)]
    schema = Schema.from_custom([*names, "digit"], "digit", {"digit": classes}, name="MNIST")
    plain = Finetune(schema, model, torch.optim.SGD(model.parameters(), lr=lr), random_seed=seed)
    learner = ExperienceReplay(plain, STORED)

    def learn(task: int) -> None:
        x, y = tasks[task]
        for one, labels in zip(x.flatten(1).split(BATCH), y.split(BATCH), strict=True):
            learner.batch_train(one, labels)

    return Trained(learn, lambda x: learner.batch_predict_proba(x.flatten(1)).argmax(1))


def declare_operators() -> None:
    """Let torchvision be imported beside torch for CPUs: on PyPI it is built for CUDA, and lacks its operators there.

    None of them is called here.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        declared.append(torch.library.Library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            declared[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


declared: list[torch.library.Library] = []
LIBRARIES = {"rehearse": rehearse, "avalanche": avalanche, "capymoa": capymoa}


def run(library: str, method: str, lr: float, seed: int, file: str) -> dict[str, Any]:
    """Learn all tasks in order; return the accuracy on the tasks so far after each, and the CPU time of a step."""
    data = torch.load(file, weights_only=True)
    tasks, tests = data["tasks"], data["tests"]
    warnings.showwarning = lambda *_: None  # printing them would count as time of the step
    made = LIBRARIES[library](method, network(data["weights"]), lr, tasks, seed)
    clock, matrix = Clock(), []
    for task in range(len(tasks)):
        with clock:
            made.learn(task)
        with torch.no_grad():
            matrix.append([float((made.predict(x) == y).float().mean()) for x, y in tests[: task + 1]])
    steps = sum(-(-len(y) // BATCH) for _, y in tasks)
    return {"matrix": matrix, "ms": clock.seconds / steps * 1e3}


def main() -> None:
    """Answer each line of the input."""
    torch.set_num_threads(1)
    library = sys.argv[1]
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # some libraries print while they work
        answers.write(json.dumps({"version": version(DISTRIBUTION[library]), "torch": str(torch.__version__)}) + "\n")
        answers.flush()
        for line in sys.stdin:
            answers.write(json.dumps(run(library, **json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
