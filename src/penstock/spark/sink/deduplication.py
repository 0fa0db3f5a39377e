"""Drops the copies of messages that the sink sent twice.

A task that Spark runs again, or a micro-batch after a crash, sends rows that are already stored.
A Penstock broker stores them once; others store copies. Every message of the sink names its row, so
copies are recognised: same topic, query, batch, partition and row. That is exact if the plan before
the sink is deterministic, so that a row has the same number each time, or if rows have ids.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.columnar.row_ids import ROW_PROPERTY
from penstock.errors import InvalidArgument

_KEY = "__penstock_row"
_PLACE = ("topic", "broker", "queue_id", "offset")


def deduplicate(df: DataFrame, *, within: str | None = None) -> DataFrame:
    """The messages of ``df``, with each row that `format("penstock")` wrote only once.

    Messages of other producers are kept as they are. ``df`` needs the columns topic, broker,
    queue_id, offset and properties. On a stream Spark keeps all rows it has seen as state,
    unless ``within`` (such as ``"1 hour"``) limits how far apart copies may be, by the column
    store_timestamp.

    Example:
        deduplicate(spark.read.format("penstock").option("topic", "orders").load())
    """
    needed = (*_PLACE, "properties", *(("store_timestamp",) if within else ()))
    if missing := [name for name in needed if name not in df.columns]:
        raise InvalidArgument(
            f"deduplicate of a frame without {', '.join(missing)}",
            expected=f"the columns {', '.join(needed)}, as the source gives them",
            hint="deduplicate first, then select",
        )
    marked = df.withColumn(_KEY, _row_key())
    if within is not None and df.isStreaming:
        marked = marked.withWatermark("store_timestamp", within)
        return marked.dropDuplicatesWithinWatermark([_KEY]).drop(_KEY)
    return marked.dropDuplicates([_KEY]).drop(_KEY)


def _row_key() -> Column:
    """A key that all copies of a row have, and nothing else."""
    # Null where there is no such property.
    of_sink = F.concat("topic", F.lit("/"), F.try_element_at("properties", F.lit(ROW_PROPERTY)))
    # It cannot be equal to one of the sink: no topic has an @ in its name.
    of_others = F.concat_ws("@", *(F.col(name).cast("string") for name in _PLACE))
    return F.coalesce(of_sink, of_others)
