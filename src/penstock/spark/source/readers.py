"""The readers that Spark sees: they plan on the driver and read in tasks, topics or stores."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.errors import InvalidArgument, PenstockError
from penstock.spark.source.fetch import Fetcher
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.planning import TaskRanges

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.source.stream_driver import StreamDriver


_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""The main module of a stream's process."""


def open_driver(
    options: ReadOptions, cores: int | None, *, has_listener: bool = False
) -> StreamDriver:
    """The driver for what the options read. Only what is needed is imported."""
    if options.archive is not None:
        from penstock.spark.source.seam_driver import SeamPathDriver, SeamTopicDriver

        if options.path is None:
            return SeamTopicDriver(options, cores, has_listener=has_listener)
        return SeamPathDriver(options, cores)
    if options.path is None:
        from penstock.spark.source.topic_driver import TopicDriver

        return TopicDriver(options, cores, has_listener=has_listener)
    from penstock.spark.source.path_driver import PathDriver

    return PathDriver(options, cores)


class _Tasks:
    """What both readers have in common: options on the driver and in tasks, and the reading."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...], cores: int | None) -> None:
        self._options = options
        self._columns = columns
        self._cores = cores

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # For a read without any partition, Spark passes one of its own.
        if isinstance(partition, TaskRanges):
            yield from Fetcher(self._options).batches(partition.ranges, self._columns)
            return
        if self._options.archive is not None:
            from penstock.spark.source.seam_driver import SeamTask, read_seam

            if isinstance(partition, SeamTask):
                yield from read_seam(partition, self._options, self._columns)
                return
        if self._options.path is not None:
            from penstock.spark.source.store_path import PathTask, read_path

            if isinstance(partition, PathTask):
                yield from read_path(partition, self._options, self._columns)


class BatchReader(_Tasks, DataSourceReader):
    """One batch read."""

    def partitions(self) -> list[InputPartition]:
        with closing(open_driver(self._options, self._cores)) as driver:
            return driver.batch_partitions()


class StreamReader(_Tasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. On the driver it keeps a `StreamDriver`; tasks get it without one."""

    def __init__(
        self,
        options: ReadOptions,
        columns: tuple[str, ...],
        cores: int | None,
        *,
        has_listener: bool = False,
    ) -> None:
        super().__init__(options, columns, cores)
        self._has_listener = has_listener
        if options.ending is not None:
            raise InvalidArgument(
                "option endingOffsets or endingTimestamp in a stream",
                expected="no end: a stream goes on",
                hint="spark.read, or trigger(availableNow=True)",
            )
        self._opened: StreamDriver | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None}

    def _open(self) -> StreamDriver:
        return open_driver(self._options, self._cores, has_listener=self._has_listener)

    @property
    def _driver(self) -> StreamDriver:
        if self._opened is None:
            _end_quietly()
            self._opened = self._open()
        return self._opened

    def initialOffset(self) -> dict[str, object]:
        return self._driver.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._driver.latest(start, most)

    def reportLatestOffset(self) -> dict[str, object] | None:
        return self._driver.reported()

    def prepareForTriggerAvailableNow(self) -> None:
        self._driver.freeze()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        return self._driver.partitions(start, end)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()


def _end_quietly() -> None:
    """Let the process of a stream end without a traceback when the JVM ends first.

    PySpark's runner waits for the next question of the JVM. If the socket is closed instead, it
    tries to report that to the JVM, which fails as well, and Python prints three tracebacks.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is None or main.name != _RUNNER:
        return
    shown = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if not issubclass(kind, BrokenPipeError | ConnectionResetError | EOFError):
            shown(kind, error, traceback)

    sys.excepthook = hook


class InvalidStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream whose options are wrong: it raises their error when Spark asks for anything.

    If no reader is returned at all, Spark's runner fails in its own way and hides our error.
    """

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        raise self._error

    def initialOffset(self) -> dict[str, object]:
        raise self._error

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        raise self._error

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        raise self._error
