"""Delivery by columns stores what delivery message by message stores, or is left to that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from tests.store.test_alike_records import files

from penstock.broker.timers.due_columns import FEW
from penstock.broker.timers.preparing import (
    Located,
    LocatedRun,
    last_position,
    prepare_columns,
    prepare_each,
    prepare_run,
)
from penstock.protocol.records.codec import encode_record
from penstock.store import OS_FILES, Draft, MessageStore, StoreConfig, appending
from penstock.store.appending import MAX_STAGED_BYTES
from penstock.store.bulk.record_rows import encode_rows
from penstock.store.timers.timer_log import (
    DEFAULT,
    DELETE,
    NO_UNIT,
    ROLL,
    UNIT_BYTES,
    TimerLog,
    Unit,
    UnitRun,
    encode_unit,
)

SLOT = 1_793_999_999_000
NOW = SLOT + 1500
MAX_BODY = 4096
HOST = bytes((127, 0, 0, 1, 0, 0, 1, 2))


def parked(
    number: int,
    *,
    body: bytes = b"a body",
    queue_id: str = "3",
    slot: str = str(SLOT),
    more: str = "TAGS\x01t\x02",
    end: str = "\x02",
    topic: str = "orders",
    timer_topic: bytes = b"rmq_sys_wheel_timer",
    flag: int = 0,
    sys_flag: int = 0,
    written_ms: int = SLOT - 3000,
    host: bytes = HOST,
    born: int = 0,
    stated: int | None = None,
) -> Located:
    """A parked record and its unit."""
    position = 1000 * number
    properties = (
        f"UNIQ_KEY\x01{number:08X}\x02{more}TIMER_OUT_MS\x01{slot}\x02"
        f"REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}{end}"
    )
    record = encode_record(
        *(timer_topic, body, properties.encode(), 0, number),
        *(position if stated is None else stated, 1, born or number, host, HOST),
        *(flag, sys_flag, 2, 7),
    )
    unit = Unit(52, -1, 1, written_ms, SLOT - written_ms, position, len(record), 0, 0)
    return Located(number * UNIT_BYTES, unit, memoryview(record))


def portion(random: Random, **change: object) -> list[Located]:
    """Messages that are alike, but for those with a change."""
    changed = random.randrange(32) if random.random() < 0.5 else -1
    return [
        parked(
            number,
            **{  # type: ignore[arg-type]  # keywords of a test
                "body": random.randbytes(6),
                "flag": random.choice((0, 7)),
                "queue_id": random.choice("0123"),
                **(change if changed in (-1, number) else {}),
            },
        )
        for number in range(32)
    ]


def stored_each(drafts: Sequence[Draft]) -> dict[tuple[str, int], bytes]:
    """The records of drafts, queue by queue, with made-up places."""
    queues: dict[tuple[str, int], list[bytes]] = {}
    for draft in drafts:
        records = queues.setdefault((draft.topic, draft.queue_id), [])
        records.append(
            encode_record(
                draft.topic.encode(),
                draft.body,
                draft.properties,
                draft.queue_id,
                40 + len(records),
                9_000_000 + sum(map(len, records)),
                NOW,
                *draft[6:9],
                draft.flag,
                draft.sys_flag,
                draft.reconsume_times,
                draft.prepared_transaction_offset,
            )
        )
    return {queue: b"".join(records) for queue, records in queues.items()}


CHANGES: list[tuple[dict[str, object], bool]] = [
    ({}, True),
    ({"end": ""}, True),
    ({"more": "KEYS\x01k\x02"}, True),
    ({"more": ""}, True),
    ({"topic": "o"}, True),
    ({"flag": -1}, True),
    ({"sys_flag": 1}, True),
    ({"written_ms": SLOT - 7000}, True),
    ({"written_ms": 999_999_999_999}, True),  # A digit less.
    ({"host": bytes((10, 0, 0, 9, 0, 0, 8, 8))}, True),
    ({"born": 5}, True),
    ({"body": b""}, True),
    ({"queue_id": "12"}, True),
    ({"queue_id": "-1"}, False),
    ({"queue_id": "\u0663"}, False),
    ({"body": b"longer than others"}, True),
    ({"body": bytes(MAX_BODY + 1)}, False),
    ({"slot": str(SLOT + 1000)}, False),
    ({"slot": "1" * 19}, False),
    ({"sys_flag": 8}, False),
    ({"host": bytes(20)}, False),
    ({"topic": "gr\u00f6\u00dfe"}, False),
    ({"topic": "x" * 128}, False),
    ({"topic": "or\x00ers"}, False),
    ({"timer_topic": b"orders"}, False),
    ({"stated": 5}, False),
    ({"more": "a\x01\x00\x02"}, False),
    ({"more": "TIMER_DEL_UNIQKEY\x01U\x02"}, False),
    ({"more": "TIMER_ENQUEUE_MS\x015\x02"}, False),
    ({"more": "TIMER_DEQUEUE_MS\x015\x02"}, False),
    ({"more": "REAL_TOPIC\x01other\x02"}, True),
    ({"more": "TIMER_OUT_MS\x015\x02"}, True),
    ({"more": "no value\x02"}, True),
    ({"more": "a\x01" + 32_650 * "x" + "\x02"}, False),
]


@pytest.mark.parametrize(("change", "is_possible"), CHANGES)
def test_columns_give_the_records_of_the_plain_path(
    change: dict[str, object], is_possible: bool
) -> None:
    random, columnar = Random(7), 0
    for _ in range(30):
        views = portion(random, **change)
        found = prepare_columns(views, NOW, 1000, MAX_BODY)
        if found is None:
            continue
        assert found.columns is not None
        columnar += 1
        plain = prepare_each(views, frozenset(), NOW, 1000)
        assert found.by_topic == plain.by_topic
        assert found.columns.messages == len(plain.drafts)
        assert not found.drafts
        stored = {
            (queue.topic, queue.queue_id): encode_rows(queue.rows, 40, 9_000_000, NOW)[0]
            for queue in found.columns.queues
        }
        assert stored == stored_each([draft for draft, _ in plain.drafts])
    assert bool(columnar) == is_possible


@pytest.mark.parametrize("staged_bytes", [MAX_STAGED_BYTES, 5000])
@pytest.mark.parametrize("more", ["TAGS\x01t\x02", "KEYS\x01k1 k2\x02", ""])
def test_appended_rows_leave_the_same_store_as_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, staged_bytes: int
) -> None:
    """Log, queues and index; segments end and buffers fill in the middle of a portion."""
    monkeypatch.setattr(appending, "MAX_STAGED_BYTES", staged_bytes)
    config = StoreConfig(
        mapped_file_size_commit_log=16 << 10,
        mapped_file_size_consume_queue=2000,
        max_index_num=100,
        max_hash_slot_num=32,
    )
    stores = [
        MessageStore(tmp_path / name, config, time_ms=lambda: NOW) for name in ("rows", "drafts")
    ]
    for store in stores:
        store.open()
    by_rows, by_drafts = stores
    random = Random(5)
    for _ in range(20):
        views = portion(random, more=more)
        found = prepare_columns(views, NOW, 1000, MAX_BODY)
        if found is None:
            continue
        assert found.columns is not None
        drafts = [draft for draft, _ in prepare_each(views, frozenset(), NOW, 1000).drafts]
        for queue in found.columns.queues:
            by_rows.append_rows(*queue)
            for draft in drafts:
                if (draft.topic, draft.queue_id) == (queue.topic, queue.queue_id):
                    by_drafts.append(draft)
        for store in stores:
            store.write()
    assert by_rows.max_position == by_drafts.max_position > 50_000
    for key in ("k1", "k2", "00000003", "0000001F"):
        found_slices = [
            [*map(bytes, store.query("orders", key, begin_ms=0, end_ms=2 * NOW).slices)]
            for store in stores
        ]
        assert found_slices[0] == found_slices[1]
    for store in stores:
        store.close()
    assert files(tmp_path / "rows") == files(tmp_path / "drafts")


def side_by_side(views: list[Located]) -> LocatedRun | None:
    """The records of a portion as they lie in a log, with their units."""
    size = len(views[0].view)
    records = []
    for number, (_, unit, view) in enumerate(views):
        if len(view) != size:
            return None
        record = bytearray(view)
        stated = int.from_bytes(record[28:36], "big")
        if stated == unit.log_position:  # Else it states another place on purpose.
            record[28:36] = (7000 + number * size).to_bytes(8, "big")
        records.append(bytes(record))
    places = range(7000, 7000 + len(views) * size, size)
    written = [unit.written_ms for _, unit, _ in views]
    run = UnitRun([one.position for one in views], written, places, size)
    return LocatedRun(run, memoryview(b"".join(records)))


@pytest.mark.parametrize("change", [change for change, _ in CHANGES])
def test_records_side_by_side_become_what_single_ones_become(change: dict[str, object]) -> None:
    random = Random(9)
    for _ in range(20):
        run = side_by_side(portion(random, **change))
        if run is None:
            continue
        units = [
            (position, Unit(52, -1, 1, written_ms, SLOT - written_ms, place, run[0][3], 0, 0))
            for position, written_ms, place in zip(*run.units[:3], strict=True)
        ]
        opened = run.opened(units)
        assert b"".join(one.view for one in opened) == run.view
        assert last_position(run) == last_position(opened)
        assert prepare_run(run, NOW, 1000, MAX_BODY) == prepare_columns(opened, NOW, 1000, MAX_BODY)


def test_units_that_do_not_lie_side_by_side_are_no_run(tmp_path: Path) -> None:
    def logged(name: str, *rows: tuple[int, int]) -> UnitRun | None:
        log = TimerLog(OS_FILES, str(tmp_path / name), 4096)
        positions = []
        for place, size in rows:
            positions.append(log.next_position())
            log.stage(encode_unit(NO_UNIT, DEFAULT, SLOT - 5000, SLOT, place, size, 0))
        log.write()
        found = log.run(positions)
        units = log.units(positions)
        assert [(unit.log_position, unit.record_size) for _, unit in units] == list(rows)
        if found is not None:
            assert list(found.positions) == positions
            assert [*found.log_positions] == [place for place, _ in rows]
            assert set(found.written_ms) == {SLOT - 5000}
        log.close()
        return found

    usual = [(number * 100, 100) for number in range(40)]
    assert logged("usual", *usual) is not None
    assert logged("gap", *usual[:5], *usual[6:]) is None
    assert logged("size", *usual[:5], (500, 99), *usual[6:]) is None
    assert logged("order", *usual[5:], *usual[:5]) is None
    # The units of two segments.
    assert logged("long", *((number * 100, 100) for number in range(90))) is None
    assert logged("one", (5, 7)) == UnitRun([0], (SLOT - 5000,), range(5, 12, 7), 7)
    assert logged("none") is None


def test_few_messages_and_early_ones_are_left_to_the_plain_path() -> None:
    views = portion(Random(1))
    assert prepare_columns(views, NOW, 1000, MAX_BODY) is not None
    assert prepare_columns(views, SLOT + 999, 1000, MAX_BODY) is None
    assert prepare_columns(views[: FEW - 1], NOW, 1000, MAX_BODY) is None


def test_damaged_records_are_left_to_the_plain_path() -> None:
    random = Random(3)
    for _ in range(2000):
        views = portion(random)
        at = random.randrange(len(views))
        damaged = bytearray(views[at].view)
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        views[at] = views[at]._replace(view=memoryview(bytes(damaged)))
        found = prepare_columns(views, NOW, 1000, MAX_BODY)
        if found is not None:
            assert found.columns is not None
            plain = prepare_each(views, frozenset(), NOW, 1000)
            stored = {
                (queue.topic, queue.queue_id): encode_rows(queue.rows, 40, 9_000_000, NOW)[0]
                for queue in found.columns.queues
            }
            assert stored == stored_each([draft for draft, _ in plain.drafts])


def test_a_run_of_units_is_what_the_chain_has(tmp_path: Path) -> None:
    """A walk by runs meets the units of a walk one by one."""
    random, long_runs = Random(11), 0
    for number in range(60):
        log = TimerLog(OS_FILES, str(tmp_path / f"{number}"), 4096)
        last: dict[int, int] = {}
        odd = random.choice((0, 0, 0.02, 0.3))
        for _ in range(random.randrange(1, 300)):
            slot = SLOT + (1000 if random.random() < odd else 0)
            magic = random.choice((DELETE | DEFAULT, DEFAULT | ROLL))
            if random.random() >= odd:
                magic = DEFAULT
            position = log.next_position()
            previous = last.get(slot, NO_UNIT)
            log.stage(encode_unit(previous, magic, SLOT - 5000, slot, 1, 100, 0))
            last[slot] = position
        log.write()
        for slot, position in last.items():
            stop = random.choice((NO_UNIT, position // 2))
            while position > stop:
                run = log.run_before(position, stop, slot)
                long_runs += run > 1
                for before in range(run):
                    unit = log.unit(position)
                    assert unit is not None
                    assert not unit.is_delete
                    assert unit.slot_ms == slot
                    assert position > stop
                    if before < run - 1:
                        assert unit.previous == position - UNIT_BYTES
                        position = unit.previous
                unit = log.unit(position)
                assert unit is not None
                position = unit.previous
        log.close()
    assert long_runs > 50
