"""Queues that end before the position of a stream.

A slave that lags, or a broker that is still recovering, answers so for a while: the stream waits.
If the queue stays short, messages are lost: by a power cut, or because the topic was deleted and
created again. A stream with failOnDataLoss fails then, before Spark has written an end to the
checkpoint that would fail for ever. Another one moves its position back, with a micro-batch that
reads nothing: to the end of the queue, so that nothing is read twice, or to its beginning if it is
certain that none of its messages was read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto

from penstock.errors import PenstockError
from penstock.model import MessageQueue
from penstock.spark.source.data_loss import lost
from penstock.spark.source.fetch import SHORT_PATIENCE

log = logging.getLogger(__name__)


class Cause(Enum):
    """Why a queue ends before the stream's position."""

    BEHIND = auto()
    """A slave answers: it takes no new messages, so nothing is missed by waiting."""
    ANEW = auto()
    """Every message of the queue was stored after those that were read."""
    UNKNOWN = auto()


class TruncatedQueues:
    """The truncated queues of one stream."""

    def __init__(
        self,
        fail: bool,
        cause: Callable[[MessageQueue], Cause],
        reached: str = "the stream has read",
        error: Callable[[str], PenstockError] = lost,
    ) -> None:
        self._fail = fail
        self._cause = cause
        self._reached = reached
        """Who has got further than the queue, for errors."""
        self._error = error
        self._held: dict[MessageQueue, tuple[Cause, float]] = {}
        """The cause of each wait, and when it began."""
        self.waiting: list[MessageQueue] = []
        """The queues that may still grow back to their length."""

    def resolve(
        self, begun: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """The ends to read up to; an end before the stream's position means: move back."""
        self.waiting = []
        # After an outage, or at another broker, a queue gets a new time limit.
        self._held = {queue: held for queue, held in self._held.items() if queue in ends}
        settled = dict(ends)
        for queue, end in ends.items():
            place = begun.get(queue, 0)
            if end < place:
                settled[queue] = self._place(queue, place, end)
            else:
                self._held.pop(queue, None)
        return settled

    def _place(self, queue: MessageQueue, place: int, end: int) -> int:
        what = f"{queue} ends at {end}, and {self._reached} up to {place}"
        cause = self._cause(queue)
        before, since = self._held.get(queue, (None, 0.0))
        now = time.monotonic()
        if cause is not before:
            since = now
        is_early = now - since <= SHORT_PATIENCE
        if cause is Cause.BEHIND or (cause is Cause.UNKNOWN and is_early):
            if before is None:
                log.warning("the stream waits: %s", what)
            self._held[queue] = (cause, since)
            if is_early:
                self.waiting.append(queue)
            return place
        self._held.pop(queue, None)
        if self._fail:
            raise self._error(f"{what}: was the topic deleted")
        following = 0 if cause is Cause.ANEW else end
        log.warning("%s; continuing at %d", what, following)
        return following
