"""Where a topic's queues are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.model.names import READ, WRITE
from penstock.model.queue import MessageQueue

MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class QueueRoute:
    """How many queues of a topic one broker name has, and what they allow."""

    broker_name: str
    read_queues: int
    write_queues: int
    permission: int = READ | WRITE
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """The addresses of one broker name by broker id; id 0 is the master."""

    broker_name: str
    cluster: str
    addresses: Mapping[int, str]
    enable_acting_master: bool = False
    zone_name: str | None = None

    @property
    def master(self) -> str | None:
        """The address that takes writes, if there is one."""
        return self.addresses.get(MASTER_ID)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Everything a client needs to know to reach a topic."""

    queues: tuple[QueueRoute, ...] = ()
    brokers: tuple[BrokerRoute, ...] = ()
    order_conf: str | None = None
    filter_servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def broker(self, broker_name: str) -> BrokerRoute | None:
        """The broker of that name, if the route has it."""
        return next((b for b in self.brokers if b.broker_name == broker_name), None)

    def publish_queues(self, topic: str) -> list[MessageQueue]:
        """The queues a producer may send to, in order."""
        masters = {b.broker_name for b in self.brokers if b.master is not None}
        if self.order_conf:
            listed = (item.partition(":") for item in self.order_conf.split(";") if item)
            return [
                MessageQueue(topic, name, queue_id)
                for name, _, count in listed
                for queue_id in range(int(count))
            ]
        return [
            MessageQueue(topic, q.broker_name, queue_id)
            for q in sorted(self.queues, key=lambda q: q.broker_name)
            if q.permission & WRITE and q.broker_name in masters
            for queue_id in range(q.write_queues)
        ]

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        """The queues a consumer may pull from, in order."""
        return [
            MessageQueue(topic, q.broker_name, queue_id)
            for q in sorted(self.queues, key=lambda q: q.broker_name)
            if q.permission & READ
            for queue_id in range(q.read_queues)
        ]
