"""MNIST from its four idx files, compressed or not (LeCun, Bottou, Bengio & Haffner 1998)."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rehearse.errors import DataError
from rehearse.lab.streams.datasets import base
from rehearse.lab.streams.datasets.base import Check, Dataset, check_content, find_folder, read_file
from rehearse.lab.streams.datasets.download import Progress, Remote, download

TITLE, HOW = "MNIST, 11 MB", "rehearse data fetch mnist"

FOLDERS = ("mnist", "MNIST/raw")  # ours, and where torchvision puts it
ADVICE = "`rehearse data fetch mnist` downloads it anew"
GET = "Run `rehearse data fetch mnist`, or name its directory by --data-dir or REHEARSE_DATA"


class IdxFile(NamedTuple):
    """One array in idx format: a header of big-endian numbers, then one byte an entry.

    The checksum is of the uncompressed content, so that it holds however the file was compressed.
    """

    shape: tuple[int, ...]
    checksum: str

    @property
    def header(self) -> bytes:
        """0, 0, 8 (unsigned bytes), the number of dimensions, and each dimension."""
        return bytes([0, 0, 8, len(self.shape)]) + np.array(self.shape, dtype=">u4").tobytes()

    @property
    def size(self) -> int:
        return len(self.header) + int(np.prod(self.shape))


FILES = MappingProxyType(
    {
        "train-images-idx3-ubyte": IdxFile(
            (60000, 28, 28), "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
        ),
        "train-labels-idx1-ubyte": IdxFile(
            (60000,), "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
        ),
        "t10k-images-idx3-ubyte": IdxFile(
            (10000, 28, 28), "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
        ),
        "t10k-labels-idx1-ubyte": IdxFile(
            (10000,), "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
        ),
    }
)

HOSTS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
REMOTES = tuple(
    Remote(name, tuple(host + name for host in HOSTS), f"sha256:{checksum}")
    for name, checksum in {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    }.items()
)


def load(data_dir: str | PathLike[str] | None = None) -> Dataset:
    """The 70,000 images: 60,000 to train on, then 10,000 to test on."""
    train_x, train_y, test_x, test_y = (read_idx(path, known) for path, known in _files(data_dir))
    return Dataset(
        x=np.concatenate([train_x, test_x])[:, None],
        y=np.concatenate([train_y, test_y]).astype(np.int64),
        train=np.arange(len(train_y)),
        test=np.arange(len(train_y), len(train_y) + len(test_y)),
        n_classes=10,
    )


def find(data_dir: str | PathLike[str] | None = None) -> Path:
    """The first place that has all four files."""
    return find_folder("MNIST", FOLDERS, FILES, GET, data_dir)


def fetch(root: Path, on_progress: Progress | None) -> None:
    """Download the files."""
    for remote in REMOTES:
        download(remote, root / "mnist", on_progress)


def checks(data_dir: str | PathLike[str] | None) -> Iterator[Check]:
    """Look at every file."""
    for path, known in _files(data_dir):
        yield base.checked(path, read_idx, path, known)


def read_idx(path: Path, known: IdxFile) -> NDArray[np.uint8]:
    """The array in a file, after its size, header, checksum and (for labels) range were found right."""
    content = read_file(path, ADVICE, 1000 + 2 * known.size)
    if path.suffix == ".gz":
        try:
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(known.size + 1)
        except (OSError, EOFError, zlib.error) as problem:
            raise DataError(f"{path} is no complete gzip file ({problem}); {ADVICE}") from problem
    if content[: len(known.header)] != known.header:
        expected = " × ".join(map(str, known.shape))
        raise DataError(f"{path} does not begin like an idx file of {expected} bytes; {ADVICE}")
    check_content(path, content, known.size, known.checksum, ADVICE)
    array = np.frombuffer(content, dtype=np.uint8, offset=len(known.header)).reshape(known.shape)
    if array.ndim == 1 and array.max() > 9:
        raise DataError(f"{path} holds the label {array.max()}, and digits end at 9; {ADVICE}")
    return array


def _files(data_dir: str | PathLike[str] | None) -> Iterator[tuple[Path, IdxFile]]:
    folder = find(data_dir)
    for name, known in FILES.items():
        yield base.present(folder, name) or folder / name, known
