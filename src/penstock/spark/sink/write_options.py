"""The options of a write to ``format("penstock")``, each declared once. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from penstock.client.cluster_access import ClusterAccess
from penstock.client.producing.outgoing import checked_topic
from penstock.spark.access_options import AccessOptions, parse_access
from penstock.spark.option_table import (
    OptionReader,
    Unusable,
    boolean,
    integer,
    milliseconds,
    option,
)

MAX_BATCH_BYTES: Final = 3 * 1024 * 1024
"""Brokers take 4 MiB, and count the headers of the records they make of a batch."""


BATCH_OPTION: Final = "__penstockBatch"
"""The micro-batch of a write inside ``foreachBatch``; for `batch_writer` alone, and not listed."""
_BATCH_KEY: Final = BATCH_OPTION.lower()  # Spark changes the case of names.


class KeepQueue(Enum):
    """Whether rows are sent to the queues that their columns name."""

    NO = auto()
    PREFER = auto()
    """Where the topic has them, and no sharding key decides."""
    YES = auto()


def _keep_queue(text: str) -> KeepQueue:
    if text.lower() == "prefer":
        return KeepQueue.PREFER
    try:
        return KeepQueue.YES if boolean(text) else KeepQueue.NO
    except Unusable:
        raise Unusable("true, false or prefer") from None


def _name(text: str) -> str:
    # It is a part of a property that every message carries.
    if not re.fullmatch(r"[\w.-]{1,32}", text, re.ASCII):
        raise Unusable("1 to 32 letters, digits, '_', '.' or '-'")
    return text


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Which topic rows are sent to, and how."""

    access: ClusterAccess
    topic: str | None = option(
        "topic",
        checked_topic,
        meaning="topic of all rows; overrides the column `topic`",
        default_text="the column `topic`",
    )
    keep_queue: KeepQueue = option(
        "keepQueue",
        _keep_queue,
        default=KeepQueue.NO,
        default_text="`false`",
        meaning="`true`: send each row to the queue named by its columns `broker` and `queue_id`; "
        "`prefer`: only rows without a sharding key, and where the topic has no such queue, all "
        "rows of the one go to another",
    )
    exactly_once: bool = option(
        "exactlyOnce",
        boolean,
        default=True,
        meaning="on Penstock brokers: a row that a task sends again is stored once; "
        "`false`: it may be stored twice, and a broker that fails is replaced by another at once",
    )
    id_column: str | None = option(
        "idColumn",
        meaning="a column of type string that names each row of a batch: rows are recognised by it "
        "in any order and partition, and the unique id of a message ends with it",
        default_text="rows are named by their position in their partition",
    )
    write_name: str | None = option(
        "writeName",
        _name,
        meaning="a name for this write. Inside `foreachBatch`, another for each write of a batch: "
        "rows are then named after query, batch and this, so that those of a batch that ran again "
        "are recognised. Elsewhere: a job that runs again under the same name writes only the rows "
        "that are missing",
        default_text="a new identity for each write",
    )
    message_ids: bool = option(
        "messageIds",
        boolean,
        default=False,
        meaning="give each message a unique id that it can be found by",
    )
    batch_bytes: int = option(
        "batchBytes",
        integer(1024, MAX_BATCH_BYTES),
        default=1024 * 1024,
        meaning=f"maximum size of a batch, 1024 to {MAX_BATCH_BYTES}",
    )
    send_seconds: float = option(
        "sendTimeoutMs",
        milliseconds(1, 600_000),
        default=10.0,
        default_text="`10000`",
        meaning="timeout of one attempt to send, and how long a cluster that is down is waited for;"
        " up to 600000",
    )
    retries: int = option(
        "retries",
        integer(0, 100),
        default=5,
        meaning="further attempts before the task fails, up to 100; attempts that reach no broker"
        " count only after `sendTimeoutMs`",
    )


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """The options of a write, batch or stream."""
    given = OptionReader(options, (AccessOptions, WriteOptions), "writing")
    return WriteOptions(access=parse_access(given), **given.values(WriteOptions))


def batch_of(options: Mapping[str, str]) -> int | None:
    """The micro-batch that `BATCH_OPTION` names."""
    found = [text for name, text in options.items() if name.lower() == _BATCH_KEY]
    return int(found[0]) if found else None
