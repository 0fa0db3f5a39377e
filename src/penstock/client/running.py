"""What a consumer tells about itself, and a single message handled on an operator's word."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from penstock.client.flow_control import MIB
from penstock.client.listeners import Job
from penstock.client.outcomes import ConsumeResult, Outcome, ReturnType
from penstock.client.process_queue import ProcessQueue
from penstock.model import StoredMessage
from penstock.protocol.bodies.common import SubscriptionData
from penstock.protocol.bodies.running import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    DirectResult,
    ProcessQueueInfo,
    RunningProperty,
)

if TYPE_CHECKING:
    from penstock.client.push_consumer import PushConsumerCore

VERSION_NAME = "V5_3_3"


def running_info(consumer: PushConsumerCore, *, with_stacks: bool = False) -> ConsumerRunningInfo:
    """Everything an operator may ask a running consumer."""
    state, settings = consumer.state, consumer.settings
    offsets = state.offsets.snapshot()
    return ConsumerRunningInfo(
        properties={
            RunningProperty.NAMESRV: ";".join(consumer.session.nameservers.addresses),
            RunningProperty.CONSUME_TYPE: "CONSUME_PASSIVELY",
            RunningProperty.CLIENT_VERSION: VERSION_NAME,
            RunningProperty.THREADS: str(settings.threads),
            RunningProperty.ORDERLY: str(settings.orderly).lower(),
            RunningProperty.START_TIMESTAMP: str(consumer.started_ms),
        },
        subscription_set=tuple(SubscriptionData.of(s) for s in state.subscriptions.all),
        mq_table={
            queue: _queue_info(consumer, held, offsets.get(queue, 0))
            for queue, held in sorted(state.queues.items())
        },
        status_table={
            topic: state.statistics.status(topic) for topic in state.subscriptions.topics
        },
        stack_trace=_stacks() if with_stacks else None,
    )


def _queue_info(consumer: PushConsumerCore, held: ProcessQueue, committed: int) -> ProcessQueueInfo:
    clock = consumer.session.clock
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
    """Hand one message to its handler, outside of any queue, and tell what it said."""
    clock = consumer.session.clock
    queue = ProcessQueue(message.queue, clock.monotonic())
    job = Job(queue, [message], consumer.listener_for(message.topic), consumer.group)
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
