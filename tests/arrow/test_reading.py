"""``penstock.arrow.read``: topics, store directories and archives, without Spark."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.source.archives import archive_rows, rows_of, spans_of

import penstock.arrow
from penstock import Message, MessageQueue, Producer
from penstock.columnar.schema import ALL, arrow_schema
from penstock.errors import InvalidArgument, StoreDamaged, TopicNotFound
from penstock.spark.pipelines.archive.directory import opened
from penstock.spark.pipelines.archive.state import STAGING, DataFile
from penstock.spark.pipelines.files import open_files
from penstock.spark.pipelines.spans import Span
from penstock.spark.source.data_loss import DataLost
from penstock.testing.embedded import Embedded, embedded

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(2)]


@pytest.fixture(scope="module")
def mq() -> Iterator[Embedded]:
    """A broker with forty messages in two queues of a topic."""
    with embedded() as running:
        running.admin.create_topic("orders", 2)
        with Producer("p", namesrv=running.namesrv) as producer:
            for number in range(40):
                tag = "paid" if number % 2 else "created"
                message = Message("orders", b"%d" % number, keys=[f"o-{number}"], tag=tag)
                producer.send(message, queue=QUEUES[number // 20])
        yield running


def bodies(reader: pa.RecordBatchReader) -> list[int]:
    return [int(body) for body in reader.read_all()["body"].to_pylist()]


def test_a_topic_is_a_table_with_all_columns(mq: Embedded) -> None:
    reader = penstock.arrow.read("orders", namesrv=mq.namesrv)
    assert reader.schema == arrow_schema(ALL)
    table = reader.read_all()
    assert [int(body) for body in table["body"].to_pylist()] == list(range(40))
    assert table["keys"].to_pylist()[7] == ["o-7"]
    assert set(table["topic"].to_pylist()) == {"orders"}


def test_a_range_is_given_by_offsets_or_by_time(mq: Embedded) -> None:
    def part(**choice: object) -> list[int]:
        return bodies(penstock.arrow.read("orders", namesrv=mq.namesrv, **choice))  # type: ignore[arg-type]

    start, end = dict.fromkeys(QUEUES, 3), dict.fromkeys(QUEUES, 5)
    assert part(start=start, end=end) == [3, 4, 23, 24]
    table = penstock.arrow.read("orders", namesrv=mq.namesrv).read_all()
    moment = table["store_timestamp"][30].as_py()
    early = part(end=moment)
    assert early == sorted(
        int(body)
        for body, at in zip(
            table["body"].to_pylist(), table["store_timestamp"].to_pylist(), strict=True
        )
        if at < moment
    )
    assert sorted(early + part(start=moment)) == list(range(40))
    assert part(start="last") == []


def test_tags_keys_and_columns_choose(mq: Embedded) -> None:
    found = penstock.arrow.read(
        "orders", namesrv=mq.namesrv, columns=["body", "offset"], tags="paid", keys=["o-5", "o-6"]
    ).read_all()
    assert found.to_pydict() == {"body": [b"5"], "offset": [5]}


def test_a_store_directory_is_read_with_and_without_its_broker(mq: Embedded) -> None:
    assert bodies(penstock.arrow.read(mq.data, topic="orders")) == list(range(40))
    assert bodies(penstock.arrow.read(f"{mq.data}/broker-a")) == list(range(40))
    part = penstock.arrow.read(mq.data, topic="orders", end=dict.fromkeys(QUEUES, 2))
    assert bodies(part) == [0, 1, 20, 21]


def test_damage_is_an_error_or_null(tmp_path: Path) -> None:
    with embedded(tmp_path) as mq:
        mq.admin.create_topic("orders", 1)
        with Producer("p", namesrv=mq.namesrv) as producer:
            for number in range(3):
                producer.send(Message("orders", b"body %d" % number))
        [log] = (tmp_path / "broker-a" / "commitlog").iterdir()
        with log.open("r+b") as file:
            file.seek(log.read_bytes().index(b"body 1"))
            file.write(b"bodY")
        with pytest.raises(StoreDamaged, match="offset 1"):
            penstock.arrow.read("orders", namesrv=mq.namesrv).read_all()
        found = penstock.arrow.read("orders", namesrv=mq.namesrv, fail_on_data_loss=False)
        assert found.read_all()["body"].to_pylist() == [b"body 0", None, b"body 2"]
    with pytest.raises(StoreDamaged, match="store verify"):
        penstock.arrow.read(tmp_path, topic="orders").read_all()


def test_a_store_with_messages_behind_a_damage_is_refused(tmp_path: Path) -> None:
    with embedded(tmp_path) as mq:
        mq.admin.create_topic("orders", 1)
        with Producer("p", namesrv=mq.namesrv) as producer:
            for number in range(3):
                producer.send(Message("orders", b"body %d" % number))
    [log] = (tmp_path / "broker-a" / "commitlog").iterdir()
    log.write_bytes(log.read_bytes().replace(b"body 1", b"bodY 1"))
    # It is opened only as far as the log is whole, so the rest must not be missing in silence.
    with pytest.raises(StoreDamaged, match="store verify"):
        penstock.arrow.read(tmp_path, topic="orders").read_all()


@pytest.fixture
def archived(mq: Embedded, tmp_path: Path) -> Path:
    """An archive of two files, as a run of ``penstock.spark.archive`` leaves it."""
    table = penstock.arrow.read("orders", namesrv=mq.namesrv).read_all()
    files = open_files(tmp_path)
    times = [int(at.timestamp() * 1000) for at in table["store_timestamp"].to_pylist()]
    with opened(files, "orders") as archive:
        state = archive.state
        for number, part in enumerate((table.slice(0, 25), table.slice(25))):
            path = f"day=2026-11-16/part-{number}.parquet"
            (tmp_path / STAGING).mkdir(parents=True, exist_ok=True)
            staged = f"{STAGING}/{number}.parquet"
            pq.write_table(part, tmp_path / staged, use_deprecated_int96_timestamps=True)
            of_part = times[:25] if number == 0 else times[25:]
            spans = tuple(spans_of(part))
            file = DataFile(path, "2026-11-16", part.num_rows, 1, min(of_part), max(of_part), spans)
            state = state.after_chunk(spans, [file], [(staged, path)])
            archive.commit(state)
    return tmp_path


def test_an_archive_is_read_like_its_topic(mq: Embedded, archived: Path) -> None:
    table = penstock.arrow.read("orders", namesrv=mq.namesrv).read_all()
    found = penstock.arrow.read(archived)
    assert found.schema == table.schema
    assert found.read_all().equals(table)
    # As in a namespace of its own, the topic is known.
    assert bodies(penstock.arrow.read(archived, topic="orders")) == list(range(40))
    choice = penstock.arrow.read(
        archived,
        columns=["body"],
        tags="paid",
        keys=[f"o-{n}" for n in range(30)],
        start=dict.fromkeys(QUEUES, 1),
        end={QUEUES[0]: 4},
    )
    assert bodies(choice) == [1, 3, 21, 23, 25, 27, 29]
    moment = table["store_timestamp"][30].as_py()
    early = bodies(penstock.arrow.read(archived, end=moment))
    assert sorted(early + bodies(penstock.arrow.read(archived, start=moment))) == list(range(40))
    with pytest.raises(InvalidArgument, match="an archive of topic 'orders'"):
        penstock.arrow.read(archived, topic="others")


def test_files_of_other_times_are_not_opened(archived: Path, mq: Embedded) -> None:
    first = penstock.arrow.read("orders", namesrv=mq.namesrv).read_all()["store_timestamp"][0]
    for path in archived.rglob("part-*.parquet"):
        path.write_bytes(b"not Parquet any more")
    assert bodies(penstock.arrow.read(archived, end=first.as_py())) == []


def test_ends_of_an_archive_that_leave_nothing(archived: Path) -> None:
    assert bodies(penstock.arrow.read(archived, start="last")) == []
    assert bodies(penstock.arrow.read(archived, end="first")) == []
    assert len(bodies(penstock.arrow.read(archived, start="first", end="last"))) == 40


def test_an_archive_is_read_in_the_order_of_its_queues(tmp_path: Path) -> None:
    rows = rows_of(range(300))
    mixed = random.Random(3).sample(range(300), 300)
    # Files that overlap, as after a clock was set back, with rows in any order.
    parts = sorted((mixed[start::3] for start in range(3)), key=max)
    archive_rows(tmp_path, [rows.take(part) for part in parts])
    found = penstock.arrow.read(tmp_path, columns=["offset"]).read_all()
    assert found["offset"].to_pylist() == list(range(300))


def test_gaps_of_an_archive_are_an_error(tmp_path: Path) -> None:
    archive_rows(tmp_path, [rows_of(range(10))])
    gap = Span("broker-a", 0, 10, 15)
    archive_rows(tmp_path, [rows_of(range(15, 20))], gaps=[gap])
    with pytest.raises(DataLost, match="messages 10 to 14 of orders@broker-a:0 were gone"):
        penstock.arrow.read(tmp_path).read_all()
    rest = penstock.arrow.read(tmp_path, fail_on_data_loss=False, columns=["offset"]).read_all()
    assert rest["offset"].to_pylist() == [*range(10), *range(15, 20)]
    after = penstock.arrow.read(tmp_path, start={MessageQueue("orders", "broker-a", 0): 15})
    assert after.read_all().num_rows == 5


def test_a_range_that_begins_before_its_archive_has_what_is_there(tmp_path: Path) -> None:
    archive_rows(tmp_path, [rows_of(range(15, 20))])
    start = {MessageQueue("orders", "broker-a", 0): 3}
    found = penstock.arrow.read(tmp_path, start=start, columns=["offset"]).read_all()
    assert found["offset"].to_pylist() == list(range(15, 20))


def test_a_gap_of_one_queue_is_no_gap_of_another(tmp_path: Path) -> None:
    rows = rows_of(range(20))
    place = rows.column_names.index("queue_id")
    other = rows.set_column(place, "queue_id", pa.array([1] * 20, pa.int32()))
    archive_rows(tmp_path, [rows.slice(0, 10), other])
    archive_rows(tmp_path, [rows.slice(15)], gaps=[Span("broker-a", 0, 10, 15)])
    start = {MessageQueue("orders", "broker-a", 0): 15, MessageQueue("orders", "broker-a", 1): 0}
    assert penstock.arrow.read(tmp_path, start=start).read_all().num_rows == 25


def test_a_gap_before_the_first_file_is_an_error(tmp_path: Path) -> None:
    archive_rows(tmp_path, [rows_of(range(5, 20))], gaps=[Span("broker-a", 0, 0, 5)])
    with pytest.raises(DataLost, match="messages 0 to 4 of orders@broker-a:0 were gone"):
        penstock.arrow.read(tmp_path).read_all()
    rest = penstock.arrow.read(tmp_path, fail_on_data_loss=False, columns=["offset"]).read_all()
    assert rest["offset"].to_pylist() == list(range(5, 20))
    after = penstock.arrow.read(tmp_path, start={MessageQueue("orders", "broker-a", 0): 5})
    assert after.read_all().num_rows == 15


@pytest.mark.parametrize(
    ("source", "choice", "match"),
    [
        ("orders", {"columns": "body"}, "columns is the text"),
        ("orders", {"columns": ["bodies"]}, "column 'bodies'"),
        ("orders", {"columns": ["body", "tags", "body"]}, "column 'body'.*each once"),
        ("orders", {"columns": []}, "no columns"),
        ("orders", {"keys": "o-1"}, "keys is the text"),
        ("orders", {"topic": "orders"}, "topic only with a store"),
        ("orders", {"start": "yesterday"}, "yesterday"),
        ("./nowhere", {}, "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    mq: Embedded, source: str, choice: dict[str, object], match: str
) -> None:
    with pytest.raises(InvalidArgument, match=match):
        penstock.arrow.read(source, namesrv=mq.namesrv, **choice)  # type: ignore[arg-type]


def test_an_unknown_topic_is_named_at_once(mq: Embedded) -> None:
    with pytest.raises(TopicNotFound, match="nothing-there"):
        penstock.arrow.read("nothing-there", namesrv=mq.namesrv)


def test_spark_is_not_needed() -> None:
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "import penstock.arrow\n"
        "assert not [name for name in sys.modules if name.startswith('pyspark.')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
