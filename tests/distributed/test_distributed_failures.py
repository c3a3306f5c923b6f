"""A rank that refuses, is interrupted or is killed: the others neither hang nor learn."""

from __future__ import annotations

import copy
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from processes import ended, in_ranks, start
from rank_learners import batch, learner, network, weights
from torch import nn

import rehearse
from rehearse import (
    ClassBalancedMemory,
    MostInterfered,
    Padding,
    ReservoirMemory,
    RunningScaler,
    TaskRingMemory,
    Uniform,
)
from rehearse.checkpoint import read_state, write_state
from rehearse.errors import CheckpointError, InvalidInput, InvalidType, RankLost, RehearseError
from rehearse.retrieval import Retrieved
from sameness import differences

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


class Failing(Uniform):
    """Fails when it is told to, after some ranks have summed a gradient."""

    needs_gradient = True
    now = False

    def __call__(self, *arguments: Any) -> Retrieved:
        if self.now:
            raise RuntimeError("no")
        return super().__call__(*arguments)


def bad_calls(made: Any, retrieval: Failing) -> dict[str, Any]:
    x, y = batch(1, 50)

    def with_retrieval() -> None:
        retrieval.now = True
        try:
            made.observe(x, y)
        finally:
            retrieval.now = False

    return {
        "empty": lambda: made.observe(x[:0], y[:0]),
        "not finite": lambda: made.observe(x * torch.nan, y),
        "another shape": lambda: made.observe(x[:, :3], y),
        "a label too high": lambda: made.observe(x, y + 4),
        "a dtype that the memory refuses": lambda: made.observe(x.double(), y),
        "a column that the others lack": lambda: made.observe(x, y, spare=y),
        "the retrieval": with_retrieval,
    }


def refusing(rank: int, memory: Any) -> list[Any]:
    """Every third step one of the ranks refuses, in turn; returns what each said, what differs, and the weights."""
    retrieval = Failing()
    made, said = learner(rank, memory=memory(40, seed=1), retrieval=retrieval), []
    calls = list(bad_calls(made, retrieval).items())
    for step in range(4):
        made.observe(*batch(rank, step))
    for number, (what, call) in enumerate(calls):
        before = made.state_dict()
        try:
            call() if rank == number % 2 else made.observe(*batch(rank, 100 + number))
            said.append((what, "learned"))
        except RehearseError as problem:
            said.append((what, f"{type(problem).__name__}: {problem}", differences(before, made.state_dict())))
        made.observe(*batch(rank, 10 + number))
    return [said, weights(made).numpy(), made.samples_observed]


def without_refusals(rank: int, memory: Any) -> np.ndarray:
    made = learner(rank, memory=memory(40, seed=1), retrieval=Failing())
    for step in (*range(4), *range(10, 17)):
        made.observe(*batch(rank, step))
    return weights(made).numpy()


@pytest.mark.parametrize("memory", [ReservoirMemory, ClassBalancedMemory])
def test_a_batch_that_one_rank_refuses_is_refused_by_all_and_changes_nothing(memory):
    found = in_ranks(refusing, 2, memory)
    for number, pair in enumerate(zip(found[0][0], found[1][0], strict=True)):
        own, other = pair if number % 2 == 0 else pair[::-1]
        assert own[1].startswith("InvalidInput: "), own
        assert other[1] == f"RefusedElsewhere: nothing was done by any rank: see the error of rank {number % 2}"
        assert own[2] == other[2] == []
    assert (found[0][1] == found[1][1]).all()
    assert (found[0][1] == in_ranks(without_refusals, 2, memory)[0]).all()


def unevenly(rank: int) -> list[Any]:
    made, count = learner(rank), 0
    for x, y in made.ranks.in_step(batch(rank, step) for step in range(5 + 3 * rank)):
        made.observe(x, y)
        count += 1
    return [count, weights(made)]


def test_ranks_stop_together_when_one_has_no_more_data():
    found = in_ranks(unevenly, 3)
    assert [count for count, _ in found] == [5, 5, 5]
    assert all(torch.equal(found[0][1], other) for _, other in found)


def broken_stream(rank: int) -> str:
    def batches():
        yield batch(rank, 0)
        if rank:
            raise OSError("no disk")
        yield batch(rank, 1)

    made = learner(rank)
    try:
        for x, y in made.ranks.in_step(batches()):
            made.observe(x, y)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return "done"


def test_a_stream_that_fails_on_one_rank_stops_all():
    own = "RefusedElsewhere: nothing was done by any rank: see the error of rank 1"
    assert in_ranks(broken_stream, 2) == [own, "OSError: no disk"]


def out_of_step(rank: int) -> str:
    made = learner(rank)
    made.observe(*batch(rank, 0))
    try:
        if rank:
            rehearse.save(made, "/nonexistent/learner")
        else:
            made.observe(*batch(rank, 1))
    except RehearseError as problem:
        return f"{type(problem).__name__}: {problem}"
    return "done"


def test_ranks_that_do_different_things_say_so():
    for said in in_ranks(out_of_step, 2):
        assert said.startswith("RankLost: the ranks are not at the same point: rank 0 takes part in a gradient, rank 1")


class Interrupting(nn.Module):
    def __init__(self, inner: nn.Module, at: int) -> None:
        super().__init__()
        self.inner, self.at, self.calls = inner, at, [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls[0] += self.training
        if self.calls[0] == self.at:
            raise KeyboardInterrupt
        return self.inner(x)


def interrupted(rank: int, at: int) -> list[Any]:
    made = learner(0, Interrupting(network(), at if rank else 0))
    said, started = [], time.monotonic()
    for step in range(20):
        before = made.state_dict()
        try:
            made.observe(*batch(rank, step), task=step)
        except (RehearseError, KeyboardInterrupt) as problem:
            said.append((type(problem).__name__, differences(before, made.state_dict())))
            if len(said) == 2:
                return [said, time.monotonic() - started]
            if rank:
                dist.destroy_process_group()  # or the process ends
    return [said]


@pytest.mark.parametrize("at", [11, 12])
def test_an_interrupted_rank_is_restored_and_the_others_stop(at):
    (others, waited), (own, _) = in_ranks(interrupted, 2, at)
    assert others == [("RankLost", []), ("RankLost", [])]
    assert own == [("KeyboardInterrupt", []), ("RankLost", [])]
    assert waited < 15


def silent(rank: int) -> str:
    made = learner(rank)
    made.observe(*batch(rank, 0))
    if rank:
        time.sleep(5)
        return "slept"
    try:
        made.observe(*batch(rank, 1))
    except RankLost as problem:
        return str(problem)
    return "done"


def test_the_others_wait_no_longer_than_the_timeout_of_the_group():
    started = time.monotonic()
    first, second = (one.value for one in ended(start(silent, 2, timeout=2)))
    assert "has stopped, or did not answer in time; restart all ranks from their last save" in first
    assert second == "slept"
    assert time.monotonic() - started < 30


# ------------------------------------------------------------------------------------------------- saving and kills


def observing(rank: int, folder: str, steps: int, every: int) -> np.ndarray:
    """Resume from the last save, learn the rest of the stream, and save now and then."""
    made, path = learner(rank), Path(folder) / "learner"
    if path.exists():
        rehearse.load(path, into=made)
    for step in range(made.progress.steps, steps):
        made.observe(*batch(rank, step), task=step // 20)
        if step % every == every - 1:
            rehearse.save(made, path)
    return np.concatenate([weights(made).numpy(), [made.memory.seen], made.memory.slots().numpy()])


def test_a_save_resumes_bit_for_bit(tmp_path):
    whole = in_ranks(observing, 2, str(tmp_path / "none"), 30, 1000)
    in_ranks(observing, 2, str(tmp_path), 12, 6)
    assert sorted(path.name.count(".") for path in tmp_path.iterdir()) == [0, 2, 2]  # earlier files are removed
    resumed = in_ranks(observing, 2, str(tmp_path), 30, 1000)
    assert all((one == other).all() for one, other in zip(whole, resumed, strict=True))


def test_killed_ranks_leave_a_save_that_resumes_as_if_nothing_had_happened(tmp_path):
    whole = in_ranks(observing, 2, str(tmp_path / "none"), 50, 1000)
    random, kills = np.random.default_rng(0), 0
    for _ in range(3):
        children, victim = start(observing, 2, str(tmp_path), 50, 4), int(random.integers(2))
        time.sleep(random.uniform(0.15, 0.7))
        os.kill(children[victim][0], signal.SIGKILL)
        waiting = time.monotonic()
        found = ended(children)
        assert time.monotonic() - waiting < 15
        if found[victim].signal == signal.SIGKILL:  # it had not finished, nor has the other then
            kills += 1
            assert found[1 - victim].kind in {"RankLost", "DistNetworkError", "RuntimeError"}, found
    resumed = in_ranks(observing, 2, str(tmp_path), 50, 4)
    assert all((one == other).all() for one, other in zip(whole, resumed, strict=True))
    assert kills


def held_after(rank: int, path: str) -> list[Any]:
    made = learner(rank)
    with pytest.warns(UserWarning, match="was saved by 2 and is loaded by 3 ranks: its samples are divided anew"):
        rehearse.load(path, into=made)
    held, slots = made.memory.all(), made.memory.slots()
    found = [slots, held.x, made.memory.fact("best_loss", slots, torch.inf), weights(made), made.samples_observed]
    made.observe(*batch(rank, 70))
    return [*found, weights(made)]


def test_another_number_of_ranks_divides_the_memory(tmp_path):
    path = str(tmp_path / "learner")
    saved = in_ranks(observing, 2, str(tmp_path), 24, 24)
    shards = in_ranks(held_after, 3, path)
    alone = learner(5, distributed=False)
    with pytest.warns(UserWarning, match="was saved by 2 and is loaded by one process"):
        rehearse.load(path, into=alone)
    slots = torch.cat([shard[0] for shard in shards])
    order = slots.argsort()
    assert slots[order].tolist() == alone.memory.slots().tolist()
    assert max(len(shard[0]) for shard in shards) - min(len(shard[0]) for shard in shards) <= 1
    assert torch.equal(torch.cat([shard[1] for shard in shards])[order], alone.memory.all().x)
    best = alone.memory.fact("best_loss", alone.memory.slots(), torch.inf)
    assert torch.equal(torch.cat([shard[2] for shard in shards])[order], best)
    assert best.isfinite().any()
    assert sum(shard[4] for shard in shards) == alone.samples_observed == saved[0][len(weights(alone))]
    assert (weights(alone).numpy() == saved[0][: len(weights(alone))]).all()
    assert all(torch.equal(shard[5], shards[0][5]) for shard in shards)
    rehearse.save(alone, path)
    assert os.listdir(tmp_path) == ["learner"]  # the files of the ranks are removed


def failing_save(rank: int, folder: str) -> list[Any]:
    made, path = learner(rank), Path(folder) / "learner"
    made.observe(*batch(rank, 0))
    rehearse.save(made, path)
    before = weights(made).clone()
    made.observe(*batch(rank, 1))
    said = "saved"
    if rank:
        made.state_dict = lambda: {"an object": object()}
    try:
        rehearse.save(made, path)
    except RehearseError as problem:
        said = type(problem).__name__
    if rank:
        del made.state_dict
    rehearse.load(path, into=made)
    return [said, torch.equal(weights(made), before)]


def test_a_save_that_fails_on_one_rank_leaves_the_last_one(tmp_path):
    assert in_ranks(failing_save, 2, str(tmp_path)) == [["RefusedElsewhere", True], ["InvalidType", True]]


def failing_load(rank: int, folder: str) -> list[Any]:
    made, path = learner(rank), Path(folder) / "learner"
    made.observe(*batch(rank, 0))
    rehearse.save(made, path)
    made.observe(*batch(rank, 1))
    before = made.state_dict()
    if rank:
        next(Path(folder).glob("learner.*.1")).write_bytes(b"nothing")
    dist.barrier()
    with pytest.raises(CheckpointError) as raised:
        rehearse.load(path, into=made)
    changed = differences(before, made.state_dict())
    made.observe(*batch(rank, 2))
    return [str(raised.value), changed]


def test_a_load_that_fails_on_one_rank_changes_none(tmp_path):
    (first, *changed), (second, *too) = in_ranks(failing_load, 2, str(tmp_path))
    assert "see the error of rank 1" in first
    assert "was not written by rehearse" in second
    assert changed == too == [[]]


def loading_while_another_learns(rank: int, folder: str) -> list[Any]:
    made, path = learner(rank), Path(folder) / "learner"
    made.observe(*batch(rank, 0))
    rehearse.save(made, path)
    with pytest.raises(RankLost) as raised:
        made.observe(*batch(rank, 1)) if rank else rehearse.load(path, into=made)
    return [str(raised.value), made.ranks.steps]


def test_a_load_that_not_all_ranks_take_part_in_says_that_they_are_out_of_step(tmp_path):
    for said, steps in in_ranks(loading_while_another_learns, 2, str(tmp_path)):
        assert said.startswith("the ranks are not at the same point: rank 0 takes part in a comparison, rank 1")
        assert steps == 1


def altered(state: Any, *keys: str, value: Any = None) -> Any:
    """A copy of a state in which one part is another, or is missing."""
    whole = part = copy.deepcopy(state)
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    if value is None:
        del part[keys[-1]]
    return whole


def test_files_of_ranks_that_do_not_fit_together_are_refused_and_change_nothing(tmp_path):
    made = learner(0, distributed=False)
    made.observe(*batch(0, 0))
    rehearse.save(learner(0, distributed=False), tmp_path / "empty")
    rehearse.save(made, tmp_path / "all.0")
    saved, before = read_state(tmp_path / "all.0"), made.state_dict()
    facts = {"best_loss": (0.0, torch.zeros(0))}
    firsts = {
        "no progress": altered(saved, "state", "progress"),
        "a short progress": altered(saved, "state", "progress", value=(0,)),
        "no index": altered(saved, "state", "memory", "index"),
        "no columns": altered(saved, "state", "memory", "columns", value={}),
        "a memory that is a list": altered(saved, "state", "memory", value=[1]),
        "nothing of its own": altered(saved, "state", "own", value=[]),
        "short facts": altered(saved, "state", "memory", "facts", value=facts),
        "another learner": altered(saved, "state", "learner", value="GEM"),
    }
    manifests = {"no file": [], "an empty name": [""], "itself": ["all"], "a file twice": ["all.0", "all.0"]}
    cases = [(what, ["all.1", "empty"], first) for what, first in firsts.items()]
    cases += [(what, names, saved) for what, names in manifests.items()]
    for what, names, first in [*cases, ("the same slots", ["all.1", "all.0"], saved)]:
        write_state(tmp_path / "all", {"content": "files of ranks", "files": names})
        write_state(tmp_path / "all.1", first)
        with pytest.raises(CheckpointError) as raised:
            rehearse.load(tmp_path / "all", into=made)
        said = {"another learner": "the state is of a GEM", "the same slots": "is held twice"}
        named = "is a file of rehearse, but no saved" if what == "itself" else "does not name the files"
        unfit = "the files of the ranks do not fit together"
        assert said.get(what, named if what in manifests else unfit) in str(raised.value), what
        assert differences(before, made.state_dict()) == [], what


# ---------------------------------------------------------------------------------------------------------- refusals


def seeded(seed: int) -> Any:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return rehearse.Replay(model, optimizer, ReservoirMemory(40), seed=seed, distributed=True)


def frozen_if(frozen: int) -> nn.Module:
    model = network(False)
    model[0].requires_grad_(not frozen)
    return model


class Own(rehearse.Replay):
    """Passes on whatever it is given."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)


def refusals(rank: int) -> list[str]:
    class Sharded(nn.Linear):
        pass

    Sharded.__name__ = "FSDPModule"

    def remembering_after_a_refusal() -> None:
        retrieval = Failing()
        made = learner(0, retrieval=retrieval)
        made.observe(*batch(rank, 0))
        retrieval.now = True
        with pytest.raises(InvalidInput):  # after the ranks have said how many samples arrive
            made.observe(*batch(rank, 1))
        made.remember([batch(rank, 2)])

    sync = nn.Sequential(nn.Linear(6, 4), nn.SyncBatchNorm(4))
    calls = {
        "memory": lambda: learner(0, memory=TaskRingMemory(10)),
        "prepare": lambda: learner(0, prepare=RunningScaler()),
        "joint": lambda: learner(0, batchnorm="joint"),
        "sync": lambda: learner(0, sync),
        "statistics": lambda: learner(
            0, nn.Sequential(nn.InstanceNorm1d(6, track_running_stats=True), nn.Linear(6, 4))
        ),
        "fsdp": lambda: learner(0, Sharded(6, 4)),
        "seeds": lambda: learner(0, memory=ReservoirMemory(10, seed=rank)),
        "budgets": lambda: learner(0, budget=5 + rank),
        "optimizers": lambda: learner(0, lr=0.1 + rank),
        "clips": lambda: learner(0, clip=[None, 0.1][rank]),
        "precisions": lambda: learner(0, precision=["float32", "bfloat16"][rank]),
        "prepares": lambda: learner(0, prepare=[None, torch.sin][rank]),
        "paddings": lambda: learner(0, pad=[None, Padding(6)][rank]),
        "seeds of learners": lambda: seeded(rank),
        "frozen layers": lambda: learner(0, frozen_if(rank)),
        "dtypes": lambda: learner(0, nn.Linear(6, 4, dtype=[torch.float32, torch.float64][rank])),
        "models": lambda: learner(0, nn.Sequential(nn.Linear(6, 4 + rank), nn.ReLU())),
        "remember": lambda: learner(0).remember([batch(0, 0)]),
        "remember after a step that was refused": remembering_after_a_refusal,
        "gem": lambda: rehearse.GEM(nn.Linear(6, 4), None, TaskRingMemory(10), distributed=True),
        "own": lambda: Own(nn.Linear(6, 4), None, ReservoirMemory(10), distributed=True),
        "finetune": lambda: rehearse.Finetune(nn.Linear(6, 4), None, distributed=True),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
        except (InvalidInput, InvalidType) as problem:
            said[name] = str(problem)
    return said


def test_what_is_not_distributed_is_refused_with_a_sentence():
    for said in in_ranks(refusals, 2):
        assert said["memory"].startswith("a TaskRingMemory is not shared by ranks")
        assert said["prepare"].startswith("RunningScaler learns from the inputs of its own rank")
        assert said["joint"].startswith("batchnorm='joint' is not distributed")
        assert said["sync"].startswith("SyncBatchNorm waits for ranks")
        assert said["statistics"].startswith("InstanceNorm1d keeps running statistics that are not averaged")
        assert "is sharded by FSDP" in said["fsdp"]
        different = {
            "seeds": "memories",
            "budgets": "learners",
            "optimizers": "optimizers",
            "clips": "limits of the gradient (clip)",
            "precisions": "precision",
            "prepares": "functions that prepare inputs",
            "paddings": "learners",
            "seeds of learners": "seeds",
            "frozen layers": "trained parameters",
            "dtypes": "models",
            "models": "models",
        }
        for what, named in different.items():
            assert said[what].startswith(f"the ranks have different {named}; build all of them alike"), what
        for what in ("remember", "remember after a step that was refused"):
            assert said[what].startswith("a memory that ranks share is filled by one process")
        assert said["gem"] == "GEM is not distributed over several processes; Replay can be"
        assert said["finetune"] == "Finetune is not distributed over several processes; Replay can be"
        assert said["own"].startswith("the optimizer must be")  # a method of one's own may be distributed as Replay is
        assert len(said) == 22


def built_in_vain(rank: int) -> list[Any]:
    memory, model = ReservoirMemory(10, seed=1), network(False)
    before = copy.deepcopy([memory.state_dict(), model.state_dict()])
    with pytest.raises(InvalidInput):
        learner(rank, model, memory, budget=5 + rank)
    changed = differences(before, [memory.state_dict(), model.state_dict()])
    return [changed, learner(0, network(False), memory, distributed=False).remember([batch(rank, 0)])]


def test_a_learner_that_is_refused_leaves_its_memory_and_model_as_they_were():
    assert in_ranks(built_in_vain, 2) == [[[], 2], [[], 3]]


class Counting(nn.Module):
    """Has a buffer that is moved by how often its rank passes."""

    def __init__(self, moves: bool) -> None:
        super().__init__()
        self.moves = moves
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.moves:
            self.scale += 1
        return x


def saving_buffers(rank: int, path: str) -> str:
    made = learner(0, nn.Sequential(Counting(moves=rank == 1), nn.Linear(6, 4)), retrieval=Uniform())
    made.observe(*batch(rank, 0))
    with pytest.raises(InvalidInput) as raised:
        rehearse.save(made, path)
    return str(raised.value)


def test_buffers_that_differ_between_ranks_are_found_by_a_save(tmp_path):
    for said in in_ranks(saving_buffers, 2, str(tmp_path / "learner")):
        assert said.startswith("the ranks have different weights or buffers")


def test_without_a_process_group_it_is_said_how_to_start_one():
    with pytest.raises(InvalidInput, match="distributed=True needs a process group: start the processes by torchrun"):
        learner(0, retrieval=MostInterfered())


def test_a_mapped_memory_is_not_shared(tmp_path):
    assert "is not shared by ranks" in in_ranks(mapped, 2, str(tmp_path))[0]


def mapped(rank: int, folder: str) -> str:
    with pytest.raises(InvalidInput) as raised:
        learner(0, memory=ReservoirMemory(10, path=f"{folder}/{rank}"))
    return str(raised.value)


def forgetting(rank: int) -> list[Any]:
    made = learner(rank)
    for step in range(6):
        x, y = batch(rank, step)
        made.observe(x, y, id=[f"{rank} {step} {i}" for i in range(len(y))])
    gone = made.forget(ids=[f"1 3 {i}" for i in range(2)])
    for step in range(6, 9):
        x, y = batch(rank, step)
        made.observe(x, y, id=[None] * len(y))
    found = made.diagnose(*batch(rank, 0))
    held = sorted(made.memory.slots().tolist())
    return [gone, weights(made), sorted(found.slots.tolist()), held, made.predictor().predict(x).shape == y.shape]


def test_forgetting_is_asked_of_every_rank_and_finds_the_samples_on_one():
    first, second = in_ranks(forgetting, 2)
    assert first[0] == 0
    assert 0 < second[0] <= 2
    assert torch.equal(first[1], second[1])
    for _, _, diagnosed, held, predicted in (first, second):
        assert diagnosed == held != []
        assert predicted
    assert not set(first[2]) & set(second[2])


def monitored(rank: int, folder: str) -> list[Any]:
    made = rehearse.Monitor(learner(rank), share=0.2, every=10, seed=rank)
    for step in range(8):
        made.observe(*batch(rank, step, 8))
    rehearse.save(made, f"{folder}/monitor")
    resumed = rehearse.Monitor(learner(rank), share=0.2, every=10, seed=rank)
    rehearse.load(f"{folder}/monitor", into=resumed)
    for step in range(8, 12):
        made.observe(*batch(rank, step, 8))
    dist.barrier()
    for step in range(8, 12):
        resumed.observe(*batch(rank, step, 8))
    return [weights(made.learner), weights(resumed.learner), len(made.held)]


def test_each_rank_has_a_monitor_of_its_own(tmp_path):
    (one, resumed, held), (other, *_) = in_ranks(monitored, 2, str(tmp_path))
    assert torch.equal(one, other)
    assert torch.equal(one, resumed)
    assert held
