"""The newest messages of several queues, read backwards from their ends."""

from __future__ import annotations

from penstock import Message, MessageQueue, Producer, StoredMessage
from penstock.admin.queue_reading import ends, newest
from penstock.testing.embedded import Embedded


def test_the_newest_of_a_busy_queue_come_before_the_older_ones_of_a_quiet_one(
    mq: Embedded,
) -> None:
    mq.admin.create_topic("orders", 1)
    quiet, busy = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 0)
    with Producer("shop", namesrv=mq.namesrv) as producer:
        for number in range(9):
            producer.send(Message("orders", b"%d" % number), queue=quiet if number < 3 else busy)
            mq.clock.advance("1s")

    def is_wanted(message: StoredMessage) -> bool:
        return message.body != b"7"

    found = newest(mq.admin, ends(mq.admin, "orders"), 3, is_wanted)
    assert [message.body for message in found] == [b"5", b"6", b"8"]
