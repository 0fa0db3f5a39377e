"""Orderly handlers: locks, one call a queue, suspension, commits, giving queues up."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.support.loop_clients import Bench, on_bench

from penstock.client.consuming.outcomes import ConsumeContext, ConsumeResult, DeadLetter, RetryLater
from penstock.client.consuming.push_consumer import PushConsumerCore
from penstock.client.middleware import HandlerCall, Middleware
from penstock.client.settings import PROFILES, StartFrom
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import Failure
from penstock.model.properties import parse_properties
from penstock.protocol.bodies.clients import LockBatch, LockBatchReply
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.remoting.peer import Peer
from penstock.remoting.promise import Promise
from penstock.testing.eventually import eventually

GROUP = "billing"
RETRY = "%RETRY%billing"
LOCK = RequestCode.LOCK_BATCH_MQ
UNLOCK = RequestCode.UNLOCK_BATCH_MQ
UNREGISTER = RequestCode.UNREGISTER_CLIENT
PULL = RequestCode.PULL_MESSAGE
FIRST = StartFrom("first")
QUEUE = MessageQueue("T", "broker-a", 0)
one_queue = on_bench(topics={"T": 1})
IN_ORDER: dict[str, Any] = {"orderly": True, "start_from": FIRST}


class Watcher:
    """Notes when calls for each queue begin and end."""

    def __init__(self, bench: Bench, seconds: float = 0.0) -> None:
        self.bench = bench
        self.seconds = seconds
        self.calls: list[tuple[MessageQueue, int, float, float]] = []
        self.running: dict[MessageQueue, int] = {}
        self.overlapped = False

    async def __call__(self, message: StoredMessage) -> None:
        queue = message.queue
        self.running[queue] = self.running.get(queue, 0) + 1
        self.overlapped = self.overlapped or self.running[queue] > 1
        begun = self.bench.loop.time()
        if self.seconds:
            await asyncio.sleep(self.seconds)
        self.running[queue] -= 1
        self.calls.append((queue, message.queue_offset, begun, self.bench.loop.time()))

    def offsets(self, queue: MessageQueue = QUEUE) -> list[int]:
        return [offset for of, offset, _, _ in self.calls if of == queue]


def refuse_locks(peer: Peer, request: Command) -> Command:
    return Command(ResponseCode.SUCCESS, body=encode_body(LockBatchReply(())))


def committed(consumer: PushConsumerCore) -> int | None:
    return consumer.state.offsets.snapshot().get(QUEUE)


def add_member(bench: Bench, name: str = "c2") -> None:
    bench.broker.members[GROUP][f"127.0.0.1@{name}"] = bench.broker.peers[0]
    bench.broker.notify_members_changed(GROUP)


@pytest.mark.spec("S125", "S134", "S138")
@on_bench()
async def test_each_queue_is_in_order_and_queues_are_parallel(bench: Bench) -> None:
    for queue_id in range(4):
        bench.broker.put("T", queue_id, *[b"x"] * 20)
    watcher = Watcher(bench, 0.1)
    await bench.consumer(watcher, **IN_ORDER)
    await asyncio.sleep(10)
    assert not watcher.overlapped
    for queue_id in range(4):
        queue = MessageQueue("T", "broker-a", queue_id)
        assert watcher.offsets(queue) == list(range(20))
    starts = sorted(begun for _, offset, begun, _ in watcher.calls if offset == 10)
    assert starts[-1] - starts[0] < 0.5


@pytest.mark.spec("S126")
@on_bench()
async def test_a_queue_is_locked_before_it_is_pulled(bench: Bench) -> None:
    await bench.consumer(Watcher(bench), orderly=True)
    await asyncio.sleep(3)
    for queue_id in range(4):
        queue = MessageQueue("T", "broker-a", queue_id)
        lock = next(
            i
            for i, request in enumerate(bench.broker.requests)
            if request.code == LOCK and queue in decode_body(LockBatch, request.body).mq_set
        )
        pull = next(
            i
            for i, request in enumerate(bench.broker.requests)
            if request.code == PULL and request.ext["queueId"] == str(queue_id)
        )
        assert lock < pull


@pytest.mark.spec("S126")
@one_queue
async def test_a_refused_lock_keeps_the_queue_from_being_pulled_until_it_is_granted(
    bench: Bench,
) -> None:
    bench.broker.script[LOCK] = refuse_locks
    consumer = await bench.consumer(Watcher(bench), orderly=True)
    await asyncio.sleep(5)
    assert not bench.broker.asked(PULL)
    assert consumer.assignment() == set()
    del bench.broker.script[LOCK]
    await asyncio.sleep(3)
    assert bench.broker.asked(PULL)


@pytest.mark.parametrize("code", [ResponseCode.QUERY_NOT_FOUND, ResponseCode.SYSTEM_ERROR])
@one_queue
async def test_a_lock_that_is_granted_during_the_stop_is_given_back(
    bench: Bench, code: int
) -> None:
    asked: list[Promise] = []

    def hold(peer: Peer, request: Command) -> Promise:
        asked.append(Promise())
        return asked[-1]

    bench.broker.script[RequestCode.QUERY_CONSUMER_OFFSET] = hold
    consumer = await bench.consumer(Watcher(bench), orderly=True)
    await eventually(lambda: asked, 20, interval=0.01)
    assert bench.broker.locks
    stopping = asyncio.create_task(consumer.stop())
    await asyncio.sleep(0.1)
    asked[0].resolve(Command(code))
    await stopping
    # The next consumer of the group need not wait until it expires.
    assert not bench.broker.locks
    assert bench.broker.asked(UNLOCK)[-1].at <= bench.broker.asked(UNREGISTER)[0].at


@pytest.mark.spec("S129", "S133")
@one_queue
async def test_a_lost_lock_stops_pulling_and_consuming(bench: Bench) -> None:
    watcher = Watcher(bench)
    consumer = await bench.consumer(watcher, **IN_ORDER)
    await asyncio.sleep(3)
    bench.broker.script[LOCK] = refuse_locks
    await asyncio.sleep(20)
    assert not consumer.state.queues[QUEUE].is_locked
    # The pull that was held may still bring something; nothing of it is consumed.
    bench.broker.put("T", 0, b"0", b"1")
    await asyncio.sleep(3)
    bench.broker.forget()
    await asyncio.sleep(30)
    assert not bench.broker.asked(PULL)
    assert watcher.calls == []
    del bench.broker.script[LOCK]
    await asyncio.sleep(25)
    assert watcher.offsets() == [0, 1]


@pytest.mark.spec("S130")
@one_queue
async def test_the_first_pull_asks_again_where_the_group_stands(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 10)
    answers = itertools.chain([7], itertools.repeat(4))
    bench.broker.script[RequestCode.QUERY_CONSUMER_OFFSET] = lambda peer, request: Command(
        ResponseCode.SUCCESS, ext={"offset": str(next(answers))}
    )
    watcher = Watcher(bench)
    await bench.consumer(watcher, **IN_ORDER)
    await asyncio.sleep(3)
    assert len(bench.broker.asked(RequestCode.QUERY_CONSUMER_OFFSET, topic="T")) == 2
    assert bench.broker.asked(PULL)[0].ext["queueOffset"] == "4"
    assert watcher.offsets() == [4, 5, 6, 7, 8, 9]


@pytest.mark.spec("S131")
@one_queue
async def test_a_task_goes_on_for_a_minute_and_is_then_scheduled_anew(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 80)
    watcher = Watcher(bench, 1.0)
    await bench.consumer(watcher, **IN_ORDER)
    await asyncio.sleep(100)
    assert watcher.offsets() == list(range(80))
    gaps = [round(later[2] - earlier[3], 3) for earlier, later in itertools.pairwise(watcher.calls)]
    assert gaps.count(0.01) == 1
    assert gaps.index(0.01) == 60


@pytest.mark.spec("S132")
@on_bench(brokers=("broker-a", "broker-b"))
async def test_locks_are_renewed_by_the_clock_for_each_broker(bench: Bench) -> None:
    begun = bench.loop.time()
    await bench.consumer(Watcher(bench), orderly=True)
    await asyncio.sleep(65)
    for name, broker in bench.cluster.brokers.items():
        whole = [
            round(request.at - begun, 1)
            for request in broker.asked(LOCK)
            if len(decode_body(LockBatch, request.body).mq_set) == 4
        ]
        assert whole == [1.0, 21.0, 41.0, 61.0], name


@pytest.mark.spec("S132")
@on_bench(brokers=("broker-a", "slave-a"), topics={})
async def test_only_a_master_is_asked_for_locks(bench: Bench) -> None:
    """Two members that ask a master and its slave would both get the queue."""
    bench.cluster.add_topic("T", 1, brokers=["broker-a"])
    bench.cluster.slaves["broker-a"] = ["slave-a"]
    slave = bench.cluster.broker("slave-a")
    await bench.consumer(Watcher(bench), orderly=True)
    await asyncio.sleep(5)
    assert bench.broker.asked(LOCK)
    # The master has left the route; the slave is still there.
    bench.cluster.masters_gone.add("broker-a")
    await asyncio.sleep(100)
    assert slave.asked(RequestCode.HEART_BEAT)
    assert not slave.asked(LOCK)


@pytest.mark.spec("S133")
@on_bench(topics={"T": 2})
async def test_only_the_granted_queues_go_on(bench: Bench) -> None:
    watcher = Watcher(bench)
    await bench.consumer(watcher, **IN_ORDER)
    await asyncio.sleep(3)
    other = MessageQueue("T", "broker-a", 1)

    def only_the_second(peer: Peer, request: Command) -> Command:
        return Command(ResponseCode.SUCCESS, body=encode_body(LockBatchReply((other,))))

    bench.broker.script[LOCK] = only_the_second
    await asyncio.sleep(20)
    bench.broker.put("T", 0, b"x")
    bench.broker.put("T", 1, b"x")
    await asyncio.sleep(5)
    assert [queue for queue, *_ in watcher.calls] == [other]


@pytest.mark.spec("S133", "S136")
@one_queue
async def test_a_failed_lock_request_changes_nothing_until_the_lock_expires(bench: Bench) -> None:
    watcher = Watcher(bench)
    consumer = await bench.consumer(watcher, **IN_ORDER)
    await asyncio.sleep(3)
    bench.broker.script[LOCK] = lambda peer, request: Command(
        ResponseCode.SYSTEM_ERROR, remark="down"
    )
    await asyncio.sleep(20)
    bench.broker.put("T", 0, b"0")
    await asyncio.sleep(1)
    assert watcher.offsets() == [0]
    await asyncio.sleep(15)
    assert consumer.state.queues[QUEUE].is_lock_expired(bench.clock.monotonic())
    bench.broker.put("T", 0, b"1")
    await asyncio.sleep(5)
    assert watcher.offsets() == [0]
    del bench.broker.script[LOCK]
    await asyncio.sleep(5)
    assert watcher.offsets() == [0, 1]


@pytest.mark.spec("S136")
@one_queue
async def test_an_expired_lock_is_asked_for_after_100_ms_then_every_three_seconds(
    bench: Bench,
) -> None:
    consumer = await bench.consumer(Watcher(bench), **IN_ORDER)
    await asyncio.sleep(3)
    bench.broker.script[LOCK] = refuse_locks
    consumer.state.queues[QUEUE].last_lock_at -= 100
    bench.broker.forget()
    bench.broker.put("T", 0, b"0")
    begun = bench.loop.time()
    await asyncio.sleep(8)
    times = [round(request.at - begun, 2) for request in bench.broker.asked(LOCK)]
    assert times == [0.1, 3.2, 6.3]


@pytest.mark.spec("S137")
@one_queue
async def test_a_lock_lost_between_batches_stops_the_next_one(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 5)
    seen: list[int] = []

    def loses_the_lock(message: StoredMessage) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 1:
            consumer.state.queues[QUEUE].is_locked = False
            bench.broker.script[LOCK] = refuse_locks

    consumer = await bench.consumer(loses_the_lock, **IN_ORDER)
    await asyncio.sleep(2)
    assert seen == [0, 1]
    del bench.broker.script[LOCK]
    await asyncio.sleep(5)
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.spec("S134", "S135")
@one_queue
async def test_a_queue_given_up_and_taken_again_still_has_one_call_at_a_time(bench: Bench) -> None:
    watcher = Watcher(bench, 3.0)
    bench.broker.put("T", 0, *[b"x"] * 4)
    consumer = await bench.consumer(watcher, **IN_ORDER)
    await asyncio.sleep(1)
    held = consumer.state.queues[QUEUE]
    # Given up under a running handler, as after a forced unlock, and taken again at once.
    held.is_dropped = True
    del consumer.state.queues[QUEUE]
    bench.broker.notify_members_changed(GROUP)
    await asyncio.sleep(30)
    assert not watcher.overlapped
    assert watcher.offsets() == [0, 0, 1, 2, 3]


@pytest.mark.spec("S138", "S67")
@one_queue
async def test_a_batch_takes_the_lowest_messages(bench: Bench) -> None:
    batches: list[list[int]] = []
    bench.broker.put("T", 0, *[b"x"] * 10)
    consumer = await bench.consumer(
        lambda messages: batches.append([m.queue_offset for m in messages]),
        batch_size=4,
        **IN_ORDER,
    )
    await asyncio.sleep(2)
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert not consumer.state.queues[QUEUE].is_consuming


@pytest.mark.spec("S139")
@pytest.mark.parametrize("profile", ["current", "documents"])
@on_bench(topics={"T": 2})
async def test_a_queue_is_not_released_while_its_handler_runs(bench: Bench, profile: str) -> None:
    watcher = Watcher(bench, 8.0)
    bench.broker.put("T", 1, b"0")
    consumer = await bench.consumer(watcher, profile=profile, **IN_ORDER)
    await asyncio.sleep(5)
    add_member(bench)
    await asyncio.sleep(3)
    queue = MessageQueue("T", "broker-a", 1)
    assert not bench.broker.asked(UNLOCK)
    assert consumer.state.queues[queue].is_dropped
    assert consumer.state.queues[queue].unlock_attempts > 0
    await asyncio.sleep(10 + PROFILES[profile].unlock_later_when_cached)
    (unlock,) = bench.broker.asked(UNLOCK)
    assert decode_body(LockBatch, unlock.body).mq_set == (queue,)
    assert unlock.is_oneway
    assert unlock.at > watcher.calls[0][3]
    assert queue not in consumer.state.queues


@pytest.mark.spec("S139", "S141")
@pytest.mark.parametrize("fails", [False, True])
@on_bench(topics={"T": 2})
async def test_what_a_handler_ends_while_its_queue_is_given_up_counts(
    bench: Bench, fails: bool
) -> None:
    queue = MessageQueue("T", "broker-a", 1)
    watcher = Watcher(bench, 3.0)

    async def handle(message: StoredMessage) -> None:
        await watcher(message)
        if fails and message.queue_offset == 1:
            raise ValueError("not this one")

    bench.broker.put("T", 1, *[b"x"] * 5)
    consumer = await bench.consumer(handle, **IN_ORDER)
    await asyncio.sleep(5)
    add_member(bench)
    # The handler of the second message runs while the queue is given up.
    await eventually(lambda: bench.broker.asked(UNLOCK), 20, interval=0.1)
    assert watcher.offsets(queue) == [0, 1]
    assert bench.broker.offsets[GROUP, "T", 1] == (1 if fails else 2)
    assert consumer.state.statistics.results_ignored == (1 if fails else 0)
    assert queue not in consumer.state.queues


@pytest.mark.spec("S139")
@on_bench(topics={"T": 2})
async def test_a_queue_is_released_by_force_after_twenty_seconds_without_a_lock(
    bench: Bench,
) -> None:
    watcher = Watcher(bench, 100.0)
    bench.broker.put("T", 1, b"0")
    consumer = await bench.consumer(watcher, **IN_ORDER)
    await asyncio.sleep(3)
    locked_at = consumer.state.queues[MessageQueue("T", "broker-a", 1)].last_lock_at
    add_member(bench)
    await asyncio.sleep(30)
    (unlock,) = bench.broker.asked(UNLOCK)
    assert PROFILES["current"].unlock_force_after < unlock.at - locked_at < 24.0


@pytest.mark.spec("S139")
@on_bench(topics={"T": 2})
async def test_the_documents_profile_delays_the_unlock_of_a_queue_with_messages(
    bench: Bench,
) -> None:
    release = asyncio.Event()

    async def suspends(message: StoredMessage) -> ConsumeResult:
        return ConsumeResult.SUSPEND

    bench.broker.put("T", 1, b"0", b"1")
    await bench.consumer(suspends, profile="documents", **IN_ORDER)
    await asyncio.sleep(3)
    add_member(bench)
    await asyncio.sleep(10)
    assert not bench.broker.asked(UNLOCK)
    await asyncio.sleep(15)
    assert len(bench.broker.asked(UNLOCK)) == 1
    release.set()


@pytest.mark.spec("S140", "S75")
@one_queue
async def test_an_exception_suspends_the_queue_and_after_handle_is_called(bench: Bench) -> None:
    ended: list[tuple[bool, str, str]] = []

    class Watching(Middleware):
        def after_handle(self, call: HandlerCall) -> None:
            ended.append((call.success, call.outcome, call.return_type))

    attempts: list[int] = []

    def fails_once(message: StoredMessage) -> None:
        attempts.append(message.queue_offset)
        if len(attempts) == 1:
            raise ValueError("no")

    bench.broker.put("T", 0, b"0", b"1")
    await bench.consumer(fails_once, middleware=[Watching()], **IN_ORDER)
    await asyncio.sleep(4)
    assert attempts == [0, 0, 1]
    assert ended[0] == (False, "SUSPEND", "EXCEPTION")
    assert ended[1] == (True, "SUCCESS", "SUCCESS")


@pytest.mark.spec("S141")
@one_queue
async def test_success_commits_the_batch_and_shrinks_the_cache(bench: Bench) -> None:
    seen: list[tuple[int, int | None]] = []

    async def handler(message: StoredMessage) -> None:
        await asyncio.sleep(1)
        seen.append((message.queue_offset, committed(consumer)))

    bench.broker.put("T", 0, b"0", b"1", b"2")
    consumer = await bench.consumer(handler, **IN_ORDER)
    await asyncio.sleep(8)
    assert [offset for offset, _ in seen] == [0, 1, 2]
    assert seen[1][1] == 1
    assert committed(consumer) == 3
    held = consumer.state.queues[QUEUE]
    assert (held.count, held.body_bytes) == (0, 0)


@pytest.mark.spec("S142")
@pytest.mark.parametrize(("asked", "seconds"), [(None, 1.0), (3.0, 3.0), (0.0, 0.01), (99.0, 30.0)])
@one_queue
async def test_a_suspended_batch_comes_again_after_the_suspend_time(
    bench: Bench, asked: float | None, seconds: float
) -> None:
    calls: list[tuple[float, int, int]] = []
    offsets: list[int | None] = []

    def handler(message: StoredMessage, context: ConsumeContext) -> ConsumeResult:
        calls.append((bench.loop.time(), message.queue_offset, message.reconsume_times))
        offsets.append(committed(consumer))
        if asked is not None:
            context.suspend_time = asked
        return ConsumeResult.SUSPEND if len(calls) < 3 else ConsumeResult.SUCCESS

    bench.broker.put("T", 0, b"0", b"1")
    consumer = await bench.consumer(handler, **IN_ORDER)
    await asyncio.sleep(70)
    assert [(offset, times) for _, offset, times in calls] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert calls[1][0] - calls[0][0] == pytest.approx(seconds, abs=0.01)
    assert [offset or 0 for offset in offsets[:3]] == [0, 0, 0]
    assert committed(consumer) == 2


@pytest.mark.spec("S142")
@one_queue
async def test_a_retry_of_a_minute_suspends_for_half_a_minute_at_most(bench: Bench) -> None:
    times: list[float] = []

    def handler(message: StoredMessage) -> None:
        times.append(bench.loop.time())
        if len(times) == 1:
            raise RetryLater("1m")

    bench.broker.put("T", 0, b"0")
    await bench.consumer(handler, **IN_ORDER)
    await asyncio.sleep(40)
    assert times[1] - times[0] == pytest.approx(30.0, abs=0.1)


@pytest.mark.spec("S143")
@one_queue
async def test_after_its_retries_a_message_is_given_up_and_the_queue_goes_on(bench: Bench) -> None:
    calls: list[int] = []

    def handler(message: StoredMessage) -> None:
        calls.append(message.queue_offset)
        if message.queue_offset == 0:
            raise ValueError("broken")

    bench.cluster.add_topic(RETRY, 1)
    bench.broker.put("T", 0, b"0", b"1")
    consumer = await bench.consumer(handler, max_retries=2, **IN_ORDER)
    await asyncio.sleep(10)
    assert calls == [0, 0, 0, 1]
    ((header, body),) = bench.broker.sent
    assert (header.topic, body) == (RETRY, b"0")
    assert header.reconsume_times > (header.max_reconsume_times or 0)
    properties = parse_properties(header.properties or "")
    assert properties["RETRY_TOPIC"] == "T"
    assert properties[Failure.MESSAGE] == "broken"
    assert committed(consumer) == 2
    assert consumer.state.statistics.dead_letters == 1


@pytest.mark.spec("S143")
@one_queue
async def test_a_message_that_was_given_up_does_not_come_again_with_its_neighbours(
    bench: Bench,
) -> None:
    calls: list[list[int]] = []

    def handler(messages: list[StoredMessage]) -> None:
        calls.append([message.queue_offset for message in messages])
        raise ValueError("broken")

    bench.cluster.add_topic(RETRY, 1)
    bench.broker.put("T", 0, b"0")
    consumer = await bench.consumer(handler, max_retries=2, batch_size=4, **IN_ORDER)
    await asyncio.sleep(2)
    assert calls == [[0], [0]]
    bench.broker.put("T", 0, b"1", b"2")
    await asyncio.sleep(10)
    # The first one fails a third time together with the others; they have two retries left.
    assert calls[2:] == [[0, 1, 2], [1, 2], [1, 2]]
    assert [body for _, body in bench.broker.sent] == [b"0", b"1", b"2"]
    assert committed(consumer) == 3
    held = consumer.state.queues[QUEUE]
    assert (held.count, held.body_bytes) == (0, 0)
    assert consumer.state.statistics.dead_letters == 3


@pytest.mark.spec("S143")
@one_queue
async def test_a_message_that_cannot_be_given_up_is_suspended_again(bench: Bench) -> None:
    calls: list[int] = []

    def handler(message: StoredMessage) -> None:
        calls.append(message.queue_offset)
        raise DeadLetter("broken")

    bench.broker.script[RequestCode.SEND_MESSAGE_V2] = lambda peer, request: Command(
        ResponseCode.MESSAGE_ILLEGAL, remark="no"
    )
    bench.cluster.add_topic(RETRY, 1)
    bench.broker.put("T", 0, b"0", b"1")
    consumer = await bench.consumer(handler, **IN_ORDER)
    await asyncio.sleep(5)
    assert set(calls) == {0}
    assert len(calls) >= 4
    assert committed(consumer) in (None, 0)
    del bench.broker.script[RequestCode.SEND_MESSAGE_V2]
    await asyncio.sleep(3)
    assert committed(consumer) == 2


@pytest.mark.spec("S143")
@one_queue
async def test_without_a_limit_a_failing_message_never_moves(bench: Bench) -> None:
    calls: list[int] = []

    def handler(message: StoredMessage) -> None:
        calls.append(message.reconsume_times)
        raise ValueError("broken")

    bench.broker.put("T", 0, b"0", b"1")
    await bench.consumer(handler, **IN_ORDER)
    await asyncio.sleep(100)
    assert calls == list(range(len(calls)))
    assert len(calls) > 90
    assert bench.broker.sent == []


@pytest.mark.spec("S144")
@one_queue
async def test_without_auto_commit_a_rollback_brings_all_since_the_last_commit(
    bench: Bench,
) -> None:
    calls: list[int] = []
    plan = iter(
        [
            ConsumeResult.SUCCESS,
            ConsumeResult.COMMIT,
            ConsumeResult.SUCCESS,
            ConsumeResult.ROLLBACK,
            ConsumeResult.SUCCESS,
            ConsumeResult.COMMIT,
        ]
    )
    offsets: list[int | None] = []

    def handler(message: StoredMessage, context: ConsumeContext) -> ConsumeResult:
        offsets.append(committed(consumer))
        calls.append(message.queue_offset)
        context.auto_commit = False
        return next(plan)

    bench.broker.put("T", 0, b"0", b"1", b"2", b"3")
    consumer = await bench.consumer(handler, **IN_ORDER)
    await asyncio.sleep(6)
    assert calls == [0, 1, 2, 3, 2, 3]
    assert [offset or 0 for offset in offsets] == [0, 0, 2, 2, 2, 2]
    assert committed(consumer) == 4


@pytest.mark.spec("S144")
@one_queue
async def test_with_auto_commit_a_commit_or_rollback_is_taken_as_success(bench: Bench) -> None:
    plan = iter([ConsumeResult.ROLLBACK, ConsumeResult.COMMIT])

    def handler(message: StoredMessage) -> ConsumeResult:
        return next(plan)

    bench.broker.put("T", 0, b"0", b"1")
    consumer = await bench.consumer(handler, **IN_ORDER)
    await asyncio.sleep(2)
    assert committed(consumer) == 2


@pytest.mark.spec("S145")
@one_queue
async def test_broadcasting_in_order_needs_no_locks(bench: Bench, tmp_path: Path) -> None:
    bench.broker.put("T", 0, *[b"x"] * 5)
    watcher = Watcher(bench, 0.1)
    await bench.consumer(watcher, model="broadcasting", offsets_dir=tmp_path, **IN_ORDER)
    await asyncio.sleep(30)
    assert not bench.broker.asked(LOCK)
    assert watcher.offsets() == [0, 1, 2, 3, 4]


@pytest.mark.spec("S126", "S129")
@one_queue
async def test_the_documents_profile_pulls_only_after_the_lock_task_has_run(bench: Bench) -> None:
    begun = bench.loop.time()
    await bench.consumer(Watcher(bench), profile="documents", **IN_ORDER)
    await asyncio.sleep(10)
    first_pull = bench.broker.asked(PULL, topic="T")[0]
    assert first_pull.at - begun >= 1.0


@pytest.mark.spec("S148")
@on_bench()
async def test_members_that_come_and_go_never_share_a_queue(bench: Bench) -> None:
    for queue_id in range(4):
        bench.broker.put("T", queue_id, *[b"x"] * 60)
    watcher = Watcher(bench, 0.2)
    consumers = [await bench.consumer(watcher, name="c1", **IN_ORDER)]
    await asyncio.sleep(3)
    for name in ("c2", "c3"):
        consumers.append(await bench.consumer(watcher, name=name, **IN_ORDER))
        bench.broker.notify_members_changed(GROUP)
        await asyncio.sleep(5)
    await consumers[0].stop()
    bench.broker.notify_members_changed(GROUP)
    await asyncio.sleep(60)
    assert not watcher.overlapped
    for queue_id in range(4):
        # In order, and nothing twice: a queue changes hands between two messages.
        assert watcher.offsets(MessageQueue("T", "broker-a", queue_id)) == list(range(60))
    assert len({consumer.session.client_id for consumer in consumers}) == 3


@one_queue
async def test_stopping_gives_the_locks_back_after_the_commit(bench: Bench) -> None:
    bench.broker.put("T", 0, b"0", b"1", b"2")
    watcher = Watcher(bench, 2.0)
    consumer = await bench.consumer(watcher, **IN_ORDER)
    await asyncio.sleep(1)
    bench.broker.forget()
    assert await consumer.stop() == []
    assert watcher.offsets() == [0]
    assert bench.broker.offsets[GROUP, "T", 0] == 1
    by_the_clock = (RequestCode.HEART_BEAT, LOCK)
    assert [r.code for r in bench.broker.requests if r.code not in by_the_clock] == [
        RequestCode.UPDATE_CONSUMER_OFFSET,
        UNLOCK,
        RequestCode.UNREGISTER_CLIENT,
    ]
    assert not bench.broker.asked(UNLOCK)[0].is_oneway
    assert bench.broker.locks == {}
