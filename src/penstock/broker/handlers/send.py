"""Sending: single messages, batches, one-way sends, sends to retry topics.

This is the plain path, which serves every kind of send. The usual ones of a queue that has taken a
message before are served by the fast path (`fast_send`), with the same result.
The answer is returned at once; the connection sends it only after the store has written
(`remoting.write_batch`), or, with sync flush, when a promise is resolved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, cast

from penstock.broker.delivery.retries import (
    group_of_retry_topic,
    is_dead_on_send,
    max_reconsume_times,
)
from penstock.broker.delivery.schedule_records import delayed
from penstock.broker.handlers.fast_send import SENDER_FLAGS, FastSend, born_host, refused
from penstock.broker.handlers.new_topics import TopicMade
from penstock.broker.handlers.send_checks import (
    batch_items,
    checked_body,
    queue_of_send,
    refuse_if_slave,
    unreadable_batch,
)
from penstock.broker.repeated_sends import (
    RepeatMark,
    find_parked,
    find_repeated,
    find_repeated_batch,
    possible_repeats,
    repeat_mark,
    split_repeated,
)
from penstock.broker.send_rules import (
    BATCH_MARKS,
    Effects,
    check_half,
    effects_of,
    transaction_in_batch,
)
from penstock.broker.state import BrokerState
from penstock.broker.storage import Answered
from penstock.broker.tables.topics import TOPICS_FILE
from penstock.broker.timers.admission import (
    MAX_SLOT_UNITS,
    TIMER_KEYS,
    admitted_slot,
    parked,
    refuse_crowded,
)
from penstock.broker.transactions.half_records import prepared
from penstock.errors import (
    IllegalMessage,
    NoPermission,
    PenstockError,
    ProtocolError,
    SystemBusy,
)
from penstock.model.names import RETRY_PREFIX, TIMER_TOPIC, Property, dead_letter_topic
from penstock.model.properties import encode_properties, parse_properties
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.extensions import REPEAT, SHORT_RECEIPT
from penstock.protocol.half_messages import HalfMessage, read_half
from penstock.protocol.headers.codec import decode_header
from penstock.protocol.headers.send import SendMessage, decode_send_v2
from penstock.protocol.recall_handles import encode_handle
from penstock.protocol.records.batches import BatchItem
from penstock.protocol.records.sys_flags import SysFlag
from penstock.protocol.send_answers import SendAnswers
from penstock.remoting import Peer, Promise
from penstock.store import Appended, Draft

_NO_EXT: Final[Mapping[str, str]] = {}
_NO_EFFECTS: Final = Effects()


class _Stored(NamedTuple):
    """What a send has stored, as the answer names it."""

    msg_ids: str
    queue_id: int
    queue_offset: int
    unique_id: str
    end: int
    waits_for_disk: bool
    half: tuple[HalfMessage, Appended] | None = None
    """For a message of a transaction, which is open from the write on."""
    recall_handle: str | None = None


class Sending:
    """SEND_MESSAGE in its three forms."""

    def __init__(self, broker: BrokerState) -> None:
        config = broker.config
        self._broker = broker
        self._storage = broker.storage
        self._stamp = broker.broker_properties.stamp
        self._answers = SendAnswers(
            id_prefix=broker.store_host.hex().upper(),
            region=config.region_id,
            trace_on=config.trace_on,
        )
        self.fast = FastSend(broker, self._answers)

    # Request codes

    def send_v1(self, peer: Peer, command: Command) -> Command | Promise:
        """SEND_MESSAGE: the header with whole names."""
        ext = command.ext or _NO_EXT
        ask = decode_header(SendMessage, ext)
        if ext.get("batch") == "1":
            # The C++ client writes true this way. Java reads it as false, so its broker stores the
            # whole batch as one message that no consumer can read.
            ask.batch = True
        return self._send(peer, command, ask)

    def send_v2(self, peer: Peer, command: Command) -> Command | Promise:
        """SEND_MESSAGE_V2: the header in single letters."""
        return self._send(peer, command, decode_send_v2(command.ext))

    # Steps

    def _send(
        self, peer: Peer, command: Command, ask: SendMessage, promise: Promise | None = None
    ) -> Command | Promise:
        """``promise`` is the answer to a request that had to wait."""
        try:
            refuse_if_slave(self._broker)
            if promise is None and self._may_be_unseen(ask):
                return self._send_later(peer, command, ask)
            is_new_topic = ask.topic not in self._broker.topics
            stored = (self._store_batch if ask.batch else self._store_single)(peer, command, ask)
        except PenstockError as error:
            return refused(error, self._answers)
        if not is_new_topic:
            self.fast.enable_fast_path(ask)
        ext = self._answers.ext(
            stored.msg_ids, stored.queue_id, stored.queue_offset, stored.unique_id
        )
        if stored.recall_handle is not None:
            ext["recallHandle"] = stored.recall_handle
        return self._acknowledge(
            Command(0, ext=ext), stored, promise or Promise(), is_new_topic=is_new_topic
        )

    def _may_be_unseen(self, ask: SendMessage) -> bool:
        """Whether a request repeats one whose messages may be stored but cannot be found yet.

        Both may arrive in one loop turn. With synchronous flush messages are found when they are on
        the disk, and a slow disk is why producers send again.
        """
        if REPEAT not in (ask.properties or ""):
            return False
        self._storage.write()
        store = self._storage.store
        return self._storage.is_sync_flush and store.flushed_position < store.max_position

    def _send_later(self, peer: Peer, command: Command, ask: SendMessage) -> Promise:
        """Serve a request when all that is in the log is on the disk."""
        promise = Promise()

        def send() -> Command | Promise:
            return self._send(peer, command, ask, promise)

        waiting = _Later(promise, send, self._answers)
        self._storage.when_on_disk(self._storage.store.max_position, waiting, Command(0))
        return promise

    def _store_single(self, peer: Peer, command: Command, ask: SendMessage) -> _Stored:
        queue_id = queue_of_send(self._broker, ask)
        body = checked_body(self._broker, command)
        text, unique_id, ruled = self._stamp(ask.properties or "")
        draft = Draft(
            ask.topic,
            queue_id,
            body,
            text.encode(),
            ask.flag,
            ask.sys_flag & SENDER_FLAGS,
            ask.born_timestamp,
            born_host(peer),
            self._broker.store_host,
            ask.reconsume_times,
            0,
        )
        is_dead = ask.topic.startswith(RETRY_PREFIX) and self._is_dead(command, ask)
        if is_dead:
            draft = draft._replace(topic=self._dead_letter_topic(ask), queue_id=0)
        topic, queue_id = draft.topic, draft.queue_id
        effects = _NO_EFFECTS
        recall_handle = None
        if ruled is not None:
            effects = self._effects_of(ruled, is_batch=False)
            if Property.PRIORITY in ruled:
                draft = self._by_priority(draft, ruled, effects)
                queue_id = draft.queue_id
            # Consumers before 4.6.1 send a failed message again with all its properties.
            is_retry = ask.reconsume_times > 0 and effects.delay_level > 0
            if effects.is_half and not is_retry:
                return self._store_half(draft, ruled, unique_id, effects, ask)
            if effects.delay_level:
                for key in TIMER_KEYS:
                    ruled.pop(key, None)
            if effects.delay_level and is_dead:
                # It was to be retried later, and is a dead letter instead.
                ruled[Property.DELAY] = "0"
                draft = draft._replace(properties=encode_properties(ruled))
            elif effects.delay_level:
                levels = self._broker.delay_levels
                draft = delayed(draft, ruled, effects.delay_level, levels)
            elif effects.deliver_ms is not None and not is_dead:
                draft, recall_handle = self._park(draft, ruled, effects, unique_id)
            if before := self._stored_before(ask, draft, unique_id, topic, effects):
                return before
        log_position, queue_offset, size, _ = self._storage.append(draft)
        if draft.topic == TIMER_TOPIC:
            self._broker.timers.parked()
        self._broker.stats.put(topic, queue_id, size)
        return _Stored(
            self._answers.ids([log_position]),
            queue_id,
            queue_offset,
            unique_id,
            log_position + size,
            effects.waits_for_disk,
            recall_handle=recall_handle,
        )

    def _store_half(
        self,
        draft: Draft,
        properties: dict[str, str],
        unique_id: str,
        effects: Effects,
        ask: SendMessage,
    ) -> _Stored:
        """Store a message of a transaction where no consumer sees it."""
        broker = self._broker
        if broker.config.reject_transaction_message:
            host = broker.address.rpartition(":")[0]
            raise NoPermission(f"the broker[{host}] sending transaction message is forbidden")
        check_half(properties)
        stored, properties = prepared(draft, properties)
        if before := self._stored_before(ask, stored, unique_id, draft.topic, effects):
            return before
        half = read_half(properties, broker.transactions.timeout_ms)
        assert half is not None, "it names its topic"
        appended = self._storage.append(stored)
        broker.stats.put(stored.topic, stored.queue_id, appended.size)
        return _Stored(
            self._answers.ids([appended.log_position]),
            draft.queue_id,
            appended.queue_offset,
            unique_id,
            appended.log_position + appended.size,
            effects.waits_for_disk,
            (half, appended),
        )

    def _park(
        self, draft: Draft, properties: dict[str, str], effects: Effects, unique_id: str
    ) -> tuple[Draft, str | None]:
        """A timer message as it is stored until it is due, and the handle that recalls it."""
        config = self._broker.config
        is_retry = draft.topic.startswith(RETRY_PREFIX)
        if is_retry and Property.TIMER_OUT_MS in properties:
            return draft, None  # It was delivered in time once; only its first delivery waits.
        assert effects.deliver_ms is not None
        slot_ms = admitted_slot(properties, effects.deliver_ms, effects.now_ms, config)
        if slot_ms is None:
            if properties.pop(Property.TIMER_OUT_MS, None) is not None:
                draft = draft._replace(properties=encode_properties(properties))
            return draft, None
        limit = config.timer_congest_num_each_slot
        if limit < MAX_SLOT_UNITS:
            chance = self._broker.random_below(1 << 16) / (1 << 16)
            refuse_crowded(self._broker.timers.units_in(slot_ms), limit, chance)
        handle = None
        if not is_retry:
            handle = encode_handle(draft.topic, config.broker_name, slot_ms + 1, unique_id)
        return parked(draft, properties, slot_ms), handle

    def _stored_before(
        self, ask: SendMessage, draft: Draft, unique_id: str, topic: str, effects: Effects
    ) -> _Stored | None:
        """The receipt of the message that a send repeats; None if it was not stored yet."""
        mark = self._repeat_mark(ask)
        if mark is None:
            return None
        store = self._storage.store
        record = find_repeated(store, draft, unique_id, mark.since_ms)
        if record is None and effects.deliver_ms is not None and draft.topic == topic:
            record = find_parked(store, draft, unique_id, mark.since_ms)
        if record is None:
            return None
        properties = parse_properties(record.properties)
        handle, queue_id = None, record.queue_id
        if record.topic != topic:
            queue_id = int(properties.get(Property.REAL_QUEUE_ID, "0"))
        if record.topic == TIMER_TOPIC and not topic.startswith(RETRY_PREFIX):
            time_ms = int(properties[Property.TIMER_OUT_MS]) + 1
            handle = encode_handle(topic, self._broker.config.broker_name, time_ms, unique_id)
        return _Stored(
            self._answers.ids([record.log_position]),
            queue_id,
            record.queue_offset,
            unique_id,
            record.log_position + record.size,
            waits_for_disk=False,  # With synchronous flush it is found only on the disk.
            recall_handle=handle,
        )

    def _by_priority(self, draft: Draft, properties: dict[str, str], effects: Effects) -> Draft:
        """The draft for the queue of its priority; the property of other kinds is removed."""
        is_plain = (
            effects.priority is not None
            and not effects.delay_level
            and effects.deliver_ms is None
            and Property.SHARDING_KEY not in properties
            and properties.get(Property.TRANSACTION_PREPARED, "").lower() != "true"
        )
        config = self._broker.topics.get(draft.topic)
        if is_plain and effects.priority is not None and config is not None:
            last = max(0, config.write_queue_nums - 1)
            return draft._replace(queue_id=min(effects.priority, last))
        del properties[Property.PRIORITY]
        return draft._replace(properties=encode_properties(properties))

    def _store_batch(self, peer: Peer, command: Command, ask: SendMessage) -> _Stored:
        if ask.topic.startswith(RETRY_PREFIX):
            raise IllegalMessage(
                f"a batch for the retry topic {ask.topic}", expected="single sends"
            )
        _, unique_id, ruled = self._stamp(ask.properties or "")
        effects = _NO_EFFECTS if ruled is None else self._effects_of(ruled, is_batch=True)
        if ask.sys_flag & SysFlag.TRANSACTION_MASK:
            raise transaction_in_batch()
        queue_id = queue_of_send(self._broker, ask)
        body = checked_body(self._broker, command)
        draft = Draft(
            ask.topic,
            queue_id,
            b"",
            b"",
            ask.flag,
            ask.sys_flag & SENDER_FLAGS,
            ask.born_timestamp,
            born_host(peer),
            self._broker.store_host,
            ask.reconsume_times,
            0,
        )
        missing: list[BatchItem] | None = None
        if ruled is not None and (mark := self._repeat_mark(ask)):
            before, missing = self._batch_stored_before(mark, draft, body, unique_id)
            if before is not None:
                return before
        # Nearly every batch is stored straight from its body; else the items tell what is unusual.
        stored = None
        if missing is None:
            stored = self._storage.append_batch_body(draft, body, BATCH_MARKS)
        if stored is not None:
            positions, queue_offset, total, last = stored
        else:
            items = batch_items(body) if missing is None else missing
            appended = self._storage.append_batch(draft, items)
            positions = [one.log_position for one in appended]
            queue_offset, last = appended[0].queue_offset, appended[-1]
            total = sum(one.size for one in appended)
        self._broker.stats.put(ask.topic, queue_id, total, len(positions))
        if SHORT_RECEIPT in (command.ext or _NO_EXT):
            positions = positions[:1]
        return _Stored(
            self._answers.ids(positions),
            queue_id,
            queue_offset,
            unique_id,
            last.log_position + last.size,
            effects.waits_for_disk,
        )

    def _batch_stored_before(
        self, mark: RepeatMark, draft: Draft, body: bytes, unique_id: str
    ) -> tuple[_Stored | None, list[BatchItem] | None]:
        """The receipt of the batch that another repeats, or else what of it is to be stored."""
        store = self._storage.store
        missing: list[BatchItem] | None = None
        if mark.is_each:
            try:
                possible = possible_repeats(store, draft.topic, body)
            except ProtocolError as error:
                raise unreadable_batch(error) from error
            if not possible:
                return None, None
            records, missing = split_repeated(store, draft, batch_items(body), set(possible))
            if not records:
                return None, None
            if missing:
                return None, missing
            positions = [record.log_position for record in records]
            queue_id, queue_offset = records[0].queue_id, records[0].queue_offset
        else:
            try:
                before = find_repeated_batch(store, draft, body, mark.since_ms)
            except ProtocolError as error:
                raise unreadable_batch(error) from error
            if before is None:
                return None, None
            positions, queue_id, queue_offset = before
        ids, end = self._answers.ids(positions), positions[-1]
        return _Stored(ids, queue_id, queue_offset, unique_id, end, waits_for_disk=False), None

    def _repeat_mark(self, ask: SendMessage) -> RepeatMark | None:
        """How a request may repeat an earlier one; asked for those with a ruled property only."""
        return repeat_mark(ask.properties, self._broker.clock.time_ms())

    def _effects_of(self, properties: Mapping[str, str], *, is_batch: bool) -> Effects:
        return effects_of(
            properties,
            is_batch=is_batch,
            now_ms=self._broker.clock.time_ms(),
        )

    def _acknowledge(
        self, answer: Command, stored: _Stored, promise: Promise, *, is_new_topic: bool
    ) -> Command | Promise:
        waits = stored.waits_for_disk and self._storage.is_sync_flush
        if not waits and not is_new_topic and stored.half is None:
            return answer
        target: Answered = promise
        if is_new_topic:
            made = target = TopicMade(promise)
            self._broker.tables.when_saved(TOPICS_FILE, made.saved, made.fail)
            self._broker.when_topics_known(made.known, ())
        if stored.half is not None:
            target = self._broker.transactions.adding(*stored.half, target)
        if waits:
            self._storage.when_on_disk(stored.end, target, answer)
        else:
            self._storage.when_written(target, answer)
        return promise

    # Sends to retry topics

    def _is_dead(self, command: Command, ask: SendMessage) -> bool:
        """Whether a message for a retry topic has been tried often enough."""
        group = group_of_retry_topic(ask.topic)
        assert group is not None, "asked for retry topics only"
        config = self._broker.groups.require(group)
        limit = max_reconsume_times(
            ask.max_reconsume_times, command.version, config.retry_max_times
        )
        is_orderly = self._broker.locks.is_orderly(group, self._broker.clock.monotonic())
        return is_dead_on_send(ask.reconsume_times, limit, group_is_orderly=is_orderly)

    def _dead_letter_topic(self, ask: SendMessage) -> str:
        group = ask.topic.removeprefix(RETRY_PREFIX)
        dead = dead_letter_topic(group)
        self._broker.topics.ensure(dead, 1, self._broker.config.dead_letter_permission)
        self._broker.stats.dead_letter(group, ask.topic)
        return dead


class _Later:
    """Serves a request when the log is on the disk."""

    __slots__ = ("_answers", "_promise", "_send")

    def __init__(
        self, promise: Promise, send: Callable[[], Command | Promise], answers: SendAnswers
    ) -> None:
        self._promise = promise
        self._send = send
        self._answers = answers

    def resolve(self, answer: Command) -> bool:
        if answer.code == ResponseCode.FLUSH_DISK_TIMEOUT:
            # Whether the message is stored is not known; the producer asks once more.
            return self.fail(SystemBusy("the disk is slow, the first request is not on it yet"))
        result = self._send()
        return result is self._promise or self._promise.resolve(cast("Command", result))

    def fail(self, error: PenstockError) -> bool:
        return self._promise.resolve(refused(error, self._answers))
