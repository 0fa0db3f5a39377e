"""A send waits out a restart: brokers that are down, name servers without a route."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
from tests.support.loop_clients import Bench, on_bench
from tests.support.scripted import ThreadedCluster

from penstock import Message, MessageQueue, Producer, aio
from penstock.client.producing.producer import ProducerCore
from penstock.client.producing.receipts import Receipt
from penstock.errors import (
    ConnectFailed,
    ConnectionLost,
    NameserverUnavailable,
    PenstockError,
    RequestTimeout,
    TopicNotFound,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.remoting.peer import Peer
from penstock.remoting.promise import Promise

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
TWO_BROKERS = ("broker-a", "broker-b")
PLAIN = Message("T", b"x")
QUEUE = MessageQueue("T", "broker-a", 1)

SENDS: dict[str, Callable[[ProducerCore], Awaitable[Receipt]]] = {
    "plain": lambda producer: producer.deliver(PLAIN),
    "to a queue": lambda producer: producer.deliver(PLAIN, queue=QUEUE),
    "by key": lambda producer: producer.deliver(Message("T", b"x", sharding_key="o-1")),
    "batch": lambda producer: producer.send_batch([PLAIN, PLAIN]),
}


def later(bench: Bench, seconds: float, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    async def wait() -> None:
        await asyncio.sleep(seconds)
        await work()

    return bench.loop.create_task(wait())


@pytest.mark.parametrize("linger", [0.0, 0.01])
@pytest.mark.parametrize("how", SENDS)
@on_bench()
async def test_a_send_waits_for_a_broker_that_restarts(
    bench: Bench, how: str, linger: float
) -> None:
    producer = bench.producer(linger=linger)
    await SENDS[how](producer)
    stored = len(bench.broker.sent)
    await bench.broker.go_down()
    later(bench, 2.4, bench.broker.come_back)
    receipt = await SENDS[how](producer)
    assert receipt.attempts > 1
    assert len(bench.broker.sent) == stored + 1


@on_bench()
async def test_many_sends_through_a_restart_lose_none_and_need_few_connections(
    bench: Bench,
) -> None:
    producer = bench.producer()
    await producer.deliver(PLAIN)
    await bench.broker.go_down()
    later(bench, 2.0, bench.broker.come_back)
    receipts = await asyncio.gather(*(producer.deliver(PLAIN) for _ in range(500)))
    assert len({receipt.msg_id for receipt in receipts}) == 500
    assert max(receipt.attempts for receipt in receipts) < 20
    assert len(bench.broker.peers) == 1


@on_bench()
async def test_the_answer_lost_in_a_restart_is_asked_for_again(bench: Bench) -> None:
    producer = bench.producer()
    await producer.deliver(PLAIN)
    for code in (SEND, BATCH):
        bench.broker.script[code] = lambda peer, request: Promise()
    sends = [bench.loop.create_task(one(producer)) for one in SENDS.values()]
    await asyncio.sleep(0.1)
    await bench.broker.go_down()
    bench.broker.script.clear()
    later(bench, 1.0, bench.broker.come_back)
    for receipt in await asyncio.gather(*sends):
        assert receipt.attempts > 1


@on_bench()
async def test_a_broker_that_comes_back_elsewhere_is_found(bench: Bench) -> None:
    producer = bench.producer()
    await producer.deliver(PLAIN)
    before = bench.broker.address
    await bench.broker.go_down()
    later(bench, 1.0, lambda: bench.broker.come_back(same_port=False))
    await producer.deliver(PLAIN)
    assert bench.broker.address != before


@pytest.mark.parametrize("seconds", [1.0, 5.0])
@on_bench()
async def test_the_error_names_the_attempts_and_the_time(bench: Bench, seconds: float) -> None:
    producer = bench.producer(send_timeout=seconds)
    await producer.deliver(PLAIN)
    await bench.broker.go_down()
    await asyncio.sleep(0.1)  # until the client has seen that the connection is lost
    begun = bench.loop.time()
    with pytest.raises(ConnectFailed) as caught:
        await producer.deliver(PLAIN)
    took = bench.loop.time() - begun
    assert seconds - 0.6 <= took <= seconds
    found = re.search(r"not sent after (\d+) attempts within (\d\.\d) s", str(caught.value))
    assert found is not None
    assert int(found[1]) >= 3
    assert float(found[2]) == pytest.approx(took, abs=0.1)


@on_bench()
async def test_what_may_be_stored_is_not_called_unsent(bench: Bench) -> None:
    producer = bench.producer()
    await producer.deliver(PLAIN)
    bench.broker.script[SEND] = lambda peer, request: Promise()
    sending = bench.loop.create_task(producer.deliver(PLAIN))
    await asyncio.sleep(0.1)
    await bench.broker.go_down()
    with pytest.raises(ConnectFailed, match=r"not confirmed after \d+ attempts within"):
        await sending


@on_bench()
async def test_name_servers_that_are_down_are_waited_for(bench: Bench) -> None:
    nameserver = bench.cluster.nameserver
    producer = bench.producer()
    session = producer.session
    address = nameserver.address
    await nameserver.go_down()
    with pytest.raises(NameserverUnavailable, match=r"not sent after \d+ attempts within"):
        await producer.deliver(PLAIN, timeout=1.0)
    later(bench, 2.0, nameserver.come_back)
    await producer.deliver(PLAIN)
    assert session.nameservers.current == address


@on_bench(topics={})
async def test_a_route_that_is_missing_is_waited_for(bench: Bench) -> None:
    producer = bench.producer()

    async def create() -> None:
        bench.cluster.add_topic("T")

    begun = bench.loop.time()
    with pytest.raises(TopicNotFound, match=r"not sent after \d+ attempts within .*topic create T"):
        await producer.deliver(PLAIN)
    assert 2.4 <= bench.loop.time() - begun <= 3.0
    later(bench, 1.5, create)
    await producer.deliver(PLAIN)
    queues = await asyncio.gather(
        *(producer.wait_for_queues("T", 3.0) for _ in range(2)), return_exceptions=True
    )
    assert [len(some) for some in queues if isinstance(some, tuple)] == [4, 4]


@on_bench(brokers=TWO_BROKERS)
async def test_while_one_broker_is_up_no_send_waits(bench: Bench) -> None:
    producer = bench.producer()
    await producer.deliver(PLAIN)
    await bench.broker.go_down()
    begun = bench.loop.time()
    receipts = [await producer.deliver(PLAIN) for _ in range(8)]
    assert {receipt.queue.broker_name for receipt in receipts} == {"broker-b"}
    assert bench.loop.time() - begun < 0.5


@on_bench(brokers=("broker-a", "broker-b", "broker-c"))
async def test_each_broker_is_tried_before_the_first_pause(bench: Bench) -> None:
    producer = bench.producer()
    for name in ("broker-a", "broker-b"):
        await bench.cluster.broker(name).go_down()
    for _ in range(6):
        await producer.deliver(PLAIN)
    assert len(bench.cluster.broker("broker-c").sent) == 6
    assert bench.loop.time() < 0.5


@on_bench(brokers=TWO_BROKERS)
async def test_no_attempt_begins_after_the_time_is_up(bench: Bench) -> None:
    for broker in bench.cluster.brokers.values():
        broker.script[SEND] = lambda peer, request: Promise()
    producer = bench.producer(retries=10)
    await producer.queues("T")
    begun = bench.loop.time()
    with pytest.raises(RequestTimeout, match="not confirmed in one attempt"):
        await producer.deliver(PLAIN, timeout=2.0)
    await asyncio.sleep(5)
    asked = [one for broker in bench.cluster.brokers.values() for one in broker.asked(SEND)]
    assert [one.at for one in asked] == [pytest.approx(begun, abs=0.5)]


@on_bench()
async def test_refusals_use_up_the_retries_with_pauses_between(bench: Bench) -> None:
    bench.broker.script[SEND] = lambda peer, request: Command(ResponseCode.SYSTEM_BUSY)
    producer = bench.producer(retries=3)
    with pytest.raises(PenstockError):
        await producer.deliver(PLAIN)
    times = [one.at for one in bench.broker.asked(SEND)]
    assert len(times) == 4
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[0] >= 0.025


@on_bench()
async def test_a_lost_answer_uses_up_a_retry(bench: Bench) -> None:
    def hang_up(peer: Peer, request: Command) -> None:
        peer.abort("for a test")

    bench.broker.script.update({SEND: hang_up, BATCH: hang_up})
    producer = bench.producer(send_timeout=60)
    for how in SENDS.values():
        bench.broker.forget()
        with pytest.raises(ConnectionLost, match="not confirmed after 3 attempts within"):
            await how(producer)


@on_bench()
async def test_an_abandoned_send_is_not_made_after_all(bench: Bench) -> None:
    producer = bench.producer(send_timeout=60)
    await producer.deliver(PLAIN)
    await bench.broker.go_down()
    sending = bench.loop.create_task(producer.deliver(PLAIN))
    await asyncio.sleep(1)
    await producer.stop(0.5)
    with pytest.raises(PenstockError, match="not running"):
        await sending
    await bench.broker.come_back()
    await asyncio.sleep(5)
    assert len(bench.broker.sent) == 1


@on_bench()
async def test_a_long_outage_is_a_dozen_log_lines(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    producer = bench.producer(send_timeout=600)
    await producer.deliver(PLAIN)
    await bench.broker.go_down()
    with pytest.raises(ConnectFailed):
        await producer.deliver(PLAIN)
    assert 5 <= caplog.text.count("cannot connect address=") <= 12


def test_both_faces_wait_out_a_restart(
    cluster: ThreadedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def choose(queues: object, message: Message) -> MessageQueue:
        return QUEUE

    def come_back_later() -> None:
        """Start the broker again when a client has failed to connect."""
        deadline = time.monotonic() + 60
        while "cannot connect" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.02)
        cluster.run(cluster.broker.come_back())

    def restart() -> threading.Thread:
        caplog.clear()
        cluster.run(cluster.broker.go_down())
        thread = threading.Thread(target=come_back_later)
        thread.start()
        return thread

    with Producer("shop", namesrv=cluster.namesrv, send_timeout="50s") as producer:
        for _ in range(2):
            producer.send(PLAIN)
        coming = restart()
        assert producer.send(PLAIN).attempts > 1
        coming.join()
        coming = restart()
        receipt = producer.submit(PLAIN, queue=choose).result()
        assert (receipt.queue, receipt.attempts > 1) == (QUEUE, True)
        coming.join()

    async def face() -> None:
        async with aio.Producer("shop", namesrv=cluster.namesrv, send_timeout="50s") as producer:
            await producer.send(PLAIN)
            coming = await asyncio.to_thread(restart)
            assert (await producer.send(PLAIN)).attempts > 1
            await asyncio.to_thread(coming.join)

    asyncio.run(face())
    assert len(cluster.broker.sent) == 6
