"""From the broker in this process to a real cluster: the address is all that changes.

Against your own cluster, Penstock's or Apache RocketMQ's, or without one, against a stand-in:

    NAMESRV_ADDR=rocketmq-1:9876 python examples/move_to_a_cluster.py
    python examples/move_to_a_cluster.py
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock import Admin, Message, Producer, PullConsumer, PushConsumer, StoredMessage, embedded

TOPIC = "penstock-example-orders"


def shop(namesrv: str, count: int) -> None:
    """The program that is moved: it sends, and knows a cluster by its address alone."""
    with Producer("example-shop", namesrv=namesrv) as producer:
        for n in range(count):
            producer.send(Message(TOPIC, b"order %d" % n, keys=[f"order-{n}"]))


def billing(namesrv: str, count: int) -> set[str]:
    """The other program: it handles ``count`` messages and tells which orders they were."""
    billed: set[str] = set()
    handled = itertools.count(1)
    done = threading.Event()
    consumer = PushConsumer("example-billing", namesrv=namesrv, start_from="first")

    @consumer.on(TOPIC)
    def bill(message: StoredMessage) -> None:
        billed.add(message.body.decode())
        if next(handled) >= count:
            done.set()

    with consumer:
        done.wait(timeout=60)
    return billed


def copy(old: str, new: str) -> int:
    """Bring along what is stored: read the old cluster as a group of its own, send to the new."""
    copied = 0
    with (
        PullConsumer("example-move", namesrv=old, start_from="first") as source,
        Producer("example-move", namesrv=new) as target,
    ):
        source.subscribe(TOPIC)
        # The group commits what it has copied: a copy that was stopped goes on where it was.
        while messages := source.poll(timeout=3):
            for message in messages:
                target.send(Message(TOPIC, message.body, tag=message.tag, keys=message.keys))
                copied += 1
    return copied


@contextmanager
def the_cluster() -> Iterator[str]:
    """The cluster of NAMESRV_ADDR, or two brokers in this process that play it."""
    namesrv = os.environ.get("NAMESRV_ADDR")
    if namesrv:
        yield namesrv
    else:
        with embedded(brokers=2) as mq:
            yield mq.namesrv


def main() -> None:
    with embedded() as laptop:
        laptop.admin.create_topic(TOPIC, queues=2)
        shop(laptop.namesrv, 20)
        print(f"on the laptop: billed {len(billing(laptop.namesrv, 20))} of 20")

        with the_cluster() as namesrv, Admin(namesrv=namesrv) as admin:
            admin.create_topic(TOPIC, queues=4)
            try:
                copied = copy(laptop.namesrv, namesrv)
                print(f"brought along: {copied} messages")
                shop(namesrv, 50)  # 20 of them are there already
                brokers = len({broker.broker_name for broker in admin.cluster()})
                billed = billing(namesrv, copied + 50)
                print(f"on the cluster of {brokers} brokers: billed {len(billed)} of 50")
                lag = sum(row.lag for row in admin.group_lag("example-billing"))
                print(f"lag there: {lag}")
            finally:
                # This is an example: it leaves nothing behind.
                admin.delete_topic(TOPIC)
                admin.delete_group("example-billing")


if __name__ == "__main__":
    main()
