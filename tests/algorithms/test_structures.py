"""Outputs with classes in the last dimension, in objects, of several heads; sequences of different lengths."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rehearse import Batch, Finetune, MostInterfered, Padding, Replay, ReservoirMemory, RingMemory, Uniform, load, save
from rehearse.errors import InvalidInput, InvalidType
from rehearse.losses import AsymmetricCrossEntropy, AveragedDistillation, DarkExperience, as_loss
from sameness import assert_same

WORDS, CLASSES = 11, 5


class ModelOutput(OrderedDict):  # type: ignore[type-arg]
    """As those of Hugging Face: a dict whose entries are attributes, some of which are no tensors."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Tagger(nn.Module):
    """Classes of each token. A mean over the unmasked tokens goes in, so that padding without the mask would count."""

    def __init__(self, form: str = "tensor") -> None:
        super().__init__()
        self.form, self.embedding, self.head = form, nn.Embedding(WORDS, 6), nn.Linear(6, CLASSES)

    def forward(self, tokens: Tensor, mask: Tensor) -> Any:
        words = self.embedding(tokens) * mask[..., None]
        logits = self.head(words + words.sum(1, keepdim=True) / mask.sum(1)[:, None, None])
        if self.form == "first":
            return logits.movedim(-1, 1)
        return {"tensor": logits, "object": ModelOutput(logits=logits, cache=None), "dict": {"logits": logits}}[
            self.form
        ]


def sentences(length: int, n: int = 4, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(100 * seed + length)
    tokens = torch.randint(1, WORDS, (n, length), generator=generator)
    mask = torch.arange(length) < torch.randint(1, length + 1, (n, 1), generator=generator)
    y = torch.randint(CLASSES, (n, length), generator=generator)
    mask[0] = True
    return {"tokens": tokens * mask, "mask": mask}, y.masked_fill(~mask, -100)


def tagging(
    form: str = "tensor", loss: Any = None, memory: Any = None, retrieval: Any = None, **options: Any
) -> Replay:
    torch.manual_seed(0)
    model = Tagger(form)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    retrieval = retrieval or MostInterfered(6)
    return Replay(
        model, optimizer, ReservoirMemory(6) if memory is None else memory, retrieval, budget=3, loss=loss, **options
    )


@pytest.mark.parametrize("form", ["tensor", "object", "dict", "first"])
@pytest.mark.parametrize("own", [False, True])
def test_a_class_is_predicted_for_each_token(form, own):
    def function(logits: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(logits if form == "first" else logits.transpose(1, 2), y, reduction="none").mean(1)

    one = tagging(form, function if own else nn.CrossEntropyLoss())
    for seed in range(3):
        one.observe(*sentences(7, seed=seed))
    x, _ = sentences(9)
    with torch.no_grad():
        logits = Tagger.forward(one.model, **x)
    logits = logits["logits"] if form in ("object", "dict") else logits
    logits = logits.movedim(1, -1) if form == "first" else logits
    assert one.predict(x).equal(logits.argmax(-1))
    assert one.predictor().predict(x).equal(logits.argmax(-1))
    probabilities = one.predict_proba(x)
    assert probabilities.equal(one.predictor().predict_proba(x))
    torch.testing.assert_close(probabilities.sum(1 if form == "first" else -1), torch.ones(4, 9))


def test_the_layout_is_saved(tmp_path):
    one, other = tagging(loss=nn.CrossEntropyLoss()), tagging(loss=nn.CrossEntropyLoss())
    one.observe(*sentences(7))
    save(one, tmp_path / "learner.pt")
    load(tmp_path / "learner.pt", other)
    assert other.predict(sentences(7)[0]).shape == (4, 7)


@pytest.mark.parametrize("loss", [AsymmetricCrossEntropy(), DarkExperience(loss=nn.CrossEntropyLoss()), None])
def test_other_losses_find_the_classes_too(loss):
    """The same step as with the classes in dimension 1."""
    x, y = sentences(7)
    last, first = (tagging(form, loss, retrieval=Uniform()) for form in ("tensor", "first"))
    for one in (last, first):
        one.observe(x, y.clamp(min=0))
        one.observe(x, y.clamp(min=0))
    for own, theirs in zip(last.model.parameters(), first.model.parameters(), strict=True):
        torch.testing.assert_close(own, theirs)


def test_distillation_finds_the_classes_too():
    x, y = sentences(7)
    last, first = (
        tagging(form, AveragedDistillation(), retrieval=Uniform(), average=0.5) for form in ("tensor", "first")
    )
    for one in (last, first):
        for _ in range(3):
            one.observe(x, y.clamp(min=0))
    for own, theirs in zip(last.model.parameters(), first.model.parameters(), strict=True):
        torch.testing.assert_close(own, theirs)


# ----------------------------------------------------------------------------------------------------------- lengths

PADDING = Padding(9, x={"tokens": 0, "mask": 0}, y=-100)


def padded(x: dict[str, Tensor], y: Tensor, length: int) -> tuple[dict[str, Tensor], Tensor]:
    fill = (0, length - y.shape[1])
    return {k: nn.functional.pad(v, fill) for k, v in x.items()}, nn.functional.pad(y, fill, value=-100)


@pytest.mark.parametrize("retrieval", [Uniform(), MostInterfered(6)])
@pytest.mark.parametrize("memory", ["ram", "file"])
def test_lengths_may_differ_and_change_no_step(retrieval, memory, tmp_path):
    """The same parameters as for batches that came padded to the full length."""
    path = tmp_path / "rows" if memory == "file" else None
    loss = as_loss(nn.CrossEntropyLoss(), dim=-1)
    one = tagging(loss=loss, memory=RingMemory(8, path=path), retrieval=retrieval, pad=PADDING)
    other = tagging(loss=loss, memory=RingMemory(8), retrieval=retrieval)
    for seed, length in enumerate([4, 7, 5, 9, 3]):  # one of them as long as there are classes
        x, y = sentences(length, seed=seed)
        first, second = one.observe(x, y), other.observe(*padded(x, y, 9))
        assert first.incoming_loss == pytest.approx(second.incoming_loss, abs=1e-5)
    for own, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, atol=1e-5, rtol=1e-4)
    assert sorted(one.memory.all().columns["unpadded_length"].tolist()) == [3] * 4 + [9] * 4
    assert one.predict(sentences(5)[0]).shape == (4, 5)
    assert one.remember([sentences(6)]) == 4
    assert len(one.diagnose(*sentences(6))) == 8


def test_passes_are_as_long_as_the_longest_of_the_batch():
    one = tagging(loss=as_loss(nn.CrossEntropyLoss(), dim=-1), memory=RingMemory(8), pad=PADDING)
    lengths = []
    one.observe(*sentences(4))
    one.model.register_forward_pre_hook(
        lambda _, x, keywords: lengths.append(keywords["tokens"].shape[1]), with_kwargs=True
    )
    one.observe(*sentences(6, seed=1))
    assert set(lengths) == {4, 6}


@pytest.mark.parametrize(
    "loss", [DarkExperience(loss=nn.CrossEntropyLoss()), AveragedDistillation(loss=nn.CrossEntropyLoss())]
)
def test_losses_that_compare_logits_take_different_lengths(loss):
    one = tagging(loss=loss, pad=PADDING, average=0.5)
    for length in (4, 7, 3):
        one.observe(*sentences(length))
    assert one.progress.kind == "tokens"


def test_lengths_that_do_not_fit_are_refused_and_change_nothing():
    one = tagging(loss=nn.CrossEntropyLoss(), pad=PADDING)
    one.observe(*sentences(4))
    before = one.state_dict()
    x, y = sentences(6)
    bad: list[Any] = [sentences(10), (x, y[:, :5]), ({"tokens": x["tokens"]}, y), (x, y[:, 0])]
    for each, words in zip(bad, ["at most 9", "5 and 6 long", "another structure", "0 and 6 long"], strict=True):
        with pytest.raises(InvalidInput, match=words):
            one.observe(*each)
    assert_same(one.state_dict(), before)


def listed(tensor: Tensor, lengths: list[int], numbers: bool) -> list[Any]:
    rows = [row[:length] for row, length in zip(tensor, lengths, strict=True)]
    return [row.tolist() for row in rows] if numbers else rows


@pytest.mark.parametrize("numbers", [False, True])
def test_lists_of_sequences_are_padded_to_the_longest(numbers):
    """All that takes samples takes them as lists too, with the result of the padded tensors."""
    one, other = (tagging(loss=as_loss(nn.CrossEntropyLoss(), dim=-1), pad=PADDING) for _ in range(2))
    for seed in range(3):
        tokens, y, lengths = torch.randint(1, WORDS, (4, 6)), torch.randint(CLASSES, (4, 6)), [2, 6, 1, 4]
        mask = torch.arange(6) < torch.tensor(lengths)[:, None]
        x, y = {"tokens": tokens * mask, "mask": mask.long()}, y.masked_fill(~mask, -100)
        as_lists = {name: listed(values, lengths, numbers) for name, values in x.items()}
        ys = listed(y, lengths, numbers)
        if seed:
            assert one.observe(as_lists, ys).incoming_loss == other.observe(x, y).incoming_loss
        else:
            assert one.remember([(as_lists, ys), (as_lists, ys, 1)]) == other.remember([(x, y), (x, y, 1)]) == 8
        assert_same(one.state_dict(), other.state_dict())
        assert one.predict(as_lists).equal(other.predict(x))
        assert one.predictor().predict(as_lists).equal(other.predict(x))
        assert one.diagnose(as_lists, ys).interference.equal(other.diagnose(x, y).interference)


def test_lists_that_cannot_be_padded_are_refused_and_change_nothing():
    one = tagging(loss=as_loss(nn.CrossEntropyLoss(), dim=-1), pad=PADDING)
    one.observe(*sentences(4))
    before = one.state_dict()
    rows = [[1, 2], [3]]
    for x, y, words in (
        ({"tokens": rows, "mask": [[1, 1], [[1]]]}, rows, "padded to one length"),
        ({"tokens": rows, "mask": [1, 1]}, rows, "padded to one length"),
        ({"tokens": rows}, rows, "another structure"),
        ({"tokens": [], "mask": []}, [], "padded to one length"),
        ({"tokens": rows, "mask": rows}, [[1] * 10, [1]], "must have one length"),
    ):
        with pytest.raises(InvalidInput, match=words):
            one.observe(x, y)
    assert_same(one.state_dict(), before)


@pytest.mark.parametrize("x", [[torch.ones(2), torch.ones(3)], [[1, 2], [3]]])
def test_lists_of_different_lengths_need_padding(x):
    with pytest.raises((InvalidInput, InvalidType), match=r"pad=Padding\("):
        tagging(loss=nn.CrossEntropyLoss()).observe(x, [0, 1])


def test_a_sentence_says_to_pad_where_lengths_differ():
    one = tagging(loss=nn.CrossEntropyLoss())
    one.observe(*sentences(4))
    with pytest.raises(InvalidInput, match=r"pad=Padding\("):
        one.observe(*sentences(6))


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        ([[1, 2, 3], [4, 5, 6, 7, 8]], [[1, 2, 3, 4, 0], [1, 1, 1]], "sequences of sample 0 are 3 and 5 long"),
        ([[1, 2], [4, 5, 6]], [[1, 2], [1, 1]], "sequences of sample 1 are 2 and 3 long"),
        ([[1, 2, 3], [4.7, 5.2]], [[1, 2, 3], [1, 2]], "they are torch.int64 and torch.float64"),
        ([torch.zeros(1, 2), torch.zeros(1, 1)], [[1], [1]], r"shapes \(2,\) and \(1,\)"),
        ([[], [1]], [[], [1]], "none of them may be empty"),
        ([5, 6], [5, 6], "none of them may be empty"),
    ],
)
def test_sequences_that_do_not_fit_are_refused_and_not_altered(x: Any, y: Any, sentence: str):
    one = tagging(loss=nn.CrossEntropyLoss(), pad=Padding(9, y=-100))
    before = one.state_dict()
    with pytest.raises(InvalidInput, match=sentence):
        one.observe(x, y)
    assert_same(one.state_dict(), before)


def test_sequences_of_one_sample_have_one_length_in_all_parts_and_may_differ_between_samples():
    x, y = {"tokens": [[1, 2, 3], [4]], "mask": [[1, 1, 1], [1]]}, [[1, 2, 0], [3]]
    padded, targets = PADDING.collated(x, y)
    assert padded["tokens"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert targets.tolist() == [[1, 2, 0], [3, -100, -100]]
    with pytest.raises(InvalidInput, match="sequences of sample 1 are 1 and 2 long"):
        PADDING.collated({**x, "mask": [[1, 1, 1], [1, 1]]}, y)


def test_the_parts_of_a_padding_are_found_by_name_in_any_order():
    padding = Padding(5, x={"size": None, "tokens": 7})
    filled = padding.fill(Batch({"tokens": torch.ones(2, 3), "size": torch.ones(2, 4)}, torch.zeros(2)))
    assert filled.x["tokens"].tolist() == [[1, 1, 1, 7, 7]] * 2
    assert filled.x["size"].shape == (2, 4)


def test_inputs_that_are_no_sequences_stay():
    padding = Padding(5, x=(0, None))
    batch = padding.fill(Batch((torch.ones(2, 3, 4), torch.ones(2, 3)), torch.zeros(2)))
    assert batch.x[0].shape == (2, 5, 4)
    assert batch.x[0][:, 3:].abs().max() == 0
    assert batch.x[1].shape == (2, 3)
    (short,) = padding.cut(batch)
    assert short.x[0].equal(torch.ones(2, 3, 4))
    assert short.x[1].shape == (2, 3)


# ------------------------------------------------------------------------------------------------------------- heads


class Heads(nn.Module):
    def __init__(self, form: type) -> None:
        super().__init__()
        self.form, self.kind, self.size = form, nn.Linear(3, 4), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Any:
        outputs = {"kind": self.kind(x), "size": self.size(x)}
        return outputs if self.form is dict else tuple(outputs.values())


def of_heads(outputs: Any, y: Any) -> Tensor:
    (kind, size), (kinds, sizes) = (tree.values() if isinstance(tree, dict) else tree for tree in (outputs, y))
    return cross_entropy(kind, kinds, reduction="none") + (size - sizes).square().mean(1)


def objects(form: type, seed: int) -> tuple[Tensor, Any]:
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed))
    y = {"kind": x.argmax(1), "size": x.sum(1, keepdim=True)}
    return x, y if form is dict else tuple(y.values())


def two_headed(form: type, memory: Any, retrieval: Any, loss: Any = of_heads) -> Replay:
    torch.manual_seed(0)
    model = Heads(form)
    return Replay(model, torch.optim.SGD(model.parameters(), lr=0.1), memory, retrieval, budget=4, loss=loss)


@pytest.mark.parametrize("form", [dict, tuple])
@pytest.mark.parametrize("retrieval", [Uniform(), MostInterfered(6)])
@pytest.mark.parametrize("in_file", [False, True])
def test_heads_learn_and_predict_in_their_structure(form, retrieval, in_file, tmp_path):
    paths = [tmp_path / name if in_file else None for name in ("one", "other")]
    one, other = (two_headed(form, ReservoirMemory(8, path=path), retrieval) for path in paths)
    for seed in range(3):
        step = one.observe(*objects(form, seed))
    x, y = objects(form, 9)
    assert step.replayed is not None
    expected = of_heads(one.model(step.replayed.x), step.replayed.y)
    assert expected.shape == (4,)
    predicted, served = one.predict(x), one.predictor().predict(x)
    assert type(predicted) is form
    kind, size = predicted.values() if form is dict else predicted
    assert kind.equal(one.model.kind(x).argmax(1))
    assert size.equal(one.model.size(x).detach())
    assert_same(predicted, served)
    probabilities = one.predict_proba(x)
    torch.testing.assert_close((probabilities["kind"] if form is dict else probabilities[0]).sum(1), torch.ones(6))
    assert len(one.diagnose(x, y).interference) == 8
    assert one.forget(predicate=lambda batch: (batch.y["kind"] if form is dict else batch.y[0]) == 0) > 0
    if not in_file:
        other.load_state_dict(one.state_dict())
        assert one.observe(x, y).incoming_loss == other.observe(x, y).incoming_loss
        assert_same(one.state_dict(), other.state_dict())


def test_outputs_without_targets_of_their_structure_stay_as_they_are():
    model = Heads(dict)
    loss = lambda outputs, y: cross_entropy(outputs["kind"], y, reduction="none")  # noqa: E731
    one = Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss)
    x, y = objects(dict, 0)
    one.observe(x, y["kind"])
    assert_same(one.predict(x), {k: v.detach() for k, v in model(x).items()})
    one.loss.kind = {"kind": "classes", "size": "values"}
    told = Finetune(model, one.optimizer, loss=one.loss)
    assert told.predict(x)["kind"].equal(model.kind(x).argmax(1))


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(), nn.MSELoss()])
def test_losses_of_one_tensor_say_that_heads_need_another(loss):
    one = two_headed(dict, ReservoirMemory(8), Uniform(), loss)
    before = one.state_dict()
    with pytest.raises(InvalidType, match="write your own loss"):
        one.observe(*objects(dict, 0))
    assert_same(one.state_dict(), before)


def test_targets_of_another_structure_are_refused():
    one = two_headed(dict, ReservoirMemory(8), Uniform(), lambda outputs, y: outputs["kind"].sum(1))
    one.observe(*objects(dict, 0))
    x, y = objects(dict, 1)
    before = one.state_dict()
    for other in (y["kind"], {"kind": y["kind"]}, {**y, "size": y["size"][:3]}):
        with pytest.raises(InvalidInput):
            one.observe(x, other)
    assert_same(one.state_dict(), before)


def test_one_output_may_have_several_targets():
    def loss(outputs: Tensor, y: Any) -> Tensor:
        return y["cost"] * cross_entropy(outputs, y["kind"], reduction="none")

    model = nn.Linear(3, 4)
    x, y = torch.randn(6, 3), {"kind": torch.arange(6) % 4, "cost": torch.rand(6)}
    one = Replay(model, torch.optim.SGD(model.parameters(), lr=0.1), ReservoirMemory(8), loss=loss)
    one.observe(x, y)
    one.observe(x, y)
    assert one.predict(x).equal(model(x).detach())
    loss.kind = "classes"  # type: ignore[attr-defined]
    told = Replay(model, one.optimizer, ReservoirMemory(8), loss=loss)
    told.observe(x, y)
    assert told.predict(x).equal(model(x).argmax(1))
