"""The batch: what is accepted, what is refused and in which words, and rows that keep what belongs to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rehearse.batch import (
    Batch,
    checked_batch,
    checked_inputs,
    task_column,
    tree_concatenate,
    tree_leaves,
    tree_map,
)
from rehearse.errors import InvalidInput, InvalidType, RehearseError


def test_taking_rows_takes_everything_that_belongs_to_them() -> None:
    batch = Batch(
        x=(torch.arange(4), {"a": torch.arange(4) * 10}),
        y=torch.tensor([0, 1, 2, 3]),
        task=torch.tensor([5, 6, 7, 8]),
        slots=torch.tensor([40, 41, 42, 43]),
        columns={"logits": torch.arange(8).reshape(4, 2)},
    )
    taken = batch.take(torch.tensor([3, 1]))
    assert len(taken) == 2
    assert taken.x[0].tolist() == [3, 1]
    assert taken.x[1]["a"].tolist() == [30, 10]
    assert taken.y.tolist() == [3, 1]
    assert isinstance(taken.task, torch.Tensor)
    assert taken.task.tolist() == [8, 6]
    assert taken.slots is not None
    assert taken.slots.tolist() == [43, 41]
    assert taken.columns["logits"].tolist() == [[6, 7], [2, 3]]


def test_taking_rows_of_a_batch_with_one_task_keeps_the_task() -> None:
    taken = Batch(torch.zeros(3, 2), torch.zeros(3), task=4).take(torch.tensor([0]))
    assert taken.task == 4
    assert taken.slots is None


def test_moving_to_a_device_keeps_the_rows() -> None:
    batch = Batch(torch.ones(2, 3), torch.tensor([0, 1]), task=torch.tensor([1, 2]), slots=torch.tensor([7, 8]))
    moved = batch.to("cpu")
    assert torch.equal(moved.x, batch.x)
    assert torch.equal(moved.y, batch.y)
    assert isinstance(moved.task, torch.Tensor)
    assert moved.task.tolist() == [1, 2]
    assert moved.slots is not None
    assert moved.slots.tolist() == [7, 8]


def test_trees() -> None:
    tree = (torch.tensor([1]), {"b": torch.tensor([2]), "a": (torch.tensor([3]),)})
    assert [int(leaf) for leaf in tree_leaves(tree)] == [1, 2, 3]
    doubled = tree_map(lambda leaf, other: leaf + other, tree, tree)
    assert [int(leaf) for leaf in tree_leaves(doubled)] == [2, 4, 6]
    joined = tree_concatenate([tree, doubled])
    assert joined[1]["a"][0].tolist() == [3, 6]


def test_arrays_lists_and_tensors_are_accepted_and_shared() -> None:
    x = np.ones((2, 3), dtype=np.float32)
    batch = checked_batch(x, [0, 1])
    x[0, 0] = 5
    assert batch.x[0, 0] == 5
    assert batch.x.dtype == torch.float32
    assert batch.y.dtype == torch.int64
    assert checked_batch([[1.0, 2.0]], [0]).x.shape == (1, 2)


def test_gradients_do_not_follow_the_inputs() -> None:
    assert not checked_batch(torch.ones(2, 1, requires_grad=True), [0, 1]).x.requires_grad


def test_arrays_that_torch_cannot_share_are_copied() -> None:
    readonly = np.arange(6, dtype=np.float32).reshape(3, 2)
    readonly.flags.writeable = False
    batch = checked_batch(readonly, np.arange(3)[::-1])
    assert batch.x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert batch.y.tolist() == [2, 1, 0]


def test_trees_of_inputs() -> None:
    batch = checked_batch({"image": np.zeros((2, 3)), "text": [torch.zeros(2, 4), torch.ones(2, 1)]}, [0, 1])
    assert batch.x["image"].shape == (2, 3)
    assert isinstance(batch.x["text"], tuple)
    assert batch.x["text"][1].tolist() == [[1], [1]]


@pytest.mark.parametrize(
    ("x", "y", "kind", "words"),
    [
        (np.zeros((2, 3)), [0], InvalidInput, "x has 2 samples, y has 1"),
        (
            {"a": np.zeros((2, 3)), "b": np.zeros((1, 3))},
            [0, 1],
            InvalidInput,
            r"different numbers of samples: \[1, 2\]",
        ),
        (np.zeros((0, 3)), np.zeros(0, dtype=int), InvalidInput, "empty"),
        ((), [0], InvalidInput, "x is empty"),
        ({}, [0], InvalidInput, "x is empty"),
        ([[float("nan")]], [0], InvalidInput, "not finite"),
        ([[float("inf")]], [0], InvalidInput, "not finite"),
        ([[float("inf"), float("-inf")]], [0], InvalidInput, "not finite"),
        (({"a": np.array([[np.inf]])},), [0], InvalidInput, r"x\[0\]\['a'\]"),
        ([[1.0]], [float("nan")], InvalidInput, "y has entries"),
        (1.0, [0], InvalidInput, "single value"),
        ([[1.0]], 0, InvalidInput, "y is a single value"),
        (np.zeros((1, 2), dtype=complex), [0], InvalidType, "complex"),
        (torch.zeros(1, 2).to_sparse(), [0], InvalidType, "dense"),
        (torch.zeros(1, 2).to(torch.float8_e4m3fn), [0], InvalidType, "float8"),
        (np.zeros((1, 2), dtype=np.uint16), [0], InvalidType, "int64"),
        ("abc", [0], InvalidType, "x holds text"),
        (None, [0], InvalidType, "x holds text"),
        ([["a", "b"]], [0], InvalidType, "x holds text"),
        ([[1.0], [1.0, 2.0]], [0, 1], InvalidType, "x cannot be made"),
        ([[1.0]], ["cat"], InvalidType, "y holds text or other objects; give numbers"),
        ({1: np.zeros((1, 2))}, [0], InvalidType, "strings"),
    ],
)
def test_refusals(x: Any, y: Any, kind: type[RehearseError], words: str) -> None:
    with pytest.raises(kind, match=words):
        checked_batch(x, y)


def test_large_finite_numbers_are_no_infinity() -> None:
    largest = torch.finfo(torch.float32).max
    assert checked_batch(torch.full((2, 2), largest), [0, 1]).x[0, 0] == largest


def test_predicting_on_no_rows_is_allowed_but_not_on_uneven_ones() -> None:
    assert checked_inputs(np.zeros((0, 3))).shape == (0, 3)
    with pytest.raises(InvalidInput, match=r"\[1, 2\]"):
        checked_inputs((np.zeros((2, 3)), np.zeros((1, 3))))


@pytest.mark.parametrize("task", [3, np.int64(3), torch.tensor(3), [3, 3], np.array([3, 3], dtype=np.uint8)])
def test_one_task_for_all_rows(task: Any) -> None:
    assert checked_batch([[1.0], [2.0]], [0, 1], task).task == 3


def test_tasks_by_row() -> None:
    task = checked_batch([[1.0], [2.0]], [0, 1], np.array([1, 4], dtype=np.int32)).task
    assert isinstance(task, torch.Tensor)
    assert task.tolist() == [1, 4]
    assert task.dtype == torch.int64


@pytest.mark.parametrize(
    ("task", "kind", "words"),
    [
        (-1, InvalidInput, "negative"),
        ([0, -1], InvalidInput, "negative"),
        ([0], InvalidInput, "one for each of 2"),
        ([[0], [1]], InvalidInput, "one for each of 2"),
        (True, InvalidType, "integer"),
        (1.0, InvalidType, "integer"),
        ("a", InvalidType, "integer"),
        ([0.0, 1.0], InvalidType, "integers"),
        ([True, False], InvalidType, "integers"),
    ],
)
def test_refused_tasks(task: Any, kind: type[RehearseError], words: str) -> None:
    with pytest.raises(kind, match=words):
        checked_batch([[1.0], [2.0]], [0, 1], task)


def test_unknown_tasks_are_stored_as_minus_one() -> None:
    assert task_column(None, 2).tolist() == [-1, -1]
    assert task_column(4, 2).tolist() == [4, 4]
    assert task_column(torch.tensor([1, 2]), 2).tolist() == [1, 2]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["meta", "nested"])
def test_tensors_without_numbers_or_of_many_lengths_are_refused(kind: str) -> None:
    meta = torch.empty(2, 3, device="meta")
    values = meta if kind == "meta" else torch.nested.nested_tensor([torch.rand(2), torch.rand(3)])
    for call in (lambda: checked_batch(values, [0, 1]), lambda: checked_batch(torch.rand(2, 3), values)):
        with pytest.raises(InvalidType, match=f"{kind}; use dense real numbers"):
            call()
