"""Routes and assignments: QueryRoute, QueryAssignment."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import TopicNotFound
from penstock.proxy.clients import Client
from penstock.proxy.endpoint_parts import Parts
from penstock.proxy.facts import Queue, TopicAtBroker, TopicFacts
from penstock.proxy.names import group_name, topic_name
from penstock.proxy.statuses import OK, Refused
from penstock.proxy.wire.codes import Code, Permission
from penstock.proxy.wire.messages import (
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

ANY_QUEUE = -1


async def query_route(
    parts: Parts, client: Client, request: QueryRouteRequest
) -> QueryRouteResponse:
    """The queues of a topic, all of them to be reached as this endpoint was."""
    topic = await find_topic(parts, request.topic.name)
    queues = (queue for at in topic.brokers for queue in at.queues())
    endpoints = _endpoints(parts, request.endpoints)
    return QueryRouteResponse(
        status=OK, message_queues=_message_queues(topic, queues, request.topic, endpoints)
    )


async def query_assignment(
    parts: Parts, client: Client, request: QueryAssignmentRequest
) -> QueryAssignmentResponse:
    """The queues that a push consumer polls: any queue of each broker; of FIFO groups, each one."""
    topic = await find_topic(parts, request.topic.name)
    group = await parts.backend.group(group_name(request.group.name))
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


async def find_topic(parts: Parts, name: str) -> TopicFacts:
    """A topic that a request names."""
    topic = await parts.backend.topic(topic_name(name))
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
    # What the client has reached is what it can reach: through any mapping of ports, too.
    return asked if len(asked.addresses) else parts.advertised()


def _message_queues(
    topic: TopicFacts, queues: Iterable[Queue], name: Resource, endpoints: Endpoints
) -> list[MessageQueue]:
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
