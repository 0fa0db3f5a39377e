"""An archive and what comes after it as one table: no gap, no overlap, in order. Without Spark."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.spark.source.archives import archive_rows, compact
from tests.spark.source.archives import rows_of as of_one_queue
from tests.spark.source.brokers import SMALL_SEGMENTS, create, numbered, produce, running

import penstock.arrow
from penstock import Message, MessageQueue
from penstock.errors import InvalidArgument, NotFound, StoreDamaged
from penstock.spark.pipelines.archive.state import STAGING
from penstock.spark.pipelines.spans import Span
from penstock.spark.source import archive_reading, planning, truncated_queues
from penstock.spark.source.archive_index import ArchiveIndex
from penstock.spark.source.data_loss import DataLost
from penstock.spark.source.options import ReadOptions, parse_read
from penstock.spark.source.positions import Positions
from penstock.spark.source.ranges import Range
from penstock.spark.source.readers import BatchReader, StreamReader
from penstock.spark.source.seam import SeamOffsets, joined_sides
from penstock.spark.source.seam_driver import SeamTopicDriver
from penstock.spark.source.truncated_queues import Cause
from penstock.testing.embedded import Embedded, embedded

COLUMNS = ("queue_id", "offset", "body", "store_timestamp")
Rows = list[tuple[int, int, int]]


@pytest.fixture(scope="module")
def mq() -> Iterator[Embedded]:
    """A broker with 600 messages in three queues."""
    with embedded() as running_here:
        create(running_here.namesrv, "orders", 3)
        for first in range(0, 600, 50):
            produce(running_here.namesrv, messages(range(first, first + 50)))
            _next_millisecond()
        yield running_here


def messages(numbers: range) -> list[Message]:
    return [
        Message("orders", b"%d" % number, keys=[f"k{number}"], tag=f"t{number % 3}")
        for number in numbers
    ]


def _next_millisecond() -> None:
    """Let store times differ, so that files have times of their own."""
    now = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == now:
        pass


@pytest.fixture
def table(mq: Embedded) -> pa.Table:
    """Everything that the topic has, by time."""
    rows = penstock.arrow.read("orders", namesrv=mq.namesrv).read_all()
    return rows.sort_by([("store_timestamp", "ascending"), ("offset", "ascending")])


def rows_of(batches: Iterator[pa.RecordBatch] | pa.RecordBatchReader) -> Rows:
    """Queue, offset and number of each message, in the order they came."""
    return [
        (row["queue_id"], row["offset"], int(row["body"]))
        for batch in batches
        for row in batch.to_pylist()
    ]


def batch(namesrv: str, **options: str) -> list[Rows]:
    """What each task of a batch read reads."""
    given = {"namesrv": namesrv, "topic": "orders", **options}
    reader = BatchReader(parse_read(given), COLUMNS, 2)
    return [rows_of(reader.read(task)) for task in reader.partitions()]


def content(reader: StreamReader, start: dict[str, object], end: dict[str, object]) -> Rows:
    """What a micro-batch reads."""
    return [row for task in reader.partitions(start, end) for row in rows_of(reader.read(task))]


def whole(parts: list[Rows]) -> Rows:
    return [row for part in parts for row in part]


def in_order(rows: Rows) -> bool:
    """Whether the offsets of each queue rise."""
    queues = {queue for queue, _, _ in rows}
    return all(
        offsets == sorted(set(offsets))
        for offsets in ([at for of, at, _ in rows if of == queue] for queue in queues)
    )


@pytest.mark.parametrize("with_spans", [True, False])
def test_a_batch_reads_each_message_once_and_in_order(
    mq: Embedded, table: pa.Table, tmp_path: Path, with_spans: bool
) -> None:
    parts = [table.slice(0, 150), table.slice(150, 150), table.slice(300, 100)]
    archive = str(archive_rows(tmp_path, parts, with_spans=with_spans))
    expected = sorted(whole(batch(mq.namesrv)))
    assert len(expected) == 600
    found = batch(mq.namesrv, archive=archive)
    assert sorted(whole(found)) == expected
    assert in_order(whole(found)), "also from task to task"
    ordered = batch(mq.namesrv, archive=archive, ordered="true")
    assert sorted(whole(ordered)) == expected
    assert [{queue for queue, _, _ in part} for part in ordered] == [{0}, {1}, {2}]
    assert in_order(whole(ordered))
    by_arrow = rows_of(
        penstock.arrow.read("orders", archive=tmp_path, namesrv=mq.namesrv, columns=COLUMNS)
    )
    assert sorted(by_arrow) == expected
    assert in_order(by_arrow)
    some = {"startingOffsets": offsets(100), "endingOffsets": offsets(160)}
    choice = batch(mq.namesrv, archive=archive, **some)
    assert sorted(whole(choice)) == [row for row in expected if 100 <= row[1] < 160]


def offsets(at: int) -> str:
    queues = ", ".join(f'"{queue}": {at}' for queue in range(3))
    return f'{{"orders": {{"broker-a": {{{queues}}}}}}}'


def test_rows_in_another_order_are_read_in_that_of_their_queue(
    mq: Embedded, table: pa.Table, tmp_path: Path
) -> None:
    chance = random.Random(5)
    mixed = chance.sample(range(400), 400)
    expected = sorted(whole(batch(mq.namesrv)))
    one = str(archive_rows(tmp_path / "one", [table.slice(0, 400).take(mixed)]))
    assert in_order(whole(batch(mq.namesrv, archive=one)))
    assert sorted(whole(batch(mq.namesrv, archive=one))) == expected
    # Files that overlap, as after a clock was set back.
    parts = [table.take(sorted(mixed[start::3])) for start in range(3)]
    several = str(archive_rows(tmp_path / "several", parts))
    found = batch(mq.namesrv, archive=several)
    assert sorted(whole(found)) == expected
    assert in_order(whole(found))


def test_filters_apply_on_both_sides(mq: Embedded, table: pa.Table, tmp_path: Path) -> None:
    archive = str(archive_rows(tmp_path, [table.slice(0, 300)]))
    for options in ({"tags": "t1"}, {"keys": "k7,k299,k300,k555"}):
        expected = sorted(whole(batch(mq.namesrv, **options)))
        assert sorted(whole(batch(mq.namesrv, archive=archive, **options))) == expected


def test_a_time_range_opens_only_the_files_of_that_time(
    mq: Embedded, table: pa.Table, tmp_path: Path
) -> None:
    parts = [table.slice(0, 100), table.slice(100, 100), table.slice(200, 100)]
    archive = archive_rows(tmp_path, parts)
    files = sorted((archive / "day=2026-11-16").iterdir())
    files[0].write_bytes(b"not Parquet any more")
    moment = table["store_timestamp"][150].as_py()
    late = {"archive": str(archive), "startingTimestamp": moment.isoformat()}
    expected = sorted(whole(batch(mq.namesrv, startingTimestamp=moment.isoformat())))
    assert sorted(whole(batch(mq.namesrv, **late))) == expected
    assert len(expected) > 400
    files[2].write_bytes(b"nor this")
    until = table["store_timestamp"][190].as_py().isoformat()
    some = sorted(whole(batch(mq.namesrv, **late, endingTimestamp=until)))
    both = {"startingTimestamp": moment.isoformat(), "endingTimestamp": until}
    assert some == sorted(whole(batch(mq.namesrv, **both)))
    assert some
    with pytest.raises(StoreDamaged, match="cannot be read"):
        batch(mq.namesrv, archive=str(archive))


def test_a_stream_begins_with_the_archive_and_goes_on_live(tmp_path: Path) -> None:
    with embedded() as mq:
        create(mq.namesrv, "orders", 3)
        produce(mq.namesrv, numbered("orders", range(300)))
        rows = penstock.arrow.read("orders", namesrv=mq.namesrv).read_all()
        early = rows.sort_by("store_timestamp").slice(0, 200)
        archive_rows(tmp_path, [early.slice(0, 100), early.slice(100)])
        given = {"namesrv": mq.namesrv, "topic": "orders", "pollTimeoutMs": "0"}
        reader = StreamReader(parse_read({**given, "archive": str(tmp_path)}), COLUMNS, 2)
        start = reader.initialOffset()
        seen: Rows = []
        batches = 0
        while (end := reader.latestOffset(start, ReadMaxRows(70))) != start:
            part = content(reader, start, end)
            assert part
            seen += part
            start = end
            batches += 1
        assert batches == 5
        assert in_order(seen), "also across the seam"
        assert len(seen) == 300
        report = reader.reportLatestOffset()
        assert report is not None
        seam = report["archivedUpTo"]
        assert sum(seam["orders"]["broker-a"].values()) == 200  # type: ignore[index]
        produce(mq.namesrv, numbered("orders", range(300, 320)))
        end = reader.latestOffset(start, ReadAllAvailable())
        more = content(reader, start, end)
        assert sorted(number for _, _, number in more) == list(range(300, 320))
        reader.stop()


@pytest.mark.parametrize("side", ["topic", "path"])
def test_a_micro_batch_has_the_same_tasks_when_the_archive_has_grown(
    mq: Embedded, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    monkeypatch.setattr(planning, "MIN_TASK_MESSAGES", 100)
    archive_rows(tmp_path, [table.slice(0, 120), table.slice(120, 80)])
    given = {"namesrv": mq.namesrv, "topic": "orders", "archive": str(tmp_path)}
    if side == "path":
        given["path"] = str(mq.data / "broker-a")

    def run() -> list[Rows]:
        reader = StreamReader(parse_read({**given, "pollTimeoutMs": "0"}), COLUMNS, 4)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        found = [rows_of(reader.read(task)) for task in reader.partitions(start, end)]
        reader.stop()
        return found

    first = run()
    assert len(first) == 4
    assert sorted(whole(first)) == sorted(whole(batch(mq.namesrv)))
    archive_rows(tmp_path, [table.slice(200, 150)])
    assert run() == first, "row for row"
    compact(tmp_path, table.slice(0, 350))
    assert run() == first
    assert in_order(whole(first))


def test_files_that_are_compacted_meanwhile_are_read_from_their_successor(
    mq: Embedded, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [table.slice(0, 150), table.slice(150, 150)]
    archive_rows(tmp_path, parts)
    given = {"namesrv": mq.namesrv, "topic": "orders", "archive": str(tmp_path)}
    reader = BatchReader(parse_read(given), COLUMNS, 1)
    monkeypatch.setattr(archive_reading, "BATCH_ROWS", 40)
    found: Rows = []
    is_compacted = False
    for task in reader.partitions():
        for one in reader.read(task):
            found += rows_of(iter([one]))
            if not is_compacted and len(found) > 50:
                is_compacted = True
                compact(tmp_path, table.slice(0, 300))
    assert sorted(found) == sorted(whole(batch(mq.namesrv)))
    assert in_order(found)


def test_files_that_are_moved_into_place_meanwhile_are_found_there(
    mq: Embedded, table: pa.Table, tmp_path: Path
) -> None:
    archive = archive_rows(tmp_path, [table.slice(0, 300)])
    # A run has committed, and not moved its file yet.
    [file] = (archive / "day=2026-11-16").iterdir()
    staged = archive / STAGING / "0.parquet"
    staged.parent.mkdir(exist_ok=True)
    file.rename(staged)
    index = ArchiveIndex(str(archive))
    assert index.files[0].path.startswith(STAGING)
    staged.rename(file)
    moment = int(table["store_timestamp"][150].as_py().timestamp() * 1000)
    assert index.offsets_at(index.ends, moment), "a file in the middle is opened"
    assert not index.files[0].path.startswith(STAGING)
    # The same while rows are read.
    file.rename(staged)
    assert index.reload()
    staged.rename(file)
    options = parse_read({"namesrv": mq.namesrv, "topic": "orders"})
    ranges = [Range(queue, index.starts[queue], end) for queue, end in index.ends.items()]
    read = archive_reading.read_archived(index, ranges, options, COLUMNS)
    assert sum(batch.num_rows for batch in read) == 300
    file.unlink()
    with pytest.raises(StoreDamaged, match="is missing"):
        index.offsets_at(index.ends, moment)


def test_a_hole_between_archive_and_broker_is_an_error_that_names_it(tmp_path: Path) -> None:
    with running(tmp_path / "up", settings=SMALL_SEGMENTS) as up:
        create(up.namesrv, "orders", 1)
        queue = MessageQueue("orders", "broker-a", 0)
        produce(up.namesrv, numbered("orders", range(2000)), queue)
        rows = penstock.arrow.read("orders", namesrv=up.namesrv).read_all()
        archive = archive_rows(tmp_path / "archive", [rows.slice(0, 100)])
        full = archive_rows(tmp_path / "full", [rows.slice(0, 1500)])
        up.stop()
        up.expire(2)
        up.start()
        with pytest.raises(DataLost, match=r"messages 100 to \d+ of orders@broker-a:0 are missing"):
            batch(up.namesrv, archive=str(archive))
        left = whole(batch(up.namesrv, archive=str(archive), failOnDataLoss="false"))
        first = left[100][1]
        assert [at for _, at, _ in left] == [*range(100), *range(first, 2000)]
        # An archive that reaches further than the loss is enough; one that grows, too.
        assert len(whole(batch(up.namesrv, archive=str(full)))) == 2000
        given = {"namesrv": up.namesrv, "topic": "orders", "archive": str(archive)}
        reader = StreamReader(parse_read(given), COLUMNS, 2)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        # Of this one nothing is in the archive as it is now.
        behind = StreamReader(
            parse_read({**given, "startingOffsets": '{"orders": {"broker-a": {"0": 200}}}'}),
            COLUMNS,
            2,
        )
        later = behind.initialOffset()
        archive_rows(archive, [rows.slice(100, 1400)])
        read = content(reader, start, end)
        assert [at for _, at, _ in read] == list(range(2000))
        reader.stop()
        read = content(behind, later, end)
        assert [at for _, at, _ in read] == list(range(200, 2000))
        behind.stop()


def test_recorded_gaps_and_damage_are_not_passed_over(
    mq: Embedded, table: pa.Table, tmp_path: Path
) -> None:
    of_one = table.filter(pa.array([queue == 0 for queue in table["queue_id"].to_pylist()]))
    gap = Span("broker-a", 0, 30, 40)
    archive_rows(tmp_path / "gap", [of_one.slice(0, 30)])
    archive = str(archive_rows(tmp_path / "gap", [of_one.slice(40, 30)], gaps=[gap]))
    with pytest.raises(DataLost, match="messages 30 to 39 of orders@broker-a:0 were gone"):
        batch(mq.namesrv, archive=archive)
    later = batch(mq.namesrv, archive=archive, startingOffsets=offsets(40))
    assert min(at for _, at, _ in whole(later)) == 40
    found = whole(batch(mq.namesrv, archive=archive, failOnDataLoss="false"))
    assert len(found) == 590
    # A row that another program removed from a file.
    damaged = archive_rows(tmp_path / "damaged", [table.slice(0, 150)])
    [path] = (damaged / "day=2026-11-16").iterdir()
    path.unlink()
    archive_rows(tmp_path / "other", [pa.concat_tables([table.slice(0, 70), table.slice(71, 79)])])
    [other] = (tmp_path / "other" / "day=2026-11-16").iterdir()
    other.rename(path)
    with pytest.raises(StoreDamaged, match="149 rows"):
        batch(mq.namesrv, archive=str(damaged))


def test_a_wrong_archive_is_refused(mq: Embedded, table: pa.Table, tmp_path: Path) -> None:
    archive = str(archive_rows(tmp_path / "archive", [table.slice(0, 100)]))
    with pytest.raises(NotFound, match="there is no archive"):
        batch(mq.namesrv, archive=str(tmp_path / "none"))
    with pytest.raises(InvalidArgument, match="holds topic 'orders', and the read is of topic 'o"):
        batch(mq.namesrv, archive=archive, topic="other")
    for mark, kind in (("_delta_log", "Delta"), ("metadata", "Iceberg")):
        (tmp_path / kind / mark).mkdir(parents=True)
        with pytest.raises(InvalidArgument, match=f"is a table of {kind}"):
            batch(mq.namesrv, archive=str(tmp_path / kind))
    with pytest.raises(InvalidArgument, match="a URL that Arrow knows"):
        batch(mq.namesrv, archive="ftp://host/orders")
    with embedded() as younger:
        create(younger.namesrv, "orders", 3)
        produce(younger.namesrv, numbered("orders", range(9)))
        with pytest.raises(InvalidArgument, match="deleted and created again"):
            batch(younger.namesrv, archive=archive)


def test_a_topic_that_was_created_again_is_not_joined_to_its_old_archive(tmp_path: Path) -> None:
    with embedded() as mq:
        create(mq.namesrv, "orders", 3)
        produce(mq.namesrv, numbered("orders", range(30)))
        rows = penstock.arrow.read("orders", namesrv=mq.namesrv).read_all()
        epochs = {("broker-a", queue): 0 for queue in range(3)}
        archive = str(archive_rows(tmp_path, [rows], epochs=epochs))
        assert len(whole(batch(mq.namesrv, archive=archive))) == 30
        mq.admin.delete_topic("orders")
        create(mq.namesrv, "orders", 3)
        # The queues are as long as before, and longer.
        produce(mq.namesrv, numbered("orders", range(60)))
        with pytest.raises(InvalidArgument, match=r"deleted and created again since it was archi"):
            batch(mq.namesrv, archive=archive)


class Live:
    """A queue from 150 to 200, one message a second; `positions.OffsetsSource`."""

    def queues(self, options: ReadOptions) -> list[MessageQueue]:
        return [QUEUE]

    def earliest(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return dict.fromkeys(queues, 150)

    def latest(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return dict.fromkeys(queues, 200)

    def at_time(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        first = (timestamp_ms - BEGIN_MS) // 1000
        return dict.fromkeys(queues, min(200, max(150, first)))

    def committed(
        self, queues: Iterable[MessageQueue], *, guessed: bool = True
    ) -> dict[MessageQueue, int]:
        return {}


QUEUE = MessageQueue("orders", "broker-a", 0)
BEGIN_MS = int(datetime(2026, 11, 16, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(("second", "first"), [(120, 100), (149, 100), (160, 160), (50, 50)])
def test_a_starting_time_does_not_hide_a_gap(tmp_path: Path, second: int, first: int) -> None:
    index = ArchiveIndex(str(archive_rows(tmp_path, [of_one_queue(range(100))])))
    time_ms = BEGIN_MS + second * 1000
    given = {"namesrv": "a:1", "topic": "orders", "archive": str(tmp_path)}
    starting = parse_read({**given, "startingTimestamp": str(time_ms)})
    ranges = Positions(starting, SeamOffsets(index, Live(), starting)).batch_ranges()
    assert ranges == [Range(QUEUE, first, 200)]
    if first < 150:
        with pytest.raises(DataLost, match="messages 100 to 149"):
            joined_sides(index, SeamOffsets(index, Live(), starting), ranges, starting)
    # An end in the gap keeps the gap within the range.
    ending = parse_read({**given, "endingTimestamp": str(BEGIN_MS + 120_000)})
    assert Positions(ending, SeamOffsets(index, Live(), ending)).batch_ranges() == [
        Range(QUEUE, 0, 150)
    ]


def test_a_replica_that_lags_behind_the_archive_is_waited_for(
    mq: Embedded, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archive_rows(tmp_path, [table.slice(0, 600)])
    with embedded() as behind:
        create(behind.namesrv, "orders", 3)
        produce(behind.namesrv, numbered("orders", range(9)))
        given = {"namesrv": behind.namesrv, "topic": "orders", "archive": str(archive)}
        options = parse_read({**given, "pollTimeoutMs": "0"})
        causes = [Cause.BEHIND]
        monkeypatch.setattr(SeamTopicDriver, "_why_shorter", lambda *_: causes[-1])
        reader = StreamReader(options, COLUMNS, 2)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert len(content(reader, start, end)) == 600, "the archive has them"
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        causes.append(Cause.UNKNOWN)
        monkeypatch.setattr(truncated_queues, "SHORT_PATIENCE", 0.0)
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        with pytest.raises(InvalidArgument, match=r"the archive .* holds it up to .* deleted and"):
            reader.latestOffset(end, ReadAllAvailable())
        with pytest.raises(InvalidArgument, match="deleted and created again"):
            reader.prepareForTriggerAvailableNow()
        reader.stop()


def test_an_archive_and_a_store_directory_are_one_table(
    mq: Embedded, table: pa.Table, tmp_path: Path
) -> None:
    archive = str(archive_rows(tmp_path, [table.slice(0, 300)]))
    expected = sorted(whole(batch(mq.namesrv)))
    path = str(mq.data / "broker-a")
    found = batch(mq.namesrv, archive=archive, path=path)
    assert sorted(whole(found)) == expected
    assert in_order(whole(found))
    with pytest.raises(InvalidArgument, match="brokerName"):
        batch(mq.namesrv, archive=archive, path=path, brokerName="another")


def test_what_only_the_archive_has_is_read_without_a_broker_for_it(
    mq: Embedded, table: pa.Table, tmp_path: Path
) -> None:
    renamed = table.set_column(
        table.column_names.index("broker"), "broker", pa.array(["old"] * table.num_rows)
    )
    archive = str(archive_rows(tmp_path, [renamed.slice(0, 300)]))
    assert len(whole(batch(mq.namesrv, archive=archive))) == 900
