"""Written first, visible later: no reader sees the difference, and neither does a dead process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.protocol.records.batches import BatchItem, encode_batch
from penstock.store import Draft, MessageStore, ReadStatus, StoreConfig

NOW = 1_700_000_000_000
RUN = encode_batch([BatchItem(b"%d" % n, b"UNIQ_KEY\x01run-%02d\x02" % n) for n in range(10)])


def opened(path: Path, **config: object) -> MessageStore:
    store = MessageStore(path, StoreConfig(**config), time_ms=lambda: NOW)  # type: ignore[arg-type]
    store.open()
    return store


def written(path: Path) -> MessageStore:
    """A store whose log has two messages that are not visible yet."""
    store = opened(path)
    for key in (b"first", b"second"):
        store.append(Draft("orders", 0, b"body", b"KEYS\x01%b\x02" % key))
    assert store.write_log()
    assert store.statistics().dispatch_behind_bytes > 0
    return store


def indexed_up_to_the_end(store: MessageStore) -> bool:
    index = store.key_index
    return index is not None and index.end_position == store.commit_log.last_record


READERS: dict[str, tuple[Callable[[MessageStore], object], object]] = {
    "read": (lambda store: store.read("orders", 0, 0).count, 2),
    "max_offset": (lambda store: store.max_offset("orders", 0), 2),
    "entry": (lambda store: store.entry("orders", 0, 1) is not None, True),
    "offset_at": (lambda store: store.offset_at("orders", 0, NOW, upper=True), 1),
    "store_time_at": (lambda store: store.store_time_at("orders", 0, 1), NOW),
    "earliest_store_time": (lambda store: store.earliest_store_time("orders", 0), NOW),
    "is_in_memory": (lambda store: store.is_in_memory("orders", 0, 1), True),
    "query": (lambda store: len(store.query("orders", "second").slices), 1),
    "queues": (lambda store: list(store.queues()), [("orders", 0)]),
    "queue_table": (lambda store: store.queue_table.queues["orders", 0].max_offset, 2),
    "key_index": (indexed_up_to_the_end, True),
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_sees_what_is_written(tmp_path: Path, reader: str) -> None:
    store = written(tmp_path)
    read, expected = READERS[reader]
    assert read(store) == expected
    assert store.statistics().dispatch_behind_bytes == 0
    store.close()


def test_waiters_for_a_message_are_notified_at_once(tmp_path: Path) -> None:
    store = opened(tmp_path)
    waiting = {("orders", 0)}
    arrived: list[tuple[int, ReadStatus]] = []
    store.on_arrival(
        # A listener that reads finds the message.
        lambda *arrival: arrived.append(
            (arrival[2], store.read("orders", 0, arrival[2] - 1).status)
        ),
        waiting,
    )
    store.append(Draft("orders", 1, b"of another queue"))
    assert store.write_log()
    store.append(Draft("orders", 0, b"awaited"))
    assert not store.write_log()
    assert arrived == [(1, ReadStatus.FOUND)]
    assert store.statistics().dispatch_behind_bytes == 0
    waiting.clear()
    store.append(Draft("orders", 0, b"not awaited"))
    assert store.write_log()
    store.publish()
    assert len(arrived) == 1
    store.close()


def test_a_run_staged_before_the_last_write_is_published_is_seen_whole(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append(Draft("orders", 0, b"single"))
    store.write_log()
    assert store.append_batch_body(Draft("orders", 0, b""), RUN) is not None
    store.publish()
    assert store.max_offset("orders", 0) == 1
    store.write_log()
    store.append(Draft("orders", 0, b"single"))
    store.publish()
    assert store.max_offset("orders", 0) == 11
    store.write()
    assert store.max_offset("orders", 0) == 12
    assert len(store.query("orders", "run-09").slices) == 1
    store.close()


@pytest.mark.parametrize("is_published", [True, False])
def test_a_process_that_dies_before_it_published_loses_nothing(
    tmp_path: Path, is_published: bool
) -> None:
    store = written(tmp_path)
    assert store.append_batch_body(Draft("orders", 1, b""), RUN) is not None
    store.write_log()
    if is_published:
        store.publish()
    store.abandon()
    again = opened(tmp_path)
    assert [again.max_offset("orders", queue_id) for queue_id in (0, 1)] == [2, 10]
    for key in ("first", "second", "run-00", "run-09"):
        assert len(again.query("orders", key).slices) == 1
    again.close()


def test_a_store_that_is_closed_publishes_first(tmp_path: Path) -> None:
    store = written(tmp_path)
    store.close()
    again = opened(tmp_path)
    assert again.recovery is not None
    assert again.recovery.kind == "clean"
    assert again.max_offset("orders", 0) == 2
    assert len(again.query("orders", "second").slices) == 1
    again.close()


def test_a_topic_that_is_deleted_takes_along_what_was_not_published(tmp_path: Path) -> None:
    store = written(tmp_path)
    assert store.delete_topic("orders") == 1
    assert store.max_offset("orders", 0) == 0
    store.append(Draft("orders", 0, b"anew"))
    store.write_log()
    assert store.max_offset("orders", 0) == 1
    store.close()


def test_with_sync_flush_there_is_nothing_to_publish(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH")
    store.append(Draft("orders", 0, b"body"))
    assert not store.write_log()
    store.publish()
    assert store.max_offset("orders", 0) == 0
    store.mark_flushed(store.flush())
    assert store.max_offset("orders", 0) == 1
    store.close()
