"""What comes too late for a queue that is no longer held: answers, results, refused tasks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.support.loop_clients import Bench, on_bench
from tests.support.scripted import ThreadedCluster, pull_result

from penstock import PushConsumer
from penstock.client.settings import StartFrom
from penstock.model import MessageQueue, StoredMessage
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.extensions import LOCK_LEASE
from penstock.protocol.headers.codec import decode_header
from penstock.protocol.headers.offsets import UpdateConsumerOffset
from penstock.remoting.peer import Peer
from penstock.remoting.promise import Promise
from penstock.testing.eventually import eventually

GROUP = "billing"
FIRST = StartFrom("first")
PULL = RequestCode.PULL_MESSAGE
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
LOCK = RequestCode.LOCK_BATCH_MQ
QUEUE = MessageQueue("T", "broker-a", 0)
LAST = MessageQueue("T", "broker-a", 1)


def ignore(message: StoredMessage) -> None:
    """A handler that is always done."""


def add_member(bench: Bench, name: str = "c2") -> None:
    """Another member that takes the upper half of the queues."""
    bench.broker.members[GROUP][f"127.0.0.1@{name}"] = bench.broker.peers[0]
    bench.broker.notify_members_changed(GROUP)


@pytest.mark.spec("S89")
@on_bench(topics={"T": 1})
async def test_nothing_is_kept_of_the_last_queue_that_is_given_up(bench: Bench) -> None:
    bench.broker.put("T", 0, b"x")
    consumer = await bench.consumer(ignore, start_from=FIRST, name="c2")
    await asyncio.sleep(2)
    assert consumer.state.offsets.snapshot("T") == {QUEUE: 1}
    add_member(bench, "c1")
    await asyncio.sleep(2)
    assert consumer.assignment() == set()
    assert consumer.state.offsets.snapshot("T") == {}
    assert not [queue for queue in consumer.state.queues if queue.topic == "T"]


@pytest.mark.spec("S128")
@on_bench(topics={"T": 1})
async def test_an_offset_from_before_is_not_taken_over_into_a_queue_taken_anew(
    bench: Bench,
) -> None:
    ask = RequestCode.QUERY_CONSUMER_OFFSET
    bench.broker.script[ask] = lambda peer, request: Command(ResponseCode.SYSTEM_ERROR)
    consumer = await bench.consumer(ignore, start_from=FIRST)
    await asyncio.sleep(2)
    consumer.state.offsets.update(QUEUE, 99, increase_only=False)
    del bench.broker.script[ask]
    await asyncio.sleep(20)
    assert consumer.assignment() == {QUEUE}
    assert consumer.state.offsets.snapshot("T") in ({}, {QUEUE: 0})
    assert bench.broker.offsets.get((GROUP, "T", 0), 0) == 0


@pytest.mark.spec("S29", "S69")
@pytest.mark.parametrize("code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED])
@on_bench(topics={"T": 2})
async def test_the_answer_to_a_pull_of_a_lost_queue_changes_nothing(
    bench: Bench, code: int
) -> None:
    promises: list[Promise] = []
    answer = bench.broker._handlers[PULL]

    def hold(peer: Peer, request: Command) -> Any:
        if (request.ext or {}).get("queueId") != "1":
            return answer(peer, request)
        promises.append(Promise())
        return promises[-1]

    bench.broker.script[PULL] = hold
    consumer = await bench.consumer(ignore, start_from=FIRST)
    await asyncio.sleep(2)
    assert len(promises) == 1
    add_member(bench)
    await asyncio.sleep(2)
    assert consumer.assignment() == {QUEUE}
    promises[0].resolve(pull_result(code, 7, 0, 9))
    await asyncio.sleep(20)
    assert (GROUP, "T", 1) not in bench.broker.offsets
    assert LAST not in consumer.state.offsets.snapshot("T")
    assert len(promises) == 1, "and it is not pulled again"


@pytest.mark.spec("S69")
@on_bench(topics={"T": 2})
async def test_a_pull_whose_queue_is_lost_while_hooks_look_at_it_is_dropped(bench: Bench) -> None:
    def lose(messages: list[StoredMessage]) -> None:
        held.is_dropped = True

    consumer = await bench.consumer(ignore, start_from=FIRST, filter_hooks=(lose,))
    await asyncio.sleep(2)
    held = consumer.state.queues[LAST]
    bench.broker.put("T", 1, b"x", b"y")
    await asyncio.sleep(1)
    assert held.is_dropped
    assert held.count == 0


@pytest.mark.spec("S68", "S69")
@on_bench(topics={"T": 2})
async def test_tasks_that_were_refused_are_not_handed_in_again_for_a_lost_queue(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def slow(message: StoredMessage) -> None:
        await asyncio.sleep(100)

    bench.broker.put("T", 1, *[b"x"] * 5)
    consumer = await bench.consumer(slow, start_from=FIRST, threads=1, task_limit=1)
    await asyncio.sleep(2)
    busy = "handlers are busy, trying again queue=T@broker-a:1"
    assert caplog.text.count(busy) == 1
    add_member(bench)
    await asyncio.sleep(20)
    assert consumer.assignment() == {QUEUE}
    assert caplog.text.count(busy) == 1


@pytest.mark.spec("S139")
@pytest.mark.parametrize(("profile", "seconds"), [("documents", 40.0), ("current", 8.0)])
@on_bench(topics={"T": 2})
async def test_a_result_without_the_lock_does_not_count(
    bench: Bench, profile: str, seconds: float
) -> None:
    """The queue waits for its handler, whose lock ends meanwhile: the next owner may have begun."""
    lock = bench.broker._handlers[LOCK]

    def bound(peer: Peer, request: Command) -> Any:
        answer = lock(peer, request)
        assert isinstance(answer, Command)
        answer.ext = {LOCK_LEASE: "10000"}
        return answer

    if profile == "current":
        bench.broker.script[LOCK] = bound
    ended: list[float] = []

    async def slow(message: StoredMessage) -> None:
        await asyncio.sleep(seconds)
        ended.append(bench.loop.time())

    bench.broker.put("T", 1, b"x")
    consumer = await bench.consumer(slow, profile=profile, orderly=True, start_from=FIRST)
    await eventually(lambda: consumer.running, 30, interval=0.1)
    add_member(bench)
    await asyncio.sleep(seconds + 25)
    assert ended
    assert LAST not in consumer.state.queues
    assert bench.broker.offsets.get((GROUP, "T", 1), 0) == 0
    assert consumer.state.statistics.results_ignored == 1


@pytest.mark.spec("S50")
@on_bench(topics={"T": 1})
async def test_a_handler_that_ends_while_the_queue_moves_does_not_undo_it(bench: Bench) -> None:
    commit = bench.broker._handlers[COMMIT]
    opened = asyncio.Event()

    async def handler(message: StoredMessage) -> None:
        await opened.wait()

    def late(peer: Peer, request: Command) -> Any:
        if decode_header(UpdateConsumerOffset, request.ext).commit_offset != 2:
            return commit(peer, request)
        promise = Promise()

        def answer() -> None:
            done = commit(peer, request)
            assert isinstance(done, Command)
            promise.resolve(done)

        bench.loop.call_later(2, answer)
        return promise

    bench.broker.put("T", 0, *[b"x"] * 5)
    bench.broker.script[COMMIT] = late
    consumer = await bench.consumer(handler, start_from=FIRST)
    await asyncio.sleep(2)
    moving = bench.loop.create_task(consumer.seek(QUEUE, 2))
    await asyncio.sleep(1)
    opened.set()
    await asyncio.sleep(0.5)
    assert (await consumer.committed(QUEUE)) == 2, "five are finished, and the queue is at two"
    bench.broker.forget()
    await moving
    await asyncio.sleep(1)
    assert bench.broker.asked(PULL, topic="T")[0].ext["queueOffset"] == "2"


@pytest.mark.spec("S66")
def test_of_two_numbers_of_threads_the_smaller_one_counts(cluster: ThreadedCluster) -> None:
    running = most = 0
    lock = threading.Lock()
    four = threading.Barrier(4, timeout=60)

    def handler(message: StoredMessage) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        four.wait()
        with lock:
            running -= 1

    cluster.put("T", 0, *[b"x"] * 40)
    done = threading.Event()
    consumer = PushConsumer(
        GROUP, namesrv=cluster.namesrv, start_from="first", threads=4, max_threads=8
    )
    seen: list[StoredMessage] = []

    @consumer.on("T")
    def handle(message: StoredMessage) -> None:
        handler(message)
        seen.append(message)
        if len(seen) == 40:
            done.set()

    with consumer:
        assert done.wait(60)
    assert most == 4
