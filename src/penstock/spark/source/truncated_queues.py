"""Queues that end before the place a stream has reached.

A replica that lags, or a broker that is still recovering, says so for a while: the stream stays
where it is. Where it stays like that, messages are lost, by a power cut or because the topic was
deleted and made again. A stream that must not lose any ends there, before Spark has written down
an end that would fail for ever. One that may go on moves its place back with a micro-batch that
reads nothing: to the end of the queue, so that nothing is read twice, or to its beginning where it
is certain that nothing in it was ever read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto

from penstock.model import MessageQueue
from penstock.spark.source.fetch import SHORT_PATIENCE, lost

log = logging.getLogger(__name__)


class Cause(Enum):
    """Why a queue ends before the stream's place."""

    BEHIND = auto()
    """A replica says so: it takes no new messages, and nothing is missed by waiting."""
    ANEW = auto()
    """Every message of the queue came after those that were read."""
    UNKNOWN = auto()


class TruncatedQueues:
    """The queues of one stream that ended too early when last looked at."""

    def __init__(self, fail: bool, cause: Callable[[MessageQueue], Cause]) -> None:
        self._fail = fail
        self._cause = cause
        self._held: dict[MessageQueue, tuple[Cause, float]] = {}
        """Why queues are waited for, and since when."""
        self.waiting: list[MessageQueue] = []
        """The queues that may yet turn out to be as long as they were."""

    def resolve(
        self, begun: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """The ends; those before the stream's place only where the place has to move back."""
        self.waiting = []
        # After an outage, or behind another broker, a queue is given time anew.
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
        what = f"{queue} ends at {end}, and the stream has read up to {place}"
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
            raise lost(f"{what}: was the topic deleted")
        following = 0 if cause is Cause.ANEW else end
        log.warning("%s; going on at %d", what, following)
        return following
