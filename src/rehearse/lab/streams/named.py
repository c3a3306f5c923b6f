"""The streams that have a name on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from rehearse.errors import InvalidInput
from rehearse.lab.extensions import find
from rehearse.lab.streams.base import Scaling, Stream, check_count
from rehearse.lab.streams.datasets import load
from rehearse.lab.streams.permuted import permuted_stream
from rehearse.lab.streams.split import split_stream


@dataclass(frozen=True, slots=True)
class Definition:
    """A named stream: its data, its default sizes, and the version of its numbers.

    ``samples_per_task`` None is all of a task's training rows; ``validation`` is the fraction of the training
    images of each class that is set aside. ``version`` is raised by hand whenever the same options would give
    other batches than before. A stream of the user's own has ``make``, which takes the arguments of `make_stream` but
    the name, and ``settings`` where those of `OWN_SETTINGS` do not suit it.
    """

    description: str
    dataset: str = ""
    n_tasks: int = 1
    samples_per_task: int | None = None
    validation: float = 0.0
    scaling: Scaling = "unit"
    permuted: bool = False
    version: int = 1
    make: Callable[..., Stream] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


# The paper's sizes (section 4 and the appendix); split-mnist-5k is ours and stands in none of its tables.
STREAMS: dict[str, Definition] = {
    "split-mnist": Definition(
        "MNIST, 5 tasks of 2 digits, 1,000 images each", "mnist", 5, 1000, 0.05, "unit"
    ),
    "permuted-mnist": Definition(
        "MNIST, 10 tasks of all digits, the pixels in another order in each, 1,000 images each",
        "mnist", 10, 1000, 0.05, "unit", permuted=True,
    ),
    "split-cifar10": Definition(
        "CIFAR-10, 5 tasks of 2 classes, 9,750 images each", "cifar10", 5, None, 0.025, "symmetric"
    ),
    "split-miniimagenet": Definition(
        "Mini-ImageNet, 20 tasks of 5 classes, 2,280 images each", "miniimagenet", 20, None, 0.05, "symmetric"
    ),
    "split-mnist-5k": Definition(
        "the embedded 5,000 MNIST digits, 5 tasks of 2 digits, 700 images each; needs no download",
        "digits5k", 5, None, 0.125, "unit",
    ),
}  # fmt: skip


def make_stream(
    name: str,
    *,
    seed: int = 0,
    split_seed: int = 0,
    samples_per_task: int | None = None,
    n_tasks: int | None = None,
    batch_size: int = 10,
    class_order: Sequence[int] | None = None,
    data_dir: str | PathLike[str] | None = None,
) -> Stream:
    """The stream of that ``name``, with the paper's sizes where nothing else is asked for.

    ``seed`` decides the order within each task. ``split_seed`` decides everything that is drawn once for all
    runs: the validation rows, the ``samples_per_task`` rows of each task, the permutations. ``n_tasks``
    divides the classes into that many tasks (for permuted-mnist: the number of permutations). ``class_order``
    is a permutation of the labels that says which classes make which task; the labels themselves stay.
    A batch has ``batch_size`` samples. ``data_dir`` is where data sets are; see `rehearse data`.
    """
    known = find(STREAMS, "stream", name)
    if known.make is not None:
        return known.make(
            seed=seed, split_seed=split_seed, samples_per_task=samples_per_task, n_tasks=n_tasks or known.n_tasks,
            batch_size=batch_size, class_order=class_order, data_dir=data_dir,
        )  # fmt: skip
    if known.permuted and class_order is not None:
        raise InvalidInput(f"{name} has all classes in every task: class_order does not apply")
    tasks = check_count("n_tasks", known.n_tasks if n_tasks is None else n_tasks)
    count = known.samples_per_task if samples_per_task is None else check_count("samples_per_task", samples_per_task)
    check_count("batch_size", batch_size)
    check_count("seed", seed, least=0)
    dataset = load(known.dataset, data_dir, check_count("split_seed", split_seed, least=0))
    more: dict[str, Any] = {
        "n_tasks": tasks, "samples_per_task": count, "validation": known.validation, "scaling": known.scaling,
        "batch_size": batch_size, "seed": seed, "split_seed": split_seed,
    }  # fmt: skip
    if known.permuted:
        return permuted_stream(name, dataset, **more)
    return split_stream(name, dataset, class_order=class_order, **more)
