"""The names of the rows of a task, and whether another task may have sent them before.

Query, micro-batch, partition and position name a row. Spark runs a batch that failed again from the
same source offsets, so the same rows get the same names, as long as the plan puts them into the
same partitions in the same order. Unique message ids follow from the names, and a Penstock broker
that is asked to look for them stores each once (`protocol.extensions`).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final, NamedTuple

from pyspark import TaskContext

from penstock.columnar.row_ids import Origin
from penstock.protocol.extensions import EACH_REPEAT_MARK, RECENT_REPEAT_MARK, REPEAT_MARK

QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
RUN_PROPERTY: Final = "spark.jobGroup.id"
"""Spark runs the jobs of a query in a job group that is named after its run: of this start."""
_MOST_RUNS: Final = 1000

_first_batches: dict[tuple[int, str, str | None], int] = {}
"""The first batch of each run of a query that this process worked on."""


class RowNames(NamedTuple):
    """What the rows of a task are called."""

    origin: Origin
    may_be_stored: bool
    """Whether an earlier task may have sent some of them; true in case of doubt."""

    def mark(self, *, by_column: bool) -> str:
        """What asks a broker to look for rows: of the last hour, or of any time.

        A first attempt asks, too: a later one may overtake it, when an executor or driver is given
        up that still has requests on the way. Rows with ids that the user gives (``by_column``) are
        looked for one by one, since they may have come in other requests: also in a first attempt,
        because Spark counts attempts anew when it runs a stage again.
        """
        if by_column:
            return EACH_REPEAT_MARK
        return REPEAT_MARK if self.may_be_stored else RECENT_REPEAT_MARK


def of_micro_batch(task: TaskContext, write_name: str | None = None) -> RowNames:
    """The names of rows of a stream; ``write_name`` distinguishes writes of ``foreachBatch``."""
    query, batch = task.getLocalProperty(QUERY_PROPERTY), task.getLocalProperty(BATCH_PROPERTY)
    origin = Origin(query or "unknown", int(batch or 0), task.partitionId())
    may_be_stored = task.attemptNumber() > 0 or _is_first_batch(task, origin)
    if write_name is not None:
        origin = replace(origin, query=f"{origin.query}:{write_name}")
    return RowNames(origin, may_be_stored)


def of_named_write(task: TaskContext, name: str, batch: int | None = None) -> RowNames:
    """The names of rows of a write that the user named: an earlier job may have had the name.

    ``batch`` is that of a stream over Spark Connect, where tasks do not know query and batch.
    """
    return RowNames(Origin(f"write:{name}", batch or 0, task.partitionId()), may_be_stored=True)


def of_single_write(task: TaskContext, name: str) -> RowNames:
    """The names of rows of a write with a name of its own."""
    return RowNames(Origin(name, 0, task.partitionId()), task.attemptNumber() > 0)


def is_in_micro_batch(task: TaskContext) -> bool:
    """Whether the task belongs to a stream."""
    return task.getLocalProperty(QUERY_PROPERTY) is not None


def _is_first_batch(task: TaskContext, origin: Origin) -> bool:
    """Whether the batch may be the one with which a query was started again.

    Only that one can have run before: a query that fails ends. A process knows that a batch is not
    the first of its run if it has seen an earlier one.
    """
    key = (os.getpid(), origin.query, task.getLocalProperty(RUN_PROPERTY))
    while len(_first_batches) > _MOST_RUNS:
        del _first_batches[next(iter(_first_batches))]
    return _first_batches.setdefault(key, origin.batch) >= origin.batch
