"""Replay from codes: the codes in memory, and the training of the autoencoder that reads and writes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from code_learner import SHAPE, TASKS, images, learner, run
from torch import Tensor

from rehearse import Batch
from rehearse.errors import InvalidInput
from rehearse.lab.predictors import alternative_predictors
from rehearse.learners import CodeReplay
from rehearse.learners.codes import coded as coded_memory
from rehearse.learners.codes.codec import Codec
from rehearse.learners.codes.search import distinct_neighbours
from rehearse.nets import ConvAutoencoder
from rehearse.network import Network
from rehearse.undo import all_or_nothing
from sameness import assert_same, differences

# ------------------------------------------------------------------------------------------------------- the codes


@pytest.mark.parametrize(("codes", "size"), [("float32", 4), ("float16", 2), ("uint8", 1)])
def test_diagnostics_of_the_memory_in_bytes(codes: str, size: int) -> None:
    made = learner(capacity=12, codes=codes)
    run(made)
    found = made.diagnostics()["memory"]
    beside = 3 * 8  # label, task and arrival
    assert (found["codes"], found["code_bytes"], found["input_bytes"]) == (12, 12 * size, 16 * 4)
    assert found["bytes"] == 12 * (12 * size + beside)
    assert found["bytes_as_inputs"] == 12 * (16 * 4 + beside)
    weights = sum(v.numel() * v.element_size() for v in made.autoencoder.state_dict().values())
    assert found["autoencoder_bytes"] == weights + (2 * 3 * 4 if codes == "uint8" else 0)


def test_a_byte_is_off_by_half_a_step_of_its_channel_at_most() -> None:
    torch.manual_seed(0)
    autoencoder, x = ConvAutoencoder(SHAPE, channels=3, depth=1), torch.randn(50, *SHAPE)
    network = Network(autoencoder, torch.optim.Adam(autoencoder.parameters()))
    exact = Codec(network, network.frozen(), "float32")
    coarse = Codec(network, network.frozen(), "uint8").calibrated_on([x[:20], x[20:]])
    codes = exact.encode(x)
    error = (coarse.floats(coarse.encode(x)) - codes).abs()
    for channel in range(3):
        step = (codes[:, channel].max() - codes[:, channel].min()) / 255
        assert 0.2 * step < error[:, channel].max() <= 0.501 * step
    beyond = coarse.encode(x * 3)
    assert (beyond == 255).any()
    assert (beyond == 0).any()
    half = Codec(network, network.frozen(), "float16")
    torch.testing.assert_close(half.floats(half.encode(x)), codes, rtol=1e-3, atol=1e-4)


def brought_up_to_date(made: CodeReplay) -> None:
    made.coded.update(TASKS[0][0])


@pytest.mark.parametrize("codes", ["float32", "float16", "uint8"])
def test_an_update_reads_every_code_with_the_old_autoencoder_and_writes_it_with_the_new(codes: str) -> None:
    made = learner(capacity=37, codes=codes)
    run(made, tasks=1)
    with torch.no_grad():
        for parameter in made.autoencoder.parameters():
            parameter.mul_(1.2)
    old, before = made.codec, made.memory.all()
    brought_up_to_date(made)
    after = made.memory.all()
    for sample in range(len(before)):
        image = old.read(before.x[sample : sample + 1])
        torch.testing.assert_close(after.x[sample : sample + 1], made.codec.encode(image), rtol=1e-3, atol=1e-3)
    assert_same((after.y, after.task, after.slots), (before.y, before.task, before.slots))
    assert differences(after.x, before.x)


def test_codes_are_updated_after_each_epoch_or_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {}
    for refresh in ("epoch", "task"):
        made, calls = learner(refresh=refresh, autoencoder_epochs=3), list[Any]()
        plain = made.coded.update
        monkeypatch.setattr(made.coded, "update", lambda it, calls=calls, plain=plain: calls.append(it) or plain(it))
        run(made)
        counts[refresh] = len(calls)
        assert_same(dict(made.codec.tensors), dict(made.autoencoder.state_dict()))
    assert counts == {"epoch": 6, "task": 2}


def test_without_begin_task_codes_are_updated_every_so_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    made, due = learner(refresh_every=6), []
    plain = made.coded.update

    def noted(sample: Tensor) -> None:
        due.append(made.coded.unprepared_batches + 1)
        plain(sample)

    monkeypatch.setattr(made.coded, "update", noted)
    x, y = images(70, 5, (0, 1))
    for start in range(0, 70, 5):
        made.observe(x[start : start + 5], y[start : start + 5])
    assert due == [2, 4, 6, 12]
    assert made.coded.steps == 14 * 2


def test_the_first_codes_without_begin_task_are_of_the_trained_autoencoder() -> None:
    made = learner()
    x, y = TASKS[0]
    made.observe(x[:5], y[:5])
    assert_same(dict(made.codec.tensors), dict(made.autoencoder.state_dict()))
    torch.testing.assert_close(made.memory.all().x, made.codec.encode(x[:5]))


def trained_on(made: CodeReplay, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Return a list that grows by the inputs of each step of the autoencoder."""
    inputs: list[Tensor] = []
    network, plain = made.coded.network, made.coded.network.ask

    def ask(method: str, x: Tensor, tensors: Any = None, *rest: Any) -> Any:
        if method == "encode" and tensors is None:
            inputs.append(x.clone())
        return plain(method, x, tensors, *rest)

    monkeypatch.setattr(network, "ask", ask)
    return inputs


def test_the_autoencoder_replays_codes_of_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = learner(capacity=100, autoencoder_budget=4)
    inputs = trained_on(made, monkeypatch)
    run(made)
    assert [len(x) for x in inputs] == [5] * 8 + [9] * 8
    unprepared = learner(capacity=100, autoencoder_budget=4)
    inputs = trained_on(unprepared, monkeypatch)
    x, y = TASKS[0]
    for start, task in ((0, 0), (5, 0), (10, 1), (15, 1)):
        unprepared.observe(x[start : start + 5], y[start : start + 5], task)
    assert [len(x) for x in inputs] == [5, 5, 5, 5, 9, 9, 9, 9]


def test_every_epoch_has_all_samples_in_another_order() -> None:
    order = learner().coded._order
    first, second, other = order(20, 0, 0).tolist(), order(20, 1, 0).tolist(), order(20, 0, 1).tolist()
    assert sorted(first) == sorted(second) == sorted(other) == list(range(20))
    assert len({tuple(one) for one in (first, second, other, list(range(20)))}) == 4


def test_samples_forgotten_while_the_autoencoder_trains_are_not_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = learner(capacity=100)
    x, y = TASKS[0]
    made.begin_task(Batch(x, y, 0), 0)
    for start in range(0, 20, 5):
        made.observe(x[start : start + 5], y[start : start + 5], 0, id=list(range(start, start + 5)))
    inputs = trained_on(made, monkeypatch)

    held = []

    def forget(done: int, of: int) -> None:
        if done == 3:
            assert made.forget(ids=range(8)) == 8
        if done == 5:  # others in the place of those that go
            made.forget(ids=range(8, 16))
            made.memory.add(torch.zeros(8, *made.memory.all().x.shape[1:]), torch.zeros(8, dtype=torch.long), 0)
            held.append(len(made.memory))

    x, y = TASKS[1]
    made.begin_task(Batch(x, y, 1), 1, forget)
    assert [len(x) for x in inputs] == [25] * 3 + [17] * 2 + [5 + held[0]] * 3
    made.observe(x[:5], y[:5], 1)


def test_codes_read_ahead_follow_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many samples replace those that were forgotten."""
    made = learner(capacity=20)
    run(made, tasks=1)
    inputs = trained_on(made, monkeypatch)
    shape = made.memory.all().x.shape[1:]

    def replaced(done: int, of: int) -> None:
        if done == 2:
            made.memory.forget(slots=made.memory.slots())
            while len(made.memory) < 20:
                made.memory.add(torch.zeros(20, *shape), torch.zeros(20, dtype=torch.long), 0)

    x, y = TASKS[1]
    made.begin_task(Batch(x, y, 1), 1, replaced)
    read = [x[5:] for x in inputs]
    assert read[1].shape == read[2].shape
    assert not torch.equal(read[1][0], read[1][1])
    assert all(torch.equal(sample, read[2][0]) for sample in read[2]), "all codes are the same now"


def test_batch_statistics_are_an_option() -> None:
    published, ours = learner(statistics="batch"), learner()
    for made in (published, ours):
        run(made, tasks=1)
    before = published.state_dict()
    x = TASKS[0][0]
    alone = torch.cat([published.rebuild(x[:5]), published.rebuild(x[5:])])
    assert not torch.allclose(alone, published.rebuild(x), atol=1e-4)
    torch.testing.assert_close(torch.cat([ours.rebuild(x[:5]), ours.rebuild(x[5:])]), ours.rebuild(x))
    assert_same(published.state_dict(), before)


# ---------------------------------------------------------------------------------------------------- begin_task


@pytest.mark.parametrize("stop", [1, 3, 4, 7, 8])
def test_training_of_the_autoencoder_resumes_bit_for_bit(stop: int, tmp_path: Any) -> None:
    """In the middle of an epoch, at its end, and at the end of it all; into a learner of another seed."""
    x, y = TASKS[1]
    whole = learner(seed=1)
    run(whole, tasks=1)
    found: list[tuple[int, int]] = []

    def note(done: int, steps: int) -> None:
        found.append((done, steps))
        if done == stop:
            torch.save(whole.state_dict(), tmp_path / "state.pt")

    whole.begin_task(Batch(x, y, 1), 1, note)
    assert found == [(step, 8) for step in range(1, 9)]
    whole.observe(x[:5], y[:5], 1)
    resumed = learner(seed=2)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    again: list[tuple[int, int]] = []
    resumed.begin_task(Batch(x, y, 1), 1, lambda *at: again.append(at))
    assert again == [(step, 8) for step in range(stop + 1, 9)]
    resumed.observe(x[:5], y[:5], 1)
    assert_same(resumed.state_dict(), whole.state_dict())


def test_begin_task_resumes_after_an_exception_in_on_step() -> None:
    x, y = TASKS[0]
    whole, stopped = learner(), learner()

    def stop(done: int, steps: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    whole.begin_task(Batch(x, y, 0), 0)
    with pytest.raises(KeyboardInterrupt):
        stopped.begin_task(Batch(x, y, 0), 0, stop)
    stopped.begin_task(Batch(x, y, 0), 0)
    assert_same(stopped.state_dict(), whole.state_dict())


def test_a_task_is_prepared_once_and_invalid_data_changes_nothing() -> None:
    made = learner()
    run(made, tasks=1)
    before = made.state_dict()
    made.begin_task(Batch(*TASKS[0], 0), 0)
    made.begin_task(None, 1)
    x, y = TASKS[1]
    bad = {"shape": x[:, :, :3], "convert": x.double(), "finite": x.clone().fill_(torch.nan)}
    for words, data in bad.items():
        with pytest.raises(InvalidInput, match=words):
            made.begin_task(Batch(data, y, 1), 1)
    assert_same(made.state_dict(), before)


# ------------------------------------------------------------------------------------------- reading codes


def test_prediction_of_real_images_is_an_alternative_predictor() -> None:
    made, without = learner(), learner(autoencode_test=False)
    run(made), run(without)
    x, _ = TASKS[1]
    before = made.state_dict()
    (predict,) = alternative_predictors(made).values()
    assert torch.equal(predict(x), without.predict(x))
    torch.testing.assert_close(made.logits(x), made.model.eval()(made.rebuild(x)).detach())
    made.model.train()
    assert_same(made.state_dict(), before)
    assert not alternative_predictors(without)


def test_codes_read_ahead_equal_codes_read_as_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, drawn = learner(), learner()
    run(ahead)
    monkeypatch.setattr(coded_memory, "read_ahead", lambda *_: None)
    run(drawn)
    for one, other in zip(ahead.autoencoder.parameters(), drawn.autoencoder.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(ahead.memory.all().x, drawn.memory.all().x)


def test_bytes_need_calibration() -> None:
    made = learner(codes="uint8")
    x, y = TASKS[0]
    first, second = made.logits(x[:2])
    assert not torch.equal(first, second)  # from codes as floats
    with pytest.raises(InvalidInput, match="need a scale first"):
        made.codec.encode(x)
    made.remember([(x, y, 0)])
    stored = made.memory.all().x
    assert len({tuple(code.flatten().tolist()) for code in stored}) == len(x)
    assert len(stored.unique()) > 10


def test_a_failed_update_of_the_codes_writes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = learner()
    run(made, tasks=1)
    codes = made.memory.all().x
    monkeypatch.setattr(coded_memory, "BLOCK", 5)
    encode, calls = Codec.encode, []

    def refused(self: Any, x: Tensor) -> Tensor:
        calls.append(len(x))
        if len(calls) == 3:
            raise InvalidInput("too large")
        return encode(self, x)

    monkeypatch.setattr(Codec, "encode", refused)
    codec = made.codec
    with (
        pytest.raises(InvalidInput, match="too large"),
        all_or_nothing(made.coded.network, made.memory, made.coded),
    ):
        brought_up_to_date(made)
    assert made.codec is codec
    assert torch.equal(made.memory.all().x, codes)


def test_distances_are_computed_in_full_precision() -> None:
    points, candidates = torch.randn(4, 50) * 10, torch.randn(40, 50) * 10
    wanted = distinct_neighbours(points, candidates, 20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(distinct_neighbours(points, candidates, 20), wanted)
