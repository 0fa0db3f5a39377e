"""Redrives dead letters on an executor: repair, check for an earlier copy, send.

The identity of a letter, the properties of its copy and the search for copies are those of
`penstock.admin.dead_letters`; so this and ``penstock dlq redrive`` never send one letter twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.admin.blocking import Admin
from penstock.admin.reports import DeadLetterRow
from penstock.client.cluster_access import ClusterAccess
from penstock.errors import PenstockError
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.model.names import Property, dead_letter_topic, retry_topic
from penstock.protocol.validation import RESERVED_PROPERTIES
from penstock.spark.pipelines.pacing import Pace

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LETTERS_AT_ONCE = 32
"""Letters of one call: the size of one pull."""

Repair = Callable[[DeadLetterRow], "bytes | str | Message | None"]
"""From a dead letter to what is sent in its place: a body, or a `penstock.Message` whose body, tag,
keys and properties replace the letter's; ``letter.message.body`` sends it unchanged, None skips it.
An exception is recorded, and skips the letter, too."""


class Audit:
    """Keys of the properties of a copy that name its sender and run."""

    BY: Final = "PENSTOCK_REDRIVEN_BY"
    RUN: Final = "PENSTOCK_REDRIVE_RUN"


class Outcome:
    """The outcome of a letter."""

    REDRIVEN: Final = "redriven"
    SKIPPED: Final = "skipped"
    """The repair function returned None."""
    FAILED: Final = "failed"
    """It could not be repaired or sent; ``detail`` has the reason."""
    ALREADY: Final = "already redriven"
    GONE: Final = "gone"
    """Deleted by the broker in the meantime."""


RECORD_SCHEMA: Final = pa.schema(
    [
        ("by", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("consumer_group", pa.string()),
        ("broker", pa.string()),
        ("queue_id", pa.int32()),
        ("offset", pa.int64()),
        ("letter_id", pa.string()),
        ("msg_id", pa.string()),
        ("origin_topic", pa.string()),
        ("reason_type", pa.string()),
        ("reason", pa.string()),
        ("attempts", pa.int32()),
        ("outcome", pa.string()),
        ("detail", pa.string()),
        ("sent_to", pa.string()),
        ("copy_id", pa.string()),
    ]
)
"""The columns of the audit, with a row for each letter."""
LETTER_COLUMNS: Final = ("broker", "queue_id", "offset", "body", "keys", "tags", "properties")
"""The columns that are sent to the executors: the position, and what may have been changed."""

_OUR_PREFIX: Final = "PENSTOCK_"


@dataclass(frozen=True)
class Redriver:
    """For ``mapInArrow``: letters in, audit records out."""

    access: ClusterAccess
    group: str
    to: str | None
    repair: Repair | None
    run: str
    by: str
    rate: float | None
    dry_run: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pace = None if self.rate is None else Pace(self.rate)
        at_once = LETTERS_AT_ONCE
        if self.rate is not None:
            at_once = max(1, min(at_once, int(self.rate)))
        with Admin(**self.access.as_keywords()) as admin:
            for batch in batches:
                for start in range(0, batch.num_rows, at_once):
                    rows = batch.slice(start, at_once).to_pylist()
                    records = self._redrive(admin, rows, pace)
                    yield pa.RecordBatch.from_pylist(records, schema=RECORD_SCHEMA)

    def _redrive(
        self, admin: Admin, rows: list[dict[str, Any]], pace: Pace | None
    ) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        ready: list[tuple[dict[str, Any], DeadLetterRow]] = []
        originals = self._originals(admin, rows)
        for row in rows:
            original = originals.get((row["broker"], row["queue_id"], row["offset"]))
            if original is None:
                records.append(self._record(row, None, Outcome.GONE))
                continue
            letter = DeadLetterRow.from_message(_as_changed(original, row))
            record = self._record(row, letter, Outcome.REDRIVEN)
            records.append(record)
            ready.append((record, letter))
        done = self._redriven(admin, [letter for _, letter in ready])
        sendable: list[tuple[dict[str, Any], DeadLetterRow]] = []
        for record, letter in ready:
            if letter.message.offset_msg_id in done:
                record["outcome"] = Outcome.ALREADY
            elif (repaired := self._repaired(record, letter)) is not None:
                sendable.append((record, repaired))
        if not self.dry_run and sendable:
            if pace is not None:
                pace.wait(len(sendable))
            self._send(admin, sendable)
        return records

    def _originals(
        self, admin: Admin, rows: list[dict[str, Any]]
    ) -> dict[tuple[str, int, int], StoredMessage]:
        """The letters as they are stored: only these have the id that copies refer to."""
        found: dict[tuple[str, int, int], StoredMessage] = {}
        topic = dead_letter_topic(self.group)
        for row in sorted(rows, key=lambda row: (row["broker"], row["queue_id"], row["offset"])):
            place = row["broker"], row["queue_id"], row["offset"]
            if place in found:
                continue
            queue = MessageQueue(topic, row["broker"], row["queue_id"])
            part = admin.messages(queue, row["offset"], count=LETTERS_AT_ONCE)
            for message in part.messages:
                found[row["broker"], row["queue_id"], message.queue_offset] = message
        return found

    def _redriven(self, admin: Admin, letters: list[DeadLetterRow]) -> set[str]:
        """Those with a copy in the retry topic, their original topic, or ``to``."""
        done = admin.redriven(self.group, letters)
        by_topic: dict[str, list[DeadLetterRow]] = {}
        for letter in letters:
            if letter.message.offset_msg_id not in done:
                for topic in {letter.origin_topic, self.to} - {None}:
                    by_topic.setdefault(str(topic), []).append(letter)
        for topic, some in by_topic.items():
            done |= admin.redriven(self.group, some, to=topic)
        return done

    def _repaired(self, record: dict[str, Any], letter: DeadLetterRow) -> DeadLetterRow | None:
        if self.to is None and letter.origin_topic is None:
            _fail(record, "its original topic is not recorded: name a topic to send it to")
            return None
        message = letter.message
        if self.repair is not None:
            try:
                changed = self.repair(letter)
                if changed is None:
                    record["outcome"] = Outcome.SKIPPED
                    return None
                message = _as_repaired(message, changed)
            except Exception as error:
                # An error of the repair function concerns its letter alone.
                _fail(record, f"repair: {type(error).__name__}: {error}")
                return None
        if not message.body:
            _fail(record, "its body is empty, and brokers take none")
            return None
        properties = {**message.properties, Audit.BY: self.by, Audit.RUN: self.run}
        return DeadLetterRow.from_message(_copy(message, message.body, properties))

    def _send(self, admin: Admin, sendable: list[tuple[dict[str, Any], DeadLetterRow]]) -> None:
        letters = [letter for _, letter in sendable]
        refusal = ""
        try:
            receipts = admin.redrive(self.group, letters, to=self.to)
        except PenstockError as error:
            if error.retriable:
                # The broker failed: Spark retries the task, which finds what was sent.
                raise
            refusal = str(error)
            receipts = []
        done = self._redriven(admin, letters) if refusal else set()
        for number, (record, letter) in enumerate(sendable):
            if refusal and letter.message.offset_msg_id not in done:
                _fail(record, refusal)
            elif number < len(receipts):
                record["copy_id"] = receipts[number].offset_msg_id
            record["at"] = datetime.now(UTC)

    def _record(
        self, row: Mapping[str, Any], letter: DeadLetterRow | None, outcome: str
    ) -> dict[str, Any]:
        message = None if letter is None else letter.message
        return {
            "by": self.by,
            "at": datetime.fromtimestamp(time.time(), UTC),
            "consumer_group": self.group,
            "broker": row["broker"],
            "queue_id": row["queue_id"],
            "offset": row["offset"],
            "letter_id": None if message is None else message.offset_msg_id,
            "msg_id": None if message is None else message.msg_id,
            "origin_topic": None if letter is None else letter.origin_topic,
            "reason_type": None if letter is None else letter.reason_type,
            "reason": None if letter is None else letter.reason,
            "attempts": None if letter is None else letter.attempts,
            "outcome": outcome,
            "detail": None,
            "sent_to": self.to or retry_topic(self.group),
            "copy_id": None,
        }


def _fail(record: dict[str, Any], detail: str) -> None:
    record["outcome"] = Outcome.FAILED
    record["detail"] = detail


def record_schema() -> StructType:
    """The Spark schema of audit records."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(RECORD_SCHEMA)


# ---------------------------------------------------------------------------------- new messages


def _as_changed(original: StoredMessage, row: Mapping[str, Any]) -> StoredMessage:
    """The letter with the values of its row; a missing column changes nothing."""
    properties = dict(original.properties)
    if (given := row.get("properties")) is not None:
        own = {key: value for key, value in dict(given).items() if not _is_ours(key)}
        properties = own | _ours(properties)
    if "keys" in row:
        # Text is accepted as well, as in the sink: SQL often returns it.
        keys = row["keys"] or ()
        _put(properties, Property.KEYS, keys if isinstance(keys, str) else " ".join(keys))
    if "tags" in row:
        _put(properties, Property.TAGS, row["tags"])
    body = row.get("body")
    if isinstance(body, str):
        body = body.encode()
    return _copy(original, original.body if body is None else bytes(body), properties)


def _as_repaired(message: StoredMessage, repaired: bytes | str | Message) -> StoredMessage:
    if isinstance(repaired, str):
        repaired = repaired.encode()
    if isinstance(repaired, bytes | bytearray | memoryview):
        return _copy(message, bytes(repaired), message.properties)
    if not isinstance(repaired, Message):
        raise TypeError(f"it returned {type(repaired).__name__}, not bytes, a Message or None")
    properties = dict(repaired.properties or {}) | _ours(message.properties)
    _put(properties, Property.KEYS, " ".join(repaired.keys))
    _put(properties, Property.TAGS, repaired.tag)
    if repaired.sharding_key is not None:
        properties[Property.SHARDING_KEY] = repaired.sharding_key
    return _copy(message, repaired.body, properties)


def _is_ours(key: str) -> bool:
    """Whether a property belongs to RocketMQ or Penstock, and users must not change it."""
    return key in RESERVED_PROPERTIES or key.startswith(_OUR_PREFIX)


def _ours(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if _is_ours(key)}


def _put(properties: dict[str, str], key: str, value: str | None) -> None:
    if value:
        properties[key] = value
    else:
        properties.pop(key, None)


def _copy(message: StoredMessage, body: bytes, properties: Mapping[str, str]) -> StoredMessage:
    return StoredMessage(
        message.topic,
        body,
        dict(properties),
        message.queue,
        message.queue_offset,
        message.log_position,
        message.born_timestamp,
        message.store_timestamp,
        message.born_host,
        message.store_host,
        message.reconsume_times,
        message.sys_flag,
        message.flag,
        message.prepared_transaction_offset,
        message.msg_id,
        message.offset_msg_id,
    )
