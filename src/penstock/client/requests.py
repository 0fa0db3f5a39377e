"""The requests of clients, each described once: what is sent, and what its answer means.

A `Request` does no I/O. A session sends it without blocking (`session.calls.Calls.call`), Spark's
workers block for it (`spark.connection_pool`); both get the same result or the same error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import orjson

from penstock.errors import ProtocolError, RequestRefused, refused
from penstock.model import MessageQueue, Subscription, TopicRoute
from penstock.protocol import bodies, headers
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.codes import RequestCode, ResponseCode, request_name, response_name
from penstock.protocol.commands import Command
from penstock.protocol.extensions import LOCK_LEASE, LOCK_OWNERS, REASON_FIELDS, TOPIC_EPOCH
from penstock.protocol.headers.codec import decode_header, encode_header

if TYPE_CHECKING:
    from penstock.protocol.headers.codec import Header

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

OFFSET_TIMEOUT = 5.0
LOCK_TIMEOUT = 1.0
SEND_BACK_TIMEOUT = 5.0
_TOO_LATE = re.compile(r"delay time should not be bigger than the max delay (\d{1,18})ms")
"""How RocketMQ refuses a timer. Its text does not say where the limit comes from."""
_MAX_EPOCH_DIGITS = 19
_MAX_LEASE_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Generic[_T_co]):
    """One request; ``read`` takes the result from a successful answer."""

    code: int
    about: str
    """The subject of the request, for errors."""
    read: Callable[[Command], _T_co]
    header: Header | None = None
    body: bytes = b""
    extra: dict[str, str] | None = None
    """Further ext fields."""
    none_code: int | None = None
    """The response code that means: there is none. It is read like success."""
    seconds: float | None = None
    """How long to wait for the answer; None: as long as the caller always does."""
    remark: str | None = None

    def command(self) -> Command:
        """The request as it is sent, without a signature."""
        ext = encode_header(self.header) if self.header else None
        if self.extra:
            ext = {**(ext or {}), **self.extra}
        return Command(self.code, ext=ext, body=self.body, remark=self.remark)

    def result(self, answer: Command, address: str) -> _T_co:
        """The result in an answer; a refusal is raised with the name of its server."""
        if answer.code not in (ResponseCode.SUCCESS, self.none_code):
            raise refusal(answer, self.code, address, self.about)
        return self.read(answer)


def refusal(answer: Command, code: int, address: str, about: str) -> RequestRefused:
    """The error for an answer with another code than success."""
    remark = f": {answer.remark}" if answer.remark else ""
    return refused(
        answer.code,
        f"{address} refused {request_name(code)} for {about} "
        f"with {response_name(answer.code)} ({answer.code}){remark}",
        hint=_way_out(answer.remark or ""),
    )


def _way_out(remark: str) -> str | None:
    """What helps where RocketMQ's own text does not say it."""
    limit = _TOO_LATE.search(remark)
    if limit is None:
        return None
    return (
        f"a delay of at most {_in_words(int(limit[1]) // 1000)}, which is the broker's "
        "timerMaxDelaySec, or raise that (and fileReservedTime with it), or send the message later"
    )


def _in_words(seconds: int) -> str:
    """Seconds in the largest unit that needs no fraction."""
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        count, rest = divmod(seconds, size)
        if count and not rest:
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{seconds} seconds"


def body_bytes(command: Command) -> bytes:
    """The body of a received command."""
    body = command.body
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise ProtocolError(f"a received body of type {type(body).__name__}")


def _nothing(answer: Command) -> None:
    return None


# ------------------------------------------------------------------------------ name servers


def route(topic: str) -> Request[TopicRoute | None]:
    """Where the queues of a topic are; None when the name server does not know the topic."""

    def read(answer: Command) -> TopicRoute | None:
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return decode_body(bodies.routes.TopicRouteData, body_bytes(answer)).route()

    return Request(
        code=RequestCode.GET_ROUTEINFO_BY_TOPIC,
        about=f"topic {topic!r}",
        header=headers.routes.GetRouteInfo(topic, accept_standard_json_only=True),
        none_code=ResponseCode.TOPIC_NOT_EXIST,
        read=read,
    )


# ------------------------------------------------------------------------ groups and members


def heartbeat(data: bytes) -> Request[Command]:
    """Announce the groups of this client; ``data`` is an encoded `HeartbeatData`."""
    return Request(
        code=RequestCode.HEART_BEAT,
        about="the groups of this client",
        body=data,
        read=lambda answer: answer,
    )


def unregister(
    client_id: str, *, producer_group: str | None = None, consumer_group: str | None = None
) -> Request[None]:
    """Leave a group."""
    return Request(
        code=RequestCode.UNREGISTER_CLIENT,
        about=f"group {producer_group or consumer_group!r}",
        header=headers.clients.UnregisterClient(client_id, producer_group, consumer_group),
        read=_nothing,
    )


def members(group: str) -> Request[tuple[str, ...]]:
    """The client ids of a consumer group, as the broker knows them."""

    def read(answer: Command) -> tuple[str, ...]:
        body = body_bytes(answer)
        return decode_body(bodies.clients.ConsumerList, body).consumer_id_list if body else ()

    return Request(
        code=RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        about=f"group {group!r}",
        header=headers.clients.GetConsumerList(group),
        read=read,
    )


def check_filter(client_id: str, group: str, subscription: Subscription) -> Request[None]:
    """Have a broker check a SQL92 expression before it is used."""
    body = bodies.clients.CheckClientConfig(
        client_id, group, bodies.common.SubscriptionData.from_model(subscription)
    )
    return Request(
        code=RequestCode.CHECK_CLIENT_CONFIG,
        about=f"filter {subscription.expression!r} of group {group!r}",
        body=encode_body(body),
        read=_nothing,
    )


def end_transaction(
    header: headers.transactions.EndTransaction, remark: str | None = None
) -> Request[None]:
    """Commit or roll back a half message; sent one way."""
    return Request(
        code=RequestCode.END_TRANSACTION,
        about=f"message {header.msg_id} of group {header.producer_group!r}",
        header=header,
        read=_nothing,
        remark=remark,
    )


# ----------------------------------------------------------------------------------- offsets


def _read_offset(answer: Command) -> int:
    return decode_header(headers.offsets.OffsetResult, answer.ext).offset


def committed(
    group: str, queue: MessageQueue, *, or_zero: bool | None = None
) -> Request[int | None]:
    """The committed offset of a group; None when it never committed in the queue.

    Unless ``or_zero`` is False, brokers answer 0 for a new group in a queue whose first message is
    still in memory. Brokers of release 4.9 always do.
    """

    def read(answer: Command) -> int | None:
        return None if answer.code == ResponseCode.QUERY_NOT_FOUND else _read_offset(answer)

    return _committed(group, queue, or_zero, read)


def committed_of_epoch(
    group: str, queue: MessageQueue, *, or_zero: bool | None = None
) -> Request[tuple[int | None, int]]:
    """The same, with the epoch of the topic (see `TOPIC_EPOCH`)."""

    def read(answer: Command) -> tuple[int | None, int]:
        is_none = answer.code == ResponseCode.QUERY_NOT_FOUND
        return None if is_none else _read_offset(answer), epoch_of(answer)

    return _committed(group, queue, or_zero, read)


def _committed(
    group: str, queue: MessageQueue, or_zero: bool | None, read: Callable[[Command], _T]
) -> Request[_T]:
    return Request(
        code=RequestCode.QUERY_CONSUMER_OFFSET,
        about=f"group {group!r} in {queue}",
        header=headers.offsets.QueryConsumerOffset(group, queue.topic, queue.queue_id, or_zero),
        none_code=ResponseCode.QUERY_NOT_FOUND,
        seconds=OFFSET_TIMEOUT,
        read=read,
    )


def epoch_of(answer: Command) -> int:
    """The epoch of the topic an answer is about; 0 if it was never deleted (see `TOPIC_EPOCH`)."""
    text = (answer.ext or {}).get(TOPIC_EPOCH, "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_EPOCH_DIGITS):
        raise ProtocolError(f"{TOPIC_EPOCH} is {text[:100]!r}", expected="a log position")
    return int(text)


def commit(group: str, queue: MessageQueue, offset: int, epoch: int | None = None) -> Request[None]:
    """Move a group in a queue; see `offset_table` before several are sent at once.

    ``epoch`` is that of the topic the offset belongs to, if it is known.
    """
    return Request(
        code=RequestCode.UPDATE_CONSUMER_OFFSET,
        about=f"group {group!r} in {queue}",
        header=headers.offsets.UpdateConsumerOffset(group, queue.topic, queue.queue_id, offset),
        extra=None if epoch is None else {TOPIC_EPOCH: str(epoch)},
        seconds=OFFSET_TIMEOUT,
        read=_nothing,
    )


def offset_table(queue: MessageQueue) -> tuple[str, str]:
    """The table in which a broker keeps the offsets of a group and this queue.

    Apache's brokers create a table with the first commit, and without a lock: of several first
    commits at once, all but one may be lost. So one commit to each table is sent and answered
    before the others. One-way commits are not ordered: the next ones repeat what was lost.
    """
    return queue.broker_name, queue.topic


def max_offset(queue: MessageQueue) -> Request[int]:
    """One past the last message of a queue."""
    header = headers.offsets.GetMaxOffset(queue.topic, queue.queue_id)
    return _offset(RequestCode.GET_MAX_OFFSET, queue, header)


def min_offset(queue: MessageQueue) -> Request[int]:
    """The first message of a queue."""
    header = headers.offsets.GetMinOffset(queue.topic, queue.queue_id)
    return _offset(RequestCode.GET_MIN_OFFSET, queue, header)


def offset_at(queue: MessageQueue, timestamp_ms: int) -> Request[int]:
    """The first message of a queue that was stored at that time or later."""
    header = headers.offsets.SearchOffset(queue.topic, queue.queue_id, timestamp_ms)
    return _offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, header)


def _offset(code: int, queue: MessageQueue, header: Header) -> Request[int]:
    return Request(
        code=code, about=str(queue), header=header, seconds=OFFSET_TIMEOUT, read=_read_offset
    )


# ------------------------------------------------------------------------------------- locks


class LockAnswer(NamedTuple):
    """The answer to a lock request: the queues this client holds, and the owners of others."""

    held: frozenset[MessageQueue]
    owners: dict[str, str]
    """Client ids by the text of a queue; empty where the broker does not name them."""
    lease: float | None = None
    """Seconds; None: the broker does not bind locks to the connection (see `LOCK_LEASE`)."""


def lock(
    group: str, client_id: str, queues: Iterable[MessageQueue], lease: float
) -> Request[LockAnswer]:
    """Lock queues for this client, or renew their locks; ``lease`` binds them (`LOCK_LEASE`)."""

    def read(answer: Command) -> LockAnswer:
        held = decode_body(bodies.clients.LockBatchReply, body_bytes(answer)).locked
        ext = answer.ext or {}
        return LockAnswer(
            frozenset(held), _lock_owners(ext.get(LOCK_OWNERS)), _lease(ext.get(LOCK_LEASE))
        )

    extra = {LOCK_LEASE: str(round(lease * 1000))}
    return _locks(RequestCode.LOCK_BATCH_MQ, group, client_id, queues, read, extra)


def _lease(text: str | None) -> float | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= _MAX_LEASE_DIGITS):
        raise ProtocolError(f"{LOCK_LEASE} is {text[:100]!r}", expected="milliseconds")
    return int(text) / 1000


def unlock(group: str, client_id: str, queues: Iterable[MessageQueue]) -> Request[None]:
    """Release the locks of queues."""
    return _locks(RequestCode.UNLOCK_BATCH_MQ, group, client_id, queues, _nothing)


def _locks(
    code: int,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    read: Callable[[Command], _T],
    extra: dict[str, str] | None = None,
) -> Request[_T]:
    body = bodies.clients.LockBatch(group, client_id, tuple(queues), only_this_broker=False)
    return Request(
        code=code,
        about=f"locks of group {group!r}",
        body=encode_body(body),
        extra=extra,
        seconds=LOCK_TIMEOUT,
        read=read,
    )


def _lock_owners(text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    try:
        owners = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(owners, dict):
        return {}
    return {queue: owner for queue, owner in owners.items() if isinstance(owner, str)}


# ---------------------------------------------------------------------------------- messages


def send_back(header: headers.send.SendBack, reason: dict[str, str]) -> Request[None]:
    """Return a message that could not be handled; brokers of Penstock keep the ``reason``."""
    return Request(
        code=RequestCode.CONSUMER_SEND_MSG_BACK,
        about=f"message {header.origin_msg_id} of group {header.group!r}",
        header=header,
        extra={field: reason[key] for field, key in REASON_FIELDS.items() if key in reason},
        seconds=SEND_BACK_TIMEOUT,
        read=_nothing,
    )


def recall(topic: str, handle: str, group: str) -> Request[str]:
    """Take a timer message back; the result is its unique id."""
    return Request(
        code=RequestCode.RECALL_MESSAGE,
        about=f"the recall of a message of topic {topic!r}",
        header=headers.send.RecallMessage(topic, handle, group),
        read=lambda answer: (answer.ext or {}).get("msgId", ""),
    )
