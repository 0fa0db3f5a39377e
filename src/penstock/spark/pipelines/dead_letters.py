"""``dead_letters``: the dead letters of a group as a DataFrame, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from penstock.admin.blocking import Admin
from penstock.client.cluster_access import AccessKeywords, ClusterAccess
from penstock.errors import GroupNotFound
from penstock.model.names import Failure, Property, Redrive, dead_letter_topic
from penstock.protocol.validation import check_group
from penstock.spark.pipelines.spans import Span, read_spans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOT_RECORDED = "not recorded"


def dead_letters(
    spark: SparkSession,
    group: str,
    *,
    settled: bool = False,
    namesrv: str | Iterable[str] | None = None,
    **keywords: Unpack[AccessKeywords],
) -> DataFrame:
    """The dead letters of a consumer group, with the columns of the source and these:

    ``consumer_group``; ``reason_type`` and ``reason``, the exception of the handler (null if it was
    not recorded); ``attempts``, the number of deliveries; ``failed_host``; ``origin_topic`` and
    ``origin_msg_id``, where it came from; ``redrives``, how often it was redriven and failed again.
    ``settled`` adds letters that were already redriven or purged.

    Change ``body``, ``keys``, ``tags`` or ``properties`` as you like and pass the rows to
    `redrive`. A group without dead letters gives no rows; an unknown group is an error.
    """
    check_group(group)
    access = ClusterAccess.of(namesrv, **keywords)
    with Admin(**access.as_keywords()) as admin:
        spans = pending_spans(admin, group, settled=settled)
        if not spans:
            check_known(admin, group)
    return with_reasons(_letters(spark, access, group, spans), group)


def pending_spans(admin: Admin, group: str, *, settled: bool = False) -> list[Span]:
    """The offsets of the dead letters that are not settled yet."""
    return [
        Span(
            place.queue.broker_name,
            place.queue.queue_id,
            place.min_offset if settled else place.settled,
            place.max_offset,
        )
        for place in admin.dead_letter_queues(group)
        if (place.count if settled else place.pending)
    ]


def check_known(admin: Admin, group: str) -> None:
    """Refuse a group that no broker knows: its name is probably misspelt."""
    if group in admin.groups() or admin.dead_letter_queues(group):
        return
    known = admin.dead_letter_groups()
    raise GroupNotFound(
        f"no broker knows consumer group {group!r}",
        expected=f"one with dead letters: {', '.join(known)}" if known else "a group",
        hint="penstock dlq list",
    )


def _letters(
    spark: SparkSession, access: ClusterAccess, group: str, spans: list[Span]
) -> DataFrame:
    from penstock.spark.source.columns import spark_schema

    if not spans:
        return spark.createDataFrame([], spark_schema())
    return read_spans(spark, access, dead_letter_topic(group), spans)


def with_reasons(rows: DataFrame, group: str) -> DataFrame:
    """Adds the properties of dead letters as columns."""
    from pyspark.sql import functions as F

    properties = F.col("properties")
    recorded = F.expr(f"try_cast(properties['{Failure.ATTEMPT}'] as int)")
    return (
        rows.withColumn("consumer_group", F.lit(group))
        .withColumn("reason_type", properties[Failure.TYPE])
        .withColumn("reason", properties[Failure.MESSAGE])
        .withColumn("attempts", F.coalesce(recorded, F.col("reconsume_times")))
        .withColumn("failed_host", properties[Failure.HOST])
        .withColumn(
            "origin_topic",
            F.coalesce(properties[Property.RETRY_TOPIC], properties["DLQ_ORIGIN_TOPIC"]),
        )
        .withColumn(
            "origin_msg_id",
            F.coalesce(properties[Property.ORIGIN_MESSAGE_ID], properties["DLQ_ORIGIN_MESSAGE_ID"]),
        )
        .withColumn(
            "redrives",
            F.coalesce(F.expr(f"try_cast(properties['{Redrive.TIMES}'] as int)"), F.lit(0)),
        )
    )
