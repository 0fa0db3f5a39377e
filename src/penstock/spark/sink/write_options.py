"""The options of a write to ``format("penstock")``, checked and typed; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.client.cluster_access import ClusterAccess
from penstock.client.producing.outgoing import checked_topic
from penstock.spark.option_reader import ACCESS_OPTIONS, OptionReader, parse_access

WRITE_OPTIONS: Final = (
    *ACCESS_OPTIONS,
    "topic",
    "keepQueue",
    "batchBytes",
    "messageIds",
    "sendTimeoutMs",
    "retries",
)
PRODUCER_GROUP: Final = "penstock_spark"
MAX_BATCH_BYTES: Final = 3 * 1024 * 1024
"""Brokers take 4 MiB, and count the heads of the records they make of a batch."""
DEFAULT_BATCH_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Where rows go, and how patiently."""

    access: ClusterAccess
    topic: str | None = None
    keep_queue: bool = False
    batch_bytes: int = DEFAULT_BATCH_BYTES
    message_ids: bool = False
    """Whether each message gets a unique id of its own, by which it can be looked up."""
    send_seconds: float = 10.0
    retries: int = 5


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """The options of a write, batch or stream."""
    given = OptionReader(options, WRITE_OPTIONS, "writing")
    timeout = given.integer("sendTimeoutMs", 1, 600_000)
    retries = given.integer("retries", 0, 100)
    return WriteOptions(
        access=parse_access(given),
        topic=given.checked("topic", checked_topic),
        keep_queue=given.boolean("keepQueue", False),
        batch_bytes=given.integer("batchBytes", 1024, MAX_BATCH_BYTES) or DEFAULT_BATCH_BYTES,
        message_ids=given.boolean("messageIds", False),
        send_seconds=10.0 if timeout is None else timeout / 1000,
        retries=5 if retries is None else retries,
    )
