"""Specs: what a run is, frozen; the key of its result; what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from rehearse.errors import InvalidInput
from rehearse.lab.spec import Spec, load_spec_values, merge, named_specs, stream_settings

SPEC = Spec(
    method="er-mir", stream="split-mnist", seed=3, lr=0.1, capacity=500, criterion="mi2", options={"b": 1, "a": 2}
)


def test_the_key_is_the_hash_of_the_sorted_json() -> None:
    """Written out by hand: a field added or renamed changes every key, and must be meant."""
    text = (
        '{"batch_size":10,"batchnorm":null,"budget":null,"candidates":null,"capacity":500,"class_order":null,'
        '"criterion":"mi2","exclude_current_task":null,"lr":0.1,"method":"er-mir","method_version":1,"network":"mlp",'
        '"options":{"a":2,"b":1},"precision":"auto","samples_per_task":null,"seed":3,"split_seed":0,'
        '"stream":"split-mnist","stream_version":1,"task_free":false,"tasks":null,"updates":null}'
    )
    assert SPEC.canonical == text
    assert SPEC.key == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_the_key_does_not_depend_on_how_things_are_written() -> None:
    same = [
        dataclasses.replace(SPEC, options={"a": 2, "b": 1}),
        Spec.from_dict(json.loads(SPEC.canonical)),
        Spec.from_dict(json.loads(json.dumps(SPEC.to_dict()))),
    ]
    assert {spec.key for spec in same} == {SPEC.key}
    assert same[1] == SPEC
    assert dataclasses.replace(SPEC, lr=1).key == dataclasses.replace(SPEC, lr=1.0).key
    ordered = dataclasses.replace(SPEC, class_order=(1, 0))
    assert dataclasses.replace(SPEC, class_order=[1, 0]).key == ordered.key  # type: ignore[arg-type]
    assert Spec.from_dict(json.loads(ordered.canonical)) == ordered


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 4},
        {"lr": 0.05},
        {"capacity": 501},
        {"options": {}},
        {"precision": "float32"},
        {"task_free": True},
        {"class_order": (1, 0)},
        {"method_version": 2},
    ],
)
def test_whatever_changes_a_number_changes_the_key(change: dict[str, Any]) -> None:
    assert dataclasses.replace(SPEC, **change).key != SPEC.key


def test_runs_of_one_cell_share_their_group() -> None:
    assert dataclasses.replace(SPEC, seed=9, precision="float32").group == SPEC.group
    assert dataclasses.replace(SPEC, lr=0.2).group != SPEC.group


@pytest.mark.parametrize(
    "values",
    [
        {"seed": -1},
        {"seed": 1.0},
        {"seed": True},
        {"split_seed": -1},
        {"batch_size": 0},
        {"batch_size": None},
        {"tasks": 0},
        {"samples_per_task": 2.5},
        {"capacity": 0},
        {"updates": 0},
        {"budget": "10"},
        {"lr": 0.0},
        {"lr": -0.1},
        {"lr": float("nan")},
        {"lr": float("inf")},
        {"lr": "fast"},
        {"lr": True},
        {"candidates": 0},
        {"candidates": "some"},
        {"candidates": True},
        {"every": 0},
        {"every": 1.5},
        {"step_cost": 0.5},
        {"step_cost": "slow"},
    ],
)
def test_refused_values(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(values))):
        Spec(method="er", stream="split-mnist", **values)


def test_all_candidates() -> None:
    assert dataclasses.replace(SPEC, candidates="all").candidates == "all"


def test_refused_dictionaries() -> None:
    with pytest.raises(InvalidInput, match="colour"):
        Spec.from_dict({"method": "er", "stream": "split-mnist", "colour": 1})
    with pytest.raises(InvalidInput, match="method"):
        Spec.from_dict({"stream": "split-mnist"})
    with pytest.raises(InvalidInput, match="stream"):
        Spec.from_dict({"method": "er", "stream": 5})


def test_later_layers_win_and_options_are_merged() -> None:
    merged = merge([{"lr": 0.1, "options": {"a": 1, "b": 1}}, {"lr": 0.2, "budget": 5, "options": {"b": 2}}, {}])
    assert merged == {"lr": 0.2, "budget": 5, "options": {"a": 1, "b": 2}}


def test_settings_of_streams() -> None:
    assert stream_settings("split-mnist")["common"]["lr"] == 0.05
    assert stream_settings("nowhere") == {"common": {}, "methods": {}, "specs": {}}


def test_spec_files(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('method = "er"\nlr = 0.2\n[options]\nalpha = 1\n')
    assert load_spec_values(str(tmp_path / "a.toml")) == {"method": "er", "lr": 0.2, "options": {"alpha": 1}}
    (tmp_path / "b.json").write_text(SPEC.canonical)
    assert Spec.from_dict(load_spec_values(str(tmp_path / "b.json"))) == SPEC
    for name, text in (("c.toml", "lr ="), ("d.json", "{"), ("e.json", "[1]")):
        (tmp_path / name).write_text(text)
        with pytest.raises(InvalidInput, match="no spec"):
            load_spec_values(str(tmp_path / name))
    (tmp_path / "f.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match="no spec"):
        load_spec_values(str(tmp_path / "f.toml"))
    with pytest.raises(InvalidInput, match="neither a file nor a named spec"):
        load_spec_values("nothing-of-the-kind")


@pytest.mark.parametrize(
    "line",
    [
        'task_free = "no"',
        'exclude_current_task = "no"',
        "options = 3",
        "options = [1]",
        "network = [3]",
        "precision = [3]",
        "class_order = 3",
        'class_order = ["a"]',
        'method = ["er"]',
        'stream = ["a"]',
        "criterion = 1",
        'seed = "3"',
        "seed = 1.5",
        "seed = true",
        "batchnorm = true",
        "[options]\nalpha = 2020-01-01",
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "wrong.toml").write_text(line, "utf-8")
    usual = {"method": "der", "stream": "split-mnist"}
    with pytest.raises(InvalidInput):
        Spec(**(usual | load_spec_values(str(tmp_path / "wrong.toml"))))


def test_named_specs_name_their_stream() -> None:
    for name, values in named_specs().items():
        assert "stream" in values, name
        assert "method" in values, name


def test_every_committed_result_has_the_key_of_its_spec() -> None:
    """A key that moved would make a result count as not run."""
    files = sorted((Path(__file__).parents[2] / "results").glob("*.json"))
    assert files
    results = {file.stem: json.loads(file.read_text("utf-8")) for file in files}
    assert [name for name, result in results.items() if Spec.from_dict(result["spec"]).key != name] == []
