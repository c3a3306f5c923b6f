"""The river adapter, held to river's own checks and to what its docstring says."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from own_networks import small_network
from river import checks, compose, datasets, evaluate, metrics
from torch import nn

from rehearse.adapters.building import build_learner
from rehearse.adapters.river import RehearsalClassifier, RehearsalRegressor, input_width, widen_inputs
from rehearse.batchnorm import Clean
from rehearse.errors import RehearseError


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        pytest.param(kind, check, id=f"{kind.__name__}-{number}-{check.__name__}")
        for kind in (RehearsalClassifier, RehearsalRegressor)
        for number, check in enumerate(checks.yield_checks(kind()))
    ],
)
def test_rivers_own_checks(kind, check):
    check(kind())


@pytest.mark.parametrize("kind", [RehearsalClassifier, RehearsalRegressor])
def test_none_of_rivers_checks_is_skipped(kind):
    assert kind()._unit_test_skips() == set()


def stream(rows: int, seed: int = 0) -> list[tuple[dict[str, float], str]]:
    """Three labels by the larger of three features, under names whose order is not that of arrival."""
    draws = np.random.default_rng(seed).normal(size=(rows, 3)).tolist()
    names = ["width", "age", "height"]
    return [(dict(zip(names, row, strict=True)), names[int(np.argmax(row))]) for row in draws]


def learned(rows, **settings) -> RehearsalClassifier:
    model = RehearsalClassifier(**{"seed": 0, "hidden": (16,), "batch_size": 10, **settings})
    for x, y in rows:
        model.learn_one(x, y)
    return model


def same(one: RehearsalClassifier, other: RehearsalClassifier) -> bool:
    first, second = one.learner.model.state_dict(), other.learner.model.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_progressive_validation_on_phishing():
    """Test, then train: far better than always saying the commoner of the two labels (56 %)."""
    model = RehearsalClassifier(seed=0)
    score = evaluate.progressive_val_score(datasets.Phishing(), model, metrics.Accuracy())
    assert score.get() > 0.88


def test_learning_many_is_a_loop_of_learning_one_to_the_bit():
    rows = stream(95)
    one = learned(rows)
    many = RehearsalClassifier(seed=0, hidden=(16,), batch_size=10)
    for start in range(0, len(rows), 17):  # pieces that are no multiple of the batch
        piece = rows[start : start + 17]
        many.learn_many(pd.DataFrame([x for x, _ in piece]), pd.Series([y for _, y in piece]))
    assert same(one, many)
    assert one._waiting == many._waiting
    assert len(one._waiting) == 5


def test_samples_wait_for_a_batch_and_then_make_one_step():
    rows = stream(10)
    model = learned(rows[:9])
    assert model.learner is None
    probabilities = model.predict_proba_one(rows[0][0])
    assert len(probabilities) > 1
    assert set(probabilities.values()) == {1 / len(probabilities)}
    model.learn_one(*rows[9])
    assert (model.learner.progress.steps, model.learner.samples_observed) == (1, 10)
    assert model._waiting == []


def test_batch_norm_keeps_its_running_statistics_as_every_sample_is_predicted():
    """Elsewhere they are re-estimated from the memory for the first prediction after a step (decision 0044)."""
    assert type(learned(stream(10)).learner.batchnorm) is Clean


def test_a_label_that_waits_has_probability_zero_and_then_an_output():
    model = learned(stream(30))
    model.learn_one({"width": 1.0}, "new")
    assert model.predict_proba_one({"width": 1.0})["new"] == 0
    for x, y in stream(9, seed=1):
        model.learn_one(x, y)
    assert model.predict_proba_one({"width": 1.0})["new"] > 0


def test_nothing_is_known_before_the_first_sample():
    model = RehearsalClassifier()
    assert model.predict_one({"a": 1.0}) is None
    assert model.predict_proba_one({"a": 1.0}) == {}
    frame = pd.DataFrame({"a": [1.0, 2.0]}, index=[5, 6])
    assert model.predict_many(frame).tolist() == [None, None]
    assert model.predict_proba_many(frame).shape == (2, 0)


def test_frames_keep_their_index_and_labels_their_kind():
    model = learned([(x, i % 2 == 0) for i, (x, _) in enumerate(stream(30))])
    frame = pd.DataFrame([x for x, _ in stream(4)], index=list("abcd"))
    assert model.predict_proba_many(frame).index.tolist() == list("abcd")
    assert [type(label) for label in model.predict_many(frame)] == [bool] * 4
    assert model.predict_proba_many(frame.iloc[:0]).shape == (0, 2)


def test_a_new_feature_changes_no_prediction_until_it_is_learned_from():
    model = learned(stream(60), batch_size=10)
    x = stream(1, seed=5)[0][0]
    before = model.predict_proba_one(x)
    assert model.predict_proba_one({**x, "unheard": 9.0}) == before
    widen_inputs(model.learner, 50)
    after = model.predict_proba_one(x)
    assert after == pytest.approx(before, rel=1e-5)


def test_a_new_feature_is_learned():
    """The new feature alone decides: whoever has not learned it is right half of the time."""
    model = learned(stream(40))
    rows = [
        ({"width": a, "age": b, "height": c, "late": late}, "width" if late > 0 else "age")
        for a, b, c, late in np.random.default_rng(3).normal(size=(1200, 4)).tolist()
    ]
    for x, y in rows[:1000]:
        model.learn_one(x, y)
    assert len(model._features) == 4
    assert np.mean([model.predict_one(x) == y for x, y in rows[1000:]]) > 0.85


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_widening_is_as_if_the_feature_had_always_been_there_as_zero(optimizer, scale):
    """Compared with a network that was built wide, had zero weights there and saw zeros all along."""
    settings = {
        "scale": scale,
        "hidden": (6,),
        "optimizer": optimizer,
        "learning_rate": 0.05,
        "memory_size": 20,
        "budget": 5,
    }
    narrow = build_learner(RehearsalClassifier(candidates=10, **settings), (3,), 2, seed=0)
    built_wide = RehearsalClassifier(_widened_by_hand(narrow.model), candidates=10, **settings)
    wide = build_learner(built_wide, (5,), 2, seed=0)
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.randn(8, 3, generator=generator), torch.arange(8) % 2) for _ in range(10)]
    for number, (x, y) in enumerate(batches):
        if number == 5:
            widen_inputs(narrow, 5)
            assert input_width(narrow) == 5
        padded = torch.cat([x, torch.full((8, 2), float(number >= 5))], 1)
        narrow.observe(padded if number >= 5 else x, y)
        wide.observe(padded, y)
    for one, other in zip(narrow.model.parameters(), wide.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(narrow.memory.all().x, wide.memory.all().x)


def _widened_by_hand(model: nn.Module) -> nn.Module:
    wide = copy.deepcopy(model)
    layer = next(module for module in wide.modules() if isinstance(module, nn.Linear))
    layer.weight = nn.Parameter(torch.cat([layer.weight.detach(), torch.zeros(len(layer.weight), 2)], 1))
    layer.in_features = 5
    return wide


def test_thousands_of_features_widen_the_first_layer_a_few_times(monkeypatch):
    widths = []
    monkeypatch.setattr(
        "rehearse.adapters.river.widen_inputs",
        lambda learner, features: (widths.append(features), widen_inputs(learner, features)),
    )
    model = RehearsalClassifier(seed=0, hidden=(8,), batch_size=1, memory_size=10)
    for number in range(500):
        model.learn_one({f"word {number}": 1.0}, number % 2)
    assert widths == [2, 4, 8, 16, 32, 64, 128, 256, 512]


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_a_missing_value_is_the_mean_so_far_and_an_absent_feature_is_zero(missing, scale):
    model = learned([({**x, "age": x["age"] + 5}, y) for x, y in stream(30)], scale=scale)
    mean = float(model.learner.network.prepare.mean[model._features["age"]]) if scale else 0.0
    filled = model.predict_proba_one({"width": 1.0, "age": mean})
    assert model.predict_proba_one({"width": 1.0, "age": missing}) == pytest.approx(filled, rel=1e-5)
    assert model.predict_proba_one({"width": 1.0}) == model.predict_proba_one({"width": 1.0, "age": 0.0})
    model.learn_one({"width": 1.0, "age": missing}, "age")


@pytest.mark.parametrize("memory", ["reservoir", "class-balanced", "ring"])
def test_pickled_with_samples_in_the_queue_it_resumes_bit_for_bit(memory):
    model = learned(stream(57), memory=memory, memory_size=20)
    other = pickle.loads(pickle.dumps(model))
    for x, y in [*stream(40, seed=2), *[({"extra": 1.0}, "another")] * 13]:
        model.learn_one(x, y)
        other.learn_one(x, y)
    assert same(model, other)
    assert model.predict_proba_one({"extra": 2.0}) == other.predict_proba_one({"extra": 2.0})


def test_no_seed_is_another_each_time_and_a_seed_the_same():
    rows = stream(20)
    assert same(learned(rows, seed=4), learned(rows, seed=4))
    assert not same(learned(rows, seed=None), learned(rows, seed=None))


def test_a_network_of_the_users_own():
    model = learned(stream(600), network=small_network)
    assert isinstance(model.learner.model[1], nn.Tanh)
    held_out = stream(200, seed=9)
    assert np.mean([model.predict_one(x) == y for x, y in held_out]) > 0.85


def test_in_a_pipeline_that_learns_in_mini_batches():
    model = compose.Pipeline(compose.Select("width", "age", "height"), RehearsalClassifier(seed=0, hidden=(16,)))
    rows = stream(300)
    frame, labels = pd.DataFrame([x for x, _ in rows]), pd.Series([y for _, y in rows])
    for start in range(0, 300, 50):
        model.learn_many(frame[start : start + 50], labels[start : start + 50])
    assert (model.predict_many(frame) == labels).mean() > 0.7


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ({"a": "red"}, 1, "OneHotEncoder"),
        ({"a": "1.5"}, 1, "must be numbers"),
        ({"a": [1]}, 1, "must be numbers"),
        ({"a": float("inf")}, 1, "infinite"),
        ({"a": 1e39}, 1, "too large"),
        ({"a": 1.0}, None, "label is missing"),
        ({"a": 1.0}, float("nan"), "label is missing"),
        ({"a": 1.0}, ["x"], "not hashable"),
    ],
)
def test_what_cannot_be_learned_is_refused_and_changes_nothing(x, y, words):
    model = learned(stream(35))
    before = pickle.dumps(model)
    with pytest.raises(RehearseError, match=words):
        model.learn_one(x, y)
    assert pickle.dumps(model) == before


def test_a_frame_with_a_bad_row_is_refused_as_a_whole():
    model = learned(stream(35))
    before = pickle.dumps(model)
    with pytest.raises(RehearseError, match="infinite"):
        model.learn_many(pd.DataFrame({"width": [1.0, np.inf]}), pd.Series(["age", "age"]))
    with pytest.raises(RehearseError, match="label is missing"):
        model.learn_many(pd.DataFrame({"width": [1.0, 2.0]}), pd.Series(["age", None]))
    with pytest.raises(RehearseError, match="2 rows, y has 1"):
        model.learn_many(pd.DataFrame({"width": [1.0, 2.0]}), pd.Series(["age"]))
    assert pickle.dumps(model) == before


def test_a_batch_size_of_nothing_is_refused():
    with pytest.raises(RehearseError, match="batch_size"):
        RehearsalClassifier(batch_size=0)


@pytest.mark.parametrize("seed", ["1", -1, 1.5, object()])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(RehearseError, match="seed"):
        RehearsalClassifier(seed=seed)


def test_samples_are_stored_as_they_came_whatever_their_scale():
    scaled = [
        ({"width": 1e6 + 1e4 * x["width"], "age": x["age"] / 1e3}, y) for x, y in stream(900) if y in ("width", "age")
    ]
    rows, held_out = scaled[:400], scaled[400:]
    model = learned(rows, batch_size=1)
    stored = model.learner.memory.all().x[:, [model._features["width"], model._features["age"]]]
    came = {(float(np.float32(x["width"])), float(np.float32(x["age"]))) for x, _ in rows}
    assert {tuple(row) for row in stored.tolist()} <= came
    assert np.mean([model.predict_one(x) == y for x, y in held_out]) > 0.9
    unscaled = learned(rows, batch_size=1, scale=False)
    assert np.mean([unscaled.predict_one(x) == y for x, y in held_out]) < 0.8


def values(rows: int, seed: int = 0) -> list[tuple[dict[str, float], float]]:
    draws = np.random.default_rng(seed).normal(size=(rows, 2)).tolist()
    return [({"a": a, "b": 100 * b}, 5000 + 300 * a - 1000 * b) for a, b in draws]


def test_values_are_learned_in_their_own_units():
    model = RehearsalRegressor(seed=0)
    assert model.predict_one({"a": 1.0}) == 0
    for x, y in values(400):
        model.learn_one(x, y)
    held_out = values(100, seed=1)
    errors = [abs(model.predict_one(x) - y) for x, y in held_out]
    assert np.mean(errors) < 100
    frame = pd.DataFrame([x for x, _ in held_out], index=range(7, 107))
    assert model.predict_many(frame).index.tolist() == list(range(7, 107))
    assert model.predict_many(frame).tolist() == pytest.approx([model.predict_one(x) for x, _ in held_out])
    assert model.learner.memory.all().y.max() > 5000


@pytest.mark.parametrize("y", [None, float("nan"), float("inf"), "1", True])
def test_a_target_that_is_no_number_is_refused(y):
    with pytest.raises(RehearseError, match="target"):
        RehearsalRegressor(seed=0).learn_one({"a": 1.0}, y)


@pytest.mark.parametrize("w", [-1, float("nan"), "1"])
def test_a_weight_that_is_none_is_refused_before_anything_is_learned(w):
    model = RehearsalClassifier(seed=0)
    with pytest.raises(RehearseError, match="w is"):
        model.learn_one({"a": 1.0}, 1, w=w)
    with pytest.raises(RehearseError, match="w is"):
        model.learn_many(pd.DataFrame({"a": [1.0, 2.0]}), pd.Series([0, 1]), w=[1.0, w])
    with pytest.raises(RehearseError, match="w has 1"):
        model.learn_many(pd.DataFrame({"a": [1.0, 2.0]}), pd.Series([0, 1]), w=[1.0])
    assert model.learner is None


def test_samples_of_weight_zero_teach_nothing_and_labels_have_weights():
    rows = [(x, y, True) for x, y in stream(300)] + [(x, "width", False) for x, _ in stream(300, seed=1)]
    weighed, plain, heavy = (RehearsalClassifier(seed=0), RehearsalClassifier(seed=0), RehearsalClassifier(seed=0))
    heavy.class_weight = {"age": 50.0}
    for at in np.random.default_rng(0).permutation(len(rows)):
        x, y, right = rows[at]
        weighed.learn_one(x, y, w=float(right))
        plain.learn_one(x, y)
        heavy.learn_one(x, y)
    said = {
        name: [model.predict_one(x) for x, _ in stream(200, seed=2)]
        for name, model in {"weighed": weighed, "plain": plain, "heavy": heavy}.items()
    }
    truth = [y for _, y in stream(200, seed=2)]
    assert np.mean(np.array(said["weighed"]) == truth) > 0.85
    assert np.mean(np.array(said["weighed"]) == truth) > np.mean(np.array(said["plain"]) == truth) + 0.1
    assert said["heavy"].count("age") > said["plain"].count("age") + 20
