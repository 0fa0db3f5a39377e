"""Tables into topics, and polled messages as batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import penstock.arrow
from penstock import Producer, PullConsumer, aio
from penstock.columnar.schema import ALL, arrow_schema
from penstock.errors import IllegalMessage, InvalidArgument
from penstock.model.java_hash import java_hash
from penstock.testing.embedded import Embedded, embedded


@pytest.fixture
def mq() -> Iterator[Embedded]:
    with embedded() as running:
        running.admin.create_topic("orders", 3)
        yield running


def sent(mq: Embedded, topic: str = "orders") -> list[dict[str, object]]:
    table = penstock.arrow.read(topic, namesrv=mq.namesrv).read_all()
    return sorted(table.to_pylist(), key=lambda row: int(row["body"]))


def test_every_column_becomes_a_part_of_the_message(mq: Embedded) -> None:
    count = 20_000
    table = pa.table(
        {
            "body": pa.array([str(n) for n in range(count)], pa.large_string()),
            "tags": [None if n % 3 else "third" for n in range(count)],
            "keys": pa.array([[f"k{n}", "all"] for n in range(count)], pa.large_list(pa.string())),
            "properties": pa.array(
                [[("n", str(n))] for n in range(count)], pa.map_(pa.string(), pa.string())
            ),
            "offset": list(range(count)),
        }
    )
    with Producer("p", namesrv=mq.namesrv) as producer:
        assert producer.send_arrow(table, "orders") == count
    rows = sent(mq)
    assert [row["body"] for row in rows] == [b"%d" % n for n in range(count)]
    assert [row["tags"] for row in rows] == [None if n % 3 else "third" for n in range(count)]
    assert rows[17]["keys"] == ["k17", "all"]
    assert dict(rows[17]["properties"])["n"] == "17"  # type: ignore[call-overload]
    assert len({row["msg_id"] for row in rows}) == count
    assert "PENSTOCK_ROW" not in dict(rows[0]["properties"])  # type: ignore[call-overload]


def test_rows_of_a_sharding_key_keep_their_queue_and_order(mq: Embedded) -> None:
    keys = [f"s{n % 5}" if n % 2 else None for n in range(3000)]
    table = pa.table({"body": [str(n) for n in range(3000)], "sharding_key": keys})
    with Producer("p", namesrv=mq.namesrv) as producer:
        producer.send_arrow(table, "orders")
    found = penstock.arrow.read("orders", namesrv=mq.namesrv).read_all().to_pylist()
    assert len(found) == 3000
    for key in {key for key in keys if key}:
        mine = [row for row in found if dict(row["properties"]).get("__SHARDINGKEY") == key]
        assert {row["queue_id"] for row in mine} == {abs(java_hash(key)) % 3}
        numbers = [int(row["body"]) for row in mine]
        assert numbers == sorted(numbers)


def test_topics_come_from_a_column_and_readers_are_taken_too(mq: Embedded) -> None:
    mq.admin.create_topic("other", 1)
    table = pa.table({"body": [b"1", b"2", b"3"], "topic": ["orders", "other", "orders"]})
    with Producer("p", namesrv=mq.namesrv) as producer:
        assert producer.send_arrow(table.to_reader()) == 3
        assert producer.send_arrow(table.to_batches()[0], "other") == 3
    assert [row["body"] for row in sent(mq)] == [b"1", b"3"]
    assert [row["body"] for row in sent(mq, "other")] == [b"1", b"2", b"2", b"3"]


def test_a_row_that_is_too_large_for_a_batch_and_a_delayed_one_are_sent_singly(
    mq: Embedded,
) -> None:
    table = pa.table({"body": [b"1", b"2" * (3 << 20), b"3"], "delay": [None, None, "1s"]})
    with Producer("p", namesrv=mq.namesrv) as producer:
        assert producer.send_arrow(table, "orders") == 3
    with PullConsumer("g", namesrv=mq.namesrv, start_from="first") as consumer:
        consumer.subscribe("orders")
        found: list[bytes] = []
        while len(found) < 3:
            found += consumer.poll_arrow(30)["body"].to_pylist()
    assert sorted(map(len, found)) == [1, 1, 3 << 20]


@pytest.mark.parametrize(
    ("columns", "topic", "match"),
    [
        ({"bodies": ["x"]}, "orders", "no column 'body'"),
        ({"body": ["x"]}, None, "rows without a topic"),
        ({"body": [1.5]}, "orders", "column 'body' is double"),
        ({"body": ["x"], "properties": ["y"]}, "orders", "column 'properties' is string"),
    ],
)
def test_a_table_that_cannot_be_sent_is_refused(
    mq: Embedded, columns: dict[str, list[object]], topic: str | None, match: str
) -> None:
    with Producer("p", namesrv=mq.namesrv) as producer:
        with pytest.raises(InvalidArgument, match=match):
            producer.send_arrow(pa.table(columns), topic)
        with pytest.raises(InvalidArgument, match="rows of type list"):
            producer.send_arrow([b"x"], "orders")
        with pytest.raises(IllegalMessage, match="the body in row 1 is null"):
            producer.send_arrow(pa.table({"body": ["x", None]}), "orders")


def test_polled_messages_are_a_batch_with_the_columns_of_a_read(mq: Embedded) -> None:
    with Producer("p", namesrv=mq.namesrv) as producer:
        producer.send_arrow(pa.table({"body": ["1"], "keys": ["a b"]}), "orders")
    expected = penstock.arrow.read("orders", namesrv=mq.namesrv).read_all()
    with PullConsumer("g", namesrv=mq.namesrv, start_from="first") as consumer:
        consumer.subscribe("orders")
        batch = consumer.poll_arrow(30)
        assert consumer.poll_arrow(0).num_rows == 0
    assert batch.schema == arrow_schema(ALL)
    [row], [read] = batch.to_pylist(), expected.to_pylist()
    # A pull consumer adds where its queue begins and ends.
    added = {"MIN_OFFSET", "MAX_OFFSET"}
    row["properties"] = [(key, value) for key, value in row["properties"] if key not in added]
    assert row == read


async def test_coroutines_have_both(mq: Embedded) -> None:
    async with aio.Producer("p", namesrv=mq.namesrv) as producer:
        assert await producer.send_arrow(pa.table({"body": ["1", "2"]}), "orders") == 2
    async with aio.PullConsumer("g", namesrv=mq.namesrv, start_from="first") as consumer:
        await consumer.subscribe("orders")
        assert (await consumer.poll_arrow(30)).num_rows == 2
