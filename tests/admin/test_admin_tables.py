"""Tables of a whole cluster: topics, lags, producers; and what the life of a message is made of."""

from __future__ import annotations

import pytest

import penstock
from penstock import Message, MessageQueue
from penstock.errors import InvalidArgument
from penstock.protocol.traces import (
    ConsumeBegun,
    ConsumeEnded,
    Trace,
    decode_traces,
    encode_trace,
)
from penstock.testing.embedded import Embedded


def send(mq: Embedded, topic: str, count: int) -> None:
    with penstock.Producer("shop", namesrv=mq.namesrv) as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number))


def test_the_topic_table_adds_up_brokers_and_names_kinds(mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=3)
    mq.admin.create_topic("%DLQ%billing", queues=1)
    mq.admin.create_topic("RMQ_SYS_TRACE_TOPIC", queues=1)
    table = mq.admin.topic_table()
    rows = {row.name: row for row in table.rows}
    assert table.silent == {}
    assert list(rows) == sorted(rows)
    assert (rows["orders"].kind, rows["orders"].read_queues) == ("", 6)
    assert rows["orders"].broker_names == ("broker-a", "broker-b")
    assert rows["%DLQ%billing"].kind == "dead letters"
    assert rows["SCHEDULE_TOPIC_XXXX"].kind == "system"
    assert rows["RMQ_SYS_TRACE_TOPIC"].kind == "system"
    assert {row.name for row in table.rows if not row.kind} == set(mq.admin.topics())


def test_the_lag_table_agrees_with_the_lag_of_each_group(mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=2)
    send(mq, "orders", 9)
    for group in ("ahead", "behind"):
        mq.admin.create_group(group)
    mq.admin.reset_offsets("ahead", "orders", "last")
    mq.admin.reset_offsets("behind", "orders", "first")
    for table in (mq.admin.lag_table(), mq.admin.lag_table(["ahead", "behind"])):
        rows = {row.group: row for row in table.rows}
        assert (rows["ahead"].lag, rows["behind"].lag) == (0, 9)
        assert rows["behind"].topics == ("orders",)
        assert list(rows["behind"].queues) == mq.admin.group_lag("behind")


def test_all_producers_are_listed_with_their_group(mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=1)
    with penstock.Producer("shop", namesrv=mq.namesrv) as producer:
        producer.send(Message("orders", b"x"))
        mq.clock.advance("1s")
        rows = dict(mq.admin.all_producers().rows)
    assert rows["shop"].broker_names == ("broker-a", "broker-b")


def test_a_plan_changes_nothing_and_an_offset_needs_a_queue(mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=1, brokers=["broker-a"])
    send(mq, "orders", 4)
    mq.admin.create_group("billing")
    mq.admin.reset_offsets("billing", "orders", "last")
    [move] = mq.admin.plan_reset("billing", "orders", "first")
    assert (move.committed, move.target, move.change, move.lag) == (4, 0, -4, 4)
    [one] = mq.admin.plan_reset("billing", "orders", 3, queue="broker-a:0")
    assert (one.queue, one.change) == (MessageQueue("orders", "broker-a", 0), -1)
    with pytest.raises(InvalidArgument, match="0 to 4"):
        mq.admin.plan_reset("billing", "orders", 5, queue="broker-a:0")
    with pytest.raises(InvalidArgument, match="BROKER:ID, one of broker-a:0"):
        mq.admin.plan_reset("billing", "orders", 3, queue="broker-b:0")
    assert mq.admin.group_lag("billing", topic="orders")[0].committed == 4


def test_a_message_that_waits_says_where_the_group_is(mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=1, brokers=["broker-a"])
    with penstock.Producer("shop", namesrv=mq.namesrv) as producer:
        receipt = producer.send(Message("orders", b"x"))
    mq.admin.create_group("billing")
    mq.admin.reset_offsets("billing", "orders", "first")
    life = mq.admin.message_life(receipt.msg_id, topic="orders")
    assert [one.kind for one in life.events] == ["sent", "stored", "waiting"]
    assert life.groups == ["billing"]
    assert life.of_group("billing")[0].text == "waits: the group is at 0"


def test_traces_are_read_as_they_are_written_and_damage_is_left_out() -> None:
    entries: list[Trace] = [
        ConsumeBegun(1, "DefaultRegion", "billing", "r1", "ID", 2, "k"),
        ConsumeEnded("r1", "ID", 7, True, "k", 0, 8, "billing"),
    ]
    text = "".join(map(encode_trace, entries))
    assert decode_traces(text.encode()) == entries
    assert decode_traces(b"SubAfter\x01r1\x01ID\x01seven\x02\xff\x00Pub\x02") == []
