"""QueryRoute and QueryAssignment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.proxy.lab import ENDPOINTS, GROUP, TOPIC, Lab, LabClient, code_of
from tests.support.stage import in_virtual_time

from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import AddressScheme, Code, MessageType, Permission

READ, WRITE, BOTH, NONE = (
    Permission.READ,
    Permission.WRITE,
    Permission.READ_WRITE,
    Permission.NONE,
)


async def route(
    client: LabClient, topic: str = TOPIC, endpoints: wire.Endpoints | None = None
) -> Any:
    request = wire.QueryRouteRequest(topic=wire.Resource(name=topic), endpoints=endpoints)
    return await client.call("QueryRoute", request)


async def assignment(client: LabClient, topic: str = TOPIC, group: str = GROUP) -> Any:
    request = wire.QueryAssignmentRequest(
        topic=wire.Resource(name=topic), group=wire.Resource(name=group), endpoints=ENDPOINTS
    )
    return await client.call("QueryAssignment", request)


@pytest.mark.spec("G2", "G8")
@in_virtual_time
async def test_topics_without_a_route(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        missing = await route(lab.client(), "missing")
        assert code_of(missing) == Code.TOPIC_NOT_FOUND
        assert "penstock topic create missing" in missing.status.message
        for name in ("", " ", "rmq_sys_x", "TBW102", "BenchmarkTest", "a b", "x" * 128):
            assert code_of(await route(lab.client(), name)) == Code.ILLEGAL_TOPIC
        assert "missing" not in lab.broker.state.topics


@pytest.mark.spec("G9")
@in_virtual_time
async def test_permissions_of_queues(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        for read, write, perm, wanted in (
            (4, 6, 6, [WRITE] * 2 + [BOTH] * 4),
            (6, 4, 6, [READ] * 2 + [BOTH] * 4),
            (4, 6, 4, [READ] * 4),
            (4, 6, 2, [WRITE] * 6),
            (2, 3, 0, [NONE] * 3),
        ):
            lab.topic(queues=read, write=write, perm=perm)
            queues = (await route(lab.client())).message_queues
            assert [queue.permission for queue in queues] == wanted
            assert [queue.id for queue in queues] == list(range(len(wanted)))
            assert {(queue.broker.name, queue.broker.id) for queue in queues} == {("broker-a", 0)}
            assert {queue.topic.name for queue in queues} == {TOPIC}


@pytest.mark.spec("G10")
@in_virtual_time
async def test_types_that_a_topic_takes(tmp_path: Path) -> None:
    mixed = [MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION]
    async with Lab(tmp_path) as lab:
        for kind, wanted in (
            ("", [MessageType.NORMAL]),
            ("FIFO", [MessageType.FIFO]),
            ("MIXED", mixed),
            ("UNSPECIFIED", [MessageType.UNSPECIFIED]),
            ("new", [MessageType.UNSPECIFIED]),
        ):
            lab.topic(queues=1, kind=kind)
            (queue,) = (await route(lab.client())).message_queues
            assert list(queue.accept_message_types) == wanted


@pytest.mark.spec("G11")
@in_virtual_time
async def test_routes_lead_to_where_the_client_came_from(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        domain = wire.Endpoints(
            scheme=AddressScheme.DOMAIN_NAME, addresses=[wire.Address(host="mq.test", port=1)]
        )
        several = wire.Endpoints(
            scheme=AddressScheme.IPV4,
            addresses=[wire.Address(host=f"192.0.2.{i}", port=80) for i in (1, 2)],
        )
        for asked in (ENDPOINTS, domain, several):
            (queue,) = (await route(lab.client(), endpoints=asked)).message_queues
            assert queue.broker.endpoints == asked
        (queue,) = (await route(lab.client())).message_queues
        assert queue.broker.endpoints.scheme == AddressScheme.IPV4
        (address,) = queue.broker.endpoints.addresses
        assert (address.host, address.port) == ("192.0.2.1", 8081)


@pytest.mark.spec("G11")
@in_virtual_time
async def test_answers_do_not_repeat_what_is_long_or_unknown(tmp_path: Path) -> None:
    def place(host: str = "mq.test", port: int = 8081) -> wire.Address:
        return wire.Address(host=host, port=port)

    async with Lab(tmp_path) as lab:
        lab.topic(queues=16)
        lab.group("fifo", consume_message_orderly=True)
        unknown = b"\xa2\x06\x82\x80\x01" + bytes(16_386)
        short = wire.Endpoints(addresses=[place()])
        topics = [
            wire.Resource(name=TOPIC, resource_namespace="n" * 100_000),
            wire.Resource.FromString(wire.Resource(name=TOPIC).SerializeToString() + unknown),
        ]
        endpoints = [
            wire.Endpoints(addresses=[place("x" * 100_000)]),
            wire.Endpoints(addresses=[place()] * 1000),
            wire.Endpoints.FromString(short.SerializeToString() + unknown),
            *(wire.Endpoints(addresses=[place(port=port)]) for port in (0, -1, 65_536)),
            wire.Endpoints(addresses=[place(""), place()]),
        ]
        for topic, asked in [(one, short) for one in topics] + [(topics[0], e) for e in endpoints]:
            found = await lab.client().call(
                "QueryRoute", wire.QueryRouteRequest(topic=topic, endpoints=asked)
            )
            assert len(found.message_queues) == 16
            assert found.ByteSize() < 16 * 200
            (address,) = found.message_queues[0].broker.endpoints.addresses
            assert address.host == ("mq.test" if asked is short else "192.0.2.1")
            assigned = await lab.client().call(
                "QueryAssignment",
                wire.QueryAssignmentRequest(
                    topic=topic, group=wire.Resource(name="fifo"), endpoints=asked
                ),
            )
            assert len(assigned.assignments) == 16
            assert assigned.ByteSize() < 16 * 200
        kept = wire.Resource(name=TOPIC, resource_namespace="ns")
        route = await lab.client().call("QueryRoute", wire.QueryRouteRequest(topic=kept))
        assert route.message_queues[0].topic == kept


@pytest.mark.spec("G12", "G13")
@in_virtual_time
async def test_assignments(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=3)
        lab.group("fifo", consume_message_orderly=True)
        for group, wanted in ((GROUP, [-1]), ("fifo", [0, 1, 2])):
            first = await assignment(lab.client(), group=group)
            second = await assignment(lab.client("c2"), group=group)
            assert [one.message_queue.id for one in first.assignments] == wanted
            assert first == second
            assert first.assignments[0].message_queue.broker.endpoints == ENDPOINTS
        lab.topic("writeonly", perm=2)
        assert code_of(await assignment(lab.client(), "writeonly")) == Code.FORBIDDEN
        assert code_of(await assignment(lab.client(), "nowhere")) == Code.TOPIC_NOT_FOUND
