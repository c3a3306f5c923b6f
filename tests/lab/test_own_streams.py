"""Streams from the user's own arrays and iterables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from rehearse.batch import Batch
from rehearse.errors import InvalidInput, InvalidType
from rehearse.lab.streams import from_arrays, from_iterable

X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = np.array([2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1], dtype=np.int32)


def rows(batches: Any) -> list[int]:
    return [int(value) // 2 for batch in batches for value in batch.x[:, 0]]


def test_by_class_takes_each_class_in_turn_and_every_row_once() -> None:
    stream = from_arrays(X, Y, batch_size=3)
    seen = list(stream)
    assert [(batch.task, len(batch)) for batch in seen] == [(0, 3), (0, 1), (1, 3), (1, 1), (2, 3), (2, 1)]
    assert [set(batch.y.tolist()) for batch in seen] == [{0}, {0}, {1}, {1}, {2}, {2}]
    assert sorted(rows(seen)) == list(range(12))
    assert (stream.length, stream.n_tasks, stream.n_classes, stream.input_shape) == (6, 3, 3, (2,))
    assert stream.evaluation == {}
    assert seen[0].y.dtype == torch.int64


def test_class_order_and_number_of_tasks() -> None:
    stream = from_arrays(torch.from_numpy(X), torch.from_numpy(Y), by="class", n_tasks=2, class_order=[2, 0, 1])
    assert [set(stream.task_data(task).y.tolist()) for task in range(2)] == [{0, 2}, {1}]


def test_in_the_given_order_without_tasks() -> None:
    stream = from_arrays(X, X[:, 0] / 7, by="order", batch_size=5, evaluation={"test": (X[:4], X[:4, 0])})
    seen = list(stream)
    assert rows(seen) == list(range(12))
    assert [len(batch) for batch in seen] == [5, 5, 2]
    assert [batch.task for batch in seen] == [None] * 3
    assert (stream.n_tasks, stream.n_classes) == (None, None)
    assert torch.equal(seen[0].y, torch.from_numpy(X[:5, 0] / 7))
    assert [(len(batch), batch.task) for batch in stream.evaluation["test"]] == [(4, None)]
    assert {batch.task for batch in stream.iid()} == {None}


def test_in_the_given_order_cut_into_tasks() -> None:
    stream = from_arrays(X, Y, by="order", n_tasks=3, batch_size=4, evaluation={"test": (X[:6], Y[:6])})
    assert [(batch.task, rows([batch])) for batch in stream] == [
        (0, [0, 1, 2, 3]),
        (1, [4, 5, 6, 7]),
        (2, [8, 9, 10, 11]),
    ]
    assert [rows([batch]) for batch in stream.evaluation["test"]] == [[0, 1], [2, 3], [4, 5]]


def test_given_tasks_come_ascending_and_numbered_from_zero() -> None:
    ids = [7, 7, 7, 7, 3, 3, 3, 3, 3, 9, 9, 9]
    stream = from_arrays(X, Y, tasks=ids, batch_size=10, evaluation={"test": (X[:3], Y[:3], [9, 3, 7])})
    assert [(batch.task, sorted(rows([batch]))) for batch in stream] == [
        (0, [4, 5, 6, 7, 8]),
        (1, [0, 1, 2, 3]),
        (2, [9, 10, 11]),
    ]
    assert [rows([batch]) for batch in stream.evaluation["test"]] == [[1], [2], [0]]


def test_evaluation_is_split_like_the_training_data() -> None:
    stream = from_arrays(X, Y, evaluation={"validation": (X[:6], Y[:6]), "test": (X, Y)})
    assert [batch.y.tolist() for batch in stream.evaluation["validation"]] == [[0, 0], [1, 1], [2, 2]]
    assert [len(batch) for batch in stream.evaluation["test"]] == [4, 4, 4]


def test_shuffling_and_dropping_are_choices() -> None:
    kept = from_arrays(X, Y, by="order", n_tasks=1, batch_size=5, drop_last=True, shuffle=True, seed=3)
    assert [len(batch) for batch in kept] == [5, 5]
    assert rows(kept) != list(range(10))
    assert rows(from_arrays(X, Y, shuffle=False)) == [1, 4, 7, 10, 2, 5, 8, 11, 0, 3, 6, 9]


def test_trees_of_arrays() -> None:
    tree = {"image": X, "extra": (torch.arange(12), np.arange(12.0))}
    stream = from_arrays(tree, Y, by="order", batch_size=5)
    batch = next(stream.batches(start=1))
    assert batch.x["image"][:, 0].tolist() == [10, 12, 14, 16, 18]
    assert batch.x["extra"][0].tolist() == batch.x["extra"][1].tolist() == [5, 6, 7, 8, 9]
    assert stream.input_shape is None
    mixed = next(iter(stream.iid()))
    assert (mixed.x["image"][:, 0] / 2).tolist() == mixed.x["extra"][0].tolist()


def test_arrays_of_the_other_byte_order() -> None:
    stream = from_arrays(X.astype(">f4"), Y.astype(">i2"), by="order", batch_size=12)
    assert next(iter(stream)).x.tolist() == X.tolist()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "sentence"),
    [
        ((X, Y[:5]), {}, InvalidInput, "12 rows of inputs and 5 of targets"),
        ((X[:0], Y[:0]), {}, InvalidInput, "no rows"),
        ((X, Y / 2), {}, InvalidInput, "try by='order'"),
        ((X, Y - 1), {}, InvalidInput, "from 0 on"),
        ((X, [str(label) for label in Y]), {}, InvalidType, "encode them as numbers"),
        ((X, Y), {"by": "task"}, InvalidInput, "'class' or 'order'"),
        ((X, Y), {"by": "order", "tasks": Y}, InvalidInput, "leave out by"),
        ((X, Y), {"by": "order", "n_tasks": 13}, InvalidInput, "no row of task 12"),
        ((X, Y), {"n_tasks": 4}, InvalidInput, "3 classes do not make 4 tasks"),
        ((X, Y), {"class_order": [0, 1]}, InvalidInput, "every class of the data once"),
        ((X, Y), {"by": "order", "class_order": [0, 1, 2]}, InvalidInput, "goes with by='class'"),
        ((X, Y), {"tasks": Y[:4]}, InvalidInput, "one number a row"),
        ((X, Y), {"tasks": Y / 2}, InvalidType, "whole numbers"),
        ((X, Y), {"batch_size": 0}, InvalidInput, "batch_size"),
        ((X, Y), {"scaling": "none"}, InvalidInput, "scaling"),
        ((X, Y), {"evaluation": {"test": X}}, InvalidInput, r"'test' must be \(x, y\)"),
        ((X, Y), {"evaluation": {"test": (X, Y + 1)}}, InvalidInput, "classes that the training data has not"),
        ((X, Y), {"evaluation": {"test": (X[:1], Y[:1])}}, InvalidInput, "'test' has no row of task 0"),
        ((X, (Y, Y)), {}, InvalidType, "one array"),
        ((3.0, Y), {}, InvalidInput, "first dimension"),
    ],
)
def test_wrong_arrays_get_one_sentence(arguments: Any, options: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        from_arrays(*arguments, **options)


def pairs(count: int = 5) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.full((2, 3), k), np.array([k, k])) for k in range(count)]


def labels(batches: Any) -> list[int]:
    return [int(batch.y[0]) for batch in batches]


def test_a_data_loader() -> None:
    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y), torch.zeros(12).long()), batch_size=4)
    stream = from_iterable(loader, n_classes=3)
    seen = list(stream)
    assert rows(seen) == list(range(12)) == rows(stream)
    assert [batch.task for batch in seen] == [0, 0, 0]
    assert [batch.y.dtype for batch in seen] == [torch.int64] * 3
    assert (stream.length, stream.n_tasks, stream.n_classes) == (None, None, 3)


def test_a_data_loader_of_several_inputs() -> None:
    data = [((row, row.sum()), label) for row, label in zip(torch.from_numpy(X), Y.tolist(), strict=True)]
    batch = next(iter(from_iterable(DataLoader(data, batch_size=4))))
    assert isinstance(batch.x, tuple)
    assert [leaf.shape for leaf in batch.x] == [(4, 2), (4,)]


def test_tasks_for_the_batch_or_a_row() -> None:
    given = [(X[:2], Y[:2], None), (X[:2], Y[:2], 3), (X[:2], Y[:2], [4, 4]), (X[:2], Y[:2], np.array([1, 2]))]
    tasks = [batch.task for batch in from_iterable(given)]
    assert tasks[:3] == [None, 3, 4]
    assert isinstance(tasks[3], torch.Tensor)
    assert tasks[3].tolist() == [1, 2]


def test_batches_pass_as_they_are() -> None:
    batch = Batch(torch.zeros(2, 3), torch.zeros(2), task=1)
    assert next(iter(from_iterable([batch]))) is batch


def test_an_endless_source_never_asked_for_its_length() -> None:
    class Endless:
        def __iter__(self) -> Iterator[Any]:
            return ((np.full((2, 1), k), np.array([k, k])) for k in itertools.count())

        def __len__(self) -> int:
            raise AssertionError("nobody may ask")

    stream = from_iterable(Endless())
    assert labels(itertools.islice(stream, 3)) == [0, 1, 2]
    assert labels(itertools.islice(stream.batches(start=1000), 2)) == [1000, 1001]
    assert stream.length is None


def test_a_function_makes_a_new_walk_each_time() -> None:
    stream = from_iterable(lambda: iter(pairs()), length=4)
    assert labels(stream) == labels(stream) == [0, 1, 2, 3]
    assert labels(stream.batches(start=3)) == [3]


def test_an_iterator_can_be_walked_once_and_says_so() -> None:
    stream = from_iterable(iter(pairs()))
    assert labels(stream.batches(start=2)) == [2, 3, 4]
    with pytest.raises(InvalidInput, match="a function that makes a new one"):
        stream.batches()


def test_nothing_is_read_ahead() -> None:
    read: list[int] = []

    def source() -> Iterator[Any]:
        for k, pair in enumerate(pairs()):
            read.append(k)
            yield pair

    walk = from_iterable(source).batches()
    assert read == []
    next(walk)
    assert read == [0]


def test_evaluation_sets_of_an_iterable() -> None:
    one = (X, Y)
    stream = from_iterable(pairs(), evaluation={"test": one, "validation": [one, Batch(X, torch.from_numpy(Y))]})
    assert [len(batch) for batch in stream.evaluation["test"]] == [12]
    assert [len(batch) for batch in stream.evaluation["validation"]] == [12, 12]


def test_a_passing_stream_cannot_be_gathered() -> None:
    stream = from_iterable(pairs())
    with pytest.raises(InvalidInput, match="from_arrays"):
        stream.task_data(0)
    with pytest.raises(InvalidInput, match="from_arrays"):
        stream.iid()


@pytest.mark.parametrize(
    ("item", "error", "sentence"),
    [
        (X, InvalidType, "and this is ndarray"),
        ((X,), InvalidType, "yields"),
        ((X, Y[:3]), InvalidInput, "12 rows of inputs and 3 of targets"),
        ((X[:0], Y[:0]), InvalidInput, "no rows"),
        ((X, Y, 0.5), InvalidType, "task"),
        ((X, Y, [1, 2]), InvalidInput, "task"),
        ((["a", "b"], [0, 1]), InvalidType, "numbers"),
    ],
)
def test_wrong_items_get_one_sentence(item: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        list(from_iterable([item]))


def test_what_is_no_iterable_is_refused() -> None:
    with pytest.raises(InvalidType, match="not int"):
        from_iterable(3)  # type: ignore[arg-type]
