"""The asyncio classes, on a real loop beside the session's."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from tests.support.scripted import ThreadedCluster

import penstock
from penstock import MessageQueue, StoredMessage, aio
from penstock.errors import InvalidArgument, LifecycleError, PenstockError
from penstock.model import Message
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.testing.eventually import eventually

QUEUE = MessageQueue("T", "broker-a", 0)


def test_the_names_are_those_of_the_blocking_package() -> None:
    assert set(aio.__all__) == set(penstock.__all__) - {"aio", "__version__"}
    awaiting = {
        *("Admin", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer", "embedded"),
    }
    for name in aio.__all__:
        assert (getattr(aio, name) is getattr(penstock, name)) == (name not in awaiting)


async def test_a_message_goes_from_a_producer_to_a_consumer(cluster: ThreadedCluster) -> None:
    seen: list[tuple[StoredMessage, int]] = []
    consumer = aio.PushConsumer(group="billing", namesrv=cluster.namesrv, start_from="first")

    @consumer.on("T")
    async def handler(message: StoredMessage) -> None:
        await asyncio.sleep(0)
        seen.append((message, threading.get_ident()))

    async with consumer, aio.Producer(group="shop", namesrv=cluster.namesrv) as producer:
        receipt = await producer.send(Message("T", b"hello"))
        await eventually(lambda: seen)
        assert receipt.queue in await consumer.assignment()
        assert len(await producer.queues("T")) == 4
    # Handlers run on the loop that called start().
    assert seen[0][1] == threading.get_ident()
    assert seen[0][0].body == b"hello"


async def test_plain_handlers_run_on_threads(cluster: ThreadedCluster) -> None:
    seen: list[int] = []
    consumer = aio.PushConsumer(group="billing", namesrv=cluster.namesrv, start_from="first")

    @consumer.on("T")
    def handler(message: StoredMessage) -> None:
        time.sleep(0.01)
        seen.append(threading.get_ident())

    cluster.put("T", 0, b"x")
    async with consumer:
        await eventually(lambda: seen)
    assert seen[0] != threading.get_ident()


async def test_many_sends_at_once_all_get_receipts(cluster: ThreadedCluster) -> None:
    async with aio.Producer(group="shop", namesrv=cluster.namesrv) as producer:
        receipts = await asyncio.gather(
            *(producer.send(Message("T", b"%d" % number)) for number in range(300))
        )
        futures = [await producer.submit(Message("T", b"x")) for _ in range(100)]
        receipts += [await future for future in futures]
    assert len({receipt.msg_id for receipt in receipts}) == 400


async def test_submitting_waits_when_too_many_are_unanswered(cluster: ThreadedCluster) -> None:
    cluster.broker.script[RequestCode.SEND_MESSAGE_V2] = lambda peer, request: None
    async with aio.Producer(
        group="shop", namesrv=cluster.namesrv, max_in_flight=2, send_timeout=0.2, retries=0
    ) as producer:
        first = await producer.submit(Message("T", b"1"))
        second = await producer.submit(Message("T", b"2"))
        begun = time.monotonic()
        third = await producer.submit(Message("T", b"3"))
        assert time.monotonic() - begun > 0.05
        for future in (first, second, third):
            with pytest.raises(PenstockError):
                await future


async def test_every_way_to_send(cluster: ThreadedCluster) -> None:
    async with aio.Producer(group="shop", namesrv=cluster.namesrv) as producer:
        assert (await producer.send(Message("T", b"x"), queue=QUEUE)).queue == QUEUE
        chosen = await producer.send(Message("T", b"x"), queue=lambda queues, message: queues[2])
        assert chosen.queue.queue_id == 2
        batch = await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
        assert "," in batch.msg_id
        await producer.send_oneway(Message("T", b"x"))

        async def commit(message: Message) -> bool:
            return False

        await producer.send_in_transaction(Message("T", b"x"), commit)
        await eventually(lambda: cluster.broker.asked(RequestCode.END_TRANSACTION))
        with pytest.raises(PenstockError, match="no reply"):
            await producer.request(Message("T", b"?"), "50ms")
        with pytest.raises(InvalidArgument, match="cannot be replied to"):
            await producer.reply(StoredMessage("T", b"?", b"", QUEUE, 0), b"!")
    with pytest.raises(LifecycleError, match="not running"):
        await producer.send(Message("T", b"x"))


async def test_errors_come_out_of_awaits(cluster: ThreadedCluster) -> None:
    cluster.broker.script[RequestCode.SEND_MESSAGE_V2] = lambda peer, request: Command(
        ResponseCode.MESSAGE_ILLEGAL, remark="bad"
    )
    async with aio.Producer(group="shop", namesrv=cluster.namesrv) as producer:
        with pytest.raises(PenstockError, match="bad"):
            await producer.send(Message("T", b"x"))


async def test_a_blocked_loop_does_not_stop_heartbeats(cluster: ThreadedCluster) -> None:
    consumer = aio.PushConsumer(group="billing", namesrv=cluster.namesrv, heartbeat_interval=0.02)
    consumer.on("T")(lambda message: None)
    async with consumer:
        await eventually(lambda: len(cluster.broker.asked(RequestCode.HEART_BEAT)) >= 5)
        cluster.broker.forget()
        deadline = time.monotonic() + 10
        while len(cluster.broker.asked(RequestCode.HEART_BEAT)) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)  # noqa: ASYNC251  what a careless handler does


async def test_stopping_finishes_what_runs_and_cancelling_skips_the_wait(
    cluster: ThreadedCluster,
) -> None:
    ended: list[int] = []
    started = asyncio.Event()
    consumer = aio.PushConsumer(group="billing", namesrv=cluster.namesrv, start_from="first")

    @consumer.on("T")
    async def handler(message: StoredMessage) -> None:
        started.set()
        await asyncio.sleep(0.2 if message.queue_offset == 0 else 1000)
        ended.append(message.queue_offset)

    cluster.put("T", 0, b"0", b"1")
    await consumer.start()
    await started.wait()
    stopping = asyncio.ensure_future(consumer.stop())
    await eventually(lambda: ended == [0])
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert cluster.broker.offsets["billing", "T", 0] == 1


async def test_running_until_cancelled(cluster: ThreadedCluster) -> None:
    seen: list[bytes] = []
    consumer = aio.PushConsumer(group="billing", namesrv=cluster.namesrv, start_from="first")

    @consumer.on("T")
    async def handler(message: StoredMessage) -> None:
        seen.append(message.body)

    cluster.put("T", 0, b"x")
    running = asyncio.ensure_future(consumer.run())
    await eventually(lambda: seen)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cluster.broker.asked(RequestCode.UNREGISTER_CLIENT, consumerGroup="billing")


def test_sigterm_ends_run_after_the_running_handler(cluster: ThreadedCluster) -> None:
    cluster.put("T", 0, b"x")
    code = """
        import asyncio, signal, sys
        from penstock import aio
        async def main():
            consumer = aio.PushConsumer("billing", namesrv=sys.argv[1], start_from="first")
            @consumer.on("T")
            async def handler(message):
                print("begin", flush=True)
                await asyncio.sleep(0.5)
                print("end", flush=True)
            await consumer.run()
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        asyncio.run(main())
        print("left", flush=True)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), cluster.namesrv],
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begin\n"
        child.send_signal(signal.SIGTERM)
        assert child.stdout.read() == "end\nleft\n"
    assert child.returncode == 0
    assert cluster.broker.offsets["billing", "T", 0] == 1


async def test_control_and_statistics(cluster: ThreadedCluster) -> None:
    seen: list[int] = []
    consumer = aio.PushConsumer(group="billing", namesrv=cluster.namesrv, start_from="first")

    @consumer.on("T")
    async def handler(message: StoredMessage) -> None:
        seen.append(message.queue_offset)

    cluster.put("T", 0, *[b"x"] * 3)
    async with consumer:
        await eventually(lambda: len(seen) == 3)
        await consumer.seek(QUEUE, 1)
        await eventually(lambda: len(seen) == 5)
        await consumer.pause()
        await consumer.resume()
        stats = await consumer.stats()
        assert stats.topics["T"].consumed == 5


async def test_a_reader_polls_commits_and_iterates(cluster: ThreadedCluster) -> None:
    cluster.put("T", 0, *[b"%d" % number for number in range(30)])
    async with aio.PullConsumer(
        group="readers", namesrv=cluster.namesrv, start_from="first"
    ) as reader:
        await reader.assign([QUEUE])
        assert len(await reader.poll(5)) == 10
        await reader.commit()
        assert cluster.broker.offsets["readers", "T", 0] == 10
        await reader.seek(QUEUE, 28)
        taken = []
        async for message in reader:
            taken.append(message.body)
            if len(taken) == 2:
                break
        assert taken == [b"28", b"29"]
        assert await reader.assignment() == {QUEUE}
        assert await reader.poll(0) == []
    assert cluster.broker.offsets["readers", "T", 0] == 30
    other = aio.PullConsumer(group="sharers", namesrv=cluster.namesrv)
    await other.subscribe("T")
    async with other:
        await eventually(other.assignment)


async def test_a_reader_that_was_never_started_says_so_in_a_loop_as_in_a_poll() -> None:
    reader = aio.PullConsumer("readers")
    await reader.assign(QUEUE)
    with pytest.raises(LifecycleError, match="'readers' is not running"):
        await reader.poll()
    with pytest.raises(LifecycleError, match="'readers' is not running"):
        await anext(aiter(reader))


async def test_what_a_cancelled_poll_found_comes_with_the_next(cluster: ThreadedCluster) -> None:
    cluster.put("T", 0, *[b"%d" % number for number in range(30)])
    async with aio.PullConsumer(
        group="readers", namesrv=cluster.namesrv, start_from="first"
    ) as reader:
        await reader.assign([QUEUE])
        assert len(await reader.poll()) == 10
        polling = asyncio.ensure_future(reader.poll())
        await asyncio.sleep(0)
        # Found on the session's loop, while this loop is busy.
        deadline = time.monotonic() + 10
        while not reader._core._polled or reader._core._polled[0][1].first_offset != 10:
            assert time.monotonic() < deadline
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        assert [m.queue_offset for m in await reader.poll()] == list(range(10, 20))
        await reader.commit()
    assert cluster.broker.offsets["readers", "T", 0] == 20


async def test_a_failed_block_commits_nothing_that_was_not_done(cluster: ThreadedCluster) -> None:
    cluster.put("T", 0, *[b"%d" % number for number in range(30)])
    seen: list[bytes] = []

    async def read() -> None:
        async with aio.PullConsumer(
            group="readers", namesrv=cluster.namesrv, start_from="first"
        ) as reader:
            await reader.assign([QUEUE])
            async for message in reader:
                seen.append(message.body)
                if len(seen) == 14:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read()
    assert seen[-1] == b"13"
    assert cluster.broker.offsets["readers", "T", 0] == 10


async def test_a_loop_that_is_left_early_takes_nothing_with_it(cluster: ThreadedCluster) -> None:
    cluster.put("T", 0, *[b"%d" % number for number in range(30)])
    async with aio.PullConsumer(
        group="readers", namesrv=cluster.namesrv, start_from="first"
    ) as reader:
        await reader.assign([QUEUE])
        for number in range(4):
            assert (await anext(aiter(reader))).body == b"%d" % number
        await reader.commit()
        assert cluster.broker.offsets["readers", "T", 0] == 4
        assert [m.body for m in await reader.poll()] == [b"%d" % n for n in range(4, 10)]
        assert (await anext(aiter(reader))).body == b"10"
        await reader.seek(QUEUE, 20)
        assert (await anext(aiter(reader))).body == b"20"
        await reader.assign([])
        assert await reader.poll(0.01) == []
