"""Saved files: read back to the bit, or refused with the reason; never half a file, never code."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rehearse
from rehearse import Finetune, Learner, MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.checkpoint import HEADER, MAGIC, VERSION, read_state, write_state
from rehearse.errors import CheckpointError, InvalidType
from sameness import assert_same, frozen

SAVED_BY_VERSION_1 = Path(__file__).parent / "saved_by" / "format_1"
STATE = {
    "tensor": torch.arange(6.0).view(2, 3),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "nested": {"list": [1, 2.5, None, True, "word"], "tuple": (1, (2,)), 3: "three"},
    "large": 2**80,
}


def learner(hidden: int = 6, **options: Any) -> Replay:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 3)
    )
    return Replay(model, torch.optim.Adam(model.parameters(), lr=0.01), ReservoirMemory(20), **options)


def observe(one: Learner, first: int, last: int) -> list[float]:
    losses = []
    for number in range(first, last):
        generator = torch.Generator().manual_seed(number)
        x, y = torch.randn(6, 4, generator=generator), torch.randint(0, 3, (6,), generator=generator)
        losses.append(one.observe(x, y).incoming_loss)
    return losses


# ------------------------------------------------------------------------------------------------- there and back


def test_a_state_is_read_back_to_the_bit(tmp_path: Path) -> None:
    write_state(tmp_path / "state", STATE)
    assert_same(read_state(tmp_path / "state"), STATE)
    assert os.listdir(tmp_path) == ["state"]


def test_a_view_is_saved_without_what_lies_behind_it(tmp_path: Path) -> None:
    write_state(tmp_path / "state", {"view": torch.zeros(1_000_000)[:3]})
    assert (tmp_path / "state").stat().st_size < 10_000


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: 0, nn.Linear(1, 1), {(1, 2): 3}])
def test_what_could_not_be_read_back_is_not_written(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InvalidType, match="state"):
        write_state(tmp_path / "state", {"value": value})
    assert os.listdir(tmp_path) == []


def test_a_learner_resumes_bit_for_bit(tmp_path: Path) -> None:
    one, other = learner(), learner()
    observe(one, 0, 8)
    rehearse.save(one, tmp_path / "checkpoint")
    rehearse.load(tmp_path / "checkpoint", into=other)
    assert_same(other.state_dict(), one.state_dict())
    assert observe(one, 8, 16) == observe(other, 8, 16)
    assert_same(other.state_dict(), one.state_dict())


# ------------------------------------------------------------------------------------------------------ refusals


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearse.save(learner(), tmp_path / "checkpoint")
    read, read_bytes = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: [read.append(path), read_bytes(path)][1])
    rehearse.load(tmp_path / "checkpoint", into=learner())
    assert read == [tmp_path / "checkpoint"]


def refused(path: Path, words: str) -> None:
    one = learner()
    observe(one, 0, 3)
    before = frozen(one.state_dict())
    with pytest.raises(CheckpointError, match=words):
        rehearse.load(path, into=one)
    assert_same(one.state_dict(), before)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    one = learner()
    observe(one, 0, 5)
    rehearse.save(one, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """Every bit of the header, and one of every byte after it."""
    write_state(tmp_path / "state", {"a": 1})
    content = (tmp_path / "state").read_bytes()
    for bit in [*range(8 * HEADER.size), *range(8 * HEADER.size, 8 * len(content), 9)]:
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "state").write_bytes(flipped)
        with pytest.raises(CheckpointError):
            read_state(tmp_path / "state")


def test_every_length_but_the_right_one_is_found(tmp_path: Path) -> None:
    write_state(tmp_path / "state", {"a": 1})
    content = (tmp_path / "state").read_bytes()
    for length in range(len(content)):
        (tmp_path / "state").write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            read_state(tmp_path / "state")
    (tmp_path / "state").write_bytes(content + b"\0")
    with pytest.raises(CheckpointError, match="damaged"):
        read_state(tmp_path / "state")


def test_a_damaged_learner_is_refused_and_the_learner_stays(checkpoint: Path) -> None:
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    checkpoint.write_bytes(content)
    refused(checkpoint, "damaged")
    checkpoint.write_bytes(content[: len(content) // 2])
    refused(checkpoint, "damaged.*truncated")
    checkpoint.write_bytes(content[:20])
    refused(checkpoint, "truncated")


def signed(payload: bytes, version: int = VERSION) -> bytes:
    digest = hashlib.sha256(MAGIC + version.to_bytes(4, "little") + payload).digest()
    return HEADER.pack(MAGIC, version, digest) + payload


def test_a_newer_version_is_told_from_damage(checkpoint: Path) -> None:
    content = checkpoint.read_bytes()[HEADER.size :]
    checkpoint.write_bytes(signed(content, VERSION + 1))
    refused(checkpoint, f"format version {VERSION + 1}, written by a newer")


def test_a_file_of_an_earlier_version_is_refused_with_what_to_do() -> None:
    """Version 1, as the first edition wrote it, of a learner that fits."""
    refused(SAVED_BY_VERSION_1, "earlier version of rehearse, and this one cannot read it: load it with that version")


def test_a_damaged_file_of_an_earlier_version_is_damaged(tmp_path: Path) -> None:
    content = bytearray(SAVED_BY_VERSION_1.read_bytes())
    content[-100] ^= 1
    (tmp_path / "file").write_bytes(content)
    refused(tmp_path / "file", "damaged")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 something", b"x" * 5000])
def test_a_foreign_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    refused(tmp_path / "file", "not written by rehearse")


def test_torch_s_own_file_is_foreign(tmp_path: Path) -> None:
    torch.save(learner().state_dict(), tmp_path / "file")
    refused(tmp_path / "file", "not written by rehearse")


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    refused(tmp_path / "none", "cannot read .*No such file")
    refused(tmp_path, "cannot read")


class Trap:
    """What a hostile file would hold."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("trap",)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_code_in_a_file_with_a_right_checksum_is_not_run(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    if how == "torch":
        torch.save({"content": Trap()}, buffer)
    else:
        buffer.write(pickle.dumps({"content": Trap()}, protocol=2))
    (tmp_path / "file").write_bytes(signed(buffer.getvalue()))
    refused(tmp_path / "file", "more than tensors and plain values")
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.BCEWithLogitsLoss(), None])
def test_what_learns_classes_values_or_labels_loads_no_other(tmp_path: Path, loss: Any) -> None:
    def learner_of(loss: Any) -> Finetune:
        model = nn.Linear(4, 3)
        return Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss)

    rehearse.save(learner_of(loss), tmp_path / "saved")
    for other in (nn.MSELoss(), nn.BCEWithLogitsLoss(), nn.CrossEntropyLoss()):
        if type(other) is type(loss or nn.CrossEntropyLoss()):
            rehearse.load(tmp_path / "saved", into=learner_of(other))
            continue
        with pytest.raises(CheckpointError, match="the state is of a learner of"):
            rehearse.load(tmp_path / "saved", into=learner_of(other))


def with_body(seed: int, watched: bool = False, dtype: torch.dtype = torch.float32) -> Any:
    """A learner whose body of 40,000 weights is frozen; its seed decides the body."""
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(4, 10_000), nn.BatchNorm1d(10_000)).requires_grad_(False)
    model = nn.Sequential(body.to(dtype), nn.Linear(10_000, 3, dtype=dtype))
    one = Replay(model, torch.optim.Adam(model[1].parameters()), ReservoirMemory(20))
    return rehearse.Monitor(one) if watched else one


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_weights_are_saved_by_reference(tmp_path: Path, watched: bool, dtype: torch.dtype) -> None:
    one, path = with_body(0, watched, dtype), tmp_path / "saved"
    for seed in range(3):
        x = torch.randn(10, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)
        one.observe(x, torch.arange(10) % 3)
    rehearse.save(one, path)
    whole = path.stat().st_size
    rehearse.save(one, path, frozen=False)
    assert whole - path.stat().st_size > 60_000 * dtype.itemsize
    same, other = with_body(0, watched, dtype), with_body(1, watched, dtype)
    rehearse.load(path, into=same)
    assert_same(same.state_dict(), one.state_dict())
    for learner in (one, same):
        learner.observe(x, torch.arange(10) % 3)
    assert_same(same.state_dict(), one.state_dict())
    before = other.state_dict()
    with pytest.raises(CheckpointError, match=r"'0.0.weight' are not in the file.*build it with the weights"):
        rehearse.load(path, into=other)
    assert_same(other.state_dict(), before)


class Versioned(nn.Linear):
    """Saves a string beside its tensors."""

    def get_extra_state(self) -> str:
        return "version 1"

    def set_extra_state(self, state: str) -> None:
        self.loaded = state


@pytest.mark.parametrize("whole", [True, False])
def test_a_string_that_a_module_saves_is_no_digest(tmp_path: Path, whole: bool) -> None:
    def versioned() -> Finetune:
        torch.manual_seed(0)
        model = nn.Sequential(Versioned(4, 5).requires_grad_(False), nn.Linear(5, 3))
        return Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1))

    one, same = versioned(), versioned()
    observe(one, 0, 1)
    rehearse.save(one, tmp_path / "saved", frozen=whole)
    rehearse.load(tmp_path / "saved", into=same)
    assert_same(same.state_dict(), one.state_dict())
    assert same.model[0].loaded == "version 1"  # type: ignore[index]


def test_a_state_that_is_no_learner(tmp_path: Path) -> None:
    write_state(tmp_path / "file", STATE)
    refused(tmp_path / "file", "no saved learner")


def test_another_model_another_method_another_memory(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    others: list[Learner] = [
        learner(hidden=7),
        Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1)),
    ]
    small = learner()
    small.memory = ReservoirMemory(19)
    others.append(small)
    words = ["does not fit", "state is of a Finetune", "capacity 19"]
    for other, word in zip(others, words, strict=True):
        observe(other, 0, 2)
        rehearse.save(other, tmp_path / "checkpoint")
        refused(tmp_path / "checkpoint", word)


@pytest.mark.parametrize(
    "part", ["network", "model", "buffers", "optimizer", "random", "progress", "batchnorm", "memory", "own"]
)
def test_a_part_that_is_missing_is_an_error(tmp_path: Path, part: str) -> None:
    one = learner()
    observe(one, 0, 3)
    state = one.state_dict()
    del (state if part in state else state["network"])[part]
    write_state(tmp_path / "file", {"content": "learner", "state": state})
    refused(tmp_path / "file", part)


ALTERED: dict[str, tuple[tuple[Any, ...], Any]] = {
    "a task below zero": (("progress", 0), -1),
    "a task that is a word": (("progress", 0), "last"),
    "samples below zero": (("progress", 2), -6),
    "samples in fractions": (("progress", 2), 1.5),
    "more samples than a number holds": (("progress", 2), 2**70),
    "steps below zero": (("progress", 3), -1),
    "steps that are a truth": (("progress", 3), True),
    "passed samples below zero": (("network", "samples_passed"), -1),
    "passed samples in fractions": (("network", "samples_passed"), 0.5),
    "a random state that is none": (("random", "cpu"), torch.zeros(3)),  # torch raises a TypeError
    "no random state": (("random",), {}),  # a KeyError
}


@pytest.mark.parametrize(("place", "value"), ALTERED.values(), ids=ALTERED)
def test_counts_and_random_numbers_of_a_state_are_checked(tmp_path: Path, place: tuple[Any, ...], value: Any) -> None:
    one = learner()
    observe(one, 0, 3)
    state = one.state_dict()
    state["progress"] = list(state["progress"])
    part: Any = state
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    state["progress"] = tuple(state["progress"])
    write_state(tmp_path / "file", {"content": "learner", "state": state})
    refused(tmp_path / "file", "cannot load")


def test_targets_of_an_unknown_kind_are_refused_where_the_targets_decide() -> None:
    """A loss of torch knows what it learns, a function does not."""
    one = learner(loss=lambda logits, y: nn.functional.cross_entropy(logits, y, reduction="none"))
    observe(one, 0, 3)
    before, progress = frozen(one.state_dict()), one.progress
    for kind in ("colors", 3, ("classes", "colors")):
        with pytest.raises(CheckpointError, match="does not fit"):
            one.load_state_dict({**one.state_dict(), "progress": tuple(progress._replace(kind=kind))})  # type: ignore[arg-type]
    assert_same(one.state_dict(), before)


def test_uniform_and_interfered_learners_share_checkpoints(tmp_path: Path) -> None:
    """The retrieval is an option of the learner, not a part of its state."""
    one, other = learner(), learner(retrieval=Uniform())
    observe(one, 0, 5)
    rehearse.save(one, tmp_path / "checkpoint")
    rehearse.load(tmp_path / "checkpoint", into=other)
    assert_same(other.state_dict(), one.state_dict())


# -------------------------------------------------------------------------------------------- disks that refuse

FULL_DISK = """
import resource, signal, sys
import torch
from rehearse.checkpoint import read_state, write_state
from rehearse.errors import CheckpointError

write_state(sys.argv[1], {"old": torch.arange(10)})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    write_state(sys.argv[1], {"new": torch.zeros(100_000)})
except CheckpointError as problem:
    print(problem)
assert read_state(sys.argv[1])["old"].tolist() == list(range(10))
"""

READ_ONLY = """
import os, sys
from rehearse.checkpoint import read_state, write_state
from rehearse.errors import CheckpointError

write_state(sys.argv[1] + "/state", {"old": 1})
os.chmod(sys.argv[1] + "/state", 0o644)
os.chmod(sys.argv[1], 0o555)
if os.geteuid() == 0:
    os.setuid(65534)
try:
    write_state(sys.argv[1] + "/state", {"new": 1})
except CheckpointError as problem:
    print(problem)
assert read_state(sys.argv[1] + "/state") == {"old": 1}
"""


def run(script: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_disk_that_is_full_in_the_middle_of_a_write(tmp_path: Path) -> None:
    message = run(FULL_DISK, str(tmp_path / "state"))
    assert "cannot write" in message
    assert "untouched" in message
    assert os.listdir(tmp_path) == ["state"]


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):  # one more for the folder of a parallel worker
        if folder.stat().st_uid == os.getuid() and folder != Path(tempfile.gettempdir()):
            folder.chmod(0o755)
    (tmp_path / "folder").mkdir()
    message = run(READ_ONLY, str(tmp_path / "folder"))
    (tmp_path / "folder").chmod(0o755)
    assert "cannot write" in message
    assert os.listdir(tmp_path / "folder") == ["state"]


def test_numpy_numbers_are_saved(tmp_path: Path) -> None:
    """As the rate of an optimizer, say; torch's loader would refuse them."""
    model = nn.Linear(4, 3)
    one = Replay(model, torch.optim.SGD(model.parameters(), np.float64(0.1)), ReservoirMemory(8))
    observe(one, 0, 2)
    rehearse.save(one, tmp_path / "saved")
    rehearse.load(tmp_path / "saved", into=one)


def test_samples_are_for_the_owner_alone_and_all_else_has_the_mode_of_the_process(tmp_path: Path) -> None:
    in_ram, in_file, model = learner(), learner(), nn.Linear(4, 3)
    without = Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1))
    in_file.memory = ReservoirMemory(8, path=tmp_path / "samples")
    mask = os.umask(0o022)
    try:
        for name, one in {"in RAM": in_ram, "in a file": in_file, "without": without}.items():
            observe(one, 0, 2)
            rehearse.save(one, tmp_path / name)
    finally:
        os.umask(mask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    private = "in RAM", "in a file", "samples", "samples.1.undo"
    assert modes == dict.fromkeys(private, 0o600) | {"without": 0o644}


@pytest.mark.parametrize("kind", ["device", "link to a device", "pipe", "directory"])
def test_what_is_no_file_is_never_replaced(kind: str, tmp_path: Path) -> None:
    place = path = tmp_path / "there"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    elif os.geteuid() == 0:
        os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    else:
        pytest.skip("only root makes a device")
    if kind == "link to a device":
        path = tmp_path / "link"
        path.symlink_to(place)
    before = place.lstat()
    with pytest.raises(CheckpointError, match="neither a regular file nor a link to one; what was there before"):
        write_state(path, {})
    assert (place.lstat().st_mode, place.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert {one.name for one in tmp_path.iterdir()} == {place.name, path.name}


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot write"):
        write_state(tmp_path / "none" / "state", {})


class Damped(torch.optim.SGD):
    """An optimizer that notes something beside its groups, as torch's copies of it do not."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr, momentum=0.9)
        self.damping = [0.5]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["lr"] *= self.damping[0]
        super().step()


def test_an_optimizer_of_ones_own_is_saved_loaded_and_looked_ahead_with(tmp_path: Path) -> None:
    def made() -> Replay:
        torch.manual_seed(0)
        model, memory = nn.Linear(4, 3), ReservoirMemory(8)
        return Replay(
            model, Damped(model.parameters(), lr=0.1), memory, MostInterfered(4, virtual_step="optimizer"), budget=2
        )

    x, y = torch.randn(6, 4), torch.arange(6) % 3
    one, other = made(), made()
    for _ in range(3):
        one.observe(x, y)
    rehearse.save(one, tmp_path / "file")
    rehearse.load(tmp_path / "file", into=other)
    one.observe(x, y)
    other.observe(x, y)
    assert_same(other.state_dict(), one.state_dict())


def test_a_file_names_the_version_of_the_package_that_wrote_it(tmp_path: Path) -> None:
    rehearse.save(learner(), tmp_path / "saved")
    assert read_state(tmp_path / "saved")["package"] == rehearse.__version__
