"""Admin and transactions: what is open, what was given up, and asking again."""

from __future__ import annotations

import pytest
from tests.support.waiting import wait_for

from penstock import Message, Producer, StoredMessage
from penstock.errors import InvalidArgument, NotFound, RequestRefused
from penstock.testing.embedded import Embedded


def not_known(message: Message | StoredMessage) -> None:
    """Leave a transaction open."""


def test_open_transactions_are_listed_until_they_are_decided(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    assert mq.admin.transactions() == []
    with Producer("shop", namesrv=mq.namesrv, check_transaction=not_known) as producer:
        receipts = [
            producer.send_in_transaction(Message("orders", b"x", keys=[f"o-{n}"]), not_known)
            for n in range(3)
        ]
        producer.send_in_transaction(Message("orders", b"x"), lambda message: True)
        producer.send_in_transaction(Message("orders", b"x"), lambda message: False)
        mq.clock.advance("1s")
        found = mq.admin.transactions()
        assert {one.msg_id for one in found} == {one.msg_id for one in receipts}
        assert {one.keys for one in found} == {("o-0",), ("o-1",), ("o-2",)}
        assert {one.broker_name for one in found} == {"broker-a", "broker-b"}
        for one in found:
            assert (one.group, one.topic, one.queue_id) == ("shop", "orders", 0)
            assert (one.checks, one.is_given_up) == (0, False)
        mq.clock.advance("40s")
        assert [one.checks for one in mq.admin.transactions()] == [1, 1, 1]


def test_the_id_of_a_half_says_where_to_look(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    with Producer("shop", namesrv=mq.namesrv) as producer:
        receipt = producer.send_in_transaction(Message("orders", b"x"), not_known)
    with pytest.raises(NotFound, match="penstock transaction list: it belongs to one"):
        mq.admin.message(receipt.msg_id)


def test_a_transaction_that_was_given_up_is_resumed(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    for broker in ("broker-a", "broker-b"):
        mq.admin.update_broker_config(broker, {"transactionCheckMax": "1"})
    with Producer("shop", namesrv=mq.namesrv, check_transaction=not_known) as producer:
        half = producer.send_in_transaction(Message("orders", b"x"), not_known)
        mq.clock.advance("70s")
    [parked] = mq.admin.transactions()
    assert (parked.msg_id, parked.is_given_up, parked.checks) == (half.msg_id, True, 1)
    with pytest.raises(InvalidArgument, match=r"names the broker 0\.0\.0\.1:1"):
        mq.admin.resume_transaction("0000000100000001" + 16 * "0")
    with pytest.raises(RequestRefused, match="putting message back"):
        mq.admin.resume_transaction(half.offset_msg_id)
    mq.admin.resume_transaction(parked.offset_msg_id)
    [opened] = [one for one in mq.admin.transactions() if not one.is_given_up]
    assert opened.checks == 0
    with Producer(
        "shop", namesrv=mq.namesrv, check_transaction=lambda message: True, topics=["orders"]
    ):
        mq.clock.advance("40s")
        wait_for(lambda: not [one for one in mq.admin.transactions() if not one.is_given_up])
    assert mq.admin.message(half.msg_id).body == b"x"
