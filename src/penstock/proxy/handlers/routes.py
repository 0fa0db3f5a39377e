"""Routes and assignments: QueryRoute, QueryAssignment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.errors import TopicNotFound
from penstock.proxy.clients import Client
from penstock.proxy.endpoint_parts import Parts
from penstock.proxy.facts import Queue, TopicAtBroker, TopicFacts
from penstock.proxy.names import group_name, topic_name
from penstock.proxy.statuses import OK, Refused
from penstock.proxy.wire.codes import Code, Permission
from penstock.proxy.wire.messages import (
    Address,
    Assignment,
    Broker,
    Endpoints,
    MessageQueue,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
    Resource,
)

ANY_QUEUE: Final = -1
_MAX_ENDPOINTS_BYTES: Final = 4096
_MAX_NAME: Final = 255
"""Characters of a host or of a namespace."""
_MAX_PORT: Final = 65_535


async def query_route(
    parts: Parts, client: Client, request: QueryRouteRequest
) -> QueryRouteResponse:
    """The queues of a topic, all of them to be reached as this endpoint was."""
    topic = await find_topic(parts, request.topic.name, is_fresh=True)
    queues = (queue for at in topic.brokers for queue in at.queues())
    endpoints = _endpoints(parts, request.endpoints)
    return QueryRouteResponse(
        status=OK, message_queues=_message_queues(topic, queues, request.topic, endpoints)
    )


async def query_assignment(
    parts: Parts, client: Client, request: QueryAssignmentRequest
) -> QueryAssignmentResponse:
    """The queues that a push consumer polls: any queue of each broker; of FIFO groups, each one."""
    topic = await find_topic(parts, request.topic.name, is_fresh=True)
    group = await parts.backend.group(group_name(request.group.name), is_fresh=True)
    readable = readable_brokers(topic)
    queues = [
        Queue(at.broker_name, queue_id, Permission.READ)
        for at in readable
        for queue_id in (range(at.read_queues) if group.is_fifo else (ANY_QUEUE,))
    ]
    endpoints = _endpoints(parts, request.endpoints)
    found = _message_queues(topic, queues, request.topic, endpoints)
    return QueryAssignmentResponse(
        status=OK, assignments=[Assignment(message_queue=queue) for queue in found]
    )


async def find_topic(parts: Parts, name: str, *, is_fresh: bool = False) -> TopicFacts:
    """A topic that a request names."""
    topic = await parts.backend.topic(topic_name(name), is_fresh=is_fresh)
    if topic is None or not topic.brokers:
        raise TopicNotFound(
            f"topic {name!r} does not exist",
            expected="a topic that was created: clients of the API never create one",
            hint=f"penstock topic create {name}",
        )
    return topic


def readable_brokers(topic: TopicFacts) -> list[TopicAtBroker]:
    """The brokers where a topic can be read; `Refused` if there is none."""
    readable = topic.readable()
    if not readable:
        raise Refused(Code.FORBIDDEN, f"topic {topic.name!r} cannot be read")
    return readable


def _endpoints(parts: Parts, asked: Endpoints) -> Endpoints:
    # What the client has reached is what it can reach: through any mapping of ports, too. Each
    # queue of the answer has a copy, so it must be short, and what has no meaning is left out.
    if asked.ByteSize() > _MAX_ENDPOINTS_BYTES or not _can_be_reached(asked):
        return parts.advertised()
    addresses = [Address(host=one.host, port=one.port) for one in asked.addresses]
    return Endpoints(scheme=asked.scheme, addresses=addresses)


def _can_be_reached(asked: Endpoints) -> bool:
    return len(asked.addresses) > 0 and all(
        0 < len(one.host) <= _MAX_NAME and 0 < one.port <= _MAX_PORT for one in asked.addresses
    )


def _resource(topic: TopicFacts, asked: Resource) -> Resource:
    namespace = asked.resource_namespace
    return Resource(
        name=topic.name, resource_namespace=namespace if len(namespace) <= _MAX_NAME else ""
    )


def _message_queues(
    topic: TopicFacts, queues: Iterable[Queue], asked: Resource, endpoints: Endpoints
) -> list[MessageQueue]:
    name = _resource(topic, asked)
    types = topic.accepted_types()
    return [
        MessageQueue(
            topic=name,
            id=queue.queue_id,
            permission=queue.permission,
            broker=Broker(name=queue.broker_name, id=0, endpoints=endpoints),
            accept_message_types=types,
        )
        for queue in queues
    ]
