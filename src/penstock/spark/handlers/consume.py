"""`consume`: a consumer group on Spark.

    consume({"topic": "orders"}, handler, ...)     the handler runs inside the read; fastest
    consume(stream, handler, ...)                  the handler runs after SQL, in the stream's sink

Both keep the push consumer's contract: each message has its own outcome, failed ones are stored
again by the broker (in the retry topic, which the query reads too) or become dead letters with the
reason, and an offset is committed only when all messages before it are handled or stored again.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from penstock.client.cluster_access import ClusterAccess
from penstock.client.consuming.handler_middleware import check_handler_middleware
from penstock.client.consuming.listeners import HandlerFunction, Listener
from penstock.client.middleware import Middleware
from penstock.client.options import check_range
from penstock.client.settings import UNLIMITED
from penstock.errors import InvalidArgument
from penstock.model.names import retry_topic
from penstock.protocol.validation import check_group
from penstock.spark.handlers.handler_sources import PLACE, HandlerSink, HandlerSource
from penstock.spark.handlers.handler_task import HandlerJob
from penstock.spark.handlers.send_back import ensure_retry_topic
from penstock.spark.jvm import activate
from penstock.spark.session_setup.registration import local_cores
from penstock.spark.source.columns import SPARK_TYPES
from penstock.spark.source.options import ReadOptions, parse_read
from penstock.spark.source.streaming_plan import StreamedRelation, streamed_relations

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_FLAGS = re.compile(r"(?:\(\?[aimsux]+\))*")
MakeJob = Callable[[ClusterAccess], HandlerJob]

_STARTS = ("startingoffsets", "startingtimestamp")


def consume(
    source: Mapping[str, Any] | DataFrame,
    handler: HandlerFunction,
    *,
    group: str,
    checkpoint: str | Path,
    ordered: bool = False,
    trigger: str | Mapping[str, Any] | None = None,
    max_retries: int = 16,
    middleware: Sequence[Middleware] = (),
) -> StreamingQuery:
    """Handle the messages of topics on Spark's executors, as a consumer group.

    ``source`` is the options of a read (``{"namesrv": ..., "topic": "orders"}``), or a streaming
    DataFrame from ``format("penstock")`` that kept topic, broker, queue_id and offset. ``handler``
    gets one `StoredMessage`: if it returns, the message is acknowledged; if it raises, the message
    is redelivered; `RetryLater` and `DeadLetter` choose. ``middleware`` runs around each call, as
    in a push consumer. Both are sent to the executors, so they must not hold connections: create
    those in their module on first use.

    With ``ordered`` the messages of a queue are handled one after the other, and one that fails is
    handled again before the next. ``trigger`` is what ``DataStreamWriter.trigger`` takes, such as
    ``{"availableNow": True}``; a text is a processing time. A message that failed ``max_retries``
    times becomes a dead letter at its next failure.

    Without a checkpoint the group continues at its offsets. Queues that it never consumed begin as
    ``startingOffsets`` or ``startingTimestamp`` say, else as a push consumer begins there: at the
    latest messages, or at the first if the broker still has all of them in memory. Offsets in JSON
    move the group in the queues that they name; others that it never consumed begin at their first
    message. With a checkpoint none of this applies.

    A handler may see a message twice: after a crash the last batch is handled again.
    """
    check_group(group)
    check_range("max_retries", max_retries, 0, UNLIMITED)
    # Refuses what cannot be called.
    listener = Listener("", handler, takes_batch=False, owner=f"group {group!r}")
    check_handler_middleware(middleware, is_async=listener.is_async)
    _check_travels((handler, tuple(middleware)), group)
    if checkpoint is None or not str(checkpoint).strip():
        # As text it would be a directory of that name below the driver's working directory.
        raise InvalidArgument(
            f"checkpoint {checkpoint!r}", expected="a directory that every restart names again"
        )
    chosen = _trigger(trigger)

    def job(access: ClusterAccess) -> HandlerJob:
        return HandlerJob(handler, group, access, ordered, max_retries, tuple(middleware))

    if isinstance(source, DataFrame):
        writer = _from_frame(source, group, ordered, job)
    else:
        writer = _from_options(source, group, ordered, job)
    if chosen:
        writer = writer.trigger(**chosen)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def _check_travels(code: object, group: str) -> None:
    """Refuse code that cannot be sent to executors; Spark's own error names no handler."""
    try:
        cloudpickle.dumps(code)  # type: ignore[no-untyped-call]  # PySpark's copy has no types
    except Exception as error:
        raise InvalidArgument(
            f"the handler of group {group!r} cannot be sent to executors: {error}",
            expected="a function, and middleware, without a connection, lock, file or session",
            hint="create such things in the handler's module on first use",
        ) from error


def _trigger(trigger: str | Mapping[str, Any] | None) -> dict[str, Any]:
    if trigger is None:
        return {}
    if isinstance(trigger, str):
        if trigger.lower().replace("_", "") == "availablenow":
            return {"availableNow": True}
        return {"processingTime": trigger}
    return dict(trigger)


# ------------------------------------------------------------------------- inside the read


def _from_options(
    given: Mapping[str, Any], group: str, ordered: bool, job: MakeJob
) -> DataStreamWriter:
    options = _texts(given)
    # The case of true and false does not matter, that of groups does.
    if "ordered" in options:
        options["ordered"] = options["ordered"].lower()
    for name, value in (("group", group), ("ordered", str(ordered).lower())):
        if options.setdefault(name, value) != value:
            raise InvalidArgument(
                f"option {name} is {options[name]!r}, and consume was called with {value!r}",
                expected="one of the two",
            )
    if "columns" in options:
        raise InvalidArgument("option columns", expected="no columns: handlers get whole messages")
    if "archive" in options:
        raise InvalidArgument(
            "option archive, and a handler",
            expected="messages of brokers only: a failed one is sent back to the broker that has "
            "it",
            hint="penstock.spark.replay sends archived messages to a topic again",
        )
    parsed = parse_read(options)
    _check_broker([parsed])
    spark = _session()
    source = _named(HandlerSource, job=job(parsed.access), cores=local_cores(spark))
    spark.dataSource.register(source)
    options.pop("subscribe", None)
    options.update(reading_retries(parsed))
    return (
        spark.readStream.format(source.name()).options(**options).load().writeStream.format("noop")
    )


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    """Options as Spark passes them: names in lower case, values as text."""
    return {
        name.lower(): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
    }


def reading_retries(options: ReadOptions) -> dict[str, str]:
    """The option to read what ``options`` read and the group's retry topic, which is created."""
    assert options.group is not None
    retry = retry_topic(options.group)
    route = ensure_retry_topic(options.access, options.group)
    if options.pattern is not None:
        # A percent sign makes the source look at all retry topics; the group reads its own only.
        flags, pattern = _flags(options.pattern)
        return {"subscribepattern": f"(?!%)(?{flags}:{pattern})|{re.escape(retry)}"}
    if options.assignment:
        queues = {*options.assignment, *route.subscribe_queues(retry)}
        nested: dict[str, dict[str, list[int]]] = {}
        for topic, broker, number in sorted(queues):
            nested.setdefault(topic, {}).setdefault(broker, []).append(number)
        return {"assign": json.dumps(nested)}
    return {"topic": ",".join(dict.fromkeys((*options.topics, retry)))}


def _flags(pattern: str) -> tuple[str, str]:
    """The flags that a regular expression begins with, such as (?i), and the rest of it.

    Python allows them at the beginning only; for a part they are written as (?i:...).
    """
    ahead = _FLAGS.match(pattern)
    assert ahead is not None, "it matches the empty text, too"
    return "".join(re.findall(r"\w+", ahead[0])), pattern[ahead.end() :]


# --------------------------------------------------------------------------- in the writer


def _from_frame(frame: DataFrame, group: str, ordered: bool, job: MakeJob) -> DataStreamWriter:
    if not frame.isStreaming:
        raise InvalidArgument(
            "consume of a DataFrame that is not a stream",
            expected="one of spark.readStream",
            hint='spark.readStream.format("penstock").option("topic", ...).load()',
        )
    if missing := [name for name in PLACE if name not in frame.columns]:
        raise InvalidArgument(
            f"consume of a stream without {', '.join(missing)}",
            expected=f"a stream that kept {', '.join(PLACE)}",
        )
    relations = [one for one in streamed_relations(frame) if one.name == "penstock"]
    if not relations:
        raise InvalidArgument(
            "consume of a stream from elsewhere", expected='a stream of format("penstock")'
        )
    read = [parse_read(relation.options) for relation in relations]
    _check_broker(read)
    _check_order(read, ordered)
    if others := {options.group for options in read} - {None, group}:
        raise InvalidArgument(
            f"a stream of group {', '.join(map(repr, others))}, and consume for group {group!r}",
            expected="the same group in both, or none at the stream",
        )
    spark = frame.sparkSession
    if not any(retry_topic(group) in options.topics for options in read):
        frame = _with_retries(spark, frame, relations[0], group)
    # A stream that was loaded for the group commits its progress itself.
    commits = not all(one.commit_to_group for one in read)
    sink = _named(HandlerSink, job=job(read[0].access), commits=commits)
    spark.dataSource.register(sink)
    activate(spark)
    return frame.writeStream.format(sink.name()).outputMode("append")


def _check_broker(read: Sequence[ReadOptions]) -> None:
    if any(options.path is not None for options in read):
        raise InvalidArgument(
            "option path, and a handler",
            expected="topics of a broker: a store directory takes no failed message back",
        )


def _check_order(read: Sequence[ReadOptions], ordered: bool) -> None:
    if ordered and not all(options.ordered for options in read):
        raise InvalidArgument(
            "ordered handling of a stream that was read without order",
            expected='a stream loaded with option("ordered", "true"), which keeps each queue in '
            "one task",
        )


_OF_THE_STREAM = frozenset(
    {*_STARTS, "topic", "subscribe", "subscribepattern", "assign", "columns", "archive"}
)
"""Options of a stream that do not fit the retry topic of its group."""


def _with_retries(
    spark: SparkSession, frame: DataFrame, relation: StreamedRelation, group: str
) -> DataFrame:
    """The frame together with the group's retry topic.

    That is right as long as the frame passes on what it read: a retried message comes as it is
    stored. If SQL computes other columns, only the frame itself can read the retries.
    """
    retry = retry_topic(group)
    changed = relation.changed_columns(frame, SPARK_TYPES)
    if changed:
        raise InvalidArgument(
            f"a stream that computes {', '.join(changed)} and does not read {retry!r}",
            expected="retried messages to pass through the same SQL",
            hint=f"add {retry} to the option topic of the stream",
        )
    options = {
        name: value for name, value in relation.options.items() if name not in _OF_THE_STREAM
    }
    reading = parse_read({**options, "group": group, "topic": retry})
    ensure_retry_topic(reading.access, group)
    kept = [name for name in frame.columns if name in SPARK_TYPES]
    retries = (
        spark.readStream.format("penstock")
        .options(**options)
        .options(group=group, topic=retry, columns=",".join(kept))
        .option("startingOffsets", "group")
        .load()
    )
    return frame.unionByName(retries, allowMissingColumns=True)


# ------------------------------------------------------------------------------------- Spark


def _named(base: type, **attributes: object) -> Any:
    """A source of its own for one query.

    Spark sends a class that is in no module by value, with the job in it.
    """
    name = f"penstock_handler_{uuid.uuid4().hex}"
    return type(name, (base,), {**attributes, "format_name": name})


def _session() -> SparkSession:
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    from penstock.spark.session_setup.tuned_session import session

    return session()
