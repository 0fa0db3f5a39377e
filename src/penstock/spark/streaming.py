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
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.errors import InvalidArgument, PenstockError
from penstock.model import MessageQueue
from penstock.spark.arrivals import Arrivals
from penstock.spark.cluster import Cluster
from penstock.spark.fetch import Fetcher, lost
from penstock.spark.mirror import Mirror, written
from penstock.spark.options import LATEST, ReadOptions, offsets_of
from penstock.spark.planning import Range, TaskRanges, capped, tasks
from penstock.spark.positions import Positions

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

Offsets = dict[MessageQueue, int]
COMPLAINT_SECONDS = 10.0
"""How often an unreachable cluster is complained about."""


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream from topics."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...], cores: int | None) -> None:
        if options.ending is not None:
            raise InvalidArgument(
                "option endingOffsets or endingTimestamp in a stream",
                expected="no end: a stream goes on",
                hint="spark.read, or trigger(availableNow=True)",
            )
        self._options = options
        self._columns = columns
        self._cores = cores
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, object]:
        # The driver's half stays on the driver: tasks get the options.
        return {**self.__dict__, "_driver": None}

    @property
    def _half(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    # -------------------------------------------------------------------------- on the driver

    def initialOffset(self) -> dict[str, object]:
        return self._half.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._half.latest(start, most)

    def reportLatestOffset(self) -> dict[str, object] | None:
        return self._half.reported()

    def prepareForTriggerAvailableNow(self) -> None:
        self._half.freeze()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        planned = tasks(
            self._half.ranges(start, end),
            cores=self._cores,
            min_partitions=self._options.min_partitions,
            ordered=self._options.ordered,
        )
        return list(planned)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()

    # --------------------------------------------------------------------------- on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskRanges):
            yield from Fetcher(self._options).batches(partition, self._columns)


class _Driver:
    """What the driver's process knows of the stream."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cluster = Cluster(options.access, options.puller)
        self._positions = Positions(options, self._cluster)
        self._arrivals = Arrivals(self._cluster)
        self._mirror = Mirror(self._cluster) if options.commit_to_group else None
        self._target: Offsets | None = None
        self._seen: Offsets = {}
        self._complained = -COMPLAINT_SECONDS

    def close(self) -> None:
        self._arrivals.close()

    # The stream's ends

    def initial(self) -> dict[str, object]:
        """Where a stream without a checkpoint begins."""
        options = self._options
        queues = self._cluster.queues(options) if options.pattern else self._positions.queues()
        start = self._positions.offsets(queues, options.starting or LATEST, "startingOffsets")
        return self._written(start)

    def freeze(self) -> None:
        """End at what is there now; a broker that cannot be asked is an error here."""
        self._target = self._cluster.latest(self._cluster.queues(self._options))

    def latest(self, start: Mapping[str, object], most: int | None) -> dict[str, object]:
        """How far the next micro-batch goes; waits a while for something to arrive.

        Spark asks with ``start`` only after the batch that ended there is finished, so that is the
        place where the group stands now.
        """
        begun = read_offsets(start)
        if self._mirror is not None:
            self._mirror.show(begun)
        # What a batch has behind it stays, also of queues that are out of reach just now.
        end = {**begun, **(self._known_ends() if self._target is None else self._target)}
        if self._target is None and end == begun and self._options.poll_seconds:
            self._arrivals.wait(end, self._options.poll_seconds)
            end = {**begun, **self._known_ends()}
        self._seen = end
        if most is not None:
            end = capped(self._with_beginnings(begun, end), end, most)
        return self._written(end)

    def reported(self) -> dict[str, object] | None:
        """The latest offsets seen, for the progress report."""
        return self._written(self._seen) if self._seen else None

    def _known_ends(self) -> Offsets:
        """Where the queues end that can be asked; an outage is waited out, however long.

        A broker that is away may be in no route, and then its topics look as if deleted. So a topic
        nobody knows is waited for as well; made anew, its offsets tell (`_begun_anew`).
        """
        failures: list[PenstockError] = []
        try:
            ends = self._cluster.latest(self._cluster.queues(self._options), failures)
        except PenstockError as error:
            ends = {}
            failures.append(error)
        if failures:
            now = time.monotonic()
            if now - self._complained > COMPLAINT_SECONDS:
                self._complained = now
                log.warning("the stream of %s waits: %s", self._options.subject, failures[0])
            self._cluster.forget_routes()
        return ends

    # From offsets to ranges

    def ranges(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[Range]:
        """What a micro-batch reads."""
        begun, ends = read_offsets(start), read_offsets(end)
        begun = self._with_beginnings(begun, ends)
        ranges = []
        for queue, high in ends.items():
            low = begun[queue]
            if high < low:
                low = self._begun_anew(queue, low, high)
            ranges.append(Range(queue, low, high))
        return ranges

    def _with_beginnings(self, begun: Offsets, ends: Offsets) -> Offsets:
        """The starts, with those of queues that have been added since: their first messages."""
        added = [queue for queue in ends if queue not in begun]
        return {**begun, **self._cluster.earliest(added)} if added else begun

    def _begun_anew(self, queue: MessageQueue, low: int, high: int) -> int:
        """A queue that ends before the stream's place: the topic was deleted and made again."""
        what = f"{queue} ends at {high}, and the stream has read up to {low}: was the topic deleted"
        if self._options.fail_on_data_loss:
            raise lost(what)
        log.warning("%s; reading it from its beginning", what)
        return 0

    def _written(self, offsets: Offsets) -> dict[str, object]:
        group = None if self._mirror is None else self._options.group
        return written(self._options.access, group, offsets)


def read_offsets(written: Mapping[str, object]) -> Offsets:
    """The offsets of the queues in what Spark keeps."""
    offsets = written.get("offsets")
    if not isinstance(offsets, dict):
        raise InvalidArgument(
            f"offset {written!r:.200} in the checkpoint",
            expected="one that format penstock wrote",
            hint="does the checkpoint belong to another query?",
        )
    return offsets_of(offsets)
