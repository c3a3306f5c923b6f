"""Checkpoints that are well-formed and hostile, one trick each."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rehearse
from rehearse import Replay, ReservoirMemory
from rehearse.checkpoint import HEADER, read_state
from rehearse.errors import CheckpointError
from sameness import assert_same, frozen

from .hostile_checkpoints import deep, packed, signed


def learner() -> Replay:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    one = Replay(model, torch.optim.SGD(model.parameters(), lr=0.1), ReservoirMemory(8))
    one.observe(torch.rand(6, 4), torch.arange(6) % 3)
    return one


def deflated(path: Path) -> bytes:
    """The records of a file, compressed."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(path.read_bytes()[HEADER.size :])) as stored,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for record in stored.infolist():
            packed.writestr(record.filename, stored.read(record))
    return signed(buffer.getvalue())


def expanded_head(state: dict[str, Any]) -> bytes:
    """A head of ten thousand outputs, of which the file holds one."""
    for name, tensor in state["network"]["model"].items():
        state["network"]["model"][name] = torch.zeros(1, *tensor.shape[1:]).expand(10**4, *tensor.shape[1:])
    return packed(state)


HOSTILE: dict[str, tuple[Callable[[Replay, Path], bytes], str]] = {
    "compressed": (lambda _, path: deflated(path), "compressed"),
    "expanded": (lambda one, _: expanded_head(one.state_dict()), "larger than the data"),
    "repeated": (lambda one, _: packed({**one.state_dict(), "own": deep(16)}), "more parts than bytes"),
    "shared": (lambda one, _: packed({**one.state_dict(), "own": [torch.zeros(10_000)] * 200}), "larger than the data"),
    "nested": (lambda one, _: packed({**one.state_dict(), "own": torch.zeros(2, 2).to_sparse()}), "another kind"),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", HOSTILE)
def test_what_would_be_larger_in_memory_than_on_the_disk_is_refused(name: str, tmp_path: Path) -> None:
    one = learner()
    rehearse.save(one, tmp_path / "file")
    before, (make, words) = frozen(one.state_dict()), HOSTILE[name]
    (tmp_path / "file").write_bytes(make(one, tmp_path / "file"))
    with pytest.raises(CheckpointError, match=words):
        rehearse.load(tmp_path / "file", into=one)
    assert_same(one.state_dict(), before)


@pytest.mark.parametrize("setting", ["maximize", "differentiable", "foreach"])
def test_settings_of_an_optimizer_that_are_neither_true_nor_false_are_refused(setting: str, tmp_path: Path) -> None:
    one = learner()
    state = one.state_dict()
    state["network"]["optimizer"]["param_groups"][0][setting] = torch.ones(3, 2)
    (tmp_path / "file").write_bytes(packed(state))
    with pytest.raises(CheckpointError, match="groups"):
        rehearse.load(tmp_path / "file", into=one)


def test_an_expanded_tensor_of_ones_own_is_saved_whole(tmp_path: Path) -> None:
    rehearse.checkpoint.write_state(tmp_path / "file", {"mask": torch.ones(1).expand(50)})
    assert torch.equal(read_state(tmp_path / "file")["mask"], torch.ones(50))


def test_a_pipe_is_refused_without_waiting_for_somebody_to_write(pipe: Path) -> None:
    with pytest.raises(CheckpointError, match="neither a regular file"):
        rehearse.load(pipe, into=learner())
