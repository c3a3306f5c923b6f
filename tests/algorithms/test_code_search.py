"""Distinct neighbours by turns, against a search over all pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rehearse.errors import InvalidInput
from rehearse.learners import CodeSearch
from rehearse.learners.codes.search import distinct_neighbours


def slowly(points: torch.Tensor, candidates: torch.Tensor, count: int) -> list[int]:
    taken: list[int] = []
    while len(taken) < min(count, len(candidates)):
        for point in points:
            if len(taken) < min(count, len(candidates)):
                free = [row for row in range(len(candidates)) if row not in taken]
                taken.append(min(free, key=lambda row: float(((point - candidates[row]) ** 2).sum())))
    return taken


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 30), st.integers(0, 40), st.integers(0, 10_000))
def test_by_turns_each_point_takes_the_nearest_that_is_left(n: int, m: int, count: int, seed: int) -> None:
    """Whole numbers, so that distances are exact and many are equal."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randint(-3, 4, (n, 2, 2), generator=generator).float()
    candidates = torch.randint(-3, 4, (m, 2, 2), generator=generator).float()
    found = distinct_neighbours(points, candidates, count).tolist()
    assert found == slowly(points, candidates, count)
    assert len(set(found)) == len(found) == min(count, m)


def test_neighbours_by_hand() -> None:
    points = torch.tensor([[0.0], [10.0]])
    candidates = torch.tensor([[9.0], [1.0], [0.0], [8.0], [100.0]])
    assert distinct_neighbours(points, candidates, 4).tolist() == [2, 0, 1, 3]
    assert distinct_neighbours(points, candidates, 3).tolist() == [2, 0, 1]
    assert distinct_neighbours(points, candidates, 9).tolist() == [2, 0, 1, 3, 4]


def test_invalid_code_searches() -> None:
    with pytest.raises(InvalidInput, match="kl is nan"):
        CodeSearch(kl=float("nan"))
    with pytest.raises(InvalidInput, match="candidates"):
        CodeSearch(candidates=0)
