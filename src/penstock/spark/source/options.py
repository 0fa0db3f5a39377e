"""The options of ``format("penstock")``: what was written, checked and typed.

Spark hands option names over in lower case. A name nobody knows is an error that shows the
documented spelling of the nearest one; Spark's own options are let through. Nothing here is shown
by ``repr`` that is secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.client.arguments import timestamp_ms
from penstock.client.cluster_access import ClusterAccess
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.protocol.filters.tags import parse_tags
from penstock.protocol.validation import check_group, check_topic
from penstock.spark.option_reader import ACCESS_OPTIONS, OptionReader, json_object, parse_access

READ_OPTIONS: Final = (
    *ACCESS_OPTIONS,
    "topic",
    "subscribe",
    "subscribePattern",
    "assign",
    "group",
    "tags",
    "keys",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeProperties",
    "columns",
    "commitToGroup",
    "ordered",
    "pollTimeoutMs",
    "fetchBytes",
    "path",
    "brokerName",
)

DEFAULT_GROUP: Final = "penstock_spark"
"""Whom a job without a group pulls as; it commits nothing."""
MAX_FETCH_BYTES: Final = 8 * 1024 * 1024
DEFAULT_FETCH_BYTES: Final = 2 * 1024 * 1024
"""As fast as more, and a broker is not kept from its other clients for long."""
MAX_POLL_MS: Final = 10_000
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


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What to read, and how."""

    access: ClusterAccess
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assignment: tuple[MessageQueue, ...] = ()
    group: str | None = None
    tags: str = "*"
    keys: frozenset[str] | None = None
    starting: Position | None = None
    """Without one a batch begins at the earliest message, a stream at the latest."""
    ending: Position | None = None
    max_per_trigger: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    include_properties: bool = True
    columns: str | None = None
    commit_to_group: bool = False
    ordered: bool = False
    poll_seconds: float = 0.5
    fetch_bytes: int = DEFAULT_FETCH_BYTES
    path: str | None = None
    broker_name: str | None = None

    @property
    def puller(self) -> str:
        """The group that pulls, as brokers know it."""
        return self.access.long_name(self.group or DEFAULT_GROUP)

    @property
    def exact_tags(self) -> frozenset[str] | None:
        """The tags that pass; None when all do."""
        return parse_tags(self.tags).tags or None

    def covers(self, queue: MessageQueue) -> bool:
        """Whether a queue is among what is to be read, should it exist."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, queue.topic) is not None
        if self.assignment:
            return queue in self.assignment
        return not self.topics or queue.topic in self.topics

    @property
    def subject(self) -> str:
        """What is read, for error texts."""
        if self.pattern is not None:
            return f"topics matching {self.pattern!r}"
        names = self.topics or tuple(dict.fromkeys(queue.topic for queue in self.assignment))
        return f"topic {', '.join(map(repr, names))}"


# ------------------------------------------------------------------------------------- reading


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read, batch or stream."""
    given = OptionReader(options, READ_OPTIONS)
    path = given.text("path")
    group = given.checked("group", check_group)
    topics, pattern, assignment = _subject(given, needed=path is None)
    tags = given.text("tags") or "*"
    given.checked("tags", parse_tags)
    keys = given.checked("keys", _keys)
    if given.boolean("commitToGroup", False) and group is None:
        raise InvalidArgument(
            "option commitToGroup without a group", expected="option group beside it"
        )
    poll = given.integer("pollTimeoutMs", 0, MAX_POLL_MS)
    return ReadOptions(
        access=parse_access(given),
        topics=topics,
        pattern=pattern,
        assignment=assignment,
        group=group,
        tags=tags,
        keys=keys,
        starting=_position(given, "starting", group),
        ending=_position(given, "ending", group),
        max_per_trigger=given.integer("maxOffsetsPerTrigger", 1),
        min_partitions=given.integer("minPartitions", 1, 100_000),
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        include_properties=given.boolean("includeProperties", True),
        columns=given.text("columns"),
        commit_to_group=given.boolean("commitToGroup", group is not None),
        ordered=given.boolean("ordered", False),
        poll_seconds=0.5 if poll is None else poll / 1000,
        fetch_bytes=given.integer("fetchBytes", 1024, MAX_FETCH_BYTES) or DEFAULT_FETCH_BYTES,
        path=path,
        broker_name=given.text("brokerName"),
    )


def _subject(
    given: OptionReader, *, needed: bool
) -> tuple[tuple[str, ...], str | None, tuple[MessageQueue, ...]]:
    """The topics, the pattern of topics or the queues to read: one of the three."""
    named = given.given("topic", "subscribe", "subscribePattern", "assign")
    if len(named) > 1:
        raise InvalidArgument(f"options {' and '.join(named)} together", expected="one of them")
    if not named:
        if needed:
            raise InvalidArgument(
                "nothing says what to read",
                expected="option topic, subscribePattern or assign",
                hint=".option('topic', 'orders')"
                if given.is_any
                # So it is with a table of a catalog, however it was made.
                else ".option('topic', 'orders'), or SELECT ... WITH (topic = 'orders')",
            )
        return (), None, ()
    name = named[0]
    if name == "subscribePattern":
        return (), given.checked(name, _pattern), ()
    if name == "assign":
        return (), None, given.checked(name, _assignment) or ()
    topics = given.checked(name, lambda text: tuple(map(check_topic, _listed(name, text))))
    return topics or (), None, ()


def _listed(name: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise InvalidArgument(f"option {name} is {text!r}", expected="names with commas between")
    return list(dict.fromkeys(parts))


def _keys(text: str) -> frozenset[str]:
    if "||" in text:
        # That is how tags are written; as part of a key it would match nothing, silently.
        raise InvalidArgument(f"{text!r} has ||", expected="keys with commas between: 'o-1,o-2'")
    return frozenset(_listed("keys", text))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidArgument(
            f"{text!r} is no regular expression: {error}", expected="such as 'orders-.*'"
        ) from None
    return text


def _position(given: OptionReader, which: str, group: str | None) -> Position | None:
    by_offset, by_time = f"{which}Offsets", f"{which}Timestamp"
    if len(given.given(by_offset, by_time)) > 1:
        raise InvalidArgument(f"options {by_offset} and {by_time} together", expected="one of them")
    time = given.text(by_time)
    if time is not None:
        moment = given.checked(by_time, lambda text: timestamp_ms(_time(text)))
        return Position(Where.TIME, timestamp_ms=moment or 0)
    text = given.text(by_offset)
    if text is None:
        return None
    if text.startswith("{"):
        offsets = given.checked(by_offset, lambda text: parse_offsets(by_offset, text))
        return Position(Where.OFFSETS, offsets=tuple(sorted((offsets or {}).items())))
    if text.lower() not in (Where.EARLIEST, Where.LATEST, Where.GROUP):
        raise given.refused(by_offset, f"earliest, latest, group, or {_OFFSETS}")
    where = Where(text.lower())
    if where is Where.GROUP and group is None:
        raise InvalidArgument(
            f"option {by_offset} is 'group'", expected="option group beside it, to know whose"
        )
    return Position(where)


def _time(text: str) -> str | int:
    if re.fullmatch(r"\d{8,10}", text):
        # As milliseconds that is early in 1970: a date, or seconds, is meant. Fewer digits, such
        # as 0, stand for "from the first message".
        raise InvalidArgument(
            f"{text!r} has too few digits for milliseconds",
            expected="epoch milliseconds such as 1767225600000, ISO 8601 such as "
            "2026-01-01T00:00:00Z, or yyyyMMddHHmmss",
        )
    return int(text) if re.fullmatch(r"\d{1,13}", text) else text


# ---------------------------------------------------------------------------------------- JSON


def _assignment(text: str) -> tuple[MessageQueue, ...]:
    queues: set[MessageQueue] = set()
    for topic, brokers in json_object("assign", text, _ASSIGNMENT).items():
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


def parse_offsets(name: str, text: str) -> dict[MessageQueue, int]:
    """Offsets by queue, from ``{topic: {broker: {queue: offset}}}``."""
    return offsets_of(json_object(name, text, _OFFSETS))


def offsets_of(topics: Mapping[str, object]) -> dict[MessageQueue, int]:
    """Offsets by queue, from what such a JSON text stands for."""
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
    """The other way round, in an order that is always the same."""
    nested: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        by_queue = nested.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})
        by_queue[str(queue.queue_id)] = offsets[queue]
    return nested
