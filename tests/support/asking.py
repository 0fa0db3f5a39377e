"""What tests of servers ask again and again, in the words of the test."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.wire import Wire, body_of, json_body

from penstock.errors import refused
from penstock.model import MessageQueue, TopicRoute
from penstock.model.properties import parse_properties
from penstock.protocol.bodies.clients import ConsumerList, LockBatch, LockBatchReply
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.bodies.routes import TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.admin import UpdateTopic
from penstock.protocol.headers.clients import GetConsumerList
from penstock.protocol.headers.nameserver import GetRouteInfo
from penstock.protocol.headers.offsets import (
    GetMaxOffset,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from penstock.protocol.headers.send import SendBack
from penstock.protocol.records.codec import Record, decode_records

# Messages


def ext(answer: Command) -> dict[str, str]:
    """The ext fields of an answer."""
    return answer.ext or {}


def log_position(answer: Command) -> int:
    """Where in the log the message is that a successful send answers for."""
    return int(ext(answer)["msgId"][-16:], 16)


def records(answer: Command) -> list[Record]:
    """The messages of a pull."""
    return decode_records(body_of(answer))


def bodies(answer: Command) -> list[bytes]:
    """The bodies of a pull's messages."""
    return [record.body for record in records(answer)]


def properties(record: Record) -> dict[str, str]:
    """The properties of a message."""
    return parse_properties(record.properties)


async def all_records(
    wire: Wire, topic: str, queue_id: int = 0, *, group: str = "reader"
) -> list[Record]:
    """Every message of a queue, pull by pull."""
    found: list[Record] = []
    offset = 0
    while True:
        answer = await wire.pull(group, topic, offset, queue_id=queue_id)
        if answer.code == ResponseCode.SUCCESS:
            found += records(answer)
        elif answer.code == ResponseCode.PULL_NOT_FOUND:
            return found
        elif answer.code not in (
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            raise refused(answer.code, answer.remark or "")
        offset = int(ext(answer)["nextBeginOffset"])


async def send_back(
    wire: Wire,
    group: str,
    position: int,
    *,
    level: int = 0,
    max_times: int | None = 16,
    origin_topic: str | None = None,
    unit_mode: bool = False,
) -> Command:
    """Hand a message back."""
    header = SendBack(position, group, level, "an-id", origin_topic, unit_mode, max_times)
    return await wire.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)


# Offsets


async def commit(wire: Wire, group: str, topic: str, offset: int, *, queue_id: int = 0) -> Command:
    """Commit an offset."""
    return await wire.request(
        RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(group, topic, queue_id, offset)
    )


async def committed(wire: Wire, group: str, topic: str, *, queue_id: int = 0) -> int | None:
    """The committed offset that a query returns; None without one."""
    answer = await wire.request(
        RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset(group, topic, queue_id)
    )
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return int(ext(answer)["offset"])


async def max_offset(wire: Wire, topic: str, queue_id: int = 0) -> int:
    """One past the last message of a queue."""
    answer = await wire.ok(RequestCode.GET_MAX_OFFSET, GetMaxOffset(topic, queue_id))
    return int(ext(answer)["offset"])


# Groups and locks


async def members(wire: Wire, group: str) -> list[str]:
    """The client ids of a group; none if the server knows of none."""
    answer = await wire.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerList(group))
    if answer.code == ResponseCode.SYSTEM_ERROR:
        return []
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return list(json_body(ConsumerList, answer).consumer_id_list)


async def lock(
    wire: Wire, group: str, client_id: str, queues: Iterable[MessageQueue]
) -> set[MessageQueue]:
    """Lock or renew queues; what is held then."""
    answer = await wire.ok(
        RequestCode.LOCK_BATCH_MQ, body=LockBatch(group, client_id, tuple(queues))
    )
    return set(json_body(LockBatchReply, answer).locked)


async def unlock(wire: Wire, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
    """Give locks back."""
    await wire.ok(RequestCode.UNLOCK_BATCH_MQ, body=LockBatch(group, client_id, tuple(queues)))


async def put_group(wire: Wire, group: SubscriptionGroupConfig) -> None:
    """Create or change a group."""
    await wire.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)


# Topics


async def put_topic(
    wire: Wire,
    topic: str,
    read: int = 1,
    write: int | None = None,
    *,
    perm: int = 6,
    order: bool = False,
) -> None:
    """Create or change a topic."""
    header = UpdateTopic(
        topic, "TBW102", read, read if write is None else write, perm, "SINGLE_TAG", order
    )
    await wire.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


async def route(wire: Wire, topic: str) -> TopicRoute | None:
    """What a name server knows of a topic; None if nothing."""
    answer = await wire.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfo(topic))
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return json_body(TopicRouteData, answer).route()
