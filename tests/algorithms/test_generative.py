"""Generative replay: Algorithm 2, line by line, against a slow way of doing the same; and its undo."""

import copy

import pytest
import torch
import torch.nn.functional as F
from generative_learner import GENERATOR_LR, LR, batch, learner, observed, previous, searches
from torch import nn

from rehearse.errors import InvalidInput, InvalidType
from rehearse.lab.measurements import generator_losses, imagine, reconstruct, retrieve
from rehearse.lab.predictors import own_metrics
from rehearse.latent import LatentSearch
from rehearse.learners import Coefficients, LatentRetrieval
from rehearse.learners.generative.objectives import soft_cross_entropy
from rehearse.nets import VAE, GatedMLP
from sameness import assert_same, frozen

# ------------------------------------------------------------------------------------------------ snapshots and replay


def test_there_is_no_replay_in_the_first_task():
    step = observed(learner(), 0, 0, 0)
    assert step.replayed is None
    assert step.replayed_loss is None


def test_the_snapshot_is_of_the_end_of_the_task():
    ours = learner()
    observed(ours, 0, 0)
    weights = copy.deepcopy(ours.model.state_dict()), copy.deepcopy(ours.generator.state_dict())
    ours.observe(*batch(7), task=1)
    ours.observe(*batch(8), task=1)
    for kept, taken in zip(weights, ours.past.previous, strict=True):
        assert_same(dict(taken), dict(kept))
        assert not any(tensor.requires_grad for tensor in taken.values())


def test_end_task_only_decides_when_the_snapshot_is_taken():
    explicit, implicit = learner(), learner()
    observed(explicit, 0, 0), observed(implicit, 0, 0)
    explicit.end_task()
    explicit.end_task()
    assert explicit.past.previous is not None
    assert implicit.past.previous is None
    explicit.observe(*batch(9), task=1), implicit.observe(*batch(9), task=1)
    assert_same(explicit.state_dict(), implicit.state_dict())


def test_without_tasks_a_snapshot_is_taken_every_so_many_batches():
    ours = learner(snapshot_every=3)
    replayed = [step.replayed is not None for step in (ours.observe(*batch(i)) for i in range(4))]
    assert replayed == [False, False, False, True]
    first = ours.past.previous
    ours.end_task()  # takes a snapshot, also without tasks
    assert ours.past.previous is not first


def test_replayed_samples_are_labeled_by_the_previous_classifier():
    ours = learner(memories=3)
    observed(ours, 0, 0, 0)
    step = ours.observe(*batch(4), task=1)
    x, probabilities = step.replayed.x, step.replayed.columns["probabilities"]
    assert x.shape == (15, 6)
    torch.testing.assert_close(probabilities, previous(ours)[0](x).softmax(1))
    assert torch.equal(step.replayed.y, probabilities.argmax(1))
    assert step.interference is None


def test_beta_grows_with_the_samples_of_the_task_and_starts_over():
    ours = learner(beta=0.5, warmup=20)
    betas = []
    for task in (0, 0, 0, 1):
        ours.observe(*batch(0), task=task)
        betas.append(ours._bounds(ours.past, (torch.zeros(1), torch.ones(1))).item())
    assert betas == [0.25, 0.5, 0.5, 0.25]


# ------------------------------------------------------------------------------------------------------------- updates


def test_an_update_is_the_sum_of_two_means():
    """θ ← θ − α ∇[mean ℓ(B_n) + w · mean ℓ(B_C)], and likewise the generator, by autograd on copies."""
    ours = learner(replay_weight=3.0, beta=0.5, warmup=1)
    observed(ours, 0, 0)
    classifier, generator = copy.deepcopy(ours.model), copy.deepcopy(ours.generator)
    state = ours.network.random.get()
    x, y = batch(5)
    step = ours.observe(x, y, task=1)
    probabilities = step.replayed.columns["probabilities"]
    log_p = classifier(step.replayed.x).log_softmax(1)
    loss = F.cross_entropy(classifier(x), y) + 3 * -(probabilities * log_p).sum(1).mean()
    loss.backward()
    for parameter, moved in zip(classifier.parameters(), ours.model.parameters(), strict=True):
        torch.testing.assert_close(moved, parameter - LR * parameter.grad)

    torch.set_rng_state(state["cpu"])
    torch.randn(10, 3)  # the classifier's replay was drawn first
    imagined = previous(ours)[1].decode(torch.randn(10, 3)).detach()
    losses = generator.loss(torch.cat([x, imagined])).total(0.5)
    (losses[:5].mean() + 3 * losses[5:].mean()).backward()
    for parameter, moved in zip(generator.parameters(), ours.generator.parameters(), strict=True):
        torch.testing.assert_close(moved, parameter - GENERATOR_LR * parameter.grad)


def test_soft_cross_entropy_by_hand_with_new_classes():
    scores, probabilities = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[0.25, 0.75]])
    log_p = scores.log_softmax(1)
    by_hand = -(0.25 * log_p[0, 0] + 0.75 * log_p[0, 1])
    assert soft_cross_entropy(scores, probabilities).item() == pytest.approx(by_hand.item())


def test_one_retrieval_serves_all_updates_or_each_has_its_own():
    for reuse, expected in ((True, 1), (False, 4)):
        ours = learner(updates=4, reuse=reuse, classifier_retrieval=LatentRetrieval(LatentSearch(steps=1)))
        observed(ours, 0, 1)
        assert searches(ours)["classifier"]["searches"] == expected


# ---------------------------------------------------------------------------------------------------------- the search


def interference(ours, ahead, x):
    p, q = previous(ours)[0](x).log_softmax(1), ahead(x).log_softmax(1)
    return (p.exp() * (p - q)).sum(1)


def test_the_fresh_look_ahead_is_the_step_on_the_incoming_batch():
    retrieval = LatentRetrieval(LatentSearch(steps=0))
    ours = learner(classifier_retrieval=retrieval)
    observed(ours, 0, 0, 0)
    ahead, (x, y) = copy.deepcopy(ours.model), batch(5)
    F.cross_entropy(ahead(x), y).backward()
    with torch.no_grad():
        for parameter in ahead.parameters():
            parameter -= LR * parameter.grad
    step = ours.observe(x, y, task=1)
    torch.testing.assert_close(step.interference, interference(ours, ahead, step.replayed.x), atol=1e-6, rtol=1e-4)
    assert (step.interference.diff() <= 0).all()


def test_a_search_in_bfloat16_is_close_to_one_in_float32():
    found, lowered = {}, {}
    for precision in ("float32", "bfloat16-scoring"):
        retrievals = {
            f"{network}_retrieval": LatentRetrieval(LatentSearch(3)) for network in ("classifier", "generator")
        }
        torch.manual_seed(1)
        ours = learner(classifier=GatedMLP(6, 8, 4, dropout=0.0), precision=precision, **retrievals)
        observed(ours, 0, 0)
        weight, asked = ours.model.hidden.weight, lowered.setdefault(precision, set())
        ours.model.flatten.register_forward_hook(lambda *_, asked=asked: asked.add(torch.is_autocast_enabled("cpu")))
        step = ours.observe(*batch(5), task=1)
        found[precision] = step.replayed.x, weight.detach().clone()
        assert searches(ours)["generator"]["interference_after"] is not None
    assert lowered == {"float32": {False}, "bfloat16-scoring": {True, False}}  # the search alone
    for exact, near in zip(found["float32"], found["bfloat16-scoring"], strict=True):
        assert near.dtype == torch.float32
        torch.testing.assert_close(near.sort(0).values, exact.sort(0).values, atol=0.01, rtol=0.05)
    assert not torch.equal(found["float32"][0], found["bfloat16-scoring"][0])


def test_the_stale_look_ahead_repeats_the_last_step():
    ours = learner(classifier_retrieval=LatentRetrieval(LatentSearch(steps=0), gradient="stale"))
    observed(ours, 0, 0)
    before = copy.deepcopy(ours.model)
    ours.observe(*batch(3), task=0)
    ahead = copy.deepcopy(ours.model)
    with torch.no_grad():
        for again, present, past in zip(ahead.parameters(), ours.model.parameters(), before.parameters(), strict=True):
            again.copy_(2 * present - past)
    step = ours.observe(*batch(5), task=1)
    torch.testing.assert_close(step.interference, interference(ours, ahead, step.replayed.x), atol=1e-6, rtol=1e-4)


def test_against_the_current_classifier_a_step_of_no_length_interferes_with_nothing():
    options = {"reference": "current", "virtual_step": "sgd"}
    ours = learner(classifier_retrieval=LatentRetrieval(LatentSearch(steps=0), rate=1e-30, **options))
    step = observed(ours, 0, 0, 1)
    torch.testing.assert_close(step.interference, torch.zeros(10), atol=1e-6, rtol=0)


def test_the_search_starts_from_the_codes_of_the_incoming_batch():
    vae = VAE((6,), hidden=8, latent=3)
    with torch.no_grad():
        vae.statistics.bias[3:].fill_(-80.0)  # q(z|x) is all but a point
    ours = learner(generator=vae, classifier_retrieval=LatentRetrieval(LatentSearch(steps=0), init="encoder"))
    observed(ours, 0, 0)
    ours.end_task()
    x, y = batch(5)
    reconstructions = previous(ours)[1](x)
    torch.testing.assert_close(retrieve(ours, x, y).classifier, reconstructions.repeat(2, 1), atol=1e-4, rtol=1e-4)


def test_a_search_that_fails_replays_samples_of_the_prior_and_is_reported():
    huge = LatentRetrieval(LatentSearch(steps=2, step_size=3e38), Coefficients(diversity=3e38))
    ours = learner(classifier_retrieval=huge)
    step = observed(ours, 0, 1, 1)
    assert searches(ours)["classifier"]["fallbacks"] == searches(ours)["classifier"]["searches"] == 2
    assert step.replayed.x.isfinite().all()


@pytest.mark.parametrize("init", ["prior", "encoder"])
def test_retrieve_returns_what_the_next_step_replays_and_changes_nothing(init):
    both = {f"{name}_retrieval": LatentRetrieval(init=init) for name in ("classifier", "generator")}
    ours = learner(warmup=20, **both)
    observed(ours, 0, 0, 1)
    x, y = batch(5)
    before, outside = frozen(ours.state_dict()), torch.get_rng_state()
    retrieved = retrieve(ours, x, y)
    assert_same(ours.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), outside)
    step = ours.observe(x, y, task=1)
    assert torch.equal(retrieved.incoming, x)
    if init == "prior":
        assert torch.equal(retrieved.classifier, step.replayed.x)
    else:  # each under the sample that it started from
        assert not torch.equal(retrieved.classifier, step.replayed.x)
        assert torch.equal(retrieved.classifier.sort(0).values, step.replayed.x.sort(0).values)


@pytest.mark.parametrize("retrieval", [None, {"ranking": 3}, {"virtual_step": "optimizer"}, {"decode": "previous"}])
def test_the_generators_search_runs_in_every_form(retrieval):
    option = None if retrieval is None else LatentRetrieval(LatentSearch(steps=2), **retrieval)
    ours = learner(generator_retrieval=option)
    observed(ours, 0, 0, 1, 1)
    assert list(searches(ours)) == ([] if retrieval is None else ["generator"])
    assert retrieve(ours, *batch(4)).generator.shape == (10, 6)


def test_searching_leaves_the_networks_in_train_mode_and_without_gradients():
    ours = learner(GatedMLP(6, 8, 4), classifier_retrieval=LatentRetrieval(), generator_retrieval=LatentRetrieval())
    observed(ours, 0, 1)
    assert ours.model.training
    assert ours.generator.training
    assert all(parameter.grad is None for parameter in ours.generator.parameters())


# ------------------------------------------------------------------------------------------------- state and refusals

SEARCHED = {"gradient": "stale", "init": "encoder"}


def searching(**options):
    return learner(
        GatedMLP(6, 8, 4),
        VAE((6,), hidden=8, latent=3, dropout=0.2),
        classifier_retrieval=LatentRetrieval(LatentSearch(steps=2), **SEARCHED),
        generator_retrieval=LatentRetrieval(LatentSearch(steps=2), **SEARCHED),
        updates=2,
        **options,
    )


def test_generative_replay_resumes_bit_for_bit():
    first, second = searching(), searching()
    observed(first, 0, 0, 1)
    second.load_state_dict(first.state_dict())
    for ours in (first, second):
        ours.observe(*batch(8), task=1)
        ours.observe(*batch(9), task=2)
    assert_same(first.state_dict(), second.state_dict())


class FailingLate(VAE):
    """A generator whose loss is NaN at the fourth pass from now."""

    passes = -1000

    def loss(self, x):
        self.passes += 1
        found = super().loss(x)
        return found if self.passes < 4 else found._replace(kl=found.kl / 0 * float("inf"))


def test_a_failure_undoes_both_networks_the_snapshot_and_the_counts():
    ours = learner(
        generator=FailingLate((6,), hidden=8, latent=3),
        classifier_retrieval=LatentRetrieval(LatentSearch(steps=2)),
        updates=5,
    )
    observed(ours, 0, 0)
    before = frozen(ours.state_dict())
    ours.generator.passes = 0
    with pytest.raises(InvalidInput):
        ours.observe(*batch(3), task=1)
    assert_same(ours.state_dict(), before)
    assert ours.past.previous is None


@pytest.mark.parametrize(
    "x", [torch.rand(5, 7), {"a": torch.rand(5, 6)}, torch.randint(0, 5, (5, 6)), torch.full((5, 6), 2.0)]
)
def test_inputs_that_a_generator_cannot_take(x):
    ours = learner()
    observed(ours, 0)
    before = frozen(ours.state_dict())
    with pytest.raises(InvalidInput):
        ours.observe(x, torch.zeros(5, dtype=torch.int64), task=0)
    assert_same(ours.state_dict(), before)


def test_invalid_generative_options():
    with pytest.raises(InvalidType, match="encode"):
        learner(generator=nn.Linear(6, 6))
    for wrong in ({"memories": 0}, {"replay_weight": -1.0}, {"warmup": 0}, {"snapshot_every": 0}, {"beta": -0.1}):
        with pytest.raises(InvalidInput):
            learner(**wrong)


def test_a_grown_head_works_with_older_snapshots():
    ours = learner(classifier_retrieval=LatentRetrieval(LatentSearch(steps=1), gradient="stale"))
    observed(ours, 0, 0)
    ours.end_task()
    ours.grow(6)
    x, _ = batch(5)
    step = ours.observe(x, torch.full((5,), 5), task=1)
    assert step.replayed.columns["probabilities"].shape == (10, 4)
    again = learner(classifier_retrieval=LatentRetrieval(LatentSearch(steps=1), gradient="stale"))
    again.load_state_dict(ours.state_dict())
    for each in (ours, again):
        each.observe(*batch(6), task=1)
    assert_same(ours.state_dict(), again.state_dict())


# ------------------------------------------------------------------------------------------------------------- metrics


def test_measuring_the_generator_changes_nothing_and_is_the_same_every_time():
    ours = searching(beta=0.2)
    observed(ours, 0, 0, 1)
    before, outside = frozen(ours.state_dict()), torch.get_rng_state()
    x, _ = batch(3, samples=2500)
    first, second = generator_losses(ours, x), generator_losses(ours, x)
    assert torch.equal(first.reconstruction, second.reconstruction)
    assert first.kl.shape == (2500,)
    metrics = own_metrics(ours, x)
    assert metrics["negative_elbo"] == pytest.approx(metrics["reconstruction"] + metrics["kl"])
    assert metrics["generator-loss"] == pytest.approx(metrics["reconstruction"] + 0.2 * metrics["kl"])
    assert metrics["kl"] == pytest.approx(first.kl.mean().item(), rel=1e-5)
    assert torch.equal(imagine(ours, 4), imagine(ours, 4))
    assert reconstruct(ours, x[:3]).shape == (3, 6)
    assert_same(ours.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), outside)


def test_every_sample_that_passes_is_counted():
    ours = learner(memories=2, updates=3)
    ours.observe(*batch(0), task=0)
    assert ours.forward_passes == 3 * 2  # classifier and generator, three times
    ours.observe(*batch(1), task=1)
    samples = 5 * 3 * 2 + (10 + 10) + 10 + 3 * 2 * 15  # then: decode and label, decode, and 15 samples through both
    assert ours.samples_passed == samples


# -------------------------------------------------------------------------------------- several steps on one batch


@pytest.mark.parametrize("tasks", [(0,), (0, 0, 1, 1)])
def test_several_steps_with_and_without_the_fast_descent_agree(tasks, monkeypatch):
    def trained():
        torch.manual_seed(0)
        ours = learner(
            GatedMLP(6, 8, 4, dropout=0.3), memories=1, updates=5, replay_weight=2.0,
            classifier_retrieval=LatentRetrieval(LatentSearch(steps=1), gradient="stale"),
        )  # fmt: skip
        for number, task in enumerate(tasks):
            ours.observe(*batch(number, samples=2), task=task)
        return ours

    fast = trained()
    monkeypatch.setenv("REHEARSE_FAST", "0")
    plain = trained()
    assert fast.forward_passes == plain.forward_passes
    assert fast.progress == plain.progress
    for ours, expected in zip(fast.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)
    for name, expected in plain.past.gradients[0].items():
        torch.testing.assert_close(fast.past.gradients[0][name], expected, atol=1e-5, rtol=1e-4)
