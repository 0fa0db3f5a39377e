"""How a push consumer starts: routes, heartbeats, members, offsets, the first pulls."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from tests.support.loop_clients import Bench, on_bench
from tests.support.scripted import ScriptedServer

from penstock import Message, Producer, PushConsumer, embedded
from penstock.client.settings import StartFrom
from penstock.errors import InvalidArgument, LifecycleError, SubscriptionIllegal
from penstock.model import MessageQueue, StoredMessage
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command

GROUP = "billing"
RETRY = "%RETRY%billing"


def ignore(message: StoredMessage) -> None:
    """A handler that is always done."""


def pulled(broker: ScriptedServer) -> dict[tuple[str, int], list[int]]:
    """The offsets asked for, by topic and queue."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for request in broker.asked(RequestCode.PULL_MESSAGE):
        key = request.ext["topic"], int(request.ext["queueId"])
        offsets.setdefault(key, []).append(int(request.ext["queueOffset"]))
    return offsets


@pytest.mark.spec("S150", "S17")
@on_bench()
async def test_the_start_steps_come_in_order_and_at_once(bench: Bench) -> None:
    begun = bench.loop.time()
    await bench.consumer(ignore)
    await asyncio.sleep(2)
    first: dict[int, float] = {}
    for request in [*bench.cluster.nameserver.requests, *bench.broker.requests]:
        first.setdefault(request.code, request.at)
    times = [
        first[code]
        for code in (
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            RequestCode.HEART_BEAT,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.QUERY_CONSUMER_OFFSET,
            RequestCode.PULL_MESSAGE,
        )
    ]
    assert times == sorted(times)
    assert times[-1] - begun < 2.0


@pytest.mark.spec("S4", "S6")
@on_bench()
async def test_the_first_heartbeat_has_all_topics_and_the_retry_topic(bench: Bench) -> None:
    await bench.consumer({"T": ignore, "U": ignore}, tags="a || b")
    (data,) = bench.broker.heartbeats[0].consumer_data_set
    wanted = {s.topic: (s.sub_string, set(s.tags_set)) for s in data.subscription_data_set}
    assert wanted == {
        "T": ("a || b", {"a", "b"}),
        "U": ("a || b", {"a", "b"}),
        RETRY: ("*", set()),
    }
    assert (data.group_name, data.consume_type) == (GROUP, "CONSUME_PASSIVELY")
    assert (data.message_model, data.consume_from_where) == (
        "CLUSTERING",
        "CONSUME_FROM_LAST_OFFSET",
    )


@pytest.mark.spec("S6")
@on_bench()
async def test_a_broadcasting_consumer_does_not_subscribe_to_a_retry_topic(
    bench: Bench,
) -> None:
    consumer = await bench.consumer(ignore, model="broadcasting", start=False)
    assert [s.topic for s in consumer.consumer_data().subscription_data_set] == ["T"]


@pytest.mark.spec("S5")
@on_bench()
async def test_messages_of_all_topics_arrive(bench: Bench) -> None:
    seen: list[tuple[str, bytes]] = []
    consumer = await bench.consumer(
        {
            "T": lambda message: seen.append(("T", message.body)),
            "U": lambda message: seen.append(("U", message.body)),
        }
    )
    await asyncio.sleep(2)
    bench.broker.put("T", 0, b"1")
    bench.broker.put("U", 1, b"2")
    await asyncio.sleep(1)
    assert sorted(seen) == [("T", b"1"), ("U", b"2")]
    assert consumer.assignment() == {
        *(MessageQueue("T", "broker-a", n) for n in range(4)),
        *(MessageQueue("U", "broker-a", n) for n in range(2)),
    }


@pytest.mark.spec("S8")
@on_bench()
async def test_two_groups_of_one_client_id_share_connection_and_heartbeat(bench: Bench) -> None:
    await bench.consumer(ignore, group="one")
    await bench.consumer({"U": ignore}, group="two")
    await asyncio.sleep(35)
    assert len(bench.broker.peers) == 1
    groups = {data.group_name for data in bench.broker.heartbeats[-1].consumer_data_set}
    assert groups == {"one", "two"}


@pytest.mark.spec("S9")
@on_bench()
async def test_a_group_can_be_in_a_session_once(bench: Bench) -> None:
    first = await bench.consumer(ignore)
    second = await bench.consumer({"U": ignore}, start=False)
    with pytest.raises(LifecycleError, match="'billing' is already running as client"):
        await second.start()
    await first.stop()
    await second.start()  # the failed start left nothing behind


@pytest.mark.spec("S9")
@on_bench()
async def test_a_consumer_is_started_once(bench: Bench) -> None:
    consumer = await bench.consumer(ignore)
    with pytest.raises(LifecycleError, match="started twice"):
        await consumer.start()


@on_bench()
async def test_a_consumer_without_a_handler_is_refused(bench: Bench) -> None:
    consumer = await bench.consumer({}, start=False)
    with pytest.raises(InvalidArgument, match="no subscription"):
        await consumer.start()


@pytest.mark.spec("S10")
@on_bench()
async def test_routes_are_asked_for_at_start_and_every_half_minute(bench: Bench) -> None:
    bench.cluster.add_topic("%RETRY%billing", 1)
    await bench.consumer(ignore)
    await asyncio.sleep(95)
    names = bench.cluster.nameserver
    # Of each topic: also of the retry topic, which the consumer subscribes to by itself.
    for topic in ("T", "%RETRY%billing"):
        asked = names.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
        times = [request.at for request in asked]
        assert times[0] < 0.1
        later = [time for time in times if time > 1]
        assert len(later) == 3
        assert all(29.9 < b - a < 30.2 for a, b in itertools.pairwise(later))


@pytest.mark.spec("S15")
@on_bench(brokers=("broker-a", "broker-b"))
async def test_all_brokers_get_a_heartbeat_at_start_and_every_half_minute(bench: Bench) -> None:
    await bench.consumer(ignore)
    for broker in bench.cluster.brokers.values():
        assert broker.asked(RequestCode.HEART_BEAT)
        assert broker.asked(RequestCode.HEART_BEAT)[0].at < 0.5
    await asyncio.sleep(10)
    for broker in bench.cluster.brokers.values():
        broker.forget()
    await asyncio.sleep(60)
    for broker in bench.cluster.brokers.values():
        times = [request.at for request in broker.asked(RequestCode.HEART_BEAT)]
        assert len(times) == 2
        assert 29.9 < times[1] - times[0] < 30.2


@pytest.mark.spec("S13", "S14")
@on_bench()
async def test_an_offset_is_asked_for_when_its_queue_is_assigned_and_not_before(
    bench: Bench,
) -> None:
    broker = bench.broker
    await bench.consumer(ignore)
    await asyncio.sleep(3)
    queries = broker.asked(RequestCode.QUERY_CONSUMER_OFFSET, topic="T")
    assert sorted(int(query.ext["queueId"]) for query in queries) == [0, 1, 2, 3]
    first_members = broker.asked(RequestCode.GET_CONSUMER_LIST_BY_GROUP)[0]
    assert broker.requests.index(first_members) < broker.requests.index(queries[0])


@pytest.mark.spec("S19")
@on_bench()
async def test_each_group_gets_queues_of_each_of_its_topics(bench: Bench) -> None:
    one = await bench.consumer({"T": ignore, "U": ignore}, group="one")
    two = await bench.consumer({"T": ignore, "U": ignore}, group="two")
    await asyncio.sleep(3)
    everything = 6
    assert len(one.assignment()) == len(two.assignment()) == everything


@pytest.mark.spec("S20", "S34", "S36")
@on_bench(topics={"R": 3})
async def test_pulls_name_group_topic_and_the_queues_the_route_says(bench: Bench) -> None:
    await bench.consumer({"R": ignore}, pull_batch_size=17)
    await asyncio.sleep(2)
    pulls = bench.broker.asked(RequestCode.PULL_MESSAGE, topic="R", consumerGroup=GROUP)
    assert sorted(int(pull.ext["queueId"]) for pull in pulls) == [0, 1, 2]
    assert {pull.ext["maxMsgNums"] for pull in pulls} == {"17"}
    assert {pull.ext["suspendTimeoutMillis"] for pull in pulls} == {"15000"}


@pytest.mark.spec("S36")
@on_bench()
async def test_a_pull_asks_for_thirty_two_messages(bench: Bench) -> None:
    await bench.consumer(ignore)
    await asyncio.sleep(2)
    assert {p.ext["maxMsgNums"] for p in bench.broker.asked(RequestCode.PULL_MESSAGE)} == {"32"}


@pytest.mark.spec("S30", "S31")
@on_bench()
async def test_last_begins_where_the_group_stands_else_at_the_end(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 9)
    bench.broker.put("T", 1, *[b"x"] * 9)
    bench.broker.offsets[GROUP, "T", 0] = 7
    bench.cluster.add_topic(RETRY, 1)
    bench.broker.put(RETRY, 0, b"x", properties={"RETRY_TOPIC": "T"})
    await bench.consumer(ignore)
    await asyncio.sleep(2)
    first = {key: offsets[0] for key, offsets in pulled(bench.broker).items()}
    assert first["T", 0] == 7
    assert first["T", 1] == 9
    assert first[RETRY, 0] == 0


@pytest.mark.spec("S32")
@on_bench()
async def test_first_begins_where_the_group_stands_else_at_zero(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 9)
    bench.broker.put("T", 1, *[b"x"] * 9)
    bench.broker.offsets[GROUP, "T", 0] = 7
    await bench.consumer(ignore, start_from=StartFrom("first"))
    await asyncio.sleep(2)
    first = {key: offsets[0] for key, offsets in pulled(bench.broker).items()}
    assert first["T", 0] == 7
    assert first["T", 1] == 0


@pytest.mark.spec("S33")
@on_bench()
async def test_a_time_is_searched_for_and_a_retry_topic_begins_at_its_end(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 9)
    bench.broker.offsets[GROUP, "T", 0] = 7
    bench.cluster.add_topic(RETRY, 1)
    bench.broker.put(RETRY, 0, *[b"x"] * 5)
    bench.broker.script[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = lambda peer, request: Command(
        ResponseCode.SUCCESS, ext={"offset": "0"}
    )
    await bench.consumer(ignore, start_from=StartFrom("time", 1_600_000_000_000))
    await asyncio.sleep(2)
    searches = bench.broker.asked(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    assert {(s.ext["topic"], s.ext["queueId"]) for s in searches} == {
        ("T", "1"),
        ("T", "2"),
        ("T", "3"),
    }
    assert {s.ext["timestamp"] for s in searches} == {"1600000000000"}
    first = {key: offsets[0] for key, offsets in pulled(bench.broker).items()}
    assert first["T", 0] == 7
    assert first[RETRY, 0] == 5


@pytest.mark.spec("S128")
@on_bench()
async def test_a_queue_whose_offset_is_unknown_is_not_pulled_until_it_is(bench: Bench) -> None:
    broker = bench.broker
    broker.script[RequestCode.QUERY_CONSUMER_OFFSET] = lambda peer, request: Command(
        ResponseCode.SYSTEM_ERROR, remark="out of order"
    )
    consumer = await bench.consumer(ignore)
    await asyncio.sleep(5)
    assert not broker.asked(RequestCode.PULL_MESSAGE)
    assert consumer.assignment() == set()
    del broker.script[RequestCode.QUERY_CONSUMER_OFFSET]
    await asyncio.sleep(3)
    assert len(consumer.assignment()) == 4


@on_bench()
async def test_a_missing_topic_is_asked_for_often_at_first_then_every_second(
    bench: Bench,
) -> None:
    seen: list[bytes] = []
    await bench.consumer({"NEW": lambda message: seen.append(message.body)})
    nameserver = bench.cluster.nameserver
    await asyncio.sleep(10)
    asked = nameserver.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="NEW")
    assert 90 <= len(asked) <= 115
    await asyncio.sleep(10)
    nameserver.forget()
    await asyncio.sleep(10)
    asked = nameserver.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="NEW")
    assert 8 <= len(asked) <= 13
    bench.cluster.add_topic("NEW", 1)
    await asyncio.sleep(3)
    bench.broker.put("NEW", 0, b"here")
    await asyncio.sleep(1)
    assert seen == [b"here"]
    nameserver.forget()
    await asyncio.sleep(20)
    assert not nameserver.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="NEW")


@pytest.mark.parametrize("wait", [0.0, 0.3, 5.0])
def test_the_first_message_of_a_new_topic_arrives_within_a_second(wait: float) -> None:
    with embedded(clock="virtual") as mq:
        seen: list[float] = []
        consumer = PushConsumer("billing", namesrv=mq.namesrv)

        @consumer.on("orders")
        def bill(message: StoredMessage) -> None:
            seen.append(mq.clock.monotonic())

        with consumer, Producer("shop", namesrv=mq.namesrv) as producer:
            mq.clock.advance(wait)
            producer.send(Message("orders", b"flowers"))
            sent = mq.clock.monotonic()
            mq.clock.advance("5s")
        (arrived,) = seen
        assert arrived - sent <= 0.7


@on_bench()
async def test_a_sql_filter_is_checked_by_a_broker_before_the_start(bench: Bench) -> None:
    consumer = await bench.consumer(ignore, sql="a > 5 AND b IS NOT NULL")
    assert len(bench.broker.asked(RequestCode.CHECK_CLIENT_CONFIG)) == 1
    await consumer.stop()


@on_bench()
async def test_a_filter_that_the_broker_refuses_keeps_the_consumer_from_starting(
    bench: Bench,
) -> None:
    bench.broker.script[RequestCode.CHECK_CLIENT_CONFIG] = lambda peer, request: Command(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark="no such function"
    )
    consumer = await bench.consumer(ignore, sql="a > 5", start=False)
    with pytest.raises(SubscriptionIllegal, match="no such function"):
        await consumer.start()
    assert not bench.session().consumers
    assert len(bench.broker.asked(RequestCode.UNREGISTER_CLIENT, consumerGroup=GROUP)) == 1
