"""The fast path of scans gives the rows of the plain path. No Spark here."""

from __future__ import annotations

import logging
import random
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from tests.spark.source.stores import Row, Writer, scan

from penstock.columnar.schema import ALL
from penstock.errors import StoreDamaged
from penstock.model.record_layout import BODY_POSITION, head_offset
from penstock.protocol.records.sys_flags import SysFlag
from penstock.spark.source import log_windows
from penstock.spark.source.data_loss import DataLost
from penstock.spark.source.log_windows import Lane, LogWindows
from penstock.spark.source.options import parse_read
from penstock.spark.source.readers import BatchReader
from penstock.spark.source.store_queue import Chunk
from penstock.store import Draft

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.source.store_queue import QueueReader

MakeWriter = Callable[..., Writer]


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Windows of a few records, and the number of rows that each gave."""
    made: list[int] = []
    decoded = LogWindows._decoded

    def noted(self: LogWindows, parts: list[Chunk]) -> list[pa.RecordBatch]:
        batches = decoded(self, parts)
        made.append(sum(batch.num_rows for batch in batches))
        return batches

    monkeypatch.setattr(LogWindows, "_decoded", noted)
    monkeypatch.setattr(log_windows, "WINDOW_BYTES", 1500)
    monkeypatch.setattr(log_windows, "BATCH_ROWS", 8)
    return made


def by_queue(rows: list[Row]) -> dict[tuple[str, int], list[Row]]:
    """The rows of each queue, in the order in which they came."""
    found: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["broker"], row["queue_id"]].append(row)
    return found


def both(path: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> list[Row]:
    """The rows of the fast path, after a comparison with those of the plain one."""
    fast = scan(path, ALL, cores=1, **options)
    with monkeypatch.context() as patched:
        patched.setattr(log_windows, "MIN_SHARE", 2.0)
        plain = scan(path, ALL, cores=1, **options)
    assert by_queue(fast) == by_queue(plain)
    return fast


def append(writer: Writer, queue_id: int, body: bytes, *, flag: int = 0, tag: str = "a") -> None:
    properties = f"TAGS\x01{tag}\x02KEYS\x01k{len(body)}\x02".encode()
    writer.store.append(Draft("orders", queue_id, body, properties, sys_flag=flag))
    writer.store.write()


@pytest.mark.parametrize("seed", range(12))
def test_both_paths_give_the_same_rows(
    writer: MakeWriter, windows: list[int], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    store = writer()
    width = chance.choice([0, 20, None])
    for number in range(300):
        length = chance.randrange(900) if width is None else width
        body = chance.randbytes(length)
        flag = 0
        if seed % 3 == 2 and number % 40 == 7:
            body, flag = zlib.compress(body), SysFlag.COMPRESSED
        append(store, chance.randrange(4), body, flag=flag, tag=chance.choice("ab"))
        if seed % 4 == 3:
            store.send("others", 0, chance.randrange(3))
    rows = both(store.root, monkeypatch, topic="orders")
    assert len(rows) == 300
    if seed % 4 != 3:
        assert sum(windows) >= 200, "the fast path did most of it"
    tagged = both(store.root, monkeypatch, topic="orders", tags="b")
    assert {row["tags"] for row in tagged} == {"b"}
    part = '{"orders": {"broker-a": {"0": 3, "1": 20, "2": 0, "3": 9}}}'
    both(store.root, monkeypatch, topic="orders", startingOffsets=part)


def test_a_window_is_at_most_a_batch(writer: MakeWriter, windows: list[int]) -> None:
    store = writer()
    for number in range(100):
        append(store, number % 2, b"x")
    assert len(scan(store.root, cores=1, topic="orders")) == 100
    assert max(windows) <= 8
    assert len(windows) <= 100 // 4, "and not much less"


def test_queues_of_other_topics_and_stores_stay_apart(
    writer: MakeWriter, windows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = writer("broker-a"), writer("broker-b")
    for number in range(60):
        for store in (first, second):
            append(store, number % 2, b"%s %d" % (store.root.name.encode(), number))
        first.send("others", 0, 1)
    rows = both(first.root.parent, monkeypatch, topic="orders,others")
    assert len(rows) == 180
    bodies = {row["body"] for row in rows if row["broker"] == "broker-b"}
    assert bodies == {b"broker-b %d" % number for number in range(60)}


def test_a_log_with_little_that_is_wanted_takes_the_plain_path(
    writer: MakeWriter, windows: list[int]
) -> None:
    store = writer()
    for number in range(50):
        append(store, 0, b"%d" % number)
        store.send("others", 0, 3)
    assert len(scan(store.root, cores=1, topic="orders")) == 50
    assert windows == []


@pytest.mark.parametrize("what", ["body", "magic"])
def test_damage_is_reported_by_the_plain_path(
    writer: MakeWriter,
    windows: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    store = writer()
    for number in range(80):
        append(store, number % 2, b"body %02d" % number)
    store.store.flush(thorough=True)
    segment = sorted((store.root / "commitlog").iterdir())[0]
    content = bytearray(segment.read_bytes())
    at = content.index(b"body 07")
    content[at if what == "body" else at - BODY_POSITION + head_offset("magic")] ^= 1
    segment.write_bytes(content)
    with pytest.raises(StoreDamaged, match=r"offset 3 of .*orders.*1"):
        scan(store.root, cores=1, topic="orders")
    windows.clear()
    with caplog.at_level(logging.WARNING):
        rows = both(store.root, monkeypatch, topic="orders", failOnDataLoss="false")
    assert len(rows) == (80 if what == "body" else 79)
    assert [row["offset"] for row in rows if row["body"] is None] == [3] * (what == "body")
    assert sum(windows) >= 60, "the other windows are not concerned"


def test_a_segment_that_is_gone_is_data_loss(
    writer: MakeWriter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = writer()
    for number in range(120):
        append(store, number % 2, b"body %03d" % number)
    store.store.flush(thorough=True)
    options = parse_read({"path": str(store.root), "topic": "orders"})
    reader = BatchReader(options, ("offset", "body"), 1)
    tasks = reader.partitions()
    sorted((store.root / "commitlog").iterdir())[1].unlink()
    with pytest.raises(DataLost, match=r"messages \d+ to \d+ of .*orders.* are gone"):
        [batch for task in tasks for batch in reader.read(task)]
    lenient = BatchReader(replace(options, fail_on_data_loss=False), ("offset", "body"), 1)
    with caplog.at_level(logging.WARNING):
        fast = [row for task in tasks for batch in lenient.read(task) for row in batch.to_pylist()]
    assert "are gone" in caplog.text
    monkeypatch.setattr(log_windows, "MIN_SHARE", 2.0)
    plain = [row for task in tasks for batch in lenient.read(task) for row in batch.to_pylist()]
    assert sorted(row["body"] for row in fast) == sorted(row["body"] for row in plain)
    assert 0 < len(fast) < 120


@pytest.mark.parametrize("seed", range(4))
def test_entries_in_another_order_are_damage_on_either_path(
    writer: MakeWriter, windows: list[int], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    store = writer()
    for number in range(60):
        append(store, number % 2, b"body %02d" % number)
    store.store.flush(thorough=True)
    chance = random.Random(seed)
    for queue in (store.root / "consumequeue" / "orders" / "0").iterdir():
        content = queue.read_bytes()
        units = [content[at : at + 20] for at in range(0, len(content), 20)]
        filled = [unit for unit in units if any(unit[:12])]
        chance.shuffle(filled)
        queue.write_bytes(b"".join(filled + units[len(filled) :]))
    rows = both(store.root, monkeypatch, topic="orders", failOnDataLoss="false")
    assert [row["offset"] for row in rows if row["queue_id"] == 1] == list(range(30))


def test_a_log_that_is_cut_off_meanwhile_is_named(writer: MakeWriter, windows: list[int]) -> None:
    store = writer()
    for number in range(40):
        append(store, number % 2, b"body %02d" % number)
    store.store.flush(thorough=True)
    read = {"path": str(store.root), "topic": "orders", "failOnDataLoss": "false"}
    reader = BatchReader(parse_read(read), ("offset", "body"), 1)
    tasks = reader.partitions()
    segment = sorted((store.root / "commitlog").iterdir())[0]
    segment.write_bytes(segment.read_bytes().partition(b"body 31")[0])
    with pytest.raises(StoreDamaged, match=r"00000000000000000000 cannot be mapped"):
        [batch for task in tasks for batch in reader.read(task)]


@pytest.mark.parametrize("positions", [[0, 0], [300, 100], [-1, 100]])
def test_entries_that_do_not_ascend_take_the_plain_path(positions: list[int]) -> None:
    columns = (np.array(positions), np.array([100, 100]), np.array([0, 1]))
    lane = Lane(cast("QueueReader", None), iter([Chunk(*columns)]))
    assert lane.load()
    assert not lane.ascends
