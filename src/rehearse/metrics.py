"""Metrics: functions of the accuracy matrix of a run.

Throughout, ``matrix[i][j]`` = a(i, j) is the accuracy on task j's test set after learning task i, for T
tasks: an array of T × T, tasks counted from 0. No function reads an entry above the diagonal (j > i: tasks
not yet learned), so those may be nan. Undefined results are nan (forgetting after a single task, say); an
entry that is nan makes every result that reads it nan.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import check_choice
from .errors import InvalidInput

Array: TypeAlias = NDArray[np.float64]
Forgetting = Literal["chaudhry18", "lopez-paz17", "first-last", "all-tasks"]


def average_accuracy(matrix: ArrayLike) -> float:
    """Return the mean accuracy over all tasks after the last one: (1/T) Σ_j a(T, j).

    Lopez-Paz & Ranzato 2017, "Gradient Episodic Memory for Continual Learning" (their ACC); the paper's
    accuracy.
    """
    return _mean(_square(matrix)[-1])


def pooled_accuracy(matrix: ArrayLike, sizes: Sequence[int]) -> float:
    """Return the accuracy over all test samples together, after the last task: Σ_j n_j a(T, j) / Σ_j n_j.

    ``sizes`` are the n_j, the sizes of the test sets. It differs from the average if they differ, as those of
    Split MNIST do.
    """
    final = _square(matrix)[-1]
    weights = np.asarray(sizes, dtype=np.float64)
    if weights.shape != final.shape or not (weights > 0).all():
        raise InvalidInput(f"sizes must be {len(final)} positive numbers, one per task; got {sizes!r}")
    return float(weights @ final / weights.sum())


def forgetting(matrix: ArrayLike, definition: Forgetting = "chaudhry18") -> float:
    """Return how much accuracy was lost, averaged over tasks; lower is better. The ``definition`` is one of these:

    ``chaudhry18``: (1/(T−1)) Σ_{j<T} [max_{j≤i≤T} a(i, j) − a(T, j)]. The best accuracy on a task minus the
    final one (Chaudhry et al. 2018, "Riemannian Walk for Incremental Learning"), the last task left out. As
    in the reference implementation of Aljundi et al. 2019 the maximum includes the final accuracy, so that it is
    never negative; Chaudhry et al. take it over i < T, where a task that ends at its best counts as negative
    forgetting.

    ``lopez-paz17``: (1/(T−1)) Σ_{j<T} [a(j, j) − a(T, j)], which is minus the backward transfer.

    ``first-last``: the same number, under the name by which other libraries describe it (first accuracy minus
    last).

    ``all-tasks``: as ``chaudhry18``, but averaged over all T tasks, the last one's 0 included: (T−1)/T of it.
    The reference implementation does so for replay from codes.
    """
    a = _square(matrix)
    check_choice(get_args(Forgetting), definition=definition)
    if definition in ("lopez-paz17", "first-last"):
        return -backward_transfer(a)
    drops = np.array([a[task:, task].max() - a[-1, task] for task in range(len(a))])
    return _mean(drops if definition == "all-tasks" else drops[:-1])


def backward_transfer(matrix: ArrayLike) -> float:
    """Return how later tasks changed earlier ones: (1/(T−1)) Σ_{j<T} [a(T, j) − a(j, j)]; negative when they harmed.

    Lopez-Paz & Ranzato 2017 (their BWT).
    """
    a = _square(matrix)
    return _mean((a[-1] - a.diagonal())[:-1])


def learning_accuracy(matrix: ArrayLike) -> float:
    """Return the mean accuracy on each task right after learning it: (1/T) Σ_j a(j, j).

    Riemer et al. 2019, "Learning to Learn without Forgetting by Maximizing Transfer and Minimizing
    Interference".
    """
    return _mean(_square(matrix).diagonal())


def accuracy_seen(matrix: ArrayLike, tasks: Sequence[int] | None = None) -> Array:
    """Return the accuracy on the tasks seen so far, at each evaluation: A_n = (1/k) Σ_{j≤k} a(n, j), k = tasks[n].

    The curve of Figure 4 in Aljundi et al. 2019, whose last value is the average accuracy. With ``tasks`` the rows
    are evaluations within tasks too, and ``tasks[n]`` is the task that was being learned at evaluation n.
    """
    a, during = _evaluations(matrix, tasks)
    return np.array([_mean(row[: task + 1]) for row, task in zip(a, during, strict=True)])


def anytime_accuracy(matrix: ArrayLike, tasks: Sequence[int] | None = None) -> float:
    """Return the accuracy on the tasks seen so far, averaged over N evaluations: (1/N) Σ_n A_n of `accuracy_seen`.

    After each task it is what to expect of a learner that stops after a random task; the "average incremental
    accuracy" of Rebuffi et al. 2017, "iCaRL: Incremental Classifier and Representation Learning". With evaluations
    within ``tasks`` it is the "average anytime accuracy" of Caccia et al. 2022, "New Insights on Reducing Abrupt
    Representation Change in Online Continual Learning".
    """
    return _mean(accuracy_seen(matrix, tasks))


def worst_case_accuracy(matrix: ArrayLike, tasks: Sequence[int] | None = None) -> float:
    """Return the final accuracy on the last task and the lowest on each earlier one, averaged.

    (1/T) [a(N, T) + Σ_{j<T} min_{n > e_j} a(n, j)], where N is the last evaluation and e_j the last one while task j
    was being learned; "WC-ACC" of De Lange et al. 2023, "Continual Evaluation for Lifelong Learning: Identifying the
    Stability Gap". nan where some task never was the one being learned.
    """
    a, during = _evaluations(matrix, tasks)
    learned = list(range(a.shape[1]))
    if sorted(set(during)) != learned:
        return float("nan")
    return _mean(np.array([*(a[during > task, task].min() for task in learned[:-1]), a[-1, -1]]))


def stability_gap(matrix: ArrayLike, tasks: Sequence[int] | None = None) -> float:
    """Return how deep accuracy on earlier tasks drops after a task change, averaged over changes.

    (1/(T−1)) Σ_{k<T} [B(e_k) − min_{e_k < n ≤ e_(k+1)} B(n)], where B(n) = (1/k) Σ_{j≤k} a(n, j) is the accuracy on
    the tasks before the change and e_k the last evaluation while task k was being learned. De Lange et al. 2023
    describe it. It includes what is not recovered by the end of the task.
    """
    a, during = _evaluations(matrix, tasks)
    drops = []
    for before, after in pairwise(np.unique(during)):
        earlier = a[:, : before + 1].mean(axis=1)
        drops.append(earlier[during == before][-1] - earlier[during == after].min())
    return _mean(np.array(drops))


def _evaluations(matrix: ArrayLike, tasks: Sequence[int] | None) -> tuple[Array, NDArray[np.int64]]:
    """Return accuracies with the task that was being learned at each; without ``tasks`` one evaluation after each."""
    if tasks is None:
        a = _square(matrix)
        return a, np.arange(len(a))
    a, during = np.asarray(matrix, dtype=np.float64), np.asarray(tasks, dtype=np.int64)
    fits = a.ndim == 2 and during.shape == a.shape[:1] and a.size and (np.diff(during) >= 0).all()
    if not fits or during[0] < 0 or during[-1] >= a.shape[1]:
        raise InvalidInput("accuracies over time must be N × T numbers, with the task of each of the N, in order")
    return a, during


def _square(matrix: ArrayLike) -> Array:
    try:
        a = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the accuracy matrix must be T × T numbers: {error}") from error
    if a.ndim != 2 or a.shape[0] != a.shape[1] or not a.size:
        raise InvalidInput(f"the accuracy matrix must be T × T, a row and a column per task; got shape {a.shape}")
    return a


def _mean(values: Array) -> float:
    return float(values.mean()) if values.size else float("nan")
