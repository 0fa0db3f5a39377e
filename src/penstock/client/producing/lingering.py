"""Single sends that wait a moment for company and travel as one batch.

A lane gathers messages for one queue. Messages without a wish share the lane of their topic, which
moves on to another queue each time a batch leaves it: the load still goes round, yet a batch is not
spread thin. A lane leaves when it is full or when its first message has lingered long enough; a
message that was alone in it travels as an ordinary send.

What is done for every message is kept to a look at it and an entry in a list (`take`). Its id and
its bytes are made when the lane leaves, for all of them together.
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
    """What messages of one topic and tag have in common, checked and encoded once."""

    __slots__ = ("before_id", "size", "tag")

    def __init__(self, topic: str, tag: str | None, id_length: int) -> None:
        checked_topic(topic)
        self.tag = tag
        self.before_id = before_id(tag).encode()
        self.size = MIN_ITEM_BYTES + len(self.before_id) + id_length + 1
        """Bytes of such a message in a batch, but for its body."""


class _Lane:
    __slots__ = ("dones", "kind", "messages", "prepared", "size", "timer", "wish")

    def __init__(self, wish: MessageQueue | None, timer: TimerHandle) -> None:
        self.wish = wish
        self.timer = timer
        self.messages: list[Message] = []
        self.prepared: list[OutgoingMessage | _Kind] = []
        self.kind: _Kind | None = None
        """Of the last message."""
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
        # Longer bodies are compressed, or too long; a namespace is a property more.
        limit = settings.max_message_bytes
        if settings.compress_over > 0:
            limit = min(limit, settings.compress_over - 1)
        self._plain_bytes = 0 if settings.namespace else limit
        self.pending_bytes = 0

    def take(self, message: Message, done: SendDone) -> bool:
        """Let a message wait that has nothing but a body and perhaps a tag; False: it has more.

        This is what most messages are. The caller checks and adds the others (`add`), and those
        with which something is wrong.
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
            self._depart(topic)
        return True

    def _new_kind(self, topic: str, tag: str | None) -> _Kind:
        if tag is not None and type(tag) is not str:
            raise TypeError("a tag that is no text has to be refused by name")
        kind = _Kind(topic, tag, self._producer.id_length)
        if tag is None or len(tag) <= REMEMBERED_TAG:
            if len(self._kinds) >= _MAX_KINDS:
                self._kinds.clear()
            self._kinds[topic, tag] = kind
        return kind

    def add(
        self, message: Message, outgoing: OutgoingMessage, wish: MessageQueue | None, done: SendDone
    ) -> None:
        """Let a message that was checked wait for others to the same queue."""
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
            self._depart(key)

    def flush(self) -> None:
        """Let all lanes leave now."""
        for key in list(self._lanes):
            self._depart(key)

    def _open(self, key: str | MessageQueue, wish: MessageQueue | None) -> _Lane:
        # Brokers refuse a batch above the maximum, so what would make it one waits for the next.
        self._depart(key)
        producer = self._producer
        # A lane counts as one send from here on, and as all its messages when it leaves.
        producer.begin()
        timer = producer.clock.call_later(producer.settings.linger, self._depart, key)
        lane = self._lanes[key] = _Lane(wish, timer)
        return lane

    def _depart(self, key: str | MessageQueue) -> None:
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
            # Nobody above could tell those who wait: this is called by a timer.
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
            # The batch counted as one send; the others end here.
            producer.finished(len(dones) - 1)
            if isinstance(result, Receipt):
                settle_all(dones, receipts_of_batch(result, msg_ids))
            else:
                settle_all(dones, [result] * len(dones))

        first = Message(lane.messages[0].topic, b"")  # The wish already says what its key meant.
        producer.send_batch_body(first, msg_ids, body, lane.wish, done_all, retry_refusals=True)

    def _single(self, lane: _Lane, msg_id: str) -> OutgoingMessage:
        """The only message of a lane as an ordinary send."""
        [message], [outgoing] = lane.messages, lane.prepared
        if isinstance(outgoing, OutgoingMessage):
            return outgoing
        return make_outgoing(message, msg_id, self._producer.settings)


def _encoded(lane: _Lane, msg_ids: list[str]) -> bytes:
    """The messages of a lane as a batch; ``msg_ids`` gets the ids they had before."""
    parts: list[bytes] = []
    shape: tuple[_Kind, int, int] | None = None
    head = middle = b""
    for number, (message, kind) in enumerate(zip(lane.messages, lane.prepared, strict=True)):
        if isinstance(kind, OutgoingMessage):
            msg_ids[number] = kind.msg_id
            parts.append(encode_batch([(kind.body, kind.properties.encode(), kind.flag)]))
            continue
        body, msg_id = message.body, msg_ids[number].encode()
        # Messages of one kind and length differ in their bodies and ids alone.
        if shape != (kind, len(body), len(msg_id)):
            shape = (kind, len(body), len(msg_id))
            item = encode_batch([(body, b"%b%b\x02" % (kind.before_id, msg_id), 0)])
            after_body = len(item) - len(kind.before_id) - len(msg_id) - 3
            head = item[: after_body - len(body)]
            middle = item[after_body : -len(msg_id) - 1]
        parts += (head, body, middle, msg_id, b"\x02")
    return b"".join(parts)
