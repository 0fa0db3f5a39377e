"""Running info of a consumer for operators, and a single message consumed at their request."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING

import orjson

from penstock.client.consuming.consumer_state import ConsumerState
from penstock.client.consuming.flow_control import MIB
from penstock.client.consuming.listeners import Job
from penstock.client.consuming.message_batches import MessageBatch
from penstock.client.consuming.outcomes import ConsumeResult, Outcome, ReturnType
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.settings import ConsumerSettings
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import Property
from penstock.protocol.bodies.common import SubscriptionData
from penstock.protocol.bodies.running import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    DirectResult,
    ProcessQueueInfo,
    RunningProperty,
)
from penstock.protocol.extensions import RunningExtension
from penstock.runtime.clock import Clock

if TYPE_CHECKING:
    from penstock.client.consuming.push_consumer import PushConsumerCore

VERSION_NAME = "V5_3_3"


def running_info(consumer: PushConsumerCore, *, with_stacks: bool = False) -> ConsumerRunningInfo:
    """Everything an operator may ask a running push consumer."""
    state, settings = consumer.state, consumer.settings
    return _info(
        state,
        {
            RunningProperty.CONSUME_TYPE: "CONSUME_PASSIVELY",
            RunningProperty.THREADS: str(settings.threads),
            RunningProperty.ORDERLY: _flag(settings.orderly),
            RunningProperty.START_TIMESTAMP: str(consumer.started_ms),
            RunningExtension.PAUSED: _flag(state.is_paused),
            RunningExtension.MODE: "pop" if consumer.pop_loops.queues else "pull",
            **_handlers(consumer),
        },
        with_stacks=with_stacks,
    )


def polled_info(
    state: ConsumerState,
    started_ms: int,
    paused: Iterable[MessageQueue],
    *,
    mode: str = "pull",
    with_stacks: bool = False,
) -> ConsumerRunningInfo:
    """The same of a consumer that is asked for messages, which has no handlers."""
    return _info(
        state,
        {
            RunningProperty.CONSUME_TYPE: "CONSUME_ACTIVELY",
            RunningProperty.START_TIMESTAMP: str(started_ms),
            RunningExtension.PAUSED_QUEUES: _json(sorted(map(str, paused))),
            RunningExtension.MODE: mode,
        },
        with_stacks=with_stacks,
    )


def _info(
    state: ConsumerState, properties: dict[str, str], *, with_stacks: bool
) -> ConsumerRunningInfo:
    offsets = state.offsets.snapshot()
    return ConsumerRunningInfo(
        properties={
            RunningProperty.NAMESRV: ";".join(state.session.nameservers.addresses),
            RunningProperty.CLIENT_VERSION: VERSION_NAME,
            **_settings(state.settings),
            **_flow(state),
            **_last_failure(state),
            RunningExtension.CLOCK: str(state.clock.time_ms()),
            RunningExtension.REFUSED_LOCKS: _json(
                {str(queue): owner for queue, owner in sorted(state.refused_locks.items())}
            ),
            **properties,
        },
        subscription_set=tuple(SubscriptionData.from_model(s) for s in state.subscriptions.all),
        mq_table={
            queue: _queue_info(state.clock, held, offsets.get(queue, 0))
            for queue, held in sorted(state.queues.items())
        },
        status_table={
            topic: state.statistics.status(topic) for topic in state.subscriptions.topics
        },
        stack_trace=_stacks() if with_stacks else None,
    )


def _settings(settings: ConsumerSettings) -> dict[str, str]:
    """Settings under their names in Java."""
    return {
        "consumerGroup": settings.group,
        "messageModel": settings.model.upper(),
        "consumeFromWhere": settings.start_from.wire_name,
        "allocateMessageQueueStrategy": settings.allocation.name,
        "consumeConcurrentlyMaxSpan": str(settings.max_span),
        "pullThresholdForQueue": str(settings.queue_limit),
        "pullThresholdForTopic": str(_or_none(settings.topic_limit)),
        "pullThresholdSizeForQueue": str(settings.queue_limit_mib),
        "pullThresholdSizeForTopic": str(_or_none(settings.topic_limit_mib)),
        "pullBatchSize": str(settings.pull_batch_size),
        "consumeMessageBatchMaxSize": str(settings.batch_size),
        "maxReconsumeTimes": str(_or_none(settings.max_retries)),
        # Whole minutes, as Java has them.
        "consumeTimeout": str(max(1, round(settings.consume_timeout / 60))),
    }


def _flow(state: ConsumerState) -> dict[str, str]:
    stops = {stop.value: count for stop, count in state.statistics.flow_stops.items()}
    stopped = {}
    for queue, held in sorted(state.queues.items()):
        stop = state.limits.verdict(held, orderly=state.settings.orderly)
        if stop is not None:
            stopped[str(queue)] = stop.value
    return {
        RunningExtension.FLOW_STOPS: _json(stops),
        RunningExtension.STOPPED_QUEUES: _json(stopped),
    }


def _last_failure(state: ConsumerState) -> dict[str, str]:
    failure = state.statistics.last_failure
    if failure is None:
        return {}
    details = {
        "queue": str(failure.queue),
        "msgId": failure.msg_id,
        "reason": failure.reason,
        "agoMs": max(0, state.clock.time_ms() - failure.at_ms),
    }
    return {RunningExtension.LAST_FAILURE: _json(details)}


def _handlers(consumer: PushConsumerCore) -> dict[str, str]:
    """How many handlers run, and which message the longest-running one has."""
    calls = calls_under_way(consumer)
    found = {RunningExtension.RUNNING: str(len(calls))}
    now_ms = consumer.session.clock.time_ms()
    longest: tuple[int, Job] | None = None
    for job in calls:
        started = job.messages[0].peek(Property.CONSUME_START_TIME)
        if started is not None and (longest is None or int(started) < longest[0]):
            longest = int(started), job
    if longest is not None:
        started_ms, job = longest
        first = job.messages[0]
        found[RunningExtension.LONGEST_RUNNING] = _json(
            {
                "queue": str(job.process_queue.queue),
                "offset": first.queue_offset,
                "msgId": first.msg_id,
                "runningMs": max(0, now_ms - started_ms),
            }
        )
    return found


def calls_under_way(consumer: PushConsumerCore) -> list[Job]:
    """The handler calls that run now, one for each thread or task at work."""
    return [job for job in map(_current, consumer.running) if job is not None]


def _current(job: Job | None) -> Job | None:
    """The call of a chain that is under way."""
    while job is not None and job.outcome is not None:
        job = job.follower
    return job if job is not None and job.started else None


def _or_none(setting: int | None) -> int:
    """Java's value for a limit that is not set."""
    return -1 if setting is None else setting


def _flag(value: bool) -> str:
    return str(value).lower()


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def _queue_info(clock: Clock, held: ProcessQueue, committed: int) -> ProcessQueueInfo:
    to_wall = clock.time() - clock.monotonic()
    cached, taken = held.cached_range, held.taken_range
    return ProcessQueueInfo(
        commit_offset=committed,
        cached_min_offset=cached[0],
        cached_max_offset=cached[1],
        cached_count=cached[2],
        cached_mib=held.body_bytes // MIB,
        transaction_min_offset=taken[0],
        transaction_max_offset=taken[1],
        transaction_count=taken[2],
        locked=held.is_locked,
        try_unlock_times=held.unlock_attempts,
        last_lock_timestamp=round((held.last_lock_at + to_wall) * 1000),
        dropped=held.is_dropped,
        last_pull_timestamp=round((held.last_pull_at + to_wall) * 1000),
        last_consume_timestamp=round((held.last_consume_at + to_wall) * 1000),
    )


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame))
        parts.append(f"{names.get(ident, ident)}\n{stack}")
    return "\n".join(parts)


_DIRECT = {
    ConsumeResult.SUCCESS: DirectResult.CR_SUCCESS,
    ConsumeResult.RECONSUME_LATER: DirectResult.CR_LATER,
    ConsumeResult.SUSPEND: DirectResult.CR_LATER,
    ConsumeResult.COMMIT: DirectResult.CR_COMMIT,
    ConsumeResult.ROLLBACK: DirectResult.CR_ROLLBACK,
}


async def consume_once(consumer: PushConsumerCore, message: StoredMessage) -> ConsumeDirectlyResult:
    """Call the handler with one message, outside of any queue, and return its result."""
    clock = consumer.session.clock
    queue = ProcessQueue(message.queue, clock.monotonic())
    job = Job(
        queue, MessageBatch.of([message]), consumer.listener_for(message.topic), consumer.group
    )
    finished = asyncio.get_running_loop().create_future()

    def done(jobs: list[Job]) -> None:
        if not finished.done():
            finished.set_result(None)

    executor = consumer.make_executor(consumer.caller, done, job.listener.is_async)
    try:
        executor.submit([job])
        await finished
    finally:
        await executor.close()
    outcome = job.outcome or Outcome(ConsumeResult.RECONSUME_LATER, ReturnType.EXCEPTION)
    for _, refusal in job.refused:
        outcome = refusal
    return ConsumeDirectlyResult(
        consume_result=_direct_result(outcome),
        order=consumer.settings.orderly,
        auto_commit=job.auto_commit,
        spent_time_ms=round(job.elapsed * 1000),
        remark=None if outcome.error is None else "".join(_error_lines(outcome.error)),
    )


def _direct_result(outcome: Outcome) -> DirectResult:
    if outcome.return_type is ReturnType.EXCEPTION:
        return DirectResult.CR_THROW_EXCEPTION
    if outcome.return_type is ReturnType.RETURNNULL:
        return DirectResult.CR_RETURN_NULL
    return _DIRECT[outcome.result]


def _error_lines(error: BaseException) -> list[str]:
    return traceback.format_exception(error)[-20:]
