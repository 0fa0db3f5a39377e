"""Where a read begins in each queue, for what a user says."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.model import MessageQueue
from penstock.spark.source.options import Position, ReadOptions, Where, parse_read
from penstock.spark.source.positions import Offsets, Positions

KNOWN, NEW = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


class Ends:
    """Two queues with messages 10 to 99; the group has committed in one of them."""

    def queues(self, options: ReadOptions) -> list[MessageQueue]:
        return [KNOWN, NEW]

    def earliest(self, queues: Iterable[MessageQueue]) -> Offsets:
        return dict.fromkeys(queues, 10)

    def latest(self, queues: Iterable[MessageQueue]) -> Offsets:
        return dict.fromkeys(queues, 100)

    def at_time(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> Offsets:
        return dict.fromkeys(queues, 50)

    def committed(self, queues: Iterable[MessageQueue], *, guessed: bool = True) -> Offsets:
        return {KNOWN: 42}


def test_a_queue_without_an_offset_of_the_group_is_read_from_its_first_message() -> None:
    options = parse_read({"namesrv": "127.0.0.1:9876", "topic": "orders"})
    positions = Positions(options, Ends())
    found = positions.offsets([KNOWN, NEW], Position(Where.GROUP), "startingOffsets")
    assert found == {KNOWN: 42, NEW: 10}
