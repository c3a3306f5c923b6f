"""From a name and its options to the learner that is meant."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from rehearse.errors import InvalidInput
from rehearse.lab.builders import Problem
from rehearse.lab.draws import Draws
from rehearse.lab.methods import METHODS, build, resolve
from rehearse.lab.spec import Spec
from rehearse.latent import LatentSearch
from rehearse.learners import (
    AGEM,
    GEM,
    CodeReplay,
    CodeSearch,
    Coefficients,
    GenerativeReplay,
    ICaRL,
    LatentRetrieval,
    Replay,
)
from rehearse.losses import AsymmetricCrossEntropy, CrossEntropy, DarkExperience
from rehearse.nets import MLP, VAE, ConvAutoencoder
from rehearse.network import prepare_unit
from rehearse.retrieval import MostInterfered, Uniform

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
    assert getattr(learner.retrieval, "layers", "all") == ("head" if method == "er-mir-head" else "all")
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


# --------------------------------------------------------------------------------------------------- default values


def default(kind: Any, name: str) -> Any:
    return inspect.signature(kind).parameters[name].default


@pytest.mark.parametrize(
    ("method", "option", "kind", "argument"),
    [
        ("der", "alpha", DarkExperience, "alpha"),
        ("gem", "margin", GEM, "margin"),
        ("icarl", "keep", ICaRL, "keep"),
        ("gen", "memories", GenerativeReplay, "memories"),
        ("gen", "warmup", GenerativeReplay, "warmup"),
        ("gen", "hidden", VAE, "hidden"),
        ("gen", "divergence", VAE, "kl"),
        ("gen-mir", "classifier_entropy", Coefficients, "entropy"),
        ("gen-mir", "search_steps", LatentSearch, "steps"),
        ("gen-mir", "generator_rate", LatentRetrieval, "rate"),
        ("ae", "replay_share", CodeReplay, "replay_share"),
        ("ae", "channels", ConvAutoencoder, "channels"),
        ("ae-mir", "foreseen_entropy", CodeSearch, "ahead_entropy"),
    ],
)
def test_an_option_has_the_default_of_the_class_that_it_is_for(
    method: str, option: str, kind: Any, argument: str
) -> None:
    assert METHODS[method].options[option] == default(kind, argument)


def test_what_a_spec_leaves_open_is_what_the_constructor_says() -> None:
    replay = build(Spec(method="er-mir", stream="split-mnist-5k", capacity=20), PROBLEM)
    assert (replay.budget, replay.updates) == (default(Replay, "budget"), default(Replay, "updates"))
    assert replay.retrieval.candidates == default(MostInterfered, "candidates")
    assert replay.retrieval.criterion == default(MostInterfered, "criterion")
    assert build(Spec(method="agem", stream="split-mnist-5k", capacity=20), PROBLEM).budget == default(AGEM, "budget")
    with pytest.raises(InvalidInput, match="er needs a memory"):
        build(Spec(method="er", stream="split-mnist-5k"), PROBLEM)
