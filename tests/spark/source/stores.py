"""Stores that tests write, and reading them as the source does, without Spark around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.columnar.schema import ALL
from penstock.spark.source.options import parse_read
from penstock.spark.source.readers import BatchReader
from penstock.store import Draft, MessageStore, StoreConfig

Row = dict[str, Any]

SMALL = StoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=10,
    max_index_num=40,
)


class Writer:
    """A store that is being written to, as a running broker's is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 1_700_000_000_000
        self.store = MessageStore(root, SMALL, time_ms=lambda: self.now)
        self.store.open()
        self.sent: list[tuple[str, int, int, bytes]] = []

    def send(self, topic: str, queue_id: int, count: int, *, tag: str = "") -> None:
        for _ in range(count):
            body = b"message %d" % len(self.sent)
            properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
            draft = Draft(
                topic,
                queue_id,
                body,
                properties,
                born_timestamp=self.now,
                born_host=bytes([10, 0, 0, 1, 0, 0, 0x1F, 0x90]),
                store_host=bytes([10, 0, 0, 5, 0, 0, 0x2A, 0x9F]),
            )
            appended = self.store.append(draft)
            self.sent.append((topic, queue_id, appended.queue_offset, body))
            # Messages of one write share a store timestamp; here each has its own.
            self.store.write()
            self.now += 1000


def scan(
    path: Path, columns: tuple[str, ...] = ALL, *, cores: int | None = None, **options: str
) -> list[Row]:
    """What the path source reads, with the same planning and reading as inside of Spark."""
    parsed = parse_read({"path": str(path), **options})
    reader = BatchReader(parsed, columns, cores)
    rows = [
        row
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]
    for row in rows:
        if row.get("properties") is not None:
            row["properties"] = dict(row["properties"])
    return rows
