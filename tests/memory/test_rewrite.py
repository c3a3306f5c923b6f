"""Other inputs in the place of stored ones: in RAM and in a file, where going back brings the old ones back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rehearse import ReservoirMemory
from rehearse.errors import InvalidInput
from sameness import assert_same


@pytest.mark.parametrize("mapped", [False, True])
def test_inputs_are_rewritten_and_all_else_stays(mapped: bool, tmp_path: Path) -> None:
    memory = ReservoirMemory(6, path=tmp_path / "samples" if mapped else None)
    memory.add(torch.arange(10.0).view(5, 2), torch.arange(5), task=1, logits=torch.rand(5, 3))
    memory.fact("loss", torch.arange(5), fill=0.0)
    memory.note("loss", torch.arange(5), torch.arange(5.0))
    before, state, changes = memory.all(), memory.state_dict(), memory.changes
    memory.rewrite(torch.tensor([3, 0]), torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]))
    assert memory.changes > changes  # for whatever was computed from the samples
    after = memory.all()
    assert after.x.tolist() == [[-3.0, -4.0], [2.0, 3.0], [4.0, 5.0], [-1.0, -2.0], [8.0, 9.0]]
    assert_same(
        (after.y, after.task, after.slots, dict(after.columns)),
        (before.y, before.task, before.slots, dict(before.columns)),
    )
    assert memory.fact("loss", torch.arange(5), fill=0.0).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    memory.load_state_dict(state)
    assert_same(memory.all().x, before.x)


def test_inputs_of_another_form_are_refused() -> None:
    memory = ReservoirMemory(6)
    memory.add(torch.zeros(3, 2), torch.arange(3))
    for x in (torch.zeros(1, 3), torch.zeros(1, 2).double()):
        with pytest.raises(InvalidInput, match="those before"):
            memory.rewrite(torch.tensor([0]), x)
    assert_same(memory.all().x, torch.zeros(3, 2))
