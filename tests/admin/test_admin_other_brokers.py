"""Admin at brokers that answer as RocketMQ 4.9 does, or not at all; what it asks on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.scripted import Script, ScriptedCluster

from penstock import Admin, MessageQueue, StoredMessage, aio
from penstock.admin.queue_reading import Stretch, read
from penstock.errors import (
    ConsumerNotOnline,
    NoPermission,
    RequestRefused,
    ServiceNotAvailable,
    TopicNotFound,
)
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.bodies.common import Connection, ConsumerConnections, KvTable, TopicList
from penstock.protocol.bodies.routes import BrokerData, ClusterInfo
from penstock.protocol.bodies.stats import ConsumeOffset, ConsumeStats, TopicOffset, TopicStats
from penstock.protocol.bodies.topics import TopicConfig, TopicConfigTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.remoting.peer import Peer
from penstock.runtime.clock import SystemClock

QUEUE = MessageQueue("orders", "broker-a", 0)


def says(code: int, remark: str = "no") -> Script:
    def answer(peer: Peer, request: Command) -> Command:
        return Command(code, remark=remark)

    return answer


def gives(body: object) -> Script:
    def answer(peer: Peer, request: Command) -> Command:
        return Command(ResponseCode.SUCCESS, body=encode_body(body))

    return answer


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster(SystemClock(), brokers=("broker-a", "broker-b")) as cluster:
        info = ClusterInfo(
            {
                name: BrokerData("scripted", name, {0: broker.address})
                for name, broker in cluster.brokers.items()
            },
            {"scripted": tuple(cluster.brokers)},
        )
        cluster.nameserver.script[RequestCode.GET_BROKER_CLUSTER_INFO] = gives(info)
        cluster.add_topic("orders", 1)
        for broker in cluster.brokers.values():
            broker.script[RequestCode.GET_CONSUMER_CONNECTION_LIST] = says(
                ResponseCode.CONSUMER_NOT_ONLINE
            )
            broker.put("orders", 0, b"1", b"2", b"3")
        yield cluster


@pytest.fixture
async def admin(cluster: ScriptedCluster) -> AsyncIterator[aio.Admin]:
    async with aio.Admin(namesrv=cluster.namesrv) as admin:
        yield admin


@pytest.mark.parametrize("code", [ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR])
async def test_offsets_are_written_where_no_member_is_connected(
    cluster: ScriptedCluster, admin: aio.Admin, code: int
) -> None:
    for broker in cluster.brokers.values():
        broker.script[RequestCode.INVOKE_BROKER_TO_RESET_OFFSET] = says(code)
    other = MessageQueue("orders", "broker-b", 0)
    assert await admin.reset_offsets("g", "orders", "last") == {QUEUE: 3, other: 3}
    assert cluster.broker().offsets == {("g", "orders", 0): 3}
    assert await admin.reset_offsets("g", "orders", "first") == {QUEUE: 0, other: 0}
    assert cluster.broker("broker-b").offsets == {("g", "orders", 0): 0}
    assert await admin.reset_offsets("g", "orders", "last", force=False) == {QUEUE: 0, other: 0}


async def test_offsets_are_not_written_under_a_connected_group(
    cluster: ScriptedCluster, admin: aio.Admin
) -> None:
    connected = ConsumerConnections((Connection("me", "127.0.0.1:1"),))
    for broker in cluster.brokers.values():
        broker.script[RequestCode.INVOKE_BROKER_TO_RESET_OFFSET] = says(ResponseCode.SYSTEM_ERROR)
        broker.script[RequestCode.GET_CONSUMER_CONNECTION_LIST] = gives(connected)
    with pytest.raises(RequestRefused, match="INVOKE_BROKER_TO_RESET_OFFSET"):
        await admin.reset_offsets("g", "orders", "first")
    assert cluster.broker().offsets == {}


@pytest.mark.parametrize("version", ["V4_9_7", "V5_1_4", "", None])
async def test_brokers_that_would_move_all_queues_are_not_asked_for_one(
    cluster: ScriptedCluster, admin: aio.Admin, version: str | None
) -> None:
    broker = cluster.broker()
    broker.script[RequestCode.GET_CONSUMER_CONNECTION_LIST] = gives(
        ConsumerConnections((Connection("me", "127.0.0.1:1"),))
    )
    broker.script[RequestCode.GET_BROKER_RUNTIME_INFO] = (
        says(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        if version is None
        else gives(KvTable({"brokerVersionDesc": version}))
    )
    with pytest.raises(ServiceNotAvailable, match=r"'g'.*5\.2 or later.*seek"):
        await admin.reset_offsets("g", "orders", 1, queue=QUEUE)
    assert not broker.asked(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)


async def test_a_refusal_that_means_something_else_is_handed_on(
    cluster: ScriptedCluster, admin: aio.Admin
) -> None:
    cluster.broker().script[RequestCode.INVOKE_BROKER_TO_RESET_OFFSET] = says(
        ResponseCode.NO_PERMISSION
    )
    with pytest.raises(NoPermission, match=f"{cluster.broker().address}.*'g' in topic 'orders'"):
        await admin.reset_offsets("g", "orders", "first")


async def test_topic_settings_come_from_the_whole_table_where_there_is_no_other_way(
    cluster: ScriptedCluster, admin: aio.Admin
) -> None:
    for broker in cluster.brokers.values():
        broker.script[RequestCode.GET_TOPIC_CONFIG] = says(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        broker.script[RequestCode.GET_ALL_TOPIC_CONFIG] = gives(
            TopicConfigTable({"orders": TopicConfig("orders", 1, 1)})
        )
    assert (await admin.topic_config("orders"))["broker-b"].read_queue_nums == 1
    cluster.broker().script[RequestCode.GET_ALL_TOPIC_CONFIG] = gives(TopicConfigTable())
    with pytest.raises(TopicNotFound, match=f"{cluster.broker().address} has no topic 'orders'"):
        await admin.topic_config("orders")


async def test_lag_asks_every_master_and_needs_no_route(
    cluster: ScriptedCluster, admin: aio.Admin
) -> None:
    table = ConsumeStats({QUEUE: ConsumeOffset(10, 12, None, 0)})
    cluster.broker().script[RequestCode.GET_CONSUME_STATS] = gives(table)
    cluster.broker("broker-b").script[RequestCode.GET_CONSUME_STATS] = says(
        ResponseCode.CONSUMER_NOT_ONLINE
    )
    [row] = await admin.group_lag("g")
    # A group may stand behind the end after messages were lost; that is no negative lag.
    assert (row.committed, row.latest, row.lag) == (12, 10, 0)
    assert all(broker.asked(RequestCode.GET_CONSUME_STATS) for broker in cluster.brokers.values())


async def test_a_refused_read_is_an_error_that_names_queue_and_broker(
    cluster: ScriptedCluster, admin: aio.Admin
) -> None:
    cluster.broker().script[RequestCode.PULL_MESSAGE] = says(ResponseCode.NO_PERMISSION)
    with pytest.raises(NoPermission, match=f"{cluster.broker().address}.*orders@broker-a:0"):
        await admin.messages(QUEUE, 0)


async def test_a_read_goes_on_where_the_broker_says(
    cluster: ScriptedCluster, admin: aio.Admin
) -> None:
    cluster.broker().queue("orders", 0).min_offset = 5
    part = await admin.messages(QUEUE, 0)
    assert [message.body for message in part.messages] == [b"1", b"2", b"3"]
    assert (part.min_offset, part.next_offset) == (5, 8)
    asked = cluster.broker().asked(RequestCode.PULL_MESSAGE, consumerGroup="TOOLS_CONSUMER")
    assert {request.ext["sysFlag"] for request in asked} == {"4"}


async def test_a_range_that_was_deleted_gives_nothing_of_what_follows(
    cluster: ScriptedCluster,
) -> None:
    queue = cluster.broker().queue("orders", 0)
    queue.records.clear()
    queue.min_offset = 5
    cluster.broker().put("orders", 0, b"6", b"7", b"8")

    def read_range() -> list[StoredMessage]:
        with Admin(namesrv=cluster.namesrv) as admin:
            return list(read(admin, {QUEUE: Stretch(0, 3)}))

    assert await asyncio.to_thread(read_range) == []


async def test_only_masters_count(cluster: ScriptedCluster, admin: aio.Admin) -> None:
    slave = BrokerData("scripted", "broker-a", {1: cluster.broker().address})
    cluster.nameserver.script[RequestCode.GET_BROKER_CLUSTER_INFO] = gives(
        ClusterInfo({"broker-a": slave}, {"scripted": ("broker-a",)})
    )
    assert [row.broker_id for row in await admin.cluster()] == [1]
    with pytest.raises(ServiceNotAvailable, match="no broker is registered"):
        await admin.groups()


async def test_requests_are_signed_where_there_are_credentials(cluster: ScriptedCluster) -> None:
    cluster.nameserver.script[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = gives(
        TopicList(("orders",))
    )
    async with aio.Admin(
        namesrv=cluster.namesrv, access_key="me", secret_key="very-secret", security_token="t"
    ) as admin:
        assert await admin.topics(internal=True) == ["orders"]
    [asked] = cluster.nameserver.asked(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert asked.ext["AccessKey"] == "me"
    assert asked.ext["Signature"]
    assert "very-secret" not in asked.ext.values()


async def test_running_info_is_asked_of_one_broker_after_the_other(
    cluster: ScriptedCluster, admin: aio.Admin
) -> None:
    for broker in cluster.brokers.values():
        broker.script[RequestCode.GET_CONSUMER_RUNNING_INFO] = says(
            ResponseCode.CONSUMER_NOT_ONLINE
        )
    with pytest.raises(ConsumerNotOnline, match="client 'me' of group 'g'"):
        await admin.running_info("g", "me")
    assert all(b.asked(RequestCode.GET_CONSUMER_RUNNING_INFO) for b in cluster.brokers.values())


async def test_an_unknown_producer_group_is_empty_but_a_refusal_is_an_error(
    cluster: ScriptedCluster, admin: aio.Admin
) -> None:
    for broker in cluster.brokers.values():
        broker.script[RequestCode.GET_PRODUCER_CONNECTION_LIST] = says(ResponseCode.SYSTEM_ERROR)
    assert await admin.producers("shop") == []
    cluster.broker().script[RequestCode.GET_PRODUCER_CONNECTION_LIST] = says(
        ResponseCode.NO_PERMISSION
    )
    with pytest.raises(NoPermission, match="producer group 'shop'"):
        await admin.producers("shop")


async def test_a_topic_that_no_name_server_shows_in_time_is_an_error(
    cluster: ScriptedCluster, admin: aio.Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.admin.topics.ROUTE_SECONDS", 0.1)
    with pytest.raises(ServiceNotAvailable, match=f"'new'.*{cluster.namesrv} does not show it"):
        await admin.create_topic("new", 4)


async def test_the_mark_of_deleted_dead_letters_is_reset_where_offsets_outlive_their_topic(
    cluster: ScriptedCluster, admin: aio.Admin
) -> None:
    """4.9 keeps the offsets: new letters would count as settled."""
    cluster.add_topic("%DLQ%g", 1, brokers=["broker-a"])
    broker = cluster.broker()
    letters = MessageQueue("%DLQ%g", "broker-a", 0)
    stats = TopicStats({letters: TopicOffset(0, 2, 0)})
    broker.script[RequestCode.GET_TOPIC_STATS_INFO] = gives(stats)
    await admin.settle_dead_letters("g")
    assert broker.offsets["TOOLS_CONSUMER", "%DLQ%g", 0] == 2
    for code in (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV):
        for one in (*cluster.brokers.values(), cluster.nameserver):
            one.script[code] = says(ResponseCode.SUCCESS)
    await admin.delete_dead_letters("g")
    assert broker.offsets["TOOLS_CONSUMER", "%DLQ%g", 0] == 0
    assert broker.asked(RequestCode.DELETE_TOPIC_IN_BROKER, topic="%DLQ%g")
