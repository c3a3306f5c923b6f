"""The real files, where they are present: REHEARSE_DATA says where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rehearse.errors import DataError
from rehearse.lab.streams import Stream, make_stream
from rehearse.lab.streams.datasets import fetch


def stream_or_skip(name: str, **options: int) -> Stream:
    try:
        return make_stream(name, **options)
    except DataError as problem:
        if "not found" not in str(problem):
            raise
        pytest.skip(f"the files are not here: {problem}")


def test_split_mnist() -> None:
    stream = stream_or_skip("split-mnist")
    assert (stream.length, stream.n_tasks, stream.input_shape) == (500, 5, (1, 28, 28))
    assert [len(stream.task_data(task)) for task in range(5)] == [1000] * 5
    assert [len(batch) for batch in stream.evaluation["test"]] == [2115, 2042, 1874, 1986, 1983]
    assert [len(batch) for batch in stream.evaluation["validation"]] == [633, 605, 563, 609, 590]
    test = torch.cat([batch.x for batch in stream.evaluation["test"]])
    assert float(test.float().mean() / 255) == pytest.approx(0.1325, abs=1e-4)  # the well-known mean of the test set


def test_permuted_mnist() -> None:
    stream = stream_or_skip("permuted-mnist")
    assert (stream.length, stream.n_tasks, stream.n_classes) == (1000, 10, 10)
    test = stream.evaluation["test"]
    assert {len(batch) for batch in test} == {10000}
    assert torch.equal(test[0].x.flatten(1).sort(1).values, test[7].x.flatten(1).sort(1).values)
    assert not torch.equal(test[0].x, test[7].x)


def test_split_cifar10() -> None:
    stream = stream_or_skip("split-cifar10")
    assert (stream.length, stream.n_tasks, stream.input_shape) == (4875, 5, (3, 32, 32))
    for task in range(5):
        assert len(stream.task_data(task)) == 9750
        assert len(stream.evaluation["validation"][task]) == 250
        assert len(stream.evaluation["test"][task]) == 2000
    test = torch.cat([batch.x for batch in stream.evaluation["test"]]).float() / 255
    assert np.allclose(test.mean((0, 2, 3)), [0.4942, 0.4851, 0.4504], atol=1e-4)  # the well-known mean of the test set


def test_split_miniimagenet() -> None:
    stream = stream_or_skip("split-miniimagenet")
    assert (stream.n_tasks, stream.n_classes, stream.input_shape) == (20, 100, (3, 84, 84))
    assert len(stream.task_data(0)) == 2280
    assert len(stream.evaluation["validation"][0]) == 120
    assert len(stream.evaluation["test"][0]) == 600


@pytest.mark.parametrize("name", ["mnist", "cifar10", "miniimagenet"])
def test_the_files_verify(name: str) -> None:
    place = {status.name: status.place for status in fetch.list_data()}[name]
    if not isinstance(place, Path):
        pytest.skip(f"{name} is not here")
    assert [check.problem for check in fetch.verify(name) if check.problem] == []
