"""Embedded clusters in virtual time, from ordinary blocking code."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import (
    DeadLetter,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    RetryLater,
    StoredMessage,
    embedded,
)
from penstock.errors import LifecycleError, PenstockError, RemotingError
from penstock.testing.clock import DEFAULT_START
from penstock.testing.embedded import Embedded
from penstock.testing.virtual_time.loop import UnhandledInLoop, VirtualLoop
from penstock.testing.virtual_time.network import Conditions


@pytest.fixture
def mq() -> Iterator[Embedded]:
    with embedded(clock="virtual") as mq:
        yield mq


def consumer_of(mq: Embedded, group: str = "billing", **options: Any) -> PushConsumer:
    return PushConsumer(group, namesrv=mq.namesrv, start_from="first", **options)


def _note_body(bodies: list[bytes], message: StoredMessage) -> None:
    bodies.append(message.body)


def send(mq: Embedded, *bodies: bytes, topic: str = "orders", **fields: str) -> None:
    with Producer("shop", namesrv=mq.namesrv) as producer:
        for body in bodies:
            producer.send(Message(topic, body, **fields))  # type: ignore[arg-type]  # a test's shorthand


def test_time_stands_still_until_it_is_advanced(mq: Embedded) -> None:
    start = mq.clock.time()
    assert start == DEFAULT_START
    send(mq, b"1")
    mq.admin.create_topic("other", 1)
    assert mq.clock.time() == pytest.approx(start, abs=2)
    before = mq.clock.time_ms()
    mq.clock.advance("2h")
    assert mq.clock.time_ms() - before == 7_200_000
    mq.clock.advance(0.5)
    assert mq.clock.monotonic() > 7200


def test_messages_are_stamped_with_the_virtual_time(mq: Embedded) -> None:
    mq.clock.advance("1h")
    send(mq, b"1", keys="o-1")
    mq.clock.advance("1s")  # a topic that a send made is known to name servers a little later
    [found] = mq.admin.query("orders", "o-1")
    assert found.store_timestamp == pytest.approx((DEFAULT_START + 3600) * 1000, abs=2000)
    assert found.store_host.startswith("10.0.1.1:")


def test_a_handler_gets_its_message(mq: Embedded) -> None:
    got: list[bytes] = []
    consumer = consumer_of(mq)

    @consumer.on("orders")
    def bill(message: StoredMessage) -> None:
        got.append(message.body)

    with consumer:
        send(mq, b"1", b"2")
        mq.clock.advance("30s")
        assert sorted(got) == [b"1", b"2"]


def test_a_retry_after_two_hours_comes_at_once(mq: Embedded) -> None:
    handled: list[tuple[int, int]] = []
    consumer = consumer_of(mq)

    @consumer.on("orders")
    def bill(message: StoredMessage) -> None:
        handled.append((message.reconsume_times, mq.clock.time_ms()))
        if not message.reconsume_times:
            raise RetryLater("2h")

    send(mq, b"1")
    with consumer:
        mq.clock.advance("119m")
        assert [attempt for attempt, _ in handled] == [0]
        mq.clock.advance("2m")
    assert [attempt for attempt, _ in handled] == [0, 1]
    assert handled[1][1] - handled[0][1] == pytest.approx(7_200_000, abs=2_000)


def test_failures_end_in_the_dead_letter_topic_with_their_reason(mq: Embedded) -> None:
    attempts: list[int] = []
    consumer = consumer_of(mq, max_retries=5)

    @consumer.on("orders")
    def bill(message: StoredMessage) -> None:
        attempts.append(message.reconsume_times)
        raise ValueError("no such customer")

    send(mq, b"1", keys="o-1")
    with consumer:
        mq.clock.advance("10m")
    assert attempts == list(range(6))
    [letter] = mq.admin.dead_letters("billing")
    assert letter.message.body == b"1"
    assert letter.message.keys == ("o-1",)
    assert letter.origin_topic == "orders"
    assert letter.reason_type == "ValueError"
    assert letter.reason == "no such customer"


def test_a_dead_letter_is_there_at_once(mq: Embedded) -> None:
    consumer = consumer_of(mq)

    @consumer.on("orders")
    def bill(message: StoredMessage) -> None:
        raise DeadLetter("not ours")

    send(mq, b"1")
    with consumer:
        mq.clock.advance("5s")
    assert [letter.reason for letter in mq.admin.dead_letters("billing")] == ["not ours"]


def test_a_delayed_message_waits_its_level(mq: Embedded) -> None:
    got: list[bytes] = []
    consumer = consumer_of(mq)

    @consumer.on("orders")
    def bill(message: StoredMessage) -> None:
        got.append(message.body)

    mq.admin.create_topic("orders", 1)
    with consumer:
        send(mq, b"later", delay="10m")
        mq.clock.advance("9m 59s")
        assert got == []
        mq.clock.advance("2s")
        assert got == [b"later"]


def test_a_handler_may_send_and_wait_for_the_receipt(mq: Embedded) -> None:
    receipts: list[str] = []
    mq.admin.create_topic("orders", 1)
    mq.admin.create_topic("bills", 1)
    consumer = consumer_of(mq)
    with Producer("shop", namesrv=mq.namesrv) as producer:

        @consumer.on("orders")
        def bill(message: StoredMessage) -> None:
            receipts.append(producer.send(Message("bills", message.body)).queue.topic)
            receipts.append(",".join(mq.admin.topics()))

        producer.send(Message("orders", b"1"))
        with consumer:
            mq.clock.advance("5s")
    assert receipts == ["bills", "bills,orders"]


def test_a_request_is_replied_to(mq: Embedded) -> None:
    mq.admin.create_topic("questions", 1)
    consumer = consumer_of(mq)
    with Producer("shop", namesrv=mq.namesrv) as producer:

        @consumer.on("questions")
        def answer(message: StoredMessage) -> None:
            producer.reply(message, b"42")

        with consumer:
            mq.clock.advance("5s")
            assert producer.request(Message("questions", b"?"), "10s").body == b"42"


def test_coroutine_handlers_live_in_virtual_time_too(mq: Embedded) -> None:
    slept: list[float] = []
    consumer = consumer_of(mq)

    @consumer.on("orders")
    async def bill(message: StoredMessage) -> None:
        before = mq.clock.time()
        await asyncio.sleep(3600)
        slept.append(mq.clock.time() - before)

    send(mq, b"1")
    with consumer:
        mq.clock.advance("59m")
        assert slept == []
        mq.clock.advance("2m")
        assert slept == [pytest.approx(3600)]


def test_orderly_handlers_see_a_queue_in_order(mq: Embedded) -> None:
    got: list[bytes] = []
    mq.admin.create_topic("orders", 1)
    consumer = consumer_of(mq, orderly=True)

    @consumer.on("orders")
    def bill(message: StoredMessage) -> None:
        got.append(message.body)
        if message.body == b"2" and got.count(b"2") < 3:
            raise ValueError("not yet")

    send(mq, b"1", b"2", b"3")
    with consumer:
        mq.clock.advance("1m")
    assert got == [b"1", b"2", b"2", b"2", b"3"]


def test_polling_takes_virtual_time_only(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    with PullConsumer("g", namesrv=mq.namesrv, start_from="first") as consumer:
        consumer.subscribe("orders")
        before = mq.clock.time()
        assert consumer.poll("1h") == []
        assert mq.clock.time() - before == pytest.approx(3600, abs=1)
        send(mq, b"1")
        assert [message.body for message in consumer.poll("1m")] == [b"1"]


@pytest.mark.parametrize("linger", [0, 0.05])
def test_sends_that_are_not_waited_for_arrive(mq: Embedded, linger: float) -> None:
    mq.admin.create_topic("orders", 1)
    with Producer("shop", namesrv=mq.namesrv, linger=linger) as producer:
        futures = [producer.submit(Message("orders", b"%d" % number)) for number in range(10)]
        offsets = [future.result(timeout=30).queue_offset for future in futures]
    assert offsets == list(range(10))


def test_two_brokers_and_two_consumers_share_the_work() -> None:
    by_consumer: dict[str, list[bytes]] = {"one": [], "two": []}
    with embedded(brokers=2, clock="virtual") as mq:
        mq.admin.create_topic("orders", 4)
        consumers = []
        for name, got in by_consumer.items():
            consumer = consumer_of(mq, instance=name)
            consumer.on("orders")(functools.partial(_note_body, got))
            consumer.start()
            consumers.append(consumer)
        mq.clock.advance("30s")
        assert [len(consumer.assignment()) for consumer in consumers] == [4, 4]
        with Producer("shop", namesrv=mq.namesrv) as producer:
            sent = [producer.send(Message("orders", b"%d" % number)) for number in range(40)]
        mq.clock.advance("10s")
        for consumer in consumers:
            consumer.stop()
    assert {receipt.queue.broker_name for receipt in sent} == {"broker-a", "broker-b"}
    assert all(by_consumer.values())
    assert len(set().union(*by_consumer.values())) == 40


def test_the_network_can_be_slow_and_cut(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    with Producer("shop", namesrv=mq.namesrv, retries=0) as producer:
        producer.send(Message("orders", b"1"))
        mq.network.conditions = Conditions(latency=(0.5, 0.5))
        before = mq.clock.time()
        producer.send(Message("orders", b"2"))
        assert mq.clock.time() - before == pytest.approx(1.0, abs=0.01)
        mq.network.isolate("10.0.1.1")
        with pytest.raises(RemotingError):
            producer.send(Message("orders", b"3"), timeout="3s")
        mq.network.heal()
        mq.clock.advance("30s")
        producer.send(Message("orders", b"4"))


def test_the_wall_clock_can_jump(mq: Embedded) -> None:
    before = mq.clock.monotonic()
    mq.clock.jump("1h")
    assert mq.clock.time() == pytest.approx(DEFAULT_START + 3600, abs=1)
    mq.clock.jump(-7200)
    assert mq.clock.time() == pytest.approx(DEFAULT_START - 3600, abs=1)
    assert mq.clock.monotonic() == before


def test_several_threads_may_use_the_clients(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 4)
    with (
        Producer("shop", namesrv=mq.namesrv) as producer,
        ThreadPoolExecutor(4) as threads,
    ):
        bodies = [b"%d" % number for number in range(100)]
        list(threads.map(lambda body: producer.send(Message("orders", body)), bodies))
    assert sum(row.count for row in mq.admin.topic_stats("orders")) == 100


def test_its_name_means_something_only_while_it_runs() -> None:
    with embedded(clock="virtual") as mq:
        namesrv = mq.namesrv
        with embedded(clock="virtual") as other:
            assert other.namesrv != namesrv
            other.admin.create_topic("orders", 1)
            assert mq.admin.topics() == []
    with (
        Producer("shop", namesrv=namesrv, send_timeout=1, retries=0) as producer,
        pytest.raises(PenstockError, match=r"penstock\.invalid"),
    ):
        producer.send(Message("orders", b"1"))


def test_nothing_is_left_afterwards() -> None:
    before = set(threading.enumerate())
    with embedded(clock="virtual") as mq:
        data = mq.data
        send(mq, b"1")
    assert set(threading.enumerate()) == before
    assert not data.exists()


def test_what_is_stored_can_be_kept(tmp_path: object) -> None:
    with embedded(str(tmp_path), clock="virtual") as mq:
        send(mq, b"1", keys="o-1")
    with embedded(str(tmp_path), clock="virtual") as mq:
        assert [message.body for message in mq.admin.query("orders", "o-1")] == [b"1"]


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> list[int]:
        with embedded(clock=VirtualLoop(seed).clock, brokers=2) as mq:
            mq.admin.create_topic("orders", 8)
            with Producer("shop", namesrv=mq.namesrv) as producer:
                return [producer.send(Message("orders", b"x")).queue.queue_id for _ in range(5)]

    runs = [run(seed) for seed in (1, 1, 2, 3, 4)]
    assert runs[0] == runs[1]
    assert len({tuple(queues) for queues in runs}) > 1


def test_clients_that_outlive_their_cluster_are_named_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with embedded(clock="virtual") as mq:
        producer = Producer("shop", namesrv=mq.namesrv)
        producer.start()
        producer.send(Message("orders", b"1"))
        caplog.set_level(logging.WARNING)
    assert producer.client_id in caplog.text
    with pytest.raises(LifecycleError, match=r"embedded cluster \d+ has ended"):
        producer.send(Message("orders", b"2"))
    with pytest.raises(LifecycleError, match=r"embedded cluster \d+ has ended"):
        producer.stop()


def test_a_handler_cannot_advance_the_clock_it_is_waited_for_with(mq: Embedded) -> None:
    errors: list[str] = []
    consumer = consumer_of(mq)

    @consumer.on("orders")
    def bill(message: StoredMessage) -> None:
        try:
            mq.clock.advance("1s")
        except LifecycleError as error:
            errors.append(str(error))

    send(mq, b"1")
    with consumer:
        mq.clock.advance("5s")
    assert len(errors) == 1
    assert "called by a handler" in errors[0]


def test_a_callback_that_failed_unseen_fails_the_block(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    mq = embedded(clock="virtual")
    mq.__enter__()
    mq._embedding.host.call_soon(fail)
    with pytest.raises(UnhandledInLoop, match="embedded cluster"):
        mq.__exit__(None, None, None)


def test_a_clock_whose_loop_runs_elsewhere_is_refused() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        with pytest.raises(LifecycleError, match=r"penstock\.aio\.embedded"):
            embedded(clock=loop.clock).__enter__()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
