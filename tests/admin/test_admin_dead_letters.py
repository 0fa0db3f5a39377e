"""Admin and dead letters: redriven once and to their group alone, purged, deleted."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest

from penstock import Message, MessageQueue, Producer, PushConsumer, StoredMessage
from penstock.admin import DeadLetterRow
from penstock.admin.dead_letters import _settled, redriven_properties
from penstock.errors import InvalidArgument, ServiceNotAvailable, TopicNotFound
from penstock.testing.embedded import Embedded

GROUP = "billing"
DEAD = "%DLQ%billing"


def give_up(mq: Embedded, count: int, *, group: str = GROUP, orderly: bool = False) -> None:
    """Have a group give ``count`` messages up, on both brokers."""
    mq.admin.create_topic("orders", 2)
    consumer = PushConsumer(
        group, namesrv=mq.namesrv, start_from="first", max_retries=0, orderly=orderly
    )

    @consumer.on("orders")
    def bill(message: StoredMessage) -> None:
        raise KeyError(message.body.decode())

    with Producer("shop", namesrv=mq.namesrv) as producer:
        for number in range(count):
            key = [f"o-{number}"]
            producer.send(Message("orders", b"%d" % number, keys=key, tag="paid", delay=None))
    with consumer:
        mq.clock.advance("1m")


def pending(mq: Embedded, group: str = GROUP) -> int:
    return sum(place.pending for place in mq.admin.dead_letter_queues(group))


def test_a_redriven_letter_goes_to_its_group_alone_and_as_if_never_tried(mq: Embedded) -> None:
    give_up(mq, 6)
    letters = mq.admin.dead_letters(GROUP)
    billed: list[StoredMessage] = []
    seen_by_others: list[StoredMessage] = []
    billing = PushConsumer(GROUP, namesrv=mq.namesrv, start_from="first")
    shipping = PushConsumer("shipping", namesrv=mq.namesrv, start_from="first")
    billing.on("orders")(billed.append)
    shipping.on("orders")(seen_by_others.append)
    with billing, shipping:
        mq.clock.advance("1m")
        assert len(seen_by_others) == 6
        receipts = mq.admin.redrive(GROUP, letters)
        mq.clock.advance("1m")
    assert Counter(m.body for m in billed) == Counter(b"%d" % n for n in range(6))
    assert {m.topic for m in billed} == {"orders"}
    assert {m.reconsume_times for m in billed} == {0}
    assert {(m.tag, m.keys) for m in billed} == {("paid", (f"o-{n}",)) for n in range(6)}
    assert {m.msg_id for m in billed} == {r.msg_id for r in receipts}
    assert {m.properties["PENSTOCK_REDRIVES"] for m in billed} == {"1"}
    assert not any(key.startswith("PENSTOCK_REASON") for m in billed for key in m.properties)
    assert len(seen_by_others) == 6


def test_what_was_redriven_is_known_without_any_mark(mq: Embedded) -> None:
    give_up(mq, 5)
    letters = mq.admin.dead_letters(GROUP)
    assert mq.admin.redriven(GROUP, letters) == set()
    mq.admin.redrive(GROUP, letters[1:3])
    mq.clock.advance("1s")
    done = mq.admin.redriven(GROUP, letters)
    assert done == {letter.message.offset_msg_id for letter in letters[1:3]}
    assert mq.admin.redriven(GROUP, letters, to="repairs") == set()


def test_a_letter_that_dies_again_is_a_new_one_and_counts_its_redrives(mq: Embedded) -> None:
    give_up(mq, 1)
    [letter] = mq.admin.dead_letters(GROUP)
    consumer = PushConsumer(GROUP, namesrv=mq.namesrv, max_retries=0)

    @consumer.on("orders")
    def bill(message: StoredMessage) -> None:
        raise ValueError("still wrong")

    with consumer:
        mq.admin.redrive(GROUP, [letter])
        mq.clock.advance("1m")
    first, second = mq.admin.dead_letters(GROUP)
    assert first == letter
    assert (second.reason_type, second.reason) == ("ValueError", "still wrong")
    assert (second.redrives, second.attempts) == (1, 1)
    assert second.message.msg_id == letter.message.msg_id
    assert mq.admin.redriven(GROUP, [first, second]) == {first.message.offset_msg_id}


def test_redriving_to_a_topic_belongs_there(mq: Embedded) -> None:
    give_up(mq, 2)
    mq.admin.create_topic("repairs", 1)
    letters = mq.admin.dead_letters(GROUP)
    receipts = mq.admin.redrive(GROUP, letters, to="repairs")
    assert {receipt.queue.topic for receipt in receipts} == {"repairs"}
    copy = mq.admin.message(receipts[0].offset_msg_id)
    assert "RETRY_TOPIC" not in copy.properties
    assert mq.admin.redriven(GROUP, letters, to="repairs") == {
        letter.message.offset_msg_id for letter in letters
    }


def test_settled_letters_are_out_of_sight_and_come_back_when_the_mark_does(mq: Embedded) -> None:
    give_up(mq, 8)
    assert pending(mq) == 8
    places = mq.admin.dead_letter_queues(GROUP)
    assert {place.queue.broker_name for place in places} == {"broker-a", "broker-b"}
    assert mq.admin.settle_dead_letters(GROUP) == {p.queue: p.max_offset for p in places}
    assert (pending(mq), mq.admin.dead_letters(GROUP)) == (0, [])
    assert len(mq.admin.dead_letters(GROUP, settled=True)) == 8
    first = places[0]
    mq.admin.settle_dead_letters(GROUP, {first.queue: first.max_offset - 1})
    assert pending(mq) == 1
    [letter] = mq.admin.dead_letters(GROUP)
    assert (letter.message.queue, letter.message.queue_offset) == (
        first.queue,
        first.max_offset - 1,
    )


@pytest.mark.parametrize(
    ("mark", "settled"), [(None, 2), (0, 2), (2, 2), (5, 5), (9, 9), (10, 2), (99, 2)]
)
def test_a_mark_that_is_left_over_hides_no_letters(mark: int | None, settled: int) -> None:
    # A mark past the end is that of a topic which was deleted and created again.
    assert _settled(mark, 2, 9) == settled


def test_the_mark_is_no_lag_of_the_group(mq: Embedded) -> None:
    give_up(mq, 3)
    before = mq.admin.group_lag(GROUP)
    mq.admin.settle_dead_letters(GROUP)
    assert mq.admin.group_lag(GROUP) == before
    assert DEAD not in {row.topic for row in before}


def test_a_mark_that_cannot_be_is_refused(mq: Embedded) -> None:
    give_up(mq, 2)
    with pytest.raises(InvalidArgument, match=r"offset 99 .*'billing'"):
        mq.admin.settle_dead_letters(GROUP, {MessageQueue(DEAD, "broker-a", 0): 99})
    with pytest.raises(InvalidArgument, match="'broker-z'"):
        mq.admin.settle_dead_letters(GROUP, {MessageQueue(DEAD, "broker-z", 0): 0})
    assert pending(mq) == 2


def test_deleted_letters_are_gone_and_new_ones_are_pending(mq: Embedded) -> None:
    give_up(mq, 4)
    mq.admin.settle_dead_letters(GROUP)
    mq.admin.delete_dead_letters(GROUP)
    assert mq.admin.dead_letters(GROUP, settled=True) == []
    with pytest.raises(TopicNotFound, match=DEAD):
        mq.admin.delete_dead_letters(GROUP)
    give_up(mq, 3)
    assert pending(mq) == 3


def test_groups_with_dead_letters_are_listed(mq: Embedded) -> None:
    assert mq.admin.dead_letter_groups() == []
    give_up(mq, 1)
    give_up(mq, 1, group="shipping")
    assert mq.admin.dead_letter_groups() == ["billing", "shipping"]
    assert mq.admin.dead_letter_queues("nobody") == []


def test_an_orderly_group_gets_a_hint_where_to_redrive_to(mq: Embedded) -> None:
    give_up(mq, 1, orderly=True)
    letters = mq.admin.dead_letters(GROUP)
    consumer = PushConsumer(GROUP, namesrv=mq.namesrv, orderly=True)
    billed: list[StoredMessage] = []
    consumer.on("orders")(billed.append)
    with consumer:
        mq.clock.advance("1m")
        with pytest.raises(InvalidArgument, match="consumes in order"):
            mq.admin.redrive(GROUP, letters)
        assert len(mq.admin.dead_letters(GROUP)) == 1
        mq.admin.redrive(GROUP, letters, to="orders")
        mq.clock.advance("1m")
    assert [message.body for message in billed] == [b"0"]


def test_locks_that_outlive_their_consumers_are_noticed(mq: Embedded) -> None:
    give_up(mq, 1)
    [letter] = mq.admin.dead_letters(GROUP)
    from penstock.protocol.bodies.clients import LockBatch
    from penstock.protocol.bodies.codec import encode_body
    from penstock.protocol.codes import RequestCode

    # A consumer that was killed: its locks remain, without a connected member.
    queues = (MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 0))
    body = encode_body(LockBatch(GROUP, "gone@1", queues, only_this_broker=True))
    actions = mq.admin._actions
    for broker in mq.admin.cluster():
        mq.admin._run(actions.ask(broker.address, RequestCode.LOCK_BATCH_MQ, None, body, about="x"))
    with pytest.raises(ServiceNotAvailable, match="holds locks of an orderly consumer"):
        mq.admin.redrive(GROUP, [letter])


def test_a_letter_without_an_origin_needs_a_topic() -> None:
    letter = DeadLetterRow.from_message(
        StoredMessage(DEAD, b"x", {"UNIQ_KEY": "7F"}, MessageQueue(DEAD, "broker-a", 0), 3)
    )
    with pytest.raises(InvalidArgument, match="does not say which topic it comes from"):
        redriven_properties(letter, to_group=True)
    assert redriven_properties(letter, to_group=False)["ORIGIN_MESSAGE_ID"] == "7F"


def test_an_origin_of_apache_5_is_taken_for_one() -> None:
    said = {"UNIQ_KEY": "7F", "DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": "0A"}
    letter = DeadLetterRow.from_message(
        StoredMessage(DEAD, b"x", said, MessageQueue(DEAD, "b", 0), 3)
    )
    properties = redriven_properties(letter, to_group=True)
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["ORIGIN_MESSAGE_ID"] == "0A"
    assert "DLQ_ORIGIN_TOPIC" not in properties


def test_offsets_are_found_by_time(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    moments = []
    with Producer("shop", namesrv=mq.namesrv) as producer:
        for number in range(6):
            moments.append(datetime.fromtimestamp(mq.clock.time(), UTC))
            producer.send(Message("orders", b"%d" % number), queue=lambda queues, _: queues[0])
            mq.clock.advance("1m")
    full, empty = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 0)
    assert mq.admin.offsets_at("orders", "first") == {full: 0, empty: 0}
    assert mq.admin.offsets_at("orders", "last") == {full: 6, empty: 0}
    assert mq.admin.offsets_at("orders", moments[4])[full] == 4
    later = datetime.fromtimestamp(mq.clock.time() + 60, UTC)
    assert mq.admin.offsets_at("orders", later)[full] == 6


def test_redriven_letters_are_lag_before_anybody_consumed_a_retry(mq: Embedded) -> None:
    give_up(mq, 3)
    letters = mq.admin.dead_letters(GROUP)
    mq.admin.delete_topic(f"%RETRY%{GROUP}")  # and with it the group's offsets there
    before = sum(row.lag for row in mq.admin.group_lag(GROUP))
    mq.admin.redrive(GROUP, letters)
    assert sum(row.lag for row in mq.admin.group_lag(GROUP)) == before + len(letters)
