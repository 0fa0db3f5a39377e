"""Messages sent once more: chosen by time, key, tag or condition, each once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import Message, MessageQueue, Producer
from penstock.errors import InvalidArgument, NotFound
from penstock.model.java_hash import java_hash
from penstock.spark.pipelines.archive.archive import archive
from penstock.spark.pipelines.archive.state import DataFile
from penstock.spark.pipelines.replay import (
    Replay,
    _portions,
    new_replay_id,
    replay,
    replay_until_ms,
)
from penstock.spark.pipelines.spans import Span
from penstock.testing.embedded import embedded

from .conftest import Shop


def data_file(number: int, *spans: Span) -> DataFile:
    return DataFile(f"{number}", "2026-11-16", 10, 1, number, number + 1, spans)


def test_files_that_overlap_in_a_queue_are_replayed_together() -> None:
    in_order = [data_file(n, Span("a", 0, 10 * n, 10 * n + 10)) for n in range(4)]
    assert [len(part) for part in _portions(in_order, 10)] == [1, 1, 1, 1]
    assert [len(part) for part in _portions(in_order, 25)] == [2, 2]
    # After a clock was set back, the third file has messages that come before the second's.
    late = data_file(9, Span("a", 0, 5, 10), Span("a", 1, 0, 5))
    first = data_file(0, Span("a", 0, 0, 5))
    mixed = [first, in_order[1], late, in_order[2]]
    assert [len(part) for part in _portions(mixed, 10)] == [1, 2, 1]


@pytest.fixture
def again(shop: Shop) -> Shop:
    """The shop, with a topic to replay to."""
    shop.mq.admin.create_topic("again", 3)
    return shop


def replayed(spark: SparkSession, shop: Shop, topic: str = "again") -> list[dict[str, object]]:
    """What was sent once more, with all that matters of it."""
    rows = spark.read.format("penstock").options(namesrv=shop.mq.namesrv, topic=topic).load()
    return [
        {
            "key": row["keys"][0],
            "body": bytes(row["body"]),
            "tag": row["tags"],
            "queue": row["queue_id"],
            "offset": row["offset"],
            **{name: row["properties"].get(name) for name in ("shop", Replay.ID, Replay.FROM)},
        }
        for row in rows.orderBy("queue_id", "offset").collect()
    ]


def test_an_archive_comes_back_whole_after_its_topic_is_gone(
    spark: SparkSession, again: Shop, tmp_path: Path
) -> None:
    again.order(20)
    archive(spark, "orders", tmp_path, namesrv=again.mq.namesrv, rows_per_commit=10)
    again.mq.admin.delete_topic("orders")
    said: list[tuple[str, int, int]] = []
    result = replay(
        spark,
        "again",
        archive=tmp_path,
        namesrv=again.mq.namesrv,
        rows_per_step=10,
        progress=lambda *step: said.append(step),
    )
    assert (result.matched, result.sent, result.dry_run) == (20, 20, False)
    assert [done for _, done, _ in said] == sorted(done for _, done, _ in said)
    assert said[-1] == ("replaying", 20, 20)
    found = replayed(spark, again)
    assert {row["key"]: row["body"] for row in found} == again.sent
    assert len(found) == 20
    assert {row["tag"] for row in found} == {"paid", "created"}
    assert {row["shop"] for row in found} == {"s1"}
    assert {row[Replay.ID] for row in found} == {result.replay_id}
    assert len({row[Replay.FROM] for row in found}) == 20


def test_keys_tags_and_conditions_choose_messages(
    spark: SparkSession, again: Shop, tmp_path: Path
) -> None:
    again.order(10)
    archive(spark, "orders", tmp_path, namesrv=again.mq.namesrv)
    keys = ["o-1", "o-2", "o-3", "o-8"]
    result = replay(
        spark,
        "again",
        archive=tmp_path,
        keys=keys,
        tags="paid || refunded",
        where="get_json_object(decode(body, 'utf-8'), '$.amount') > 1",
        namesrv=again.mq.namesrv,
    )
    assert result.sent == 1
    assert [row["key"] for row in replayed(spark, again)] == ["o-3"]


def test_a_time_range_of_a_topic_is_exact_and_a_dry_run_sends_nothing(
    spark: SparkSession, again: Shop
) -> None:
    again.order(4)
    times = spark.read.format("penstock").options(namesrv=again.mq.namesrv, topic="orders").load()
    last = max(row[0] for row in times.select("store_timestamp").collect())
    middle = int(last.replace(tzinfo=UTC).timestamp() * 1000) + 2
    while datetime.now(UTC).timestamp() * 1000 <= middle:
        pass
    late = again.order(6)
    choice: dict[str, Any] = {"topic": "orders", "start": middle, "namesrv": again.mq.namesrv}
    dry = replay(spark, "again", dry_run=True, **choice)
    assert (dry.matched, dry.sent, dry.dry_run) == (6, 0, True)
    assert sum(count for _, count in dry.days) == 6
    assert replayed(spark, again) == []
    assert replay(spark, "again", **choice).sent == 6
    assert {row["key"] for row in replayed(spark, again)} == set(late)
    early = replay(spark, "again", topic="orders", end=middle, namesrv=again.mq.namesrv)
    assert early.sent == 4
    # The end is left out to the millisecond.
    moments = [int(row[0].replace(tzinfo=UTC).timestamp() * 1000) for row in
               times.select("store_timestamp").collect()]  # fmt: skip
    for end in (min(moments), max(moments), max(moments) + 1):
        found = replay(spark, "again", dry_run=True, topic="orders", end=end,
                       namesrv=again.mq.namesrv)  # fmt: skip
        assert found.matched == sum(moment < end for moment in moments)


def test_a_replay_that_died_is_finished_without_sending_anything_twice(
    spark: SparkSession, again: Shop
) -> None:
    again.order(12)
    choice: dict[str, Any] = {"topic": "orders", "namesrv": again.mq.namesrv}
    # What a run leaves that died half-way: some copies under its id.
    started: list[str] = []
    part = replay(spark, "again", where="offset % 2 = 0", on_start=started.append, **choice)
    assert started == [part.replay_id]
    assert 0 < part.sent < 12
    rest = replay(spark, "again", replay_id=part.replay_id, **choice)
    assert rest.sent == 12 - part.sent
    assert rest.matched == 12
    assert replay(spark, "again", replay_id=part.replay_id, **choice).sent == 0
    found = replayed(spark, again)
    assert sorted(str(row["key"]) for row in found) == sorted(again.sent)


@pytest.mark.parametrize("name", [None, "a name of my own"])
def test_a_replay_of_a_topic_to_itself_is_finished_with_what_was_there_when_it_began(
    spark: SparkSession, shop: Shop, name: str | None
) -> None:
    early = shop.order(6)
    choice: dict[str, Any] = {"topic": "orders", "namesrv": shop.mq.namesrv}
    part = replay(spark, "orders", where="offset % 2 = 0", replay_id=name, **choice)
    assert 0 < part.sent < 6
    live = shop.order(4)
    wishes = {"replay_id": part.replay_id, **choice}
    assert replay(spark, "orders", dry_run=True, **wishes).matched == 6 - part.sent
    rest = replay(spark, "orders", **wishes)
    assert (rest.sent, rest.matched) == (6 - part.sent, 6)
    assert replay(spark, "orders", **wishes).sent == 0
    found = sorted(str(row["key"]) for row in replayed(spark, shop, "orders"))
    assert found == sorted([*early, *early, *live])


def test_a_replay_that_died_before_its_topic_was_there_is_finished(
    spark: SparkSession, shop: Shop
) -> None:
    shop.order(3)
    result = replay(
        spark, "new", topic="orders", replay_id=new_replay_id(), namesrv=shop.mq.namesrv
    )
    assert (result.sent, result.matched) == (3, 3)


def test_the_name_of_a_replay_says_up_to_when_its_messages_were_stored() -> None:
    assert replay_until_ms(new_replay_id(1_794_824_100_007)) == 1_794_824_100_008
    assert replay_until_ms("20261116T101500007-1a2b3c4d") == 1_794_824_100_008
    # Those without milliseconds mean all of their second.
    assert replay_until_ms("20261116T101500-1a2b3c4d") == 1_794_824_101_000
    for name in ("mine", "20261399T101500-1a2b3c4d", "2026-11-16"):
        assert replay_until_ms(name) is None


def test_queues_and_their_order_are_kept_at_a_rate(spark: SparkSession, again: Shop) -> None:
    again.order(12)
    again.mq.admin.create_topic("same", 2)
    before = str(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"))
    replay(spark, "same", topic="orders", keep_queue=True, rate=500, namesrv=again.mq.namesrv)
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == before
    copies = [(row["queue"], row["key"]) for row in replayed(spark, again, "same")]
    assert copies == [(row["queue"], row["key"]) for row in replayed(spark, again, "orders")]


def test_copies_are_spread_over_queues_as_their_originals_or_by_their_key(
    spark: SparkSession, shop: Shop
) -> None:
    shop.mq.admin.create_topic("wide", 6)
    for name, queues in (("same", 6), ("fewer", 2)):
        shop.mq.admin.create_topic(name, queues)
    with Producer("p", namesrv=shop.mq.namesrv) as producer:
        for number in range(24):
            queue = MessageQueue("wide", "broker-a", number % 6)
            producer.send(Message("wide", b"x", keys=[f"{number}"]), queue=queue)
        for number in range(24, 36):
            # Away from where its key belongs.
            message = Message("wide", b"x", keys=[f"{number}"], sharding_key="one")
            producer.send(message, queue=MessageQueue("wide", "broker-a", number % 6))
    choice: dict[str, Any] = {"topic": "wide", "namesrv": shop.mq.namesrv}
    for name, queues in (("same", 6), ("fewer", 2)):
        assert replay(spark, name, **choice).sent == 36
        found = {int(str(row["key"])): row["queue"] for row in replayed(spark, shop, name)}
        assert {found[number] for number in range(24, 36)} == {abs(java_hash("one")) % queues}
        of_queue = [{found[number] for number in range(first, 24, 6)} for first in range(6)]
        assert all(len(targets) == 1 for targets in of_queue), "order needs one queue"
        if name == "same":
            assert of_queue == [{number} for number in range(6)]
        else:
            assert set.union(*of_queue) == {0, 1}


def test_a_store_directory_is_replayed_without_its_broker(
    spark: SparkSession, again: Shop, tmp_path: Path
) -> None:
    with embedded(tmp_path) as other:
        other.admin.create_topic("orders", 1)
        Shop(other).order(5)
    result = replay(
        spark, "again", topic="orders", path=tmp_path, tags="paid", namesrv=again.mq.namesrv
    )
    assert result.sent == 2
    assert sorted(str(row["key"]) for row in replayed(spark, again)) == ["o-1", "o-3"]


def test_a_topic_of_a_store_directory_is_found_in_its_namespace(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    with (
        embedded(tmp_path) as other,
        Producer("p", namesrv=other.namesrv, namespace="ns") as sender,
    ):
        sender.send(Message("orders", b"1", keys=["o-1"]))
    shop.mq.admin.create_topic("ns%again", 1)
    result = replay(
        spark, "again", topic="orders", path=tmp_path, namespace="ns", namesrv=shop.mq.namesrv
    )
    assert result.sent == 1
    assert [row["key"] for row in replayed(spark, shop, "ns%again")] == ["o-1"]


def test_unclear_wishes_are_refused_before_anything_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    nowhere = "127.0.0.1:1"
    with pytest.raises(InvalidArgument, match="not clear what to replay"):
        replay(spark, "again", namesrv=nowhere)
    with pytest.raises(InvalidArgument, match="not clear what to replay"):
        replay(spark, "again", archive=tmp_path, topic="orders", namesrv=nowhere)
    with pytest.raises(InvalidArgument, match="start before end"):
        replay(spark, "again", topic="orders", start=2000, end=1000, namesrv=nowhere)
    with pytest.raises(InvalidArgument, match="a list of keys"):
        replay(spark, "again", topic="orders", keys="o-1", namesrv=nowhere)
    with pytest.raises(InvalidArgument, match="rate"):
        replay(spark, "again", topic="orders", rate=0, namesrv=nowhere)
    with pytest.raises(NotFound, match="there is no archive"):
        replay(spark, "again", archive=tmp_path, namesrv=nowhere)
