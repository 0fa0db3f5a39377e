"""Middleware around sends, on both faces."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from tests.support.scripted import ThreadedCluster

from penstock import Message, MessageQueue, Producer, Receipt, aio, embedded
from penstock.client.middleware import Middleware, SendCall
from penstock.errors import ConfigError, IllegalMessage, InvalidArgument, PenstockError
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.testing.eventually import eventually

QUEUE = MessageQueue("T", "broker-a", 0)
SEND = RequestCode.SEND_MESSAGE_V2


class Noting(Middleware):
    """Notes every call, with the thread it was made on."""

    __slots__ = ("calls", "log", "name", "threads")

    def __init__(self, log: list[str] | None = None, name: str = "") -> None:
        self.log = [] if log is None else log
        self.name = name
        self.calls: list[SendCall] = []
        self.threads: list[int] = []

    def before_send(self, call: SendCall) -> None:
        self.log.append(f"before {self.name}".strip())
        self.threads.append(threading.get_ident())

    def after_send(self, call: SendCall) -> None:
        self.log.append(f"after {self.name}".strip())
        self.calls.append(call)
        self.threads.append(threading.get_ident())


class Refusing(Middleware):
    def before_send(self, call: SendCall) -> None:
        raise ValueError("not today")


class Awaiting(Noting):
    """The same with coroutine functions."""

    __slots__ = ()

    async def before_send(self, call: SendCall) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().before_send(call)

    async def after_send(self, call: SendCall) -> None:  # type: ignore[override]
        await asyncio.sleep(0.01)
        super().after_send(call)


def refuse(cluster: ThreadedCluster, code: int = ResponseCode.MESSAGE_ILLEGAL) -> None:
    cluster.broker.script[SEND] = lambda peer, request: Command(code, remark="no")


# ------------------------------------------------------------------------------ blocking


def test_it_runs_in_order_around_a_send_and_sees_the_receipt(cluster: ThreadedCluster) -> None:
    log: list[str] = []
    first, second = Noting(log, "first"), Noting(log, "second")
    with Producer("shop", namesrv=cluster.namesrv, middleware=(first, second)) as producer:
        receipt = producer.send(Message("T", b"x"))
        assert log == ["before first", "before second", "after second", "after first"]
        [call] = first.calls
        assert (call.group, call.receipt, call.queue) == ("shop", receipt, receipt.queue)
        assert (call.attempts, call.error) == (1, None)
        assert [message.body for message in call.messages] == [b"x"]
        producer.send(Message("T", b"y"))  # over a connection of this thread's own
        assert len(first.calls) == 2
    assert set(first.threads) == {threading.get_ident()}


def test_every_way_to_send_passes_through_it(cluster: ThreadedCluster) -> None:
    noting = Noting()
    with Producer("shop", namesrv=cluster.namesrv, middleware=[noting]) as producer:
        producer.send(Message("T", b"1"), queue=QUEUE)
        producer.send_batch([Message("T", b"2"), Message("T", b"3")])
        producer.send_oneway(Message("T", b"4"))
        producer.send_in_transaction(Message("T", b"5"), lambda message: True)
        with pytest.raises(PenstockError, match="no reply"):
            producer.request(Message("T", b"6"), "50ms")
        producer.submit(Message("T", b"7")).result(10)
    bodies = [[message.body for message in call.messages] for call in noting.calls]
    assert bodies == [[b"1"], [b"2", b"3"], [b"4"], [b"5"], [b"6"], [b"7"]]
    one, batch, oneway, half, request, submitted = noting.calls
    assert one.queue == QUEUE
    assert batch.receipt is not None
    assert len(batch.receipt.msg_ids) == 2
    assert oneway.receipt is None
    assert (oneway.error, oneway.attempts) == (None, 1)
    assert half.receipt is not None
    assert isinstance(request.error, PenstockError)
    assert submitted.receipt is not None


def test_the_future_of_a_submit_has_its_result_after_every_after_send(
    cluster: ThreadedCluster,
) -> None:
    may_end = threading.Event()

    class Slow(Noting):
        __slots__ = ()

        def after_send(self, call: SendCall) -> None:
            may_end.wait(10)
            super().after_send(call)

    slow = Slow()
    with Producer("shop", namesrv=cluster.namesrv, middleware=[slow]) as producer:
        futures = [producer.submit(Message("T", b"x")) for _ in range(20)]
        # Meanwhile the session goes on and answers.
        assert len(producer.queues("T")) == 4
        assert not any(future.done() for future in futures)
        may_end.set()
        receipts = [future.result(10) for future in futures]
    assert [call.receipt for call in slow.calls] == receipts
    before, after = slow.threads[0], slow.threads[-1]
    assert before == threading.get_ident() != after


def test_stop_waits_until_after_send_has_seen_every_result(cluster: ThreadedCluster) -> None:
    noting = Noting()
    producer = Producer("shop", namesrv=cluster.namesrv, middleware=[noting])
    producer.start()
    futures = [producer.submit(Message("T", b"x")) for _ in range(50)]
    producer.stop()
    assert len(noting.calls) == 50
    assert all(future.done() for future in futures)


def test_a_lingering_send_passes_through_it(cluster: ThreadedCluster) -> None:
    noting = Noting()
    with Producer("shop", namesrv=cluster.namesrv, linger="20ms", middleware=[noting]) as producer:
        futures = [producer.submit(Message("T", b"%d" % number)) for number in range(10)]
        receipts = [future.result(10) for future in futures]
    assert {call.receipt for call in noting.calls} == set(receipts)


def test_it_may_replace_messages_and_not_their_number(cluster: ThreadedCluster) -> None:
    class Adding(Middleware):
        def before_send(self, call: SendCall) -> None:
            call.messages = [
                replace(message, properties={"traceparent": "00-1"}) for message in call.messages
            ]

    class Losing(Middleware):
        def before_send(self, call: SendCall) -> None:
            call.messages = ()

    with Producer("shop", namesrv=cluster.namesrv, middleware=[Adding()]) as producer:
        producer.send(Message("T", b"x"))
        producer.submit(Message("T", b"x")).result(10)
    sent = [request.ext["i"] for request in cluster.broker.asked(SEND)]
    assert all("traceparent\x0100-1" in properties for properties in sent)
    with (
        Producer("shop", namesrv=cluster.namesrv, middleware=[Losing()]) as producer,
        pytest.raises(InvalidArgument, match="made 0 messages of 1"),
    ):
        producer.send(Message("T", b"x"))


def test_an_error_reaches_after_send_and_the_caller(cluster: ThreadedCluster) -> None:
    refuse(cluster)
    noting = Noting()
    with Producer("shop", namesrv=cluster.namesrv, middleware=[noting]) as producer:
        with pytest.raises(PenstockError) as raised:
            producer.send(Message("T", b"x"))
        with pytest.raises(PenstockError) as of_future:
            producer.submit(Message("T", b"x")).result(10)
        with pytest.raises(IllegalMessage):
            producer.send(Message("T", "text"))  # type: ignore[arg-type]
    errors = [call.error for call in noting.calls]
    assert errors[:2] == [raised.value, of_future.value]
    assert isinstance(errors[2], IllegalMessage)
    assert [call.attempts for call in noting.calls] == [1, 1, 0]
    assert all(call.receipt is None for call in noting.calls)


def test_attempts_are_counted(cluster: ThreadedCluster) -> None:
    refuse(cluster, ResponseCode.SYSTEM_BUSY)
    noting = Noting()
    with Producer("shop", namesrv=cluster.namesrv, retries=2, middleware=[noting]) as producer:
        with pytest.raises(PenstockError):
            producer.send(Message("T", b"x"))

        def second_time(peer: Any, request: Command) -> Command | None:
            del cluster.broker.script[SEND]
            return Command(ResponseCode.SYSTEM_BUSY)

        cluster.broker.script[SEND] = second_time
        assert producer.send(Message("T", b"x")).attempts == 2
    assert [call.attempts for call in noting.calls] == [3, 2]


def test_a_before_send_that_raises_fails_the_send(cluster: ThreadedCluster) -> None:
    outer, inner = Noting(), Noting()
    chain = (outer, Refusing(), inner)
    with Producer("shop", namesrv=cluster.namesrv, middleware=chain) as producer:
        with pytest.raises(ValueError, match="not today"):
            producer.send(Message("T", b"x"))
        future = producer.submit(Message("T", b"x"))
        with pytest.raises(ValueError, match="not today"):
            future.result(10)
    assert not cluster.broker.asked(SEND)
    assert [str(call.error) for call in outer.calls] == ["not today"] * 2
    assert inner.log == []


def test_an_after_send_that_raises_is_logged(
    cluster: ThreadedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Middleware):
        def after_send(self, call: SendCall) -> None:
            raise ValueError("the database is down")

    noting = Noting()
    chain = (noting, Failing())
    with Producer("shop", namesrv=cluster.namesrv, middleware=chain) as producer:
        producer.send(Message("T", b"x"))
        producer.submit(Message("T", b"x")).result(10)
    assert len(noting.calls) == 2
    assert caplog.text.count("the database is down") >= 2


def test_what_is_no_middleware_and_what_a_blocking_producer_cannot_await_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"middleware has .*expected objects of Middleware"):
        Producer("shop", middleware=[print])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match=r"coroutine functions.*penstock\.aio\.Producer"):
        Producer("shop", middleware=[Awaiting()])
    aio.Producer("shop", middleware=[Awaiting()])


def test_it_works_on_a_virtual_clock() -> None:
    noting = Noting()
    with embedded(clock="virtual") as mq:
        mq.admin.create_topic("T", queues=1)
        with Producer("shop", namesrv=mq.namesrv, middleware=[noting], linger=1) as producer:
            futures = [producer.submit(Message("T", b"x")) for _ in range(3)]
            receipts = [future.result(10) for future in futures]
            receipts.append(producer.send(Message("T", b"y")))
    assert [call.receipt for call in noting.calls] == receipts


# ------------------------------------------------------------------------------- awaiting


@pytest.mark.parametrize("kind", [Noting, Awaiting])
async def test_every_awaited_way_to_send_passes_through_it(
    cluster: ThreadedCluster, kind: Callable[[], Noting]
) -> None:
    async def commit(message: Message) -> bool:
        return True

    noting = kind()
    async with aio.Producer("shop", namesrv=cluster.namesrv, middleware=[noting]) as producer:
        receipt = await producer.send(Message("T", b"1"), queue=QUEUE)
        await producer.send_batch([Message("T", b"2"), Message("T", b"3")])
        await producer.send_oneway(Message("T", b"4"))
        await producer.send_in_transaction(Message("T", b"5"), commit)
        with pytest.raises(PenstockError, match="no reply"):
            await producer.request(Message("T", b"6"), "50ms")
        future = await producer.submit(Message("T", b"7"))
        assert len(noting.calls) == 5
        submitted = await future
    bodies = [[message.body for message in call.messages] for call in noting.calls]
    assert bodies == [[b"1"], [b"2", b"3"], [b"4"], [b"5"], [b"6"], [b"7"]]
    assert (noting.calls[0].receipt, noting.calls[-1].receipt) == (receipt, submitted)
    assert set(noting.threads) == {threading.get_ident()}


async def test_errors_reach_an_awaited_after_send(cluster: ThreadedCluster) -> None:
    refuse(cluster)
    outer, refusing = Awaiting(), Refusing()
    async with aio.Producer("shop", namesrv=cluster.namesrv, middleware=[outer]) as producer:
        with pytest.raises(PenstockError) as raised:
            await producer.send(Message("T", b"x"))
        with pytest.raises(PenstockError) as of_future:
            await (await producer.submit(Message("T", b"x")))
    assert [call.error for call in outer.calls] == [raised.value, of_future.value]
    chain = (outer, refusing)
    async with aio.Producer("shop", namesrv=cluster.namesrv, middleware=chain) as producer:
        with pytest.raises(ValueError, match="not today"):
            await producer.send(Message("T", b"x"))
        future = await producer.submit(Message("T", b"x"))
        with pytest.raises(ValueError, match="not today"):
            await future
    assert len(outer.calls) == 4


async def test_stop_awaits_after_send_of_what_was_submitted(cluster: ThreadedCluster) -> None:
    noting = Awaiting()
    producer = aio.Producer("shop", namesrv=cluster.namesrv, middleware=[noting])
    await producer.start()
    futures = [await producer.submit(Message("T", b"x")) for _ in range(20)]
    await producer.stop()
    assert len(noting.calls) == 20
    assert all(future.done() for future in futures)


async def test_a_submit_that_was_cancelled_is_still_seen(cluster: ThreadedCluster) -> None:
    noting = Noting()
    async with aio.Producer("shop", namesrv=cluster.namesrv, middleware=[noting]) as producer:
        future = await producer.submit(Message("T", b"x"))
        future.cancel()
        await eventually(lambda: noting.calls)
    assert isinstance(noting.calls[0].receipt, Receipt)


def test_a_callback_of_a_future_comes_after_it(cluster: ThreadedCluster) -> None:
    log: list[str] = []
    noting = Noting(log)
    with Producer("shop", namesrv=cluster.namesrv, middleware=[noting]) as producer:
        future = producer.submit(Message("T", b"x"))

        def called(done: Future[Receipt]) -> None:
            log.append("callback")

        future.add_done_callback(called)
        future.result(10)
    assert log == ["before", "after", "callback"]
