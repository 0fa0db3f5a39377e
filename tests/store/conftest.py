"""Stores to test on: fresh ones with small segments, and copies of real ones."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import VECTORS

from penstock.store import OS_FILES, Draft, FileLayer, MessageStore, StoreConfig

# Python before 3.11.4 knows no filters, and later ones warn where none is named.
SAFE_EXTRACTION: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}

SMALL = StoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=10,
    max_index_num=40,
)


class Clock:
    """Milliseconds that pass only when a test changes them."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000


@dataclass
class Golden:
    """A store written by Apache RocketMQ, unpacked, with what is in it."""

    version: str
    root: Path
    messages: list[dict[str, Any]]
    queues: list[dict[str, Any]]
    index_files: list[dict[str, Any]]
    checkpoint: dict[str, Any]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str], Golden]:
    """Unpack a golden store; the copy may be written to."""

    def unpack(version: str) -> Golden:
        with tarfile.open(VECTORS / f"store-{version}.tar.gz") as archive:
            # The timer wheel is 38 MB of what Penstock does not read.
            members = [member for member in archive if not member.name.endswith("timerwheel")]
            archive.extractall(tmp_path / version, members, **SAFE_EXTRACTION)
        with gzip.open(VECTORS / f"store-{version}.manifest.jsonl.gz", "rt") as lines:
            rows = [json.loads(line) for line in lines]
        kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in
                 ("message", "queue", "index", "checkpoint")}  # fmt: skip
        root = tmp_path / version / "store"
        if version.startswith("5."):
            (root / "timerwheel").touch()
        return Golden(
            version, root, kinds["message"], kinds["queue"], kinds["index"], kinds["checkpoint"][0]
        )

    return unpack


OpenStore = Callable[..., MessageStore]


@pytest.fixture
def open_store(tmp_path: Path, clock: Clock) -> Iterator[OpenStore]:
    """Open the test's store, by default a small one; every store is given back at the end."""
    opened: list[MessageStore] = []

    def open_it(
        config: StoreConfig = SMALL, *, files: FileLayer = OS_FILES, root: Path | None = None
    ) -> MessageStore:
        store = MessageStore(
            root or tmp_path / "store",
            config,
            time_ms=clock,
            monotonic=clock.monotonic,
            files=files,
        )
        opened.append(store)
        store.open()
        return store

    yield open_it
    for store in opened:
        store.abandon()


def draft(
    topic: str = "orders", queue_id: int = 0, body: bytes = b"hello", **properties: str
) -> Draft:
    """A message with the given properties."""
    text = "".join(f"{key}\x01{value}\x02" for key, value in properties.items())
    return Draft(
        topic,
        queue_id,
        body,
        text.encode(),
        born_timestamp=1_699_999_999_000,
        born_host=bytes([10, 0, 0, 1, 0, 0, 0x1F, 0x90]),
        store_host=bytes([10, 0, 0, 5, 0, 0, 0x2A, 0x9F]),
    )


@pytest.fixture
def make_draft() -> Callable[..., Draft]:
    return draft
