"""Every engine in fast/ takes part in the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conftest import ENGINES, make, run, tiny_stream, trained
from sameness import differences

fast = pytest.importorskip("rehearse.fast")  # the contract also runs without it
OFFERS = {offer.__name__ for table in (fast.ENGINES, fast.DESCENTS) for offer in table.values()}


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the names of offers that were accepted."""
    found: set[str] = set()

    def noted(offer: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            engine = offer(*arguments)
            found.update([] if engine is None else [offer.__name__])
            return engine

        return call

    for table in (fast.ENGINES, fast.DESCENTS):
        for kind, offer in table.items():
            monkeypatch.setitem(table, kind, noted(offer))
    return found


def test_every_engine_is_entered_by_the_methods_that_the_contract_tests(entered: set[str]) -> None:
    by_method = {}
    for method in ENGINES:
        entered.clear()
        run(make(method, updates=2), tiny_stream(), stop=9)
        by_method[method] = set(entered)
    for method in ("finetune", "er", "er-mir", "er-mir-head"):
        assert by_method[method] == {"dense"}
    for method in ("gen", "gen-mir"):
        assert by_method[method] == {"repeated_batch"}
    assert set().union(*by_method.values()) == OFFERS


@pytest.mark.parametrize("method", ENGINES)
def test_without_fast_none_is_entered(method: str, entered: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REHEARSE_FAST", "0")
    run(make(method, updates=2), tiny_stream(), stop=9)
    assert not entered


@pytest.mark.parametrize("method", ENGINES)
def test_a_state_of_a_fast_engine_resumes_without_it(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = trained(method).state_dict()
    monkeypatch.setenv("REHEARSE_FAST", "0")
    plain = make(method)
    plain.load_state_dict(state)
    assert not differences(plain.state_dict(), state)
    run(plain, tiny_stream(), start=12)
