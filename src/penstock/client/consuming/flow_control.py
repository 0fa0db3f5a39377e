"""When to stop pulling for a while: by number, by size and by span of what is cached.

The limits are looked at before a pull and not after it, so what a queue holds can pass them by one
answer. With a limit for the whole topic each queue gets its share of it; RocketMQ divides by all
queues the consumer holds, those of the retry topic included.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.client.consuming.process_queue import ProcessQueue

MIB = 1024 * 1024


class Stop(Enum):
    """Which limit a queue is over."""

    COUNT = "count"
    SIZE = "size"
    SPAN = "span"


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """How much of one queue may be cached; ``size_mib`` counts bodies in whole MiB."""

    count: int = 1000
    size_mib: int = 100
    span: int = 2000

    def shared(
        self, topic_count: int | None, topic_size_mib: int | None, held_queues: int
    ) -> FlowLimits:
        """The limits of each queue when the consumer's ``held_queues`` share those of a topic."""
        if held_queues == 0:
            return self
        return FlowLimits(
            self.count if topic_count is None else max(1, topic_count // held_queues),
            self.size_mib if topic_size_mib is None else max(1, topic_size_mib // held_queues),
            self.span,
        )

    def verdict(self, queue: ProcessQueue, *, orderly: bool) -> Stop | None:
        """What keeps ``queue`` from being pulled now; None when nothing does.

        The span is asked in concurrent mode only: it bounds what a crash repeats, and an orderly
        queue commits as it goes. RocketMQ measures it between the offsets that are still cached,
        so it shrinks while a stuck message stays and pulling goes on in steps of 50 ms; here it
        counts from the stuck message to the last one pulled, and pulling stops.
        """
        if queue.count > self.count:
            return Stop.COUNT
        if queue.body_bytes // MIB > self.size_mib:
            return Stop.SIZE
        if not orderly and queue.reach > self.span:
            return Stop.SPAN
        return None
