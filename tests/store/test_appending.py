"""Appending: where messages go, what readers see of them, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import IllegalMessage, IllegalName, LifecycleError
from penstock.model.record_layout import BLANK_MAGIC
from penstock.protocol.filters.tags import tag_code
from penstock.protocol.records.batches import BatchItem
from penstock.protocol.records.codec import decode_record, decode_records, peek_record
from penstock.protocol.records.sys_flags import SysFlag
from penstock.store import SYNC_FLUSH, Draft, MessageStore, OsFiles, ReadStatus, StoreConfig
from penstock.store.files import Buffer

OpenStore = Callable[..., MessageStore]
MakeDraft = Callable[..., Draft]

SYNC = StoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=10,
    max_index_num=40,
    flush_disk_type=SYNC_FLUSH,
)


class CountingFiles(OsFiles):
    """The real files, with a list of the writes to the log."""

    def __init__(self) -> None:
        self.log_writes: list[tuple[int, int]] = []
        self._log_descriptors: set[int] = set()

    def create(self, path: str, size: int) -> int:
        descriptor = super().create(path, size)
        if "commitlog" in path:
            self._log_descriptors.add(descriptor)
        return descriptor

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        if descriptor in self._log_descriptors:
            self.log_writes.append((position, len(buffers)))
        return super().write(descriptor, buffers, position)


def bodies(store: MessageStore, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    """All bodies of a queue, in order."""
    found: list[bytes] = []
    offset = store.min_offset(topic, queue_id)
    while True:
        result = store.read(topic, queue_id, offset)
        if result.status is not ReadStatus.FOUND:
            return found
        found += [record.body for record in decode_records(b"".join(result.slices))]
        offset = result.next_offset


def test_an_appended_message_is_stored_with_every_field(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    draft = make_draft("orders", 3, b"body", TAGS="paid", KEYS="o-1")._replace(
        flag=7, reconsume_times=2, prepared_transaction_offset=99
    )
    appended = store.append(draft)
    store.write()
    view = store.record_at(appended.log_position)
    assert view is not None
    record = decode_record(view, check_crc=True)
    assert appended == (0, 0, record.size, record.store_timestamp)
    assert record[3:10] == (3, 7, 0, 0, 0, draft.born_timestamp, draft.born_host)
    assert record[11:] == (
        draft.store_host, 2, 99, b"body", "orders", draft.properties,
    )  # fmt: skip


def test_staged_messages_are_invisible_until_they_are_written(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    store.append(make_draft(KEYS="o-1"))
    assert store.read("orders", 0, 0).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    assert store.max_position == 0
    store.write()
    assert store.read("orders", 0, 0).status is ReadStatus.FOUND
    assert len(store.query("orders", "o-1").slices) == 1


def test_one_call_writes_all_that_is_staged(open_store: OpenStore, make_draft: MakeDraft) -> None:
    files = CountingFiles()
    store = open_store(files=files)
    for number in range(20):
        store.append(make_draft("orders", number % 4, b"x"))
    store.write()
    assert files.log_writes == [(0, 20)]
    store.write()
    assert len(files.log_writes) == 1, "nothing was staged"


def test_a_write_over_a_segment_end_takes_one_call_for_each_segment(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    files = CountingFiles()
    store = open_store(files=files)
    for _ in range(6):
        store.append(make_draft(body=bytes(1500)))
    store.write()
    assert [position for position, _ in files.log_writes] == [0, 0, 0]
    assert len(bodies(store)) == 6


def test_queue_offsets_count_per_queue(open_store: OpenStore, make_draft: MakeDraft) -> None:
    store = open_store()
    offsets = [
        store.append(make_draft(topic, queue_id)).queue_offset
        for topic in ("a", "b")
        for _ in range(3)
        for queue_id in (0, 1)
    ]
    assert offsets == [0, 0, 1, 1, 2, 2] * 2


def test_a_segment_ends_with_a_blank_record_over_what_is_left(
    open_store: OpenStore, make_draft: MakeDraft, tmp_path: Path
) -> None:
    store = open_store()
    first = store.append(make_draft(body=bytes(3000)))
    second = store.append(make_draft(body=bytes(3000)))
    store.write()
    assert second.log_position == 4096
    segment = (tmp_path / "store/commitlog/00000000000000000000").read_bytes()
    assert len(segment) == 4096
    assert peek_record(segment, first.size) == (4096 - first.size, BLANK_MAGIC)


@pytest.mark.parametrize(("left", "stays"), [(8, True), (7, False)])
def test_a_record_leaves_room_for_the_blank_behind_it(
    open_store: OpenStore, make_draft: MakeDraft, left: int, stays: bool
) -> None:
    store = open_store()
    overhead = store.append(make_draft(body=b"")).size
    body = 4096 - overhead - overhead - left
    appended = store.append(make_draft(body=bytes(body)))
    assert (appended.log_position == overhead) == stays
    store.write()
    assert len(bodies(store)) == 2


def test_a_batch_goes_to_the_next_segment_as_a_whole(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    store.append(make_draft(body=bytes(3000)))
    items = [BatchItem(bytes([number]) * 300, b"", number) for number in range(3)]
    appended = store.append_batch(make_draft(), items)
    store.write()
    assert appended[0].log_position == 4096
    assert [entry.queue_offset for entry in appended] == [1, 2, 3]
    assert bodies(store)[1:] == [item.body for item in items]
    record = store.record_at(appended[2].log_position)
    assert record is not None
    assert decode_record(record).flag == 2


def test_a_batch_of_which_one_message_is_illegal_leaves_nothing(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    with pytest.raises(IllegalMessage, match="properties"):
        store.append_batch(make_draft(), [BatchItem(b"fine"), BatchItem(b"", bytes(40_000))])
    assert store.append(make_draft())[:2] == (0, 0)


def test_a_batch_may_not_be_empty_nor_part_of_a_transaction(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    with pytest.raises(IllegalMessage, match="batch of 0"):
        store.append_batch(make_draft(), [])
    half = make_draft()._replace(sys_flag=SysFlag.TRANSACTION_PREPARED)
    with pytest.raises(IllegalMessage, match="batch of 1"):
        store.append_batch(half, [BatchItem(b"x")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"body": bytes(5000)}, "do not fit into a log segment"),
        ({"body": bytes(4 * 1024 * 1024 + 1)}, "maxMessageSize"),
        ({"properties": b"a\x01" + b"b" * 32766}, "32767"),
        ({"properties": b"a\x01b\x00c\x02"}, "zero byte at 3"),
        ({"topic": "t" * 128}, "at most 127"),
        ({"topic": "%RETRY%" + "g" * 249}, "at most 255"),
    ],
)
def test_what_no_record_may_be_is_refused_by_name(
    open_store: OpenStore, make_draft: MakeDraft, change: dict[str, Any], message: str
) -> None:
    store = open_store()
    with pytest.raises(IllegalMessage, match=message):
        store.append(make_draft()._replace(**change))
    assert store.append(make_draft())[:2] == (0, 0), "a refused message leaves no trace"
    store.write()
    assert bodies(store) == [b"hello"]


@pytest.mark.parametrize(
    ("topic", "queue_id"), [("", 0), (".", 0), ("..", 0), ("a/b", 0), ("a\0b", 0), ("a", -1)]
)
def test_a_topic_that_cannot_name_a_directory_is_refused(
    open_store: OpenStore, make_draft: MakeDraft, topic: str, queue_id: int
) -> None:
    with pytest.raises(IllegalName):
        open_store().append(make_draft(topic, queue_id))


def test_a_retry_topic_may_be_longer_than_others(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    topic = "%RETRY%" + "g" * 200
    store.append(make_draft(topic))
    store.write()
    (record,) = decode_records(b"".join(store.read(topic, 0, 0).slices))
    assert record.topic == topic


@pytest.mark.parametrize(
    ("sys_flag", "is_queued"),
    [
        (SysFlag.TRANSACTION_PREPARED, False),
        (SysFlag.TRANSACTION_ROLLBACK, False),
        (SysFlag.TRANSACTION_COMMIT, True),
    ],
)
def test_half_and_rolled_back_messages_have_no_place_in_a_queue(
    open_store: OpenStore, make_draft: MakeDraft, sys_flag: int, is_queued: bool
) -> None:
    store = open_store()
    store.append(make_draft())
    appended = store.append(make_draft(KEYS="k")._replace(sys_flag=sys_flag))
    store.write()
    assert appended.queue_offset == (1 if is_queued else 0)
    assert store.max_offset("orders", 0) == (2 if is_queued else 1)
    # A rolled-back message is not indexed either.
    found = store.query("orders", "k").slices
    assert len(found) == (0 if sys_flag == SysFlag.TRANSACTION_ROLLBACK else 1)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"DELAY": "3"}, 1_700_000_010_000),
        ({"DELAY": "99"}, 1_700_000_000_000 + 7_200_000),
        ({"DELAY": "0", "TAGS": "a"}, tag_code("a")),
        ({"DELAY": "soon", "TAGS": "a"}, tag_code("a")),
        ({"TAGS": "a"}, tag_code("a")),
    ],
)
def test_entries_of_the_schedule_topic_carry_the_time_of_delivery(
    open_store: OpenStore, make_draft: MakeDraft, properties: dict[str, str], expected: int
) -> None:
    store = open_store()
    store.append(make_draft("SCHEDULE_TOPIC_XXXX", 2, **properties))
    store.write()
    entry = store.entry("SCHEDULE_TOPIC_XXXX", 2, 0)
    assert entry is not None
    assert entry.tags_code == expected


@pytest.mark.parametrize(
    ("properties", "tag"),
    [
        (b"TAGS\x01a\x02", "a"),
        (b"X\x01y\x02TAGS\x01a", "a"),
        (b"TAGS\x01a\x02TAGS\x01b\x02", "b"),
        (b"TAGS\x01a\x02TAGS\x01\x02", "a"),
        (b"MYTAGS\x01a\x02", ""),
        (b"X\x01TAGS\x01a\x02", ""),
        (b"", ""),
        ("TAGS\x01\u00e4\U0001f600\x02".encode(), "\u00e4\U0001f600"),
    ],
)
def test_the_tag_is_found_as_rocketmq_finds_it(
    open_store: OpenStore, make_draft: MakeDraft, properties: bytes, tag: str
) -> None:
    store = open_store()
    store.append(make_draft()._replace(properties=properties))
    store.write()
    entry = store.entry("orders", 0, 0)
    assert entry is not None
    assert entry.tags_code == tag_code(tag)


def test_arrivals_are_announced_in_order_with_what_filters_need(
    open_store: OpenStore, make_draft: MakeDraft, clock: Any
) -> None:
    store = open_store()
    arrivals: list[tuple[object, ...]] = []
    store.on_arrival(lambda *arrival: arrivals.append(arrival))
    store.append(make_draft("orders", 1, TAGS="a"))
    store.append(make_draft("orders", 1)._replace(sys_flag=SysFlag.TRANSACTION_PREPARED))
    store.append(make_draft("bills", 0))
    assert arrivals == []
    store.write()
    assert arrivals == [
        ("orders", 1, 1, tag_code("a"), clock.now, b"TAGS\x01a\x02"),
        ("bills", 0, 1, 0, clock.now, b""),
    ]


def test_with_sync_flush_nothing_is_visible_before_it_is_on_the_disk(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(SYNC)
    arrivals: list[int] = []
    store.on_arrival(lambda *arrival: arrivals.append(arrival[2]))
    store.append(make_draft(KEYS="a"))
    store.write()
    first = store.flush()
    store.append(make_draft(KEYS="b"))
    store.write()
    assert arrivals == []
    assert store.max_offset("orders", 0) == 0
    assert store.query("orders", "a").slices == []
    store.mark_flushed(first)
    assert arrivals == [1]
    assert store.max_offset("orders", 0) == 1
    assert store.query("orders", "b").slices == []
    store.mark_flushed(store.flush())
    assert arrivals == [1, 2]
    assert len(store.query("orders", "b").slices) == 1


def test_queue_offsets_go_on_while_messages_wait_for_the_disk(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(SYNC)
    assert [store.append(make_draft()).queue_offset for _ in range(3)] == [0, 1, 2]
    store.write()
    assert store.append(make_draft()).queue_offset == 3


def test_closing_stores_what_was_staged(open_store: OpenStore, make_draft: MakeDraft) -> None:
    store = open_store(SYNC)
    store.append(make_draft())
    store.close()
    assert bodies(open_store(SYNC)) == [b"hello"]


def test_a_store_is_used_between_open_and_close_only(
    tmp_path: Path, open_store: OpenStore, make_draft: MakeDraft
) -> None:
    unopened = MessageStore(tmp_path / "other")
    with pytest.raises(LifecycleError, match="not open"):
        unopened.append(make_draft())
    store = open_store()
    store.close()
    with pytest.raises(LifecycleError, match="closed"):
        store.append(make_draft())
    with pytest.raises(LifecycleError, match="before"):
        store.open()
    assert not store.is_writable


def test_statistics_count_what_happened(open_store: OpenStore, make_draft: MakeDraft) -> None:
    store = open_store()
    for _ in range(3):
        store.append(make_draft())
    store.write()
    store.read("orders", 0, 0)
    store.read("orders", 0, 3)
    numbers = store.statistics()
    assert (numbers.put_count, numbers.write_calls, numbers.read_count) == (3, 1, 3)
    assert (numbers.read_calls, numbers.read_misses) == (2, 1)
    assert numbers.put_bytes == numbers.max_position == store.max_position
    assert numbers.dispatch_behind_bytes == 0
    assert numbers.earliest_timestamp == store.earliest_store_time("orders", 0) > 0
    assert numbers.log_segments == 1


def test_memory_of_many_queues_is_bounded_and_nothing_is_lost(
    open_store: OpenStore, make_draft: MakeDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.store.queue_table.MAX_TAILS_BYTES", 20 * 50)
    store = open_store()
    for _ in range(5):
        for queue_id in range(100):
            store.append(make_draft("many", queue_id, b""))
        store.write()
    table = store.queue_table
    assert sum(len(queue.tail) for queue in table.queues.values()) <= 20 * 50
    assert all(store.max_offset("many", queue_id) == 5 for queue_id in range(100))
    assert all(store.read("many", queue_id, 0).count == 5 for queue_id in range(100))
