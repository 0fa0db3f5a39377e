"""Statistics: counted, sampled and returned."""

from __future__ import annotations

import time
import timeit
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.asking import all_records, log_position, put_topic, send_back
from tests.support.fake_clock import FakeClock
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire, body_of, json_body

from penstock.broker import Broker, rate_sampler
from penstock.broker.rate_sampler import RateSampler
from penstock.broker.stats import BrokerStats as Counters
from penstock.model import MessageQueue
from penstock.protocol.bodies.common import KvTable
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.bodies.offsets import CorrectionOffsets
from penstock.protocol.bodies.stats import (
    BrokerConsumeStats,
    BrokerStats,
    ConsumeOffset,
    ConsumeStats,
    ConsumeTimeSpans,
    HaStatus,
    TopicStats,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.admin import (
    CloneGroupOffset,
    GetBrokerConsumeStats,
    GetConsumeStats,
    GetTopicStats,
    QueryConsumeTimeSpan,
    ViewBrokerStats,
)
from penstock.protocol.headers.offsets import QueryCorrectionOffset, UpdateConsumerOffset

Connect = Callable[..., Awaitable[Wire]]
MakeBroker = Callable[..., Awaitable[Broker]]


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


async def send(wire: Wire, count: int, topic: str = "T", queue_id: int = 0) -> None:
    for _ in range(count):
        assert (await wire.send(topic, queue_id=queue_id)).code == 0


async def commit(wire: Wire, group: str, offset: int, queue_id: int = 0, topic: str = "T") -> None:
    await wire.ok(
        RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(group, topic, queue_id, offset)
    )


async def consume_stats(wire: Wire, group: str, **fields: str) -> ConsumeStats:
    answer = await wire.ok(RequestCode.GET_CONSUME_STATS, GetConsumeStats(group, **fields))
    return json_body(ConsumeStats, answer)


# Where groups stand


async def test_a_group_is_shown_queue_by_queue(broker: Broker, wire: Wire) -> None:
    await send(wire, 5)
    await commit(wire, "cg", 3)
    await wire.pull("cg", "T", 3)
    table = (await consume_stats(wire, "cg")).offset_table
    assert list(table) == [queue(0), queue(1), queue(2), queue(3)]
    last = broker.state.storage.store.store_time_at("T", 0, 2)
    assert table[queue(0)] == ConsumeOffset(5, 3, 5, last)
    assert table[queue(1)] == ConsumeOffset(0, 0, 0, 0)


async def test_a_topic_can_be_asked_for_where_nothing_is_committed(wire: Wire) -> None:
    await send(wire, 2)
    assert (await consume_stats(wire, "cg")).offset_table == {}
    table = (await consume_stats(wire, "cg", topic="T")).offset_table
    assert table[queue(0)].broker_offset == 2


async def test_several_topics_can_be_asked_for(wire: Wire) -> None:
    for topic in ("T", "U", "V"):
        await send(wire, 1, topic)
        await commit(wire, "cg", 1, topic=topic)
    table = (await consume_stats(wire, "cg", topic_list="T;V;none")).offset_table
    assert {queue.topic for queue in table} == {"T", "V"}


async def test_topics_that_the_members_left_are_not_shown(wire: Wire) -> None:
    for topic in ("T", "U"):
        await send(wire, 1, topic)
        await commit(wire, "cg", 1, topic=topic)
    await wire.heartbeat("me@1", consumer="cg", topics=["T"])
    table = (await consume_stats(wire, "cg")).offset_table
    assert {queue.topic for queue in table} == {"T"}


async def test_every_group_of_the_broker_is_shown(broker: Broker, wire: Wire) -> None:
    await send(wire, 5)
    await commit(wire, "cg", 3)
    await commit(wire, "cg2", 5)
    answer = await wire.ok(RequestCode.GET_BROKER_CONSUME_STATS, GetBrokerConsumeStats(False))
    stats = json_body(BrokerConsumeStats, answer)
    by_group = {
        group: found for entry in stats.consume_stats_list for group, found in entry.items()
    }
    assert by_group["TOOLS_CONSUMER"] == ()
    assert by_group["cg"][0].offset_table[queue(0)].consumer_offset == 3
    assert stats.total_diff == 2
    assert stats.broker_addr == broker.address
    ordered = await wire.ok(RequestCode.GET_BROKER_CONSUME_STATS, GetBrokerConsumeStats(True))
    assert json_body(BrokerConsumeStats, ordered).total_diff == 0


async def test_the_cost_of_showing_every_group_grows_with_their_number_only(
    broker: Broker, wire: Wire
) -> None:
    for number in range(2000):
        broker.state.groups.put(SubscriptionGroupConfig(f"cg-{number}"))
        broker.state.offsets.commit(f"cg-{number}", "T", 0, 1, "a test")
    # The broker is in this process: what it costs, however busy the machine is.
    clock = time.process_time
    offsets = broker.state.offsets
    one_pass = min(
        timeit.repeat(lambda: list(offsets.full_table()), timer=clock, number=1, repeat=5)
    )
    taken: list[float] = []
    for _ in range(3):
        begin = clock()
        await wire.ok(RequestCode.GET_BROKER_CONSUME_STATS, GetBrokerConsumeStats(False))
        taken.append(clock() - begin)
    # Looking through the offsets for each group by itself took nine hundred.
    assert min(taken) < 50 * one_pass


async def test_a_time_span_tells_how_late_a_group_is(broker: Broker, wire: Wire) -> None:
    await send(wire, 3)
    await commit(wire, "cg", 2)
    answer = await wire.ok(RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpan("T", "cg"))
    spans = json_body(ConsumeTimeSpans, answer).consume_time_span_set
    assert [span.message_queue for span in spans] == [queue(n) for n in range(4)]
    time_of = broker.state.storage.store.store_time_at
    first = spans[0]
    assert first.min_timestamp == time_of("T", 0, 0)
    assert first.max_timestamp == time_of("T", 0, 2)
    assert first.consume_timestamp == time_of("T", 0, 1)
    assert first.delay_time >= 0
    assert first.min_timestamp_text is not None
    assert first.min_timestamp_text.endswith(f":{first.min_timestamp % 1000:03d}")
    assert spans[1].delay_time == 0
    missing = await wire.request(
        RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpan("none", "cg")
    )
    assert missing.code == 17


async def test_correction_offsets_are_the_smallest_of_the_others(wire: Wire) -> None:
    await send(wire, 5)
    await send(wire, 5, queue_id=1)
    for group, first, second in (("a", 3, 4), ("b", 2, 5), ("skipped", 0, 0), ("me", 1, 5)):
        await commit(wire, group, first, 0)
        await commit(wire, group, second, 1)
    answer = await wire.ok(
        RequestCode.QUERY_CORRECTION_OFFSET, QueryCorrectionOffset("T", "me", "skipped,me")
    )
    never = (1 << 63) - 1
    assert json_body(CorrectionOffsets, answer).correction_offsets == {0: never, 1: 4}


async def test_a_group_can_start_where_another_stands(wire: Wire) -> None:
    await send(wire, 5)
    await commit(wire, "cg", 3)
    await wire.ok(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffset("cg", "copy", "T", True))
    table = (await consume_stats(wire, "copy")).offset_table
    assert table[queue(0)].consumer_offset == 3


async def test_cloning_follows_the_subscriptions_by_default(wire: Wire) -> None:
    for topic in ("T", "U"):
        await send(wire, 2, topic)
        await commit(wire, "cg", 1, topic=topic)
    await wire.heartbeat("me@1", consumer="cg", topics=["T"])
    await wire.ok(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffset("cg", "copy"))
    assert {q.topic for q in (await consume_stats(wire, "copy")).offset_table} == {"T"}
    await wire.ok(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffset("cg", "copy2", offline=True))
    assert {q.topic for q in (await consume_stats(wire, "copy2")).offset_table} == {"T", "U"}


async def test_cloning_makes_no_illegal_group(wire: Wire) -> None:
    answer = await wire.request(
        RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffset("cg", "no@good", "T", True)
    )
    assert answer.code == 29


# RocketMQ's statistics


async def view(wire: Wire, name: str, key: str) -> BrokerStats:
    answer = await wire.ok(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStats(name, key))
    return json_body(BrokerStats, answer)


async def test_counts_become_rates_of_the_last_minute(make_broker: MakeBroker) -> None:
    clock = FakeClock()
    broker = await make_broker(clock=clock)
    async with await Wire.connect(broker.port) as wire:
        await send(wire, 20)
        await wire.pull("cg", "T", 0)
        assert (await view(wire, "TOPIC_PUT_NUMS", "T")).stats_minute.sum == 0, "not sampled yet"
        await clock.advance(10)
        assert (await view(wire, "TOPIC_PUT_NUMS", "T")).stats_minute.sum == 20
        minute = (await view(wire, "GROUP_GET_NUMS", "T@cg")).stats_minute
        assert (minute.sum, minute.tps, minute.average_time) == (20, 2.0, 20.0)
        size = (await view(wire, "TOPIC_PUT_SIZE", "T")).stats_minute
        assert size.average_time == size.sum / 20
        assert (await view(wire, "BROKER_PUT_NUMS", "DefaultCluster")).stats_minute.sum == 20
        assert (await view(wire, "BROKER_GET_NUMS", "DefaultCluster")).stats_minute.sum == 20
        assert (await consume_stats(wire, "cg", topic="T")).consume_tps == 2.0
        stats = await wire.ok(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStats("T"))
        assert json_body(TopicStats, stats).topic_put_tps == 2.0


@pytest.mark.spec("S117")
@in_virtual_time
async def test_send_backs_and_dead_letters_grow_by_one_each(tmp_path: Path) -> None:
    async def counted(name: str, key: str) -> int:
        answer = await wire.request(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStats(name, key))
        return 0 if answer.code else json_body(BrokerStats, answer).stats_minute.sum

    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        position = log_position(await wire.send("T"))
        await stage.clock.sleep(10)
        assert await counted("SNDBCK_PUT_NUMS", "T@g") == 0
        await send_back(wire, "g", position, level=1)
        await stage.clock.sleep(10)
        assert await counted("SNDBCK_PUT_NUMS", "T@g") == 1
        assert await counted("DLQ_PUT_NUMS", "g") == 0
        # A retry that fails as well counts for the topic it was sent to, too.
        [retry] = await all_records(wire, "%RETRY%g")
        await send_back(wire, "g", retry.log_position, level=1)
        await stage.clock.sleep(10)
        assert await counted("SNDBCK_PUT_NUMS", "T@g") == 2
        assert await counted("SNDBCK_PUT_NUMS", "%RETRY%g@g") == 0
        # What comes in for the group again counts as coming in; dead letters do not.
        assert await counted("TOPIC_PUT_NUMS", "%RETRY%g") == 2
        await send_back(wire, "g", retry.log_position, level=-1)
        await stage.clock.sleep(10)
        assert await counted("SNDBCK_PUT_NUMS", "T@g") == 3
        assert await counted("DLQ_PUT_NUMS", "g") == 1
        assert await counted("TOPIC_PUT_NUMS", "%DLQ%g") == 0
        assert await counted("BROKER_PUT_NUMS", "DefaultCluster") == 3


@pytest.mark.parametrize(
    ("name", "key"),
    [("TOPIC_PUT_NUMS", "none"), ("NO_SUCH_NUMS", "T"), ("TOPIC_PUT_LATENCY", "T"), ("", "")],
)
async def test_an_unknown_statistic_is_an_error(wire: Wire, name: str, key: str) -> None:
    await send(wire, 1)
    answer = await wire.request(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStats(name, key))
    assert answer.code == 1
    assert answer.remark == f"The stats <{name}> <{key}> not exist"


async def test_deleted_topics_and_groups_are_forgotten(make_broker: MakeBroker) -> None:
    clock = FakeClock()
    broker = await make_broker(clock=clock)
    async with await Wire.connect(broker.port) as wire:
        await send(wire, 2)
        await wire.pull("cg", "T", 0)
        await clock.advance(10)
        await wire.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "cg"})
        await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        await clock.advance(10)
        for name, key in (("TOPIC_PUT_NUMS", "T"), ("GROUP_GET_NUMS", "T@cg")):
            ask = ViewBrokerStats(name, key)
            answer = await wire.request(RequestCode.VIEW_BROKER_STATS_DATA, ask)
            assert answer.code == 1


async def test_single_queues_are_counted(make_broker: MakeBroker) -> None:
    clock = FakeClock()
    broker = await make_broker(clock=clock)
    async with await Wire.connect(broker.port) as wire:
        await send(wire, 4)
        await send(wire, 2, queue_id=3)
        await wire.pull("cg", "T", 0)
        await clock.advance(10)
        assert (await view(wire, "QUEUE_PUT_NUMS", "T@0")).stats_minute.sum == 4
        assert (await view(wire, "QUEUE_PUT_NUMS", "T@3")).stats_minute.sum == 2
        assert (await view(wire, "TOPIC_PUT_NUMS", "T")).stats_minute.sum == 6
        assert (await view(wire, "QUEUE_PUT_SIZE", "T@3")).stats_minute.sum > 100
        assert (await view(wire, "QUEUE_GET_NUMS", "T@0@cg")).stats_minute.sum == 4
        assert (await view(wire, "QUEUE_GET_SIZE", "T@0@cg")).stats_minute.sum > 100


async def test_latencies_are_the_time_between_taking_in_and_answering(
    make_broker: MakeBroker,
) -> None:
    clock = FakeClock()
    broker = await make_broker(clock=clock)
    stats = broker.state.stats
    async with await Wire.connect(broker.port) as wire:
        await send(wire, 1)
        stats.put_took("T", 0, 0.002)
        stats.put_took("T", 0, 0.004)
        stats.get("cg", "T", 0, 1, 100, 0.010)
        await clock.advance(10)
        # Three were timed: the one that was sent, while this clock stood still, and two more.
        assert (await view(wire, "TOPIC_PUT_LATENCY", "0@T")).stats_minute.average_time == 2.0
        assert (await view(wire, "GROUP_GET_LATENCY", "0@T@cg")).stats_minute.average_time == 10.0


async def test_no_more_queues_are_sampled_than_fit(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_sampler, "MAX_QUEUES", 2)
    clock = FakeClock()
    broker = await make_broker(clock=clock)
    for queue_id in range(3):
        broker.state.stats.put("T", queue_id, 10)
    await clock.advance(10)
    sums = [
        item.minute().sum
        for queue_id in range(3)
        if (item := broker.state.rate_sampler.find("QUEUE_PUT_NUMS", f"T@{queue_id}")) is not None
    ]
    assert sums == [1, 1, 0]
    assert broker.state.stats.puts_of("T").count == 3


async def test_what_went_through_deleted_topics_stays_in_the_total() -> None:
    stats = Counters()
    stats.put("T", 0, 10, 3)
    stats.put("U", 0, 10)
    stats.get("g", "T", 0, 2, 20, 0.0)
    stats.forget_topic("T")
    assert (stats.put_total.count, stats.get_total.count) == (4, 2)
    assert stats.puts_of("T").count == 0


# Runtime info

# What mqadmin of 4.9.7 and 5.5.0, and the dashboard, read.
RUNTIME_KEYS = {
    "brokerVersionDesc", "brokerVersion", "brokerActive", "bootTimestamp", "runtime",
    "putTps", "getTotalTps", "getFoundTps", "getMissTps", "getTransferredTps", "getTransferedTps",
    "msgPutTotalTodayNow", "msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning",
    "msgGetTotalTodayNow", "msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning",
    "sendThreadPoolQueueSize", "pullThreadPoolQueueSize", "ackThreadPoolQueueSize",
    "queryThreadPoolQueueSize", "litePullThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueHeadWaitTimeMills",
    "litePullThreadPoolQueueHeadWaitTimeMills", "sendThreadPoolQueueCapacity",
    "pullThreadPoolQueueCapacity", "ackThreadPoolQueueCapacity", "queryThreadPoolQueueCapacity",
    "litePullThreadPoolQueueCapacity", "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity", "pageCacheLockTimeMills", "earliestMessageTimeStamp",
    "commitLogDiskRatio", "consumeQueueDiskRatio", "commitLogMinOffset", "commitLogMaxOffset",
    "dispatchBehindBytes", "dispatchMaxBuffer", "startAcceptSendRequestTimeStamp",
    "timerReadBehind", "timerOffsetBehind", "timerCongestNum", "timerEnqueueTps", "timerDequeueTps",
    "putMessageDistributeTime", "remainHowManyDataToFlush", "commitLogDirCapacity",
    "putMessageTimesTotal", "putMessageSizeTotal", "putMessageAverageSize", "putMessageFailedTimes",
    "putMessageEntireTimeMax", "getMessageEntireTimeMax", "putLatency99", "putLatency999",
    "remainTransientStoreBufferNumbs",
}  # fmt: skip


async def runtime_info(wire: Wire) -> dict[str, str]:
    return json_body(KvTable, await wire.ok(RequestCode.GET_BROKER_RUNTIME_INFO)).table


async def test_runtime_info_has_every_word_that_tools_read(wire: Wire) -> None:
    table = await runtime_info(wire)
    assert table.keys() >= RUNTIME_KEYS
    assert table["brokerVersionDesc"] == "V5_3_3"
    assert all(isinstance(value, str) for value in table.values())


async def test_runtime_info_counts_what_was_sent_and_pulled(make_broker: MakeBroker) -> None:
    clock = FakeClock()
    broker = await make_broker(clock=clock)
    async with await Wire.connect(broker.port) as wire:
        await send(wire, 30)
        await wire.pull("cg", "T", 0, count=30)
        await clock.advance(10)
        table = await runtime_info(wire)
        assert table["msgPutTotalTodayNow"] == "30"
        assert table["msgGetTotalTodayNow"] == "30"
        for key in ("putTps", "getTransferredTps", "getTransferedTps"):
            rates = [float(rate) for rate in table[key].split(" ")]
            assert rates == [3.0, 3.0, 3.0], key
        await clock.advance(50)
        rates = [float(rate) for rate in (await runtime_info(wire))["putTps"].split(" ")]
        assert rates == [0.0, 0.5, 0.5]
        assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 10 seconds ]"
        assert int(table["commitLogMaxOffset"]) > 0


@in_virtual_time
async def test_runtime_info_tells_how_far_each_delay_level_is(tmp_path: Path) -> None:
    async def progress() -> dict[str, str]:
        info = await runtime_info(wire)
        return {key: info[key] for key in info if key.startswith("scheduleMessageOffset")}

    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        assert await progress() == {}
        for level in ("2", "2", "18"):
            assert (await wire.send("T", properties={"DELAY": level})).code == 0
        expected = {"scheduleMessageOffset_2": "0,2", "scheduleMessageOffset_18": "0,1"}
        assert await progress() == expected
        await stage.clock.sleep(6)
        expected["scheduleMessageOffset_2"] = "2,2"
        assert await progress() == expected
        await broker.stop()
        wire = await stage.connect(await stage.broker())
        assert await progress() == expected


async def test_totals_are_noted_at_midnight(make_broker: MakeBroker) -> None:
    clock = FakeClock()
    broker = await make_broker(clock=clock)
    stats = Counters()
    day = 1
    async with RateSampler(
        stats, broker.state.storage.store, clock, cluster="C", day_of=lambda seconds: day
    ) as rate_sampler:
        stats.put("T", 0, 100, 5)
        day = 2
        await clock.advance(1)
        stats.put("T", 1, 100, 2)
        assert rate_sampler.day_totals("put") == (7, 5, 0)
        day = 3
        await clock.advance(1)
        assert rate_sampler.day_totals("put") == (7, 7, 5)
        assert rate_sampler.day_totals("get") == (0, 0, 0)


async def test_sampling_thousands_of_topics_lets_others_run(make_broker: MakeBroker) -> None:
    clock = FakeClock()
    broker = await make_broker(clock=clock)
    for number in range(2000):
        broker.state.stats.put(f"T{number}", 0, 10)
    await clock.advance(10)
    assert broker.state.rate_sampler.find("TOPIC_PUT_NUMS", "T1999") is not None
    assert broker.state.rate_sampler.topic_put_tps("T1999") == 0.1


async def test_a_master_without_slaves_says_so(wire: Wire) -> None:
    await send(wire, 1)
    status = json_body(HaStatus, await wire.ok(RequestCode.GET_BROKER_HA_STATUS))
    assert status.master
    assert status.master_commit_log_max_offset > 0
    assert status.ha_connection_info == ()


# Topics with many queues


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Wide"}),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "Wide", "group": "g"}),
        (RequestCode.GET_CONSUME_STATS, {"topic": "Wide", "consumerGroup": "g"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": "Wide", "group": "g", "timestamp": "0", "isForce": "true"},
        ),
    ],
    ids=["topic stats", "time span", "consume stats", "broker consume stats", "reset"],
)
async def test_others_are_served_while_many_queues_are_looked_at(
    broker: Broker, wire: Wire, connect: Connect, code: int, header: dict[str, str]
) -> None:
    await put_topic(wire, "Wide", 8192)
    await put_topic(wire, "T", 1)
    await commit(wire, "g", 0, topic="Wide")
    other = await connect()
    await send(other, 1)
    before = wire.start(code, header)
    await send(other, 30)
    assert not before.done()
    assert (await before).code == ResponseCode.SUCCESS
    assert len(body_of(await before)) > 100_000
