"""The stream: how far each micro-batch goes, on the driver; its tasks fetch like a batch's.

Spark keeps one process for this object as long as the query runs. It asks `latestOffset` again and
again, about ninety times a second when idle, so the answer waits inside for something to arrive: a
long poll at every broker.

An offset is a dictionary that Spark turns into JSON and compares as text:

    {"group": ..., "namesrv": ..., "offsets": {topic: {broker: {queue: offset}}}}

Group and name servers stand there for the listener that mirrors progress (`mirror`), and only when
there is something to mirror; nothing secret does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from penstock.errors import PenstockError, TopicNotFound
from penstock.model import MessageQueue
from penstock.spark.source.cluster import Cluster
from penstock.spark.source.fetch import Fetcher
from penstock.spark.source.group_progress import GroupProgress, written
from penstock.spark.source.long_poll import LongPoll
from penstock.spark.source.micro_batches import Offsets, StreamDriver, StreamReader
from penstock.spark.source.options import LATEST, ReadOptions
from penstock.spark.source.planning import TaskRanges, capped, tasks
from penstock.spark.source.positions import Positions
from penstock.spark.source.truncated_queues import Cause

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

COMPLAINT_SECONDS = 10.0
"""How often an unreachable cluster is complained about."""
MAX_TOLD = 5
"""How many failures one complaint tells."""


class TopicStream(StreamReader["TopicDriver"]):
    """A stream from topics."""

    def _new_driver(self) -> TopicDriver:
        return TopicDriver(self._options)

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        planned = tasks(
            self._stream_driver.ranges(start, end),
            cores=self._cores,
            min_partitions=self._options.min_partitions,
            ordered=self._options.ordered,
        )
        return list(planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskRanges):
            yield from Fetcher(self._options).batches(partition, self._columns)


class TopicDriver(StreamDriver):
    """Connections to the brokers, and where the queues end by them."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._cluster = Cluster(options.access, options.puller)
        self._positions = Positions(options, self._cluster)
        self._long_poll = LongPoll(self._cluster)
        self._progress = GroupProgress(self._cluster) if options.commit_to_group else None
        self._complained = -COMPLAINT_SECONDS

    def close(self) -> None:
        self._long_poll.close()

    # The stream's ends

    def initial(self) -> dict[str, object]:
        """Where a stream without a checkpoint begins."""
        options = self._options
        queues = self._cluster.queues(options) if options.pattern else self._positions.queues()
        return self._written(self._starts(queues))

    def _starts(self, queues: list[MessageQueue]) -> Offsets:
        """The first offset of each queue, by the options."""
        return self._positions.offsets(queues, self._options.starting or LATEST, "startingOffsets")

    def freeze(self) -> None:
        """End at what is there now; a broker that cannot be asked is an error here."""
        self._target = self._cluster.latest(self._cluster.queues(self._options))

    def latest(self, start: Mapping[str, object], most: int | None) -> dict[str, object]:
        """How far the next micro-batch goes; waits a while for something to arrive.

        Spark asks with ``start`` only after the batch that ended there is finished, so that is the
        place where the group stands now.
        """
        begun = self._begun(start)
        if self._progress is not None:
            self._progress.commit(begun)
        # What a batch has behind it stays, also of queues that are out of reach just now.
        end = self._ends(begun)
        if self._target is None and end == begun and self._options.poll_seconds:
            self._long_poll.wait(end, self._options.poll_seconds)
            end = self._ends(begun)
        self._seen = end
        begun = self._with_beginnings(begun, end)
        if most is not None:
            end = capped(begun, end, most)
        return self._written(end)

    def _known_ends(self) -> Offsets:
        """Where the queues end that can be asked; an outage of others is waited out, however long.

        A broker that is away may be in no route, and then its topics look as if deleted. So a topic
        nobody knows is waited for as well; made anew, its offsets tell (`TruncatedQueues`).
        """
        failures: list[PenstockError] = []
        ends: Offsets = {}
        try:
            ends = self._cluster.latest(self._cluster.queues(self._options, failures), failures)
        except PenstockError as error:
            failures.append(error)
        if failures:
            self._complain(failures)
        # A topic without a route has none to be forgotten.
        if not all(isinstance(error, TopicNotFound) for error in failures):
            self._cluster.forget_routes()
        return ends

    def _complain(self, failures: Sequence[PenstockError]) -> None:
        now = time.monotonic()
        if now - self._complained > COMPLAINT_SECONDS:
            self._complained = now
            told = dict.fromkeys(map(str, failures))
            rest = f"; and {len(told) - MAX_TOLD} more" if len(told) > MAX_TOLD else ""
            what = "; ".join(islice(told, MAX_TOLD)) + rest
            log.warning("the stream of %s waits: %s", self._options.subject, what)

    def _why_shorter(self, queue: MessageQueue) -> Cause:
        try:
            if not self._cluster.is_at_master(queue):
                return Cause.BEHIND
            return Cause.ANEW if self._cluster.is_all_new(queue) else Cause.UNKNOWN
        except PenstockError as error:
            log.debug("no cause found queue=%s error=%s", queue, error)
            return Cause.UNKNOWN

    def _earliest(self, queues: Sequence[MessageQueue]) -> Offsets:
        return self._cluster.earliest(queues)

    def _written(self, offsets: Offsets) -> dict[str, object]:
        group = None if self._progress is None else self._options.group
        return written(self._options.access, group, offsets)
