"""The endpoint in front of brokers of other processes: over connections, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.lab import (
    GROUP,
    TOPIC,
    LabClient,
    bodies,
    code_of,
    consumer_settings,
    handle_of,
    producer_settings,
    topic_config,
)
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire, json_body

from penstock.broker import Broker
from penstock.errors import ConnectFailed, ConnectionLost, NameserverUnavailable, RemotingError
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.bodies.registration import RegisterBrokerBody
from penstock.protocol.bodies.routes import TopicRouteData
from penstock.protocol.bodies.topics import TopicConfig, TopicConfigTable
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.nameserver import RegisterBroker
from penstock.protocol.headers.routes import GetRouteInfo
from penstock.proxy.calls import Caller
from penstock.proxy.endpoint import Endpoint
from penstock.proxy.local_backend import LocalBackend
from penstock.proxy.remote_backend import RemoteBackend
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import ClientType, Code, MessageType, Resolution
from penstock.runtime.clock import Clock
from penstock.testing.virtual_time.loop import VirtualLoop
from penstock.testing.virtual_time.network import Conditions, Network


class RemoteLab:
    """Two brokers, a name server and an endpoint that knows only the latter."""

    def __init__(self, stage: Stage, brokers: list[Broker], endpoint: Endpoint) -> None:
        self.brokers = brokers
        self.endpoint = endpoint
        self.clock: Clock = stage.clock
        self.name_servers = stage.name_servers

    def client(self, client_id: str = "c1") -> LabClient:
        caller = Caller(client_id=client_id, address="198.51.100.9:4000")
        return LabClient(self, caller)  # type: ignore[arg-type]  # has what clients use

    async def put_topic(self, name: str = TOPIC, **more: Any) -> None:
        for broker in self.brokers:
            broker.state.topics.put(topic_config(name, **more))
        await self.clock.sleep(1)


@asynccontextmanager
async def running(root: Path, *names: str) -> AsyncIterator[RemoteLab]:
    async with Stage(root) as stage:
        name_server = await stage.name_server()
        brokers = [await stage.broker(name) for name in names]
        async with RemoteBackend([name_server.address], stage.clock) as backend:
            endpoint = Endpoint(
                backend,
                stage.clock,
                advertised=lambda: ("192.0.2.1", 8081),
                chance=random.Random(1),
            )
            async with endpoint:
                yield RemoteLab(stage, brokers, endpoint)


@in_virtual_time
async def test_all_brokers_are_served(tmp_path: Path) -> None:
    async with running(tmp_path, "broker-a", "broker-b") as lab:
        await lab.put_topic(queues=2, kind="MIXED")
        client = lab.client()
        request = wire.QueryRouteRequest(topic=wire.Resource(name=TOPIC))
        route = await client.call("QueryRoute", request)
        assert [(one.broker.name, one.id) for one in route.message_queues] == [
            ("broker-a", 0),
            ("broker-a", 1),
            ("broker-b", 0),
            ("broker-b", 1),
        ]
        assert len(route.message_queues[0].accept_message_types) == 4
        await client.settle(consumer_settings())
        for broker in lab.brokers:
            members = broker.state.clients.consumer_group(GROUP)
            assert members is not None
            assert members.client_ids() == ["c1"]
        for number in range(20):
            await client.sent(b"%d" % number)
        got: set[bytes] = set()
        for _ in range(20):
            for one in await client.messages(wait=1):
                assert code_of(await client.ack(handle_of(one))) == Code.OK
                got.add(one.body)
        assert got == {b"%d" % number for number in range(20)}
        assert code_of(await client.leave()) == Code.OK
        await lab.clock.sleep(1)
        assert all(one.state.clients.consumer_group(GROUP) is None for one in lab.brokers)


@in_virtual_time
async def test_groups_transactions_and_renewal(tmp_path: Path) -> None:
    async with running(tmp_path, "broker-a") as lab:
        await lab.put_topic(queues=1, kind="TRANSACTION")
        (broker,) = lab.brokers
        broker.state.groups.put(SubscriptionGroupConfig("fifo", consume_message_orderly=True))
        client = lab.client()
        _, command = await client.settle(consumer_settings(group="fifo"))
        assert command is not None
        assert command.settings.subscription.fifo
        stream, _ = await client.settle(producer_settings(TOPIC))
        kept = await client.sent(b"kept", kind=MessageType.TRANSACTION)
        assert code_of(await client.end(kept.transaction_id, Resolution.COMMIT)) == Code.OK
        orphan = await client.sent(b"orphan", kind=MessageType.TRANSACTION)
        for _ in range(7):
            await lab.clock.sleep(6)
            await client.heartbeat(ClientType.PUSH_CONSUMER, "fifo")
        asked = await stream.next()
        assert asked is not None
        recover = asked.recover_orphaned_transaction_command
        assert recover.transaction_id == orphan.transaction_id
        other = lab.client("c2")
        assert bodies(await other.messages(renew=True)) == [b"kept"]
        assert code_of(await other.leave()) == Code.OK
        (again,) = await client.messages(wait=5)
        assert again.system_properties.delivery_attempt == 1


@in_virtual_time
async def test_what_is_not_there(tmp_path: Path) -> None:
    async with running(tmp_path, "broker-a") as lab:
        answer = await lab.client().send()
        assert code_of(answer) == Code.TOPIC_NOT_FOUND
        backend = lab.endpoint.parts.backend
        with pytest.raises(ConnectFailed, match="broker-a"):
            await backend.connect("broker-x", lambda peer, command: None, "")
        assert (await backend.group("unknown")).max_attempts == 17
        async with RemoteBackend(["127.0.0.1:1"], lab.clock) as nowhere:
            with pytest.raises(NameserverUnavailable):
                await nowhere.topic(TOPIC)


@in_virtual_time
async def test_one_name_server_that_answers_is_enough(tmp_path: Path) -> None:
    async with running(tmp_path, "broker-a") as lab:
        await lab.put_topic()
        (name_server,) = lab.name_servers
        async with RemoteBackend(["127.0.0.1:1", name_server.address], lab.clock) as backend:
            assert await backend.topic(TOPIC) is not None


@in_virtual_time
async def test_transactions_of_an_endpoint_before(tmp_path: Path) -> None:
    async with running(tmp_path, "broker-a", "broker-b") as lab:
        await lab.put_topic(queues=1, kind="TRANSACTION")
        client = lab.client()
        await client.settle(producer_settings(TOPIC))
        first = await client.sent(b"first", kind=MessageType.TRANSACTION)
        asked = await client.sent(b"asked about", kind=MessageType.TRANSACTION)
        for _ in range(7):
            await lab.clock.sleep(6)
            await client.heartbeat(ClientType.PRODUCER)
        backend = lab.endpoint.parts.backend
        assert await backend.find_half(TOPIC, "invented") is None
        assert await backend.find_half("other", first.transaction_id) is None
        # The place of a half is that of its newest copy, as its own broker says.
        found = [
            await LocalBackend(broker).find_half(TOPIC, asked.transaction_id)
            for broker in lab.brokers
        ]
        assert await backend.find_half(TOPIC, asked.transaction_id) in found
        # The endpoint that knew them is gone.
        endpoint = Endpoint(backend, lab.clock, advertised=lambda: ("192.0.2.1", 8081))
        async with endpoint:
            lab.endpoint = endpoint
            again = lab.client()
            for one in (first, asked):
                assert code_of(await again.end(one.transaction_id, Resolution.COMMIT)) == Code.OK
            got: set[bytes] = set()
            for _ in range(20):
                got |= set(bodies(await again.messages(wait=1)))
            assert got == {b"first", b"asked about"}


@in_virtual_time
async def test_changes_count_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, "broker-a") as lab:
        client = lab.client()
        request = wire.QueryRouteRequest(topic=wire.Resource(name=TOPIC))
        assert code_of(await client.call("QueryRoute", request)) == Code.TOPIC_NOT_FOUND
        (broker,) = lab.brokers
        # The name server does not know it yet.
        broker.state.topics.put(topic_config(TOPIC, queues=3))
        assert len((await client.call("QueryRoute", request)).message_queues) == 3
        assert code_of(await client.send()) == Code.OK
        for is_fifo in (False, True):
            group = SubscriptionGroupConfig(GROUP, consume_message_orderly=is_fifo)
            broker.state.groups.put(group)
            _, command = await client.settle(consumer_settings())
            assert command is not None
            assert command.settings.subscription.fifo is is_fifo


FAR = "10.0.0.8"


@asynccontextmanager
async def on_hosts(root: Path) -> AsyncIterator[tuple[RemoteLab, Network]]:
    """Two brokers, ``10.0.0.1`` and ``10.0.0.2``, and an endpoint on a host of its own."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    network = loop.network
    async with Stage(root) as stage:
        with network.host(FAR):
            name_server = await stage.name_server(bind_host=FAR)
        brokers = []
        for number, name in enumerate(("broker-a", "broker-b"), start=1):
            host = f"10.0.0.{number}"
            with network.host(host):
                brokers.append(await stage.broker(name, bind_host=host, broker_ip1=host))
        with network.host(FAR):
            async with RemoteBackend([name_server.address], stage.clock) as backend:
                endpoint = Endpoint(backend, stage.clock, advertised=lambda: ("192.0.2.1", 8081))
                async with endpoint:
                    yield RemoteLab(stage, brokers, endpoint), network
        network.heal()


@in_virtual_time
async def test_a_broker_that_cannot_be_reached(tmp_path: Path) -> None:
    async with on_hosts(tmp_path) as (lab, network):
        await lab.put_topic(queues=1, kind="FIFO")
        for broker in lab.brokers:
            broker.state.groups.put(SubscriptionGroupConfig(GROUP, consume_message_orderly=True))
        network.isolate("10.0.0.1")
        client = lab.client()
        request = wire.QueryRouteRequest(topic=wire.Resource(name=TOPIC))
        route = await client.call("QueryRoute", request)
        assert [one.broker.name for one in route.message_queues] == ["broker-a", "broker-b"]
        assert list(route.message_queues[0].accept_message_types) == [MessageType.FIFO]
        stream, command = await client.settle(consumer_settings())
        assert command is not None
        assert command.settings.subscription.fifo
        assert not stream.is_ended
        members = lab.brokers[1].state.clients.consumer_group(GROUP)
        assert members is not None
        assert members.client_ids() == ["c1"]
        assert code_of(await client.heartbeat(ClientType.PUSH_CONSUMER, GROUP)) == Code.OK
        # A topic that only the other broker knows yet.
        lab.brokers[1].state.topics.put(topic_config("fresh", queues=2))
        request.topic.name = "fresh"
        assert len((await client.call("QueryRoute", request)).message_queues) == 2
        # A group that no broker knows yet: one has said so, and the first use makes it.
        assert (await lab.endpoint.parts.backend.group("new")).name == "new"
        # What did not answer is not waited for again at once.
        before = lab.clock.monotonic()
        request.topic.name = TOPIC
        assert code_of(await client.call("QueryRoute", request)) == Code.OK
        assert lab.clock.monotonic() - before < 1


@in_virtual_time
async def test_a_topic_is_used_while_the_master_of_one_of_its_brokers_is_gone(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "broker-a") as lab:
        await lab.put_topic(queues=1)
        slave = RegisterBroker(
            broker_name="broker-b",
            broker_addr="127.0.0.1:1",
            cluster_name="DefaultCluster",
            ha_server_addr="127.0.0.1:2",
            broker_id=1,
            enable_acting_master=True,
        )
        configs = {name: TopicConfig(name, 1, 1) for name in (TOPIC, "other")}
        topics = TopicConfigTable(configs, DataVersion(1, 1_700_000_000_000, 0))
        (name_server,) = lab.name_servers
        async with await Wire.connect(name_server.port) as wire_:
            await wire_.ok(RequestCode.REGISTER_BROKER, slave, RegisterBrokerBody(topics))
            route = await wire_.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfo(TOPIC))
            brokers = json_body(TopicRouteData, route).broker_datas
            assert {one.broker_name: [*one.broker_addrs] for one in brokers} == {
                "broker-a": [0],
                "broker-b": [1],
            }
            client = lab.client()
            await client.sent(b"x")
            assert bodies(await client.messages(wait=1)) == [b"x"]


@in_virtual_time
async def test_no_broker_can_be_reached(tmp_path: Path) -> None:
    async with on_hosts(tmp_path) as (lab, network):
        await lab.put_topic()
        network.isolate("10.0.0.1")
        network.isolate("10.0.0.2")
        backend = lab.endpoint.parts.backend
        for asking in (backend.group(GROUP), backend.topic(TOPIC), backend.topic("unknown")):
            with pytest.raises(RemotingError):
                await asking
        client = lab.client()
        stream = await lab.endpoint.open_stream(client.caller)
        command = wire.TelemetryCommand(settings=producer_settings(TOPIC))
        await lab.endpoint.take_command(stream, client.caller, command)
        assert isinstance(stream.failure, RemotingError)


@in_virtual_time
async def test_a_call_that_ends_while_it_connects_leaves_no_connection(tmp_path: Path) -> None:
    async with on_hosts(tmp_path) as (lab, network):
        await lab.put_topic()
        backend = lab.endpoint.parts.backend
        await backend.topic(TOPIC)
        network.set_conditions(FAR, "10.0.0.1", Conditions(latency=(0.5, 0.5)))
        before = len(network.connections_between(FAR, "10.0.0.1"))
        connecting = asyncio.ensure_future(
            backend.connect("broker-a", lambda peer, command: None, "")
        )
        await lab.clock.sleep(0.1)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await lab.clock.sleep(5)
        assert len(network.connections_between(FAR, "10.0.0.1")) == before


@in_virtual_time
async def test_a_client_that_leaves_while_it_connects(tmp_path: Path) -> None:
    async with on_hosts(tmp_path) as (lab, network):
        await lab.put_topic()
        client = lab.endpoint.parts.clients.get(Caller(client_id="c1"), None)
        await lab.endpoint.parts.backend.broker_names()
        network.set_conditions(FAR, "10.0.0.1", Conditions(latency=(0.5, 0.5)))
        before = len(network.connections_between(FAR, "10.0.0.1"))
        connecting = asyncio.ensure_future(client.peer("broker-a"))
        await lab.clock.sleep(0.1)
        await client.leave()
        with pytest.raises(ConnectionLost):
            await connecting
        await lab.clock.sleep(5)
        assert len(network.connections_between(FAR, "10.0.0.1")) == before


@in_virtual_time
async def test_calls_at_the_same_time_ask_once(tmp_path: Path) -> None:
    async with running(tmp_path, "broker-a") as lab:
        await lab.put_topic()
        backend = lab.endpoint.parts.backend
        first = asyncio.ensure_future(backend.topic(TOPIC))
        others = [asyncio.ensure_future(backend.topic(TOPIC)) for _ in range(9)]
        await asyncio.sleep(0)
        first.cancel()
        found = await asyncio.gather(*others)
        assert all(one is found[0] is not None for one in found)
        with pytest.raises(asyncio.CancelledError):
            await first
