"""Replay from codes: Algorithm 3 against slow programs with deep copies, loops, one sample at a time."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from code_learner import LR, SHAPE, TASKS, Tiny, coder, learner, previous, run, some_search
from torch import Tensor, nn

from rehearse import Batch, ReservoirMemory
from rehearse.errors import InvalidInput, InvalidType
from rehearse.lab.predictors import own_metrics
from rehearse.latent import LatentSearch
from rehearse.learners import CodeReplay, CodeSearch
from rehearse.nets import ConvAutoencoder
from sameness import assert_same, differences

# ------------------------------------------------------------------------------------------------------- Algorithm 3


def slow(made: CodeReplay) -> tuple[nn.Module, nn.Module, list[Tensor]]:
    """AE on TASKS with all codes replayed to both networks: classifier, autoencoder and codes at the end."""
    classifier, autoencoder = copy.deepcopy(made.model), copy.deepcopy(made.autoencoder)
    adam = torch.optim.Adam(autoencoder.parameters(), lr=0.01)
    before = copy.deepcopy(autoencoder).eval()
    codes: list[Tensor] = []
    labels: list[int] = []
    for task, (x, y) in enumerate(TASKS):
        x = x.double()
        for epoch in range(2):
            order = made.coded._order(20, epoch, task)
            for start in range(0, 20, 5):
                samples = [x[sample] for sample in order[start : start + 5]]
                samples += [before.decode(code[None])[0].detach() for code in codes]
                batch = torch.stack(samples)
                adam.zero_grad()
                ((autoencoder.train()(batch) - batch) ** 2).mean().backward()
                adam.step()
            now = copy.deepcopy(autoencoder).eval()
            codes = [now.encode(before.decode(code[None]))[0].detach() for code in codes]
            before = now
        past = len(codes)
        for start in range(0, 20, 5):
            new = before.encode(x[start : start + 5]).detach()
            shown = before.decode(new).detach()
            memories = [before.decode(code[None]).detach() for code in codes[:past]]
            logits = classifier.train()(torch.cat([shown, *memories]))
            wanted = [*y[start : start + 5].tolist(), *labels[:past]]
            each = [-F.log_softmax(logits[i], 0)[label] for i, label in enumerate(wanted)]
            loss = sum(each[:5]) / 5 if not past else (0.3 * sum(each[:5]) + 0.7 * sum(each[5:])) / len(each)
            gradients = torch.autograd.grad(loss, list(classifier.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(classifier.parameters(), gradients, strict=True):
                    parameter -= LR * gradient
            codes += list(new)
            labels += y[start : start + 5].tolist()
    return classifier, autoencoder, codes


def test_two_tasks_match_a_slow_program() -> None:
    """In double precision: Adam makes whole steps of the rounding errors of parameters without a gradient."""
    torch.manual_seed(7)
    networks = Tiny().double(), ConvAutoencoder(SHAPE, channels=3, depth=1).double()
    made = learner(*networks, capacity=100, replay_share=0.7)
    classifier, autoencoder, codes = slow(made)
    run(made)
    for ours, theirs in ((made.autoencoder, autoencoder), (made.model, classifier)):
        for name, value in ours.state_dict().items():
            torch.testing.assert_close(value, theirs.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)
    torch.testing.assert_close(made.memory.all().x.double(), torch.stack(codes), rtol=1e-4, atol=1e-5)


def test_without_autoencoding_real_images_are_learned_and_predicted() -> None:
    made = learner(autoencode_incoming=False, autoencode_test=False)
    x, y = TASKS[0]
    made.begin_task(Batch(x, y, 0), 0)
    plain = copy.deepcopy(made.model)
    step = made.observe(x[:5], y[:5], 0)
    assert step.incoming_loss == pytest.approx(F.cross_entropy(plain.train()(x[:5]), y[:5]).item(), rel=1e-5)
    torch.testing.assert_close(made.logits(x), made.model.eval()(x))
    seen = learner()
    seen.begin_task(Batch(x, y, 0), 0)
    codec = coder(seen)
    shown = codec.decode(codec.encode(x))
    first = seen.observe(x[:5], y[:5], 0)
    assert first.incoming_loss == pytest.approx(F.cross_entropy(plain.train()(shown[:5]), y[:5]).item(), rel=1e-5)
    assert first.incoming_loss != pytest.approx(step.incoming_loss, rel=1e-5)
    torch.testing.assert_close(seen.logits(x), seen.model.eval()(shown))
    torch.testing.assert_close(seen.rebuild(x), shown)


def test_replayed_codes_are_distinct_and_of_other_tasks() -> None:
    steps = run(learner(budget=8))
    assert all(step.replayed is None for step in steps[:4])
    for step in steps[4:]:
        assert len(set(step.replayed.slots.tolist())) == 8
        assert set(step.replayed.task.tolist()) == {0}


@pytest.mark.parametrize("search", [None, CodeSearch()])
def test_copies_of_each_code(search: CodeSearch | None) -> None:
    steps = run(learner(budget=12, copies=4, search=search))
    slots = steps[-1].replayed.slots.tolist()
    assert len(slots) == 12
    assert sorted(slots.count(slot) for slot in set(slots)) == [4, 4, 4]
    with pytest.raises(InvalidInput, match="budget of 10 cannot be 4 copies"):
        learner(budget=10, copies=4)


# --------------------------------------------------------------------------------------------------- the search


def slowly_interfered(made: CodeReplay, x: Tensor, y: Tensor, count: int, real: bool) -> list[int]:
    """The slots that AE-MIR should retrieve: deep copies, the objective by loops, neighbours among all."""
    assert made.search is not None
    codec = coder(made)
    ahead, before = copy.deepcopy(made.model).train(), previous(made).train()
    shown = x if real else codec.decode(codec.encode(x)).detach()
    gradients = torch.autograd.grad(F.cross_entropy(ahead(shown), y), list(ahead.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(ahead.parameters(), gradients, strict=True):
            parameter -= LR * gradient
    z = codec.encode(x).detach()
    for _ in range(made.search.search.steps):
        z.requires_grad_()
        image = codec.decode(z)
        p, q = before(image).softmax(1), ahead(image).softmax(1)
        total: Any = 0
        for i in range(len(z)):
            for c in range(4):
                total += made.search.kl * p[i, c] * (p[i, c] / q[i, c]).log()
                total += made.search.entropy * p[i, c] * p[i, c].log()
                total += made.search.ahead_entropy * q[i, c] * q[i, c].log()
        z = (z + made.search.search.step_size * torch.autograd.grad(total, z)[0]).detach()
    samples = made.memory.all(exclude_task=1)
    assert samples.slots is not None
    chosen: list[int] = []
    while len(chosen) < count:
        for point in z:
            if len(chosen) < count:
                free = [slot for slot in samples.slots.tolist() if slot not in chosen]
                far = [float((point - made.memory.get(torch.tensor([slot])).x[0]).square().sum()) for slot in free]
                chosen.append(free[far.index(min(far))])
    return chosen


@pytest.mark.parametrize("real", [False, True])
def test_interfered_codes_match_a_slow_search(real: bool) -> None:
    search = CodeSearch(LatentSearch(2, 3.0), kl=5.0, entropy=0.5, ahead_entropy=2.0, candidates=None)
    made = learner(capacity=100, search=search, budget=7, autoencode_virtual=not real)
    run(made, tasks=1)
    x, y = TASKS[1]
    made.begin_task(Batch(x, y, 1), 1)
    for start in (0, 5, 10):
        made.observe(x[start : start + 5], y[start : start + 5], 1)
    assert differences(previous(made).state_dict(), made.model.state_dict()), "θ′ is of the end of task 0"
    wanted = slowly_interfered(made, x[15:], y[15:], 7, real)
    step = made.observe(x[15:], y[15:], 1)
    assert step.replayed is not None
    assert step.replayed.slots is not None
    assert step.replayed.slots.tolist() == wanted
    torch.testing.assert_close(step.replayed.x, made.codec.read(made.memory.get(step.replayed.slots).x))


def when_taken(made: CodeReplay, tasks: list[int | None]) -> list[int]:
    """The batches before which, or at whose end, θ′ became another."""
    x, y = TASKS[0]
    taken, last = [], made.previous
    for number, task in enumerate(tasks):
        before = copy.deepcopy(made.model.state_dict())
        made.observe(x[:5], y[:5], task)
        if made.previous is not last:
            last = made.previous
            assert_same(previous(made).state_dict(), before)
            taken.append(number)
    return taken


def test_the_previous_classifier_is_the_one_at_the_end_of_the_last_task() -> None:
    assert when_taken(learner(search=some_search()), [0, 0, 0, 1, 1, 2]) == [3, 5]
    assert when_taken(learner(search=some_search(), snapshot_every=3), [None] * 8) == [3, 6]
    made = learner(search=some_search())
    when_taken(made, [0, 0])
    made.end_task()
    assert_same(previous(made).state_dict(), made.model.state_dict())
    assert when_taken(made, [0, 0, 0]) == [], "a task that continues after its end"
    assert when_taken(learner(), [0, 1]) == [], "without a search there is no snapshot"


def test_candidates_are_drawn_from_other_tasks() -> None:
    made = learner(capacity=100, search=some_search(candidates=6), budget=4)
    run(made, tasks=1)
    x, y = TASKS[1]
    made.begin_task(Batch(x, y, 1), 1)
    made.observe(x[:5], y[:5], 1)
    other = copy.deepcopy(made.memory)
    drawn = other.sample(6, 1, ordered=True).slots
    step = made.observe(x[5:10], y[5:10], 1)
    assert set(step.replayed.slots.tolist()) <= set(drawn.tolist())


@pytest.mark.parametrize("far", [None, 3e38])
def test_a_search_that_fails_falls_back_to_random_codes_of_other_tasks(
    far: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The points are not finite, or too far out for any distance to be finite."""
    made = learner(capacity=100, search=some_search(kl=20.0 if far else 1e38), budget=4)
    assert made.search is not None
    if far:
        monkeypatch.setattr(CodeSearch, "__call__", lambda self, codes, *_: torch.full_like(codes, far))
    steps = run(made)
    assert made.diagnostics()["search"]["fallbacks"] == 4
    assert all(set(step.replayed.task.tolist()) == {0} for step in steps[4:])
    assert any(sorted(step.replayed.slots.tolist()) != [0, 1, 2, 3] for step in steps[4:])


def test_diagnostics_of_a_search() -> None:
    made = learner(search=CodeSearch(LatentSearch(1, 0.5)))
    run(made)
    found = made.diagnostics()["search"]
    assert (found["searches"], found["fallbacks"], found["measured"]) == (4, 0, 1)
    assert found["objective_after"] > found["objective_before"]
    parts = found["interference_before"], found["entropy_before"], found["ahead_entropy_before"]
    assert found["objective_before"] == pytest.approx(20 * parts[0] - parts[1] - parts[2], rel=1e-4)
    wild = learner(capacity=100, search=CodeSearch(LatentSearch(3, 1e38)))
    steps = run(wild)
    assert wild.diagnostics()["search"]["fallbacks"] > 0
    assert len(steps[-1].replayed) == 20


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_with_one_seed_autoencoder_and_codes_do_not_depend_on_the_retrieval(noise: float) -> None:
    """So a comparison of AE and AE-MIR is one of retrievals, even if both networks draw random numbers."""
    plain, searched = learner(seed=3), learner(seed=3, search=CodeSearch())
    for made in (plain, searched):
        made.model.body.append(nn.Dropout(noise))
        made.autoencoder.encoder.append(nn.Dropout(noise))
        made.coded.codec = made.codec.renewed(made.memory, TASKS[0][0])
        run(made)
        made.begin_task(Batch(*TASKS[0], 2), 2)
    assert_same(plain.autoencoder.state_dict(), searched.autoencoder.state_dict())
    assert_same(plain.memory.all().x, searched.memory.all().x)
    assert differences(plain.model.state_dict(), searched.model.state_dict())


# ------------------------------------------------------------------------------------------------ the user's own


class Linear(nn.Module):
    """Another autoencoder: flat codes."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(16, 6), nn.Linear(6, 16)

    def encode(self, x: Tensor) -> Tensor:
        return self.down(x.flatten(1))

    def decode(self, code: Tensor) -> Tensor:
        return self.up(code).view(-1, *SHAPE)


@pytest.mark.parametrize("codes", ["float32", "uint8"])
def test_any_autoencoder_fits(codes: Any) -> None:
    classifier, autoencoder = Tiny(), Linear()
    made = CodeReplay(
        classifier,
        torch.optim.SGD(classifier.parameters(), lr=0.1),
        autoencoder,
        torch.optim.Adam(autoencoder.parameters()),
        ReservoirMemory(20),
        search=CodeSearch(candidates=10),
        budget=5,
        codes=codes,
    )
    assert run(made)[-1].replayed.x.shape == (5, *SHAPE)
    assert made.memory.all().x.shape == (20, 6)


def test_invalid_code_replay_options() -> None:
    classifier, other = Tiny(), nn.Linear(4, 4)
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.1) for network in (classifier, other)]
    with pytest.raises(InvalidType, match="lacks encode and decode"):
        CodeReplay(classifier, optimizers[0], other, optimizers[1], ReservoirMemory(5))
    for bad in ({"codes": "int4"}, {"statistics": "own"}, {"refresh": "never"}, {"replay_share": 2}, {"budget": 0}):
        with pytest.raises(InvalidInput, match=next(iter(bad))):
            learner(**bad)


def test_codes_are_diagnosed_and_remembered() -> None:
    made = learner()
    x, y = TASKS[0]
    made.begin_task(Batch(x, y, 0), 0)
    assert made.remember([(x[:10], y[:10], 0), (x[10:], y[10:], 0)]) == 20
    torch.testing.assert_close(made.memory.all().x, made.codec.encode(x))
    before = made.state_dict()
    found = made.diagnose(*TASKS[1], 1)
    assert_same(made.state_dict(), before)
    assert len(found) == 20
    image = made.codec.read(made.memory.get(found.slots).x)
    losses = F.cross_entropy(made.model.train()(image), found.y, reduction="none")
    torch.testing.assert_close(found.before, losses.detach(), rtol=1e-3, atol=1e-4)


def test_the_mean_squared_error_of_test_images() -> None:
    made = learner()
    run(made, tasks=1)
    x, _ = TASKS[1]
    wanted = ((made.rebuild(x) - x) ** 2).mean().item()
    assert own_metrics(made, x)["reconstruction"] == pytest.approx(wanted, rel=1e-5)
