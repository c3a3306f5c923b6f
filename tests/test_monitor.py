"""Monitor: what it withholds, what it reports, when it raises its alarm."""

from __future__ import annotations

import logging
import re
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rehearse import Finetune, Monitor, MostInterfered, Padding, Replay, ReservoirMemory, Step, load, save
from rehearse.errors import CheckpointError, InvalidInput, InvalidType
from rehearse.losses import as_loss
from sameness import assert_same, frozen

ALL = 1 - 1e-12  # a share by which every sample is withheld


def replay(capacity: int = 1000, batchnorm: bool = False) -> Replay:
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(6) if batchnorm else nn.ReLU()
    model = nn.Sequential(nn.Linear(5, 6), middle, nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Replay(model, optimizer, ReservoirMemory(capacity), MostInterfered(20))


def batch(number: int, samples: int = 10) -> tuple[Tensor, Tensor, list[int]]:
    generator = torch.Generator().manual_seed(number)
    x, y = torch.randn(samples, 5, generator=generator), torch.randint(3, (samples,), generator=generator)
    return x, y, list(range(samples * number, samples * (number + 1)))


class Told(nn.Module):
    """Predicts the class that its input names, or another one where it has been told so."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.wrong = nn.Linear(1, 4), range(0)

    def forward(self, x: Tensor) -> Tensor:
        """An input is (a number of its own, the class to predict): those whose number is in `wrong` get another one."""
        shift = torch.tensor([int(number) in self.wrong for number in x[:, 0]]).long()
        return nn.functional.one_hot((x[:, 1].long() + shift) % 4, 4).float() + 0 * self.head(x[:, :1])


def told() -> Finetune:
    model = Told()
    return Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1))


def numbered(samples: int) -> tuple[Tensor, Tensor]:
    """Samples for `Told`, all predicted right unless they are in `wrong`."""
    numbers = torch.arange(samples)
    return torch.stack([numbers, numbers % 4], dim=1).float(), numbers % 4


def blobs(classes: list[int], samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Samples around the corners of a square, in random order."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor(classes)[torch.randint(len(classes), (samples,), generator=generator)]
    corners = torch.tensor([[1.0, 1], [-1, -1], [1, -1], [-1, 1]])
    return corners[y] + 0.3 * torch.randn(samples, 2, generator=generator), y


# ------------------------------------------------------------------------------------------------------ withholding


def test_the_learner_learns_from_all_samples_but_those_held_out_and_from_nothing_else():
    watched, alone = Monitor(replay(), share=0.3, every=50), replay()
    for number in range(20):
        x, y, ids = batch(number)
        held = set(watched.held.all().columns["id"].tolist()) if number else set()
        watched.observe(x, y, id=ids)
        held = set(watched.held.all().columns["id"].tolist()) - held if len(watched.held) else set()
        kept = [place for place, name in enumerate(ids) if name not in held]
        alone.observe(x[kept], y[kept], id=[ids[place] for place in kept])
    assert_same(watched.learner.state_dict(), alone.state_dict())
    held, stored = (set(memory.all().columns["id"].tolist()) for memory in (watched.held, watched.learner.memory))
    assert 30 < len(held) < 90
    assert held | stored == set(range(200))
    assert held & stored == set()


def test_without_a_share_the_learner_is_what_it_is_without_a_monitor():
    watched, alone = Monitor(replay(), share=0.0, every=20), replay()
    for number in range(10):
        x, y, ids = batch(number)
        one, other = watched.observe(x, y, id=ids), alone.observe(x, y, id=ids)
        assert (one.incoming_loss, one.replayed_loss) == (other.incoming_loss, other.replayed_loss)
    assert_same(watched.learner.state_dict(), alone.state_dict())
    assert watched.report()["looks"] == 4
    assert watched.report()["heldout_accuracy"] is None


def test_what_a_full_reservoir_does_not_keep_is_learned():
    watched = Monitor(replay(), share=0.5, capacity=3)
    for number in range(40):
        watched.observe(*batch(number)[:2])
    assert len(watched.held) == 3
    assert watched.learner.samples_observed > 370


def test_a_batch_that_is_withheld_whole_is_no_step():
    watched = Monitor(replay(), share=ALL)
    assert watched.observe(*batch(0)[:2]) is None
    assert watched.learner.samples_observed == 0
    assert len(watched.held) == 10


def test_no_lone_sample_is_left_where_batch_norm_needs_two():
    watched = Monitor(replay(batchnorm=True), share=0.5)
    for number in range(30):
        assert watched.observe(*batch(number, 2)[:2]) is not None
    for number in range(30):
        watched.observe(*batch(number, 4)[:2])
    assert len(watched.held) > 5


def test_what_the_learner_refuses_leaves_no_trace():
    watched = Monitor(replay(), share=0.5, every=10)
    watched.observe(*batch(0)[:2])
    watched.look()
    before = frozen(watched.state_dict())
    x, y, _ = batch(1)
    with pytest.raises(InvalidInput, match="outside the model's 3 outputs"):
        watched.observe(x, y + 3)
    after = watched.state_dict()
    assert_same({name: after[name] for name in after if name != "held"}, {n: before[n] for n in before if n != "held"})
    assert_same(after["held"]["x"], before["held"]["x"])
    assert_same(after["held"]["seen"], before["held"]["seen"])


def test_other_columns_reach_the_learner_for_its_samples():
    class Weighted(Finetune):
        def observe(self, x: Any, y: Any, task: Any = None, id: Any = None, weight: Any = None) -> Step:
            assert weight.tolist() == x[:, 0].tolist()
            return super().observe(x, y, task, id)

    model = nn.Linear(5, 3)
    watched = Monitor(Weighted(model, torch.optim.SGD(model.parameters(), lr=0.1)), share=0.3, by=["site"])
    for number in range(5):
        x, y, _ = batch(number)
        assert watched.observe(x, y, weight=x[:, 0].numpy(), site=[1] * 10) is not None
    assert 0 < len(watched.held) < 50


# -------------------------------------------------------------------------------------------------------- reporting


def test_accuracy_is_reported_by_class_task_and_column():
    watched = Monitor(told(), share=ALL, by=["site"], every=1000)
    x = torch.tensor([[0, 0], [1, 0], [2, 1], [3, 1], [4, 3], [5, 2]]).float()
    y = torch.tensor([0, 1, 1, 1, 2, 2])  # predicted right: samples 0, 2, 3 and 5
    watched.observe(x[:4], y[:4], task=0, site=[7, 7, 8, 8])
    watched.observe(x[4:], y[4:], task=1, site=[8, 9])
    watched.look()
    report = watched.report()
    assert report["accuracy"] == report["recent_accuracy"] == report["heldout_accuracy"] == 4 / 6
    found = {by: {group: n["accuracy"] for group, n in groups.items()} for by, groups in report["groups"].items()}
    assert found == {"class": {0: 1.0, 1: 2 / 3, 2: 0.5}, "task": {0: 0.75, 1: 0.5}, "site": {7: 0.5, 8: 2 / 3, 9: 1.0}}
    assert {group: n["samples"] for group, n in report["groups"]["class"].items()} == {0: 1, 1: 3, 2: 2}
    assert report["heldout_bytes"] == watched.held.nbytes > 0
    assert report["memory_bytes"] == 0


def test_step_times_and_stored_bytes_are_reported():
    watched = Monitor(replay())
    assert watched.report()["step_seconds"] is None
    for number in range(5):
        watched.observe(*batch(number)[:2])
    report = watched.report()
    assert 0 < report["step_seconds"] <= report["step_seconds_p99"]
    assert report["monitor_seconds"] > 0
    assert report["memory_bytes"] == watched.learner.memory.nbytes > 0


def test_forgetting_and_its_probability_are_those_of_a_sign_test():
    raised: list[str] = []
    watched = Monitor(told(), share=ALL, every=1000, notify=lambda what, monitor: raised.append(what))
    watched.observe(*numbered(40))
    watched.look()
    assert watched.report()["forgetting"] is None  # nothing is older than one look
    watched.learner.model.wrong = range(30)
    watched.look()
    report = watched.report()
    assert report["forgetting"] == 30 / 40
    assert report["p_value"] == 2**-30 * 2 * 3 * 2  # 30 lost, none gained; second look; compared with looks 1 and 2
    assert report["alarm"]
    assert raised == ["alarm"]
    watched.look()
    assert raised == ["alarm"]  # it is raised already
    watched.learner.model.wrong = range(0)
    watched.look()
    assert not watched.report()["alarm"]
    assert watched.report()["alarms"] == 1


@pytest.mark.parametrize(("wrong", "then", "drop"), [(range(15), range(15, 30), 0.0), (range(0), range(30), 0.8)])
def test_no_alarm_where_as_many_are_gained_as_lost_or_the_fall_is_small(wrong, then, drop):
    watched = Monitor(told(), share=ALL, every=1000, drop=drop)
    watched.learner.model.wrong = wrong
    watched.observe(*numbered(40))
    watched.look()
    watched.learner.model.wrong = then
    watched.look()
    assert not watched.report()["alarm"]


def test_the_alarm_is_raised_where_a_learner_forgets_and_not_on_a_stationary_stream():
    alarms = {}
    for order, phases in {"in turn": [[0, 1], [2, 3]], "stationary": [[0, 1, 2, 3], [0, 1, 2, 3]]}.items():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 4))
        watched = Monitor(Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1)))
        for phase, classes in enumerate(phases):
            for part in zip(*(values.split(10) for values in blobs(classes, 1000, phase))):
                watched.observe(*part)
            if phase == 0:
                assert watched.report()["alarms"] == 0
        alarms[order] = watched.report()["alarms"]
    assert alarms["in turn"] > 0
    assert alarms["stationary"] == 0


def test_prometheus_can_read_the_report():
    watched = Monitor(replay(), share=0.3, every=20)
    for number in range(10):
        watched.observe(*batch(number)[:2], task=0)
    text, report = watched.prometheus(), watched.report()
    sample = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{by="([^"\\\n]*)",group="([^"\\\n]*)"\})? (\S+)')
    found, current = {}, ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert kind == "gauge"
            assert current not in {name for name, *_ in found}  # all lines of a metric are together
        else:
            name, by, group, value = sample.fullmatch(line).groups()
            assert name == current
            assert (name, by, group) not in found
            found[name, by, group] = float(value)
    assert found["rehearse_samples", None, None] == 100
    assert found["rehearse_heldout_accuracy", None, None] == report["heldout_accuracy"]
    for group, numbers in report["groups"]["class"].items():
        assert found["rehearse_group_accuracy", "class", str(group)] == numbers["accuracy"]
    assert "None" not in text


def test_logs_and_tensorboard_get_each_look(caplog):
    scalars: dict[str, list[tuple[float, int]]] = {}

    class Writer:
        def add_scalar(self, tag: str, value: float, step: int) -> None:
            scalars.setdefault(tag, []).append((value, step))

    watched = Monitor(replay(), share=0.3, every=20, writer=Writer())
    with caplog.at_level(logging.INFO, "rehearse.monitor"):
        for number in range(7):
            watched.observe(*batch(number)[:2])
    assert len(caplog.records) == 3
    assert [step for _, step in scalars["rehearse/accuracy"]] == [20, 40, 60]
    assert scalars["rehearse/heldout_accuracy"][-1][0] == watched.report()["heldout_accuracy"]
    assert "rehearse/group_accuracy/class/0" in scalars


def test_drift_detectors_are_fed_each_error_in_order(caplog):
    errors, drifts = [], []

    class Detector:
        drift_detected = False

        def update(self, error: int) -> None:
            errors.append(error)
            self.drift_detected = len(errors) == 3

    x = torch.tensor([[0, 0], [1, 1], [2, 2], [3, 3]]).float()
    y = torch.tensor([0, 2, 2, 0])
    watched = Monitor(told(), share=0.0, detector=Detector(), notify=lambda what, m: drifts.append((what, m)))
    watched.observe(x, y)
    assert errors == [0, 1, 0, 1]
    assert drifts == [("drift", watched)]
    assert watched.report()["drifts"] == 1
    called = Monitor(told(), share=0.0, detector=lambda error: error == 1)
    called.observe(x, y)
    assert called.report()["drifts"] == 2


def test_a_detector_of_river_finds_that_labels_flip():
    drift = pytest.importorskip("river.drift")
    found: list[int] = []
    watched = Monitor(
        replay(), detector=drift.ADWIN(), notify=lambda what, monitor: found.append(monitor.tally.samples)
    )
    for number in range(80):
        x, _, _ = batch(number)
        y = (x[:, 0] > 0).long()
        watched.observe(x, y if number < 60 else 1 - y)
    assert [sample for sample in found if sample > 600]  # those before are falls of the error, as the learner learns
    assert max(found) < 700


# ---------------------------------------------------------------------------------------------- deletion and state


def test_forget_also_removes_held_out_samples():
    watched = Monitor(replay(), share=0.3)
    for number in range(10):
        x, y, ids = batch(number)
        watched.observe(x, y, id=ids)
    held = watched.held.all().columns["id"].tolist()
    mine, theirs = held[0], watched.learner.memory.all().columns["id"].tolist()[0]
    assert watched.forget(ids=[mine, theirs]) == 2
    both = [*watched.held.all().columns["id"].tolist(), *watched.learner.memory.all().columns["id"].tolist()]
    assert sorted(both) == sorted(set(range(100)) - {mine, theirs})
    zeros = int((watched.held.all().y == 0).sum()) + int((watched.learner.memory.all().y == 0).sum())
    assert watched.forget(predicate=lambda samples: samples.y == 0) == zeros > 0
    assert 0 not in watched.held.all().y
    assert watched.forget(predicate=lambda samples: samples.y >= 0) == 98 - zeros
    watched.look()
    assert watched.report()["heldout_samples"] == 0


def test_samples_without_memory_can_be_forgotten_too():
    watched = Monitor(told(), share=ALL)
    watched.observe(torch.zeros(3, 2), torch.zeros(3).long(), id=["anna", "bob", "anna"])
    assert watched.forget(ids=["anna"]) == 2
    assert len(watched.held) == 1


def test_a_saved_monitor_resumes_bit_for_bit(tmp_path):
    def make() -> Monitor:
        return Monitor(replay(capacity=30), share=0.3, capacity=20, every=30, seed=3)

    whole, first, second = make(), make(), Monitor(replay(capacity=30), share=0.3, capacity=20, every=30)
    for number in range(20):
        x, y, ids = batch(number)
        whole.observe(x, y, id=ids)
        if number < 11:
            first.observe(x, y, id=ids)
            continue
        if number == 11:
            save(first, tmp_path / "monitor")
            load(tmp_path / "monitor", second)
        second.observe(x, y, id=ids)
    assert (tmp_path / "monitor").stat().st_mode & 0o777 == 0o600
    assert_same(whole.state_dict(), second.state_dict())
    times = {"step_seconds", "step_seconds_p99", "monitor_seconds"}
    one, other = ({name: n for name, n in m.report().items() if name not in times} for m in (whole, second))
    assert one == other


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(tmp_path):
    watched = Monitor(replay(), share=0.3)
    watched.observe(*batch(0)[:2])
    save(watched.learner, tmp_path / "learner")
    save(watched, tmp_path / "monitor")
    with pytest.raises(CheckpointError, match="of a Monitor"):
        load(tmp_path / "monitor", replay())
    with pytest.raises(CheckpointError, match="state of this monitor"):
        load(tmp_path / "learner", watched)
    with pytest.raises(CheckpointError, match=r"\['by'\] does not fit"):
        load(tmp_path / "monitor", Monitor(replay(), by=["site"]))
    with pytest.raises(CheckpointError, match="capacity"):
        load(tmp_path / "monitor", Monitor(replay(), capacity=5))
    before, state = frozen(watched.state_dict()), watched.state_dict()
    for damage in ({"tally": (1,) * 9}, {"recent": None}, {"monitored": {"learner": "Replay"}}, {"held": {}}):
        with pytest.raises(CheckpointError):
            watched.load_state_dict({**state, **damage})
        assert_same(watched.state_dict(), before)


def test_threads_may_share_a_monitor():
    watched, failures = Monitor(replay(), share=0.3, every=20), []

    def work(first: int) -> None:
        try:
            for number in range(first, first + 10):
                watched.observe(*batch(number)[:2])
                watched.prometheus()
        except Exception as problem:
            failures.append(problem)

    threads = [threading.Thread(target=work, args=(10 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert watched.report()["samples"] == 400
    assert watched.learner.samples_observed + len(watched.held) == 400


# --------------------------------------------------------------------------------------------------------- arguments


def test_targets_that_are_real_numbers_need_a_judge():
    model = nn.Linear(5, 1)

    def values(**arguments: Any) -> Monitor:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        return Monitor(Finetune(model, optimizer, loss=nn.MSELoss(reduction="none")), share=0.0, **arguments)

    x = batch(0)[0]
    with pytest.raises(InvalidInput, match=r"Monitor\(correct=...\)"):
        values().observe(x, x[:, :1])
    watched = values(correct=lambda predicted, y: (predicted - y).abs() < 1)
    y = model(x).detach()
    y[:4] += 2
    watched.observe(x, y)
    assert watched.report()["accuracy"] == 0.6


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kind, self.size = nn.Linear(5, 3), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"kind": self.kind(x), "size": self.size(x)}


def of_heads(outputs: dict[str, Tensor], y: dict[str, Tensor]) -> Tensor:
    kind = nn.functional.cross_entropy(outputs["kind"], y["kind"], reduction="none")
    return kind + (outputs["size"] - y["size"]).square().mean(1)


def test_models_with_several_heads_are_judged_by_all_that_are_classes_or_by_a_judge():
    model = Heads()
    one = Finetune(model, torch.optim.SGD(model.parameters(), lr=0.0), loss=of_heads)
    x, kinds, _ = batch(0)
    y = {"size": x[:, :1], "kind": kinds}
    with pytest.raises(InvalidInput, match="real numbers"):
        Monitor(one).observe(x, y)
    with pytest.raises(InvalidInput, match="differ in structure"):
        Monitor(one).observe(x, kinds)
    judged = Monitor(one, share=ALL, correct=lambda predicted, y: predicted["kind"] == y["kind"])
    judged.observe(x, y)
    judged.look()
    right = model.kind(x).argmax(1) == kinds
    assert judged.report()["correct"] == right.sum()
    groups = judged.report()["groups"]["class['kind']"]
    assert {group: found["samples"] for group, found in groups.items()} == {k: (kinds == k).sum() for k in groups}


def test_one_output_and_plain_numbers_are_compared_sample_by_sample():
    model = nn.Linear(5, 1)
    one = Finetune(model, torch.optim.SGD(model.parameters(), lr=0.0), loss=nn.BCEWithLogitsLoss())
    x, y, _ = batch(0)
    monitor = Monitor(one, share=0.0)
    monitor.observe(x, y.clamp(max=1).float())
    assert monitor.report()["correct"] == ((model(x)[:, 0] > 0) == y.clamp(max=1)).sum()


def test_sequences_of_any_length_are_held_out_and_ignored_targets_do_not_count():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    loss = as_loss(nn.CrossEntropyLoss(), dim=-1)
    learner = Replay(
        model, torch.optim.Adam(model.parameters(), 0.1), ReservoirMemory(20), loss=loss, pad=Padding(7, y=-100)
    )
    monitor = Monitor(learner, share=0.3, every=10)
    for number in range(60):
        x = [torch.randint(9, (length,)) for length in (1 + number % 7, 3, 2)]
        monitor.observe(x, [one.where(one > 3, -100) for one in x])
    monitor.look()
    report = monitor.report()
    assert report["heldout_samples"] > 20
    assert report["heldout_accuracy"] == 1.0 > report["accuracy"] > 0.5


def test_samples_whose_targets_are_all_ignored_are_learned_and_neither_counted_nor_withheld():
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    learner = Finetune(model, torch.optim.SGD(model.parameters(), 0.1), loss=nn.CrossEntropyLoss(ignore_index=-1))
    monitor = Monitor(learner, share=ALL, every=10)
    x = torch.randn(8, 5)
    wrong = (learner.predict(x) + 1) % 3
    monitor.observe(x, torch.where(torch.arange(8) < 6, -1, wrong))
    report = monitor.report()
    assert (report["samples"], report["correct"], report["accuracy"], report["recent_accuracy"]) == (2, 0, 0.0, 0.0)
    assert report["heldout_samples"] == 2
    assert learner.samples_observed == 6
    monitor.observe(x, torch.full((8,), -1))
    assert monitor.report()["recent_accuracy"] == 0.0
    assert (monitor.report()["samples"], monitor.report()["heldout_samples"], learner.samples_observed) == (2, 2, 14)


@pytest.mark.parametrize("wrong", [{"share": 1.0}, {"share": -0.1}, {"every": 0}, {"capacity": 0}, {"by": "site"}])
def test_arguments_are_checked(wrong):
    with pytest.raises(InvalidInput):
        Monitor(replay(), **wrong)


def test_its_text_says_how_it_was_made():
    text = repr(Monitor(told(), share=0.2, by=["site"], detector=Told()))
    assert text.startswith("Monitor(Finetune(")
    assert text.endswith("share=0.2, by=('site',), detector=Told)")


def test_only_learners_are_watched_and_a_missing_column_is_named():
    with pytest.raises(InvalidType, match="a monitor watches a learner"):
        Monitor(nn.Linear(1, 1))
    with pytest.raises(InvalidInput, match="site"):
        Monitor(replay(), by=["site"]).observe(*batch(0)[:2])
