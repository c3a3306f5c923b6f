"""Memory policies: which samples each holds, and with which probability."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from rehearse import ClassBalancedMemory, Memory, ReservoirMemory, RingMemory
from rehearse.errors import InvalidInput, InvalidType
from rehearse.memory.columns import as_ids

POLICIES = [ReservoirMemory, RingMemory, ClassBalancedMemory]


def feed(memory: Memory, labels: list[int], batch: int) -> None:
    """Samples whose only input is their number in the stream, which is their id too."""
    numbers = torch.arange(memory.seen, memory.seen + len(labels))
    for samples in torch.arange(len(labels)).split(batch):
        memory.add(numbers[samples].double(), torch.tensor(labels)[samples], id=numbers[samples])


def held(memory: Memory) -> list[int]:
    return sorted(memory.all().x.long().tolist())


def uniform_p_value(counts: np.ndarray, draws: int) -> float:
    """Of ``draws`` fixed-size samples without replacement: is every sample held as often as any other?

    The counts are correlated, which makes their chi-square a little too small: the test errs towards failing to
    see a small deviation, never towards seeing one that is not there.
    """
    return float(stats.chisquare(counts, np.full(len(counts), counts.sum() / len(counts))).pvalue)


# -------------------------------------------------------------------------------------------------------- ring


@pytest.mark.parametrize("batch", [1, 3, 7, 25])
def test_ring_holds_exactly_the_last_samples(batch: int) -> None:
    memory = RingMemory(10)
    for start in range(0, 100, 25):
        feed(memory, [0] * 25, batch)
        assert held(memory) == list(range(max(0, start + 15), start + 25))


def test_ring_after_forgetting_holds_the_last_samples_without_the_forgotten() -> None:
    memory = RingMemory(10)
    feed(memory, [0] * 13, 4)
    assert memory.forget(ids=[5, 9, 12, 2]) == 3  # sample 2 was gone already
    assert held(memory) == [3, 4, 6, 7, 8, 10, 11]
    feed(memory, [0] * 4, 4)
    assert held(memory) == [7, 8, 10, 11, 13, 14, 15, 16]


# --------------------------------------------------------------------------------------------------- reservoir


@pytest.mark.parametrize("batch", [3])
def test_reservoir_after_forgetting_is_a_uniform_sample_of_what_remains(batch: int) -> None:
    """Samples 0 to 9 are deleted on request, whether held or not; the law is capacity / seen for every other sample."""
    capacity, before, after, draws = 10, 26, 14, 800
    counts = np.zeros(before + after)
    for seed in range(draws):
        memory = ReservoirMemory(capacity, seed=seed)
        feed(memory, [0] * before, batch)
        memory.forget(ids=range(10))
        feed(memory, [0] * after, batch)
        counts[held(memory)] += 1
    assert counts[:10].sum() == 0
    assert uniform_p_value(counts[10:], draws) > 1e-3
    expected = capacity / (before + after)
    deviation = np.sqrt(expected * (1 - expected) / (draws * 30))
    assert abs(counts[10:].mean() / draws - expected) < 5 * deviation


# ---------------------------------------------------------------------------------------------- class-balanced


def shares(memory: Memory) -> dict[int, int]:
    return memory.summary()["classes"]


def assert_balanced(memory: Memory, seen: dict[int, int]) -> None:
    """Everything while there is room; then a level q: classes below it whole, the others with q or q + 1 samples."""
    sizes = shares(memory)
    assert sum(sizes.values()) == min(memory.capacity, sum(seen.values()))
    whole = [label for label, n in seen.items() if sizes.get(label, 0) == n]
    sampled = [sizes.get(label, 0) for label in seen if label not in whole]
    if sampled:
        assert max(sampled) - min(sampled) <= 1
        assert all(sizes[label] <= max(sampled) + 1 for label in whole)


@pytest.mark.parametrize("seed", range(8))
def test_balanced_shares_at_every_moment(seed: int) -> None:
    """Long-tailed classes in random order, in batches of random size."""
    generator = np.random.default_rng(seed)
    memory, seen = ClassBalancedMemory(23, seed=seed), dict.fromkeys(range(6), 0)
    weights = 2.0 ** -np.arange(6)
    for _ in range(60):
        labels = generator.choice(6, size=int(generator.integers(1, 12)), p=weights / weights.sum()).tolist()
        feed(memory, labels, 12)
        for label in labels:
            seen[label] += 1
        assert_balanced(memory, {label: n for label, n in seen.items() if n})


def test_balanced_shares_class_after_class() -> None:
    memory = ClassBalancedMemory(60)
    for label in range(6):
        feed(memory, [label] * 100, 10)
        assert_balanced(memory, dict.fromkeys(range(label + 1), 100))
    assert shares(memory) == dict.fromkeys(range(6), 10)


def test_a_rare_class_is_held_whole() -> None:
    memory = ClassBalancedMemory(30)
    feed(memory, ([0] * 50 + [1]) * 12, 17)
    assert shares(memory) == {0: 18, 1: 12}


def test_more_classes_than_slots() -> None:
    memory = ClassBalancedMemory(4)
    feed(memory, list(range(10)) * 5, 7)
    assert len(memory) == 4
    assert set(shares(memory).values()) == {1}


@pytest.mark.parametrize("order", ["blocks", "mixed"])
def test_within_a_class_every_sample_is_held_with_the_same_probability(order: str) -> None:
    """Classes of 30, 20 and 4 samples in 12 slots: two are sampled, one is held whole."""
    labels = [0] * 30 + [1] * 20 + [2] * 4
    if order == "mixed":
        labels = np.random.default_rng(5).permutation(labels).tolist()
    draws, counts = 800, np.zeros(len(labels))
    for seed in range(draws):
        memory = ClassBalancedMemory(12, seed=seed)
        feed(memory, labels, 5)
        counts[held(memory)] += 1
    of_class = [counts[np.array(labels) == label] for label in range(3)]
    assert (of_class[2] == draws).all()
    for label, size in ((0, 4), (1, 4)):
        assert of_class[label].sum() == pytest.approx(size * draws, rel=1e-9)
        assert uniform_p_value(of_class[label], draws) > 1e-3


def test_balanced_after_forgetting() -> None:
    """The slots of forgotten samples stay with their class; the others remain uniform."""
    draws, counts = 800, np.zeros(60)
    labels = [0, 1] * 30
    for seed in range(draws):
        memory = ClassBalancedMemory(10, seed=seed)
        feed(memory, labels[:40], 8)
        memory.forget(ids=[0, 2, 4, 6, 8, 10])  # of class 0
        feed(memory, labels[40:], 8)
        counts[held(memory)] += 1
    assert counts[:11:2].sum() == 0
    assert uniform_p_value(counts[12::2], draws) > 1e-3
    assert uniform_p_value(counts[1::2], draws) > 1e-3
    assert counts[12::2].mean() / draws == pytest.approx(5 / 30, rel=0.06)


@pytest.mark.parametrize("y", [torch.randn(4), torch.ones(4, 2, dtype=torch.long), torch.tensor([True] * 4)])
def test_balanced_needs_labels(y: torch.Tensor) -> None:
    memory = ClassBalancedMemory(5)
    with pytest.raises(InvalidType, match="one integer label per sample"):
        memory.add(torch.zeros(4, 2), y)
    assert memory.seen == 0


# ----------------------------------------------------------------------------------------------------- all three


@pytest.mark.parametrize("policy", POLICIES)
def test_state_goes_on_bit_for_bit(policy: type[Memory]) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 5, 400).tolist()
    one, other = policy(17, seed=3), policy(17, seed=99)
    feed(one, labels[:200], 9)
    one.forget(ids=range(150, 170))
    other.load_state_dict(one.state_dict())
    for memory in (one, other):
        feed(memory, labels[200:], 9)
    assert torch.equal(one.all().slots, other.all().slots)
    assert held(one) == held(other)
    assert torch.equal(one.sample(8).slots, other.sample(8).slots)


@pytest.mark.parametrize(("policy", "batch"), list(itertools.product(POLICIES, [1, 50])))
def test_never_more_than_the_capacity_and_the_right_samples_at_the_right_slots(
    policy: type[Memory], batch: int
) -> None:
    memory = policy(7, seed=1)
    labels = np.random.default_rng(1).integers(0, 3, 300)
    for start in range(0, 300, 50):
        feed(memory, labels[start : start + 50].tolist(), batch)
        samples = memory.all()
        assert len(samples) == len(memory) <= 7
        assert samples.y.tolist() == labels[samples.x.long()].tolist()
        assert torch.equal(samples.columns["id"], samples.x.long())


# ----------------------------------------------------------------------------------------------------------- ids


def test_string_ids_are_known_by_their_hash() -> None:
    memory = ReservoirMemory(10)
    memory.add(torch.arange(4.0), torch.zeros(4, dtype=torch.long), id=["ann", "bob", "ann", "čeněk"])
    assert memory.forget(ids=["ann", "nobody"]) == 2
    assert memory.all().x.tolist() == [1.0, 3.0]
    assert memory.forget(ids=["čeněk"]) == 1


def test_the_hash_never_changes() -> None:
    """Ids are stored in files: the first eight bytes of BLAKE2b, little-endian, by definition."""

    expected = int.from_bytes(hashlib.blake2b(b"ann", digest_size=8).digest(), "little", signed=True)
    assert as_ids(["ann"]).tolist() == [expected] == [int(as_ids(np.array(["ann"]))[0])]


def test_ids_of_any_integers() -> None:
    for ids in ([1, -5], np.array([1, -5]), torch.tensor([1, -5], dtype=torch.int32), (1, -5)):
        assert as_ids(ids).tolist() == [1, -5]


@pytest.mark.parametrize("ids", [3, "ann", None, [1.5, 2.0], [True, False], [b"ann", 1], torch.tensor([0.5, 1])])
def test_other_ids_are_refused(ids: object) -> None:
    memory = ReservoirMemory(10)
    with pytest.raises(InvalidType):
        memory.add(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), id=ids)
    assert memory.seen == 0


def test_ids_too_large_and_too_few() -> None:
    memory = ReservoirMemory(10)
    with pytest.raises(InvalidInput, match="64 bits"):
        memory.add(torch.zeros(1, 1), torch.zeros(1, dtype=torch.long), id=[2**63])
    with pytest.raises(InvalidInput, match="2 samples"):
        memory.add(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), id=[1])
