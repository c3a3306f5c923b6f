"""Every example runs from a directory of its own, without a warning, and says what it should."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

# What must be in the output; numbers are compared below, where they carry the example's point.
SAYS = {
    "data_loader": "batch 200: incoming",
    "deletion_request": "1 sample removed; anna's is in the file: False",
    "language_model_lora": "seed 0, replay",
    "own_method": "er-warm − er",
    "own_network": "split-mnist-5k, 1 seed",
    "own_retrieval": "er-further − er-hardest",
    "own_stream": "er-mir − er",
    "own_generator": "the same predictions after loading: True",
    "own_model_and_arrays": "of all ten classes",
    "pretrained_backbone": "8 outputs",
    "regression_stream": "over all windows",
    "resume_after_crash": "the same to the bit",
    "several_machines": "rank 0 resumed at step 60",
    "river_drift": "ring of 200",
    "text_token_ids": "money",
    "token_classification": "of the first topic's words",
    "two_heads": "of all kinds",
}
WARNS = {"language_model_lora"}
"""Examples with packages that warn of each other."""
SMALLER = {"language_model_lora": ["1"]}
"""Arguments with which an example takes seconds."""


def test_every_example_is_known_here():
    """The service runs until it is stopped: test_service.py has its tests."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SAYS.keys() | {"service"}


@pytest.fixture(scope="session")  # other modules' tests come between
def output(tmp_path_factory):
    """The output of an example, run once."""
    kept: dict[str, str] = {}

    def run(name: str) -> str:
        if name not in kept:
            done = subprocess.run(
                [
                    sys.executable,
                    "-W",
                    "default" if name in WARNS else "error",
                    EXAMPLES / f"{name}.py",
                    *SMALLER.get(name, []),
                ],
                cwd=tmp_path_factory.mktemp(name),
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            kept[name] = done.stdout
        return kept[name]

    return run


def numbers(text: str, pattern: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, text)]


@pytest.mark.parametrize("name", SAYS)
@pytest.mark.xdist_group("examples")
def test_an_example_runs(output, name):
    assert SAYS[name] in output(name)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_is_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60


@pytest.mark.xdist_group("examples")
def test_replay_forgets_less_in_the_examples_that_say_so(output):
    without, with_replay = numbers(output("own_model_and_arrays"), r"(\d+)% of all")
    assert with_replay > without + 10
    without, with_replay = numbers(output("own_generator"), r"(\d+)% of the first")
    assert with_replay > without + 50
    error_without, error_with_replay = numbers(output("regression_stream"), r"error (\d+\.\d+) over")
    assert error_with_replay < error_without / 2
    without, with_replay = numbers(output("token_classification"), r"(\d+)% of the first")
    assert with_replay > without + 10
    without, with_replay = numbers(output("two_heads"), r"(\d+)% of all kinds")
    assert with_replay > without + 10
    off_without, off_with_replay = numbers(output("two_heads"), r"off by (\d+\.\d+)")
    assert off_with_replay < off_without


@pytest.mark.xdist_group("examples")
def test_every_topic_of_the_text_example_is_still_known(output):
    assert min(numbers(output("text_token_ids"), r"(\d+)%")) > 80


@pytest.mark.xdist_group("examples")
def test_the_adapted_language_model_still_knows_the_first_topic(output):
    text = output("language_model_lora")
    without, with_replay = numbers(text, r"(\d+)% of the first")
    assert with_replay > without + 20
    assert min(numbers(text, r"(\d+)% of the second")) > 80
    assert numbers(text, r"fine-tuning: \+([\d.]+) points")[0] == pytest.approx(with_replay - without, abs=1)


@pytest.mark.xdist_group("examples")
def test_models_that_notice_or_let_go_survive_a_flip_of_all_labels(output):
    text = output("river_drift")
    before, soon, later = (
        numbers(text, pattern) for pattern in (r"the flip ([\d.]+)", r"it ([\d.]+)", r"then ([\d.]+)")
    )
    assert min(before) > 0.9
    assert min(later[1:]) > 0.93 > later[0]
    assert min(soon[1:]) > soon[0]
