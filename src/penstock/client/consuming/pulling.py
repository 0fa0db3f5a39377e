"""One pull loop for each queue that is held: ask, put what came into the process queue, ask again.

A pull is held by the broker until there is something to bring, so an idle queue has exactly one
request under way. What a step of the loop decides is how long to wait before the next one:

    given up             the loop ends
    not running, paused  the exception delay, a second
    over a limit         50 ms, less when the handlers have made room before
    orderly, not locked  the exception delay
    failed               the exception delay; 20 ms if the broker limits the rate
    found                the pull interval
    nothing found        at once (the broker has held the request, or moved the offset)
    no progress          20 ms, twice as long each time, up to the exception delay
    offset illegal       the queue is repaired and given up; the next rebalance takes it again
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, cast

from penstock.client.consuming.consumer_state import ConsumerState
from penstock.client.consuming.flow_control import Stop
from penstock.client.consuming.message_batches import (
    SMALLEST_PACKED,
    MessageBatch,
    batches_of,
    packed_batches,
)
from penstock.client.consuming.offset_stores import ReadFrom
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.consuming.subscriptions import passes, takes_all
from penstock.client.requests import epoch_of, refusal
from penstock.errors import (
    BodyDamaged,
    PenstockError,
    ProtocolError,
    RecordDamaged,
    SubscriptionNotFound,
    SubscriptionNotLatest,
)
from penstock.model import MessageQueue, StoredMessage, Subscription
from penstock.model.names import Property
from penstock.model.route import MASTER_ID
from penstock.model.subscription import TAG
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.extensions import PULL_BYTES, PULL_COUNT, TOPIC_EPOCH
from penstock.protocol.headers.codec import decode_header
from penstock.protocol.headers.pull import PullFlag, PullMessage, PullMessageResult
from penstock.protocol.records.pulled import alike_records, messages_from_pull
from penstock.runtime.repeated_logs import level_of_repeat

log = logging.getLogger(__name__)

PAUSED_DELAY = 1.0
FLOW_CONTROL_DELAY = 0.05
SLOW_DOWN_DELAY = 0.02
SUSPEND_MS = 15_000
PULL_TIMEOUT = 30.0
HITS_A_LOG_LINE = 1000
USUAL_PULL = 32
"""The default of pullBatchSize."""
LARGEST_PULL = 512
"""Messages our own broker is asked for at once, at most: reading them keeps the loop for well
under a millisecond."""

_MOST_DOUBLINGS = 10
_MIN_OFFSET = Property.MIN_OFFSET.encode()
_MAX_OFFSET = Property.MAX_OFFSET.encode()

FilterHook = Callable[[list[StoredMessage]], list[StoredMessage] | None]
"""Sees what was pulled before it is consumed; returns what is kept (None: all, maybe changed)."""


class Consuming(Protocol):
    """Where pulled messages go."""

    @property
    def batch_size(self) -> int:
        """How many messages go together at most."""

    def submit(
        self, queue: ProcessQueue, batches: Sequence[MessageBatch], *, announced: bool
    ) -> None:
        """Consume a pull; ``announced`` when the queue was idle before."""


class PullCursor:
    """Where the next pull of one queue begins."""

    __slots__ = (
        "broker_id",
        "epoch",
        "failures",
        "flow_stops",
        "next_offset",
        "process_queue",
        "stalls",
        "was_locked",
    )

    def __init__(self, process_queue: ProcessQueue, next_offset: int) -> None:
        self.process_queue = process_queue
        self.next_offset = next_offset
        self.broker_id = MASTER_ID
        self.epoch: int | None = None
        """That of the topic the offset belongs to; None: not known yet."""
        self.was_locked = False
        self.flow_stops = 0
        self.failures = 0
        """How many pulls in a row failed."""
        self.stalls = 0
        """How many answers in a row came at once and brought nothing."""

    @property
    def queue(self) -> MessageQueue:
        return self.process_queue.queue


class Puller:
    """The pull loops of one consumer."""

    def __init__(
        self,
        state: ConsumerState,
        consuming: Consuming,
        *,
        start_offset: Callable[[MessageQueue], Awaitable[int]],
        on_illegal_offset: Callable[[PullCursor], None],
        may_correct: Callable[[ProcessQueue], bool] = lambda queue: queue.count == 0,
        suspend_ms: int = SUSPEND_MS,
        filter_hooks: Sequence[FilterHook] = (),
    ) -> None:
        self._state = state
        self._consuming = consuming
        self._start_offset = start_offset
        self._on_illegal_offset = on_illegal_offset
        self._may_correct = may_correct
        self._suspend_ms = suspend_ms
        self._filter_hooks = tuple(filter_hooks)
        self._pull_bytes = str(state.settings.pull_batch_bytes)

    def begin(self, cursor: PullCursor, delay: float) -> None:
        """Pull a queue from now on, until it is given up."""
        cursor.epoch = self._state.offsets.epochs.get(cursor.queue)
        self._state.tasks.spawn(self._loop(cursor, delay), f"pull {cursor.queue}")

    async def _loop(self, cursor: PullCursor, delay: float) -> None:
        sleep = self._state.clock.sleep
        if delay > 0:
            await sleep(delay)
        while not cursor.process_queue.is_dropped and not self._state.is_stopping:
            try:
                delay = await self._step(cursor)
            except PenstockError as error:
                delay = self._after_failure(cursor, error)
            except Exception:
                log.exception("pull failed queue=%s", cursor.queue)
                delay = self._state.profile.pull_retry_delay
            if delay > 0:
                await sleep(delay)

    def _after_failure(self, cursor: PullCursor, error: PenstockError) -> float:
        if error.code == ResponseCode.FLOW_CONTROL:
            return SLOW_DOWN_DELAY
        if isinstance(error, SubscriptionNotFound | SubscriptionNotLatest):
            # The broker does not know our subscription; do not wait for the next heartbeat.
            self._state.session.heartbeat_soon()
        cursor.failures += 1
        log.log(
            level_of_repeat(cursor.failures),
            "pull failed queue=%s offset=%d failures=%d error=%s",
            cursor.queue,
            cursor.next_offset,
            cursor.failures,
            error,
        )
        return self._state.profile.pull_retry_delay

    async def _step(self, cursor: PullCursor) -> float:
        """One pull, or the reason not to; returns the seconds before the next step."""
        state = self._state
        process_queue = cursor.process_queue
        process_queue.last_pull_at = state.clock.monotonic()
        if not state.is_running:
            return state.profile.pull_retry_delay
        if state.is_paused or cursor.queue in state.paused_queues:
            return PAUSED_DELAY
        if state.is_full:
            return FLOW_CONTROL_DELAY
        stop = state.limits.verdict(process_queue, orderly=state.settings.orderly)
        if stop is not None:
            self._note_stop(cursor, stop)
            await self._wait_for_room(process_queue)
            return 0.0
        if state.settings.orderly and not await self._is_ready_in_order(cursor):
            return state.profile.pull_retry_delay
        wanted = state.subscriptions[cursor.queue.topic]
        if wanted is None:
            return state.profile.pull_retry_delay
        begun = state.clock.monotonic()
        answer = await self._pull(cursor, wanted)
        if process_queue.is_dropped:
            return 0.0
        return await self._take(cursor, wanted, answer, state.clock.monotonic() - begun)

    async def _wait_for_room(self, process_queue: ProcessQueue) -> None:
        """Wait until half of what may be cached is gone, but not longer than the usual delay.

        RocketMQ looks again after 50 ms, and handlers that need less than that for a full queue
        then sit idle. A limit of size or span is looked at by the clock only.
        """
        state = self._state
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go_on() -> None:
            if not room.done():
                room.set_result(None)

        timer = state.clock.call_later(FLOW_CONTROL_DELAY, go_on)
        if process_queue.count > state.limits.count:
            process_queue.when_down_to(state.limits.count // 2, go_on)
        try:
            await room
        finally:
            timer.cancel()
            process_queue.when_down_to(0, None)

    async def _is_ready_in_order(self, cursor: PullCursor) -> bool:
        """Whether an orderly queue may be pulled: locked, and at the offset the broker has."""
        state = self._state
        process_queue = cursor.process_queue
        if not state.settings.is_clustering:
            return True
        if not process_queue.is_locked:
            return False
        if cursor.was_locked:
            return True
        # Between the assignment and the lock another member may have gone on consuming.
        offset = await self._start_offset(cursor.queue)
        if offset < 0 or process_queue.is_dropped:
            return False
        if offset < cursor.next_offset:
            log.info(
                "first orderly pull begins earlier queue=%s planned=%d offset=%d",
                cursor.queue,
                cursor.next_offset,
                offset,
            )
        cursor.was_locked = True
        cursor.next_offset = offset
        return True

    async def _pull(self, cursor: PullCursor, wanted: Subscription) -> Command:
        state = self._state
        settings = state.settings
        queue = cursor.queue
        replica = await state.session.find_broker(queue, cursor.broker_id)
        flags = PullFlag.SUSPEND
        commit_offset = 0
        if settings.is_clustering:
            commit_offset = await state.offsets.read(queue, ReadFrom.MEMORY)
            # A slave keeps no offsets.
            if commit_offset > 0 and replica.is_master:
                flags |= PullFlag.COMMIT_OFFSET
        expression = None
        if settings.post_subscription or wanted.expression_type != TAG:
            if settings.post_subscription:
                flags |= PullFlag.SUBSCRIPTION
            expression = wanted.expression
        return await state.session.calls.pull(
            replica.address,
            PullMessage(
                settings.group,
                queue.topic,
                queue.queue_id,
                cursor.next_offset,
                settings.pull_batch_size,
                flags,
                max(commit_offset, 0),
                self._suspend_ms,
                wanted.version,
                expression,
                wanted.expression_type,
                settings.pull_batch_bytes,
            ),
            PULL_TIMEOUT,
            self._extra(cursor),
        )

    def _extra(self, cursor: PullCursor) -> dict[str, str]:
        """What only our own broker reads."""
        extra = self._more(cursor.process_queue)
        if cursor.epoch is not None:
            extra[TOPIC_EPOCH] = str(cursor.epoch)
        return extra

    def _more(self, process_queue: ProcessQueue) -> dict[str, str]:
        """What our own broker may bring at once: as much as the limits leave room for.

        The request itself names what RocketMQ's client asks for, and other brokers see no more
        than that; of more than 32 they mostly bring 32. A size that the user set is kept.
        """
        state = self._state
        size = state.settings.pull_batch_size
        if size < USUAL_PULL:
            return {}
        room = state.limits.count - process_queue.count
        if not state.settings.orderly:
            room = min(room, state.limits.span - process_queue.reach)
        if room <= USUAL_PULL:
            return {}
        return {
            PULL_BYTES: self._pull_bytes,
            PULL_COUNT: str(min(room, LARGEST_PULL if size == USUAL_PULL else size)),
        }

    async def _take(
        self, cursor: PullCursor, wanted: Subscription, answer: Command, elapsed: float
    ) -> float:
        code = answer.code
        if code not in _PULL_CODES:
            broker = cursor.queue.broker_name
            raise refusal(answer, RequestCode.PULL_MESSAGE, broker, str(cursor.queue))
        result = decode_header(PullMessageResult, answer.ext)
        cursor.broker_id = result.suggest_which_broker_id
        if code == ResponseCode.PULL_OFFSET_MOVED:
            self._offset_is_illegal(cursor, result, epoch_of(answer))
            return 0.0
        if cursor.epoch is None:
            cursor.epoch = epoch_of(answer)
            self._state.offsets.epochs.setdefault(cursor.queue, cursor.epoch)
        if code != ResponseCode.SUCCESS:
            asked, cursor.next_offset = cursor.next_offset, result.next_begin_offset
            delay = self._nothing_found(cursor, asked, elapsed)
        else:
            delay = await self._found(cursor, wanted, answer, result, elapsed)
        cursor.failures = 0
        cursor.process_queue.passed(result.next_begin_offset, result.max_offset)
        return delay

    async def _found(
        self,
        cursor: PullCursor,
        wanted: Subscription,
        answer: Command,
        result: PullMessageResult,
        elapsed: float,
    ) -> float:
        state = self._state
        process_queue = cursor.process_queue
        body = answer.body
        if not isinstance(body, bytes):
            raise ProtocolError(f"a pull answer with a body of type {type(body).__name__}")
        stamp = b"%s\x01%d\x02%s\x01%d\x02" % (
            _MIN_OFFSET,
            result.min_offset,
            _MAX_OFFSET,
            result.max_offset,
        )
        # The cursor moves when the body was read: what cannot be read is asked for again.
        asked = cursor.next_offset
        batches = self._packed(cursor, wanted, body, stamp, result)
        next_offset = result.next_begin_offset
        if not batches:
            messages, is_cut = _messages(process_queue, body, stamp)
            if delta := result.offset_delta or 0:
                for message in messages:
                    message.queue_offset += delta
            if is_cut:
                next_offset = messages[-1].queue_offset + 1
            batches = await self._filtered(cursor, wanted, messages)
        delay = state.settings.pull_interval
        is_stalled = bool(batches) and next_offset <= asked
        if is_stalled:
            batches = self._only_new(cursor, batches)
            next_offset = max([asked, *(batch.last_offset + 1 for batch in batches)])
            delay = self._stalled(cursor)
        cursor.next_offset = next_offset
        if process_queue.is_dropped:
            return 0.0
        count = sum([batch.count for batch in batches])
        state.statistics.pulled(cursor.queue.topic, count, elapsed)
        if not batches:
            # As after an answer without a match: a restart must not look at all of it again.
            return delay if is_stalled else self._nothing_found(cursor, asked, elapsed)
        if not is_stalled:
            cursor.stalls = 0
        _warn_if_backwards(cursor, asked, batches[0].first_offset)
        announced = process_queue.put(batches, result.max_offset)
        self._consuming.submit(process_queue, batches, announced=announced)
        return delay

    def _only_new(self, cursor: PullCursor, batches: Sequence[MessageBatch]) -> list[MessageBatch]:
        """What a broker that leads nowhere brings for the first time.

        Everything else would be handled again and again, as fast as the broker answers.
        """
        log.log(
            level_of_repeat(cursor.stalls + 1),
            "a pull found messages and made no progress queue=%s offset=%d times=%d",
            cursor.queue,
            cursor.next_offset,
            cursor.stalls + 1,
        )
        messages = [message for batch in batches for message in batch.messages]
        return batches_of(
            [message for message in messages if message.queue_offset >= cursor.next_offset],
            self._consuming.batch_size,
        )

    def _stalled(self, cursor: PullCursor) -> float:
        """How long to wait before the next pull of a broker that leads nowhere."""
        wait = SLOW_DOWN_DELAY * (1 << min(cursor.stalls, _MOST_DOUBLINGS))
        cursor.stalls += 1
        return min(wait, self._state.profile.pull_retry_delay)

    def _packed(
        self,
        cursor: PullCursor,
        wanted: Subscription,
        body: bytes,
        stamp: bytes,
        result: PullMessageResult,
    ) -> list[MessageBatch]:
        """The pull as packed batches; none when each message has to be looked at first."""
        size = self._consuming.batch_size
        if (
            size < SMALLEST_PACKED
            or self._filter_hooks
            or result.offset_delta
            or not takes_all(wanted)
            or not self._state.subscriptions.is_as_handled(cursor.queue.topic)
        ):
            return []
        records = alike_records(body, cursor.queue.broker_name, check_crc=True)
        return [] if records is None else packed_batches(records, stamp, size)

    async def _filtered(
        self, cursor: PullCursor, wanted: Subscription, messages: list[StoredMessage]
    ) -> list[MessageBatch]:
        """The messages that are wanted, as batches of one topic each."""
        messages = passes(wanted, messages)
        if self._filter_hooks:
            messages = await self._run_filter_hooks(messages)
        size = self._consuming.batch_size
        subscriptions = self._state.subscriptions
        if subscriptions.is_as_handled(cursor.queue.topic):
            return batches_of(messages, size)
        by_topic: dict[str, list[StoredMessage]] = {}
        for message in messages:
            if not subscriptions.is_of_group(message):
                continue
            subscriptions.restore_topic(message)
            by_topic.setdefault(message.topic, []).append(message)
        return [batch for of_topic in by_topic.values() for batch in batches_of(of_topic, size)]

    async def _run_filter_hooks(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Hooks are a user's code: they run on a thread, not on this loop."""

        def run() -> list[StoredMessage]:
            kept = messages
            for hook in self._filter_hooks:
                try:
                    answer = hook(kept)
                except BaseException:
                    # On the session's loop SystemExit would end everything that runs there.
                    log.exception("filter hook failed hook=%r group=%s", hook, self._state.group)
                    continue
                kept = kept if answer is None else list(answer)
            return kept

        return await asyncio.get_running_loop().run_in_executor(None, run)

    def _nothing_found(self, cursor: PullCursor, asked: int, elapsed: float) -> float:
        """Go on behind what did not match; not at once where a broker leads nowhere."""
        self._correct_offset(cursor)
        wait = SLOW_DOWN_DELAY * (1 << min(cursor.stalls, _MOST_DOUBLINGS))
        wait = min(wait, self._state.profile.pull_retry_delay)
        if cursor.next_offset != asked or elapsed >= wait:
            cursor.stalls = 0
            return 0.0
        cursor.stalls += 1
        return wait

    def _correct_offset(self, cursor: PullCursor) -> None:
        """Nothing matched up to here; with nothing cached, the group stands there.

        With messages cached the offset would pass some that are not consumed.
        """
        if self._may_correct(cursor.process_queue):
            self._state.offsets.update(cursor.queue, cursor.next_offset, increase_only=True)

    def _offset_is_illegal(self, cursor: PullCursor, result: PullMessageResult, epoch: int) -> None:
        text = "pull offset is illegal, starting over"
        if cursor.epoch is not None and epoch > cursor.epoch:
            text = "topic was deleted and created again, beginning at its first message"
        cursor.epoch = self._state.offsets.epochs[cursor.queue] = epoch
        log.warning(
            "%s queue=%s offset=%d next=%d min=%d max=%d",
            text,
            cursor.queue,
            cursor.next_offset,
            result.next_begin_offset,
            result.min_offset,
            result.max_offset,
        )
        cursor.next_offset = result.next_begin_offset
        self._on_illegal_offset(cursor)

    def _note_stop(self, cursor: PullCursor, stop: Stop) -> None:
        self._state.statistics.flow_stops[stop] += 1
        if cursor.flow_stops % HITS_A_LOG_LINE == 0:
            queue = cursor.process_queue
            # Catching up fills a queue once, which is normal; a queue that stays full is not.
            log.log(
                logging.WARNING if cursor.flow_stops else logging.INFO,
                "pulling waits for the handlers queue=%s limit=%s count=%d bytes=%d span=%d "
                "times=%d",
                cursor.queue,
                stop.value,
                queue.count,
                queue.body_bytes,
                queue.span,
                cursor.flow_stops,
            )
        cursor.flow_stops += 1


_PULL_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


def _warn_if_backwards(cursor: PullCursor, asked: int, first: int) -> None:
    """A broker that answers with lower offsets than asked for may repeat that for ever."""
    if cursor.next_offset < asked or first < asked:
        log.warning(
            "a pull went backwards queue=%s offset=%d first=%d next=%d",
            cursor.queue, asked, first, cursor.next_offset,
        )  # fmt: skip


def _messages(
    process_queue: ProcessQueue, body: bytes, stamp: bytes
) -> tuple[list[StoredMessage], bool]:
    """The messages of a pull answer, and whether they end early, before a damaged record.

    What cannot be inflated or split goes to its handler all the same: to stop here would stop the
    queue for good. A damaged body does not, see `listeners.refuse_damaged`.
    """
    damaged: dict[int, BodyDamaged] = {}

    def tell(queue: MessageQueue, queue_offset: int, error: ProtocolError) -> None:
        if isinstance(error, BodyDamaged):
            damaged[queue_offset] = error
        else:
            log.warning(
                "body cannot be opened, its handler gets it as it was stored queue=%s offset=%d "
                "error=%s",
                queue,
                queue_offset,
                error,
            )

    is_cut = False
    try:
        messages = messages_from_pull(
            body,
            process_queue.queue.broker_name,
            check_crc=True,
            keep_unreadable=True,
            tell_unreadable=tell,
            added=stamp,
        )
    except RecordDamaged as error:
        # The messages before it come now; the next pull begins at it, and fails.
        messages = cast(list[StoredMessage], error.intact)
        if not messages:
            raise
        is_cut = True
    if damaged:
        process_queue.note_damaged(damaged)
    return messages, is_cut
