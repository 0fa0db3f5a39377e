"""How popped messages end: acknowledgements that are refused, late, or beside a change."""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.scripted import ThreadedCluster

from penstock import Message, Producer, PushConsumer, SimpleConsumer, aio, embedded
from penstock.errors import PenstockError
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import Property
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command, decode_command
from penstock.protocol.frames import FrameDecoder
from penstock.protocol.headers.pop import PopMessageResult
from penstock.protocol.records.popped import with_handles

FRAMES = Path(__file__).parents[2] / "vectors/frames-5.5.0.jsonl.gz"
MESSAGES = 7
"""In the captured answer."""
BUSY = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLUSH_DISK_TIMEOUT)
ACKS = (RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE)


@functools.cache
def captured_pop() -> tuple[dict[str, str], bytes]:
    """The answer of an Apache broker to a pop."""
    with gzip.open(FRAMES, "rt") as lines:
        frames = [json.loads(line) for line in lines]
    asked = next(f for f in frames if f["step"] == "pop" and f["code"] == RequestCode.POP_MESSAGE)
    answer = next(
        f
        for f in frames
        if (f["opaque"], f["connection"]) == (asked["opaque"], asked["connection"])
        and f["flag"] & 1
    )
    command = decode_command(FrameDecoder().feed(bytes.fromhex(answer["frame_hex"]))[0])
    assert isinstance(command.body, bytes)
    return dict(command.ext or {}), command.body


def pops_once() -> Callable[..., Command]:
    """A script: messages in answer to the first pop, nothing afterwards."""
    is_first = [True]

    def answer(peer: object, request: Command) -> Command:
        if is_first.pop() if is_first else False:
            ext, body = captured_pop()
            return Command(ResponseCode.SUCCESS, ext=ext, body=body)
        return Command(ResponseCode.POLLING_TIMEOUT)

    return answer


def counted(answers: list[int], seen: list[float]) -> Callable[..., Command]:
    """A script that answers with these codes, the last one for ever."""

    def answer(peer: object, request: Command) -> Command:
        seen.append(time.monotonic())
        return Command(answers.pop(0) if len(answers) > 1 else answers[0])

    return answer


def eventually_true(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.spec("P82")
@pytest.mark.parametrize("code", BUSY)
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_receive_is_acknowledged_again_at_a_busy_broker(
    cluster: ThreadedCluster, code: int, is_batch: bool
) -> None:
    seen: list[float] = []
    cluster.broker.script[RequestCode.POP_MESSAGE] = pops_once()
    for ack in ACKS:
        cluster.broker.script[ack] = counted([code, code, 0], seen)
    consumer = SimpleConsumer("g", namesrv=cluster.namesrv)
    consumer.subscribe("T")
    with consumer:
        messages = consumer.receive(wait=5)
        assert len(messages) == MESSAGES
        if is_batch:
            consumer.ack_all(messages)
        else:
            consumer.ack(messages[0])
        assert len(seen) == 3


@pytest.mark.spec("P82")
def test_what_a_broker_refuses_for_good_is_not_tried_again(cluster: ThreadedCluster) -> None:
    seen: list[float] = []
    cluster.broker.script[RequestCode.POP_MESSAGE] = pops_once()
    cluster.broker.script[RequestCode.ACK_MESSAGE] = counted([ResponseCode.NO_MESSAGE], seen)
    consumer = SimpleConsumer("g", namesrv=cluster.namesrv)
    consumer.subscribe("T")
    with consumer:
        message, *_ = consumer.receive(wait=5)
        with pytest.raises(PenstockError):
            consumer.ack(message)
        assert len(seen) == 1


@pytest.mark.spec("P82")
def test_a_handled_message_is_acknowledged_again_at_a_busy_broker(
    cluster: ThreadedCluster,
) -> None:
    seen: list[float] = []
    script = cluster.broker.script
    script[RequestCode.POP_MESSAGE] = pops_once()
    script[RequestCode.QUERY_ASSIGNMENT] = lambda peer, request: Command(
        0, body=b'{"messageQueueAssignments":[]}'
    )
    for ack in ACKS:
        script[ack] = counted([ResponseCode.SERVICE_NOT_AVAILABLE] * 2 + [0], seen)
    handled: list[bytes] = []
    consumer: Any = PushConsumer("g", namesrv=cluster.namesrv, mode="pop")
    consumer.on("T")(lambda message: handled.append(message.body))
    with consumer:
        eventually_true(lambda: len(handled) == MESSAGES and not consumer._core.pop_runner.counts)
    assert len(seen) > 2


@pytest.mark.parametrize("dead", ["broker-a", "broker-b"])
def test_one_broker_that_refuses_keeps_no_acknowledgement_from_another(dead: str) -> None:
    names = ("broker-a", "broker-b")
    with ThreadedCluster(brokers=names) as cluster:
        cluster.cluster.add_topic("T")
        seen: dict[str, list[float]] = {name: [] for name in names}
        for name, broker in cluster.cluster.brokers.items():
            broker.script[RequestCode.POP_MESSAGE] = pops_once()
            code = ResponseCode.SYSTEM_ERROR if name == dead else ResponseCode.SUCCESS
            broker.script[RequestCode.BATCH_ACK_MESSAGE] = counted([code], seen[name])
        consumer = SimpleConsumer("g", namesrv=cluster.namesrv)
        consumer.subscribe("T")
        with consumer:
            messages = consumer.receive(wait=5) + consumer.receive(wait=5)
            assert {message.queue.broker_name for message in messages} == set(names)
            with pytest.raises(PenstockError):
                consumer.ack_all(messages)
        assert {name: len(times) for name, times in seen.items()} == dict.fromkeys(names, 1)


# In virtual time


@pytest.fixture
def mq() -> Iterator[Any]:
    with embedded(clock="virtual") as mq:
        mq.admin.create_topic("jobs", queues=1)
        yield mq


def send(mq: Any, *bodies: bytes) -> None:
    with Producer("p", namesrv=mq.namesrv) as producer:
        for body in bodies:
            producer.send(Message("jobs", body))


def test_an_acknowledgement_waits_for_a_change_that_is_under_way(mq: Any) -> None:
    send(mq, b"one")

    consumer = SimpleConsumer("workers", namesrv=mq.namesrv, start_from="first")
    consumer.subscribe("jobs")
    with consumer:
        (message,) = consumer.receive(wait=0)
        core = consumer._core

        async def both() -> None:
            await asyncio.gather(
                core.extend(message, 30.0), core.extend(message, 40.0), core.acknowledge([message])
            )

        consumer._host.run(both())
        mq.clock.advance("5m")
        assert consumer.receive(wait=0) == []


def test_a_block_may_use_up_an_iterator(mq: Any) -> None:
    send(mq, b"one", b"two")
    consumer = SimpleConsumer("workers", namesrv=mq.namesrv, start_from="first")
    consumer.subscribe("jobs")
    with consumer:
        with consumer.acknowledging(iter(consumer.receive(wait=0))) as messages:
            assert len(list(messages)) == 2
        mq.clock.advance("5m")
        assert consumer.receive(wait=0) == []


@pytest.mark.spec("P83")
def test_a_held_pop_of_a_stopped_consumer_swallows_nothing(mq: Any) -> None:
    got: list[bytes] = []
    # They share a session: its connection stays open when one of them stops.
    others: Any = PushConsumer("others", namesrv=mq.namesrv, mode="pop", instance="one")
    others.on("jobs")(lambda message: None)
    with others:
        stopped: Any = PushConsumer(
            "workers", namesrv=mq.namesrv, mode="pop", start_from="first", instance="one"
        )
        stopped.on("jobs")(lambda message: got.append(message.body))
        with stopped:
            mq.clock.advance("3s")
            assert stopped._core.session is others._core.session
        send(mq, b"one")
        mq.clock.advance("1ms")
        assert got == []
        other = SimpleConsumer("workers", namesrv=mq.namesrv, start_from="first", instance="i2")
        other.subscribe("jobs")
        with other:
            begun = mq.clock.monotonic()
            (message,) = other.receive(wait="5s")
            assert (message.body, message.reconsume_times) == (b"one", 0)
            assert mq.clock.monotonic() - begun < 2
            other.ack(message)


@pytest.mark.spec("P83")
def test_what_a_stopped_push_consumer_left_goes_to_others_soon() -> None:
    is_called, may_end = threading.Event(), threading.Event()
    # In real time: virtual time stands still while a handler runs.
    with embedded() as mq:
        mq.admin.create_topic("jobs", queues=1)
        consumer: Any = PushConsumer(
            "workers", namesrv=mq.namesrv, mode="pop", start_from="first", threads=1
        )

        def work(message: Any) -> None:
            is_called.set()
            may_end.wait(30)

        consumer.on("jobs")(work)
        other = SimpleConsumer("workers", namesrv=mq.namesrv, start_from="first", instance="i2")
        other.subscribe("jobs")
        with Producer("p", namesrv=mq.namesrv) as producer, other:
            with consumer:
                producer.send_batch([Message("jobs", b"%d" % i) for i in range(6)])
                assert is_called.wait(30)
                threading.Timer(0.3, may_end.set).start()
            found: list[StoredMessage] = []
            deadline = time.monotonic() + 20
            while len(found) < 5 and time.monotonic() < deadline:
                found += other.receive(wait=1)
            other.ack_all(found)
            assert len({message.body for message in found}) == len(found) == 5
            assert {message.reconsume_times for message in found} == {0}


async def test_the_awaiting_consumer_takes_iterators_too() -> None:
    async with aio.embedded(clock="virtual") as mq:
        await mq.admin.create_topic("jobs", queues=1)
        async with aio.Producer("p", namesrv=mq.namesrv) as producer:
            await producer.send(Message("jobs", b"one"))
        consumer = aio.SimpleConsumer("workers", namesrv=mq.namesrv, start_from="first")
        await consumer.subscribe("jobs")
        async with consumer:
            found = await consumer.receive(wait=0)
            async with consumer.acknowledging(iter(found)) as messages:
                assert len(messages) == 1
            await mq.clock.advance("5m")
            assert await consumer.receive(wait=0) == []


# Handles in records


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ("4 1700000000000 60000 2 1 broker-a 0 7", True),
        ("4 1700000000001 60000 2 1 broker-a 0 7", False),
        ("4 1700000000000 60000 2 1 broker-b 0 7", False),
        ("4 1700000000000 60000 2 1 broker-a 1 7", False),
        ("4 1700000000000 60000 2 1 broker-a 0 8", False),
        ("nonsense", False),
    ],
)
def test_a_handle_that_a_producer_sent_is_not_taken_for_the_broker_s(
    text: str, is_own: bool
) -> None:
    queue = MessageQueue("T", "broker-a", 0)
    message = StoredMessage("T", b"x", {Property.POP_RECEIPT: text}, queue, 7)
    result = PopMessageResult(1_700_000_000_000, 60_000, 3, 0, "0 0 5", "0 0 7")
    ((_, handle),) = with_handles([message], result, "g", "T")
    if is_own:
        assert handle is None
    else:
        assert str(handle) == "5 1700000000000 60000 3 0 broker-a 0 7"
