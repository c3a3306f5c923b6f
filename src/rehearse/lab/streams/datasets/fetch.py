"""What `rehearse data` does: list, fetch, verify, where. It returns plain values and prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from rehearse.errors import DataError, MissingExtra
from rehearse.lab.extensions import find
from rehearse.lab.streams.datasets import cifar10, digits5k, miniimagenet, mnist
from rehearse.lab.streams.datasets.base import check_digest, read_file, search_path
from rehearse.lab.streams.datasets.download import Progress, Remote, download, extract

MNIST_HOSTS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MNIST_FILES = tuple(
    Remote(name, tuple(host + name for host in MNIST_HOSTS), f"sha256:{checksum}")
    for name, checksum in {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    }.items()
)
CIFAR10_ARCHIVE = Remote(
    "cifar-10-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
)


@dataclass(frozen=True, slots=True)
class Status:
    """A data set, and the folder it was found in, or None; ``how`` says how to come by it."""

    name: str
    title: str
    place: Path | None
    how: str


@dataclass(frozen=True, slots=True)
class Check:
    """A file (or folder) that was looked at, and what is wrong with it, or None."""

    path: Path
    problem: str | None


@dataclass(frozen=True, slots=True)
class _Known:
    """What can be done with a data set, given the directory the user named."""

    title: str
    how: str
    place: Callable[[Any], Path]
    checks: Callable[[Any], Iterator[Check]]
    fetch: Callable[[Path, Progress | None], None] | None


def where(data_dir: str | PathLike[str] | None = None) -> list[Path]:
    """The directories that are searched for data, in this order; `fetch` writes to the first."""
    return search_path(data_dir)


def find_data(name: str, data_dir: str | PathLike[str] | None = None) -> Path:
    """The folder of a data set; one that is not there is an error."""
    return _known(name).place(data_dir)


def list_data(data_dir: str | PathLike[str] | None = None) -> list[Status]:
    """Every data set and where it is, without looking into its files."""
    return [Status(name, known.title, _place(known, data_dir), known.how) for name, known in _data_sets().items()]


def verify(name: str, data_dir: str | PathLike[str] | None = None) -> list[Check]:
    """Every file of a data set against its published checksum; one that is not there is an error."""
    return list(_known(name).checks(data_dir))


def fetch(name: str, data_dir: str | PathLike[str] | None = None, on_progress: Progress | None = None) -> Path:
    """The folder of the data set, downloaded into the first place of `where` unless it is there and right."""
    known = _known(name)
    if _right(known, data_dir):
        return known.place(data_dir)
    try:
        if known.fetch is not None:
            known.fetch(search_path(data_dir)[0], on_progress)
    except OSError as problem:
        raise DataError(f"{known.title} cannot be written ({problem}); choose another --data-dir") from problem
    wrong = [check.problem for check in known.checks(data_dir) if check.problem]
    if wrong:
        raise DataError("; ".join(wrong))
    return known.place(data_dir)


def _data_sets() -> dict[str, _Known]:
    return {
        "mnist": _Known(
            "MNIST, 11 MB",
            "rehearse data fetch mnist",
            lambda data_dir: next(iter(mnist.find(data_dir).values())).parent,
            _check_mnist,
            _fetch_mnist,
        ),
        "cifar10": _Known(
            "CIFAR-10, 162 MB to download",
            "rehearse data fetch cifar10",
            cifar10.find,
            _check_cifar10,
            _fetch_cifar10,
        ),
        "miniimagenet": _Known(
            "Mini-ImageNet",
            "by hand; rehearse data fetch miniimagenet explains it",
            miniimagenet.find,
            _check_miniimagenet,
            None,
        ),
        "digits5k": _Known(
            "5,000 digits of MNIST",
            "part of the extra rehearse-torch[lab]",
            lambda _: digits5k.find().parent,
            _check_digits5k,
            None,
        ),
    }


def _known(name: str) -> _Known:
    return find(_data_sets(), "data set", name)


def _place(known: _Known, data_dir: Any) -> Path | None:
    try:
        return known.place(data_dir)
    except (DataError, MissingExtra):
        return None


def _right(known: _Known, data_dir: Any) -> bool:
    return _place(known, data_dir) is not None and not any(check.problem for check in known.checks(data_dir))


def _fetch_mnist(root: Path, on_progress: Progress | None) -> None:
    for remote in MNIST_FILES:
        download(remote, root / "mnist", on_progress)


def _fetch_cifar10(root: Path, on_progress: Progress | None) -> None:
    archive = download(CIFAR10_ARCHIVE, root / "cifar10", on_progress)
    extract(archive, archive.parent)
    archive.unlink()


def _check(path: Path, look: Callable[..., object], *arguments: Any) -> Check:
    try:
        look(*arguments)
    except DataError as problem:
        return Check(path, str(problem))
    return Check(path, None)


def _check_mnist(data_dir: Any) -> Iterator[Check]:
    for name, path in mnist.find(data_dir).items():
        yield _check(path, mnist.read_idx, path, mnist.FILES[name])


def _check_cifar10(data_dir: Any) -> Iterator[Check]:
    folder = cifar10.find(data_dir)
    for name, checksum in cifar10.FILES.items():
        yield _check(folder / name, cifar10.read_binary, folder / name, checksum)


def _check_miniimagenet(data_dir: Any) -> Iterator[Check]:
    folder = miniimagenet.find(data_dir)
    for name, checksum in miniimagenet.LISTS.items():
        path = folder / name
        content = read_file(path, miniimagenet.ADVICE, miniimagenet.LIST_BYTES)
        yield _check(path, check_digest, path, content, checksum, miniimagenet.ADVICE)
    files = [file for file, _ in miniimagenet.read_lists(folder)]
    lacking = [file for file in files if not (folder / "images" / file).is_file()]
    problem = f"{len(lacking):,} of {len(files):,} images are missing, {lacking[0]} first" if lacking else None
    yield Check(folder / "images", problem)


def _check_digits5k(_: Any) -> Iterator[Check]:
    yield _check(digits5k.find(), digits5k.load)
