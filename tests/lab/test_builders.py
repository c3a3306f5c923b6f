"""From a name and its options to the learner that is meant."""

from __future__ import annotations

from typing import Any

import pytest

from rehearse.compute import prepare_unit
from rehearse.errors import InvalidInput
from rehearse.lab.builders import Problem
from rehearse.lab.methods import build, resolve
from rehearse.learners import AGEM, GEM, ICaRL, Replay
from rehearse.losses import AsymmetricCrossEntropy, CrossEntropy, DarkExperience
from rehearse.nets import MLP
from rehearse.retrieval import Draws, MostInterfered, Uniform

PROBLEM = Problem(10, 5, (1, 28, 28), prepare_unit, MLP)


def built(method: str, **layer: Any) -> Any:
    return build(resolve(method, "split-mnist-5k", layer), PROBLEM)


@pytest.mark.parametrize(
    ("method", "retrieval", "loss", "all_tasks"),
    [
        ("er", Uniform, CrossEntropy, False),
        ("er-mir", MostInterfered, CrossEntropy, False),
        ("er-mir-head", MostInterfered, CrossEntropy, False),
        ("er-ace", Uniform, AsymmetricCrossEntropy, True),
        ("er-ace-mir", MostInterfered, AsymmetricCrossEntropy, True),
        ("der", Uniform, DarkExperience, True),
        ("der-mir", MostInterfered, DarkExperience, True),
    ],
)
def test_methods_that_differ_by_loss_and_retrieval(method: str, retrieval: Any, loss: Any, all_tasks: bool) -> None:
    learner = built(method)
    assert isinstance(learner, Replay)
    assert type(learner.retrieval) is retrieval
    assert type(learner.loss) is loss
    assert learner.exclude_current_task is not all_tasks
    assert learner.lookahead.layers == ("head" if method == "er-mir-head" else "all")
    assert learner.memory.capacity == 500


def test_the_options_of_dark_experience() -> None:
    learner = built("der-mir", candidates=30, options={"alpha": 0.25, "beta": 0.75, "draws": 2})
    assert (learner.loss.alpha, learner.loss.beta) == (0.25, 0.75)
    assert isinstance(learner.retrieval, Draws)
    assert learner.retrieval.retrieval.candidates == 30
    for draws in (0, 3, True, "two"):
        with pytest.raises(InvalidInput, match="draws is"):
            built("der", options={"draws": draws})
    with pytest.raises(InvalidInput, match="alpha is"):
        built("der", options={"alpha": "much"})


def test_memories_by_task_and_class() -> None:
    gem, agem = built("gem", options={"margin": 0.25}), built("agem", budget=30, capacity=100)
    assert isinstance(gem, GEM)
    assert (gem.margin, gem.memory.tasks, gem.memory.capacity) == (0.25, 5, 500)
    assert isinstance(agem, AGEM)
    assert (agem.budget, agem.memory.capacity) == (30, 100)
    icarl = built("icarl", updates=3, options={"keep": "task"})
    assert isinstance(icarl, ICaRL)
    assert (icarl.updates, icarl.keep, icarl.memory.capacity) == (3, "task", 500)


def test_a_setting_that_changes_nothing_is_not_in_the_key() -> None:
    assert resolve("er-ace", "split-mnist-5k").exclude_current_task is None
    assert resolve("gem", "split-mnist-5k").budget is None
    with pytest.raises(InvalidInput, match="gem has no option keep"):
        resolve("gem", "split-mnist-5k", {"options": {"keep": "task"}})
