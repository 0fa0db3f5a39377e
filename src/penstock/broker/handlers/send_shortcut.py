"""The send that nearly every send is, served straight from the bytes of its header.

A producer's requests differ in little more than the body and the id of the message. So a queue that
took one message the long way (`send`) gets a lane, and while its topic stays as it is, the next
ones need no second look at topic and queue, no `Command` and no header object. Whatever is unusual
about a request (a flag, a delay, a field that is missing) sends it the long way, where it is
decided and explained.

    header ─▶ lane of (topic, queue)? ─▶ properties, nothing special? ─▶ append ─▶ answer
                  │ no                       │ no
                  └──────────────────────────┴──▶ None: the handler serves it, and may open the lane
"""

from __future__ import annotations

from typing import Final

import orjson

from penstock.broker.state import BrokerState
from penstock.broker.stats import QueueCounter
from penstock.broker.tables.topics import SEND_FORBIDDEN
from penstock.errors import PenstockError
from penstock.model.hosts import parse_host
from penstock.model.names import RETRY_PREFIX, Property
from penstock.protocol.commands import RESPONSE, Command, encode_command
from penstock.protocol.extensions import SHORT_RECEIPT
from penstock.protocol.headers.codec import SMALL_INT32S
from penstock.protocol.records.sys_flags import SysFlag
from penstock.protocol.send_answers import SendAnswers
from penstock.remoting import Peer
from penstock.store import Draft

# A record that is flagged as prepared is never delivered: only the broker flags.
SENDERS_FLAGS: Final = ~SysFlag.TRANSACTION_MASK
_BORN_HOST: Final = "born_host"
_MAX_REQUEST_ID: Final = 0x7FFF_FFFF
_INT64_DIGITS: Final = 18
"""A number of so many characters is one of 64 bits, whatever it is."""

# Messages that ask for more than being stored, which no batch may have.
SPECIAL_IN_BATCHES: Final = (b"DELAY\x01", b"TIMER_DEL", b"TRAN_MSG\x01")

_read_json = orjson.loads
# NamedTuple's own constructor costs twice as much as the tuple it makes.
_new_tuple = tuple.__new__
_Lane = tuple[int, QueueCounter]


class SendShortcut:
    """Usual sends of one broker."""

    def __init__(self, broker: BrokerState, answers: SendAnswers) -> None:
        self._stats = broker.stats
        self._answers = answers
        self._store_host = broker.store_host
        self._max_body = broker.storage.max_message_size
        # With sync flush an answer is a promise, and a slave takes nothing.
        self._is_open = not broker.storage.is_sync_flush and not broker.config.is_slave
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._stamp = broker.broker_properties.stamp
        self._append = broker.storage.append
        self._append_batch_body = broker.storage.append_batch_body
        self._answer_frame = answers.frame
        broker.topics.on_change(self._lanes.clear)

    def enable_fast_path(self, topic: str, queue_id: int, *, is_ordered: bool) -> None:
        """A queue took a message; the next one may take the shortcut."""
        if (
            self._is_open
            and not is_ordered
            and topic not in SEND_FORBIDDEN
            and not topic.startswith(RETRY_PREFIX)
        ):
            # The queue as clients write it, so that it need not be parsed.
            self._lanes[topic, str(queue_id)] = (queue_id, self._stats.queue_puts(topic, queue_id))

    def serve(self, peer: Peer, header: bytes, body: bytes) -> bytes | None:
        """Serve a SEND_MESSAGE_V2 with a JSON header; None: unusual."""
        try:
            head = _read_json(header)
            ext = head["extFields"]
            topic = ext["b"]
            queue_id, counter = self._lanes[topic, ext["e"]]
            flag = SMALL_INT32S[ext["h"]]
            sys_flag = SMALL_INT32S[ext["f"]]
            reconsume_times = SMALL_INT32S[ext["j"]]
            born_text = ext["g"]
            born_timestamp = int(born_text)
            stored_text, unique_id, special = self._stamp(ext["i"])
            request_id = head["opaque"]
            wire_flag = head["flag"]
            if (
                wire_flag != 0
                or special is not None
                or ext["m"] != "false"
                or ext["d"] not in SMALL_INT32S
                or "a" not in ext
                or "c" not in ext
                or not 0 < len(body) <= self._max_body
                or len(born_text) > _INT64_DIGITS
                or type(request_id) is not int
                or type(wire_flag) is not int
                or not 0 <= request_id <= _MAX_REQUEST_ID
            ):
                return None
            properties = stored_text.encode()
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        try:
            draft: Draft = _new_tuple(
                Draft,
                (
                    topic,
                    queue_id,
                    body,
                    properties,
                    flag,
                    sys_flag & SENDERS_FLAGS,
                    born_timestamp,
                    peer.data.get(_BORN_HOST) or born_host(peer),
                    self._store_host,
                    reconsume_times,
                    0,
                ),
            )
            log_position, queue_offset, size, _ = self._append(draft)
        except PenstockError as error:
            return self._refusal(error, request_id)
        counter.count += 1
        counter.size += size
        counter.calls += 1
        return self._answer_frame(request_id, log_position, queue_id, queue_offset, unique_id)

    def serve_batch(self, peer: Peer, header: bytes, body: bytes) -> bytes | None:
        """Serve a SEND_BATCH_MESSAGE with a JSON header; None: unusual."""
        # The checks of `serve`, spelled out once more: a call would cost each send as much as
        # several of them.
        try:
            head = _read_json(header)
            ext = head["extFields"]
            topic = ext["b"]
            queue_id, counter = self._lanes[topic, ext["e"]]
            sys_flag = SMALL_INT32S[ext["f"]]
            reconsume_times = SMALL_INT32S[ext["j"]]
            born_text = ext["g"]
            born_timestamp = int(born_text)
            _, unique_id, special = self._stamp(ext["i"])
            request_id = head["opaque"]
            wire_flag = head["flag"]
            if (
                wire_flag != 0
                or special is not None
                or sys_flag & ~SENDERS_FLAGS
                or ext["m"] != "true"
                or ext["h"] not in SMALL_INT32S
                or ext["d"] not in SMALL_INT32S
                or "a" not in ext
                or "c" not in ext
                or not 0 < len(body) <= self._max_body
                or len(born_text) > _INT64_DIGITS
                or type(request_id) is not int
                or type(wire_flag) is not int
                or not 0 <= request_id <= _MAX_REQUEST_ID
            ):
                return None
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        try:
            draft: Draft = _new_tuple(
                Draft,
                (
                    topic,
                    queue_id,
                    b"",
                    b"",
                    0,
                    sys_flag,
                    born_timestamp,
                    peer.data.get(_BORN_HOST) or born_host(peer),
                    self._store_host,
                    reconsume_times,
                    0,
                ),
            )
            run = self._append_batch_body(draft, body, SPECIAL_IN_BATCHES)
        except PenstockError as error:
            return self._refusal(error, request_id)
        if run is None:
            return None
        positions, queue_offset, size, _ = run
        counter.count += len(positions)
        counter.size += size
        counter.calls += 1
        if SHORT_RECEIPT in ext:
            positions = positions[:1]
        return self._answers.frame_of_batch(
            request_id, positions, queue_id, queue_offset, unique_id
        )

    def _refusal(self, error: PenstockError, request_id: int) -> bytes:
        refusal = refused(error, self._answers)
        refusal.request_id, refusal.flag = request_id, RESPONSE
        return encode_command(refusal)


def refused(error: PenstockError, answers: SendAnswers) -> Command:
    """The answer to a send that fails; RocketMQ says region and tracing with refusals as well."""
    ext = {Property.REGION: answers.region, Property.TRACE_ON: answers.trace_on}
    return Command(error.code, ext=ext, remark=str(error))


def born_host(peer: Peer) -> bytes:
    """The address of whoever sends, as records carry it; kept with the connection."""
    host = peer.data.get(_BORN_HOST)
    if not isinstance(host, bytes):
        host = peer.data[_BORN_HOST] = parse_host(peer.remote)
    return host
