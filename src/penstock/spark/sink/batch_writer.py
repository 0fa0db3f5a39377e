"""A writer for ``foreachBatch``: streams whose output mode the sink cannot have.

Spark lets a sink of the Python data source API append only. An aggregation without a watermark has
no rows to append; it has rows that were updated, in every batch. ``foreachBatch`` passes them to a
function, and this one sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Unpack

from pyspark.sql import DataFrame

from penstock.client.cluster_access import AccessKeywords, ClusterAccess
from penstock.errors import InvalidArgument
from penstock.spark.access_options import access_options
from penstock.spark.jvm import activate, jvm_of
from penstock.spark.sink.write_options import BATCH_OPTION, parse_write

_DEFAULT_NAME: Final = "rows"


def batch_writer(
    topic: str | None = None,
    *,
    name: str | None = None,
    options: dict[str, str] | None = None,
    namesrv: str | Iterable[str] | None = None,
    **keywords: Unpack[AccessKeywords],
) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that writes each micro-batch to a topic.

    Use it where ``writeStream.format("penstock")`` cannot be used: with ``outputMode("update")`` or
    ``"complete"``. Query, batch, partition and row name each message, as with the sink, so the rows
    of a batch that runs again are stored once. ``options`` are those of a write, except ``topic``
    and ``writeName``; after a shuffle, as here, ``idColumn`` makes that sure. If a query has two
    writers to one topic, give each a ``name``. Over Spark Connect a writer needs one that no other
    query uses, and that stays the same when the query is started again.

    Example:
        totals.writeStream.outputMode("update").foreachBatch(batch_writer("totals"))
    """
    access = ClusterAccess.of(namesrv, **keywords)
    given = {**access_options(access), **(options or {}), "writeName": name or _DEFAULT_NAME}
    if topic is not None:
        given["topic"] = topic
    parse_write(given)  # a mistake is reported here, and not in the first batch

    def write(batch: DataFrame, batch_id: int) -> None:
        if name is None and jvm_of(batch.sparkSession) is None:
            raise InvalidArgument(
                "a batch_writer without a name over Spark Connect",
                expected="a name of its own: tasks do not know there which query they work for",
                hint='batch_writer(..., name="totals")',
            )
        activate(batch.sparkSession)
        writer = batch.write.format("penstock").options(**given)
        writer.option(BATCH_OPTION, str(batch_id)).mode("append").save()

    return write
