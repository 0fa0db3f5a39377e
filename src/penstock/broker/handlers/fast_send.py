"""The fast path of sends: JSON header and body in, encoded answer out.

Most requests of a producer differ only in the body and the id of the message. Once a queue has
stored a message on the plain path (`send`), the queue is enabled here; while its topic stays as it
is, further sends need no second check of topic and queue, no `Command` and no header object.
The plain path is the specification: a request that is in any way unusual (a flag, a delay, a
missing field, a number that is not small) is left to it, and so is every error in the request.

    header ─▶ queue enabled? ─▶ properties without a rule? ─▶ append ─▶ answer
                  │ no                  │ no
                  └─────────────────────┴──▶ None: the plain path serves it

One msgspec decoder reads the header and its ext fields. All ext fields are declared as text, as
clients write them: a decoder that also converted them would take "1e3" for a number.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from penstock.broker.send_rules import BATCH_MARKS
from penstock.broker.state import BrokerState
from penstock.broker.stats import QueueCounter
from penstock.broker.tables.topics import SEND_FORBIDDEN
from penstock.errors import PenstockError
from penstock.model.hosts import parse_host
from penstock.model.names import RETRY_PREFIX, Property
from penstock.protocol.commands import RESPONSE, Command, encode_command
from penstock.protocol.extensions import SHORT_RECEIPT
from penstock.protocol.headers.send import SEND_V2_KEYS
from penstock.protocol.records.sys_flags import SysFlag
from penstock.protocol.send_answers import SendAnswers
from penstock.remoting import Peer
from penstock.store import Draft

# A record that is flagged as prepared is never delivered: only the broker sets the flag.
SENDER_FLAGS: Final = ~SysFlag.TRANSACTION_MASK
_BORN_HOST: Final = "born_host"
_INT64_DIGITS: Final = 18
"""A number with at most this many characters always fits into 64 bits."""
_SMALL: Final = {str(number): number for number in range(1024)}
"""Looking up a small number is faster than parsing it and checking its range."""

# NamedTuple's own constructor costs twice as much as the tuple it makes.
_new_tuple = tuple.__new__
_EnabledQueue = tuple[int, QueueCounter]
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class _Ext(msgspec.Struct, gc=False, rename={**SEND_V2_KEYS, "short_receipt": SHORT_RECEIPT}):
    """The ext fields of a send. Those that are required have no default."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: str
    queue_id: str
    sys_flag: str
    born_timestamp: str
    flag: str
    properties: str = ""
    reconsume_times: str = "0"
    max_reconsume_times: str = "0"
    batch: str = "false"
    short_receipt: str | None = None


class _Header(msgspec.Struct, gc=False, rename={"ext": "extFields", "request_id": "opaque"}):
    ext: _Ext
    request_id: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    flag: _Int32 = 0
    version: _Int32 = 0
    remark: str | None = None


_decode = msgspec.json.Decoder(_Header).decode


class FastSend:
    """The fast path of one broker."""

    def __init__(self, broker: BrokerState, answers: SendAnswers) -> None:
        self._topics = broker.topics
        self._stats = broker.stats
        self._answers = answers
        self._store_host = broker.store_host
        self._max_body = broker.storage.max_message_size
        # With sync flush an answer is a promise, and a slave refuses sends.
        self._is_allowed = not broker.storage.is_sync_flush and not broker.config.is_slave
        self._queues: dict[tuple[str, str], _EnabledQueue] = {}
        self._stamp = broker.broker_properties.stamp
        self._append = broker.storage.append
        self._append_batch_body = broker.storage.append_batch_body
        self._answer_frame = answers.frame
        broker.topics.on_change(self._queues.clear)

    def enable_fast_path(self, topic: str, queue_id: int) -> None:
        """Serve further sends to a queue that has stored a message on the plain path."""
        config = self._topics.get(topic)
        if (
            self._is_allowed
            and config is not None
            and not config.order
            and topic not in SEND_FORBIDDEN
            and not topic.startswith(RETRY_PREFIX)
        ):
            # The queue as clients write it, so that it need not be parsed.
            self._queues[topic, str(queue_id)] = queue_id, self._stats.queue_puts(topic, queue_id)

    def serve(self, peer: Peer, header: bytes, body: bytes) -> bytes | None:
        """The answer to SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE; None leaves it to the plain path."""
        try:
            head = _decode(header)
            ext = head.ext
            topic = ext.topic
            queue_id, counter = self._queues[topic, ext.queue_id]
            flag = _SMALL[ext.flag]
            sys_flag = _SMALL[ext.sys_flag]
            reconsume_times = _SMALL[ext.reconsume_times]
            born_timestamp = int(ext.born_timestamp)
            text, unique_id, ruled = self._stamp(ext.properties)
            is_batch = ext.batch != "false"
            if (
                ruled is not None
                or head.flag != 0
                or not 0 < len(body) <= self._max_body
                or len(ext.born_timestamp) > _INT64_DIGITS
                or ext.default_topic_queue_nums not in _SMALL
                or ext.max_reconsume_times not in _SMALL
                or (is_batch and (ext.batch != "true" or sys_flag & ~SENDER_FLAGS))
            ):
                return None
            properties = text.encode()
        except (msgspec.DecodeError, KeyError, ValueError):
            return None
        draft: Draft = _new_tuple(
            Draft,
            (
                topic,
                queue_id,
                body,
                properties,
                flag,
                sys_flag & SENDER_FLAGS,
                born_timestamp,
                peer.data.get(_BORN_HOST) or born_host(peer),
                self._store_host,
                reconsume_times,
                0,
            ),
        )
        try:
            if not is_batch:
                log_position, queue_offset, size, _ = self._append(draft)
                counter.count += 1
                counter.size += size
                counter.calls += 1
                return self._answer_frame(
                    head.request_id, log_position, queue_id, queue_offset, unique_id
                )
            stored = self._append_batch_body(draft, body, BATCH_MARKS)
        except PenstockError as error:
            refusal = refused(error, self._answers)
            refusal.request_id, refusal.flag = head.request_id, RESPONSE
            return encode_command(refusal)
        if stored is None:
            return None
        positions, queue_offset, size, _ = stored
        counter.count += len(positions)
        counter.size += size
        counter.calls += 1
        if ext.short_receipt is not None:
            positions = positions[:1]
        return self._answers.frame_of_batch(
            head.request_id, positions, queue_id, queue_offset, unique_id
        )


def refused(error: PenstockError, answers: SendAnswers) -> Command:
    """The answer to a send that fails; as in RocketMQ it has region and trace switch, too."""
    ext = {Property.REGION: answers.region, Property.TRACE_ON: answers.trace_on}
    return Command(error.code, ext=ext, remark=str(error))


def born_host(peer: Peer) -> bytes:
    """The address of the sender, as records carry it; cached with the connection."""
    host = peer.data.get(_BORN_HOST)
    if not isinstance(host, bytes):
        host = peer.data[_BORN_HOST] = parse_host(peer.remote)
    return host
