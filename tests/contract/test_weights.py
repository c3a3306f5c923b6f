"""Weights and columns, in every method: used, or refused."""

from __future__ import annotations

import pytest
from small_learners import batch

from conftest import METHODS, make
from rehearse import Learner
from rehearse.errors import InvalidInput
from sameness import assert_same

REFUSE = {"ICaRL", "GenerativeReplay", "CodeReplay", "SCR"}


@pytest.mark.parametrize("method", METHODS)
def test_every_learner_takes_weights_or_says_that_it_does_not(method):
    one: Learner = make(method)
    x, y, _ = batch(0)
    before = one.state_dict()
    if type(one).__name__ in REFUSE:
        for given in ({"weight": [1, 1, 1, 1]}, {"source": [1, 1, 1, 1]}):
            with pytest.raises(InvalidInput, match="without weights and columns"):
                one.observe(x, y, task=0, **given)
        with pytest.raises(InvalidInput, match="one class per sample"):
            one.observe(x, {"a": y}, task=0)
        assert_same(one.state_dict(), before)
    else:
        one.observe(x, y, task=0, weight=[1, 2, 3, 4], source=[1, 2, 3, 4])
        one.observe(x, y, task=1, weight=[1, 2, 3, 4], source=[1, 2, 3, 4])
        if one.memory is not None:
            assert one.memory.all().columns.keys() == {"weight", "source"} | one.memory.all().columns.keys()
