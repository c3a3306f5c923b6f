"""Who can reach a Ray that a campaign starts: this machine alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="the extra ray is not installed")

import ray

from rehearse.lab.campaign import ray as cluster

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own warnings
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the system has no /proc/net/tcp"),
]
LISTENING = "0A"
LOOPBACK = (
    "0100007F",
    "0000000000000000FFFF00000100007F",
    "00000000000000000000000001000000",
)  # as in /proc: 127.0.0.1


def listening() -> dict[str, str]:
    """Inode of a listening socket -> the address it is bound to, in hexadecimal."""
    tables = [path for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if path.exists()]
    rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    return {row[9]: row[1].partition(":")[0] for row in rows if row[3] == LISTENING}


def family(pid: int) -> Iterator[int]:
    """A process and all that descend from it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from family(int(child))


def sockets(pid: int) -> set[str]:
    """The inodes of the sockets that a process has open."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    return {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}


def test_a_new_ray_listens_on_loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """gcs_server, raylet and workers listened on every address of the machine, and obey whoever connects."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv(cluster.ALLOW_CLUSTER, raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # or Ray leaves a token in the home directory
    before = ray._private.ray_constants.ENABLE_RAY_CLUSTER
    with cluster._connected(ray, None, 1):
        worker: int = ray.get(ray.remote(lambda: os.getpid()).remote())
        found = {pid: sockets(pid) for pid in family(os.getpid())}
        names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in found}
        bound = listening()
    assert worker in found
    assert {"gcs_server", "raylet"} <= names
    addresses = [bound[inode] for inodes in found.values() for inode in inodes & bound.keys()]
    assert len(addresses) >= 4  # of the driver, gcs_server, raylet and worker
    assert set(addresses) <= set(LOOPBACK)
    assert cluster.ALLOW_CLUSTER not in os.environ  # a Ray that the user starts later is the user's business
    assert ray._private.ray_constants.ENABLE_RAY_CLUSTER is before
