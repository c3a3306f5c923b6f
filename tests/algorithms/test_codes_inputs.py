"""Replay from codes: invalid input, and that whatever fails leaves everything as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from code_learner import SHAPE, TASKS, Tiny, learner, run, some_search
from torch import Tensor, nn

from rehearse import Batch, ReservoirMemory
from rehearse.errors import CheckpointError, InvalidInput, InvalidType
from rehearse.lab.methods import Problem, build, prepare_for, resolve
from rehearse.lab.networks import make_network
from rehearse.lab.predictors import own_metrics
from rehearse.learners import CodeReplay, CodeSearch
from rehearse.learners.codes import coded as coded_memory
from rehearse.learners.codes.codec import Codec
from rehearse.nets import ConvAutoencoder
from rehearse.undo import all_or_nothing
from sameness import assert_same


class Counting(nn.Module):
    """Adds how often it was trained, a number in a buffer that torch does not save."""

    seen: Tensor

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def _count(self) -> Tensor:
        if self.training:
            self.seen += 1
        return self.seen / 100

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self._count()

    def encode(self, x: Tensor) -> Tensor:
        return self.inner.encode(x) + self._count()

    def decode(self, code: Tensor) -> Tensor:
        return self.inner.decode(code)


@pytest.mark.parametrize("search", [3, True, "mir", CodeSearch().search])
def test_invalid_code_searches_of_a_learner(search: Any) -> None:
    with pytest.raises(InvalidType, match="search must be a CodeSearch"):
        learner(search=search)


def test_a_search_needs_a_latent_search() -> None:
    with pytest.raises(InvalidType, match="LatentSearch"):
        CodeSearch(search=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["autoencode_incoming", "autoencode_test", "autoencode_virtual", "exclude_current_task"]
)
@pytest.mark.parametrize("value", ["no", 0, None])
def test_switches_are_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(InvalidType, match=f"{name} is {value!r}"):
        learner(**{name: value})


def test_a_search_needs_enough_candidates() -> None:
    with pytest.raises(InvalidInput, match="10 candidates are fewer than the 20 samples"):
        learner(search=CodeSearch(candidates=10), budget=20)
    learner(search=CodeSearch(candidates=10), budget=20, copies=2)


def test_a_stream_without_settings_of_its_own_has_enough_candidates() -> None:
    spec = resolve("ae-mir", "split-mnist", {})
    shape = (1, 28, 28)
    network = lambda: make_network(spec.network, classes=10, input_shape=shape)  # noqa: E731
    made = build(spec, Problem(10, 5, shape, prepare_for("unit"), network))
    assert isinstance(made, CodeReplay)
    assert made.search is not None
    assert made.search.candidates == spec.candidates == 500
    assert resolve("ae-mir", "split-mnist", {"budget": 600}).candidates == 600
    with pytest.raises(InvalidInput, match="50 candidates are fewer"):
        resolve("ae-mir", "split-mnist", {"budget": 100, "candidates": 50})


def test_the_autoencoder() -> None:
    made = learner()
    assert made.autoencoder is made.coded.network.model
    with pytest.raises(AttributeError):
        made.autoencoder = None  # type: ignore[misc, assignment]


class _Refusing:
    """Lets encoding fail from a certain call on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.active = False
        plain = Codec.encode

        def encode(codec: Codec, x: Tensor) -> Tensor:
            if self.active and codec is not self.known:
                raise InvalidInput("the codes of these inputs are not finite")
            return plain(codec, x)

        monkeypatch.setattr(Codec, "encode", encode)

    def from_now_on(self, made: CodeReplay) -> None:
        """What the codec of today encodes is fine; what a new one does is refused."""
        self.active, self.known = True, made.codec


def test_a_failed_update_of_the_codes_undoes_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made, refusing = learner(), _Refusing(monkeypatch)
    x, y = TASKS[0]
    for start in (0, 5, 10):
        made.observe(x[start : start + 5], y[start : start + 5])
    before = made.state_dict()
    refusing.from_now_on(made)
    with pytest.raises(InvalidInput, match="not finite"):
        made.observe(x[15:], y[15:])  # the fourth batch without preparation: codes are brought up to date
    assert_same(made.state_dict(), before)
    refusing.active = False
    made.observe(x[15:], y[15:])


def test_begin_task_resumes_after_a_failed_update_of_the_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    made, refusing = learner(), _Refusing(monkeypatch)
    run(made, tasks=1)
    x, y = TASKS[1]
    states: list[Any] = []
    refusing.from_now_on(made)
    with pytest.raises(InvalidInput, match="not finite"):
        made.begin_task(Batch(x, y, 1), 1, lambda done, of: states.append(made.state_dict()))
    assert len(states) == 3  # the fourth step ends an epoch
    assert_same(made.state_dict(), states[-1])
    refusing.active = False
    made.begin_task(Batch(x, y, 1), 1)
    whole = learner()
    run(whole, tasks=1)
    whole.begin_task(Batch(x, y, 1), 1)
    assert_same(made.state_dict(), whole.state_dict())


class Noisy(ConvAutoencoder):
    """Draws random numbers, and fails once on request."""

    fails = False

    def decode(self, code: Tensor) -> Tensor:
        noise = torch.rand(()) if self.training else 0.5
        if self.training and self.fails:
            self.fails = False
            raise RuntimeError("once")
        return super().decode(code) + noise / 10


@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_failed_step_of_begin_task_is_undone(step: int) -> None:
    def noisy() -> CodeReplay:
        torch.manual_seed(7)
        return learner(Tiny(), Noisy(SHAPE, channels=3, depth=1), autoencoder_budget=4)

    made, whole = noisy(), noisy()
    x, y = TASKS[1]
    for one in (made, whole):
        run(one, tasks=1)
    states = [made.state_dict()]

    def on_step(done: int, of: int) -> None:
        states.append(made.state_dict())
        made.autoencoder.fails = done + 1 == step  # type: ignore[assignment]

    made.autoencoder.fails = step == 1  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="once"):
        made.begin_task(Batch(x, y, 1), 1, on_step)
    assert_same(made.state_dict(), states[step - 1])
    made.begin_task(Batch(x, y, 1), 1)
    whole.begin_task(Batch(x, y, 1), 1)
    assert_same(made.state_dict(), whole.state_dict())


def test_codes_are_written_all_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = learner()
    run(made, tasks=1)
    monkeypatch.setattr(coded_memory, "BLOCK", 5)
    before, rewrite, calls = made.state_dict(), made.memory.rewrite, []

    def failing(slots: Tensor, codes: Tensor) -> None:
        calls.append(slots)
        if len(calls) == 2:
            raise OSError("no space left")
        rewrite(slots, codes)

    monkeypatch.setattr(made.memory, "rewrite", failing)
    with pytest.raises(OSError, match="no space left"), all_or_nothing(made.coded.network, made.memory, made.coded):
        made.coded.update(TASKS[0][0])
    assert len(calls) == 2
    assert_same(made.state_dict(), before)


def test_begin_task_leaves_the_classifier_alone() -> None:
    made, asked = learner(), []
    run(made, tasks=1)
    made.model.eval()
    before = made.state_dict()
    made.model.train = lambda mode=True: asked.append(mode)  # type: ignore[assignment, method-assign, return-value]
    x, y = TASKS[1]
    made.begin_task(Batch(x, y, 1), 1)
    assert asked == []
    after = made.state_dict()
    for part in ("network", "random", "progress"):
        assert_same(after[part], before[part])


def test_a_classifier_may_gain_a_module_between_tasks() -> None:
    made = learner(Tiny(), ConvAutoencoder(SHAPE, channels=3, depth=1), search=some_search(candidates=20))
    run(made, tasks=1)
    made.model.add_module("extra", nn.Identity())
    x, y = TASKS[1]
    made.begin_task(Batch(x, y, 1), 1)
    made.observe(x[:5], y[:5], 1)


def test_a_task_resumes_with_the_samples_that_it_began_with() -> None:
    made = learner()
    x, y = TASKS[0]

    def stop(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.begin_task(Batch(x, y, 0), 0, stop)
    for samples in (15, 3):  # with three of them fewer steps would be asked for than have been taken
        with pytest.raises(InvalidInput, match=f"task 0 began with 20 samples, these are {samples}"):
            made.begin_task(Batch(x[:samples], y[:samples], 0), 0)
    made.begin_task(Batch(x, y, 0), 0)
    made.begin_task(Batch(x[:15], y[:15], 0), 0)  # nothing is left to do


def test_non_persistent_buffers_are_saved() -> None:
    def counting() -> CodeReplay:
        torch.manual_seed(7)
        return learner(
            Counting(Tiny()), Counting(ConvAutoencoder(SHAPE, channels=3, depth=1)), search=some_search(candidates=20)
        )

    made, other = counting(), counting()
    run(made)
    x, y = TASKS[0]
    made.begin_task(Batch(x, y, 2), 2)
    other.load_state_dict(made.state_dict())
    assert made.previous is not None
    assert other.previous is not None
    assert float(made.previous["seen"]) > 0
    assert torch.equal(other.previous["seen"], made.previous["seen"])
    assert torch.equal(other.rebuild(x), made.rebuild(x))
    for one in (made, other):
        one.observe(x[:5], y[:5], 2)
    assert_same(other.state_dict(), made.state_dict())


def test_a_state_with_other_codes_is_refused() -> None:
    made, other = learner(codes="uint8"), learner(codes="float32")
    run(made, tasks=1)
    before = other.state_dict()
    with pytest.raises(CheckpointError, match="codes='uint8', this one codes='float32'"):
        other.load_state_dict(made.state_dict())
    assert_same(other.state_dict(), before)


@pytest.mark.parametrize("searched", [False, True])
def test_a_state_of_the_other_retrieval_is_refused(searched: bool) -> None:
    made, other = (learner(search=some_search() if one else None) for one in (searched, not searched))
    run(made, tasks=1)
    before = other.state_dict()
    with pytest.raises(CheckpointError, match="the saved learner retrieves codes"):
        other.load_state_dict(made.state_dict())
    assert_same(other.state_dict(), before)


@pytest.mark.parametrize("count", [-5, "7", 2.9, True])
def test_a_count_that_is_none_is_refused(count: Any) -> None:
    made = learner()
    state = made.state_dict()
    state["own"]["batches_since_snapshot"] = count
    with pytest.raises(CheckpointError, match="number of batches since the snapshot does not fit"):
        made.load_state_dict(state)


def test_a_refused_state_leaves_codes_in_a_file_as_they_are(tmp_path: Path) -> None:
    made = learner(memory=ReservoirMemory(30, path=tmp_path / "codes"))
    run(made, tasks=1)
    state = made.state_dict()
    run(made, tasks=1)
    other = learner(memory=made.memory, search=some_search())
    before, stored = other.state_dict(), made.memory.all().x
    with pytest.raises(CheckpointError, match="the saved learner retrieves codes"):
        other.load_state_dict(state)
    assert_same(made.memory.all().x, stored)
    after = other.state_dict()
    del before["memory"], after["memory"]  # each counts the checkpoints of the file
    assert_same(after, before)


def test_a_state_whose_file_is_missing_is_refused_and_changes_nothing_else(tmp_path: Path) -> None:
    made = learner(memory=ReservoirMemory(30, path=tmp_path / "codes"))
    run(made, tasks=1)
    state = made.state_dict()
    run(made, tasks=1)
    before, stored = made.state_dict(), made.memory.all().x
    (tmp_path / "codes").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match="is missing"):
        made.load_state_dict(state)
    assert_same(made.memory.all().x, stored)
    after = made.state_dict()
    del before["memory"], after["memory"]
    assert_same(after, before)


class Twice(Tiny):
    """Two outputs for each row."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).repeat_interleave(2, 0)


@pytest.mark.parametrize("search", [None, some_search()])
def test_a_classifier_must_return_one_output_per_sample(search: CodeSearch | None) -> None:
    made = learner(Twice(), ConvAutoencoder(SHAPE, channels=3, depth=1), search=search)
    x, y = TASKS[0]
    made.begin_task(Batch(x, y, 0), 0)
    for ask in (lambda: made.observe(x[:5], y[:5], 0), lambda: made.predict(x[:5])):
        with pytest.raises(InvalidInput, match="for 5 samples; its first dimension must be"):
            ask()


@pytest.mark.parametrize(
    ("data", "task", "words"),
    [
        ((1, 2), 0, "begin_task"),
        (TASKS[0][0], 0, "begin_task"),
        (Batch(*TASKS[0], 0), "a", "'a'; it must be a number"),
        (Batch(*TASKS[0]), None, "None; it must be a number"),
        (Batch(*TASKS[0], 3), 2, "task 2 begins"),
    ],
)
def test_invalid_tasks(data: Any, task: Any, words: str) -> None:
    made = learner()
    before = made.state_dict()
    with pytest.raises((InvalidInput, InvalidType), match=words):
        made.begin_task(data, task)
    assert_same(made.state_dict(), before)


class Odd(ConvAutoencoder):
    """Changes what a method returns."""

    def __init__(self, method: str, change: Any) -> None:
        super().__init__(SHAPE, channels=3, depth=1)
        plain = getattr(self, method)
        setattr(self, method, lambda samples: change(plain(samples)))


@pytest.mark.parametrize(
    ("method", "change", "words"),
    [
        ("encode", lambda codes: (codes, codes), "for 5 inputs it returns a tuple"),
        ("encode", lambda codes: codes.sum((1, 2, 3)), r"for 5 inputs it returns \(5,\)"),
        ("decode", lambda samples: (samples, samples), "decode returns a tuple"),
        (
            "decode",
            lambda samples: samples[:1],
            r"decode returns \(1, 1, 4, 4\) for inputs of shape \(5, 1",
        ),
    ],
)
def test_an_autoencoder_that_breaks_the_protocol(method: str, change: Any, words: str) -> None:
    made = learner(Tiny(), Odd(method, change))
    x, y = TASKS[0]
    with pytest.raises(InvalidInput, match=words):
        made.begin_task(Batch(x, y, 0), 0)
    with pytest.raises(InvalidInput, match=words):
        made.observe(x[:5], y[:5], 0)


def noisy(x: Any) -> Tensor:
    return x.float() + 0.1 * torch.randn_like(x)


def test_measurements_leave_random_state_alone() -> None:
    made = learner(prepare=noisy)
    run(made, tasks=1)
    x, y = TASKS[1]
    own, global_state = made.network.random.get()["cpu"].clone(), torch.get_rng_state()
    errors = [own_metrics(made, x) for _ in range(2)]
    assert errors[0] == errors[1]
    assert torch.equal(made.rebuild(x), made.rebuild(x))
    made.remember([(x[:10], y[:10], 1)])
    assert torch.equal(made.network.random.get()["cpu"], own)
    assert torch.equal(torch.get_rng_state(), global_state)


def test_diagnose_leaves_random_state_alone() -> None:
    class Sampling(ConvAutoencoder):
        def decode(self, code: Tensor) -> Tensor:
            return super().decode(code + 0.1 * torch.randn_like(code))

    made = learner(Tiny(), Sampling(SHAPE, channels=3, depth=1))
    run(made, tasks=1)
    own, global_state = made.network.random.get()["cpu"].clone(), torch.get_rng_state()
    first, second = (made.diagnose(*TASKS[1], 1) for _ in range(2))
    assert torch.equal(first.interference, second.interference)
    assert torch.equal(made.network.random.get()["cpu"], own)
    assert torch.equal(torch.get_rng_state(), global_state)


def test_reconstructions_are_compared_with_the_same_prepared_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = learner(prepare=noisy)
    run(made, tasks=1)
    monkeypatch.setattr(Codec, "rebuild", lambda self, x: x)
    assert own_metrics(made, TASKS[1][0]) == {"reconstruction": 0.0}


def test_a_random_decoder_leaves_torchs_random_state_alone() -> None:
    class Sampling(ConvAutoencoder):
        def decode(self, code: Tensor) -> Tensor:
            return super().decode(code + 0.01 * torch.randn_like(code))

    made, other = (learner(Tiny(), Sampling(SHAPE, channels=3, depth=1)) for _ in range(2))
    other.load_state_dict(made.state_dict())
    global_state = torch.get_rng_state()
    run(made), run(other, tasks=1)
    assert torch.equal(torch.get_rng_state(), global_state)
    x, y = TASKS[1]

    def stop(done: int, of: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        other.begin_task(Batch(x, y, 1), 1, stop)
    other.begin_task(Batch(x, y, 1), 1)
    for start in range(0, 20, 5):
        other.observe(x[start : start + 5], y[start : start + 5], 1)
    other.end_task()
    assert_same(other.state_dict(), made.state_dict())


@pytest.mark.parametrize("codes", ["float32", "uint8"])
def test_samples_through_encoder_and_decoder_are_counted(codes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = 0

    def counting(name: str) -> Any:
        plain = getattr(ConvAutoencoder, name)

        def method(self: ConvAutoencoder, samples: Tensor) -> Tensor:
            nonlocal counted
            counted += len(samples)
            return plain(self, samples)

        return method

    made, passed = learner(codes=codes), []
    made.model.register_forward_hook(lambda _, samples, __: passed.append(len(samples[0])))
    for name in ("encode", "decode"):
        monkeypatch.setattr(ConvAutoencoder, name, counting(name))
    run(made)
    x, y = TASKS[0]
    made.observe(x[:5], y[:5])  # a batch that nobody has prepared
    assert made.samples_passed == counted + sum(passed)


def test_frozen_batchnorm_remains_frozen_in_the_search() -> None:
    made = learner(Tiny(), ConvAutoencoder(SHAPE, channels=3, depth=1), search=some_search(candidates=20))
    made.model.train()
    made.model.body[1].eval()
    run(made, tasks=1)
    assert made.previous is not None
    modes: list[bool] = []
    made.model.body[1].register_forward_pre_hook(lambda part, _: modes.append(part.training))
    x, y = TASKS[1]
    made.begin_task(Batch(x, y, 1), 1)
    made.observe(x[:5], y[:5], 1)
    assert modes
    assert not any(modes)


class Growing(ConvAutoencoder):
    """Creates a buffer in its first pass, then fails."""

    def decode(self, code: Tensor) -> Tensor:
        self.register_buffer("made", torch.zeros(()))
        raise RuntimeError("too large")


@pytest.mark.parametrize("codes", ["float32", "uint8"])
def test_codes_are_read_as_floats_whatever_the_autoencoder_counts(codes: Any) -> None:
    counting, plain = (ConvAutoencoder(SHAPE, channels=3, depth=1) for _ in range(2))
    plain.load_state_dict(counting.state_dict())
    counting.register_buffer("updates", torch.zeros((), dtype=torch.long))
    made, other = learner(autoencoder=counting, codes=codes), learner(autoencoder=plain, codes=codes)
    for one in (made, other):
        run(one, tasks=1)
    x, _ = TASKS[0]
    assert_same(made.rebuild(x), other.rebuild(x))


def test_a_buffer_created_in_a_failed_pass_is_removed() -> None:
    made = learner(Tiny(), Growing(SHAPE, channels=3, depth=1))
    x, y = TASKS[0]
    with pytest.raises(InvalidInput, match="cannot take this batch: too large"):
        made.begin_task(Batch(x, y, 0), 0)
    assert "made" not in dict(made.autoencoder.named_buffers())
