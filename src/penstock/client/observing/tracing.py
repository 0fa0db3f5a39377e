"""Reports each send and handler call to a trace topic: RocketMQ's message trace (``trace=True``).

Entries are gathered for a moment and leave in batches, one message for each topic they are about.
No call waits for them: a trace that cannot be sent is dropped and counted. `put` is called from any
thread; everything else runs on the session's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from penstock.client.middleware import HandlerCall, Middleware
from penstock.client.producing.outgoing import OutgoingMessage
from penstock.client.producing.producer import ProducerCore, unique_ids
from penstock.client.producing.receipts import Receipt, SendStatus, receipts_of_batch
from penstock.client.producing.sending import SendDone
from penstock.client.session.client_session import ClientSession
from penstock.client.session.namespaces import unwrap
from penstock.client.settings import ProducerSettings
from penstock.errors import PenstockError
from penstock.model import Message, StoredMessage
from penstock.model.names import TRACE_TOPIC, Property
from penstock.protocol.headers.transactions import TransactionDecision
from penstock.protocol.records.sys_flags import SysFlag
from penstock.protocol.traces import (
    DEFAULT_REGION,
    RETURN_CODES,
    ConsumeBegun,
    ConsumeEnded,
    Published,
    Trace,
    TracedType,
    TransactionEnded,
    encode_trace,
)
from penstock.runtime.burst import Burst

log = logging.getLogger(__name__)

GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
MAX_WAITING = 2048
"""Entries that may wait; more are dropped."""
MAX_ENTRIES = 100
MAX_BODY_BYTES = 118_000
MAX_KEYS_BYTES = 16_000
"""All properties of a message together may have 32 KiB."""
MAX_IN_FLIGHT = 64
"""Trace messages without an answer; while there are so many, further ones are dropped."""
FLUSH_SECONDS = 0.05
SEND_TIMEOUT = 5.0
_NOTE = "penstock trace"
_STATES = {
    TransactionDecision.COMMIT: "COMMIT_MESSAGE",
    TransactionDecision.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionDecision.UNKNOWN: "UNKNOW",  # as Java spells it
}

_Entry: TypeAlias = tuple[str, Trace, tuple[str, str]]
"""The topic of the message, what happened, its id and keys."""


class Tracer(Middleware):
    """The traces of one producer or consumer."""

    _loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        session: ClientSession,
        group: str,
        *,
        role: str,
        topic: str = TRACE_TOPIC,
        namespace: str | None = None,
    ) -> None:
        self._session = session
        self._clock = session.clock
        self._group = unwrap(namespace, group)
        self._namespace = namespace
        self._topic = topic
        self._sender = ProducerCore(
            session,
            ProducerSettings(group=f"{GROUP_PREFIX}-{group}-{role}", send_timeout=SEND_TIMEOUT),
        )
        self._ids = unique_ids(session.client_id, session.chance.getrandbits(32))
        self._waiting: Burst[_Entry] | None = None
        self._regions: dict[str, str | None] = {}
        self.sent = 0
        self.dropped = 0

    # --------------------------------------------------------------------------- lifecycle

    def start(self) -> None:
        """Begin to send; called on the session's loop."""
        self._loop = asyncio.get_running_loop()
        self._waiting = Burst(self._flush_soon, self._send_all)
        self._sender.start()

    async def stop(self) -> None:
        """Send what waits, then leave."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        waiting.drain()
        await self._sender.stop()

    # ------------------------------------------------------------------------- what happened

    def heard(self, broker_name: str, answer: dict[str, str] | None) -> None:
        """A broker answered a send: where it is, and whether it wants traces."""
        said = answer or {}
        wanted = said.get(Property.TRACE_ON) != "false"
        self._regions[broker_name] = (
            (said.get(Property.REGION) or DEFAULT_REGION) if wanted else None
        )

    def watch(self, message: Message, outgoing: OutgoingMessage, done: SendDone) -> SendDone:
        """Trace a send when it has its receipt; what is returned takes its result."""
        return self.watch_batch([message], [outgoing], done)

    def watch_batch(
        self, messages: Sequence[Message], prepared: Sequence[OutgoingMessage], done: SendDone
    ) -> SendDone:
        """The same for messages that share a request."""
        return functools.partial(
            self._sent, messages, prepared, self._clock.time_ms(), self._clock.monotonic(), done
        )

    def _sent(
        self,
        messages: Sequence[Message],
        prepared: Sequence[OutgoingMessage],
        begun_ms: int,
        begun: float,
        done: SendDone,
        result: Receipt | PenstockError,
    ) -> None:
        if isinstance(result, Receipt):
            cost = round((self._clock.monotonic() - begun) * 1000)
            ids = [outgoing.msg_id for outgoing in prepared]
            receipts = [result] if len(ids) == 1 else receipts_of_batch(result, ids)
            for message, outgoing, receipt in zip(messages, prepared, receipts, strict=True):
                self._published(message, outgoing, receipt, begun_ms, cost)
        done(result)

    def _published(
        self,
        message: Message,
        outgoing: OutgoingMessage,
        receipt: Receipt,
        begun_ms: int,
        cost_ms: int,
    ) -> None:
        broker = receipt.queue.broker_name
        region = self._regions.get(broker, DEFAULT_REGION)
        if region is None:
            return
        kind = TracedType.NORMAL
        if outgoing.sys_flag & SysFlag.TRANSACTION_PREPARED:
            kind = TracedType.HALF
        elif message.is_delayed:
            kind = TracedType.DELAY
        keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
        topic = unwrap(self._namespace, message.topic)
        trace = Published(
            time_ms=begun_ms,
            region=region,
            group=self._group,
            topic=topic,
            msg_id=receipt.msg_id,
            tags=message.tag or "",
            keys=keys,
            store_host=self._session.routes.master(broker) or "",
            body_bytes=len(message.body),
            cost_ms=cost_ms,
            message_type=kind,
            offset_msg_id=receipt.offset_msg_id,
            success=receipt.status is SendStatus.OK,
        )
        self.put(topic, trace, receipt.msg_id, keys)

    def transaction_ended(
        self,
        message: Message | StoredMessage,
        msg_id: str,
        transaction_id: str | None,
        decision: int,
        broker_name: str,
        *,
        from_check: bool,
    ) -> None:
        """A transaction was committed, rolled back or left open."""
        region = self._regions.get(broker_name, DEFAULT_REGION)
        if region is None:
            return
        keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
        topic = unwrap(self._namespace, message.topic)
        trace = TransactionEnded(
            time_ms=self._clock.time_ms(),
            region=region,
            group=self._group,
            topic=topic,
            msg_id=msg_id,
            tags=message.tag or "",
            keys=keys,
            store_host=self._session.routes.master(broker_name) or "",
            message_type=TracedType.COMMIT,
            transaction_id=transaction_id or "",
            state=_STATES.get(decision, "UNKNOW"),
            from_check=from_check,
        )
        self.put(topic, trace, msg_id, keys)

    # ------------------------------------------------------------- around handlers: middleware

    def before_handle(self, call: HandlerCall) -> None:
        """Trace that a handler is called; on its thread."""
        traced = [m for m in call.messages if m.peek(Property.TRACE_ON) != "false"]
        if not traced:
            return
        now_ms = self._clock.time_ms()
        request_id = self._ids.next(now_ms)
        call.notes[_NOTE] = request_id, now_ms
        for message in traced:
            keys = message.peek(Property.KEYS) or ""
            begun = ConsumeBegun(
                time_ms=now_ms,
                region=message.peek(Property.REGION) or DEFAULT_REGION,
                group=self._group,
                request_id=request_id,
                msg_id=message.msg_id,
                retries=message.reconsume_times,
                keys=keys,
            )
            self.put(unwrap(self._namespace, message.topic), begun, message.msg_id, keys)

    def after_handle(self, call: HandlerCall) -> None:
        """Trace how the call ended; on its thread."""
        note = cast("tuple[str, int] | None", call.notes.get(_NOTE))
        if note is None:
            return
        request_id, begun_ms = note
        now_ms = self._clock.time_ms()
        cost = (now_ms - begun_ms) // max(1, len(call.messages))
        how = call.return_type
        for message in call.messages:
            if message.peek(Property.TRACE_ON) == "false":
                continue
            keys = message.peek(Property.KEYS) or ""
            ended = ConsumeEnded(
                request_id=request_id,
                msg_id=message.msg_id,
                cost_ms=max(0, cost),
                success=call.success,
                keys=keys,
                code=RETURN_CODES.index(how) if how in RETURN_CODES else 0,
                time_ms=now_ms,
                group=self._group,
            )
            self.put(unwrap(self._namespace, message.topic), ended, message.msg_id, keys)

    # ------------------------------------------------------------------------------- sending

    def put(self, topic: str, trace: Trace, msg_id: str, keys: str) -> None:
        """Have an entry sent soon; called from any thread."""
        waiting = self._waiting
        if waiting is None:
            return
        if len(waiting) >= MAX_WAITING:
            self.dropped += 1
            if self.dropped == 1:
                log.warning("traces are dropped, too many wait group=%s", self._group)
            return
        # After the end of the loop there is nothing to send with.
        with contextlib.suppress(RuntimeError):
            waiting.put((topic, trace, (msg_id, keys)))
            if len(waiting) % MAX_ENTRIES == 0:
                self._loop.call_soon_threadsafe(waiting.drain)

    def _flush_soon(self, flush: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(self._clock.call_later, FLUSH_SECONDS, flush)

    def _send_all(self, entries: list[_Entry]) -> None:
        by_topic: dict[str, _Batch] = {}
        for topic, trace, keys in entries:
            batch = by_topic.setdefault(topic, _Batch())
            batch.add(encode_trace(trace), keys)
            if batch.is_full:
                self._send(by_topic.pop(topic))
        for batch in by_topic.values():
            self._send(batch)

    def _send(self, batch: _Batch) -> None:
        if self._sender.in_flight >= MAX_IN_FLIGHT:
            self.dropped += len(batch.entries)
            return
        message = Message(self._topic, "".join(batch.entries).encode(), keys=tuple(batch.keys))
        self._sender.send(message, functools.partial(self._trace_sent, len(batch.entries)))

    def _trace_sent(self, count: int, result: Receipt | PenstockError) -> None:
        if isinstance(result, Receipt):
            self.sent += count
            return
        if not self.dropped:
            log.warning("traces cannot be sent topic=%s error=%s", self._topic, result)
        self.dropped += count


class _Batch:
    __slots__ = ("_body_bytes", "_keys_bytes", "entries", "keys")

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.keys: dict[str, None] = {}
        self._body_bytes = 0
        self._keys_bytes = 0

    def add(self, entry: str, keys: tuple[str, str]) -> None:
        self.entries.append(entry)
        self._body_bytes += len(entry.encode())
        for key in (word for text in keys for word in text.split()):
            # A message can be found by its keys; one that would not fit is left out.
            if key not in self.keys and self._keys_bytes + len(key.encode()) < MAX_KEYS_BYTES:
                self.keys[key] = None
                self._keys_bytes += len(key.encode()) + 1

    @property
    def is_full(self) -> bool:
        return (
            len(self.entries) >= MAX_ENTRIES
            or self._body_bytes >= MAX_BODY_BYTES
            or self._keys_bytes >= MAX_KEYS_BYTES // 2
        )
