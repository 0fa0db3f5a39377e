"""The fast path of sends: JSON header and body in, encoded answer out.

Most requests of a producer differ only in the body, the time and the id of the message. Once the
plain path (`send`) has served a request, it enables the fast path for requests of the same kind:
same topic, queue, flags and so on, compared as text. While the topics stay as they are, these need
no second check, no `Command` and no header object. The plain path is the specification: anything
unusual (a property with a rule, a missing field, another spelling of a number) is left to it, and
so is every error in a request.

    header ─▶ kind enabled? ─▶ properties without a rule, of a half or timer? ─▶ append ─▶ answer
                  │ no                  │ no
                  └─────────────────────┴──▶ None: the plain path serves it

One msgspec decoder reads the header and its ext fields. All ext fields are declared as text, as
clients write them: a decoder that also converted them would take "1e3" for a number.

Where requests are signed, the guard notes for each connection which user may send to which topic
(`Guard.senders`), and the signature is checked here. It covers all fields, so a header with a field
that the decoder does not know is left to the plain path.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, NamedTuple, TypeAlias

import msgspec

from penstock.auth.guard import Senders
from penstock.broker.handlers.fast_timers import FastTimers
from penstock.broker.handlers.fast_transactions import FastTransactions
from penstock.broker.send_rules import BATCH_MARKS
from penstock.broker.state import BrokerState
from penstock.broker.stats import QueueCounter
from penstock.broker.tables.topics import is_send_forbidden
from penstock.errors import PenstockError
from penstock.model.hosts import parse_host
from penstock.model.names import HALF_TOPIC, RETRY_PREFIX, TIMER_TOPIC, Property
from penstock.protocol import acl
from penstock.protocol.commands import RESPONSE, Command, encode_command
from penstock.protocol.extensions import SHORT_RECEIPT
from penstock.protocol.half_messages import HALF_QUEUE
from penstock.protocol.headers.send import SEND_V2_KEYS, SendMessage
from penstock.protocol.records.sys_flags import SysFlag
from penstock.protocol.send_answers import SendAnswers
from penstock.remoting import Peer
from penstock.store import DraftFields

# A record that is flagged as prepared is never delivered, and one that is flagged as a batch is
# taken apart by its readers.
SENDER_FLAGS: Final = ~SysFlag.OF_BROKER
_BORN_HOST: Final = "born_host"
_INT64_DIGITS: Final = 18
"""A number with at most this many characters always fits into 64 bits."""
_MAX_KINDS: Final = 1 << 14
"""Bounds memory against invented flags; one producer needs a kind for each queue."""

_Key: TypeAlias = tuple[str, str, str, str, str, str, str | None, str]
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class _Kind(NamedTuple):
    """Requests that are served alike."""

    queue_id: int
    flag: int
    sys_flag: int
    reconsume_times: int
    is_batch: bool
    is_flagged: bool
    """Whether the client says that they are of transactions; what the properties say counts."""
    counter: QueueCounter


class _Ext(msgspec.Struct, gc=False, rename={**SEND_V2_KEYS, "short_receipt": SHORT_RECEIPT}):
    """The ext fields of a send; defaults are those of `SendMessage`, as text."""

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
    max_reconsume_times: str | None = None
    batch: str = "false"
    short_receipt: str | None = None


class _Header(msgspec.Struct, gc=False, rename={"ext": "extFields", "request_id": "opaque"}):
    ext: _Ext
    request_id: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    flag: _Int32 = 0
    version: _Int32 = 0
    remark: str | None = None


_decode = msgspec.json.Decoder(_Header).decode


class _SignedExt(
    msgspec.Struct,
    gc=False,
    forbid_unknown_fields=True,
    rename={
        **SEND_V2_KEYS,
        "short_receipt": SHORT_RECEIPT,
        "access_key": acl.ACCESS_KEY,
        "signature": acl.SIGNATURE,
        "security_token": acl.SECURITY_TOKEN,
        "ons_channel": "OnsChannel",
    },
):
    """The ext fields of a signed send, as the usual clients write them.

    A field that is absent adds nothing to what is signed, and neither does an empty default. Those
    with another default are required.
    """

    access_key: str
    signature: bytes  # decoded from base64
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: str
    queue_id: str
    sys_flag: str
    born_timestamp: str
    flag: str
    reconsume_times: str
    unit_mode: str
    batch: str
    properties: str = ""
    broker_name: str = ""
    security_token: str = ""
    ons_channel: str = ""
    short_receipt: str | None = None
    max_reconsume_times: ClassVar[None] = None


class _SignedHeader(_Header):
    ext: _SignedExt  # type: ignore[assignment]  # has all that is used of `_Ext`


_decode_signed = msgspec.json.Decoder(_SignedHeader).decode


class FastSend:
    """The fast path of one broker."""

    def __init__(self, broker: BrokerState, answers: SendAnswers) -> None:
        self._senders = broker.senders
        self._decode = _decode if self._senders is None else _decode_signed
        self._topics = broker.topics
        self._stats = broker.stats
        self._answers = answers
        self._store_host = broker.store_host
        self._max_body = broker.storage.max_message_size
        # With sync flush an answer is a promise, and a slave refuses sends.
        self._is_allowed = not broker.storage.is_sync_flush and not broker.config.is_slave
        self._kinds: dict[_Key, _Kind] = {}
        self._stamp = broker.broker_properties.stamp_unruled
        self._timers = FastTimers(broker)
        self._transactions = FastTransactions(broker)
        self.end_transaction = self._transactions.end
        self._append = broker.storage.append
        self._append_batch_body = broker.storage.append_batch_body
        self._answer_frame = answers.frame
        # Also after a change of the broker's permission, which ordered topics depend on.
        broker.topics.on_change(self._kinds.clear)

    def enable_fast_path(self, ask: SendMessage) -> None:
        """Serve further requests like this one, which the plain path has served."""
        topic, config = ask.topic, self._topics.get(ask.topic)
        if (
            not self._is_allowed
            or config is None
            or is_send_forbidden(topic)
            or topic.startswith(RETRY_PREFIX)
            # The broker chooses a queue for each message.
            or ask.queue_id < 0
        ):
            return
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        key = (
            topic,
            str(ask.queue_id),
            str(ask.flag),
            str(ask.sys_flag),
            str(ask.reconsume_times),
            str(ask.default_topic_queue_nums),
            None if ask.max_reconsume_times is None else str(ask.max_reconsume_times),
            "true" if ask.batch else "false",
        )
        self._kinds[key] = _Kind(
            ask.queue_id,
            ask.flag,
            ask.sys_flag & SENDER_FLAGS,
            ask.reconsume_times,
            ask.batch,
            bool(ask.sys_flag & SysFlag.TRANSACTION_PREPARED) and not ask.batch,
            self._stats.queue_puts(topic, ask.queue_id),
        )

    def serve(self, peer: Peer, header: bytes, body: bytes) -> bytes | None:
        """The answer to SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE; None leaves it to the plain path."""
        try:
            head = self._decode(header)
            ext = head.ext
            senders = self._senders
            if senders is not None and not _is_signed(senders, peer, ext, body):  # type: ignore[arg-type]  # `_decode_signed` has read it
                return None
            topic, born_text = ext.topic, ext.born_timestamp
            queue_id, flag, sys_flag, reconsume_times, is_batch, is_flagged, counter = self._kinds[
                topic,
                ext.queue_id,
                ext.flag,
                ext.sys_flag,
                ext.reconsume_times,
                ext.default_topic_queue_nums,
                ext.max_reconsume_times,
                ext.batch,
            ]
            born_timestamp = int(born_text)
            if (
                head.flag != 0
                or not 0 < len(body) <= self._max_body
                or len(born_text) > _INT64_DIGITS
            ):
                return None
            timer, half = None, None
            stamped = None if is_flagged else self._stamp(ext.properties)
            if stamped is not None:
                text, unique_id = stamped
                stored_topic, stored_queue_id = topic, queue_id
            elif is_batch:
                return None
            elif half := self._transactions.prepare(ext.properties, topic, queue_id):
                text, _, (_, _, unique_id) = half
                stored_topic, stored_queue_id = HALF_TOPIC, HALF_QUEUE
            elif timer := self._timers.park(ext.properties, topic, queue_id):
                text, unique_id, _ = timer
                stored_topic, stored_queue_id = TIMER_TOPIC, 0
            else:
                return None
            properties = text.encode()
        except (msgspec.DecodeError, KeyError, ValueError):
            return None
        draft: DraftFields = (  # type: ignore[assignment]  # what born_host keeps is bytes
            stored_topic,
            stored_queue_id,
            body,
            properties,
            flag,
            sys_flag,
            born_timestamp,
            peer.data.get(_BORN_HOST) or born_host(peer),
            self._store_host,
            reconsume_times,
            0,
            unique_id.encode(),
        )
        request_id = head.request_id
        try:
            if is_batch:
                stored = self._append_batch_body(draft, body, BATCH_MARKS)
                if stored is None:
                    return None
                positions, queue_offset, size, _ = stored
            else:
                appended = self._append(draft)
                log_position, queue_offset, size, _ = appended
        except PenstockError as error:
            refusal = refused(error, self._answers)
            refusal.request_id, refusal.flag = request_id, RESPONSE
            return encode_command(refusal)
        if half is not None:
            self._transactions.stored(half, draft, queue_id, appended)
            return self._answer_frame(request_id, log_position, queue_id, queue_offset, unique_id)
        counter.size += size
        counter.calls += 1
        if timer is not None:
            counter.count += 1
            self._timers.parked()
            return self._answers.frame_of_timer(
                request_id, log_position, queue_id, queue_offset, unique_id, timer.recall_handle
            )
        if not is_batch:
            counter.count += 1
            return self._answer_frame(request_id, log_position, queue_id, queue_offset, unique_id)
        counter.count += len(positions)
        if ext.short_receipt is not None:
            positions = positions[:1]
        return self._answers.frame_of_batch(
            request_id, positions, queue_id, queue_offset, unique_id
        )


def _is_signed(senders: Senders, peer: Peer, ext: _SignedExt, body: bytes) -> bool:
    """Whether the guard has allowed such sends, and this one is signed by the same user."""
    for verifier in senders.get((peer, ext.access_key, ext.topic), ()):
        # All values but the signature, in the order of their names (`acl.signed_names`).
        values = (
            f"{ext.access_key}{ext.ons_channel}{ext.security_token}{ext.producer_group}{ext.topic}"
            f"{ext.default_topic}{ext.default_topic_queue_nums}{ext.queue_id}{ext.sys_flag}"
            f"{ext.born_timestamp}{ext.flag}{ext.properties}{ext.reconsume_times}{ext.unit_mode}"
            f"{ext.batch}{ext.broker_name}{ext.short_receipt or ''}"
        )
        if verifier.fits(ext.signature, values, body):
            return True
    return False


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
