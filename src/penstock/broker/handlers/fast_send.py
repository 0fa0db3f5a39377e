"""The fast path of sends: JSON header and body in, encoded answer out.

Most requests of a producer differ only in the body, the time and the id of the message. Once the
plain path (`send`) has served a request, it enables the fast path for requests of the same kind:
same topic, queue, flags and so on, compared as text. While the topics stay as they are, these need
no second check, no `Command` and no header object. The plain path is the specification: anything
unusual (a property with a rule, a missing field, another spelling of a number) is left to it, and
so is every error in a request.

    header ─▶ known? ─ no ─▶ kind enabled? ─▶ properties without a rule, of a half or timer?
                 │                 │ no                  │ no              │ yes
                 │                 └─────────────────────┴──▶ None         ▼
                 └─ yes ──────────────────────────────────────────────▶ append ─▶ answer

A header that only repeats an earlier one of its connection, with another time, id, request id and
signature, is recognised without being decoded (`known_headers`).

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
from penstock.broker.handlers.known_headers import MAX_KNOWN, KnownHeaders, find_places
from penstock.broker.handlers.known_texts import cut_id
from penstock.broker.send_rules import BATCH_MARKS
from penstock.broker.state import BrokerState
from penstock.broker.stats import QueueCounter
from penstock.broker.tables.topics import is_send_forbidden
from penstock.errors import PenstockError
from penstock.model.hosts import parse_host
from penstock.model.names import HALF_TOPIC, RETRY_PREFIX, TIMER_TOPIC, Property
from penstock.model.properties import END_MARK
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
_KNOWN: Final = "known_headers"
_ZERO: Final = ord("0")
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


class _Known(NamedTuple):
    """Sends of one connection whose headers are alike."""

    topic: str
    queue_id: int
    before: bytes
    """What is before the unique id in the properties to be stored."""
    behind: bytes
    flag: int
    sys_flag: int
    born_host: bytes
    reconsume_times: int
    is_batch: bool
    has_short_receipt: bool
    counter: QueueCounter
    signed: tuple[str, bytes, bytes, bytes] | None
    """Access key and, in the order in which they are signed, the values before the born time, from
    there to the unique id, and behind it."""


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
        self._answer_known = answers.frame_of_known
        self._known_age = object()
        """Headers are known only as long as this is the same."""
        self._known_count = 0
        # Also after a change of the broker's permission, which ordered topics depend on.
        broker.topics.on_change(self._forget_kinds)

    def _forget_kinds(self) -> None:
        self._kinds.clear()
        self._forget_headers()

    def _forget_headers(self) -> None:
        self._known_age, self._known_count = object(), 0

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
        headers: KnownHeaders[_Known] | None = peer.data.get(_KNOWN)  # type: ignore[assignment]
        if headers is None or headers.age is not self._known_age:
            peer.data[_KNOWN] = KnownHeaders[_Known](self._known_age)
            return self._serve_unknown(peer, header, body)
        layout = headers.get(len(header))
        if layout is None:
            return self._serve_unknown(peer, header, body)
        known = layout.known.get(layout.fixed(header))
        if known is None:
            headers.miss(len(header), layout)
            return self._serve_unknown(peer, header, body)
        layout.misses = 0
        (
            topic,
            queue_id,
            before,
            behind,
            flag,
            sys_flag,
            born_host,
            reconsume_times,
            is_batch,
            has_short_receipt,
            counter,
            signed,
        ) = known
        born_at, id_at, request_id_at, signature_at = layout.places
        born, unique_id, request_id = header[born_at], header[id_at], header[request_id_at]
        if (
            not (born.isdigit() and unique_id.isalnum() and request_id.isdigit())
            # JSON knows no number that begins with a zero, but for zero itself.
            or request_id[0] == _ZERO
            or not 0 < len(body) <= self._max_body
        ):
            return self._serve_unknown(peer, header, body)
        if signed is not None:
            access_key, signed_first, signed_next, signed_last = signed
            data = b"".join((signed_first, born, signed_next, unique_id, signed_last, body))
            for verifier in self._senders.get((peer, access_key, topic), ()):  # type: ignore[union-attr]  # signed
                if verifier.fits_base64(header[signature_at], data):
                    break
            else:
                return self._serve_unknown(peer, header, body)
        draft: DraftFields = (
            topic,
            queue_id,
            body,
            before + unique_id + behind,
            flag,
            sys_flag,
            int(born),
            born_host,
            self._store_host,
            reconsume_times,
            0,
            unique_id,
        )
        try:
            if not is_batch:
                log_position, queue_offset, size, _ = self._append(draft)
                counter.size += size
                counter.calls += 1
                counter.count += 1
                return self._answer_known(
                    request_id, log_position, queue_id, queue_offset, unique_id
                )
            stored = self._append_batch_body(draft, body, BATCH_MARKS)
        except PenstockError as error:
            return self._refused(error, int(request_id))
        if stored is None:
            return None
        positions, queue_offset, size, _ = stored
        counter.size += size
        counter.calls += 1
        counter.count += len(positions)
        return self._answers.frame_of_batch(
            int(request_id),
            positions[:1] if has_short_receipt else positions,
            queue_id,
            queue_offset,
            unique_id.decode(),
        )

    def _remember(self, peer: Peer, header: bytes, head: _Header, kind: _Kind) -> None:
        """Recognise further headers like this one, which was served as a usual send."""
        headers: KnownHeaders[_Known] | None = peer.data.get(_KNOWN)  # type: ignore[assignment]
        if headers is None or not headers.may_learn(header):
            return
        if self._known_count >= MAX_KNOWN:
            self._forget_headers()
            return
        ext = head.ext
        sent = ext.properties
        text = cut_id(END_MARK + sent + ("" if sent.endswith(END_MARK) else END_MARK))
        if text is None:
            headers.failures += 1
            return
        stamped = self._stamp(sent)
        start = len(text.before) - 1
        signed = None
        if self._senders is not None:
            signed = _signed_parts(ext, start, start + len(text.unique_id))  # type: ignore[arg-type]
        if stamped is None or stamped[1] != text.unique_id:
            return
        known = _Known(
            ext.topic,
            kind.queue_id,
            stamped[0][:start].encode(),
            stamped[0][start + len(text.unique_id) :].encode(),
            kind.flag,
            kind.sys_flag,
            born_host(peer),
            kind.reconsume_times,
            kind.is_batch,
            ext.short_receipt is not None,
            kind.counter,
            signed,
        )
        if headers.learn(header, find_places(header, head, text, self._decode), known):
            self._known_count += 1

    def _refused(self, error: PenstockError, request_id: int) -> bytes:
        refusal = refused(error, self._answers)
        refusal.request_id, refusal.flag = request_id, RESPONSE
        return encode_command(refusal)

    def _serve_unknown(self, peer: Peer, header: bytes, body: bytes) -> bytes | None:
        """`serve` for any header: it is decoded."""
        try:
            head = self._decode(header)
            ext = head.ext
            senders = self._senders
            if senders is not None and not _is_signed(senders, peer, ext, body):  # type: ignore[arg-type]  # `_decode_signed` has read it
                return None
            topic, born_text = ext.topic, ext.born_timestamp
            kind = self._kinds[
                topic,
                ext.queue_id,
                ext.flag,
                ext.sys_flag,
                ext.reconsume_times,
                ext.default_topic_queue_nums,
                ext.max_reconsume_times,
                ext.batch,
            ]
            queue_id, flag, sys_flag, reconsume_times, is_batch, is_flagged, counter = kind
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
            return self._refused(error, request_id)
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
        self._remember(peer, header, head, kind)
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


def _signed_parts(ext: _SignedExt, start: int, stop: int) -> tuple[str, bytes, bytes, bytes]:
    """The values that `_is_signed` reads, for properties with the unique id from start to stop."""
    before = (
        f"{ext.access_key}{ext.ons_channel}{ext.security_token}{ext.producer_group}{ext.topic}"
        f"{ext.default_topic}{ext.default_topic_queue_nums}{ext.queue_id}{ext.sys_flag}"
    )
    between = f"{ext.flag}{ext.properties[:start]}"
    behind = (
        f"{ext.properties[stop:]}{ext.reconsume_times}{ext.unit_mode}"
        f"{ext.batch}{ext.broker_name}{ext.short_receipt or ''}"
    )
    return ext.access_key, before.encode(), between.encode(), behind.encode()


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
