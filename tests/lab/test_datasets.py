"""Data files: small ones in each format are read right, and every way of being wrong is named."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rehearse.errors import DataError, InvalidInput, MissingExtra
from rehearse.lab.experiment import Settings, execute
from rehearse.lab.methods import resolve
from rehearse.lab.streams import make_stream
from rehearse.lab.streams.datasets import base, cifar10, load, miniimagenet, mnist


@pytest.fixture(autouse=True)
def no_other_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The user's own directories are out of sight."""
    monkeypatch.delenv("REHEARSE_DATA", raising=False)
    monkeypatch.setattr(base, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(miniimagenet, "cache_directory", lambda: tmp_path / "cache")


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


# MNIST


def idx(array: np.ndarray) -> bytes:
    """The idx format, from its description: two zeros, 8 for bytes, the number of dimensions, each big-endian."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.tobytes()


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A tiny MNIST: the arrays, and their checksums put in the place of the real ones."""
    chance = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte": chance.integers(0, 256, (200, 28, 28), dtype=np.uint8),
        "train-labels-idx1-ubyte": np.tile(np.arange(10, dtype=np.uint8), 20),
        "t10k-images-idx3-ubyte": chance.integers(0, 256, (30, 28, 28), dtype=np.uint8),
        "t10k-labels-idx1-ubyte": np.tile(np.arange(10, dtype=np.uint8), 3),
    }
    known = {name: mnist.IdxFile(array.shape, sha256(idx(array))) for name, array in arrays.items()}
    monkeypatch.setattr(mnist, "FILES", known)
    return arrays


def write_digits(folder: Path, arrays: dict[str, np.ndarray], compressed: bool) -> None:
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        content = idx(array)
        (folder / (f"{name}.gz" if compressed else name)).write_bytes(gzip.compress(content) if compressed else content)


def test_a_directory_that_is_not_there_is_no_place_to_pass_over(
    tmp_path: Path, digits: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_digits(tmp_path / "mnist", digits, compressed=True)
    monkeypatch.setenv("REHEARSE_DATA", str(tmp_path))
    load("mnist")
    with pytest.raises(DataError, match="there is no directory"):
        load("mnist", tmp_path / "mnits")


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
@pytest.mark.parametrize("compressed", [True, False])
def test_mnist_is_read(tmp_path: Path, digits: dict[str, np.ndarray], folder: str, compressed: bool) -> None:
    write_digits(tmp_path / folder, digits, compressed)
    dataset = load("mnist", tmp_path)
    assert dataset.x.shape == (230, 1, 28, 28)
    assert np.array_equal(dataset.x[dataset.train, 0], digits["train-images-idx3-ubyte"])
    assert np.array_equal(dataset.x[dataset.test, 0], digits["t10k-images-idx3-ubyte"])
    assert np.array_equal(dataset.y[dataset.train], digits["train-labels-idx1-ubyte"])
    assert np.array_equal(dataset.y[dataset.test], digits["t10k-labels-idx1-ubyte"])
    stream = make_stream("split-mnist", samples_per_task=30, data_dir=tmp_path)
    assert (stream.length, stream.input_shape) == (15, (1, 28, 28))


def test_places_are_searched_in_order(
    tmp_path: Path, digits: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_digits(tmp_path / "cache/mnist", digits, compressed=True)
    assert mnist.find().is_relative_to(tmp_path / "cache")
    monkeypatch.setenv("REHEARSE_DATA", str(tmp_path / "env"))
    write_digits(tmp_path / "env/mnist", digits, compressed=True)
    assert mnist.find().is_relative_to(tmp_path / "env")
    write_digits(tmp_path / "given/mnist", digits, compressed=True)
    assert mnist.find(tmp_path / "given").is_relative_to(tmp_path / "given")
    assert mnist.find(tmp_path / "nothing").is_relative_to(tmp_path / "env")


def test_missing_mnist_says_where_it_looked_and_what_to_do(tmp_path: Path, digits: dict[str, np.ndarray]) -> None:
    with pytest.raises(DataError, match="rehearse data fetch mnist") as caught:
        load("mnist", tmp_path)
    assert str(tmp_path / "mnist") in str(caught.value)
    write_digits(tmp_path / "mnist", digits, compressed=True)
    (tmp_path / "mnist/t10k-labels-idx1-ubyte.gz").rename(tmp_path / "mnist/t10k-labels-idx1-ubyte.gz.part")
    with pytest.raises(DataError, match="lacks t10k-labels-idx1-ubyte"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("compressed", [True, False])
def test_truncated_mnist_is_named(tmp_path: Path, digits: dict[str, np.ndarray], compressed: bool) -> None:
    write_digits(tmp_path / "mnist", digits, compressed)
    path = tmp_path / "mnist" / ("train-images-idx3-ubyte" + (".gz" if compressed else ""))
    for size in (0, 3, 10, 1000):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(DataError, match="fetch mnist") as caught:
            load("mnist", tmp_path)
        assert str(path) in str(caught.value)
        write_back = idx(digits["train-images-idx3-ubyte"])
        path.write_bytes(gzip.compress(write_back) if compressed else write_back)


def test_every_flipped_bit_of_mnist_is_found(tmp_path: Path, digits: dict[str, np.ndarray]) -> None:
    write_digits(tmp_path / "mnist", digits, compressed=False)
    path = tmp_path / "mnist/train-labels-idx1-ubyte"
    right = path.read_bytes()
    for byte in range(len(right)):
        path.write_bytes(right[:byte] + bytes([right[byte] ^ 1]) + right[byte + 1 :])
        with pytest.raises(DataError, match="train-labels"):
            load("mnist", tmp_path)


def test_labels_beyond_nine_are_refused(tmp_path: Path) -> None:
    content = idx(np.array([3, 10], dtype=np.uint8))
    (tmp_path / "labels").write_bytes(content)
    with pytest.raises(DataError, match="label 10"):
        mnist.read_idx(tmp_path / "labels", mnist.IdxFile((2,), sha256(content)))


# CIFAR-10


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.ndarray, np.ndarray]]:
    """A tiny CIFAR-10: six files of 20 images, pixels and labels."""
    monkeypatch.setattr(cifar10, "ROWS", 20)
    chance = np.random.default_rng(1)
    return [
        (chance.integers(0, 256, (20, 3072), dtype=np.uint8), np.tile(np.arange(10, dtype=np.uint8), 2))
        for _ in range(6)
    ]


def write_binary(root: Path, files: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = root / "cifar10/cifar-10-batches-bin"
    folder.mkdir(parents=True)
    checksums = {}
    for name, (pixels, labels) in zip(cifar10.FILES, files, strict=True):
        content = np.concatenate([labels[:, None], pixels], axis=1).tobytes()
        (folder / name).write_bytes(content)
        checksums[name] = sha256(content)
    monkeypatch.setattr(cifar10, "FILES", checksums)
    return folder


def test_cifar10_is_read(tmp_path: Path, pictures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_binary(tmp_path, pictures, monkeypatch)
    dataset = load("cifar10", tmp_path)
    assert dataset.x.shape == (120, 3, 32, 32)
    assert np.array_equal(dataset.x.reshape(120, 3072), np.concatenate([pixels for pixels, _ in pictures]))
    assert np.array_equal(dataset.y, np.concatenate([labels for _, labels in pictures]))
    assert (dataset.train.tolist(), dataset.test.tolist()) == (list(range(100)), list(range(100, 120)))
    stream = make_stream("split-cifar10", data_dir=tmp_path)
    assert (stream.input_shape, stream.scaling, stream.length) == ((3, 32, 32), "symmetric", 10)


@pytest.mark.parametrize("method", ["gem", "icarl", "er-mir"])
def test_a_short_run_on_cifar10(tmp_path: Path, pictures: Any, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """From the files to the result, with the network and the settings of the paper's rows."""
    write_binary(tmp_path, pictures, monkeypatch)
    spec = resolve(method, "split-cifar10", {"memory": 2, "seed": 0})
    assert (spec.network, spec.updates) == ("resnet18", 5 if method == "icarl" else 1)
    result = execute(spec, settings=Settings(data_dir=str(tmp_path)))
    matrix = np.array(result["matrices"]["test"], dtype=float)
    assert matrix.shape == (5, 5)
    assert np.isfinite(matrix[np.tril_indices(5)]).all()
    assert result["cost"]["steps"] == 10


def test_broken_cifar10_is_named(tmp_path: Path, pictures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_binary(tmp_path, pictures, monkeypatch) / "data_batch_3.bin"
    right = path.read_bytes()
    path.write_bytes(right[:-1])
    with pytest.raises(DataError, match=r"data_batch_3.bin holds 61,459 bytes and should hold 61,460.*fetch cifar10"):
        load("cifar10", tmp_path)
    path.write_bytes(right[:-1] + bytes([right[-1] ^ 128]))
    with pytest.raises(DataError, match=r"data_batch_3.bin .*sha256.*should be"):
        load("cifar10", tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"lacks data_batch_3.bin"):
        load("cifar10", tmp_path)


def test_labels_of_cifar10_beyond_nine_are_refused(
    tmp_path: Path, pictures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures[2][1][5] = 11
    write_binary(tmp_path, pictures, monkeypatch)
    with pytest.raises(DataError, match=r"data_batch_3.bin holds labels outside 0 to 9"):
        load("cifar10", tmp_path)


# Mini-ImageNet


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Six classes of ten pictures in the layout of Mini-ImageNet: two in each list, each class one colour."""
    image = pytest.importorskip("PIL.Image", reason="the extra lab is not installed")
    root = tmp_path / "data"
    (root / "miniimagenet/images").mkdir(parents=True)
    for position, name in enumerate(miniimagenet.LISTS):
        lines = ["filename,label"]
        for label in (2 * position, 2 * position + 1):
            for k in range(10):
                lines.append(f"n{label}-{k}.jpg,n{9 - label}")
                colour = (40 * label, 255 - 40 * label, 10 * k)
                image.new("RGB", (84, 84), colour).save(root / f"miniimagenet/images/n{label}-{k}.jpg", quality=95)
        (root / "miniimagenet" / name).write_text("\n".join(lines) + "\n")
    return root


def test_miniimagenet_is_decoded_once_and_mapped(photographs: Path) -> None:
    dataset = load("miniimagenet", photographs)
    assert isinstance(dataset.x, np.memmap)
    assert dataset.x.shape == (60, 3, 84, 84)
    assert dataset.y.tolist() == [label for label in range(6) for _ in range(10)]  # in the order of the lists
    assert [int((dataset.y[dataset.train] == label).sum()) for label in range(6)] == [8] * 6
    assert set(dataset.test.tolist()) == {10 * label + k for label in range(6) for k in (8, 9)}
    for row in (0, 25, 59):
        expected = np.array([40 * (row // 10), 255 - 40 * (row // 10), 10 * (row % 10)])
        assert np.abs(dataset.x[row].reshape(3, -1).mean(1) - expected).max() < 4
    for picture in (photographs / "miniimagenet/images").iterdir():
        picture.unlink()
    again = load("miniimagenet", photographs)  # from the array alone
    assert np.array_equal(again.x, dataset.x)
    assert not list((photographs / "miniimagenet").glob("*.part"))


def test_a_stream_of_miniimagenet(photographs: Path) -> None:
    stream = make_stream("split-miniimagenet", n_tasks=3, batch_size=4, data_dir=photographs)
    assert (stream.n_classes, stream.input_shape, stream.scaling) == (6, (3, 84, 84), "symmetric")
    assert [len(batch) for batch in stream.evaluation["test"]] == [4, 4, 4]
    assert {label for batch in stream if batch.task == 1 for label in batch.y.tolist()} == {2, 3}


def test_the_array_goes_to_the_cache_where_the_data_is_read_only(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "cache" in str(path) and real(path, mode))
    load("miniimagenet", photographs)
    assert len(list((tmp_path / "cache/miniimagenet").glob("*.npy"))) == 1
    assert not list((photographs / "miniimagenet").glob("*.npy"))
    load("miniimagenet", photographs)


def test_an_interrupted_decoding_leaves_nothing(photographs: Path) -> None:
    folder = photographs / "miniimagenet"
    broken = folder / "images/n3-4.jpg"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(DataError, match=r"n3-4.jpg is missing, truncated or no image"):
        load("miniimagenet", photographs)
    broken.unlink()
    with pytest.raises(DataError, match=r"n3-4.jpg"):
        load("miniimagenet", photographs)
    assert sorted(path.name for path in folder.iterdir()) == ["images", "test.csv", "train.csv", "val.csv"]


def test_a_damaged_array_is_named(photographs: Path) -> None:
    load("miniimagenet", photographs)
    path = next((photographs / "miniimagenet").glob("*.npy"))
    with path.open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(DataError, match="delete it"):
        load("miniimagenet", photographs)


def test_pictures_are_resized_and_cropped_in_the_middle(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="the extra lab is not installed")
    wide = np.zeros((168, 504, 3), dtype=np.uint8)
    wide[:, 168:336, 0] = 255  # red in the middle square, which is all that may be left
    image.fromarray(wide).save(tmp_path / "wide.png")
    cropped = miniimagenet.read_image(tmp_path / "wide.png")
    assert cropped.shape == (3, 84, 84)
    assert (cropped[0, :, 2:-2] == 255).all()
    image.fromarray(wide.transpose(1, 0, 2)).convert("L").save(tmp_path / "high.png")
    assert miniimagenet.read_image(tmp_path / "high.png").shape == (3, 84, 84)
    small = np.arange(100 * 84 * 3, dtype=np.uint32).reshape(84, 100, 3).astype(np.uint8)
    image.fromarray(small).save(tmp_path / "right.png")
    assert np.array_equal(miniimagenet.read_image(tmp_path / "right.png"), small[:, 8:92].transpose(2, 0, 1))


def test_wrong_lists_are_named(photographs: Path) -> None:
    path = photographs / "miniimagenet/val.csv"
    for content, sentence in {
        "": "must begin with the line",
        "name,class\na.jpg,b\n": "must begin with the line",
        "filename,label\na.jpg\n": "val.csv, line 2",
        "filename,label\n../a.jpg,b\n": "val.csv, line 2",
    }.items():
        path.write_text(content)
        with pytest.raises(DataError, match=sentence):
            load("miniimagenet", photographs)
    path.unlink()
    with pytest.raises(DataError, match=r"lacks val.csv.*put its 60,000 JPEG files into DIR/miniimagenet/images/"):
        load("miniimagenet", photographs)


def test_without_pillow(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"rehearse-torch\[lab\]"):
        load("miniimagenet", photographs)


def test_unknown_data_sets_are_refused() -> None:
    with pytest.raises(InvalidInput, match="mnist, cifar10, miniimagenet, digits5k"):
        load("imagenet")
