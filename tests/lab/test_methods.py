"""The names on the command line: how a spec is resolved, what is refused, what is built."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rehearse import Finetune, MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.batchnorm import Joint
from rehearse.errors import InvalidInput
from rehearse.lab import methods, setup
from rehearse.lab.batchnorm import Published
from rehearse.lab.methods import (
    COMMON,
    METHODS,
    Problem,
    build,
    find_method,
    precision_of,
    prepare_for,
    prepare_symmetric,
    resolve,
)
from rehearse.lab.setup import with_precision
from rehearse.lab.spec import Spec, load_spec_values, named_specs
from rehearse.lab.streams import STREAMS, Definition
from rehearse.network import prepare_unit
from sameness import assert_same, differences


def tiny(spec: Spec) -> Any:
    return build(spec, Problem(10, 5, (4,), prepare_unit, lambda: nn.Linear(4, 10)))


def test_the_papers_settings_are_those_of_the_stream() -> None:
    spec = resolve("er-mir", "split-mnist")
    assert (spec.lr, spec.capacity, spec.candidates, spec.criterion) == (0.05, 500, 50, "mi2")
    assert (spec.updates, spec.budget, spec.exclude_current_task) == (1, 10, True)
    cifar = resolve("er-mir", "split-cifar10")
    assert (cifar.lr, cifar.criterion, cifar.network, cifar.batchnorm) == (0.1, "mi1", "resnet18", "published")
    mini = resolve("er-mir", "split-miniimagenet")
    assert (mini.candidates, mini.updates, mini.capacity) == (25, 3, 10_000)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of one's own with the name ``own``, which says how many candidates there are where any are scored."""
    more = {"own": Definition("mine", n_tasks=2, make=blobs, settings={"candidates": 30})}
    monkeypatch.setattr(methods, "STREAMS", STREAMS | more | {"bare": Definition("mine", n_tasks=2, make=blobs)})


def blobs(**_: Any) -> Any:
    raise AssertionError("only the settings are asked for")


@pytest.mark.usefixtures("own")
def test_plain_replay_is_plain() -> None:
    """ER takes candidates only on request: then it is the control."""
    for stream in (*STREAMS, "own", "bare"):
        assert resolve("er", stream).candidates is None
    assert resolve("er", "own", {"candidates": 20}).candidates == 20
    assert (resolve("er-mir", "own").candidates, resolve("er-mir", "bare").candidates) == (30, 50)
    assert tiny(resolve("er", "split-mnist")).retrieval.candidates is None
    assert tiny(resolve("er", "split-mnist", {"candidates": 30})).retrieval.candidates == 30
    assert tiny(resolve("er", "split-mnist", {"candidates": "all"})).retrieval.candidates == 500


@pytest.mark.parametrize("stream", sorted(STREAMS))
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_resolves_on_every_stream(method: str, stream: str) -> None:
    spec = resolve(method, stream)
    known = METHODS[method]
    assert (spec.method_version, spec.stream_version) == (known.version, STREAMS[stream].version)
    assert spec.options.keys() == known.options.keys()
    for name in COMMON - known.uses:
        assert getattr(spec, name) is None, name
    for name in known.uses & {"capacity", "updates"}:
        assert getattr(spec, name) is not None, name
    assert Spec.from_dict(spec.to_dict()).key == spec.key
    assert resolve(method, stream, spec.to_dict()).key == spec.key


def test_what_a_method_does_not_use_does_not_change_its_key() -> None:
    plain = resolve("finetune", "split-mnist")
    assert resolve("finetune", "split-mnist", {"memory": 20, "candidates": 7, "criterion": "mi1"}).key == plain.key
    assert resolve("finetune", "split-mnist", {"updates": 5}).key != plain.key


def test_later_layers_win_and_memory_and_capacity_are_one_thing() -> None:
    assert resolve("er", "split-mnist", {"memory": 20}).capacity == 200
    assert resolve("er", "split-miniimagenet", {"memory": 1}).capacity == 100
    assert resolve("er", "split-mnist", {"capacity": 123}).capacity == 123
    assert resolve("er", "split-mnist", {"capacity": 123}, {"memory": 2}).capacity == 20
    assert resolve("er", "split-mnist", {"memory": 2}, {"capacity": 123}).capacity == 123
    assert resolve("er", "split-mnist", {"lr": 0.3}, {"lr": 0.4}).lr == 0.4


@pytest.mark.parametrize(
    ("method", "stream", "layer", "words"),
    [
        ("er-mri", "split-mnist", {}, "no method 'er-mri'"),
        ("er", "split-mnits", {}, "no stream 'split-mnits'"),
        ("er", "split-mnist", {"colour": 1}, "no setting colour"),
        ("er", "split-mnist", {"options": {"margin": 1}}, "er has no option margin"),
        ("er", "split-mnist", {"memory": 5, "capacity": 5}, "not both"),
        ("er", "split-mnist", {"memory": 0}, "memory is 0"),
        ("er", "split-mnist", {"memory": 2.5}, "memory is 2.5"),
        ("er", "split-mnist", {"capacity": 0}, "capacity is 0"),
        ("er", "split-mnist", {"lr": "fast"}, "lr is 'fast'"),
        ("er-mir", "split-mnist", {"candidates": "many"}, "candidates is 'many'"),
        ("gen", "split-mnist", {"options": {"reuse": "no"}}, "reuse is 'no'; it must be true or false"),
        ("gen", "split-mnist", {"options": {"reuse": 0}}, "reuse is 0; it must be true or false"),
        ("ae", "split-cifar10", {"options": {"autoencode_test": "off"}}, "autoencode_test is 'off'"),
        ("gen", "split-mnist", {"options": {"generator_lr": -1}}, "generator_lr is -1; a learning rate is"),
        ("ae", "split-cifar10", {"options": {"autoencoder_lr": 0}}, "autoencoder_lr is 0"),
        ("gen", "split-mnist", {"options": {"memories": "many"}}, "memories is 'many'; it must be a number"),
        ("gen", "split-mnist", {"options": {"beta": True}}, "beta is True; it must be a number"),
        ("gen-mir", "split-mnist", {"options": {"generator_rate": float("nan")}}, "generator_rate is nan"),
    ],
)
def test_refusals(method: str, stream: str, layer: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        resolve(method, stream, layer)


@pytest.mark.parametrize(
    ("layer", "words"),
    [({"criterion": "mi3"}, "mi3"), ({"batchnorm": "none"}, "none"), ({"precision": "half"}, "half")],
)
def test_refusals_when_building(layer: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        tiny(resolve("er-mir", "split-mnist", layer))


def test_what_is_built() -> None:
    learner = tiny(
        resolve("er-mir", "split-mnist", {"updates": 3, "budget": 7, "lr": 0.3, "seed": 4, "batchnorm": "joint"})
    )
    assert isinstance(learner, Replay)
    assert isinstance(learner.retrieval, MostInterfered)
    assert (learner.updates, learner.budget, learner.memory.capacity) == (3, 7, 500)
    assert isinstance(learner.batchnorm, Joint)
    assert isinstance(tiny(resolve("er", "split-mnist")).batchnorm, Published)
    assert (learner.retrieval.candidates, learner.retrieval.criterion) == (50, "mi2")
    assert [group["lr"] for group in learner.optimizer.param_groups] == [0.3]
    assert tiny(resolve("er-mir", "split-mnist", {"candidates": "all"})).retrieval.candidates is None
    er = tiny(resolve("er", "split-mnist", {"exclude_current_task": False}))
    assert isinstance(er.retrieval, Uniform)
    assert not er.exclude_current_task
    assert isinstance(tiny(resolve("iid-online", "split-mnist")), Finetune)
    assert [find_method(name).iid_epochs for name in ("finetune", "iid-online", "iid-offline")] == [0, 1, 5]


def test_with_one_seed_all_methods_start_from_the_same_weights() -> None:
    weights = [
        tiny(resolve(method, "split-mnist", {"seed": seed})).model.state_dict()
        for method, seed in (("er", 1), ("er-mir", 1), ("finetune", 1), ("er", 2))
    ]
    assert_same(weights[0], weights[1])
    assert_same(weights[0], weights[2])
    assert differences(weights[0], weights[3])
    before = torch.get_rng_state()
    tiny(resolve("er", "split-mnist"))
    assert torch.equal(torch.get_rng_state(), before)


def test_scalings() -> None:
    assert prepare_for("unit") is prepare_unit
    assert prepare_for("symmetric") is prepare_symmetric


def test_named_specs_resolve() -> None:
    for name in named_specs():
        values = load_spec_values(name)
        spec = resolve(values["method"], values["stream"], values)
        assert (spec.method, spec.stream) == (values["method"], values["stream"])


@pytest.mark.parametrize(("option", "whole", "fraction"), [("replay_weight", 3, 3.0), ("memories", 4, 4.0)])
def test_a_number_makes_the_same_run_however_it_is_written(option: str, whole: int, fraction: float) -> None:
    written = [resolve("gen", "split-mnist", {"options": {option: value}}) for value in (whole, fraction)]
    assert written[0].key == written[1].key
    assert type(written[0].options[option]) is type(find_method("gen").options[option])


@pytest.mark.parametrize(
    ("method", "stream", "settings", "kept"),
    [
        ("er", "split-cifar10", {}, False),
        ("er", "split-cifar10", {"candidates": 50}, True),  # they pass, if only to move batch-norm's statistics
        ("er-mir", "split-cifar10", {}, True),
        ("finetune", "split-cifar10", {}, False),
        ("gen", "split-mnist", {}, False),
        ("gen-mir", "split-mnist", {}, True),
        ("ae", "split-cifar10", {}, False),
        ("ae-mir", "split-cifar10", {}, True),
        ("gem", "split-cifar10", {}, True),  # gradients of past tasks
        ("agem", "split-cifar10", {}, False),
    ],
)
def test_a_run_that_scores_nothing_has_no_precision_of_scoring(
    method: str, stream: str, settings: dict[str, Any], kept: bool
) -> None:
    spec = resolve(method, stream, settings, {"precision": "bfloat16-scoring"})
    assert precision_of(spec) == ("bfloat16-scoring" if kept else "float32")
    assert with_precision(spec) == spec  # what was asked for, or stands in a result, is the key that it is found by
    assert precision_of(resolve(method, stream, settings, {"precision": "bfloat16"})) == "bfloat16"


def test_auto_scores_in_bfloat16_only_where_something_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "_resolved_precision", lambda *_: "bfloat16-scoring")
    assert with_precision(resolve("er-mir", "split-cifar10")).precision == "bfloat16-scoring"
    assert with_precision(resolve("er", "split-cifar10")).precision == "float32"


@pytest.mark.parametrize("native", [False, True])
def test_a_search_of_the_paper_runs_in_bfloat16_where_that_is_fast(
    monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    setup._resolved_precision.cache_clear()
    monkeypatch.setattr(setup, "supports_bfloat16", lambda device: native)
    precisions = {name: with_precision(resolve(name, "split-mnist")).precision for name in ("gen", "gen-mir", "er-mir")}
    setup._resolved_precision.cache_clear()
    assert precisions == {"gen": "float32", "gen-mir": "bfloat16-scoring" if native else "float32", "er-mir": "float32"}


def test_where_nothing_is_scored_the_precision_of_scoring_changes_no_bit() -> None:
    made = {}
    for precision in ("float32", "bfloat16-scoring"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        learner = Replay(model, optimizer, ReservoirMemory(20), Uniform(), precision=precision)
        for step in range(4):
            generator = torch.Generator().manual_seed(step)
            x, y = torch.rand(5, 1, 4, 4, generator=generator), torch.randint(0, 3, (5,), generator=generator)
            learner.observe(x, y, task=step // 2)
        made[precision] = model.state_dict()
    assert all(torch.equal(value, made["bfloat16-scoring"][name]) for name, value in made["float32"].items())
