"""The address of one queue."""

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker; sorts by topic, broker name, then queue number."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"
