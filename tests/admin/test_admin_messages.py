"""Admin and messages: found by id and by key, read, and the dead ones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock import Message, MessageQueue, Producer, PushConsumer, StoredMessage
from penstock.admin import DeadLetterRow
from penstock.errors import InvalidArgument, NotFound, TopicNotFound
from penstock.testing.embedded import Embedded

QUEUE = MessageQueue("orders", "broker-a", 0)


def test_a_message_is_found_by_either_id(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    mq.admin.create_topic("other", 1)
    with Producer("shop", namesrv=mq.namesrv) as producer:
        receipts = [producer.send(Message("orders", b"%d" % n)) for n in range(4)]
    for number, receipt in enumerate(receipts):
        for found in (
            mq.admin.message(receipt.msg_id),
            mq.admin.message(receipt.msg_id, topic="orders"),
            mq.admin.message(receipt.offset_msg_id or ""),
        ):
            assert found.body == b"%d" % number
            assert (found.queue, found.queue_offset) == (receipt.queue, receipt.queue_offset)
            assert found.msg_id == receipt.msg_id


def test_a_message_that_is_not_stored_is_an_error_that_names_it(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    with pytest.raises(NotFound, match=f"'o-1' in any topic.*{mq.namesrv}"):
        mq.admin.message("o-1")
    unknown = "0A000101" + "00002A9F" + "00000000FFFFFFFF"
    with pytest.raises(NotFound, match=unknown):
        mq.admin.message(unknown)
    with pytest.raises(NotFound, match="in topic 'orders'"):
        mq.admin.message(unknown, topic="orders")
    with pytest.raises(TopicNotFound, match="'nothing'"):
        mq.admin.message(unknown, topic="nothing")


def test_messages_are_found_by_key_on_all_brokers(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    with Producer("shop", namesrv=mq.namesrv) as producer:
        for number in range(6):
            producer.send(Message("orders", b"%d" % number, keys=["o-1", f"n-{number}"]))
            mq.clock.advance("1m")
    found = mq.admin.query("orders", "o-1")
    assert [message.body for message in found] == [b"%d" % n for n in range(6)]
    assert {message.queue.broker_name for message in found} == {"broker-a", "broker-b"}
    assert [message.body for message in mq.admin.query("orders", "n-3")] == [b"3"]
    assert mq.admin.query("orders", "n-9") == []
    assert len(mq.admin.query("orders", "o-1", count=1)) == 2


def test_a_query_can_be_bounded_in_time(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    times = []
    with Producer("shop", namesrv=mq.namesrv) as producer:
        for number in range(4):
            times.append(datetime.fromtimestamp(mq.clock.time(), UTC))
            producer.send(Message("orders", b"%d" % number, keys=["k"]))
            mq.clock.advance("1m")
    bodies = [message.body for message in mq.admin.query("orders", "k", begin=times[2])]
    assert bodies == [b"2", b"3"]
    bodies = [message.body for message in mq.admin.query("orders", "k", end=times[1])]
    assert bodies == [b"0", b"1"]
    with pytest.raises(InvalidArgument, match="count 0"):
        mq.admin.query("orders", "k", count=0)


def test_a_queue_is_read_without_a_group(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    with Producer("shop", namesrv=mq.namesrv) as producer:
        for number in range(100):
            producer.send(Message("orders", b"%d" % number), queue=QUEUE)
    part = mq.admin.messages(QUEUE, 10)
    assert [m.body for m in part.messages] == [b"%d" % n for n in range(10, 42)]
    assert (part.next_offset, part.min_offset, part.max_offset) == (42, 0, 100)
    assert len(mq.admin.messages(QUEUE, 0, count=100).messages) == 100
    assert len(mq.admin.messages(QUEUE, 90, count=100).messages) == 10
    beyond = mq.admin.messages(QUEUE, 100)
    assert (beyond.messages, beyond.next_offset) == ((), 100)
    assert mq.admin.messages(MessageQueue("orders", "broker-b", 0), 0).messages == ()
    assert mq.admin.groups() == []
    with pytest.raises(InvalidArgument, match="broker-z"):
        mq.admin.messages(MessageQueue("orders", "broker-z", 0), 0)


def test_a_large_body_comes_inflated(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    body = b"many of the same " * 1000
    with Producer("shop", namesrv=mq.namesrv) as producer:
        receipt = producer.send(Message("orders", body, keys=["big"]))
    assert mq.admin.message(receipt.msg_id).body == body
    assert mq.admin.query("orders", "big")[0].body == body


def test_dead_letters_tell_what_is_known_of_them(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    consumer = PushConsumer("billing", namesrv=mq.namesrv, start_from="first", max_retries=0)

    @consumer.on("orders")
    def bill(message: StoredMessage) -> None:
        raise KeyError(message.body.decode())

    ids = []
    with Producer("shop", namesrv=mq.namesrv) as producer:
        for number in range(5):
            ids.append(producer.send(Message("orders", b"%d" % number)).msg_id)
            mq.clock.advance("1s")
    with consumer:
        mq.clock.advance("1m")
    letters = mq.admin.dead_letters("billing")
    assert {letter.message.body for letter in letters} == {b"%d" % n for n in range(5)}
    assert {letter.reason_type for letter in letters} == {"KeyError"}
    assert {letter.origin_topic for letter in letters} == {"orders"}
    assert all(letter.host for letter in letters)
    assert all(letter.message.topic == "%DLQ%billing" for letter in letters)
    assert len(mq.admin.dead_letters("billing", count=2)) == 2


def test_a_dead_letter_without_a_reason_says_so() -> None:
    message = StoredMessage("%DLQ%g", b"", {"DLQ_ORIGIN_TOPIC": "orders"}, QUEUE, 0)
    letter = DeadLetterRow.from_message(message)
    assert (letter.origin_topic, letter.reason, letter.attempt) == ("orders", None, None)
    odd = DeadLetterRow.from_message(
        StoredMessage("%DLQ%g", b"", {"PENSTOCK_FAILURE_ATTEMPT": "many"}, QUEUE, 0)
    )
    assert odd.attempt is None
