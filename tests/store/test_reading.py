"""Reading: statuses, limits, filters and times, as RocketMQ's getMessage has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StoreDamaged
from penstock.protocol.filters.tags import tag_code
from penstock.protocol.records.codec import decode_records
from penstock.store import Draft, MessageStore, ReadStatus, RecordTest, StoreConfig
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import pack_unit
from penstock.store.reading import MAX_ASKED
from penstock.store.segments import segment_path

OpenStore = Callable[..., MessageStore]
MakeDraft = Callable[..., Draft]

ROOMY = StoreConfig(mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000)


def fill(store: MessageStore, drafts: list[Draft]) -> None:
    for draft in drafts:
        store.append(draft)
    store.write()


def offsets(result: Any) -> list[int]:
    return [record.queue_offset for record in decode_records(b"".join(result.slices))]


@pytest.mark.spec("S61")
def test_an_unknown_queue_has_no_logic_queue(open_store: OpenStore) -> None:
    result = open_store().read("orders", 0, 5)
    assert result.status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
    assert (result.next_offset, result.min_offset, result.max_offset) == (0, 0, 0)


@pytest.mark.spec("S57")
@pytest.mark.parametrize("offset", [0, 5])
def test_an_empty_queue_sends_every_reader_to_its_start(
    open_store: OpenStore, make_draft: MakeDraft, offset: int
) -> None:
    store = open_store()
    store.append(make_draft())  # staged: the queue is known, but has no message
    result = store.read("orders", 0, offset)
    assert (result.status, result.next_offset) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)


@pytest.mark.spec("S58", "S59", "S60", "S62")
@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (0, ReadStatus.FOUND, 4),
        (3, ReadStatus.FOUND, 4),
        (4, ReadStatus.OFFSET_OVERFLOW_ONE, 4),
        (5, ReadStatus.OFFSET_OVERFLOW_BADLY, 4),
        (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_the_status_follows_from_where_the_offset_is(
    open_store: OpenStore,
    make_draft: MakeDraft,
    offset: int,
    status: ReadStatus,
    next_offset: int,
) -> None:
    store = open_store()
    fill(store, [make_draft() for _ in range(4)])
    result = store.read("orders", 0, offset)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert (result.min_offset, result.max_offset) == (0, 4)


@pytest.mark.spec("S60")
def test_far_beyond_the_end_the_old_rule_leads_to_the_start(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(replace(ROOMY, overflow_returns_to_min=True))
    fill(store, [make_draft() for _ in range(4)])
    assert store.read("orders", 0, 9).next_offset == 0


@pytest.mark.spec("S56")
@pytest.mark.parametrize(("checks", "next_offset"), [(False, 9), (True, 4)])
def test_a_slave_corrects_offsets_only_if_configured(
    open_store: OpenStore, make_draft: MakeDraft, checks: bool, next_offset: int
) -> None:
    config = replace(ROOMY, broker_role="SLAVE", offset_check_in_slave=checks)
    store = open_store(config)
    fill(store, [make_draft() for _ in range(4)])
    assert store.read("orders", 0, 9).next_offset == next_offset


@pytest.mark.spec("S54")
def test_a_read_gives_one_queue_in_order_and_nothing_of_others(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(ROOMY)
    fill(store, [make_draft("orders", n % 3, bytes([n]), TAGS=str(n)) for n in range(60)])
    result = store.read("orders", 1, 2)
    records = decode_records(b"".join(result.slices))
    assert [record.body[0] for record in records] == list(range(7, 60, 3))
    assert {record.queue_id for record in records} == {1}
    assert result.count == 18


def test_records_side_by_side_are_one_slice(open_store: OpenStore, make_draft: MakeDraft) -> None:
    store = open_store(ROOMY)
    fill(store, [make_draft(body=bytes(n)) for n in range(40)])
    result = store.read("orders", 0, 3)
    assert (len(result.slices), result.count, result.next_offset) == (1, 32, 35)
    assert result.size == len(result.slices[0])
    assert offsets(result) == list(range(3, 35))


@pytest.mark.parametrize(
    ("queues", "run", "lengths"),
    # Of few queues together, of many, and all of one size: each is cut in another way.
    [(1, 1, 50), (3, 1, 50), (3, 40, 50), (6, 1, 50), (1, 1, 1), (3, 1, 1), (3, 40, 1)],
)
def test_a_read_of_thousands_is_the_same_as_many_small_ones(
    open_store: OpenStore, make_draft: MakeDraft, queues: int, run: int, lengths: int
) -> None:
    # Sizes differ, and the log has several segments, so that portions end at all kinds of places.
    store = open_store(replace(ROOMY, mapped_file_size_consume_queue=80_000))
    count = 7000 * queues
    # So many of one queue side by side, then as many of the next.
    bodies = [b"%09d" % n + bytes(n % lengths) for n in range(count)]
    fill(store, [make_draft("orders", n // run % queues, bodies[n]) for n in range(count)])
    for queue_id in range(queues):
        small: list[bytes] = []
        while len(small) < 7000:
            result = store.read("orders", queue_id, len(small), max_count=32)
            small += [record.body for record in decode_records(b"".join(result.slices))]
        for max_count, max_bytes in ((65_536, 1), (700, 9_000), (512, 8 << 20), (65_536, 8 << 20)):
            many: list[bytes] = []
            while len(many) < 7000:
                result = store.read(
                    "orders", queue_id, len(many), max_count=max_count, max_bytes=max_bytes
                )
                records = decode_records(b"".join(result.slices))
                assert [r.queue_offset for r in records] == list(
                    range(len(many), result.next_offset)
                )
                assert result.size == sum(map(len, result.slices))
                assert result.size <= max_bytes or result.count == 1
                assert result.count == len(records)
                many += [record.body for record in records]
                if max_bytes == 1 and len(many) > 20:
                    break
            assert many == small[: len(many)]
            assert len(many) == 7000 or max_bytes == 1


def test_a_read_of_thousands_stops_before_what_was_deleted(
    open_store: OpenStore, make_draft: MakeDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(replace(ROOMY, mapped_file_size_consume_queue=80_000))
    fill(store, [make_draft("orders", n % 2, bytes(100)) for n in range(8000)])
    queue = store.queue_table.get("orders", 0)
    assert queue is not None
    assert store._reader.read(queue, 0, 65_536, 8 << 20, None).count >= 1024
    # The reader has looked at the queue; then retention takes the first segment.
    monkeypatch.setattr(CommitLog, "min_position", property(lambda _: 1 << 20))
    result = store._reader.read(queue, 0, 65_536, 8 << 20, None)
    assert result.status is ReadStatus.FOUND
    assert offsets(result)[0] > 1024
    assert offsets(result) == list(range(offsets(result)[0], result.next_offset))


def test_slices_are_parts_of_the_mapped_log(open_store: OpenStore, make_draft: MakeDraft) -> None:
    store = open_store(ROOMY)
    fill(store, [make_draft()])
    (view,) = store.read("orders", 0, 0).slices
    assert view.readonly
    assert view.obj is store.read("orders", 0, 0).slices[0].obj


@given(
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=60),
    start=st.integers(0, 20),
    max_count=st.integers(1, 70),
    max_bytes=st.integers(1, 6000),
)
def test_any_mixture_of_queues_reads_back_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int]],
    start: int,
    max_count: int,
    max_bytes: int,
) -> None:
    store = MessageStore(tmp_path_factory.mktemp("mixture"), replace(ROOMY, max_index_num=400,
                         max_hash_slot_num=100))  # fmt: skip
    store.open()
    try:
        expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        for number, (queue_id, size) in enumerate(steps):
            body = bytes([number]) * size
            store.append(Draft("t", queue_id, body))
            expected[queue_id].append(body)
        store.write()
        for queue_id, bodies in expected.items():
            result = store.read("t", queue_id, start, max_count=max_count, max_bytes=max_bytes)
            if start >= len(bodies):
                assert result.count == 0
                continue
            records = decode_records(b"".join(result.slices))
            assert [record.body for record in records] == bodies[start : start + result.count]
            assert 1 <= result.count <= max_count
            assert result.size <= max_bytes or result.count == 1
            assert result.next_offset == start + result.count
    finally:
        store.abandon()


def test_a_pull_has_rocketmqs_limits_unless_the_caller_has_others(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(ROOMY)
    fill(store, [make_draft(body=bytes(100)) for _ in range(300)])
    assert store.read("orders", 0, 0, max_count=300).count == 32
    assert store.read("orders", 0, 0, max_count=300, max_bytes=1 << 20).count == 300
    assert store.read("orders", 0, 0, max_count=5).count == 5


def test_the_first_message_is_returned_at_any_size(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(ROOMY)
    fill(store, [make_draft(body=bytes(300_000)), make_draft(body=b"x")])
    assert store.read("orders", 0, 0).count == 1
    assert store.read("orders", 0, 0, max_bytes=1).count == 1


def test_old_messages_come_in_smaller_portions(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    # 40 % of this memory is less than the log holds, so the first messages count as on disk.
    store = open_store(replace(ROOMY, memory_bytes=20_000))
    fill(store, [make_draft(body=bytes(900)) for _ in range(40)])
    old = store.read("orders", 0, 0)
    assert (old.count, old.suggest_slave) == (8, True)
    young = store.read("orders", 0, 35)
    assert (young.count, young.suggest_slave) == (5, False)
    assert not store.is_in_memory("orders", 0, 0)
    assert store.is_in_memory("orders", 0, 39)
    assert not store.is_in_memory("orders", 0, 40)


@pytest.mark.spec("S55")
def test_a_tag_filter_lets_only_its_codes_through(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(ROOMY)
    fill(store, [make_draft(TAGS="abc"[n % 3]) for n in range(30)])
    result = store.read("orders", 0, 0, matches={tag_code("b")})
    assert offsets(result) == list(range(1, 30, 3))
    assert result.next_offset == 30


def test_a_filter_that_matches_nothing_moves_on(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(ROOMY)
    fill(store, [make_draft(TAGS="a") for _ in range(1000)])
    result = store.read("orders", 0, 0, matches={tag_code("b")})
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 800)
    assert store.read("orders", 0, 800, matches={tag_code("b")}).next_offset == 1000


def test_a_filter_that_looks_at_records_has_an_end_however_many_are_asked_for(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(replace(ROOMY, mapped_file_size_consume_queue=20 * 2 * MAX_ASKED))
    fill(store, [make_draft(TAGS="a") for _ in range(MAX_ASKED + 100)])
    asked: list[int] = []

    def takes_none(code: int, _: memoryview) -> bool:
        asked.append(code)
        return False

    result = store.read("orders", 0, 0, max_count=300_000, matches=takes_none)
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, MAX_ASKED)
    assert len(asked) == MAX_ASKED
    # Comparing tag codes costs next to nothing: there a client may have what it asks for.
    result = store.read("orders", 0, 0, max_count=300_000, matches={tag_code("b")})
    assert result.next_offset == MAX_ASKED + 100


@pytest.mark.parametrize(("steps", "properties"), [(6000, {}), (1, {"long": "x" * 30_000})])
def test_a_filter_that_is_much_work_is_asked_about_fewer_records_a_read(
    open_store: OpenStore, make_draft: MakeDraft, steps: int, properties: dict[str, str]
) -> None:
    store = open_store(replace(ROOMY, mapped_file_size_commit_log=64 << 20))
    fill(store, [make_draft(TAGS="a", **properties) for _ in range(900)])
    asked: list[int] = []

    def takes_last(code: int, record: memoryview) -> bool:
        asked.append(code)
        return decode_records(bytes(record))[0].queue_offset == 899

    reads, offset = 0, 0
    while offset < 900:
        result = store.read("orders", 0, offset, matches=RecordTest(takes_last, steps))
        assert result.next_offset > offset
        reads, offset = reads + 1, result.next_offset
    # A reader that continues where a read ended misses nothing and asks for nothing twice.
    assert (len(asked), result.status) == (900, ReadStatus.FOUND)
    assert reads > 1


def test_a_filter_that_is_endless_work_gets_on_by_one_record_a_read(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(ROOMY)
    fill(store, [make_draft(TAGS="a") for _ in range(3)])
    test = RecordTest(lambda code, record: False, 1 << 40)
    assert [store.read("orders", 0, at, matches=test).next_offset for at in (0, 1, 2)] == [1, 2, 3]


def test_a_scan_stops_at_the_end_of_a_queue_file(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(replace(ROOMY, mapped_file_size_consume_queue=20 * 100))
    fill(store, [make_draft(TAGS="a") for _ in range(250)])
    store.close()
    store = open_store(replace(ROOMY, mapped_file_size_consume_queue=20 * 100))
    assert store.read("orders", 0, 90, matches={tag_code("b")}).next_offset == 100


def test_a_filter_may_look_at_the_record(open_store: OpenStore, make_draft: MakeDraft) -> None:
    store = open_store(ROOMY)
    fill(store, [make_draft(body=bytes([n])) for n in range(10)])

    def is_even(_: int, record: memoryview) -> bool:
        return decode_records(bytes(record))[0].body[0] % 2 == 0

    assert offsets(store.read("orders", 0, 0, matches=is_even)) == [0, 2, 4, 6, 8]


def test_a_filter_may_append_while_it_runs(open_store: OpenStore, make_draft: MakeDraft) -> None:
    store = open_store(ROOMY)
    fill(store, [make_draft() for _ in range(3)])

    def appends(_: int, __: memoryview) -> bool:
        store.append(make_draft())
        store.write()
        return True

    assert store.read("orders", 0, 0, matches=appends).count == 3
    assert store.max_offset("orders", 0) == 6


def test_readers_see_entries_in_files_and_in_memory_as_one_queue(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(ROOMY)
    fill(store, [make_draft() for _ in range(10)])
    store.flush(thorough=True)
    fill(store, [make_draft() for _ in range(10)])
    queue = store.queue_table.get("orders", 0)
    assert queue is not None
    assert 0 < queue.tail_start < 20
    assert offsets(store.read("orders", 0, 5)) == list(range(5, 20))


def test_a_missing_queue_file_sends_the_reader_to_the_next_one(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    config = replace(ROOMY, mapped_file_size_consume_queue=200)
    store = open_store(config)
    fill(store, [make_draft() for _ in range(35)])
    store.flush(thorough=True)
    store.write()
    queue = store.queue_table.get("orders", 0)
    assert queue is not None
    path = segment_path(queue.directory, 200)
    Path(path).unlink()
    store.queue_table._shared.maps.forget(path)
    result = store.read("orders", 0, 13)
    assert (result.status, result.next_offset) == (ReadStatus.OFFSET_FOUND_NULL, 20)


def test_an_entry_about_nothing_is_reported_with_its_queue(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(ROOMY)
    fill(store, [make_draft() for _ in range(3)])
    queue = store.queue_table.get("orders", 0)
    assert queue is not None
    queue.tail[20:40] = pack_unit(1 << 40, 100, 0)
    before = store.read("orders", 0, 0)
    assert (before.status, before.count, before.next_offset) == (ReadStatus.FOUND, 1, 1)
    with pytest.raises(StoreDamaged, match="message 1 of topic 'orders', queue 0, cannot be read"):
        store.read("orders", 0, 1)


def test_a_record_deleted_under_the_reader_is_skipped_with_its_segment(
    open_store: OpenStore, make_draft: MakeDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    fill(store, [make_draft(body=bytes(1000)) for _ in range(9)])
    queue = store.queue_table.get("orders", 0)
    assert queue is not None
    # The reader has looked at the queue; then retention takes the first segment (3 records).
    monkeypatch.setattr(CommitLog, "min_position", property(lambda _: 4096))
    result = store._reader.read(queue, 0, 32, None, None)
    assert result.status is ReadStatus.FOUND
    assert offsets(result) == list(range(3, 9))
    alone = store._reader.read(queue, 0, 1, None, {12345})
    assert alone.status is ReadStatus.NO_MATCHED_MESSAGE


def test_offsets_by_time(open_store: OpenStore, make_draft: MakeDraft, clock: Any) -> None:
    store = open_store(ROOMY)
    start = clock.now
    for step in (0, 10, 10, 10, 20):
        clock.now = start + step
        fill(store, [make_draft()])

    def lower(step: int) -> int:
        return store.offset_at("orders", 0, start + step)

    def upper(step: int) -> int:
        return store.offset_at("orders", 0, start + step, upper=True)

    assert [lower(step) for step in (-5, 0, 5, 10, 15, 20, 25)] == [0, 0, 1, 1, 4, 4, 5]
    assert [upper(step) for step in (-5, 0, 5, 10, 15, 20, 25)] == [0, 0, 0, 3, 3, 4, 4]
    assert store.offset_at("orders", 9, start) == 0
    assert store.store_time_at("orders", 0, 4) == start + 20
    assert store.store_time_at("orders", 0, 5) == -1
    assert store.earliest_store_time() == store.earliest_store_time("orders", 0) == start


def test_a_position_that_is_no_record_gives_none(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, [make_draft(body=bytes(50)), make_draft(body=bytes(50))])
    first = store.record_at(0)
    assert first is not None
    assert store.record_at(len(first)) is not None
    for position in (-1, 1, len(first) - 1, store.max_position, 1 << 50):
        assert store.record_at(position) is None


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [(0, 1 << 62, [0, 1, 2]), (500, 1 << 62, [1, 2]), (0, 1500, [0, 1]), (1001, 1999, [])],
)
def test_a_query_by_key_keeps_to_its_range_of_time(
    open_store: OpenStore,
    make_draft: MakeDraft,
    clock: Any,
    begin: int,
    end: int,
    expected: list[int],
) -> None:
    store = open_store()
    start = clock.now
    for step in (0, 1000, 2000):
        clock.now = start + step
        fill(store, [make_draft(KEYS="o-1 other", UNIQ_KEY=f"id-{step}")])
    begin, end = start + begin if begin else 0, min(start + end, 1 << 62)
    found = store.query("orders", "o-1", begin_ms=begin, end_ms=end)
    assert [decode_records(bytes(hit))[0].queue_offset for hit in found.slices] == expected
    assert found.last_update_ms == start + 2000
    assert found.last_update_position == store.entry("orders", 0, 2)[0]  # type: ignore[index]


def test_a_query_gives_the_newest_messages_oldest_first(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(ROOMY)
    fill(store, [make_draft(KEYS="same") for _ in range(100)])
    found = store.query("orders", "same", max_count=1000)
    assert [decode_records(bytes(hit))[0].queue_offset for hit in found.slices] == list(
        range(36, 100)
    )


def test_a_key_with_the_same_hash_is_not_the_same_key(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, [make_draft(KEYS="Aa"), make_draft(KEYS="BB"), make_draft("Ordert", KEYS="Aa")])
    (hit,) = store.query("orders", "BB").slices
    assert decode_records(bytes(hit))[0].queue_offset == 1


def test_without_an_index_no_key_is_found(open_store: OpenStore, make_draft: MakeDraft) -> None:
    store = open_store(replace(ROOMY, message_index_enable=False))
    fill(store, [make_draft(KEYS="k")])
    assert store.query("orders", "k").slices == []
