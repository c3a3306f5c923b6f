"""What a second reading of the generative learner found: whatever can be put in is taken as it is meant, or refused."""

import copy

import numpy as np
import pytest
import torch
from rehearse.learners.generative_objectives import generator_objective
from rehearse.learners.same_rows import can_stay
from rehearse.learners.view import View
from test_generative import batch, everything, learner, observed, same
from torch import nn

from rehearse.errors import CheckpointError, InvalidInput, InvalidType
from rehearse.latent import Elbo, LatentSearch, divergence, entropy, gaussian_kl
from rehearse.learners import Coefficients, GenerativeReplay, LatentRetrieval
from rehearse.losses import soft_cross_entropy, soft_cross_entropy_with_gradient
from rehearse.nets import MLP, VAE, GatedMLP
from rehearse.network import prepare_unit


def retrieval(**options):
    return LatentRetrieval(LatentSearch(steps=2), **options)


# --------------------------------------------------------------------------------- several steps on the same rows


class Scaled(GatedMLP):
    def forward(self, x):
        return super().forward((x - 0.5) / 0.25)


class Between(nn.Module):
    """Layers that happen to bear the names, with something between them."""

    def __init__(self):
        super().__init__()
        self.first, self.rest = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.rest(self.first(x).relu())


def hooked(model):
    model.hidden.register_forward_hook(lambda *arguments: None)
    return model


def watched(model):
    model.hidden.weight.register_hook(lambda gradient: 0 * gradient)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scaled(6, 8, 4, dropout=0.0),
        Between,
        lambda: hooked(GatedMLP(6, 8, 4)),
        lambda: watched(GatedMLP(6, 8, 4)),
    ],
)
def test_only_a_classifier_that_says_how_it_splits_is_split(make):
    model = make()
    rows, optimizer = torch.rand(3, 6), torch.optim.SGD(model.parameters(), lr=0.1)
    assert not can_stay(model, optimizer, rows)
    assert can_stay(GatedMLP(6, 8, 4), torch.optim.SGD(GatedMLP(6, 8, 4).parameters(), lr=0.1), rows) is False
    plain = GatedMLP(6, 8, 4)
    assert can_stay(plain, torch.optim.SGD(plain.parameters(), lr=0.1), rows)


def test_an_optimiser_that_is_watched_takes_its_steps_itself():
    model = GatedMLP(6, 8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *arguments: None)
    assert not can_stay(model, optimizer, torch.rand(3, 6))


# -------------------------------------------------------------------------------------------------------- searching


def test_the_optimisers_real_step_is_foreseen_as_it_will_be_clipped():
    ours = learner(classifier_retrieval=retrieval(virtual_step="optimizer"), clip=1e-3)
    observed(ours, 0, 0)
    gradient = {name: torch.ones_like(value) for name, value in ours.model.named_parameters()}
    foreseen = ours.classifier_retrieval.foresee(ours.model, ours.optimizer, gradient, ours.clip)
    steps = [foreseen[name] - value for name, value in ours.model.named_parameters()]
    length = torch.linalg.vector_norm(torch.cat([step.flatten() for step in steps])).item()
    assert length == pytest.approx(0.1 * 1e-3, rel=1e-2)


@pytest.mark.parametrize("decode", ["own", "previous"])
def test_a_generator_that_does_not_move_is_not_interfered_with(decode):
    torch.manual_seed(0)
    generator = VAE((6,), hidden=8, latent=3).eval()
    classifier = MLP(6, (8,), 4).eval()
    objective = generator_objective(
        Coefficients(kl=1.0, reconstruction=1.0), View(classifier), View(generator), View(generator), decode
    )
    points = torch.randn(7, 3)
    assert torch.equal(objective.measure(points)[0], torch.zeros(7))


def test_without_steps_a_search_changes_nothing_that_it_measures():
    search = LatentRetrieval(LatentSearch(steps=0), Coefficients(kl=1.0, reconstruction=1.0))
    ours = learner(generator_retrieval=search)
    observed(ours, 0, 0, 1, 1, 1)
    told = ours.search_report()["generator"]
    assert told["searches"] == 3
    assert told["interference_before"] == pytest.approx(told["interference_after"], abs=1e-6)


class Exploding(VAE):
    """Far from the prior it makes no numbers any more."""

    def decode(self, z):
        return super().decode(z) * torch.where(z.detach().abs().amax() > 1e3, torch.inf, 1.0)


def test_points_that_the_networks_make_no_numbers_of_are_not_replayed():
    far = LatentRetrieval(LatentSearch(steps=2, step_size=1e6), Coefficients(diversity=1.0))
    ours = learner(generator=Exploding((6,), hidden=8, latent=3), classifier_retrieval=far)
    step = observed(ours, 0, 0, 1, 1)
    assert step.replayed is not None
    assert bool(step.replayed.x.isfinite().all())
    told = ours.search_report()["classifier"]
    assert (told["searches"], told["fallbacks"]) == (2, 2)


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classifier_retrieval": LatentSearch()}, "retrieved by a LatentRetrieval"),
        ({"generator_retrieval": 3}, "retrieved by a LatentRetrieval"),
        ({"classifier_retrieval": retrieval(coefficients=Coefficients(reconstruction=1.0))}, "reconstructs nothing"),
        ({"reuse": "no"}, "reuse is 'no'"),
    ],
)
def test_what_cannot_be_searched_with_is_refused(options, words):
    with pytest.raises((InvalidInput, InvalidType), match=words):
        learner(**options)


def test_one_search_for_two_networks_is_refused():
    shared = retrieval()
    with pytest.raises(InvalidInput, match="a retrieval and a search each"):
        learner(classifier_retrieval=shared, generator_retrieval=shared)
    with pytest.raises(InvalidType, match="made of a LatentSearch"):
        LatentRetrieval(Coefficients())


class WrongWidth(VAE):
    def decode(self, z):
        return super().decode(z)[:, :-1]


class OneCode(VAE):
    def encode(self, x):
        return super().encode(x)[0]


class MeanLoss(VAE):
    def loss(self, x):
        return Elbo(*(part.mean() for part in super().loss(x)))


class Detached(VAE):
    def decode(self, z):
        return super().decode(z.detach()).detach()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (WrongWidth, r"decode gives \(2, 5\); inputs have shape \(2, 6\)"),
        (OneCode, "encode must give a tuple of a mean and a log-variance"),
        (MeanLoss, "loss must give a tuple of reconstruction and KL, one value a row each"),
        (Detached, "no gradient on to z"),
    ],
)
def test_a_generator_that_does_not_keep_its_word_is_refused_at_the_first_batch(kind, words):
    ours = learner(generator=kind((6,), hidden=8, latent=3), classifier_retrieval=retrieval())
    before = everything(ours)
    with pytest.raises(InvalidInput, match=words):
        observed(ours, 0)
    assert same(everything(ours), before)


def test_preparing_at_random_moves_nobodys_random_numbers():
    def prepare(x):
        return prepare_unit(x) + 0.01 * torch.rand(x.shape)

    ours = learner(prepare=prepare, generator=VAE((6,), hidden=8, latent=3, reconstruction="gaussian"))
    before = torch.get_rng_state()
    observed(ours, 0, 0, 1)
    assert torch.equal(torch.get_rng_state(), before)


# ------------------------------------------------------------------------------------------------------------ state


def test_a_state_of_another_optimiser_is_refused():
    classifier, generator = MLP(6, (8,), 4), VAE((6,), hidden=8, latent=3)
    adam = GenerativeReplay(
        classifier,
        torch.optim.SGD(classifier.parameters(), lr=0.1),
        generator,
        torch.optim.Adam(generator.parameters()),
        memories=2,
    )
    observed(adam, 0, 1)
    other = learner()
    with pytest.raises(CheckpointError, match="the state is of Adam, this optimiser is SGD"):
        other.load_state_dict(adam.state_dict())
    observed(other, 0, 1)


def test_a_state_with_a_search_does_not_fit_a_learner_without():
    searching, plain = learner(classifier_retrieval=retrieval()), learner()
    for one, other in ((searching, plain), (plain, searching)):
        with pytest.raises(CheckpointError, match="searches for its"):
            one.load_state_dict(other.state_dict())


def test_a_head_that_cannot_grow_leaves_the_stale_gradient():
    ours = learner(GatedMLP(6, 8, 4, dropout=0.0), classifier_retrieval=retrieval(gradient="stale"))
    observed(ours, 0, 1)
    with pytest.raises(InvalidInput):
        ours.grow(6)
    assert "classifier" in ours._last_gradients


class Counting(VAE):
    """A generator with a buffer that torch does not save, on which its passes depend."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.register_buffer("passes", torch.zeros(()), persistent=False)

    def loss(self, x):
        if self.training:
            self.passes += 1
        reconstruction, kl = super().loss(x)
        return Elbo(reconstruction * (1 + 0.01 * self.passes), kl)


def test_buffers_that_torch_does_not_save_are_saved_and_put_back():
    ours = learner(generator=Counting((6,), hidden=8, latent=3))
    observed(ours, 0, 0, 1)
    saved = copy.deepcopy(ours.state_dict())
    passes = ours.generator.passes.item()
    with pytest.raises(InvalidInput):
        ours.observe(torch.full((2, 6), 2.0), torch.tensor([0, 1]), task=1)  # no Bernoulli input
    assert ours.generator.passes.item() == passes
    again = learner(generator=Counting((6,), hidden=8, latent=3))
    again.load_state_dict(saved)
    for one in (ours, again):
        one.observe(*batch(9), task=1)
    assert same(everything(ours), everything(again))


def test_the_generators_losses_of_nothing_and_of_what_it_cannot_take():
    ours = learner()
    assert len(ours.generator_losses(torch.rand(0, 6)).kl) == 0
    with pytest.raises(InvalidInput, match="one tensor of real numbers"):
        ours.generator_losses((torch.rand(2, 6), torch.rand(2, 6)))


# ------------------------------------------------------------------------------------- what is measured, shown and said


def test_what_has_not_moved_is_measured_alike_before_and_after():
    ours = learner(generator_retrieval=LatentRetrieval(LatentSearch(steps=0)))
    observed(ours, 0, *[1] * 8)
    told = ours.search_report()["generator"]
    assert (told["searches"], told["measured"]) == (8, 2)
    assert told["interference_after"] == told["interference_before"] != 0


def test_measuring_the_generator_has_no_part_in_what_is_learned(monkeypatch):
    states = []
    for every in (1, 5):
        monkeypatch.setattr("rehearse.learners.generative_objectives.MEASURED_EVERY", every)
        torch.manual_seed(1)
        ours = learner(generator=VAE((6,), hidden=8, latent=3, dropout=0.3), generator_retrieval=retrieval())
        observed(ours, 0, *[1] * 6)
        states.append((ours.model.state_dict(), ours.generator.state_dict()))
        assert ours.search_report()["generator"]["measured"] == -(-6 // every)
    assert all(torch.equal(states[0][part][name], states[1][part][name]) for part in (0, 1) for name in states[0][part])


class NotJudged(VAE):
    """In eval mode it has no finite reconstruction."""

    def loss(self, x):
        found = super().loss(x)
        return found if self.training else Elbo(found.reconstruction / 0, found.kl)


def test_what_weighs_nothing_has_no_part_in_which_searches_fall_back():
    torch.manual_seed(1)
    ours = learner(generator=NotJudged((6,), hidden=8, latent=3), generator_retrieval=retrieval())
    observed(ours, 0, *[1] * 8)
    assert ours.search_report()["generator"]["fallbacks"] == 0


@pytest.mark.parametrize(("kl", "reconstruction", "passes"), [(0.1, 0.0, 4), (0.0, 0.0, 4), (0.0, 0.1, None)])
def test_only_searches_that_are_measured_take_more_passes(kl, reconstruction, passes, monkeypatch):
    asked = []
    plain = View.loss
    monkeypatch.setattr(View, "loss", lambda self, x: asked.append(1) or plain(self, x))
    weights = Coefficients(kl=kl, reconstruction=reconstruction)
    ours = learner(generator_retrieval=retrieval(coefficients=weights))
    observed(ours, 0, *[1] * 7)
    told = ours.search_report()["generator"]
    if passes is None:
        assert told["measured"] == 7
    else:
        assert (told["measured"], len(asked)) == (1, passes), "two sides, before and after, of one search"


def test_the_rows_that_are_shown_begin_with_the_most_interfered():
    weights = Coefficients(kl=1.0, reconstruction=1.0)
    ours = learner(classifier_retrieval=retrieval(), generator_retrieval=retrieval(coefficients=weights))
    step = observed(ours, 0, 1)
    assert torch.equal(ours.last_retrieved.classifier, step.replayed.x)
    generator = generator_objective(weights, View(MLP(6, (8,), 4)), *[View(ours.previous.generator)] * 2, "own")
    assert generator.measured_every == 1
    under = learner(classifier_retrieval=retrieval(init="encoder"))
    step = observed(under, 0, 1)
    assert not torch.equal(under.last_retrieved.classifier, step.replayed.x), "each under the row that it started from"
    assert torch.equal(under.last_retrieved.classifier.sort(0).values, step.replayed.x.sort(0).values)


def test_the_generators_rows_are_ordered_by_their_interference(monkeypatch):
    found, ahead = [], []
    plain, plainly = LatentRetrieval.__call__, LatentRetrieval.foresee

    def foresee(self, model, *arguments):
        parameters = plainly(self, model, *arguments)
        ahead.append(copy.deepcopy(model).eval())
        ahead[0].load_state_dict(parameters)
        return parameters

    def noted(self, *arguments):
        found.append(plain(self, *arguments))
        return found[-1]

    monkeypatch.setattr(LatentRetrieval, "__call__", noted)
    monkeypatch.setattr(LatentRetrieval, "foresee", lambda self, model, *_: foresee(self, model, *_))
    ours = learner(generator_retrieval=retrieval())
    observed(ours, 0, 1)
    ((z, interference),) = found
    with torch.no_grad():
        before, after = (
            gaussian_kl(*network.encode(network.decode(z))) for network in (ours.previous.generator, ahead[0])
        )
    torch.testing.assert_close(interference, after - before, rtol=1e-3, atol=1e-4)
    ordered = ours.previous.generator.decode(z[interference.argsort(descending=True)])
    torch.testing.assert_close(ours.last_retrieved.generator, ordered)
    assert not torch.allclose(ours.last_retrieved.generator, ours.previous.generator.decode(z))


def test_rows_from_too_far_out_are_told_as_what_they_are():
    far = LatentRetrieval(LatentSearch(steps=3, step_size=1e9), Coefficients(kl=0, entropy=0, diversity=1))
    torch.manual_seed(1)
    ours = learner(generator=VAE((6,), hidden=8, latent=3, reconstruction="gaussian"), classifier_retrieval=far)
    with pytest.raises(InvalidInput, match=r"found by a search in latent space.* smaller step_size"):
        observed(ours, 0, *[1] * 20)


class Masked(nn.Module):
    """Rules a class out."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x):
        return self.inner(x).index_fill(1, torch.tensor([3]), -torch.inf)


def test_a_label_that_is_wrong_is_not_the_searchs_fault():
    ours = learner(generator_retrieval=retrieval())
    observed(ours, 0, 1)
    with pytest.raises(InvalidInput) as raised:
        ours.observe(torch.rand(2, 6), torch.tensor([0, 7]), 1)
    assert "step_size" not in str(raised.value)


def test_the_generators_losses_are_the_same_every_time_whatever_prepares_the_rows():
    ours = learner(prepare=lambda x: (x + 0.1 * torch.rand_like(x)).clamp(0, 1))
    observed(ours, 0)
    x, everybodys = batch(9)[0], torch.get_rng_state()
    assert torch.equal(ours.generator_losses(x).kl, ours.generator_losses(x).kl)
    assert torch.equal(torch.get_rng_state(), everybodys)


@pytest.mark.parametrize("searched", [False, True])
def test_a_classifier_may_rule_classes_out(searched):
    both = {"classifier_retrieval": retrieval(), "generator_retrieval": retrieval()} if searched else {}
    ours = learner(Masked(), **both)
    for task in (0, 0, 1, 1):
        x, y = batch(task)
        step = ours.observe(x, y % 3, task)
    assert step.replayed_loss > 0
    assert all(report["fallbacks"] == 0 for report in ours.search_report().values())
    assert all(bool(parameter.isfinite().all()) for parameter in ours.model.parameters())


def test_losses_of_ruled_out_classes_by_hand():
    scores, q = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True), torch.tensor([[0.25, 0.75, 0.0]])
    by_hand = 0.25 * (1 + torch.tensor(1.0).exp()).log() + 0.75 * ((1 + torch.tensor(1.0).exp()).log() - 1)
    loss = soft_cross_entropy(scores, q)
    torch.testing.assert_close(loss, by_hand[None])
    (slope,) = torch.autograd.grad(loss.sum(), scores)
    again, gradient = soft_cross_entropy_with_gradient(scores.detach(), q)
    torch.testing.assert_close(again, by_hand[None])
    torch.testing.assert_close(slope, gradient)
    assert slope[0, 2] == 0
    wanted = torch.tensor([[0.2, 0.7, 0.1]])
    assert soft_cross_entropy(scores, wanted).isinf().all(), "a class that is wanted is not ruled out in silence"
    assert soft_cross_entropy_with_gradient(scores.detach(), wanted)[0].isinf().all()


def test_divergence_and_entropy_of_ruled_out_classes_by_hand():
    scores = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    log_p, full = scores.log_softmax(1), torch.tensor([[0.0, 1.0]]).log_softmax(1)
    torch.testing.assert_close(entropy(log_p), entropy(full))
    for other in (torch.tensor([[0.5, 0.5, -torch.inf]]), torch.tensor([[0.5, 0.5, 0.0]])):
        value = divergence(log_p, other.log_softmax(1))
        by_hand = (full.exp() * (full - other.log_softmax(1)[:, :2])).sum(1)
        torch.testing.assert_close(value, by_hand)
        (slope,) = torch.autograd.grad((value + entropy(log_p)).sum(), scores, retain_graph=True)
        assert slope.isfinite().all()
    assert divergence(torch.zeros(1, 3).log_softmax(1), log_p).isinf().all()


def test_what_is_asked_of_a_generator_is_checked_too():
    ours = learner()
    observed(ours, 0)
    for ask in (ours.generator_losses, ours.reconstruct):
        with pytest.raises(InvalidInput, match=r"the generator's (loss|encode) fails for rows of shape"):
            ask(torch.rand(3, 5))
    for rows in (-1, 0, 2.5):
        with pytest.raises(InvalidInput, match="rows is"):
            ours.imagine(rows)


@pytest.mark.parametrize("step_size", ["0.1", True, None, 0, -1.0, float("inf")])
def test_a_step_size_is_a_positive_number(step_size):
    with pytest.raises(InvalidInput, match="step size"):
        LatentSearch(3, step_size)


def test_numbers_of_numpy_are_numbers():
    assert LatentSearch(np.int64(3), np.float32(0.1)).steps == 3
    assert Coefficients(kl=np.float32(1)).kl == 1


class NotFinite(VAE):
    def decode(self, z):
        return super().decode(z) / 0


class Lists(VAE):
    def encode(self, x):
        return list(super().encode(x))


@pytest.mark.parametrize(("kind", "words"), [(NotFinite, "decode gives numbers that are not"), (Lists, "a tuple of")])
def test_a_generator_that_makes_something_else_is_refused_at_once(kind, words):
    with pytest.raises(InvalidInput, match=words):
        observed(learner(generator=kind((6,), hidden=8, latent=3)), 0)


def test_whose_optimiser_is_wrong_is_said():
    classifier, generator = MLP(6, (8,), 4), VAE((6,), hidden=8, latent=3)
    sgd = torch.optim.SGD(classifier.parameters(), lr=0.1)
    with pytest.raises(InvalidInput, match=r"of the generator holds no .* build it from generator\.parameters"):
        GenerativeReplay(classifier, sgd, generator, sgd)
    with pytest.raises(InvalidType, match=r"the generator must be an nn\.Module"):
        GenerativeReplay(classifier, sgd, VAE, sgd)
