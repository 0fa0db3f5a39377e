"""RocketMQ's sampled statistics."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_clock import FakeClock

from penstock.runtime.statistics import OTHER, Statistics, StatsData, StatsItem
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual


def test_nothing_sampled_tells_nothing() -> None:
    item = StatsItem()
    item.add(5)
    assert item.minute() == item.hour() == item.day() == StatsData(0, 0.0, 0.0)


def test_the_first_sample_counts_from_zero_one_period_earlier() -> None:
    item = StatsItem()
    item.add(500, times=5)
    item.sample_minute(100.0)
    assert item.minute() == StatsData(500, 50.0, 100.0)
    item.sample_hour(100.0)
    assert item.hour().tps == pytest.approx(500 / 600)
    item.sample_day(100.0)
    assert item.day().tps == pytest.approx(500 / 3600)


def test_the_rate_is_growth_over_time_between_the_oldest_and_the_newest() -> None:
    item = StatsItem()
    for second in range(0, 200, 10):
        item.add(100, times=2)
        item.sample_minute(float(second))
    # Seven records are kept: six periods, the last minute.
    assert item.minute() == StatsData(600, 10.0, 50.0)


def test_a_rate_falls_to_zero_when_nothing_comes_any_more() -> None:
    item = StatsItem()
    item.add(100)
    for second in range(0, 80, 10):
        item.sample_minute(float(second))
    assert item.minute() == StatsData(0, 0.0, 0.0)


def test_two_samples_at_one_moment_do_no_harm() -> None:
    item = StatsItem()
    for _ in range(10):
        item.sample_minute(5.0)
    assert item.minute() == StatsData(0, 0.0, 0.0)


async def test_a_day_is_sampled_as_rocketmq_does_it() -> None:
    clock = FakeClock()
    async with Statistics(clock) as statistics:
        item = statistics.item("TOPIC_PUT_NUMS", "orders")
        for _ in range(6):
            item.add(600)
            await clock.advance("10m")
    # Nothing came in the last minute: the tenth minute's 600 came right after a sample.
    assert item.minute() == StatsData(0, 0.0, 0.0)
    assert item.hour() == StatsData(3600, 1.0, 600.0)
    assert item.day() == StatsData(3600, 1.0, 600.0)


def test_windows_of_an_hour_and_a_day_slide() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        async with Statistics(loop.clock) as statistics:
            item = statistics.item("GROUP_GET_NUMS", "orders@billing")
            await asyncio.sleep(5)
            for minute in range(26 * 60):
                item.add(60 if minute < 13 * 60 else 120)
                await asyncio.sleep(60)
            assert item.minute() == StatsData(120, 2.0, 120.0)
            assert item.hour() == StatsData(7200, 2.0, 120.0)
            # 24 hours: the last 13 at 120 a minute, 11 before them at 60.
            assert item.day().sum == (13 * 120 + 11 * 60) * 60
            assert item.day().tps == pytest.approx(item.day().sum / 86_400)

    run_virtual(scenario)


def test_items_are_found_by_name_and_key() -> None:
    statistics = Statistics(FakeClock())
    assert statistics.find("TOPIC_PUT_NUMS", "orders") is None
    item = statistics.item("TOPIC_PUT_NUMS", "orders")
    assert statistics.find("TOPIC_PUT_NUMS", "orders") is item
    assert statistics.find("TOPIC_PUT_NUMS", "other") is None
    assert statistics.table("TOPIC_PUT_NUMS").name == "TOPIC_PUT_NUMS"


def test_keys_of_what_is_gone_are_removed_everywhere() -> None:
    statistics = Statistics(FakeClock())
    statistics.item("TOPIC_PUT_NUMS", "orders").add(1)
    statistics.item("GROUP_GET_NUMS", "orders@billing").add(1)
    statistics.item("GROUP_GET_NUMS", "bills@billing").add(1)
    statistics.remove(lambda key: key.split("@")[0] == "orders")
    assert statistics.find("TOPIC_PUT_NUMS", "orders") is None
    assert [key for key, _ in statistics.table("GROUP_GET_NUMS").items()] == ["bills@billing"]


def test_keys_are_bounded_and_the_rest_counted_together() -> None:
    statistics = Statistics(FakeClock(), max_items=2)
    for number in range(10):
        statistics.item("TOPIC_PUT_NUMS", f"topic-{number}").add(1)
    table = statistics.table("TOPIC_PUT_NUMS")
    assert len(table) == 3
    assert table.item(OTHER).sum == 8
