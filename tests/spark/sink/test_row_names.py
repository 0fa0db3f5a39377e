"""How rows are named where Spark tells tasks little; without Spark."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame

from penstock.columnar.row_ids import Origin
from penstock.errors import InvalidArgument
from penstock.protocol.extensions import EACH_REPEAT_MARK, RECENT_REPEAT_MARK, REPEAT_MARK
from penstock.spark.sink.batch_writer import batch_writer
from penstock.spark.sink.row_names import (
    BATCH_PROPERTY,
    QUERY_PROPERTY,
    RUN_PROPERTY,
    RowNames,
    of_micro_batch,
    of_named_write,
)
from penstock.spark.sink.write_options import BATCH_OPTION, batch_of, parse_write

ACCESS = {"namesrv": "127.0.0.1:9876", "topic": "out"}


class FakeTask:
    """A task over Spark Connect: it has no properties of a stream."""

    def partitionId(self) -> int:
        return 4


class StreamTask:
    """A task of a micro-batch."""

    def __init__(self, query: str, batch: int, attempt: int = 0, run: str = "first") -> None:
        self._properties = {QUERY_PROPERTY: query, BATCH_PROPERTY: str(batch), RUN_PROPERTY: run}
        self._attempt = attempt

    def partitionId(self) -> int:
        return 4

    def attemptNumber(self) -> int:
        return self._attempt

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)


class FakeSession:
    """A session of Spark Connect."""


class FakeFrame:
    """A frame whose writes are noted, and not carried out."""

    def __init__(self) -> None:
        self.sparkSession = FakeSession()
        self.given: dict[str, str] = {}

    @property
    def write(self) -> FakeFrame:
        return self

    def format(self, name: str) -> FakeFrame:
        return self

    def options(self, **given: str) -> FakeFrame:
        self.given.update(given)
        return self

    def option(self, name: str, value: str) -> FakeFrame:
        self.given[name] = value
        return self

    def mode(self, name: str) -> FakeFrame:
        return self

    def save(self) -> None:
        pass


def test_marks_by_attempt() -> None:
    first, again = (RowNames(Origin("q", 0, 0), may) for may in (False, True))
    assert first.mark(by_column=False) == RECENT_REPEAT_MARK
    assert again.mark(by_column=False) == REPEAT_MARK
    assert first.mark(by_column=True) == again.mark(by_column=True) == EACH_REPEAT_MARK


def named(task: StreamTask, write_name: str | None = None) -> RowNames:
    return of_micro_batch(cast(TaskContext, task), write_name)


def test_only_the_first_batch_of_a_run_and_later_attempts_may_be_stored() -> None:
    query = "rows of a query"
    assert named(StreamTask(query, 5)).may_be_stored
    # Another partition of it, or the same one.
    assert named(StreamTask(query, 5)).may_be_stored
    assert not named(StreamTask(query, 6)).may_be_stored
    assert named(StreamTask(query, 6, attempt=1)).may_be_stored
    # The query failed in that batch, and was started again.
    assert named(StreamTask(query, 6, run="second")).may_be_stored
    assert not named(StreamTask(query, 7, run="second")).may_be_stored
    assert named(StreamTask("another query", 7, run="second")).may_be_stored


def test_two_writers_of_a_batch_have_names_of_their_own() -> None:
    task = StreamTask("two writers", 0)
    origins = {named(task, name).origin for name in (None, "totals", "details")}
    assert len(origins) == 3
    assert named(task, "totals").origin in origins


def test_batches_over_spark_connect_have_names_of_their_own() -> None:
    write, task = batch_writer("out", name="totals", namesrv="127.0.0.1:9876"), FakeTask()
    origins = []
    for batch in (7, 8):
        frame = FakeFrame()
        write(cast(DataFrame, frame), batch)
        # Spark passes the names of options on in lower case.
        given = {name.lower(): value for name, value in frame.given.items()}
        options = parse_write(given)
        assert options.write_name == "totals"
        names = of_named_write(cast(TaskContext, task), options.write_name, batch_of(given))
        assert names.may_be_stored
        origins.append(names.origin)
    assert origins == [Origin("write:totals", 7, 4), Origin("write:totals", 8, 4)]


def test_a_writer_over_spark_connect_needs_a_name() -> None:
    write = batch_writer("out", namesrv="127.0.0.1:9876")
    with pytest.raises(InvalidArgument, match=r"without a name over Spark Connect.*name="):
        write(cast(DataFrame, FakeFrame()), 0)


def test_a_write_outside_of_a_stream_has_no_batch() -> None:
    assert batch_of(ACCESS) is None
    assert batch_of({**ACCESS, BATCH_OPTION: "3"}) == 3
    assert parse_write({**ACCESS, BATCH_OPTION: "3"}) == parse_write(ACCESS)
