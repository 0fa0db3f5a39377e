"""Messages on request: poll, commit, seek, shared and assigned queues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.loop_clients import Bench, on_bench
from tests.support.scripted import ScriptedQueue, pull_result

from penstock import Message, Producer, PullConsumer, embedded
from penstock.client.consuming.pull_consumer import PullConsumerCore
from penstock.client.settings import ConsumerSettings, StartFrom
from penstock.errors import InvalidArgument, LifecycleError
from penstock.model import MessageQueue, StoredMessage
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import decode_header
from penstock.protocol.headers.pull import PullMessage
from penstock.remoting.peer import Peer

GROUP = "readers"
PULL = RequestCode.PULL_MESSAGE
QUEUE = MessageQueue("T", "broker-a", 0)
FIRST = StartFrom("first")
one_queue = on_bench(topics={"T": 1})


def reader(
    bench: Bench, *, name: str = "r1", auto_commit: bool = True, **settings: Any
) -> PullConsumerCore:
    chosen = {"pull_batch_size": 10, "post_subscription": True, "start_from": FIRST, **settings}
    return PullConsumerCore(
        bench.session(name), ConsumerSettings(group=GROUP, **chosen), auto_commit=auto_commit
    )


def offsets(messages: list[StoredMessage]) -> list[int]:
    return [message.queue_offset for message in messages]


@one_queue
async def test_a_poll_brings_the_next_batch_and_commits_the_one_before(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 25)
    consumer = reader(bench)
    await consumer.subscribe("T")
    await consumer.start()
    assert offsets(await consumer.poll(5.0)) == list(range(10))
    await asyncio.sleep(12)
    # The program that polled may still work on them.
    assert bench.broker.offsets.get((GROUP, "T", 0), 0) == 0
    assert offsets(await consumer.poll(5.0)) == list(range(10, 20))
    await asyncio.sleep(6)
    assert bench.broker.offsets[GROUP, "T", 0] == 10
    assert offsets(await consumer.poll(5.0)) == list(range(20, 25))
    assert await consumer.poll(0) == []
    await consumer.stop()
    assert bench.broker.offsets[GROUP, "T", 0] == 25


@one_queue
async def test_stopping_commits_nothing_of_the_last_poll(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 25)
    consumer = reader(bench)
    await consumer.subscribe("T")
    await consumer.start()
    await consumer.poll(5.0)
    await consumer.poll(5.0)
    # The second ten were not acknowledged.
    await consumer.stop()
    assert bench.broker.offsets[GROUP, "T", 0] == 10


@one_queue
async def test_a_commit_leaves_out_what_was_not_read_yet(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 25)
    consumer = reader(bench)
    await consumer.subscribe("T")
    await consumer.start()
    batch = await consumer.poll(5.0)
    await consumer.commit(batch[4:])
    assert bench.broker.offsets[GROUP, "T", 0] == 4
    await consumer.commit(batch)
    assert bench.broker.offsets[GROUP, "T", 0] == 4
    await consumer.commit()
    assert bench.broker.offsets[GROUP, "T", 0] == 10
    await consumer.stop()


@on_bench(topics={"T": 4})
async def test_a_poll_brings_what_several_pulls_found_but_no_more_than_a_batch(
    bench: Bench,
) -> None:
    for queue_id in range(4):
        bench.broker.put("T", queue_id, *[b"x"] * 3)
    consumer = reader(bench)
    await consumer.subscribe("T")
    await consumer.start()
    await asyncio.sleep(5)
    first = await consumer.poll(5.0)
    assert len({message.queue for message in first}) == 3
    assert offsets(first) == [0, 1, 2] * 3
    assert offsets(await consumer.poll(5.0)) == [0, 1, 2]
    await asyncio.sleep(6)
    committed = [bench.broker.offsets.get((GROUP, "T", queue_id), 0) for queue_id in range(4)]
    assert sorted(committed) == [0, 3, 3, 3]
    await consumer.stop()


@pytest.mark.parametrize("batch_size", [31, 32, 33, 500])
def test_a_poll_brings_no_more_than_a_batch_of_what_our_broker_sends_at_once(
    batch_size: int,
) -> None:
    with embedded(clock="virtual") as mq:
        mq.admin.create_topic("T", 1)
        with Producer("shop", namesrv=mq.namesrv) as producer:
            producer.send_batch([Message("T", b"%d" % number) for number in range(600)])
        with PullConsumer(
            "readers", namesrv=mq.namesrv, start_from="first", batch_size=batch_size
        ) as consumer:
            consumer.subscribe("T")
            mq.clock.advance("5s")
            polls = []
            while batch := consumer.poll(1):
                polls.append(offsets(batch))
        assert max(map(len, polls)) <= batch_size
        assert [offset for poll in polls for offset in poll] == list(range(600))
        assert [lag.committed for lag in mq.admin.group_lag("readers", topic="T")] == [600]


def test_what_a_poll_leaves_of_a_pull_is_neither_lost_nor_committed() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    with embedded(clock="virtual") as mq:
        mq.admin.create_topic("T", 1)
        with Producer("shop", namesrv=mq.namesrv) as producer:
            producer.send_batch([Message("T", b"%d" % number) for number in range(600)])

        def reader() -> PullConsumer:
            consumer = PullConsumer("g", namesrv=mq.namesrv, start_from="first", batch_size=32)
            consumer.assign([queue])
            return consumer

        with reader() as consumer:
            assert offsets(consumer.poll()) == list(range(32))
            consumer.pause()
            assert consumer.poll(1) == []
            consumer.resume()
            assert offsets(consumer.poll()) == list(range(32, 64))
            consumer.seek(queue, 10)
            assert offsets(consumer.poll()) == list(range(10, 42))
            consumer.assign([])
            consumer.assign([queue])
            assert offsets(consumer.poll()) == list(range(10, 42))
            consumer.commit()
        with reader() as consumer:
            assert offsets(consumer.poll()) == list(range(42, 74))


@one_queue
async def test_a_poll_waits_for_a_message_and_not_longer_than_asked(bench: Bench) -> None:
    consumer = reader(bench)
    await consumer.subscribe("T")
    await consumer.start()
    begun = bench.loop.time()
    assert await consumer.poll(3.0) == []
    assert bench.loop.time() - begun == pytest.approx(3.0, abs=0.1)
    bench.loop.call_later(1.0, bench.broker.put, "T", 0, b"here")
    begun = bench.loop.time()
    assert [m.body for m in await consumer.poll(30.0)] == [b"here"]
    assert bench.loop.time() - begun == pytest.approx(1.0, abs=0.2)
    assert await consumer.poll(0) == []
    await consumer.stop()


@one_queue
async def test_what_was_not_delivered_comes_with_the_next_poll(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 15)
    consumer = reader(bench)
    await consumer.subscribe("T")
    await consumer.start()
    assert offsets(await consumer.poll(5.0)) == list(range(10))
    consumer.take_back()
    assert offsets(await consumer.poll(5.0)) == list(range(10))
    assert offsets(await consumer.poll(5.0)) == list(range(10, 15))
    await consumer.stop()
    assert bench.broker.offsets[GROUP, "T", 0] == 10


@one_queue
async def test_without_auto_commit_only_commit_commits(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 20)
    consumer = reader(bench, auto_commit=False)
    await consumer.subscribe("T")
    await consumer.start()
    await consumer.poll(5.0)
    await consumer.poll(5.0)
    await asyncio.sleep(15)
    assert bench.broker.offsets.get((GROUP, "T", 0), 0) == 0
    await consumer.commit()
    assert bench.broker.offsets[GROUP, "T", 0] == 20
    bench.broker.put("T", 0, b"x")
    await consumer.poll(5.0)
    await consumer.stop()
    assert bench.broker.offsets[GROUP, "T", 0] == 20


@on_bench()
async def test_two_readers_share_the_queues(bench: Bench) -> None:
    one, two = reader(bench, name="r1"), reader(bench, name="r2")
    for consumer in (one, two):
        await consumer.subscribe("T")
        await consumer.start()
    bench.broker.notify_members_changed(GROUP)
    await asyncio.sleep(25)
    assert len(one.assignment()) == len(two.assignment()) == 2
    assert not one.assignment() & two.assignment()
    assert bench.broker.heartbeats[-1].consumer_data_set[0].consume_type == "CONSUME_ACTIVELY"
    await one.stop()
    await two.stop()


@on_bench()
async def test_assigned_queues_are_read_beside_other_readers(bench: Bench) -> None:
    for queue_id in range(4):
        bench.broker.put("T", queue_id, b"%d" % queue_id)
    consumer = reader(bench)
    await consumer.assign([QUEUE, MessageQueue("T", "broker-a", 2)])
    await consumer.start()
    bodies = {m.body for _ in range(2) for m in await consumer.poll(2.0)}
    assert bodies == {b"0", b"2"}
    assert not bench.broker.asked(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    # The filter rides along, so no broker needs to have heard of the subscription.
    assert all(int(pull.ext["sysFlag"]) & 4 for pull in bench.broker.asked(PULL))
    assert {pull.ext["subscription"] for pull in bench.broker.asked(PULL)} == {"*"}
    await consumer.assign([MessageQueue("T", "broker-a", 3)])
    assert {m.body for m in await consumer.poll(2.0)} == {b"3"}
    assert consumer.assignment() == {MessageQueue("T", "broker-a", 3)}
    await consumer.stop()


@one_queue
async def test_subscribing_and_assigning_exclude_each_other(bench: Bench) -> None:
    consumer = reader(bench)
    await consumer.assign([QUEUE])
    with pytest.raises(InvalidArgument, match="both subscribes and is assigned"):
        await consumer.subscribe("T")
    other = reader(bench)
    await other.subscribe("T")
    with pytest.raises(InvalidArgument, match="both subscribes and is assigned"):
        await other.assign([QUEUE])


@one_queue
async def test_seeking_goes_on_elsewhere_and_drops_what_was_read_ahead(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 50)
    consumer = reader(bench)
    await consumer.assign([QUEUE])
    await consumer.start()
    await consumer.poll(5.0)
    await consumer.seek(QUEUE, 42)
    assert offsets(await consumer.poll(5.0)) == list(range(42, 50))
    await consumer.seek_time(QUEUE, 0)
    assert offsets(await consumer.poll(5.0)) == list(range(10))
    with pytest.raises(InvalidArgument, match=r"offset 51 of .*expected 0 to 50"):
        await consumer.seek(QUEUE, 51)
    with pytest.raises(InvalidArgument, match=r"does not read U@b:0.*T@broker-a:0"):
        await consumer.seek(MessageQueue("U", "b", 0), 0)
    await consumer.stop()


@one_queue
async def test_a_seek_does_not_take_back_a_queue_that_went_meanwhile(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 50)
    consumer = reader(bench)
    await consumer.assign([QUEUE])
    await consumer.start()
    seeking = asyncio.ensure_future(consumer.seek(QUEUE, 42))
    await asyncio.sleep(0)  # It has asked where the queue begins and ends.
    await consumer.assign([])
    with pytest.raises(InvalidArgument, match="does not read T@broker-a:0"):
        await seeking
    assert consumer.assignment() == set()
    await consumer.stop()


@one_queue
async def test_without_auto_commit_a_seek_moves_the_group_only_with_commit(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 50)
    bench.broker.offsets[GROUP, "T", 0] = 20
    consumer = reader(bench, auto_commit=False)
    await consumer.assign([QUEUE])
    await consumer.start()
    await consumer.seek(QUEUE, 40)
    await asyncio.sleep(15)
    assert bench.broker.offsets[GROUP, "T", 0] == 20
    # A look back, and nothing polled yet: that is where the group stands from now on.
    await consumer.seek(QUEUE, 5)
    await consumer.commit()
    assert bench.broker.offsets[GROUP, "T", 0] == 5
    assert offsets(await consumer.poll(5.0)) == list(range(5, 15))
    await consumer.seek(QUEUE, 45)
    await consumer.stop()
    assert bench.broker.offsets[GROUP, "T", 0] == 5


@one_queue
async def test_a_seek_back_is_committed_with_what_is_read_after_it(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 50)
    bench.broker.offsets[GROUP, "T", 0] = 40
    consumer = reader(bench, auto_commit=False)
    await consumer.assign([QUEUE])
    await consumer.start()
    assert offsets(await consumer.poll(5.0)) == list(range(40, 50))
    await consumer.seek(QUEUE, 0)
    assert offsets(await consumer.poll(5.0)) == list(range(10))
    await consumer.commit()
    assert bench.broker.offsets[GROUP, "T", 0] == 10
    await consumer.stop()


@one_queue
async def test_without_auto_commit_an_operators_reset_moves_the_group_at_once(
    bench: Bench,
) -> None:
    bench.broker.put("T", 0, *[b"x"] * 50)
    consumer = reader(bench, auto_commit=False)
    await consumer.assign([QUEUE])
    await consumer.start()
    await consumer.reset_offsets("T", {QUEUE: 30})
    await asyncio.sleep(15)
    assert bench.broker.offsets[GROUP, "T", 0] == 30
    await consumer.stop()


@one_queue
async def test_what_was_polled_before_a_queue_went_is_not_committed_when_it_is_back(
    bench: Bench,
) -> None:
    bench.broker.put("T", 0, *[b"x"] * 50)
    consumer = reader(bench, auto_commit=False)
    await consumer.assign([QUEUE])
    await consumer.start()
    assert len(await consumer.poll(5.0)) == 10
    await consumer.poll(5.0)
    await consumer.assign([])
    # The member that read it meanwhile got further.
    bench.broker.offsets[GROUP, "T", 0] = 30
    await consumer.assign([QUEUE])
    await consumer.commit()
    assert bench.broker.offsets[GROUP, "T", 0] == 30
    await consumer.stop()


@one_queue
async def test_an_illegal_offset_just_goes_on_where_the_broker_says(bench: Bench) -> None:
    bench.broker.queue("T", 0).min_offset = 500
    bench.broker.put("T", 0, b"x")
    bench.broker.offsets[GROUP, "T", 0] = 3
    consumer = reader(bench)
    await consumer.assign([QUEUE])
    await consumer.start()
    assert offsets(await consumer.poll(5.0)) == [500]
    await consumer.stop()


@one_queue
async def test_a_group_above_the_end_of_a_queue_stands_where_it_went_on(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 5)
    bench.broker.offsets[GROUP, "T", 0] = 100
    consumer = reader(bench)
    await consumer.assign([QUEUE])
    await consumer.start()
    assert await consumer.poll(1.0) == []
    bench.broker.put("T", 0, b"new")
    assert offsets(await consumer.poll(5.0)) == [5]
    await consumer.commit()
    assert bench.broker.offsets[GROUP, "T", 0] == 6
    await consumer.stop()


@pytest.mark.parametrize("auto_commit", [True, False])
@one_queue
async def test_a_queue_that_begins_again_is_read_and_committed_again(
    bench: Bench, auto_commit: bool
) -> None:
    bench.broker.put("T", 0, *[b"old"] * 15)
    consumer = reader(bench, auto_commit=auto_commit)
    await consumer.assign([QUEUE])
    await consumer.start()
    assert len(await consumer.poll(5.0)) == 10
    await asyncio.sleep(1)
    # Ten were polled, five are read ahead, and the topic is created again.
    bench.broker.queues["T", 0] = ScriptedQueue()
    await asyncio.sleep(30)
    bench.broker.put("T", 0, *[b"new"] * 3)
    assert [m.body for m in await consumer.poll(30.0)] == [b"new"] * 3
    await consumer.commit()
    assert bench.broker.offsets[GROUP, "T", 0] == 3
    bench.broker.put("T", 0, *[b"new"] * 3)
    assert offsets(await consumer.poll(30.0)) == [3, 4, 5]
    await consumer.stop()


@one_queue
async def test_reading_ahead_has_a_limit_for_each_queue(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 3000)
    consumer = reader(bench)
    await consumer.assign([QUEUE])
    await consumer.start()
    await asyncio.sleep(20)
    assert 1000 < consumer.state.queues[QUEUE].count <= 1010
    seen: list[int] = []
    while len(seen) < 3000:
        seen += offsets(await consumer.poll(1.0))
    assert seen == list(range(3000))
    await consumer.stop()


@on_bench(topics={"T": 16})
async def test_reading_ahead_has_a_limit_for_all_queues_together(bench: Bench) -> None:
    for queue_id in range(16):
        bench.broker.put("T", queue_id, *[b"x"] * 1100)
    consumer = reader(bench)
    await consumer.subscribe("T")
    await consumer.start()
    await asyncio.sleep(30)
    cached = sum(held.count for held in consumer.state.queues.values())
    assert 10_000 < cached <= 10_000 + 16 * 10
    # A pull is held by the broker for longer than a push consumer's.
    suspended = {pull.ext["suspendTimeoutMillis"] for pull in bench.broker.asked(PULL)}
    assert suspended == {"20000"}
    await consumer.stop()


@one_queue
async def test_nothing_matching_moves_the_offset_only_past_what_was_committed(
    bench: Bench,
) -> None:
    bench.broker.put("T", 0, b"x")

    def only_the_first(peer: Peer, request: Command) -> Command | None:
        ask = decode_header(PullMessage, request.ext)
        if ask.queue_offset == 0:
            return bench.broker.pull_answer(ask)
        if ask.queue_offset < 90:
            return pull_result(ResponseCode.PULL_RETRY_IMMEDIATELY, 90, 0, 100)
        return None

    bench.broker.script[PULL] = only_the_first
    consumer = reader(bench, auto_commit=False)
    await consumer.assign([QUEUE])
    await consumer.start()
    assert offsets(await consumer.poll(5.0)) == [0]
    await consumer.poll(1.0)
    await asyncio.sleep(12)
    # Polled and not committed: nothing may pass it.
    assert bench.broker.offsets.get((GROUP, "T", 0), 0) == 0
    await consumer.stop()


@one_queue
async def test_a_reader_of_nothing_gets_a_hint(bench: Bench) -> None:
    consumer = reader(bench)
    await consumer.start()
    with pytest.raises(LifecycleError, match=r"reads no topic; try: subscribe\(.*assign\("):
        await consumer.poll(1.0)
    await consumer.subscribe("T")
    assert await consumer.poll(1.0) == []
    await consumer.stop()


@one_queue
async def test_a_reader_is_used_between_start_and_stop(bench: Bench) -> None:
    consumer = reader(bench)
    await consumer.subscribe("T")
    with pytest.raises(LifecycleError, match="not running"):
        await consumer.poll(1.0)
    await consumer.start()
    with pytest.raises(LifecycleError, match="started twice"):
        await consumer.start()
    waiting = asyncio.ensure_future(consumer.poll(100.0))
    await asyncio.sleep(1)
    await consumer.stop()
    assert await waiting == []
    await consumer.stop()
