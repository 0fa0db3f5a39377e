"""A topic to Parquet and back, over several runs, with Spark and a broker."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from tests.spark.source.brokers import SEGMENT, create, numbered, produce, running
from tests.support.s3_server import serving_s3

from penstock.columnar.schema import ALL
from penstock.errors import InvalidArgument, PenstockError
from penstock.spark.jvm import hadoop_configuration
from penstock.spark.pipelines.archive.archive import archive
from penstock.spark.pipelines.archive.reading import read_archive
from penstock.spark.pipelines.replay import replay
from penstock.spark.source.columns import spark_schema
from penstock.spark.source.data_loss import DataLost
from penstock.spark.source.progress_metrics import offsets_behind_latest

from ..conftest import Shop


def bodies(rows: DataFrame) -> dict[str, bytes]:
    """Bodies by key; a key twice is an error."""
    found = rows.select("keys", "body").collect()
    assert len({row["keys"][0] for row in found}) == len(found)
    return {row["keys"][0]: bytes(row["body"]) for row in found}


def delta_bodies(directory: Path) -> dict[str, bytes]:
    """Bodies by key, as a reader of Delta tables that is not ours finds them."""
    rows = DeltaTable(directory).to_pyarrow_table(columns=["keys", "body", "day"]).to_pylist()
    assert all(row["day"] for row in rows)
    return {row["keys"][0]: row["body"] for row in rows}


def test_each_message_is_archived_once_over_several_runs(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    where, namesrv = tmp_path / "archive", shop.mq.namesrv
    said: list[tuple[str, int, int]] = []
    shop.order(30)
    first = archive(
        spark,
        "orders",
        where,
        namesrv=namesrv,
        rows_per_commit=20,
        progress=lambda *step: said.append(step),
    )
    assert (first.archived, first.total, first.gaps) == (30, 30, ())
    assert said[0] == ("archiving", 0, 30)
    assert said[-1] == ("archiving", 30, 30)
    shop.order(5)
    assert archive(spark, "orders", where, namesrv=namesrv).archived == 5
    nothing = archive(spark, "orders", where, namesrv=namesrv)
    assert (nothing.archived, nothing.total) == (0, 35)

    rows = read_archive(spark, where)
    assert bodies(rows) == shop.sent
    assert rows.schema == spark_schema()
    # Any reader of Parquet sees the same, with the day beside it.
    plain = spark.read.parquet(str(where))
    assert bodies(plain) == shop.sent
    days = {str(row["day"]) for row in plain.select("day").distinct().collect()}
    times = [row[0] for row in plain.select("store_timestamp").collect()]
    assert days == {time.strftime("%Y-%m-%d") for time in times}
    assert nothing.days == len(days)


def test_what_is_archived_is_what_the_source_reads(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.order(12)
    where = tmp_path / "a direct%20ory, in Füssen"
    archive(spark, "orders", where, namesrv=shop.mq.namesrv)
    source = spark.read.format("penstock").options(namesrv=shop.mq.namesrv, topic="orders").load()
    order = ["queue_id", "offset"]
    assert read_archive(spark, where).orderBy(order).collect() == (source.orderBy(order).collect())


def test_small_files_are_written_together_and_nothing_else_changes(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.order(12)
    namesrv = shop.mq.namesrv
    many = archive(
        spark, "orders", tmp_path, namesrv=namesrv, rows_per_commit=4, compact=False, delta=True
    )
    assert many.files >= 3
    assert delta_bodies(tmp_path) == shop.sent
    fewer = archive(spark, "orders", tmp_path, namesrv=namesrv, newest_day_files=2)
    assert fewer.compacted == many.files
    assert fewer.files == many.days
    assert bodies(read_archive(spark, tmp_path)) == shop.sent
    assert bodies(spark.read.parquet(str(tmp_path))) == shop.sent
    # It stays a table of Delta, with a version for each commit, also of runs that do not say so.
    assert delta_bodies(tmp_path) == shop.sent
    assert len(DeltaTable(tmp_path).file_uris()) == fewer.files
    # Run once more, it has nothing left to do.
    assert archive(spark, "orders", tmp_path, namesrv=namesrv, newest_day_files=2).compacted == 0


def test_only_the_files_of_a_time_range_are_read(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.order(4)
    archive(spark, "orders", tmp_path, namesrv=shop.mq.namesrv)
    middle = int(datetime.now(UTC).timestamp() * 1000) + 1
    shop.mq.admin.topics()
    while int(datetime.now(UTC).timestamp() * 1000) <= middle:
        pass
    late = shop.order(3)
    archive(spark, "orders", tmp_path, namesrv=shop.mq.namesrv)
    after = read_archive(spark, tmp_path, start_ms=middle)
    assert set(bodies(after)) == set(late)
    assert all("part-000000000002" in name for name in after.inputFiles())
    assert read_archive(spark, tmp_path, end_ms=middle).count() == 4
    assert read_archive(spark, tmp_path, start_ms=middle, end_ms=middle + 1).count() == 0


def test_a_directory_that_driver_and_executors_do_not_share_is_no_gap(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.order(6)
    # Hadoop drops ".." before it follows links, Python does not: so these are two directories, as
    # on two machines.
    (tmp_path / "elsewhere" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "inner")
    where = tmp_path / "link" / ".." / "archive"
    with pytest.raises(InvalidArgument, match=r"wrote 6 rows .* driver finds 0 there; .* share"):
        archive(spark, "orders", where, namesrv=shop.mq.namesrv, fail_on_data_loss=False)
    # Nothing was passed over: on a directory that is shared all of it is archived.
    (tmp_path / "link").unlink()
    (tmp_path / "elsewhere" / "archive").rename(tmp_path / "shared")
    done = archive(spark, "orders", tmp_path / "shared", namesrv=shop.mq.namesrv)
    assert (done.archived, done.gaps) == (6, ())


def test_what_the_broker_deletes_amid_a_run_is_reported_as_a_gap_and_not_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = f"mappedFileSizeCommitLog={SEGMENT}\n"
    with running(tmp_path / "data", settings=settings) as up:
        create(up.namesrv, "orders", 1)
        produce(up.namesrv, numbered("orders", range(400), size=500))

        def expire(what: str, done: int, total: int) -> None:
            if done == 0:
                up.stop()
                up.expire(2)
                up.start()

        result = archive(
            spark,
            "orders",
            tmp_path / "archive",
            namesrv=up.namesrv,
            fail_on_data_loss=False,
            progress=expire,
        )
    (gap,) = result.gaps
    assert gap.start == 0
    assert 0 < gap.end < 400
    assert result.archived == result.total == 400 - gap.end
    with pytest.raises(DataLost, match=rf"messages 0 to {gap.end - 1} of queue 0 .*=False"):
        read_archive(spark, tmp_path / "archive")
    with pytest.raises(DataLost, match=f"messages 0 to {gap.end - 1} of queue 0"):
        replay(spark, "again", archive=tmp_path / "archive", namesrv="127.0.0.1:1", dry_run=True)
    result_of_rest = replay(
        spark,
        "again",
        archive=tmp_path / "archive",
        namesrv="127.0.0.1:1",
        dry_run=True,
        fail_on_data_loss=False,
    )
    assert result_of_rest.matched == 400 - gap.end
    rest = read_archive(spark, tmp_path / "archive", fail_on_data_loss=False)
    rows = rest.select("offset").collect()
    assert sorted(row["offset"] for row in rows) == list(range(gap.end, 400))


def test_a_topic_that_was_made_anew_is_refused_with_a_way_out(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.order(6)
    archive(spark, "orders", tmp_path, namesrv=shop.mq.namesrv)
    shop.mq.admin.delete_topic("orders")
    shop.mq.admin.create_topic("orders", 2)
    with pytest.raises(InvalidArgument, match=r"deleted and created again.*archive it to a new"):
        archive(spark, "orders", tmp_path, namesrv=shop.mq.namesrv)


def test_an_unknown_topic_leaves_no_directory_behind(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    with pytest.raises(PenstockError, match="ordesr"):
        archive(spark, "ordesr", tmp_path / "new", namesrv=shop.mq.namesrv)
    assert not (tmp_path / "new").exists()


def test_an_archive_of_an_empty_topic_is_an_archive(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.mq.admin.create_topic("quiet", queues=2)
    for _ in range(2):
        assert archive(spark, "quiet", tmp_path, namesrv=shop.mq.namesrv).total == 0
    assert read_archive(spark, tmp_path).columns == list(ALL)
    assert read_archive(spark, tmp_path).isEmpty()
    with pytest.raises(PenstockError, match="quiet"):
        archive(spark, "orders", tmp_path, namesrv=shop.mq.namesrv)


def test_a_directory_that_spark_would_take_for_a_pattern_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match=r"has '\[' in its name"):
        archive(spark, "orders", tmp_path / "[orders]", namesrv="127.0.0.1:1")


def test_an_archive_in_another_file_system_works_alike(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    # Hadoop's own view of the local disk stands for any file system that it knows.
    url = f"viewfs://penstock{tmp_path}"
    options = hadoop_configuration(spark)
    options.set(
        "fs.viewfs.mounttable.penstock.link./" + tmp_path.parts[1], f"file:/{tmp_path.parts[1]}"
    )
    keys = shop.order(6)
    assert archive(spark, "orders", f"{url}/a", namesrv=shop.mq.namesrv).archived == len(keys)
    shop.order(3)
    assert archive(spark, "orders", f"{url}/a", namesrv=shop.mq.namesrv).total == 9
    assert bodies(read_archive(spark, f"{url}/a")) == shop.sent
    assert bodies(spark.read.parquet(str(tmp_path / "a"))) == shop.sent


def test_an_archive_and_its_topic_are_one_table_and_one_stream(
    spark: SparkSession, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "bucket" / "archive"
    shop.order(30)
    archive(spark, "orders", where, namesrv=shop.mq.namesrv, rows_per_commit=12)
    shop.order(15)
    options = {"namesrv": shop.mq.namesrv, "topic": "orders", "archive": str(where)}
    reader = spark.read.format("penstock").options(**options)
    with serving_s3(tmp_path, monkeypatch) as storage:
        # With the address of the storage: workers have the environment of the session's start.
        rows = reader.option("archive", storage.url("bucket/archive")).load()
        assert sorted(row["keys"][0] for row in rows.collect()) == sorted(shop.sent)
    assert any(key.endswith(".parquet") for key in storage.read)
    stream = spark.readStream.format("penstock").options(**options).load().select("keys")
    query = (
        stream.writeStream.format("memory")
        .queryName("history")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = sorted(row["keys"][0] for row in spark.table("history").collect())
    assert found == sorted(shop.sent)
    progress = query.lastProgress
    assert progress is not None
    assert "archivedUpTo" in str(progress.sources[0].latestOffset)
    [behind] = offsets_behind_latest(query)
    assert behind["maxOffsetsBehindLatest"] == 0
