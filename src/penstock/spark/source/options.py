"""The options of a read from ``format("penstock")``, each declared once. Pure.

Spark passes option names in lower case. An unknown name is an error whose hint is the documented
spelling of the nearest one; Spark's own options are ignored. ``repr`` shows no secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from penstock.client.arguments import timestamp_ms
from penstock.client.cluster_access import ClusterAccess
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.model.names import SPARK_GROUP
from penstock.protocol.filters.tags import parse_tags
from penstock.protocol.validation import check_group, check_topic
from penstock.spark.access_options import AccessOptions, parse_access
from penstock.spark.option_table import (
    OptionReader,
    Unusable,
    boolean,
    integer,
    json_object,
    milliseconds,
    names,
    option,
)

MAX_FETCH_BYTES: Final = 8 * 1024 * 1024
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""Kafka's numbers for both ends of a queue, in a JSON of offsets."""

_ASSIGNMENT = 'queues such as {"orders": {"broker-a": [0, 1]}}'
_OFFSETS = 'offsets such as {"orders": {"broker-a": {"0": 42}}}'


class Where(StrEnum):
    """How a position is given."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"
    OFFSETS = "offsets"
    TIME = "time"


@dataclass(frozen=True)
class Position:
    """A place in every queue: where a read begins, or the first message it leaves out."""

    where: Where
    offsets: tuple[tuple[MessageQueue, int], ...] = ()
    timestamp_ms: int = 0


EARLIEST = Position(Where.EARLIEST)
LATEST = Position(Where.LATEST)
_WORDS: Final = {
    "earliest": EARLIEST,
    "first": EARLIEST,
    "latest": LATEST,
    "last": LATEST,
    "group": Position(Where.GROUP),
}


# ------------------------------------------------------------------------- from text to values


def _topics(text: str) -> tuple[str, ...]:
    return tuple(map(check_topic, names(text)))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidArgument(
            f"{text!r} is not a regular expression: {error}", expected="such as 'orders-.*'"
        ) from None
    return text


def _tags(text: str) -> str:
    parse_tags(text)
    return text


def _keys(text: str) -> frozenset[str]:
    if "||" in text:
        # That separates tags; in a key it would match nothing, without an error.
        raise InvalidArgument(f"{text!r} has ||", expected="keys with commas between: 'o-1,o-2'")
    return frozenset(names(text))


def _position(text: str) -> Position:
    if text.startswith("{"):
        offsets = offsets_of(json_object(text, _OFFSETS))
        return Position(Where.OFFSETS, offsets=tuple(sorted(offsets.items())))
    if text.lower() not in _WORDS:
        raise Unusable(f"earliest, latest, group, or {_OFFSETS}")
    return _WORDS[text.lower()]


def _time(text: str) -> Position:
    if re.fullmatch(r"\d{8,10}", text):
        # As milliseconds that is early in 1970: a date, or seconds, is meant. Fewer digits, such
        # as 0, mean "from the first message".
        raise InvalidArgument(
            f"{text!r} has too few digits for milliseconds",
            expected="epoch milliseconds such as 1767225600000, ISO 8601 such as "
            "2026-01-01T00:00:00Z, or yyyyMMddHHmmss",
        )
    moment = timestamp_ms(int(text) if re.fullmatch(r"\d{1,13}", text) else text)
    return Position(Where.TIME, timestamp_ms=moment)


def _assignment(text: str) -> tuple[MessageQueue, ...]:
    queues: set[MessageQueue] = set()
    for topic, brokers in json_object(text, _ASSIGNMENT).items():
        check_topic(topic)
        if not isinstance(brokers, dict):
            raise InvalidArgument(f"{topic!r} has {brokers!r:.100}", expected=_ASSIGNMENT)
        for broker, numbers in brokers.items():
            if not isinstance(numbers, list) or not numbers:
                raise InvalidArgument(f"{broker!r} has {numbers!r:.100}", expected=_ASSIGNMENT)
            for number in numbers:
                if type(number) is not int or number < 0:
                    raise InvalidArgument(f"queue {number!r:.100}", expected=_ASSIGNMENT)
                queues.add(MessageQueue(topic, broker, number))
    if not queues:
        raise InvalidArgument("no queue is named", expected=_ASSIGNMENT)
    return tuple(sorted(queues))


def offsets_of(topics: Mapping[str, object]) -> dict[MessageQueue, int]:
    """Offsets by queue, from ``{topic: {broker: {queue: offset}}}``."""
    offsets: dict[MessageQueue, int] = {}
    for topic, brokers in topics.items():
        if not isinstance(brokers, dict):
            raise InvalidArgument(f"{topic!r} has {brokers!r:.100}", expected=_OFFSETS)
        for broker, queues in brokers.items():
            if not isinstance(queues, dict):
                raise InvalidArgument(f"{broker!r} has {queues!r:.100}", expected=_OFFSETS)
            for queue, offset in queues.items():
                if not (queue.isascii() and queue.isdecimal() and len(queue) < 10):
                    raise InvalidArgument(f"queue {queue!r:.100}", expected=_OFFSETS)
                if type(offset) is not int or offset < EARLIEST_OFFSET:
                    raise InvalidArgument(
                        f"offset {offset!r:.100} of queue {queue}",
                        expected="0 or more, -1 for the latest or -2 for the earliest",
                    )
                offsets[MessageQueue(topic, broker, int(queue))] = offset
    return offsets


def nested_offsets(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """The opposite of `offsets_of`, always in the same order."""
    nested: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        by_queue = nested.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})
        by_queue[str(queue.queue_id)] = offsets[queue]
    return nested


# -------------------------------------------------------------------------------- the options


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What to read, and how."""

    access: ClusterAccess
    topics: tuple[str, ...] = option(
        "topic",
        _topics,
        alias="subscribe",
        default=(),
        meaning="topics, separated by commas",
        default_text="one of `topic`, `subscribe`, `subscribePattern` and `assign` is required, "
        "except with `path`",
    )
    pattern: str | None = option(
        "subscribePattern",
        _pattern,
        meaning="a regular expression for topics",
        default_text="none",
    )
    assignment: tuple[MessageQueue, ...] = option(
        "assign",
        _assignment,
        default=(),
        meaning='single queues: `{"orders": {"broker-a": [0, 1]}}`',
        default_text="none",
    )
    path: str | None = option(
        "path",
        meaning="a store directory instead of a cluster: in use, copied, or written by Apache "
        "RocketMQ",
        default_text="a cluster",
    )
    broker_name: str | None = option(
        "brokerName",
        meaning="with `path`: the broker's name in the column `broker`",
        default_text="the name of the store's directory",
    )
    archive: str | None = option(
        "archive",
        meaning="the directory or URL of an archive of the topic: what it holds is read from its "
        "files, and the rest from the cluster, or from `path`",
        default_text="none",
        secret=True,  # A URL may have credentials.
    )
    group: str | None = option(
        "group",
        check_group,
        meaning="the consumer group that progress is committed to, and whose offsets "
        "`startingOffsets=group` uses",
        default_text="commits nothing",
    )
    commit_to_group: bool = option(
        "commitToGroup",
        boolean,
        default=False,
        meaning="commit a stream's progress to `group`",
        default_text="`true` with a `group`",
    )
    starting_offsets: Position | None = option(
        "startingOffsets",
        _position,
        meaning="where to begin: `earliest` (or `first`), `latest` (or `last`), `group`, or "
        '`{"orders": {"broker-a": {"0": 5}}}` (-2 is the earliest, -1 the latest)',
        default_text="batch, or with an `archive`: `earliest`; stream: `latest`",
    )
    ending_offsets: Position | None = option(
        "endingOffsets",
        _position,
        meaning="where a batch ends, exclusive; as `startingOffsets`",
        default_text="`latest`",
    )
    starting_timestamp: Position | None = option(
        "startingTimestamp",
        _time,
        meaning="begin at this store time: milliseconds since 1970, ISO 8601 or `yyyyMMddHHmmss`; "
        "a time without a zone is in the driver's time zone, not in that of the Spark session",
        default_text="`startingOffsets`",
    )
    ending_timestamp: Position | None = option(
        "endingTimestamp",
        _time,
        meaning="end a batch at this store time, exclusive; as `startingTimestamp`",
        default_text="`endingOffsets`",
    )
    tags: str = option(
        "tags",
        _tags,
        default="*",
        meaning="only messages with one of these tags: `paid || created`",
        default_text="all",
    )
    keys: frozenset[str] | None = option(
        "keys",
        _keys,
        meaning="only messages with one of these keys, separated by commas: `o-1,o-2`",
        default_text="all",
    )
    columns: str | None = option(
        "columns",
        meaning="only these columns are built; `.schema(...)` does the same",
        default_text="all",
    )
    include_properties: bool = option(
        "includeProperties",
        boolean,
        default=True,
        meaning="`false` leaves the column `properties` null",
    )
    max_per_trigger: int | None = option(
        "maxOffsetsPerTrigger",
        integer(1),
        meaning="maximum number of messages in a micro-batch",
        default_text="no limit",
    )
    min_partitions: int | None = option(
        "minPartitions",
        integer(1, 100_000),
        meaning="splits the messages of a queue over several tasks",
        default_text="number of cores in local mode, otherwise one task per queue",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        boolean,
        default=True,
        meaning="fail if messages were deleted before they were read, or are damaged; with `false` "
        "they are skipped with a warning, and a damaged body is null",
    )
    check_crcs: bool = option(
        "checkCrcs",
        boolean,
        default=True,
        meaning="compare each body that is read with the checksum that is stored beside it",
    )
    ordered: bool = option("ordered", boolean, default=False, meaning="read each queue in one task")
    poll_seconds: float = option(
        "pollTimeoutMs",
        milliseconds(0, 10_000),
        default=0.5,
        default_text="`500`",
        meaning="how long an idle stream waits for new messages before it answers Spark, up to "
        "10000",
    )
    # As fast as more, and a broker is not kept from its other clients for long.
    fetch_bytes: int = option(
        "fetchBytes",
        integer(1024, MAX_FETCH_BYTES),
        default=2 * 1024 * 1024,
        meaning=f"bytes of one pull, 1024 to {MAX_FETCH_BYTES}",
    )

    @property
    def starting(self) -> Position | None:
        """Where to begin, if not at the earliest message (batch) or the latest (stream)."""
        return self.starting_offsets or self.starting_timestamp

    @property
    def ending(self) -> Position | None:
        """Where to end, if not at the latest message."""
        return self.ending_offsets or self.ending_timestamp

    @property
    def puller(self) -> str:
        """The group that pulls, by the name that brokers use."""
        return self.access.long_name(self.group or SPARK_GROUP)

    @property
    def exact_tags(self) -> frozenset[str] | None:
        """The tags that pass; None when all do."""
        return parse_tags(self.tags).tags or None

    def covers(self, queue: MessageQueue) -> bool:
        """Whether a queue would be read, if it exists."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, queue.topic) is not None
        if self.assignment:
            return queue in self.assignment
        return not self.topics or queue.topic in self.topics

    def covers_topic(self, topic: str) -> bool:
        """Whether a queue of a topic may be read."""
        if self.assignment:
            return any(queue.topic == topic for queue in self.assignment)
        return self.covers(MessageQueue(topic, "", 0))

    @property
    def subject(self) -> str:
        """What is read, for error texts."""
        if self.pattern is not None:
            return f"topics matching {self.pattern!r}"
        names = self.topics or tuple(dict.fromkeys(queue.topic for queue in self.assignment))
        return f"topic {', '.join(map(repr, names))}"


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read, batch or stream."""
    given = OptionReader(options, (AccessOptions, ReadOptions), "reading")
    subjects = ("topic", "subscribe", "subscribePattern", "assign")
    given.check_alone(*subjects)
    given.check_alone("startingOffsets", "startingTimestamp")
    given.check_alone("endingOffsets", "endingTimestamp")
    if not given.given(*subjects, "path"):
        raise InvalidArgument(
            "nothing says what to read",
            expected="option topic, subscribePattern or assign",
            hint=".option('topic', 'orders')"
            if given.is_any
            # A table of a catalog is read without options, whichever way it was made.
            else ".option('topic', 'orders'), or SELECT ... WITH (topic = 'orders')",
        )
    found = ReadOptions(access=parse_access(given), **given.values(ReadOptions))
    if found.group is not None:
        return found if given.given("commitToGroup") else replace(found, commit_to_group=True)
    if found.commit_to_group:
        raise InvalidArgument(
            "option commitToGroup without a group", expected="option group beside it"
        )
    for name, position in (
        ("startingOffsets", found.starting_offsets),
        ("endingOffsets", found.ending_offsets),
    ):
        if position is not None and position.where is Where.GROUP:
            raise InvalidArgument(
                f"option {name} is 'group'", expected="option group beside it, to know which"
            )
    return found
