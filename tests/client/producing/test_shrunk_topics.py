"""Sends while a producer's route names queues that the topic does not have any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import Message, MessageQueue, PenstockError, Producer, embedded
from penstock.client.producing.receipts import Receipt

SENDS: dict[str, Callable[[Producer, int], Receipt]] = {
    "send": lambda producer, number: producer.send(Message("T", b"x")),
    "submit": lambda producer, number: producer.submit(Message("T", b"x")).result(10),
    "by key": lambda producer, number: producer.send(Message("T", b"x", sharding_key=f"k{number}")),
    "batch": lambda producer, number: producer.send_batch([Message("T", b"x")] * 2),
}


@pytest.mark.parametrize("how", SENDS)
def test_a_send_to_a_queue_that_is_gone_takes_a_fresh_route(how: str) -> None:
    with embedded() as mq, Producer("producers", namesrv=mq.namesrv) as producer:
        mq.admin.create_topic("T", queues=8)
        for number in range(8):
            SENDS[how](producer, number)
        mq.admin.create_topic("T", queues=1)
        receipts = [SENDS[how](producer, number) for number in range(8)]
    assert {receipt.queue.queue_id for receipt in receipts} == {0}


def test_a_queue_that_the_caller_chose_is_not_replaced_by_another() -> None:
    with embedded() as mq, Producer("producers", namesrv=mq.namesrv) as producer:
        mq.admin.create_topic("T", queues=1)
        producer.send(Message("T", b"x"))
        with pytest.raises(PenstockError, match="queueId"):
            producer.send(Message("T", b"x"), queue=MessageQueue("T", "broker-a", 5))
