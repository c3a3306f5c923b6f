"""Samples in a file: the same as in RAM, back to every checkpoint bit for bit, and no way around a deletion."""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rehearse
from rehearse import Batch, ClassBalancedMemory, Memory, Replay, ReservoirMemory, RingMemory, Uniform
from rehearse.checkpoint import read_state, write_state
from rehearse.errors import CheckpointError, InvalidInput, InvalidType
from rehearse.network.states import network_state
from sameness import assert_same

POLICIES = [ReservoirMemory, RingMemory, ClassBalancedMemory]
CAPACITY = 40


def samples(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randint(0, 255, (8, 3, 5), generator=generator, dtype=torch.uint8)
    return x, torch.randint(0, 4, (8,), generator=generator)


def feed(memory: Memory, first: int, last: int) -> None:
    for number in range(first, last):
        memory.add(*samples(number), task=number // 5, id=range(8 * number, 8 * number + 8))


def same(one: Memory, other: Memory) -> bool:
    first, second = one.all(), other.all()
    return (
        torch.equal(first.slots, second.slots)
        and torch.equal(first.x, second.x)
        and torch.equal(first.y, second.y)
        and torch.equal(first.task, second.task)
        and torch.equal(first.columns["id"], second.columns["id"])
        and torch.equal(one.sample(7).slots, other.sample(7).slots)
    )


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> type[Memory]:
    return request.param


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[ReservoirMemory]:
    memory = ReservoirMemory(CAPACITY, path=tmp_path / "samples")
    yield memory
    memory.close()


def test_holds_what_a_memory_in_ram_holds(policy: type[Memory], tmp_path: Path) -> None:
    in_ram, in_file = policy(CAPACITY), policy(CAPACITY, path=tmp_path / "samples")
    for start in range(0, 40, 10):
        feed(in_ram, start, start + 10)
        feed(in_file, start, start + 10)
        assert same(in_ram, in_file)
    assert in_ram.summary() == in_file.summary()


def test_any_tree_and_dtype(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x = {
        "ids": torch.randint(0, 9, (6, 3), generator=generator, dtype=torch.int32),
        "pair": (torch.randn(6, 2, 2, generator=generator).bfloat16(), torch.rand(6, generator=generator) > 0.5),
        "odd": torch.randint(0, 9, (6, 7), generator=generator, dtype=torch.int8),
    }
    y = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    memory = ReservoirMemory(10, path=tmp_path / "samples")
    memory.add(x, y, logits=torch.arange(12.0).view(6, 2))
    held = memory.all()
    assert torch.equal(held.y, y)
    assert torch.equal(held.x["ids"], x["ids"])
    assert torch.equal(held.x["pair"][0], x["pair"][0])
    assert torch.equal(held.x["pair"][1], x["pair"][1])
    assert torch.equal(held.x["odd"], x["odd"])
    assert torch.equal(held.columns["logits"], torch.arange(12.0).view(6, 2))


def test_goes_back_to_every_checkpoint_and_on_as_if_nothing_had_happened(policy: type[Memory], tmp_path: Path) -> None:
    memory, reference = policy(CAPACITY, path=tmp_path / "samples"), policy(CAPACITY)
    states, references = [], []
    for start in range(0, 40, 8):
        feed(memory, start, start + 8)
        feed(reference, start, start + 8)
        states.append(memory.state_dict())
        references.append(reference.state_dict())
    for number in (3, 3, 1):  # further and further back, and twice to the same place
        memory.load_state_dict(states[number])
        reference.load_state_dict(references[number])
        assert same(memory, reference)
        feed(memory, 100, 110)
        feed(reference, 100, 110)
        assert same(memory, reference)


def test_goes_on_in_another_process_s_place(policy: type[Memory], tmp_path: Path) -> None:
    memory, reference = policy(CAPACITY, path=tmp_path / "samples"), policy(CAPACITY)
    feed(memory, 0, 20)
    feed(reference, 0, 20)
    write_state(tmp_path / "state", memory.state_dict())
    feed(memory, 20, 37)  # lost
    memory.close()
    again = policy(CAPACITY, path=tmp_path / "samples")
    again.load_state_dict(read_state(tmp_path / "state"))
    assert same(again, reference)
    feed(again, 20, 50)
    feed(reference, 20, 50)
    assert same(again, reference)


def test_state_refers_to_the_samples_and_does_not_copy_them(mapped: ReservoirMemory, tmp_path: Path) -> None:
    x = torch.zeros(CAPACITY, 10_000)
    mapped.add(x, torch.zeros(CAPACITY, dtype=torch.long))
    write_state(tmp_path / "state", mapped.state_dict())
    assert (tmp_path / "state").stat().st_size < x.nbytes / 50


def test_a_state_without_news_needs_no_new_journal(mapped: ReservoirMemory, tmp_path: Path) -> None:
    feed(mapped, 0, 10)
    assert mapped.state_dict()["file"]["generation"] == mapped.state_dict()["file"]["generation"]
    assert len(list(tmp_path.glob("*.undo"))) == 1


def test_a_confirmed_state_frees_the_older_ones(mapped: ReservoirMemory, tmp_path: Path) -> None:
    feed(mapped, 0, 10)
    old = mapped.state_dict()
    feed(mapped, 10, 20)
    new = mapped.state_dict()
    mapped.confirm(new)
    assert [path.name for path in tmp_path.glob("*.undo")] == [f"samples.{new['file']['generation']}.undo"]
    with pytest.raises(CheckpointError, match="cannot go back to checkpoint 1"):
        mapped.load_state_dict(old)
    mapped.load_state_dict(new)


def test_a_closed_memory_writes_nowhere(mapped: ReservoirMemory, tmp_path: Path) -> None:
    """Its descriptor may be that of another file by now."""
    feed(mapped, 0, 10)
    state = mapped.state_dict()
    mapped.close()
    others = [open(tmp_path / f"other {number}", "w+b") for number in range(20)]  # noqa: SIM115
    mapped.confirm(state)
    for other in others:
        other.close()
    assert all((tmp_path / f"other {number}").stat().st_size == 0 for number in range(20))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not list what is open")
def test_a_closed_memory_has_nothing_open_or_mapped(mapped: ReservoirMemory, tmp_path: Path) -> None:
    def opened() -> int:
        links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return [os.readlink(link) for link in links if link.exists()].count(str(tmp_path / "samples"))

    feed(mapped, 0, 10)
    assert opened() > 0
    mapped.close()
    assert opened() == 0
    assert str(tmp_path / "samples") not in Path("/proc/self/maps").read_text("utf-8")


CLOSED: dict[str, Callable[[Memory], Any]] = {
    "add": lambda memory: feed(memory, 10, 11),
    "keep": lambda memory: memory.keep(Batch(*samples(10)), {}),
    "check": lambda memory: memory.check(Batch(*samples(10))),
    "sample": lambda memory: memory.sample(2),
    "get": lambda memory: memory.get([0]),
    "all": lambda memory: memory.all(),
    "rewrite": lambda memory: memory.rewrite(torch.tensor([0]), samples(10)[0][:1]),
    "summary": lambda memory: memory.summary(),
    "nbytes": lambda memory: memory.nbytes,
    "forget": lambda memory: memory.forget(slots=[0]),
    "state_dict": lambda memory: memory.state_dict(),
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_closed_memory_is_refused_until_a_state_is_loaded(name: str, policy: type[Memory], tmp_path: Path) -> None:
    mapped, reference = policy(CAPACITY, path=tmp_path / "samples"), policy(CAPACITY)
    feed(mapped, 0, 10)
    feed(reference, 0, 10)
    state = mapped.state_dict()
    mapped.close()
    content = (tmp_path / "samples").read_bytes()
    with pytest.raises(InvalidInput, match=r"file .*samples is closed; load a checkpoint to go on"):
        CLOSED[name](mapped)
    assert (tmp_path / "samples").read_bytes() == content
    mapped.load_state_dict(state)
    assert same(mapped, reference)


def test_a_way_not_taken_is_refused(mapped: ReservoirMemory) -> None:
    feed(mapped, 0, 10)
    fork = mapped.state_dict()
    feed(mapped, 10, 20)
    abandoned = mapped.state_dict()
    mapped.load_state_dict(fork)
    feed(mapped, 30, 40)
    other = mapped.state_dict()
    assert other["file"]["generation"] != abandoned["file"]["generation"]
    with pytest.raises(CheckpointError, match="loaded and continued"):
        mapped.load_state_dict(abandoned)


def test_a_generation_is_never_given_twice_although_the_counter_was_lost(tmp_path: Path) -> None:
    """What a power failure may leave: journals are on the disk, the header is an earlier one."""
    path = tmp_path / "samples"
    memory = ReservoirMemory(CAPACITY, path=path)
    feed(memory, 0, 10)
    fork, header = memory.state_dict(), path.read_bytes()[:4096]
    feed(memory, 10, 20)
    abandoned = memory.state_dict()
    memory.close()
    with open(path, "r+b") as file:
        file.write(header)
    for start in (30, 50):  # the second time the journal of the abandoned state is gone, too
        again = ReservoirMemory(CAPACITY, path=path)
        again.load_state_dict(fork)
        again.close()
        again.load_state_dict(fork)
        feed(again, start, start + 10)
        assert again.state_dict()["file"]["generation"] > abandoned["file"]["generation"]
        with pytest.raises(CheckpointError, match="loaded and continued"):
            again.load_state_dict(abandoned)
        again.close()


# ---------------------------------------------------------------------------------------------------- refusals


def saved(tmp_path: Path) -> dict:
    """The state of a memory at tmp_path/samples whose samples were changed since."""
    memory = ReservoirMemory(CAPACITY, path=tmp_path / "samples")
    feed(memory, 0, 12)
    state = memory.state_dict()
    memory.confirm(state)
    feed(memory, 12, 30)
    memory.close()
    return state


def refused(tmp_path: Path, state: dict, words: str) -> None:
    memory = ReservoirMemory(CAPACITY, path=tmp_path / "samples")
    with pytest.raises(CheckpointError, match=words):
        memory.load_state_dict(state)
    assert len(memory) == 0
    assert memory.seen == 0


def test_missing_file(tmp_path: Path) -> None:
    state = saved(tmp_path)
    (tmp_path / "samples").rename(tmp_path / "elsewhere")
    refused(tmp_path, state, "is missing")


def test_missing_journal(tmp_path: Path) -> None:
    state = saved(tmp_path)
    (tmp_path / "samples.1.undo").unlink()
    refused(tmp_path, state, "cannot go back")


def test_foreign_file(tmp_path: Path) -> None:
    state = saved(tmp_path)
    (tmp_path / "samples").write_bytes(b"something else entirely" * 1000)
    refused(tmp_path, state, "not a file of a memory's samples")


def test_samples_of_another_memory(tmp_path: Path) -> None:
    state = saved(tmp_path)
    for path in list(tmp_path.iterdir()):
        path.unlink()
    saved(tmp_path)
    refused(tmp_path, state, "another memory")


def test_newer_version(tmp_path: Path) -> None:
    state = saved(tmp_path)
    with open(tmp_path / "samples", "r+b") as file:
        file.seek(8)
        file.write((99).to_bytes(4, "little"))
    refused(tmp_path, state, "newer")


def test_truncated_file(tmp_path: Path) -> None:
    state = saved(tmp_path)
    os.truncate(tmp_path / "samples", 4096 + 100)
    refused(tmp_path, state, "bytes")


def test_every_flipped_bit_of_a_sample_that_matters_is_found(tmp_path: Path) -> None:
    """One bit in each of many places of file and journal: either it does not matter, or it is refused."""
    state = saved(tmp_path)
    memory = ReservoirMemory(CAPACITY, path=tmp_path / "samples")
    before = {path: path.read_bytes() for path in (tmp_path / "samples", tmp_path / "samples.1.undo")}
    memory.load_state_dict(state)
    right = memory.all()
    memory.close()
    refusals = 0
    generator = torch.Generator().manual_seed(0)
    for path, content in before.items():
        for bit in torch.randint(0, 8 * len(content), (150,), generator=generator).tolist():
            for other, whole in before.items():
                other.write_bytes(whole)
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            memory = ReservoirMemory(CAPACITY, path=tmp_path / "samples")
            try:
                memory.load_state_dict(state)
                held = memory.all()
                assert torch.equal(held.x, right.x)
                assert torch.equal(held.y, right.y)
                assert torch.equal(held.columns["id"], right.columns["id"])
            except CheckpointError:
                refusals += 1
                assert len(memory) == 0
            memory.close()
    assert refusals > 100


def test_a_record_cut_off_by_a_crash_does_not_count(tmp_path: Path) -> None:
    state = saved(tmp_path)
    with open(tmp_path / "samples.1.undo", "ab") as file:
        file.write(b"\x01\x00\x00\x00half a record")
    memory = ReservoirMemory(CAPACITY, path=tmp_path / "samples")
    memory.load_state_dict(state)
    reference = ReservoirMemory(CAPACITY)
    feed(reference, 0, 12)
    assert same(memory, reference)


def test_mapped_and_unmapped_do_not_mix(mapped: ReservoirMemory, tmp_path: Path) -> None:
    in_ram = ReservoirMemory(CAPACITY)
    feed(in_ram, 0, 3)
    feed(mapped, 0, 3)
    with pytest.raises(CheckpointError, match="keeps them in its file"):
        mapped.load_state_dict(in_ram.state_dict())
    with pytest.raises(CheckpointError, match="keeps them in the checkpoint"):
        in_ram.load_state_dict(mapped.state_dict())


def test_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    saved(tmp_path)
    content = (tmp_path / "samples").read_bytes()
    memory = ReservoirMemory(CAPACITY, path=tmp_path / "samples")
    with pytest.raises(InvalidInput, match="an earlier run"):
        feed(memory, 0, 1)
    assert (tmp_path / "samples").read_bytes() == content


@pytest.mark.parametrize("states", [0, 2])
def test_a_run_that_left_no_checkpoint_is_begun_anew(tmp_path: Path, states: int) -> None:
    memory = ReservoirMemory(CAPACITY, path=tmp_path / "samples")
    feed(memory, 0, 5)
    for number in range(states):  # taken, but never confirmed to be written: killed before that
        memory.state_dict()
        feed(memory, 5 + number, 6 + number)
    memory.close()
    again, reference = ReservoirMemory(CAPACITY, path=tmp_path / "samples"), ReservoirMemory(CAPACITY)
    feed(again, 0, 5)
    feed(reference, 0, 5)
    assert same(again, reference)


def test_one_memory_at_a_time(mapped: ReservoirMemory, tmp_path: Path) -> None:
    feed(mapped, 0, 1)
    with pytest.raises(InvalidInput, match="in use"):
        feed(ReservoirMemory(CAPACITY, path=tmp_path / "samples"), 0, 1)


def test_no_room_no_directory_no_copy(mapped: ReservoirMemory, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no directory"):
        feed(ReservoirMemory(CAPACITY, path=tmp_path / "missing" / "samples"), 0, 1)
    with pytest.raises(InvalidInput, match="cannot create"):
        feed(_huge(tmp_path), 0, 1)
    feed(mapped, 0, 1)
    with pytest.raises(InvalidType, match=r"rehearse\.save"):
        copy.deepcopy(mapped)


def _huge(tmp_path: Path) -> ReservoirMemory:
    memory = ReservoirMemory(10, path=tmp_path / "huge")
    assert memory._rows.file is not None
    memory._rows.file.capacity = 10**15  # the tables of so many slots would not fit either
    return memory


# -------------------------------------------------------------------------------------------------- forgetting


def marked(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of one unmistakable value."""
    return torch.full((4, 16), number, dtype=torch.uint8), torch.full((4,), number)


def on_disk(tmp_path: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))


@pytest.mark.parametrize("by", ["ids", "predicate"])
def test_forgotten_bytes_are_gone_from_file_and_journals(tmp_path: Path, by: str) -> None:
    memory = RingMemory(8, path=tmp_path / "samples")
    for number in (101, 102):
        memory.add(*marked(number), id=[f"user {number}"] * 4)
    state = memory.state_dict()
    memory.add(*marked(103), id=["user 103"] * 4)  # the samples of 101 are in the journal now, those of 102 in the file
    assert bytes([101] * 16) in on_disk(tmp_path)
    for number in (101, 102):
        if by == "ids":
            assert memory.forget(ids=[f"user {number}"]) == (0 if number == 101 else 4)
        else:
            memory.forget(predicate=lambda samples, number=number: samples.y == number)
    assert bytes([101] * 16) not in on_disk(tmp_path)
    assert bytes([102] * 16) not in on_disk(tmp_path)
    assert memory.all().y.tolist() == [103] * 4
    for _ in range(2):  # going back does not bring them back, however often
        memory.load_state_dict(state)
        assert len(memory) == 0
        memory.close()
        memory = RingMemory(8, path=tmp_path / "samples")
    memory.load_state_dict(state)
    memory.add(*marked(104), id=range(4))
    assert memory.all().y.tolist() == [104] * 4


def test_forgetting_by_slot_survives_going_back(mapped: ReservoirMemory) -> None:
    feed(mapped, 0, 20)
    first = mapped.state_dict()
    feed(mapped, 20, 22)
    second = mapped.state_dict()
    held = mapped.all().columns["id"].tolist()
    victims = held[:5]
    mapped.forget(slots=mapped.all().slots[:5])
    mapped.load_state_dict(second)
    assert set(mapped.all().columns["id"].tolist()) == set(held) - set(victims)
    mapped.load_state_dict(first)
    assert not set(victims) & set(mapped.all().columns["id"].tolist())
    feed(mapped, 20, 60)
    third = mapped.state_dict()
    feed(mapped, 60, 70)
    mapped.load_state_dict(third)


def failing(*arguments: object, **options: object) -> int:
    raise OSError(errno.EIO, "Input/output error")


def test_forgetting_by_slot_is_repeated_after_the_disk_refused_it(
    mapped: ReservoirMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(mapped, 0, 4)
    state, doomed = mapped.state_dict(), mapped.slots()[:3]
    contents = [row.numpy().tobytes() for row in mapped.get(doomed).x]
    with monkeypatch.context() as disk:
        disk.setattr("rehearse.memory.mapped.journal.append", failing)
        with pytest.raises(CheckpointError, match="were not overwritten"):
            mapped.forget(slots=doomed)
    assert mapped.forget(slots=doomed) == 3
    assert not any(content in path.read_bytes() for path in tmp_path.iterdir() for content in contents)
    mapped.load_state_dict(state)
    assert not set(mapped.slots().tolist()) & set(doomed.tolist())


@pytest.mark.parametrize(
    "name", ["file.write_at", "file.flush", "file.remove", "journal.append", "journal.replace_file"]
)
def test_going_back_is_repeated_after_the_disk_refused_it(
    name: str, mapped: ReservoirMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = ReservoirMemory(CAPACITY)
    for memory in (mapped, reference):
        feed(memory, 0, 10)
    state = mapped.state_dict()
    feed(mapped, 10, 20)
    mapped.state_dict()  # a later journal, which goes
    with monkeypatch.context() as disk:
        disk.setattr(f"rehearse.memory.mapped.{name}", failing)
        with pytest.raises(CheckpointError, match="Input/output error"):
            mapped.load_state_dict(state)
    mapped.load_state_dict(state)
    for memory in (mapped, reference):
        feed(memory, 20, 30)
    assert same(mapped, reference)


def test_a_journal_that_is_gone_is_not_made_anew_without_its_beginning(mapped: ReservoirMemory, tmp_path: Path) -> None:
    feed(mapped, 0, 5)
    mapped.state_dict()
    (journal,) = tmp_path.glob("*.undo")
    journal.unlink()
    with pytest.raises(CheckpointError, match="cannot write"):
        mapped.forget(slots=mapped.slots()[:1])
    assert not journal.exists()


# ----------------------------------------------------------------------------------------------------- learners


def learner(path: Path | None) -> Replay:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(15, 8), nn.ReLU(), nn.Linear(8, 4))
    return Replay(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), ReservoirMemory(CAPACITY, path=path)
    )


def test_a_learner_with_a_mapped_memory_goes_on_bit_for_bit(tmp_path: Path) -> None:
    one, other = learner(tmp_path / "samples"), learner(None)
    for number in range(12):
        one.observe(*samples(number))
        other.observe(*samples(number))
    rehearse.save(one, tmp_path / "checkpoint")
    for number in range(50, 60):
        one.observe(*samples(number))
    one.memory.close()
    one = learner(tmp_path / "samples")
    rehearse.load(tmp_path / "checkpoint", into=one)
    for number in range(12, 24):
        assert one.observe(*samples(number)).incoming_loss == other.observe(*samples(number)).incoming_loss
    for mine, reference in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, reference)


def test_a_learner_with_a_closed_memory_is_not_saved_and_can_be_loaded(tmp_path: Path) -> None:
    one, other = learner(tmp_path / "samples"), learner(tmp_path / "others")
    for number in range(4):
        one.observe(*samples(number))
        other.observe(*samples(number + 4))
    rehearse.save(one, tmp_path / "checkpoint")
    rehearse.save(other, tmp_path / "foreign")
    content, held, weights = (tmp_path / "checkpoint").read_bytes(), one.memory.all(), picture(one)
    one.memory.close()
    for call in (
        lambda: rehearse.save(one, tmp_path / "checkpoint"),
        lambda: one.observe(*samples(4)),
        lambda: rehearse.load(tmp_path / "foreign", into=one),  # refused, and leaves the memory closed
        lambda: one.observe(*samples(4)),
    ):
        with pytest.raises((InvalidInput, CheckpointError), match=r"is closed|another memory"):
            call()
        assert_same(picture(one), weights)
    assert (tmp_path / "checkpoint").read_bytes() == content
    rehearse.load(tmp_path / "checkpoint", into=one)
    assert torch.equal(one.memory.all().x, held.x)


def test_a_learner_that_was_restored_in_part_is_refused_until_it_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = learner(tmp_path / "samples")
    for number in range(4):
        one.observe(*samples(number))
    state = one.state_dict()
    for number in range(4, 8):
        one.observe(*samples(number))
    one.state_dict()  # so that the load itself is what meets the fault
    with monkeypatch.context() as disk:
        disk.setattr("rehearse.memory.mapped.file.write_at", failing)
        with pytest.raises(CheckpointError, match="Input/output error"):
            one.load_state_dict(state)
    for call in (one.state_dict, one.memory.all, lambda: one.observe(*samples(8))):
        with pytest.raises(InvalidInput, match="load a checkpoint"):
            call()
    one.load_state_dict(state)
    assert_same(one.state_dict(), state)
    one.memory.close()


def test_a_journal_that_cannot_be_written_is_a_checkpoint_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = learner(tmp_path / "samples")
    one.observe(*samples(0))
    rehearse.save(one, tmp_path / "checkpoint")
    one.observe(*samples(1))

    def full(path: Path, *parts: bytes, mode: int = 0o666) -> None:
        raise OSError(errno.ENOSPC, "no space left on the disk")

    with monkeypatch.context() as disk:
        disk.setattr("rehearse.memory.mapped.journal.replace_file", full)
        for call in (
            lambda: rehearse.save(one, tmp_path / "other"),
            lambda: rehearse.load(tmp_path / "checkpoint", into=one),
        ):
            with pytest.raises(CheckpointError, match=r"cannot write .* or its journal: no space left"):
                call()
    assert not (tmp_path / "other").exists()
    rehearse.load(tmp_path / "checkpoint", into=one)
    assert one.memory.seen == 8


REFUSALS = {
    "no room for the file": ("file.replace_file", errno.ENOSPC, 0),
    "a read-only directory": ("file.replace_file", errno.EROFS, 0),
    "no room for the journal": ("journal.append", errno.ENOSPC, 7),
    "a row that cannot be written": ("file.write_at", errno.EIO, 7),
}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_batch_that_the_disk_refuses_changes_nothing_and_is_learned_once(
    tmp_path: Path, refusal: str, momentum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, the count of samples and both generators had moved, and each retry took one more step."""
    name, number, at = REFUSALS[refusal]
    monkeypatch.setattr("rehearse.memory.mapped.file.RESIDENT", -1)  # every batch is written out at once
    one, reference = learner(tmp_path / "samples"), learner(None)
    for each in (one, reference):
        each.optimizer.param_groups[0]["momentum"] = momentum
        for position in range(at):
            each.observe(*samples(position))
    if at:
        rehearse.save(one, tmp_path / "checkpoint")  # what is overwritten from now on is journaled

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    before, world = contents(one), torch.get_rng_state()
    with monkeypatch.context() as disk:
        disk.setattr(f"rehearse.memory.mapped.{name}", refuse)
        for _ in range(2):
            with pytest.raises((InvalidInput, CheckpointError), match=os.strerror(number)):
                one.observe(*samples(at))
            assert_same(contents(one), before)
    assert torch.equal(torch.get_rng_state(), world)
    for position in range(at, at + 4):
        assert one.observe(*samples(position)).incoming_loss == reference.observe(*samples(position)).incoming_loss
    assert_same(contents(one), contents(reference))
    one.memory.close()


def contents(one: Replay) -> dict[str, Any]:
    """What the learner holds, the samples included, wherever they are."""
    memory = one.memory
    held = memory.all() if len(memory) else None
    return {
        "network": network_state(one.network),
        "random": one.network.random.get(),
        "progress": tuple(one.progress),
        "seen": memory.seen,
        "generators": [str(part.bit_generator.state) for part in (memory._insertion, memory._sampling)],
        "samples": None if held is None else (held.slots, held.x, held.y, held.task),
    }


def picture(one: Replay) -> dict[str, Any]:
    return {name: value.clone() for name, value in one.model.state_dict().items()} | {"seen": one.memory.seen}


def test_a_refused_checkpoint_leaves_the_learner_as_it_was(tmp_path: Path) -> None:
    one = learner(tmp_path / "samples")
    one.observe(*samples(0))
    rehearse.save(one, tmp_path / "checkpoint")
    one.memory.close()
    (tmp_path / "samples").unlink()
    other = learner(tmp_path / "samples")
    weights = {name: value.clone() for name, value in other.model.state_dict().items()}
    with pytest.raises(CheckpointError, match="a file of their own"):
        rehearse.load(tmp_path / "checkpoint", into=other)
    for name, value in other.model.state_dict().items():
        assert torch.equal(value, weights[name])
    (tmp_path / "samples.1.undo").unlink()
    other.observe(*samples(0))


def test_uniform_replay_from_a_file(tmp_path: Path) -> None:
    model = nn.Linear(15, 4)
    one = Replay(
        nn.Sequential(nn.Flatten(), model),
        torch.optim.SGD(model.parameters(), lr=0.1),
        ClassBalancedMemory(CAPACITY, path=tmp_path / "samples"),
        Uniform(),
    )
    for number in range(10):
        step = one.observe(*samples(number))
    assert step.replayed is not None
    assert len(step.replayed) == 10
