"""Single sends that wait a moment for company and travel as one batch.

A lane gathers messages for one queue. Messages without a wish share the lane of their topic, which
moves on to another queue each time a batch leaves it: the load still goes round, yet a batch is not
spread thin. A lane leaves when it is full or when its first message has lingered long enough; a
message that was alone in it travels as an ordinary send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client.envelopes import Envelope
from penstock.client.receipts import Receipt, receipts_of_batch
from penstock.errors import PenstockError
from penstock.model import Message, MessageQueue
from penstock.protocol.batches import MIN_ITEM_BYTES, encode_batch
from penstock.runtime.clock import TimerHandle

if TYPE_CHECKING:
    from penstock.client.producer import ProducerCore
    from penstock.client.sending import SendDone


class _Lane:
    __slots__ = ("dones", "envelopes", "messages", "size", "timer", "wish")

    def __init__(self, wish: MessageQueue | None, timer: TimerHandle) -> None:
        self.wish = wish
        self.timer = timer
        self.messages: list[Message] = []
        self.envelopes: list[Envelope] = []
        self.dones: list[SendDone] = []
        self.size = 0


class Lingering:
    """The lanes of one producer."""

    __slots__ = ("_lanes", "_producer", "pending_bytes")

    def __init__(self, producer: ProducerCore) -> None:
        self._producer = producer
        self._lanes: dict[str | MessageQueue, _Lane] = {}
        self.pending_bytes = 0

    def add(
        self, message: Message, envelope: Envelope, wish: MessageQueue | None, done: SendDone
    ) -> None:
        """Let a message wait for others to the same queue."""
        producer = self._producer
        key: str | MessageQueue = wish or envelope.topic
        lane = self._lanes.get(key)
        if lane is None:
            timer = producer.clock.call_later(producer.settings.linger, self._depart, key)
            lane = self._lanes[key] = _Lane(wish, timer)
        size = MIN_ITEM_BYTES + len(envelope.body) + len(envelope.properties)
        lane.messages.append(message)
        lane.envelopes.append(envelope)
        lane.dones.append(done)
        lane.size += size
        self.pending_bytes += size
        if lane.size >= producer.settings.linger_bytes or (
            self.pending_bytes > producer.settings.linger_pending
        ):
            self._depart(key)

    def flush(self) -> None:
        """Let all lanes leave now."""
        for key in list(self._lanes):
            self._depart(key)

    def _depart(self, key: str | MessageQueue) -> None:
        lane = self._lanes.pop(key, None)
        if lane is None:
            return
        lane.timer.cancel()
        self.pending_bytes -= lane.size
        producer = self._producer
        if len(lane.messages) == 1:
            producer.send_envelope(
                lane.messages[0], lane.envelopes[0], lane.wish, lane.dones[0], retry_refusals=True
            )
            return
        dones = lane.dones
        msg_ids = [envelope.msg_id for envelope in lane.envelopes]
        body = encode_batch(
            [
                (envelope.body, envelope.properties.encode(), envelope.flag)
                for envelope in lane.envelopes
            ]
        )

        def done(result: Receipt | PenstockError) -> None:
            # The batch counted as one send; the others end here.
            producer.finished(len(dones) - 1)
            if isinstance(result, Receipt):
                for one, of_one in zip(dones, receipts_of_batch(result, msg_ids), strict=True):
                    one(of_one)
            else:
                for one in dones:
                    one(result)

        first = Message(lane.messages[0].topic, b"")  # The wish already says what its key meant.
        producer.send_batch_body(first, msg_ids, body, lane.wish, done, retry_refusals=True)
