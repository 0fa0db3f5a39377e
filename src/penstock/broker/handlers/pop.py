"""Popping: POP_MESSAGE with long polling, PEEK_MESSAGE, NOTIFICATION, POLLING_INFO.

A pop that finds nothing is held and run again when a message comes; the answer's body is a list of
slices of the log, as that of a pull.
"""

from __future__ import annotations

import functools

from penstock.broker.pop.checks import (
    check_amount,
    check_attempt_id,
    check_readable,
    filter_of,
)
from penstock.broker.pop.held_pops import ANY_QUEUE, HeldPop, HeldPops, PopKey
from penstock.broker.pop.looking import has_messages, peek
from penstock.broker.pop.popping import PopAsk, Popped, pop
from penstock.broker.pop.storing import when_stored
from penstock.broker.state import BrokerState
from penstock.errors import NotFound, PenstockError
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.pop import (
    Notification,
    NotificationResult,
    PeekMessage,
    PollingInfo,
    PollingInfoResult,
    PopMessage,
    PopMessageResult,
)
from penstock.protocol.headers.receipts import (
    ORDERLY_REVIVE_QUEUE,
    FlaggedQueue,
    format_message_offsets,
    format_order_counts,
    format_start_offsets,
)
from penstock.remoting import Promise
from penstock.remoting.dispatch import Call, handles
from penstock.remoting.promise import error_answer

_EARLY_SECONDS = 0.05
"""A hold ends so much before the client's time is up: the answer needs time, too."""
_MAX_HOLD_SECONDS = 60.0
_NOTHING = "NO_MESSAGE_IN_QUEUE"
_FROM_FIRST = 0


@handles(RequestCode.POP_MESSAGE)
def pop_message(broker: BrokerState, ask: PopMessage, call: Call) -> Command | Promise:
    """Messages for a group; held until there are some."""
    try:
        wanted = _wanted(broker, ask)
        popped = pop(broker, wanted)
    except PenstockError as error:
        return error_answer(error, ext=_fields(ask))
    if popped.queues:
        key = _key(ask.topic, ask.consumer_group, ask.queue_id)
        if popped.rest:
            _wake_next(broker.pop.held, key)
        return when_stored(broker, popped.log_end, _found(popped), is_pop=True)
    if ask.poll_time <= 0:
        return _empty(ask, ResponseCode.POLLING_TIMEOUT, popped.rest)
    return _hold(broker, ask, wanted, call, popped)


def _wanted(broker: BrokerState, ask: PopMessage) -> PopAsk:
    """The facts of a request, checked."""
    check_amount(ask.max_msg_nums, ask.invisible_time)
    check_attempt_id(ask.attempt_id)
    check_readable(broker, ask.consumer_group, ask.topic, ask.queue_id)
    return PopAsk(
        ask.consumer_group,
        ask.topic,
        ask.queue_id,
        ask.max_msg_nums,
        ask.invisible_time,
        filter_of(broker, ask.exp, ask.exp_type),
        ask.init_mode == _FROM_FIRST,
        ask.order,
        ask.attempt_id,
    )


def _key(topic: str, group: str, queue_id: int) -> PopKey:
    return topic, group, max(ANY_QUEUE, queue_id)


def _wake_next(held: HeldPops, key: PopKey) -> None:
    if held.count_at(key):
        held.wake_soon(key)


# Long polling


def _hold(
    broker: BrokerState, ask: PopMessage, wanted: PopAsk, call: Call, popped: Popped
) -> Command | Promise:
    held, key = broker.pop.held, _key(ask.topic, ask.consumer_group, ask.queue_id)
    if held.is_released or not held.has_room(key):
        # Also when the broker is stopping: the client waits a second before its next pop.
        return _empty(ask, ResponseCode.POLLING_FULL, popped.rest)
    promise = Promise()
    matches = wanted.filter_
    held.hold(
        HeldPop(
            key,
            _deadline(broker, ask.poll_time),
            functools.partial(_run_again, broker, ask, promise, key),
            matches=None if matches.codes is None and matches.takes is None else matches.matches,
            peer=call.peer,
        )
    )
    if popped.has_moved and popped.rest:
        # The filter rejected what was read so far; go on in the next turn.
        held.wake_soon(key)
    if wanted.is_orderly:
        config = broker.topics.get(ask.topic)
        queues = range(config.read_queue_nums if config else 0)
        for queue_id in queues if ask.queue_id < 0 else (ask.queue_id,):
            broker.pop.wake_orderly_at(ask.topic, ask.consumer_group, queue_id)
    return promise


def _deadline(broker: BrokerState, poll_ms: int) -> float:
    # Counted from the arrival: the client's clock may be wrong.
    hold = min(max(poll_ms / 1000 - _EARLY_SECONDS, 0.0), _MAX_HOLD_SECONDS)
    return broker.clock.monotonic() + hold


def _run_again(
    broker: BrokerState, ask: PopMessage, promise: Promise, key: PopKey, is_last: bool
) -> bool | None:
    """Run a held pop with all checks: permissions may have changed."""
    try:
        popped = pop(broker, _wanted(broker, ask))
    except PenstockError as error:
        promise.resolve(error_answer(error, ext=_fields(ask)))
        return False
    if popped.queues:
        when_stored(broker, popped.log_end, _found(popped), promise, is_pop=True)
        return popped.rest > 0
    if is_last:
        promise.resolve(_empty(ask, ResponseCode.POLLING_TIMEOUT, popped.rest))
        return False
    if popped.has_moved and popped.rest:
        broker.pop.held.wake_soon(key)
    return None


# Answers


def _found(popped: Popped) -> Command:
    queues = popped.queues
    counts: dict[tuple[FlaggedQueue, int | None], int] = {}
    is_orderly = popped.revive_queue_id == ORDERLY_REVIVE_QUEUE
    if is_orderly:
        for queue in queues:
            flagged = FlaggedQueue(queue.flag, queue.queue_id)
            for offset, count in queue.counts.items():
                counts[flagged, offset] = count
            counts[flagged, None] = min(queue.counts.get(offset, 0) for offset in queue.offsets)
    header = PopMessageResult(
        popped.pop_time,
        popped.invisible_ms,
        popped.revive_queue_id,
        popped.rest,
        format_start_offsets(
            {FlaggedQueue(one.flag, one.queue_id): one.start_offset for one in queues}
        ),
        format_message_offsets(
            {FlaggedQueue(one.flag, one.queue_id): one.offsets for one in queues}
        ),
        format_order_counts(counts) if is_orderly else None,
    )
    return Command(
        ResponseCode.SUCCESS, ext=encode_header(header), body=popped.slices, remark="FOUND"
    )


def _empty(ask: PopMessage, code: int, rest: int) -> Command:
    return Command(code, ext=_fields(ask, rest), remark=_NOTHING)


def _fields(ask: PopMessage, rest: int = 0) -> dict[str, str]:
    """The fields that Java's client reads in every answer."""
    return encode_header(PopMessageResult(0, ask.invisible_time, 0, rest, "", ""))


# Looking without taking


@handles(RequestCode.PEEK_MESSAGE)
def peek_message(broker: BrokerState, ask: PeekMessage) -> Command:
    """The next messages of a group, which nothing is noted about."""
    check_readable(broker, ask.consumer_group, ask.topic, ask.queue_id)
    found = peek(broker, ask.consumer_group, ask.topic, ask.queue_id, ask.max_msg_nums)
    ext = encode_header(PopMessageResult(0, 0, 0, found.rest))
    if not found.slices:
        error = NotFound(_NOTHING)
        error.code = ResponseCode.PULL_NOT_FOUND
        return error_answer(error, ext=ext)
    return Command(ResponseCode.SUCCESS, ext=ext, body=found.slices, remark="FOUND")


@handles(RequestCode.NOTIFICATION)
def notification(broker: BrokerState, ask: Notification, call: Call) -> Command | Promise:
    """Whether there is something to pop; held until there is."""
    check_readable(broker, ask.consumer_group, ask.topic, ask.queue_id)
    if _has_messages(broker, ask):
        return _notice(has_messages=True)
    if ask.poll_time <= 0:
        return _notice(has_messages=False)
    held, key = broker.pop.notified, _key(ask.topic, ask.consumer_group, ask.queue_id)
    if held.is_released or not held.has_room(key):
        return _notice(has_messages=False, is_full=True)
    promise = Promise()

    def run(is_last: bool) -> bool | None:
        try:
            is_there = _has_messages(broker, ask)
        except PenstockError as error:
            # The topic may be gone.
            promise.fail(error)
            return False
        if not is_there and not is_last:
            return None
        promise.resolve(_notice(has_messages=is_there))
        return is_there

    held.hold(HeldPop(key, _deadline(broker, ask.poll_time), run, peer=call.peer))
    return promise


def _has_messages(broker: BrokerState, ask: Notification) -> bool:
    return has_messages(
        broker,
        ask.consumer_group,
        ask.topic,
        ask.queue_id,
        filter_of(broker, ask.exp, ask.exp_type),
        is_orderly=ask.order,
        attempt_id=ask.attempt_id,
    )


def _notice(*, has_messages: bool, is_full: bool = False) -> Command:
    return Command(0, ext=encode_header(NotificationResult(has_messages, is_full)))


@handles(RequestCode.POLLING_INFO)
def polling_info(broker: BrokerState, ask: PollingInfo) -> PollingInfoResult:
    """How many pops are held at a queue, or at -1."""
    check_readable(broker, ask.consumer_group, ask.topic, ask.queue_id)
    key = _key(ask.topic, ask.consumer_group, ask.queue_id)
    return PollingInfoResult(broker.pop.held.count_at(key))


@handles(RequestCode.POP_ROLLBACK)
def pop_rollback(broker: BrokerState) -> None:
    """Write pop records of RocksDB into the revive topic: here they are there already."""
