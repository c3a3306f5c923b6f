"""Every script in benchmarks/ runs, with a few steps of the smallest sizes."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from lab.made_results import made_result
from rehearse.lab.experiment import Run
from rehearse.lab.methods import resolve
from rehearse.lab.run_folder import RunLog

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
IMPORTED = {"elsewhere", "measuring", "subjects", "literal", "literal_generative", "literal_hybrid", "peer_runs"}


@pytest.fixture
def output(monkeypatch, capsys):
    """What a script prints."""

    def run(script: str, *arguments: str) -> str:
        monkeypatch.syspath_prepend(str(BENCHMARKS))
        monkeypatch.setattr(sys, "argv", [str(BENCHMARKS / f"{script}.py"), *arguments])
        runpy.run_path(sys.argv[0], run_name="__main__")
        return capsys.readouterr().out

    return run


def test_every_script_is_run_here():
    text = Path(__file__).read_text("utf-8")
    scripts = {path.stem for path in BENCHMARKS.glob("*.py")} - IMPORTED
    assert scripts == {script for script in scripts if f'"{script}"' in text}


def test_step_costs(output):
    lines = output("step_costs", "split-mnist", "--steps", "1", "--rounds", "1").splitlines()
    assert lines[0].split()[0] == "1.00"
    names = [line.split(" ms  ")[1] for line in lines]
    assert "uniform at the cost of most interfered, 50 replayed, augmented" in names
    assert len(names) == len(set(names))


def test_steps_of_replay_are_compared_with_the_reference(output):
    assert "ER-MIR: reference / ours" in output("bench", "--quick")


def test_steps_of_generative_replay_are_compared_with_the_reference(output):
    assert "| gen |" in output("generative", "--quick")


def test_steps_of_replay_from_codes_are_compared_with_the_reference(output):
    assert "| ae | float32 | classifier, a step |" in output("hybrid", "--quick")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the other version comes from git")
def test_two_versions_are_compared(output):
    table = output("versions", "HEAD", "--quick")
    assert "| ER-MIR, MLP | with |" in table
    assert "| predict, one sample, MLP / bare model | with |" in table


def test_a_large_memory_in_a_file_is_measured(output):
    result = json.loads(output("memory", "--samples", "2000", "--steps", "2", "--json"))
    assert result["file_bytes"] > 2000 * 784
    assert result["resident_growth_bytes"].keys() == {"ram", "file"}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_ranks_are_compared_bit_by_bit(output):
    assert "3 of 3 steps: the same bits on all 4 ranks" in output("distributed", "bits", "--steps", "3")


def test_statistics_from_few_samples_are_measured(output):
    assert "| 400 |" in output("few_memories", "--quick")


def test_alarms_of_a_monitor_and_its_cost_are_measured(output):
    tables = output("monitor", "--quick")
    assert "| er-mir, 100 stored | shuffled | 0 of 1 |" in tables
    assert "| learner | ms a step | with a monitor | ratio |" in tables


def test_wrong_labels_are_counted_among_the_replayed(output):
    assert "| MI-1, low losses |" in output("label_noise", "--quick")


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("choose", "| batch_size 1, retrieval"),
        ("compare", "| ARFClassifier |"),
        ("ordered", "| river, a running scaler in front |"),
    ],
)
def test_settings_of_the_river_adapter_are_compared(output, what, found):
    assert found in output("river_defaults", what, "--quick")


def test_fit_is_timed_beside_that_of_scikit_learn(output):
    assert "| median |" in output("sklearn_fit", "--quick")


def test_a_setting_is_chosen_on_the_validation_split(output):
    table = output("choose_settings", "er-ace", "--stream", "split-mnist-5k", "--samples", "10")
    assert table.count("\n| **") == 1


def test_the_same_seeds_of_two_folders_are_compared(output, tmp_path):
    for folder, accuracy in (("first", 0.8), ("second", 0.7)):
        (tmp_path / folder).mkdir()
        for seed in (0, 1):
            result = made_result(resolve("er", "split-mnist", {"seed": seed}), accuracy)
            (tmp_path / folder / f"{seed}.json").write_text(json.dumps(result))
    table = output("same_seeds", str(tmp_path / "first"), str(tmp_path / "second"))
    assert "| +10.0 ± 0.0 | +0.0 ± 0.0 | 1.00 |" in table


def test_this_library_is_measured_as_its_peers_are(output, tmp_path):
    output(
        "peers", "--stream", "split-mnist-5k", "--seeds", "1", "--samples", "20", "--out", str(tmp_path / "peers.json")
    )
    rows = json.loads((tmp_path / "peers.json").read_text())["rows"]
    assert {row["library"] for row in rows} == {"rehearse"}
    assert all(len(row["matrices"][0]) == 5 and row["ms"][0] > 0 for row in rows)


def test_round_trips_through_the_autoencoder_are_judged(output, tmp_path):
    layer = {"samples_per_task": 20, "capacity": 20, "network": "mlp", "options": {"autoencoder_epochs": 1}}
    run = Run(resolve("ae", "split-mnist-5k", layer))
    log = RunLog(tmp_path, run)
    next(iter(run.steps()))
    log.checkpoint()
    log.flush()
    table = output("round_trips", str(tmp_path)).splitlines()
    assert table[-1].startswith("| 0 | ")
    assert table[-1].count("(") == 7
