"""Messages: found by id or key, read from a queue, handed to a consumer once more."""

from __future__ import annotations

import asyncio

from penstock.admin.cluster_requests import on_host
from penstock.admin.offsets import OffsetActions
from penstock.admin.reports import QueueSlice
from penstock.client.arguments import Time, timestamp_ms
from penstock.client.requests import body_bytes, refusal
from penstock.errors import (
    BodyDamaged,
    InvalidArgument,
    NotFound,
    PenstockError,
    ProtocolError,
    RequestRefused,
)
from penstock.model import MessageQueue, StoredMessage
from penstock.model.hosts import unpack_host
from penstock.model.names import HALF_TOPIC, TOOLS_GROUP, Property
from penstock.protocol import bodies, headers
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.extensions import PULL_BYTES, PULL_COUNT
from penstock.protocol.headers.codec import decode_header
from penstock.protocol.records.message_ids import parse_offset_message_id
from penstock.protocol.records.pulled import messages_from_pull

"""The group RocketMQ's own tools read with; every broker has it."""

MAX_PULL = 32
FIRST_PULL = 4
"""Messages that show how large the others may be."""
MAX_OWN_PULL = 1024
MAX_OWN_BYTES = 4 << 20
MAX_QUERY = 64
TOPICS_AT_ONCE = 16
_END_OF_TIME = 2**63 - 1
_ANSWERS = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


class MessageActions(OffsetActions):
    """Actions on messages."""

    @on_host
    async def message(self, msg_id: str, *, topic: str | None = None) -> StoredMessage:
        """The message with an id: the one its producer gave it, or the broker's offset id.

        A producer's id is looked up in ``topic``, or else in one topic after the other.
        """
        found = await self._message(msg_id, None if topic is None else self.long_name(topic))
        return self.shown([found])[0]

    async def _message(self, msg_id: str, topic: str | None) -> StoredMessage:
        found = await self._at_offset_id(msg_id)
        if found is not None and topic in (None, found.topic):
            return found
        same: list[StoredMessage] = []
        if topic is not None:
            same = await self._query(topic, msg_id, MAX_PULL, 0, _END_OF_TIME, unique=True)
        if not same:
            found = await self._at_moved_broker(msg_id)
            if found is not None and topic in (None, found.topic):
                return found
        if topic is None:
            same = await self._in_any_topic(msg_id)
        if not same:
            where = f"topic {topic!r}" if topic is not None else "any topic"
            hidden = await self._is_half(msg_id)
            raise NotFound(
                f"no message {msg_id!r} in {where} at name servers {self._nameservers_text}",
                expected="a msg_id or offset_msg_id of a message that is still stored",
                hint="penstock transaction list: it belongs to one that is not committed"
                if hidden
                else None,
            )
        # A copy in a retry topic keeps the id; the first one is the message as it was sent.
        return min(same, key=lambda message: (message.store_timestamp, message.log_position))

    async def _is_half(self, msg_id: str) -> bool:
        """Whether a message belongs to a transaction that is not committed."""
        try:
            return bool(await self._query(HALF_TOPIC, msg_id, 1, 0, _END_OF_TIME, unique=True))
        except PenstockError:
            # It only makes an error clearer, which must not become another one.
            return False

    async def _at_offset_id(self, msg_id: str) -> StoredMessage | None:
        """The message an offset id points to; both kinds of id look alike."""
        try:
            host, position = parse_offset_message_id(msg_id)
        except InvalidArgument:
            return None
        address = unpack_host(host)
        info = await self.cluster_info()
        names = [
            name
            for name, data in info.broker_addr_table.items()
            if address in data.broker_addrs.values()
        ]
        return await self._at_position(names[0], address, position) if names else None

    async def _at_moved_broker(self, msg_id: str) -> StoredMessage | None:
        """The message of an offset id whose address no broker has any more.

        A record keeps the address that its broker had when it was stored, so a broker that came
        back elsewhere is known by the record: it has the same id.
        """
        try:
            _, position = parse_offset_message_id(msg_id)
        except InvalidArgument:
            return None
        masters = await self.masters()
        answers = await asyncio.gather(
            *(self._at_position(name, address, position) for name, address in masters.items()),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, StoredMessage) and answer.offset_msg_id == msg_id.upper():
                return answer
        return None

    async def _at_position(self, name: str, address: str, position: int) -> StoredMessage | None:
        """The message at a position of a broker's log."""
        try:
            answer = await self.ask(
                address,
                RequestCode.VIEW_MESSAGE_BY_ID,
                headers.pull.ViewMessage(position),
                about=f"message at position {position}",
            )
        except RequestRefused:
            return None
        found = messages_from_pull(body_bytes(answer), name)
        return found[0] if found else None

    async def _in_any_topic(self, msg_id: str) -> list[StoredMessage]:
        topics = list(map(self.long_name, await self.topics()))
        for first in range(0, len(topics), TOPICS_AT_ONCE):
            answers = await asyncio.gather(
                *(
                    self._query(topic, msg_id, MAX_PULL, 0, _END_OF_TIME, unique=True)
                    for topic in topics[first : first + TOPICS_AT_ONCE]
                )
            )
            found = [message for messages in answers for message in messages]
            if found:
                return found
        return []

    @on_host
    async def query(
        self,
        topic: str,
        key: str,
        *,
        count: int = MAX_QUERY,
        begin: Time | None = None,
        end: Time | None = None,
    ) -> list[StoredMessage]:
        """The messages of a topic with a key, oldest first: at most ``count`` of each broker."""
        if count < 1:
            raise InvalidArgument(f"count {count}", expected="1 or more")
        return self.shown(
            await self._query(
                self.long_name(topic),
                key,
                count,
                0 if begin is None else timestamp_ms(begin),
                _END_OF_TIME if end is None else timestamp_ms(end),
                unique=False,
            )
        )

    async def _query(
        self, topic: str, key: str, count: int, begin: int, end: int, *, unique: bool
    ) -> list[StoredMessage]:
        header = headers.pull.QueryMessage(topic, key, count, begin, end, unique)

        async def ask(address: str) -> bytes:
            try:
                answer = await self.ask(
                    address,
                    RequestCode.QUERY_MESSAGE,
                    header,
                    about=f"key {key!r} in topic {topic!r}",
                )
            except NotFound:
                return b""
            return body_bytes(answer)

        found = [
            message
            for broker, body in (await self.each(await self.topic_masters(topic), ask)).items()
            for message in messages_from_pull(body, broker)
            # Brokers look for a hash of the key; other keys may share it.
            if message.topic == topic and _has_key(message, key, unique)
        ]
        return sorted(found, key=lambda m: (m.store_timestamp, m.queue, m.queue_offset))

    @on_host
    async def messages(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count: int = 32,
        check_crc: bool = False,
        max_bytes: int | None = None,
    ) -> QueueSlice:
        """Read a queue from an offset on, without a group and without a trace.

        With ``check_crc`` a damaged body is a `ProtocolError`. It reads on until the bodies have
        ``max_bytes``, so there may be fewer messages than ``count`` and more of them to be read.
        """
        name = self.long_name(queue.topic)
        masters = await self.topic_masters(name)
        address = masters.get(queue.broker_name)
        if address is None:
            raise InvalidArgument(
                f"topic {queue.topic!r} has no master of broker {queue.broker_name!r}",
                expected=f"one of {', '.join(sorted(masters))}",
            )
        where = MessageQueue(name, queue.broker_name, queue.queue_id)
        part = await self._read(
            address, where, offset, count, check_crc=check_crc, max_bytes=max_bytes
        )
        return QueueSlice(
            tuple(self.shown(part.messages)), part.next_offset, part.min_offset, part.max_offset
        )

    async def _read(
        self,
        address: str,
        queue: MessageQueue,
        offset: int,
        count: int,
        *,
        check_crc: bool = False,
        max_bytes: int | None = None,
    ) -> QueueSlice:
        messages: list[StoredMessage] = []
        size = 0
        while True:
            left = _few(count - len(messages), len(messages), size, max_bytes)
            header = headers.pull.PullMessage(
                consumer_group=TOOLS_GROUP,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=offset,
                max_msg_nums=min(MAX_PULL, left),
                sys_flag=headers.pull.PullFlag.SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                sub_version=self.session.clock.time_ms(),
                subscription="*",
                expression_type="TAG",
            )
            answer = await self.session.calls.pull(address, header, self._timeout, _much(left))
            if answer.code not in _ANSWERS:
                raise refusal(answer, RequestCode.PULL_MESSAGE, address, str(queue))
            ends = decode_header(headers.pull.PullMessageResult, answer.ext)
            if answer.code == ResponseCode.SUCCESS:
                pulled = messages_from_pull(
                    body_bytes(answer),
                    queue.broker_name,
                    check_crc=check_crc,
                    keep_unreadable=True,
                    tell_unreadable=_refuse_damage if check_crc else None,
                )
                messages += pulled
                size += sum(len(message.body) for message in pulled)
            is_moving = ends.next_begin_offset != offset
            offset = ends.next_begin_offset
            is_enough = len(messages) >= count or (max_bytes is not None and size >= max_bytes)
            if is_enough or not is_moving or offset >= ends.max_offset:
                return QueueSlice(tuple(messages), offset, ends.min_offset, ends.max_offset)

    @on_host
    async def consume_directly(
        self, group: str, client_id: str, msg_id: str, *, topic: str | None = None
    ) -> bodies.running.ConsumeDirectlyResult:
        """Have a connected consumer handle one stored message now, and tell how that went."""
        found = await self._message(msg_id, None if topic is None else self.long_name(topic))
        address = (await self.masters([found.queue.broker_name]))[found.queue.broker_name]
        return await self._relay_message(
            address,
            headers.clients.ConsumeMessageDirectly(
                self.long_name(group),
                client_id,
                found.offset_msg_id,
                found.queue.broker_name,
                found.topic,
            ),
            about=f"message {msg_id!r} and client {client_id!r} of group {group!r}",
        )


def _few(left: int, read: int, size: int, max_bytes: int | None) -> int:
    """How many messages to pull next, so that their bodies have about ``max_bytes`` in the end.

    A broker limits the bytes that it sends, but a body may be compressed and a hundred times as
    large. So the messages that came say how many more may come.
    """
    if max_bytes is None:
        return left
    if not read:
        return min(left, FIRST_PULL)
    return max(1, min(left, (max_bytes - size) * read // max(size, 1)))


def _much(count: int) -> dict[str, str] | None:
    """Extension fields that raise the limits at our own broker; others ignore them."""
    if count <= MAX_PULL:
        return None
    return {PULL_BYTES: str(MAX_OWN_BYTES), PULL_COUNT: str(min(count, MAX_OWN_PULL))}


def _has_key(message: StoredMessage, key: str, unique: bool) -> bool:
    if unique:
        return message.properties.get(Property.UNIQUE_KEY) == key
    return key in message.keys


def _refuse_damage(queue: MessageQueue, queue_offset: int, error: ProtocolError) -> None:
    if isinstance(error, BodyDamaged):
        raise BodyDamaged(
            f"{error.what}; in {queue} at offset {queue_offset}",
            expected=error.expected,
            hint=error.hint,
        ) from error
