"""Move from a broker in this process to a real cluster by changing the address.

Run it with your own cluster, Penstock's or Apache RocketMQ's, or without one:

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
    """The producer: it depends on the cluster only through its address."""
    with Producer("example-shop", namesrv=namesrv) as producer:
        for n in range(count):
            producer.send(Message(TOPIC, b"order %d" % n, keys=[f"order-{n}"]))


def billing(namesrv: str, count: int) -> set[str]:
    """The consumer: handle ``count`` messages and return their orders."""
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
    """Copy the stored messages: read them from the old cluster, send them to the new one."""
    copied = 0
    with (
        PullConsumer("example-move", namesrv=old, start_from="first") as source,
        Producer("example-move", namesrv=new) as target,
    ):
        source.subscribe(TOPIC)
        # The group commits what it has copied, so an interrupted copy can be continued.
        while messages := source.poll(timeout=3):
            for message in messages:
                target.send(Message(TOPIC, message.body, tag=message.tag, keys=message.keys))
                copied += 1
    return copied


@contextmanager
def the_cluster() -> Iterator[str]:
    """The cluster of NAMESRV_ADDR, or two brokers in this process instead."""
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
                print(f"copied: {copied} messages")
                shop(namesrv, 50)  # 20 of them were copied already
                brokers = len({broker.broker_name for broker in admin.cluster()})
                billed = billing(namesrv, copied + 50)
                print(f"on the cluster of {brokers} brokers: billed {len(billed)} of 50")
                lag = sum(row.lag for row in admin.group_lag("example-billing"))
                print(f"lag there: {lag}")
            finally:
                # Leave nothing behind on the cluster.
                admin.delete_topic(TOPIC)
                admin.delete_group("example-billing")


if __name__ == "__main__":
    main()
