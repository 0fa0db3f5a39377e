"""Sending: single messages, batches, one-way sends, sends to retry topics.

This is the hottest path of the broker, so one object binds what it needs once and looks at as
little as it can: properties are searched, not parsed; a known topic was validated when it was made.
What most sends look like does not even come here any more, see `send_shortcut`.
The answer is returned at once; the connection sends it only after the store has written
(`remoting.turn`), or, with sync flush, when a promise is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from penstock.broker.delivery.retries import (
    group_of_retry_topic,
    is_dead_on_send,
    max_reconsume_times,
)
from penstock.broker.delivery.schedule_records import delayed
from penstock.broker.handlers.send_shortcut import (
    SENDERS_FLAGS,
    SPECIAL_IN_BATCHES,
    SendShortcut,
    born_host,
    refused,
)
from penstock.broker.state import BrokerState
from penstock.broker.storage import Answered
from penstock.broker.tables.topics import SEND_FORBIDDEN, TOPICS_FILE
from penstock.errors import (
    IllegalMessage,
    InvalidArgument,
    NoPermission,
    PenstockError,
    ProtocolError,
    SystemBusy,
)
from penstock.model.names import RETRY_PREFIX, WRITE, Property, dead_letter_topic
from penstock.model.properties import encode_properties, parse_properties
from penstock.protocol.commands import Command
from penstock.protocol.extensions import SHORT_RECEIPT
from penstock.protocol.headers import header_codec
from penstock.protocol.headers.send import SEND_V2, SendMessage
from penstock.protocol.records.batches import BatchItem, decode_batch
from penstock.protocol.send_answers import SendAnswers
from penstock.protocol.validation import check_topic
from penstock.remoting import Peer, Promise
from penstock.store import Appended, Draft

_NO_EXT: Final[Mapping[str, str]] = {}
_read_v1 = header_codec(SendMessage).read
_read_v2 = SEND_V2.read
_BATCH: Final = [field.name for field in dataclasses.fields(SendMessage)].index("batch")
_new_tuple = tuple.__new__
_WAIT_NOT: Final = "WAIT\x01false"
_TIMER_KEYS: Final = (
    Property.TIMER_DELAY_SECONDS,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
)


Answer = Command | Promise | bytes


class Sending:
    """SEND_MESSAGE in its three forms."""

    def __init__(self, broker: BrokerState) -> None:
        config = broker.config
        self._broker = broker
        self._topics = broker.topics
        self._storage = broker.storage
        self._stamp = broker.broker_properties.stamp
        self._stats = broker.stats
        self._store_host = broker.store_host
        self._answers = SendAnswers(
            id_prefix=broker.store_host.hex().upper(),
            region=config.region_id,
            trace_on=config.trace_on,
        )
        self._max_body = broker.storage.max_message_size
        self._is_slave = config.is_slave
        self._has_made_topic = False
        self._topic_of = broker.topics.get
        self._append = broker.storage.append
        self._count = broker.stats.put
        self._answer_frame = self._answers.frame
        self._shortcut = SendShortcut(broker, self._answers)
        self.shortcut = self._shortcut.serve
        self.batch_shortcut = self._shortcut.serve_batch

    # Request codes

    def send_v1(self, peer: Peer, command: Command) -> Answer:
        """SEND_MESSAGE: the header spelt out."""
        ext = command.ext or _NO_EXT
        fields = _read_v1(ext)
        if ext.get("batch") == "1":
            # The C++ client's word for true. Java reads it as false, and so its broker keeps the
            # whole batch as one message that no consumer can make sense of.
            fields = (*fields[:_BATCH], True, *fields[_BATCH + 1 :])
        return self._send(peer, command, fields)

    def send_v2(self, peer: Peer, command: Command) -> Answer:
        """SEND_MESSAGE_V2: the header in single letters."""
        return self._send(peer, command, _read_v2(command.ext or _NO_EXT))

    # Steps

    def _send(self, peer: Peer, command: Command, fields: tuple[Any, ...]) -> Answer:
        """Serve a send; ``fields`` are those of a `SendMessage`.

        The usual case is one function on plain values, since calls and objects cost more than
        what is done in them; whatever is unusual is asked for once and decided elsewhere.
        """
        _, topic, _, _, queue_id, sys_flag, born_timestamp, flag, text = fields[:9]
        reconsume_times, _, _, is_batch, _ = fields[9:]
        try:
            if self._is_slave:
                raise _slave_refusal(self._broker.config.broker_name)
            self._has_made_topic = False
            if is_batch:
                return self._send_batch(peer, command, SendMessage(*fields))
            config = self._topic_of(topic)
            if (
                config is None
                or config.order
                or not 0 <= queue_id < config.write_queue_nums
                or topic in SEND_FORBIDDEN
            ):
                queue_id = self._queue_for(SendMessage(*fields))
            body = command.body
            assert type(body) is bytes, "a received body is bytes"
            if not 0 < len(body) <= self._max_body:
                raise _body_illegal(len(body), self._max_body)
            stored_text, unique_id, special = self._stamp(text or "")
            asked_topic = topic
            if topic[0] == "%" and topic.startswith(RETRY_PREFIX):
                topic, queue_id = self._retry_target(command, SendMessage(*fields), queue_id)
            draft: Draft = _new_tuple(
                Draft,
                (
                    topic,
                    queue_id,
                    body,
                    stored_text.encode(),
                    flag,
                    sys_flag & SENDERS_FLAGS,
                    born_timestamp,
                    born_host(peer),
                    self._store_host,
                    reconsume_times,
                    0,
                ),
            )
            if special is not None:
                draft = self._with_special(draft, asked_topic, special)
            appended = self._append(draft)
            log_position, queue_offset, size, _ = appended
            self._count(topic, queue_id, size)
            if not (self._has_made_topic or self._storage.is_sync_flush or command.serializer):
                if config is not None and topic == asked_topic and special is None:
                    self._shortcut.enable_fast_path(topic, queue_id, is_ordered=config.order)
                return self._answer_frame(
                    command.request_id, log_position, queue_id, queue_offset, unique_id
                )
            msg_id = f"{self._answers.id_prefix}{log_position:016X}"
            answer = Command(0, ext=self._answers.ext(msg_id, queue_id, queue_offset, unique_id))
            return self._acknowledge(answer, appended, _WAIT_NOT not in stored_text)
        except PenstockError as error:
            return refused(error, self._answers)

    def _send_batch(self, peer: Peer, command: Command, ask: SendMessage) -> Command | Promise:
        if ask.topic.startswith(RETRY_PREFIX):
            raise IllegalMessage(
                f"a batch for the retry topic {ask.topic}", expected="single sends"
            )
        _, unique_id, special = self._stamp(ask.properties or "")
        if ask.sys_flag & ~SENDERS_FLAGS or special is not None:
            _refuse_in_batches(special or {}, is_prepared=bool(ask.sys_flag & ~SENDERS_FLAGS))
        queue_id = self._queue_for(ask)
        body = command.body
        assert type(body) is bytes, "a received body is bytes"
        if not 0 < len(body) <= self._max_body:
            raise _body_illegal(len(body), self._max_body)
        draft = Draft(
            ask.topic,
            queue_id,
            b"",
            b"",
            ask.flag,
            ask.sys_flag,
            ask.born_timestamp,
            born_host(peer),
            self._store_host,
            ask.reconsume_times,
            0,
        )
        # Nearly every batch takes the short way; the long one finds out what is unusual.
        run = self._storage.append_batch_body(draft, body, SPECIAL_IN_BATCHES)
        if run is not None:
            positions, queue_offset, total, last = run
        else:
            appended = self._storage.append_batch(draft, _batch_items(body))
            positions = [one.log_position for one in appended]
            queue_offset, last = appended[0].queue_offset, appended[-1]
            total = sum(one.size for one in appended)
        self._stats.put(ask.topic, queue_id, total, len(positions))
        if SHORT_RECEIPT in (command.ext or _NO_EXT):
            positions = positions[:1]
        if not (self._has_made_topic or self._storage.is_sync_flush or command.serializer):
            config = self._topic_of(ask.topic)
            if config is not None and queue_id < config.write_queue_nums:
                self._shortcut.enable_fast_path(ask.topic, queue_id, is_ordered=config.order)
        ids = self._answers.ids(positions)
        answer = Command(0, ext=self._answers.ext(ids, queue_id, queue_offset, unique_id))
        return self._acknowledge(answer, last, _WAIT_NOT not in (ask.properties or ""))

    def _acknowledge(self, answer: Command, appended: Appended, waits: bool) -> Command | Promise:
        waits = waits and self._storage.is_sync_flush
        if not waits and not self._has_made_topic:
            return answer
        promise = Promise()
        target: Answered = promise
        if self._has_made_topic:
            made = target = _TopicMade(promise)
            self._broker.tables.when_saved(TOPICS_FILE, made.saved)
            self._broker.when_topics_known(made.known, ())
        if waits:
            self._storage.when_on_disk(appended.log_position + appended.size, target, answer)
        else:
            self._storage.when_written(target, answer)
        return promise

    # Where a message goes

    def _queue_for(self, ask: SendMessage) -> int:
        """Check topic and queue, make the topic if that is allowed, choose a queue if asked to."""
        topic = ask.topic
        if topic in SEND_FORBIDDEN:
            raise NoPermission(f"Sending message to topic[{topic}] is forbidden.")
        config = self._topics.get(topic)
        if config is None:
            check_topic(topic)
            config = self._topics.create_for_send(
                topic, ask.default_topic, ask.default_topic_queue_nums
            )
            self._has_made_topic = True
        if config.order and not self._broker.config.broker_permission & WRITE:
            raise NoPermission(
                f"the broker[{self._broker.config.broker_name}] sending message is forbidden"
            )
        queue_id = ask.queue_id
        if queue_id < 0:
            return self._broker.random_below(max(1, config.write_queue_nums))
        if queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
            raise InvalidArgument(
                f"request queueId[{queue_id}] is illegal for topic {topic}",
                expected=f"0 to {max(config.write_queue_nums, config.read_queue_nums) - 1}",
            )
        return queue_id

    def _retry_target(self, command: Command, ask: SendMessage, queue_id: int) -> tuple[str, int]:
        """A group's own retry: back to it, or to its dead letters when it was tried enough."""
        group = group_of_retry_topic(ask.topic)
        assert group is not None, "asked for retry topics only"
        config = self._broker.groups.require(group)
        limit = max_reconsume_times(
            ask.max_reconsume_times, command.version, config.retry_max_times
        )
        is_orderly = self._broker.locks.is_orderly(group, self._broker.clock.monotonic())
        if not is_dead_on_send(ask.reconsume_times, limit, group_is_orderly=is_orderly):
            return ask.topic, queue_id
        dead = dead_letter_topic(group)
        self._topics.ensure(dead, 1, self._broker.config.dead_letter_permission)
        self._stats.dead_letter(group)
        return dead, 0

    def _with_special(self, draft: Draft, asked_topic: str, properties: dict[str, str]) -> Draft:
        """Messages that ask for more than being stored: delays, timers, transactions."""
        if properties.get(Property.TRANSACTION_PREPARED, "").lower() == "true":
            raise NoPermission(
                "transactional messages are not supported by this broker yet",
                hint="send the message after the local transaction has committed",
            )
        level = _integer(properties, Property.DELAY)
        if level > 0 and draft.topic != asked_topic:
            # It was meant to be retried later, and is given up instead.
            return draft._replace(properties=encode_properties({**properties, Property.DELAY: "0"}))
        if level > 0:
            return delayed(draft, properties, level, self._broker.delay_levels)
        if any(key in properties for key in _TIMER_KEYS):
            self._refuse_timer(properties)
        return draft

    def _refuse_timer(self, properties: dict[str, str]) -> None:
        """A timer message in the future would be delivered at once: refuse it instead."""
        now = self._broker.clock.time_ms()
        seconds = _integer(properties, Property.TIMER_DELAY_SECONDS)
        delay_ms = _integer(properties, Property.TIMER_DELAY_MS)
        deliver_ms = _integer(properties, Property.TIMER_DELIVER_MS)
        if seconds > 0 or delay_ms > 0 or deliver_ms > now:
            raise IllegalMessage(
                "timer messages are not supported by this broker yet",
                hint=f"use one of the delay levels: {self._broker.config.message_delay_level}",
            )


class _TopicMade:
    """Holds an answer until the topic that the message made is saved, and has a route.

    Not saved, a broker that dies right now would come back with the message, but with no more
    queues of the topic than it finds messages in. And whoever has seen the answer may start a
    consumer, which must find the topic at the name servers (as far as they can be reached).
    """

    __slots__ = ("_answer", "_is_known", "_is_saved", "_promise")

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self._answer: Command | None = None
        self._is_saved = False
        self._is_known = False

    def resolve(self, answer: Command) -> bool:
        self._answer = answer
        return self._is_saved and self._is_known and self._promise.resolve(answer)

    def fail(self, error: PenstockError) -> bool:
        return self._promise.fail(error)

    def saved(self) -> None:
        self._is_saved = True
        self._go_on()

    def known(self) -> None:
        self._is_known = True
        self._go_on()

    def _go_on(self) -> None:
        if self._answer is not None:
            self.resolve(self._answer)


def _slave_refusal(broker_name: str) -> SystemBusy:
    return SystemBusy(
        f"[REJECTREQUEST]broker {broker_name} is a slave", expected="sends to go to a master"
    )


def _batch_items(body: bytes) -> list[BatchItem]:
    try:
        items = decode_batch(body)
    except ProtocolError as error:
        raise IllegalMessage(f"batch cannot be read: {error}") from error
    for item in items:
        # Seldom there, and mostly the end of a name that only looks like one of these.
        if any(mark in item.properties for mark in SPECIAL_IN_BATCHES):
            _refuse_in_batches(parse_properties(item.properties))
    return items


def _refuse_in_batches(properties: Mapping[str, str], *, is_prepared: bool = False) -> None:
    """A batch is stored at once: what asks for more would be delivered too early."""
    if _integer(properties, Property.DELAY) > 0 or any(key in properties for key in _TIMER_KEYS):
        raise IllegalMessage("a batch with a delayed message", expected="no delay in batches")
    if is_prepared or properties.get(Property.TRANSACTION_PREPARED, "").lower() == "true":
        raise IllegalMessage(
            "a batch with a transactional message", expected="no transactions in batches"
        )


def _body_illegal(size: int, limit: int) -> IllegalMessage:
    return IllegalMessage(
        f"the message is illegal, maybe msg body or properties length not matched: {size} bytes",
        expected=f"a body of 1 to {limit} bytes (maxMessageSize)",
    )


def _integer(properties: Mapping[str, str], key: str) -> int:
    """A number among the properties, 0 if it is not there.

    A time that cannot be read is refused, as by RocketMQ: the message would go out at once.
    """
    text = properties.get(key) or "0"
    try:
        return int(text)
    except ValueError:
        raise IllegalMessage(
            f"property {key} is {text[:100]!r}", expected="a whole number"
        ) from None
