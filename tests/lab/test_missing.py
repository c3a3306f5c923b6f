"""The queue of `rehearse reproduce missing`: what the paper lacks, most valuable first."""

from __future__ import annotations

import dataclasses

from made_results import made_result

from rehearse.lab.paper.costs import Costs
from rehearse.lab.paper.missing import MISSING, queue
from rehearse.lab.paper.outcome import Results
from rehearse.lab.paper.published import PUBLISHED
from rehearse.lab.paper.targets import QUEUES, TARGETS, find_targets
from rehearse.lab.spec import Spec

STAGES = QUEUES["missing"]
CELLS, ONE_LARGE, LARGE, TABLE2, HYBRID, GENERATIVE, REST = (stage.purpose for stage in STAGES)


def planned(*results: Spec, seeds: int | None = None, first_seed: int = 0) -> list[tuple[str, Spec]]:
    made = [made_result(spec) for spec in results]
    return queue(STAGES, find_targets(["missing"]), Results(made), Costs(made), seeds, first_seed)


def purposes(name: str) -> dict[tuple[str, int], str]:
    """What each run of a target is for: by method and seed."""
    of = {spec.key: purpose for purpose, spec in planned()}
    return {(spec.method, spec.seed): of[spec.key] for spec in TARGETS[name].specs()}


def test_the_queue_is_everything_that_the_paper_has_runs_for_each_once() -> None:
    keys = [spec.key for _, spec in planned()]
    assert len(keys) == len(set(keys))
    assert set(keys) == {spec.key for name in MISSING for spec in TARGETS[name].specs()}
    assert set(MISSING) >= PUBLISHED.keys()


def test_the_stages_come_in_their_order_and_inside_seed_by_seed_the_cheapest_first() -> None:
    runs, costs = planned(), Costs([])
    order = [stage.purpose for stage in STAGES]
    places = [(order.index(purpose), spec.seed, costs.estimate(spec).cpu_seconds) for purpose, spec in runs]
    assert places == sorted(places)
    assert {purpose for purpose, _ in runs} == set(order)


def test_every_cell_has_three_seeds_before_any_has_more_and_mini_imagenet_one_first() -> None:
    for name in PUBLISHED.keys() - {"table4"}:
        assert {purpose for (_, seed), purpose in purposes(name).items() if seed < 3} == {CELLS}
    large = purposes("table4")
    for method in ("er", "er-mir"):
        assert [large[method, seed] for seed in range(4)] == [ONE_LARGE, LARGE, LARGE, REST]


def test_then_the_rows_of_table_2_that_are_compared_the_hybrid_and_generative_replay() -> None:
    table2 = purposes("table2")
    assert {method for (method, seed), purpose in table2.items() if (seed, purpose) == (14, TABLE2)} == {
        "er", "er-mir", "finetune", "iid-online"
    }  # fmt: skip
    assert table2["gem", 14] == table2["icarl", 14] == REST
    assert set(purposes("figure5").values()) == {HYBRID}
    assert purposes("table5")["gen", 19] == GENERATIVE


def test_what_has_a_result_in_any_precision_is_its_own_spec_and_costs_what_it_cost() -> None:
    spec = TARGETS["table2"].only(["er-mir"]).entries[0].spec(0)
    half = dataclasses.replace(spec, precision="bfloat16-scoring")
    keys = {one.key for _, one in planned(half)}
    assert half.key in keys
    assert spec.key not in keys
    assert Costs([made_result(half)]).estimate(spec).measured


def test_seeds_limit_the_queue_and_the_first_one_moves_it() -> None:
    assert {spec.seed for _, spec in planned(seeds=2)} == {0, 1}
    assert {spec.seed for _, spec in planned(seeds=2, first_seed=30)} == {30, 31}
