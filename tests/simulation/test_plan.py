"""A plan depends on its seed alone, and the plans of many seeds cover all faults."""

from __future__ import annotations

from tests.simulation.plan import NETWORKS, Fault, plan

PLANS = [plan(seed) for seed in range(200)]


def test_a_seed_has_one_plan() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)


def test_the_tested_seeds_contain_every_fault_many_times() -> None:
    for fault in Fault:
        assert sum(event.fault is fault for p in PLANS for event in p.events) >= 10, fault


def test_the_tested_seeds_have_groups_of_both_kinds_alone_and_together() -> None:
    kinds = {tuple(group.orderly for group in p.groups) for p in PLANS}
    assert kinds == {(True,), (False,), (True, False)}


def test_events_come_in_order_within_the_busy_time() -> None:
    for p in PLANS:
        times = [event.at for event in p.events]
        assert times == sorted(times)
        assert all(0 < at < p.busy_seconds for at in times)
        assert p.network in NETWORKS


def test_a_printed_plan_lists_all_its_events() -> None:
    text = str(PLANS[3])
    assert text.startswith("seed 3:")
    assert all(str(event) in text for event in PLANS[3].events)


def test_a_big_plan_has_more_of_everything() -> None:
    small, big = plan(1), plan(1, is_big=True)
    assert len(big.events) > len(small.events)
    assert big.brokers > 1
    assert len(big.groups) > 1
