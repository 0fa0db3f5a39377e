"""Waited-for sends made by the thread that waits, on real threads and sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scripted import ThreadedCluster

from penstock import Message, MessageQueue, PenstockError, Producer, Receipt
from penstock.client.producing.blocking_send import MAX_LINES
from penstock.client.session import session_registry
from penstock.client.session.loop_thread import LoopThread
from penstock.errors import RequestTimeout
from penstock.model.properties import parse_properties
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.send import decode_send_v2
from penstock.remoting.peer import Peer
from penstock.remoting.promise import Promise

SEND = RequestCode.SEND_MESSAGE_V2
QUEUE = MessageQueue("T", "broker-a", 1)


def senders(cluster: ThreadedCluster) -> list[Peer]:
    """The connections messages came over, in order."""
    return [request.peer for request in cluster.broker.asked(SEND)]


@pytest.fixture
def producer(cluster: ThreadedCluster) -> Iterator[Producer]:
    """One that has sent before, so that its route is known and its connection open."""
    with Producer(group="shop", namesrv=cluster.namesrv) as producer:
        producer.send(Message("T", b"first"))
        yield producer


def answered(
    *answers: Callable[[], Command | Promise],
) -> Callable[[Peer, Command], Command | Promise]:
    """A script that answers in turn, and then with the last one for ever."""
    turns = list(answers)

    def script(peer: Peer, request: Command) -> Command | Promise:
        return (turns.pop(0) if len(turns) > 1 else turns[0])()

    return script


def stored() -> Command:
    ext = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "1", "queueOffset": "7"}
    return Command(ResponseCode.SUCCESS, ext=ext)


def busy() -> Command:
    return Command(ResponseCode.SYSTEM_BUSY, remark="busy")


def test_the_session_has_no_part_in_a_usual_send(
    cluster: ThreadedCluster, producer: Producer
) -> None:
    go_on = threading.Event()
    producer._host.call_soon(go_on.wait, 60)
    try:
        receipts = [producer.send(Message("T", b"x")) for _ in range(8)]
        assert not go_on.is_set()
    finally:
        go_on.set()
    assert {receipt.queue.queue_id for receipt in receipts} == {0, 1, 2, 3}
    first, *rest = senders(cluster)
    assert len(set(rest)) == 1
    assert first not in rest


def test_what_was_submitted_is_not_overtaken(cluster: ThreadedCluster, producer: Producer) -> None:
    futures = [producer.submit(Message("T", b"x"), queue=QUEUE) for _ in range(500)]
    last = producer.send(Message("T", b"x"), queue=QUEUE)
    assert [future.result(10).queue_offset for future in futures] == list(
        range(last.queue_offset - 500, last.queue_offset)
    )


class MeetingHost(LoopThread):
    """The usual host, on which something happens just before a thread may send by itself."""

    meanwhile: Callable[[], object] | None = None

    def may_send_directly(self) -> bool:
        if self.meanwhile is not None:
            self.meanwhile()
        return super().may_send_directly()


def test_a_send_goes_on_when_another_thread_submits_at_that_moment(
    cluster: ThreadedCluster,
) -> None:
    host = MeetingHost("penstock meeting")
    session_registry.use_host(cluster.namesrv, host)
    try:
        with (
            Producer(group="shop", namesrv=cluster.namesrv) as producer,
            ThreadPoolExecutor(1) as threads,
        ):
            producer.send(Message("T", b"first"))
            host.meanwhile = lambda: threads.submit(producer.submit, Message("T", b"x")).result(10)
            assert producer.send(Message("T", b"sent")).msg_id
    finally:
        session_registry.retire_host(cluster.namesrv)
    assert {body for _, body in cluster.broker.sent} == {b"first", b"x", b"sent"}


def test_a_refusal_is_tried_again_elsewhere_as_ever() -> None:
    with ThreadedCluster(brokers=("broker-a", "broker-b")) as cluster:
        cluster.cluster.add_topic("T")
        with Producer(group="shop", namesrv=cluster.namesrv, retries=2) as there:
            for _ in range(16):  # Every broker is connected to, and every queue had its turn.
                there.send(Message("T", b"x"))
            cluster.broker.script[SEND] = answered(busy)
            queues = [there.send(Message("T", b"x")).queue for _ in range(8)]
            assert {queue.broker_name for queue in queues} == {"broker-b"}
            assert cluster.broker.asked(SEND)
            # It was this queue or none: no other is tried.
            with pytest.raises(PenstockError, match="busy"):
                there.send(Message("T", b"x"), queue=QUEUE)


def test_a_refusal_that_no_broker_would_lift_says_the_same_either_way(
    cluster: ThreadedCluster, producer: Producer
) -> None:
    cluster.broker.script[SEND] = answered(
        lambda: Command(ResponseCode.MESSAGE_ILLEGAL, remark="bad")
    )
    with pytest.raises(PenstockError) as direct:
        producer.send(Message("T", b"x"), queue=QUEUE)
    with pytest.raises(PenstockError) as through_the_session:
        producer.submit(Message("T", b"x"), queue=QUEUE).result(10)
    assert type(direct.value) is type(through_the_session.value)
    assert str(direct.value) == str(through_the_session.value)


text = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=9)


def test_any_message_is_sent_with_the_same_request_and_outcome_on_either_path(
    cluster: ThreadedCluster, producer: Producer
) -> None:
    answer = stored()
    cluster.broker.script[SEND] = answered(lambda: Command(answer.code, ext=answer.ext))

    def outcome(send: Callable[[], Receipt]) -> tuple[object, ...]:
        """What was sent and returned, without the id and the time of the message."""
        try:
            result: object = send()._replace(msg_id="")
        except PenstockError as error:
            result = type(error), str(error)
        request = cluster.broker.asked(SEND)[-1]
        header = decode_send_v2(request.ext)
        properties = parse_properties(header.properties or "")
        assert properties.pop("UNIQ_KEY")
        header = msgspec.structs.replace(header, born_timestamp=0, properties="")
        return header, request.body, properties, result

    @settings(max_examples=40, deadline=None)
    @given(
        st.builds(
            Message,
            st.just("T"),
            st.binary(min_size=1, max_size=40) | st.just(b"x" * 5000),
            tag=st.none() | text,
            keys=st.lists(text, max_size=2),
            delay=st.none() | st.integers(1, 18),
            flag=st.integers(0, 9),
        ),
        st.sampled_from(
            [
                ResponseCode.SUCCESS,
                ResponseCode.FLUSH_DISK_TIMEOUT,
                ResponseCode.SLAVE_NOT_AVAILABLE,
                ResponseCode.MESSAGE_ILLEGAL,
                ResponseCode.NO_PERMISSION,
            ]
        ),
    )
    def compare(message: Message, code: int) -> None:
        answer.code = code
        direct = outcome(lambda: producer.send(message, queue=QUEUE))
        assert direct == outcome(lambda: producer.submit(message, queue=QUEUE).result(10))

    compare()


def test_a_broker_that_goes_away_is_asked_again(
    cluster: ThreadedCluster, producer: Producer
) -> None:
    cluster.broker.script[SEND] = answered(
        lambda: Command(ResponseCode.GO_AWAY, remark="soon"), stored
    )
    assert producer.send(Message("T", b"x"), queue=QUEUE).queue_offset == 7


def test_a_silent_broker_is_not_waited_for_longer_than_asked(
    cluster: ThreadedCluster, producer: Producer
) -> None:
    producer.send(Message("T", b"x"))
    silence: list[Promise] = []

    def nothing() -> Promise:
        silence.append(Promise())
        return silence[-1]

    cluster.broker.script[SEND] = answered(nothing)
    with pytest.raises(RequestTimeout, match=r"in one attempt within .* s: no answer"):
        producer.send(Message("T", b"x"), queue=QUEUE, timeout=0.2)
    del cluster.broker.script[SEND]
    # The late answer would come over a connection that is not read any more.
    assert producer.send(Message("T", b"x"), queue=QUEUE).queue == QUEUE
    assert len(silence) == 1


def test_a_connection_that_ended_is_replaced(cluster: ThreadedCluster, producer: Producer) -> None:
    producer.send(Message("T", b"x"))
    line = senders(cluster)[-1]
    closed = threading.Event()

    def close() -> None:
        line.close("the test says so")
        closed.set()

    cluster._host.call_soon(close)
    assert closed.wait(10)
    # Whether the end is seen before the send or by it, the message arrives.
    for body in (b"after", b"and again"):
        producer.send(Message("T", body))
        assert cluster.broker.sent[-1][1] == body
    assert senders(cluster)[-1] is not line


def test_many_threads_share_a_producer(cluster: ThreadedCluster, producer: Producer) -> None:
    count = 4 * MAX_LINES
    with ThreadPoolExecutor(count) as threads:
        receipts = list(threads.map(lambda n: producer.send(Message("T", b"%d" % n)), range(500)))
    places = {(receipt.queue.queue_id, receipt.queue_offset) for receipt in receipts}
    assert len(places) == 500
    assert sorted(int(body) for _, body in cluster.broker.sent[1:]) == list(range(500))


def test_stopping_waits_for_a_send_under_way(cluster: ThreadedCluster) -> None:
    producer = Producer(group="shop", namesrv=cluster.namesrv)
    producer.start()
    producer.send(Message("T", b"first"))
    came = threading.Event()
    promise = Promise()

    def wait() -> Promise:
        came.set()
        return promise

    cluster.broker.script[SEND] = answered(wait)
    with ThreadPoolExecutor(2) as threads:
        sending = threads.submit(producer.send, Message("T", b"x"), queue=QUEUE)
        assert came.wait(10)
        stopping = threads.submit(producer.stop)
        cluster._host.call_soon(promise.resolve, stored())
        assert sending.result(10).queue_offset == 7
        stopping.result(10)
    with pytest.raises(PenstockError, match="not running"):
        producer.send(Message("T", b"x"))
