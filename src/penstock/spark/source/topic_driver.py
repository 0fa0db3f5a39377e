"""The driver of reads from topics: asks brokers for the ends of queues, and waits by long polls."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from itertools import islice

from pyspark.sql.datasource import InputPartition

from penstock.errors import PenstockError, TopicNotFound
from penstock.model import MessageQueue
from penstock.spark.source.cluster import Cluster
from penstock.spark.source.group_progress import GroupProgress, is_known_to_listener
from penstock.spark.source.long_poll import LongPoll
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.planning import tasks
from penstock.spark.source.positions import Positions
from penstock.spark.source.presence import StreamPresence
from penstock.spark.source.ranges import Range
from penstock.spark.source.stream_driver import Offsets, StreamDriver, read_offsets
from penstock.spark.source.truncated_queues import Cause

log = logging.getLogger(__name__)

WARNING_SECONDS = 10.0
"""The least time between two warnings about an unreachable cluster."""
MAX_FAILURES_SHOWN = 5


class TopicDriver(StreamDriver):
    """Holds the connections to the brokers."""

    def __init__(
        self, options: ReadOptions, cores: int | None = None, *, has_listener: bool = False
    ) -> None:
        super().__init__(options, cores)
        self._cluster = Cluster(options.access, options.puller)
        self._long_poll = LongPoll(self._cluster)
        self._presence: StreamPresence | None = None
        if options.commit_to_group:
            self._group = options.group
            if not (has_listener and is_known_to_listener(options.access)):
                self._progress = GroupProgress(self._cluster)
            self._presence = StreamPresence(options.access, options.puller)
        self._warned = -WARNING_SECONDS

    @property
    def _positions(self) -> Positions:
        return Positions(self._options, self._cluster)

    def close(self) -> None:
        self._long_poll.close()
        if self._presence is not None:
            self._presence.close()

    def latest(self, start: Mapping[str, object], most: int | None) -> dict[str, object]:
        if self._presence is not None:
            self._presence.show(self._cluster.addresses(read_offsets(start)))
        return super().latest(start, most)

    def _plan(self, ranges: Sequence[Range]) -> list[InputPartition]:
        options = self._options
        return list(
            tasks(
                ranges,
                cores=self._cores,
                min_partitions=options.min_partitions,
                ordered=options.ordered,
            )
        )

    def _initial_queues(self) -> list[MessageQueue]:
        # Topics that match a pattern may come later.
        options = self._options
        return self._cluster.queues(options) if options.pattern else self._positions.queues()

    def freeze(self) -> None:
        # Here a broker that cannot be asked is an error.
        self._target = self._cluster.latest(self._cluster.queues(self._options))

    def _wait(self, begun: Offsets) -> Offsets:
        if not self._options.poll_seconds:
            return begun
        self._long_poll.wait(begun, self._options.poll_seconds)
        return self._ends(begun)

    def _known_ends(self) -> Offsets:
        """The ends of the queues that can be asked for; an outage of others may last any time.

        A broker that is away may be in no route, and then its topics look deleted. So an unknown
        topic is waited for as well; if it was made again, its offsets show it (`TruncatedQueues`).
        """
        failures: list[PenstockError] = []
        ends: Offsets = {}
        try:
            ends = self._cluster.latest(self._cluster.queues(self._options, failures), failures)
        except PenstockError as error:
            failures.append(error)
        if failures:
            self._warn(failures)
        # A topic without a route has no cached one.
        if not all(isinstance(error, TopicNotFound) for error in failures):
            self._cluster.forget_routes()
        return ends

    def _warn(self, failures: Sequence[PenstockError]) -> None:
        now = time.monotonic()
        if now - self._warned > WARNING_SECONDS:
            self._warned = now
            distinct = dict.fromkeys(map(str, failures))
            more = len(distinct) - MAX_FAILURES_SHOWN
            shown = "; ".join(islice(distinct, MAX_FAILURES_SHOWN))
            what = f"{shown}; and {more} more" if more > 0 else shown
            log.warning("the stream of %s waits: %s", self._options.subject, what)

    def _why_shorter(self, queue: MessageQueue) -> Cause:
        try:
            if not self._cluster.is_at_master(queue):
                return Cause.BEHIND
            return Cause.ANEW if self._cluster.is_all_new(queue) else Cause.UNKNOWN
        except PenstockError as error:
            log.debug("no cause found queue=%s error=%s", queue, error)
            return Cause.UNKNOWN
