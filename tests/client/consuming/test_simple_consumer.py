"""`SimpleConsumer`: receive, acknowledge, extend, reject, and what others get."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.scripted import ThreadedCluster

from penstock import Message, Producer, PushConsumer, ReceiptExpired, SimpleConsumer, embedded
from penstock.errors import InvalidArgument, LifecycleError, RequestCodeNotSupported
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command


@pytest.fixture
def mq() -> Iterator[Any]:
    with embedded(clock="virtual") as mq:
        mq.admin.create_topic("jobs", queues=2)
        yield mq


def send(mq: Any, *bodies: bytes, tag: str | None = None) -> None:
    with Producer("p", namesrv=mq.namesrv) as producer:
        for body in bodies:
            producer.send(Message("jobs", body, tag=tag))


def worker(mq: Any, **more: Any) -> SimpleConsumer:
    consumer = SimpleConsumer("workers", namesrv=mq.namesrv, start_from="first", **more)
    consumer.subscribe("jobs")
    return consumer


def test_an_acknowledged_message_never_comes_again(mq: Any) -> None:
    send(mq, b"one", b"two")
    with worker(mq) as consumer:
        first, second = sorted(
            consumer.receive(wait=0) + consumer.receive(wait=0), key=lambda one: one.body
        )
        assert (first.topic, first.body) == ("jobs", b"one")
        consumer.ack(first)
        assert consumer.receive(wait=0) == []
        mq.clock.advance("31s")
        (again,) = consumer.receive(wait="1s")
        assert (again.body, again.topic, again.reconsume_times) == (b"two", "jobs", 1)
        consumer.ack_all([again])
        with pytest.raises(ReceiptExpired, match="is delivered again"):
            consumer.ack(second)
        mq.clock.advance("2m")
        assert consumer.receive(wait=0) == []


def test_an_empty_receive_takes_its_time_and_ends(mq: Any) -> None:
    with worker(mq) as consumer:
        begun = mq.clock.monotonic()
        assert consumer.receive(wait="3s") == []
        assert mq.clock.monotonic() - begun == pytest.approx(3, abs=0.1)


def test_receipts_whose_time_is_up_are_not_kept(mq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.consuming.simple_consumer.SWEEP_AT", 4)
    with worker(mq, invisible="1s") as consumer:
        send(mq, b"kept")
        (kept,) = consumer.receive(wait="1s")
        consumer.extend(kept, "1h")
        send(mq, *(b"%d" % i for i in range(4)))
        for _ in range(30):
            consumer.receive(wait="1s")
            mq.clock.advance("2s")
        # What comes again and again is forgotten each time, behind one that is kept for long.
        assert len(consumer._core._open) <= 16
        consumer.ack(kept)


def test_extend_keeps_a_message_and_reject_gives_it_back(mq: Any) -> None:
    send(mq, b"long")
    with worker(mq) as consumer:
        (message,) = consumer.receive(wait=0)
        mq.clock.advance("20s")
        consumer.extend(message, "1m")
        mq.clock.advance("40s")
        assert consumer.receive(wait=0) == []
        consumer.reject(message)
        (again,) = consumer.receive(wait="2s")
        assert again.reconsume_times == 1
        consumer.ack(again)


@pytest.mark.spec("P83")
def test_what_a_stopped_consumer_left_goes_to_others_soon(mq: Any) -> None:
    send(mq, *(b"%d" % i for i in range(5)))
    with worker(mq, invisible="10m") as leaving:
        left = leaving.receive(wait=0) + leaving.receive(wait=0)
        assert len(left) == 5
    with worker(mq) as other:
        assert other.receive(wait=0) == []
        mq.clock.advance("1.6s")
        found = other.receive(32, wait=0)
        assert sorted(one.body for one in found) == [b"%d" % i for i in range(5)]
        assert {one.reconsume_times for one in found} == {0}


def test_a_block_acknowledges_when_it_ends_well_and_rejects_when_it_raises(mq: Any) -> None:
    send(mq, b"one")
    with worker(mq) as consumer:
        with pytest.raises(RuntimeError), consumer.acknowledging(consumer.receive(wait=0)):
            raise RuntimeError("failed")
        with consumer.acknowledging(consumer.receive(wait="2s")) as messages:
            assert len(messages) == 1
        mq.clock.advance("5m")
        assert consumer.receive(wait=0) == []


def test_wrong_use_is_refused_with_the_reason(mq: Any) -> None:
    with pytest.raises(InvalidArgument, match="invisible"):
        SimpleConsumer("g", namesrv=mq.namesrv, invisible=0)
    consumer = SimpleConsumer("g", namesrv=mq.namesrv)
    with pytest.raises(LifecycleError, match="not running"):
        consumer.receive()
    with consumer:
        with pytest.raises(LifecycleError, match="no subscription"):
            consumer.receive(wait=0)
        consumer.subscribe("jobs")
        with pytest.raises(InvalidArgument, match="max_messages"):
            consumer.receive(33)


@pytest.mark.spec("P84")
def test_a_broker_without_pop_is_named(cluster: ThreadedCluster) -> None:
    for code in (RequestCode.POP_MESSAGE, RequestCode.QUERY_ASSIGNMENT):
        cluster.broker.script[code] = lambda peer, request: Command(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=" request type not supported"
        )
    consumer = SimpleConsumer("g", namesrv=cluster.namesrv)
    consumer.subscribe("T")
    with consumer, pytest.raises(RequestCodeNotSupported, match=r"RocketMQ 5\.0 or newer; 4\.9"):
        consumer.receive(wait=0)
    pushed: Any = PushConsumer("h", namesrv=cluster.namesrv, mode="pop")
    pushed.on("T")(lambda message: None)
    with pytest.raises(RequestCodeNotSupported, match=r"4\.9 has no pop consumption"):
        pushed.start()
