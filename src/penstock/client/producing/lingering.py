"""Single sends that wait a moment to share one batch request.

A lane collects messages for one queue. Messages without a given queue share the lane of their
topic, and each batch of that lane goes to the next queue: the load is spread, and batches stay
large. A lane is sent when it is full or when its first message has waited long enough; a single
message in it is sent as an ordinary one.

The work per message is a check and an append to a list (`take`). Ids and bytes are made when the
lane is sent, for all its messages together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.client.producing.async_send_futures import settle_all
from penstock.client.producing.outgoing import (
    REMEMBERED_TAG,
    OutgoingMessage,
    before_id,
    checked_topic,
    make_outgoing,
)
from penstock.client.producing.receipts import Receipt, receipts_of_batch
from penstock.client.producing.sending import unforeseen
from penstock.errors import PenstockError
from penstock.model import Message, MessageQueue
from penstock.model.record_layout import MIN_ITEM_BYTES
from penstock.protocol.records.batches import encode_batch
from penstock.runtime.clock import TimerHandle

if TYPE_CHECKING:
    from penstock.client.producing.producer import ProducerCore
    from penstock.client.producing.sending import SendDone

_MAX_KINDS: Final = 1024


class _Kind:
    """The common part of messages of one topic and tag, checked and encoded once."""

    __slots__ = ("before_id", "size", "tag")

    def __init__(self, topic: str, tag: str | None, id_length: int) -> None:
        checked_topic(topic)
        self.tag = tag
        self.before_id = before_id(tag).encode()
        self.size = MIN_ITEM_BYTES + len(self.before_id) + id_length + 1
        """Bytes of such a message in a batch, without its body."""


class _Lane:
    __slots__ = ("dones", "kind", "messages", "prepared", "size", "timer", "wish")

    def __init__(self, wish: MessageQueue | None, timer: TimerHandle) -> None:
        self.wish = wish
        self.timer = timer
        self.messages: list[Message] = []
        self.prepared: list[OutgoingMessage | _Kind] = []
        self.kind: _Kind | None = None
        """The kind of the last message."""
        self.dones: list[SendDone] = []
        self.size = 0


class Lingering:
    """The lanes of one producer."""

    __slots__ = (
        "_full",
        "_kinds",
        "_lanes",
        "_max_bytes",
        "_max_pending",
        "_plain_bytes",
        "_producer",
        "pending_bytes",
    )

    def __init__(self, producer: ProducerCore) -> None:
        settings = producer.settings
        self._producer = producer
        self._lanes: dict[str | MessageQueue, _Lane] = {}
        self._kinds: dict[tuple[str, str | None], _Kind] = {}
        self._full = settings.linger_bytes
        self._max_bytes = settings.max_message_bytes
        self._max_pending = settings.linger_pending
        # Longer bodies are compressed or refused; a namespace adds a property.
        limit = settings.max_message_bytes
        if settings.compress_over > 0:
            limit = min(limit, settings.compress_over - 1)
        self._plain_bytes = 0 if settings.namespace else limit
        self.pending_bytes = 0

    def take(self, message: Message, done: SendDone) -> bool:
        """The fast path: accept a message with just a body and perhaps a tag.

        False: the caller checks the message and uses `add`, or refuses it.
        """
        try:
            body, topic, tag = message.body, message.topic, message.tag
            if (
                type(message) is not Message
                or type(body) is not bytes
                or not 0 < len(body) <= self._plain_bytes
                or message.properties
                or message.keys
                or message.sharding_key is not None
                or message.delay is not None
                or message.deliver_at is not None
                or message.flag != 0
            ):
                return False
            lane = self._lanes.get(topic)
            kind = None if lane is None else lane.kind
            if kind is None or kind.tag is not tag:
                kind = self._kinds.get((topic, tag)) or self._new_kind(topic, tag)
        except (AttributeError, TypeError, PenstockError):
            return False
        size = kind.size + len(body)
        if lane is None or lane.size + size > self._max_bytes:
            lane = self._open(topic, None)
        lane.kind = kind
        lane.messages.append(message)
        lane.prepared.append(kind)
        lane.dones.append(done)
        lane.size += size
        self.pending_bytes += size
        if lane.size >= self._full or self.pending_bytes > self._max_pending:
            self._send_lane(topic)
        return True

    def _new_kind(self, topic: str, tag: str | None) -> _Kind:
        if tag is not None and type(tag) is not str:
            raise TypeError("not text: the plain path refuses it with a message")
        kind = _Kind(topic, tag, self._producer.id_length)
        if tag is None or len(tag) <= REMEMBERED_TAG:
            if len(self._kinds) >= _MAX_KINDS:
                self._kinds.clear()
            self._kinds[topic, tag] = kind
        return kind

    def add(
        self, message: Message, outgoing: OutgoingMessage, wish: MessageQueue | None, done: SendDone
    ) -> None:
        """Add a checked message to the lane of its queue."""
        key: str | MessageQueue = wish or outgoing.topic
        size = MIN_ITEM_BYTES + len(outgoing.body) + len(outgoing.properties.encode())
        lane = self._lanes.get(key)
        if lane is None or lane.size + size > self._max_bytes:
            lane = self._open(key, wish)
        lane.messages.append(message)
        lane.prepared.append(outgoing)
        lane.dones.append(done)
        lane.size += size
        self.pending_bytes += size
        if lane.size >= self._full or self.pending_bytes > self._max_pending:
            self._send_lane(key)

    def flush(self) -> None:
        """Send all lanes now."""
        for key in list(self._lanes):
            self._send_lane(key)

    def _open(self, key: str | MessageQueue, wish: MessageQueue | None) -> _Lane:
        # Brokers refuse a batch above the maximum size, so send the full lane first.
        self._send_lane(key)
        producer = self._producer
        # A lane counts as one open send now, and as all its messages once it is sent.
        producer.begin()
        timer = producer.clock.call_later(producer.settings.linger, self._send_lane, key)
        lane = self._lanes[key] = _Lane(wish, timer)
        return lane

    def _send_lane(self, key: str | MessageQueue) -> None:
        lane = self._lanes.pop(key, None)
        if lane is None:
            return
        lane.timer.cancel()
        self.pending_bytes -= lane.size
        producer, dones = self._producer, lane.dones
        msg_ids = producer.new_ids(len(lane.messages))
        alone, body = None, b""
        try:
            if len(lane.messages) == 1:
                alone = self._single(lane, msg_ids[0])
            else:
                body = _encoded(lane, msg_ids)
        except Exception as error:
            # A timer calls this, so the error must reach the waiting callers from here.
            producer.finished()
            failure = unforeseen(error, f"{len(dones)} messages to {lane.messages[0].topic!r}")
            settle_all(dones, [failure] * len(dones))
            return
        if alone is not None:
            [message], [done] = lane.messages, dones
            producer.send_outgoing(message, alone, lane.wish, done, retry_refusals=True)
            return
        producer.begin(len(dones) - 1)

        def done_all(result: Receipt | PenstockError) -> None:
            # The batch counted as one send; end the others here.
            producer.finished(len(dones) - 1)
            if isinstance(result, Receipt):
                settle_all(dones, receipts_of_batch(result, msg_ids))
            else:
                settle_all(dones, [result] * len(dones))

        # Without the sharding key: `wish` is already its queue.
        first = Message(lane.messages[0].topic, b"")
        producer.send_batch_body(first, msg_ids, body, lane.wish, done_all, retry_refusals=True)

    def _single(self, lane: _Lane, msg_id: str) -> OutgoingMessage:
        """The only message of a lane, for an ordinary send."""
        [message], [outgoing] = lane.messages, lane.prepared
        if isinstance(outgoing, OutgoingMessage):
            return outgoing
        return make_outgoing(message, msg_id, self._producer.settings)


def _encoded(lane: _Lane, msg_ids: list[str]) -> bytes:
    """The messages of a lane as a batch; ids given earlier are put into ``msg_ids``."""
    parts: list[bytes] = []
    shape: tuple[_Kind, int, int] | None = None
    head = middle = b""
    for number, (message, kind) in enumerate(zip(lane.messages, lane.prepared, strict=True)):
        if isinstance(kind, OutgoingMessage):
            msg_ids[number] = kind.msg_id
            parts.append(encode_batch([(kind.body, kind.properties.encode(), kind.flag)]))
            continue
        body, msg_id = message.body, msg_ids[number].encode()
        # Messages of one kind and length differ only in body and id.
        if shape != (kind, len(body), len(msg_id)):
            shape = (kind, len(body), len(msg_id))
            item = encode_batch([(body, b"%b%b\x02" % (kind.before_id, msg_id), 0)])
            after_body = len(item) - len(kind.before_id) - len(msg_id) - 3
            head = item[: after_body - len(body)]
            middle = item[after_body : -len(msg_id) - 1]
        parts += (head, body, middle, msg_id, b"\x02")
    return b"".join(parts)
