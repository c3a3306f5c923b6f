"""Domain-incremental streams: all classes in every task, the pixels in another order in each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rehearse.batch import Batch
from rehearse.lab.streams.arrays import ArrayStream, Index, Rows
from rehearse.lab.streams.base import generator
from rehearse.lab.streams.datasets import Dataset
from rehearse.lab.streams.split import task_stream


class PermutedRows:
    """Rows whose pixels are rearranged when they are taken, so that no task needs a copy of the images."""

    def __init__(self, rows: Rows, pixels: Index) -> None:
        self._rows, self._pixels = rows, torch.from_numpy(pixels)

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, positions: Index) -> Batch:
        batch = self._rows.take(positions)
        return Batch(batch.x.flatten(1)[:, self._pixels].view_as(batch.x), batch.y)


def permuted_stream(name: str, dataset: Dataset, *, n_tasks: int, split_seed: int, **more: Any) -> ArrayStream:
    """Task 0 shows the images as they are, each further task through a fixed random permutation.

    Every task draws its own ``samples_per_task`` of the training rows. Permutations, draws and the validation
    rows come from ``split_seed``. ``more`` is of `task_stream`.
    """
    permutations = pixel_permutations(int(np.prod(dataset.x.shape[1:])), n_tasks, split_seed)
    return task_stream(
        name,
        dataset,
        lambda rows: [rows] * n_tasks,
        look=lambda rows, task: PermutedRows(rows, permutations[task]),
        split_seed=split_seed,
        **more,
    )


def pixel_permutations(pixels: int, n_tasks: int, split_seed: int) -> list[Index]:
    """The identity, then random orders of the pixels; more tasks leave the first ones as they were."""
    chance = generator(split_seed, "permutation")
    return [np.arange(pixels)] + [chance.permutation(pixels) for _ in range(n_tasks - 1)]
