"""The scikit-learn adapter, held to scikit-learn's own checks and to what its docstring says."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from own_networks import TokenNetwork, dropout_prototype, image_network, normed_network, small_network
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from rehearse import RunningScaler
from rehearse.adapters import building
from rehearse.adapters.sklearn import RehearsalClassifier, RehearsalRegressor
from rehearse.errors import RehearseError

ARRAY_API = "check_array_api_input"


def _name(check) -> str:
    return getattr(check, "func", check).__name__


# Learning is stochastic: a sample of weight 2 is one of two steps of other batches than the same sample twice.
EXPECTED = {"check_sample_weight_equivalence_on_dense_data": "learning depends on how samples come in batches"}
CHECKS = [check for kind in (RehearsalClassifier, RehearsalRegressor) for check in estimator_checks_generator(kind())]


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xfail(reason=EXPECTED[name], strict=True)] if name in EXPECTED else []


@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pytest.param(estimator, check, id=f"{number}-{_name(check)}", marks=_marks(_name(check)))
        for number, (estimator, check) in enumerate(CHECKS)
        if _name(check) != ARRAY_API
    ],
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_the_check_that_needs_scipys_array_api_to_be_on():
    """SciPy reads the variable when it is imported, so this one check has a process of its own."""
    program = f"""
from sklearn.utils.estimator_checks import estimator_checks_generator
from rehearse.adapters.sklearn import RehearsalClassifier, RehearsalRegressor
checks = [
    (estimator, check)
    for kind in (RehearsalClassifier, RehearsalRegressor)
    for estimator, check in estimator_checks_generator(kind())
    if getattr(check, "func", check).__name__ == {ARRAY_API!r}
]
for estimator, check in checks:
    check(estimator)
print(len(checks))
"""
    environment = os.environ | {"SCIPY_ARRAY_API": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len([check for _, check in CHECKS if _name(check) == ARRAY_API]) > 0


@pytest.fixture
def blobs():
    X, y = make_blobs(240, centers=4, cluster_std=0.6, random_state=1)
    return StandardScaler().fit_transform(X), y


def weights(model):
    return {name: value.clone() for name, value in model.learner_.model.state_dict().items()}


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_classes_one_after_the_other_are_all_known_in_the_end():
    X, y = load_digits(return_X_y=True)
    X = X / 16
    with_memory = RehearsalClassifier(memory_size=300, random_state=0)
    almost_none = RehearsalClassifier(memory_size=1, random_state=0)
    for digits in ([0, 1], [2, 3], [4, 5]):
        rows = np.isin(y, digits)
        with_memory.partial_fit(X[rows], y[rows])
        almost_none.partial_fit(X[rows], y[rows])
    first = np.isin(y, [0, 1])
    assert with_memory.score(X[first], y[first]) > 0.8
    assert almost_none.score(X[first], y[first]) < 0.5


def test_fit_resets_the_model_and_partial_fit_continues(blobs):
    X, y = blobs
    model = RehearsalClassifier(random_state=0, epochs=2).fit(X, y)
    once = weights(model)
    model.partial_fit(X, y)
    assert model.learner_.samples_observed == len(X)
    assert model.learner_.memory.seen == 2 * len(X)
    assert not same(weights(model), once)
    model.fit(X, y)
    assert (model.learner_.samples_observed, model.learner_.memory.seen) == (0, len(X))
    assert same(weights(model), once)


def test_partial_fit_is_the_same_in_pieces_of_whole_batches(blobs):
    X, y = blobs
    whole = RehearsalClassifier(random_state=0, batch_size=20).partial_fit(X, y, classes=[0, 1, 2, 3])
    pieces = RehearsalClassifier(random_state=0, batch_size=20)
    for start in range(0, len(X), 40):
        pieces.partial_fit(X[start : start + 40], y[start : start + 40], classes=[0, 1, 2, 3])
    assert same(weights(whole), weights(pieces))


def test_a_new_label_is_sorted_in_and_the_old_outputs_stay(blobs):
    X, y = blobs
    names = np.array(["mouse", "zebra", "ant", "horse"])[y]
    old = np.isin(names, ["mouse", "zebra"])
    model = RehearsalClassifier(random_state=0)
    for _ in range(5):
        model.partial_fit(X[old], names[old])
    assert model.classes_.tolist() == ["mouse", "zebra"]
    before, head = model.predict_proba(X[old]), model.learner_.model.head.weight.detach().clone()
    model._admit(np.array(["ant", "horse"]))
    assert model.classes_.tolist() == ["ant", "horse", "mouse", "zebra"]
    assert torch.equal(model.learner_.model.head.weight[:2], head)
    after = model.predict_proba(X[old])[:, 2:]
    np.testing.assert_allclose(after / after.sum(1, keepdims=True), before, rtol=1e-5)  # logits are float32
    for _ in range(5):
        model.partial_fit(X[~old], names[~old])
    assert model.score(X, names) > 0.9
    assert log_loss(names, model.predict_proba(X)) < 0.5  # scikit-learn's metrics take the columns to be sorted


@pytest.mark.parametrize(("memory", "held"), [("reservoir", None), ("class-balanced", [10, 10]), ("ring", [0, 20])])
def test_the_memory_keeps_what_its_policy_says(memory, held):
    """380 samples of one class, then 20 of another, in 20 slots."""
    y = np.repeat([0, 1], [380, 20])
    model = RehearsalClassifier(memory=memory, memory_size=20, random_state=0).partial_fit(y[:, None] * 1.0, y)
    classes = model.learner_.memory.all().y
    assert len(classes) == 20
    assert held is None or torch.bincount(classes, minlength=2).tolist() == held


def test_announced_classes_have_a_column_before_their_first_sample(blobs):
    X, y = blobs
    model = RehearsalClassifier(random_state=0).partial_fit(X[y < 2], y[y < 2], classes=[0, 1, 2, 3])
    assert model.predict_proba(X).shape == (len(X), 4)
    with pytest.raises(RehearseError, match="does not name: \\[9\\]"):
        RehearsalClassifier().partial_fit([[1.0]], [9], classes=[0, 1])


def test_more_than_fifty_new_classes_at_once_are_no_regression():
    X = np.eye(60)
    model = RehearsalClassifier(random_state=0).partial_fit(X[:2], [0, 1])
    model.partial_fit(np.repeat(X, 2, axis=0), np.repeat(np.arange(60), 2))
    assert len(model.classes_) == 60


def test_labels_of_another_kind_are_refused_and_change_nothing(blobs):
    X, y = blobs
    model = RehearsalClassifier(random_state=0).partial_fit(X, y)
    before = weights(model)
    with pytest.raises(RehearseError, match="labels before"):
        model.partial_fit(X, y.astype(str))
    assert same(weights(model), before)
    assert model.classes_.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("retrieval", ["most-interfered", "uniform"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_after_pickling_in_the_middle_of_a_stream_it_resumes_bit_for_bit(blobs, retrieval, optimizer):
    X, y = blobs
    model = RehearsalClassifier(
        dropout_prototype_for_blobs(), retrieval=retrieval, optimizer=optimizer, memory_size=50, random_state=0
    )
    model.partial_fit(X[:100], y[:100])
    other = pickle.loads(pickle.dumps(model))
    later = np.where(y[100:] == 3, 7, y[100:])  # with a class that neither has seen
    for one in (model, other):
        one.partial_fit(X[100:], later)
    assert same(weights(model), weights(other))
    assert torch.equal(model.learner_.memory.all().x, other.learner_.memory.all().x)
    np.testing.assert_array_equal(model.predict_proba(X), other.predict_proba(X))


def dropout_prototype_for_blobs():
    prototype = dropout_prototype()
    prototype[0] = torch.nn.Linear(2, 8)
    return prototype


def test_in_a_pipeline_after_clone_and_in_a_search(blobs):
    X, y = blobs
    pipeline = make_pipeline(MinMaxScaler(), RehearsalClassifier(random_state=0, epochs=3))
    assert cross_val_score(clone(pipeline), X * 1000, y, cv=2).mean() > 0.9
    search = GridSearchCV(
        RehearsalClassifier(random_state=0, epochs=1),
        {"budget": np.array([1, 5]), "retrieval": ["uniform", "most-interfered"], "candidates": [None, 7]},
        cv=2,
    )
    assert search.fit(X, y).best_score_ > 0.5


def test_a_clone_has_learned_nothing_and_shares_nothing(blobs):
    X, y = blobs
    model = RehearsalClassifier(dropout_prototype_for_blobs(), random_state=0).fit(X, y)
    other = clone(model)
    assert "learner_" not in vars(other)
    assert other.network is not model.network


def test_a_network_of_the_users_own_is_copied_and_its_spare_outputs_used(blobs):
    X, y = blobs
    prototype = dropout_prototype_for_blobs()
    start = {name: value.clone() for name, value in prototype.state_dict().items()}
    model = RehearsalClassifier(prototype, random_state=0).partial_fit(X[y < 2], y[y < 2])
    assert same(dict(prototype.state_dict()), start)
    assert model.predict_proba(X).shape == (len(X), 2)
    model.partial_fit(X, y)
    assert model.learner_.model[-1].out_features == 5
    assert model.predict_proba(X).shape == (len(X), 4)
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1, rtol=1e-12)


def test_the_networks_weights_come_from_the_random_state_alone(blobs):
    X, y = blobs
    torch.manual_seed(1)
    one = RehearsalClassifier(small_network, random_state=5).partial_fit(X, y)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two = RehearsalClassifier(small_network, random_state=5).partial_fit(X, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert same(weights(one), weights(two))
    assert not same(weights(one), weights(RehearsalClassifier(small_network, random_state=6).partial_fit(X, y)))


def test_images_in_bytes_stay_bytes_in_the_memory_and_floats_are_refused_afterwards():
    X = np.random.default_rng(0).integers(0, 256, (30, 1, 8, 8), dtype=np.uint8)
    model = RehearsalClassifier(image_network, random_state=0).partial_fit(X, np.arange(30) % 3)
    assert model.learner_.memory.all().x.dtype == torch.uint8
    assert model.predict(X).shape == (30,)
    with pytest.raises(RehearseError, match="convert them first"):
        model.predict(X / 255)


def test_token_ids_reach_a_network_of_the_users_own_as_integers():
    tokens = np.random.default_rng(0).integers(0, 20, (200, 6))
    labels = np.where((tokens == 7).any(1), "spam", "fine")
    model = RehearsalClassifier(TokenNetwork, random_state=0, epochs=20).fit(tokens, labels)
    assert model.score(tokens, labels) > 0.9


def test_features_of_a_data_frame_are_known_by_name(blobs):
    X, y = blobs
    frame = pd.DataFrame(X, columns=["width", "height"])
    model = RehearsalClassifier(random_state=0).fit(frame, y)
    assert model.feature_names_in_.tolist() == ["width", "height"]
    with pytest.raises(ValueError, match="feature names"):
        model.partial_fit(frame[["height", "width"]], y)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"retrieval": "best"}, "retrieval"),
        ({"optimizer": "lbfgs"}, "optimizer"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"memory": "everything"}, "memory is 'everything'"),
        ({"memory_size": 0}, "memory_size"),
        ({"memory_size": 2.5}, "memory_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"epochs": 0}, "epochs"),
        ({"budget": 0}, "budget"),
        ({"candidates": 0}, "candidates"),
        ({"network": 3}, "network"),
        ({"network": lambda shape, classes: None}, "nn.Module"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_words(blobs, setting, words):
    with pytest.raises(RehearseError, match=words):
        RehearsalClassifier(**setting).fit(*blobs)


# ---------------------------------------------------------------------------------------- batch-norm, and bad settings


@pytest.mark.parametrize("samples", [2, 10, 11, 21, 25])
def test_a_lone_last_sample_goes_with_the_batch_before_where_there_is_batch_norm(samples):
    X, y = make_blobs(samples, centers=2, n_features=4, random_state=0)
    model = RehearsalClassifier(normed_network, epochs=2, random_state=0).fit(X, y)
    model.partial_fit(X, y)
    assert (model.learner_.samples_observed, model.learner_.memory.seen) == (samples, 2 * samples)
    assert model.learner_.progress.steps == 3 * max(1, samples // 10 + (samples % 10 > 1))


def test_a_lone_sample_in_all_is_refused_where_there_is_batch_norm_and_learned_elsewhere():
    X, y = make_blobs(10, centers=2, n_features=4, random_state=0)
    model = RehearsalClassifier(normed_network, random_state=0).fit(X, y)
    with pytest.raises(RehearseError, match="more than 1 value"):
        model.partial_fit(X[:1], y[:1])
    plain = RehearsalClassifier(small_network, random_state=0).fit(X, y).partial_fit(X[:1], y[:1])
    assert plain.learner_.samples_observed == 1


def test_one_replayed_sample_is_too_few_for_batch_norm():
    X, y = make_blobs(30, centers=2, n_features=4, random_state=0)
    with pytest.raises(RehearseError, match="at least 2"):
        RehearsalClassifier(normed_network, budget=1).fit(X, y)
    RehearsalClassifier(small_network, budget=1, random_state=0).fit(X, y)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("learning_rate", ["0.1", None, [], 0, float("nan"), True]),
        ("hidden", [100, "100", None, (1.5,), ("a",), (0,)]),
        ("optimizer", [[], None, "rmsprop"]),
        ("memory", [{}, None, "all"]),
        ("retrieval", [[], None, "best"]),
        ("budget", ["3", None, 0]),
        ("memory_size", ["3", None, 0]),
        ("batch_size", ["3", None, 0]),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(name, values):
    X, y = make_blobs(30, centers=2, n_features=4, random_state=0)
    for value in values:
        with pytest.raises(RehearseError, match=name.replace("memory_size", "capacity|memory_size")):
            RehearsalClassifier(**{name: value}).fit(X, y)


# ------------------------------------------------------------------- scales, several labels, values, weights, sparse


def shifted(blobs):
    X, y = blobs
    return X * [1e4, 1e-3] + [1e6, 5], y


def test_inputs_of_any_scale_are_stored_as_they_come_and_learned_class_by_class(blobs):
    X, y = shifted(blobs)
    one, off = RehearsalClassifier(random_state=0), RehearsalClassifier(random_state=0, scale=False)
    for label in range(4):
        for model in (one, off):
            model.partial_fit(X[y == label], y[y == label])
    assert one.score(X, y) > 0.9 > off.score(X, y)
    stored = one.learner_.memory.all().x
    assert {tuple(row) for row in stored.tolist()} <= {tuple(row) for row in X.astype(np.float32).tolist()}
    assert isinstance(one.learner_.network.prepare, RunningScaler)
    np.testing.assert_allclose(one.learner_.network.prepare.mean, X.mean(0), rtol=1e-5)


def test_any_number_of_labels_may_be_right(blobs):
    X, _ = blobs
    y = np.stack([X[:, 0] > 0, X[:, 1] > 0, X.sum(1) > 0], 1).astype(int)
    model = RehearsalClassifier(random_state=0, epochs=20).fit(X, y)
    assert (model.predict(X) == y).mean() > 0.95
    assert model.predict_proba(X).shape == y.shape
    again = RehearsalClassifier(random_state=0)
    for _ in range(5):
        again.partial_fit(X, y)
    assert (again.predict(X) == y).mean() > 0.95
    for other in (y[:, :2], y[:, 0]):
        with pytest.raises(RehearseError, match="cannot change"):
            again.partial_fit(X, other)


@pytest.mark.parametrize("outputs", [None, 2])
def test_values_are_learned_in_their_own_units_and_stored_as_they_come(outputs):
    draws = np.random.default_rng(0).normal(size=(600, 3))
    y = 1e5 + 300 * draws[:, 0] - 1000 * draws[:, 1]
    y = y if outputs is None else np.stack([y, draws[:, 2]], 1)
    X = draws * [1, 100, 0.01] + 7
    fitted = RehearsalRegressor(random_state=0).fit(X[:500], y[:500])
    assert fitted.score(X[500:], y[500:]) > 0.95
    model = RehearsalRegressor(random_state=0)
    for start in range(0, 500, 50):
        model.partial_fit(X[start : start + 50], y[start : start + 50])
    assert model.score(X[500:], y[500:]) > 0.9
    assert model.predict(X).shape == y.shape
    assert model.learner_.memory.all().y.max() > 1e5
    with pytest.raises(RehearseError, match="per sample"):
        model.partial_fit(X, np.ones((600, 5)))


def test_a_refused_batch_of_values_moves_no_statistics():
    model = RehearsalRegressor(random_state=0).partial_fit(np.random.default_rng(0).normal(size=(20, 2)), np.arange(20))
    count = model.learner_.loss.scaler.count
    with pytest.raises(RehearseError):
        building.learn(model.learner_, torch.ones(3, 9), torch.ones(3, 1))
    assert model.learner_.loss.scaler.count == count == 20


def test_a_sparse_matrix_is_refused_with_what_to_do(blobs):
    with pytest.raises(TypeError, match="toarray"):
        RehearsalClassifier().fit(scipy.sparse.csr_matrix(blobs[0]), blobs[1])


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_samples_of_weight_zero_teach_nothing_and_classes_have_weights(blobs, method):
    X, y = blobs
    wrong = np.where(np.arange(len(y)) % 2, (y + 1) % 4, y)
    weight = 1.0 * (wrong == y)
    learn = lambda **given: getattr(RehearsalClassifier(random_state=0), method)(X, wrong, **given)  # noqa: E731
    assert learn(sample_weight=weight).score(X, y) > 0.95
    assert learn().score(X, y) < 0.95
    rare = RehearsalClassifier(random_state=0, class_weight={0: 100})
    assert (getattr(rare, method)(X, wrong).predict(X) == 0).mean() > (learn().predict(X) == 0).mean() + 0.1
    with pytest.raises(RehearseError, match="partial_fit"):
        RehearsalClassifier(class_weight="balanced").partial_fit(X, y)
