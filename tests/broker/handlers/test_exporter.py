"""Apache's rocketmq-exporter, a program beside the broker, finds values for its metrics here.

It asks by the requests of the administrator's tools and reads numbers out of texts; the checks here
read them the same way (its classes `MetricsCollectTask` and `BrokerRuntimeStats`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.support.asking import commit, log_position, put_topic, send_back
from tests.support.fake_clock import FakeClock
from tests.support.wire import Wire, json_body

from penstock.broker import Broker
from penstock.protocol.bodies.common import KvTable
from penstock.protocol.bodies.stats import BrokerStats, ConsumeStats, TopicStats
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.admin import GetConsumeStats, GetTopicStats, ViewBrokerStats

WHOLE_NUMBERS = [
    "msgPutTotalTodayNow",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "msgGetTotalTodayNow",
    "queryThreadPoolQueueSize",
    "bootTimestamp",
    "msgPutTotalYesterdayMorning",
    "msgGetTotalYesterdayMorning",
    "pullThreadPoolQueueSize",
    "commitLogMinOffset",
    "dispatchMaxBuffer",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "brokerVersion",
    "pageCacheLockTimeMills",
    "commitLogMaxOffset",
    "getMessageEntireTimeMax",
    "msgPutTotalTodayMorning",
    "putMessageTimesTotal",
    "msgGetTotalTodayMorning",
    "sendThreadPoolQueueSize",
    "startAcceptSendRequestTimeStamp",
    "putMessageEntireTimeMax",
    "earliestMessageTimeStamp",
    "remainTransientStoreBufferNumbs",
    "queryThreadPoolQueueCapacity",
    "dispatchBehindBytes",
    "putMessageSizeTotal",
    "sendThreadPoolQueueCapacity",
    "pullThreadPoolQueueCapacity",
]
FRACTIONS = ("consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize")
RATES = ("putTps", "getMissTps", "getTransferredTps", "getTotalTps", "getFoundTps")
UNITS = ("Byte", "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@pytest.mark.spec("O15")
async def test_the_exporter_can_read_each_number_of_a_broker(
    make_broker: Callable[..., Awaitable[Broker]],
) -> None:
    broker = await make_broker()
    async with await Wire.connect(broker.port) as wire:
        for _ in range(3):
            await wire.send("T")
        await wire.send("T", properties={"DELAY": "3"})
        answer = await wire.ok(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = json_body(KvTable, answer).table
    numbers = {name: int(table[name]) for name in WHOLE_NUMBERS}
    assert numbers["putMessageTimesTotal"] >= 4
    assert numbers["commitLogMaxOffset"] > 0
    assert numbers["putMessageSizeTotal"] > 0
    assert all(float(table[name]) >= 0 for name in FRACTIONS)
    for name in RATES:
        assert len([float(part) for part in table[name].split(" ")]) >= 3, name
    assert float(table["remainHowManyDataToFlush"].split(" ")[0]) >= 0
    assert table["runtime"]
    assert table["brokerVersionDesc"]
    # Total and free are the third and the seventh word, each with its unit before a comma or dot.
    words = table["commitLogDirCapacity"].split(" ")
    for place in (2, 6):
        assert float(words[place]) > 0
        assert words[place + 1][:-1] in UNITS, words
    for part in table["putMessageDistributeTime"].split(" "):
        _, colon, count = part.partition(":")
        assert not colon or int(count) >= 0
    waiting = [value for key, value in table.items() if key.startswith("scheduleMessageOffset")]
    assert waiting
    assert all(len([int(part) for part in value.split(",")]) == 2 for value in waiting)
    assert sum(int(value.split(",")[1]) - int(value.split(",")[0]) for value in waiting) == 1


@pytest.mark.spec("O15")
async def test_the_exporter_finds_rates_offsets_and_lag(
    make_broker: Callable[..., Awaitable[Broker]],
) -> None:
    clock = FakeClock()
    broker = await make_broker(clock=clock)
    async with await Wire.connect(broker.port) as wire:
        await put_topic(wire, "orders")
        sent = [await wire.send("orders") for _ in range(10)]
        await wire.heartbeat("c-1", consumer="billing", topics=["orders"], producer="shop")
        await wire.pull("billing", "orders", 0)
        await commit(wire, "billing", "orders", 4)
        await send_back(wire, "billing", log_position(sent[0]), level=3)
        await clock.advance(10)
        for name, key in (
            ("TOPIC_PUT_NUMS", "orders"),
            ("TOPIC_PUT_SIZE", "orders"),
            ("GROUP_GET_NUMS", "orders@billing"),
            ("GROUP_GET_SIZE", "orders@billing"),
            ("BROKER_PUT_NUMS", "DefaultCluster"),
            ("BROKER_GET_NUMS", "DefaultCluster"),
        ):
            answer = await wire.ok(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStats(name, key))
            assert json_body(BrokerStats, answer).stats_minute.tps > 0, name
        ask = ViewBrokerStats("SNDBCK_PUT_NUMS", "orders@billing")
        answer = await wire.ok(RequestCode.VIEW_BROKER_STATS_DATA, ask)
        assert json_body(BrokerStats, answer).stats_minute.sum == 1
        topic = json_body(
            TopicStats, await wire.ok(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStats("orders"))
        )
        assert sum(one.max_offset for one in topic.offset_table.values()) == 10
        assert max(one.last_update_timestamp for one in topic.offset_table.values()) > 0
        group = json_body(
            ConsumeStats,
            await wire.ok(RequestCode.GET_CONSUME_STATS, GetConsumeStats("billing", "orders")),
        )
        lag = [one.broker_offset - one.consumer_offset for one in group.offset_table.values()]
        assert sum(lag) == 6
