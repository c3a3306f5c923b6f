"""Algorithm 2, line by line, against a slow way of doing the same; and what must stay when a step is refused."""

import copy

import pytest
import torch
import torch.nn.functional as F
from rehearse.learners.same_rows import can_stay
from torch import nn

from rehearse.errors import InvalidInput, InvalidType
from rehearse.latent import LatentSearch
from rehearse.learners import Coefficients, GenerativeReplay, LatentRetrieval
from rehearse.losses import soft_cross_entropy
from rehearse.nets import MLP, VAE, GatedMLP

LR, RATE = 0.1, 0.01


def learner(classifier=None, generator=None, **options):
    torch.manual_seed(0)
    classifier = classifier or MLP(6, (8,), 4)
    generator = generator or VAE((6,), hidden=8, latent=3)
    return GenerativeReplay(
        classifier,
        torch.optim.SGD(classifier.parameters(), lr=LR),
        generator,
        torch.optim.SGD(generator.parameters(), lr=RATE),
        **{"memories": 2, **options},
    )


def batch(seed, rows=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 6, generator=generator), torch.randint(0, 4, (rows,), generator=generator)


def observed(learner, *tasks):
    for number, task in enumerate(tasks):
        step = learner.observe(*batch(number), task=task)
    return step


def everything(learner):
    """All tensors and values of the state, flat, for comparison."""

    def leaves(value):
        if isinstance(value, dict):
            return [leaf for key in sorted(value, key=str) for leaf in leaves(value[key])]
        return [leaf for part in value for leaf in leaves(part)] if isinstance(value, list | tuple) else [value]

    return leaves(learner.state_dict())


def same(first, second):
    return len(first) == len(second) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(first, second, strict=True)
    )


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
    for kept, taken in zip(weights, (ours.previous.classifier, ours.previous.generator), strict=True):
        assert all(torch.equal(value, taken.state_dict()[name]) for name, value in kept.items())
        assert not taken.training
        assert not any(parameter.requires_grad for parameter in taken.parameters())


def test_saying_that_the_task_ends_changes_nothing_but_when_the_snapshot_is_taken():
    told, untold = learner(), learner()
    observed(told, 0, 0), observed(untold, 0, 0)
    told.end_task()
    told.end_task()
    assert told.previous is not None
    assert untold.previous is None
    told.observe(*batch(9), task=1), untold.observe(*batch(9), task=1)
    assert same(everything(told), everything(untold))


def test_without_tasks_a_snapshot_is_taken_every_so_many_batches():
    ours = learner(snapshot_every=3)
    replayed = [observed_one.replayed is not None for observed_one in (ours.observe(*batch(i)) for i in range(4))]
    assert replayed == [False, False, False, True]
    first = ours.previous
    ours.end_task()  # who says so without tasks means a snapshot
    assert ours.previous is not first
    for i in range(3):
        ours.observe(*batch(i))
    assert ours.previous is not first


def test_what_is_replayed_is_of_the_previous_generator_and_labelled_by_the_previous_classifier():
    ours = learner(memories=3)
    observed(ours, 0, 0, 0)
    step = ours.observe(*batch(4), task=1)
    x, probabilities = step.replayed.x, step.replayed.columns["probabilities"]
    assert x.shape == (15, 6)
    torch.testing.assert_close(probabilities, ours.previous.classifier(x).softmax(1))
    assert torch.equal(step.replayed.y, probabilities.argmax(1))
    assert step.interference is None


def test_beta_grows_with_the_rows_of_the_task_and_starts_over():
    ours = learner(beta=0.5, warmup=20)
    betas = []
    for task in (0, 0, 0, 1):
        ours.observe(*batch(0), task=task)
        betas.append(ours.present_beta)
    assert betas == [0.25, 0.5, 0.5, 0.25]


# ------------------------------------------------------------------------------------------------------------- updates


def test_an_update_is_the_sum_of_two_means():
    """θ ← θ − α ∇[mean ℓ(B_n) + w · mean ℓ(B_C)], and likewise the generator, by autograd on copies."""
    ours = learner(replay_weight=3.0, beta=0.5, warmup=1)
    observed(ours, 0, 0)
    classifier, generator = copy.deepcopy(ours.model), copy.deepcopy(ours.generator)
    state = ours.random.get()
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
    imagined = ours.previous.generator.decode(torch.randn(10, 3))
    assert torch.equal(imagined, ours.last_retrieved.generator)
    losses = generator.loss(torch.cat([x, imagined])).total(0.5)
    (losses[:5].mean() + 3 * losses[5:].mean()).backward()
    for parameter, moved in zip(generator.parameters(), ours.generator.parameters(), strict=True):
        torch.testing.assert_close(moved, parameter - RATE * parameter.grad)


def test_soft_cross_entropy_by_hand_with_classes_that_came_later():
    scores, probabilities = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[0.25, 0.75]])
    log_p = scores.log_softmax(1)
    by_hand = -(0.25 * log_p[0, 0] + 0.75 * log_p[0, 1])
    assert soft_cross_entropy(scores, probabilities).item() == pytest.approx(by_hand.item())


def test_one_retrieval_serves_all_updates_or_each_has_its_own():
    for reuse, searches in ((True, 1), (False, 4)):
        ours = learner(updates=4, reuse=reuse, classifier_retrieval=LatentRetrieval(LatentSearch(steps=1)))
        observed(ours, 0, 1)
        assert ours.search_report()["classifier"]["searches"] == searches


# ---------------------------------------------------------------------------------------------------------- the search


def interference(ours, foreseen, x):
    p, q = ours.previous.classifier(x).log_softmax(1), foreseen(x).log_softmax(1)
    return (p.exp() * (p - q)).sum(1)


def test_the_fresh_look_ahead_is_the_step_on_the_incoming_batch():
    retrieval = LatentRetrieval(LatentSearch(steps=0))
    ours = learner(classifier_retrieval=retrieval)
    observed(ours, 0, 0, 0)
    foreseen, (x, y) = copy.deepcopy(ours.model), batch(5)
    F.cross_entropy(foreseen(x), y).backward()
    with torch.no_grad():
        for parameter in foreseen.parameters():
            parameter -= LR * parameter.grad
    step = ours.observe(x, y, task=1)
    torch.testing.assert_close(step.interference, interference(ours, foreseen, step.replayed.x), atol=1e-6, rtol=1e-4)
    assert (step.interference.diff() <= 0).all()


def test_a_search_in_bfloat16_leads_nearly_where_one_in_float32_does_and_training_stays_in_float32():
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
        assert ours.search_report()["generator"]["interference_after"] is not None
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
    foreseen = copy.deepcopy(ours.model)
    with torch.no_grad():
        for again, present, past in zip(
            foreseen.parameters(), ours.model.parameters(), before.parameters(), strict=True
        ):
            again.copy_(2 * present - past)
    step = ours.observe(*batch(5), task=1)
    torch.testing.assert_close(step.interference, interference(ours, foreseen, step.replayed.x), atol=1e-6, rtol=1e-4)


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
    x, y = batch(5)
    ours.observe(x, y, task=1)
    reconstructions = ours.previous.generator(x)
    torch.testing.assert_close(ours.last_retrieved.classifier, reconstructions.repeat(2, 1), atol=1e-4, rtol=1e-4)


def test_a_search_that_fails_replays_plain_samples_and_is_reported():
    huge = LatentRetrieval(LatentSearch(steps=2, step_size=3e38), Coefficients(diversity=3e38))
    ours = learner(classifier_retrieval=huge)
    step = observed(ours, 0, 1, 1)
    assert ours.search_report()["classifier"]["fallbacks"] == ours.search_report()["classifier"]["searches"] == 2
    assert step.replayed.x.isfinite().all()


@pytest.mark.parametrize("retrieval", [None, {"ranking": 3}, {"virtual_step": "optimizer"}, {"decode": "previous"}])
def test_the_generators_search_runs_in_every_form(retrieval):
    option = None if retrieval is None else LatentRetrieval(LatentSearch(steps=2), **retrieval)
    ours = learner(generator_retrieval=option)
    observed(ours, 0, 0, 1, 1)
    assert list(ours.search_report()) == ([] if retrieval is None else ["generator"])
    assert list(ours.diagnostics()) == ([] if retrieval is None else ["search"])
    assert ours.last_retrieved.generator.shape == (10, 6)


def test_searching_leaves_the_networks_in_train_mode_and_without_gradients():
    ours = learner(GatedMLP(6, 8, 4), classifier_retrieval=LatentRetrieval(), generator_retrieval=LatentRetrieval())
    observed(ours, 0, 1)
    assert ours.model.training
    assert ours.generator.training
    assert all(parameter.grad is None for parameter in ours.generator.parameters())
    assert all(parameter.grad is None for parameter in ours.previous.generator.parameters())


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


def test_it_goes_on_bit_for_bit_after_loading():
    first, second = searching(), searching()
    observed(first, 0, 0, 1)
    second.load_state_dict(first.state_dict())
    for ours in (first, second):
        ours.observe(*batch(8), task=1)
        ours.observe(*batch(9), task=2)
    assert same(everything(first), everything(second))


class FailingLate(VAE):
    """A generator whose loss is no number at the fourth pass from now."""

    passes = -1000

    def loss(self, x):
        self.passes += 1
        found = super().loss(x)
        return found if self.passes < 4 else found._replace(kl=found.kl / 0 * float("inf"))


def test_a_refused_batch_changes_neither_network_nor_snapshot_nor_report():
    ours = learner(
        generator=FailingLate((6,), hidden=8, latent=3),
        classifier_retrieval=LatentRetrieval(LatentSearch(steps=2)),
        updates=5,
    )
    observed(ours, 0, 0)
    before = everything(ours)
    ours.generator.passes = 0
    with pytest.raises(InvalidInput):
        ours.observe(*batch(3), task=1)
    assert same(everything(ours), before)
    assert ours.previous is None


@pytest.mark.parametrize(
    "x", [torch.rand(5, 7), {"a": torch.rand(5, 6)}, torch.randint(0, 5, (5, 6)), torch.full((5, 6), 2.0)]
)
def test_what_cannot_be_imagined_is_refused(x):
    ours = learner()
    observed(ours, 0)
    before = everything(ours)
    with pytest.raises(InvalidInput):
        ours.observe(x, torch.zeros(5, dtype=torch.int64), task=0)
    assert same(everything(ours), before)


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(InvalidType, match="encode"):
        learner(generator=nn.Linear(6, 6))
    for wrong in ({"memories": 0}, {"replay_weight": -1.0}, {"warmup": 0}, {"snapshot_every": 0}, {"beta": -0.1}):
        with pytest.raises(InvalidInput):
            learner(**wrong)


def test_a_head_that_grows_goes_on_with_older_snapshots():
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
    assert same(everything(ours), everything(again))


# ------------------------------------------------------------------------------------------------------------- metrics


def test_the_generators_loss_is_measured_alike_every_time_and_changes_nothing():
    ours = searching(beta=0.2)
    observed(ours, 0, 0, 1)
    before, outside = everything(ours), torch.get_rng_state()
    x, y = batch(3, rows=2500)
    first, second = ours.generator_losses(x), ours.generator_losses(x)
    assert torch.equal(first.reconstruction, second.reconstruction)
    assert first.kl.shape == (2500,)
    metrics = ours.evaluation_metrics(x, y)
    assert metrics["negative_elbo"] == pytest.approx(metrics["reconstruction"] + metrics["kl"])
    assert metrics["generator-loss"] == pytest.approx(metrics["reconstruction"] + 0.2 * metrics["kl"])
    assert metrics["kl"] == pytest.approx(first.kl.mean().item(), rel=1e-5)
    assert torch.equal(ours.imagine(4), ours.imagine(4))
    assert ours.reconstruct(x[:3]).shape == (3, 6)
    assert same(everything(ours), before)
    assert torch.equal(torch.get_rng_state(), outside)


def test_every_row_that_passes_is_counted():
    ours = learner(memories=2, updates=3)
    ours.observe(*batch(0), task=0)
    assert ours.forward_passes == 3 * 2  # classifier and generator, three times
    ours.observe(*batch(1), task=1)
    rows = 5 * 3 * 2 + (10 + 10) + 10 + 3 * 2 * 15  # then: decode and label, decode, and 15 rows through both
    assert ours.forward_passes * ours.samples_observed == rows


# --------------------------------------------------------------------------------------------- steps on the same rows


@pytest.mark.parametrize("tasks", [(0,), (0, 0, 1, 1)])
def test_steps_on_the_same_rows_are_those_of_sgd(tasks, monkeypatch):
    """The fast way and the plain one, which multiplies out every gradient, end at the same parameters."""

    def trained():
        torch.manual_seed(0)
        ours = learner(
            GatedMLP(6, 8, 4, dropout=0.3), memories=1, updates=5, replay_weight=2.0,
            classifier_retrieval=LatentRetrieval(LatentSearch(steps=1), gradient="stale"),
        )  # fmt: skip
        for number, task in enumerate(tasks):
            ours.observe(*batch(number, rows=2), task=task)
        return ours

    fast = trained()
    monkeypatch.setattr("rehearse.learners.generative.can_stay", lambda *_: False)
    plain = trained()
    assert fast.forward_passes == plain.forward_passes
    assert fast.moves == plain.moves
    for ours, expected in zip(fast.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)
    for name, expected in plain._last_gradients["classifier"].items():
        torch.testing.assert_close(fast._last_gradients["classifier"][name], expected, atol=1e-5, rtol=1e-4)


def test_steps_on_the_same_rows_are_for_plain_sgd_and_few_rows_alone():
    model, rows = GatedMLP(6, 8, 4), torch.rand(5, 6)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    assert can_stay(model, sgd, rows)
    assert not can_stay(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rows)
    assert not can_stay(model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1), rows)
    assert not can_stay(model, torch.optim.Adam(model.parameters()), rows)
    assert not can_stay(model, torch.optim.SGD([model.output.weight], lr=0.1), rows)
    assert not can_stay(model, sgd, torch.rand(6, 6))
    assert not can_stay(model, sgd, torch.rand(5, 7))
    assert not can_stay(model, sgd, rows.double())
    mlp = MLP(6, (8,), 4)
    assert not can_stay(mlp, torch.optim.SGD(mlp.parameters(), lr=0.1), rows)
