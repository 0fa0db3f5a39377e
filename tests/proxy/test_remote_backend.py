"""The endpoint in front of brokers of other processes: over connections, in virtual time."""

from __future__ import annotations

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

from penstock.broker import Broker
from penstock.errors import ConnectFailed, NameserverUnavailable
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.proxy.calls import Caller
from penstock.proxy.endpoint import Endpoint
from penstock.proxy.remote_backend import RemoteBackend
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import ClientType, Code, MessageType, Resolution
from penstock.runtime.clock import Clock


class RemoteLab:
    """Two brokers, a name server and an endpoint that knows only the latter."""

    def __init__(self, stage: Stage, brokers: list[Broker], endpoint: Endpoint) -> None:
        self.brokers = brokers
        self.endpoint = endpoint
        self.clock: Clock = stage.clock

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
