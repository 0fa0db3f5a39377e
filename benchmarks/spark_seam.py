"""How fast Spark scans an archive and what comes after it as one table.

Half of a store's messages are archived as Parquet. Three scans alternate: the archive's half, the
store's half, and both through ``option("archive", ...)``. Rates are rows per second of wall-clock
time on two cores, with everything in the page cache; the ratio compares the scan of both with the
slower side of the same round.

    python -m benchmarks.spark_seam [--full | --tiny]
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.effort import FULL, QUICK, Effort, Figures, at_least, median, ratio
from benchmarks.script import main
from benchmarks.spark_path import BODY_BYTES, QUEUES, TOPIC, fill, scan
from pyspark.sql import DataFrame, SparkSession

import penstock.arrow
from penstock.model import MessageQueue
from penstock.spark.pipelines.archive.directory import opened
from penstock.spark.pipelines.archive.state import STAGING, DataFile
from penstock.spark.pipelines.files import open_files
from penstock.spark.pipelines.spans import Span
from penstock.spark.session_setup.tuned_session import session

MESSAGES: Final = 2_000_000
COLUMNS: Final = ("offset", "store_timestamp", "body")
TARGET: Final = 0.9
FILES: Final = 4
WARM_UPS: Final = 2


def run(effort: Effort = QUICK) -> Figures:
    """Rows per second of each side and of both."""
    spark = session("penstock-bench", master="local[2,2]", config={"spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("ERROR")
    half = effort.scaled(MESSAGES if effort is FULL else MESSAGES // 2) // 2 // QUEUES * QUEUES
    rates: dict[str, list[float]] = {"archive": [], "store": [], "both": []}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        store, archive = Path(directory) / "broker-a", Path(directory) / "archive"
        fill(store, 2 * half)
        write_archive(store, archive, half // QUEUES)
        seam = json.dumps({TOPIC: {"broker-a": {str(q): half // QUEUES for q in range(QUEUES)}}})
        frames = {
            "archive": read(spark, store, archive=str(archive), endingOffsets=seam),
            "store": read(spark, store, startingOffsets=seam),
            "both": read(spark, store, archive=str(archive)),
        }
        counts = {"archive": half, "store": half, "both": 2 * half}
        for name, frame in frames.items():
            assert frame.count() == counts[name], f"rows of {name}"
        for number in range(-min(WARM_UPS, effort.rounds), effort.rounds):
            for name in sorted(frames, reverse=bool(number % 2)):
                seconds = scan(frames[name])
                if number >= 0:
                    rates[name].append(counts[name] / seconds)
    slower = [min(pair) for pair in zip(rates["archive"], rates["store"], strict=True)]
    compared = ratio(rates["both"], slower)
    return {
        "benchmark": "spark_seam",
        "rows": 2 * half,
        "body_bytes": BODY_BYTES,
        "cores": 2,
        **{f"{name}_rows_per_second": median(each) for name, each in rates.items()},
        **compared,
        "targets": [at_least("both sides to the slower one", TARGET, compared["ratio"])],
    }


def write_archive(store: Path, archive: Path, count: int) -> None:
    """The first ``count`` messages of each queue, as ``penstock.spark.archive`` leaves them."""
    for number in range(FILES):
        low, high = count * number // FILES, count * (number + 1) // FILES
        if low == high:
            continue
        queues = [MessageQueue(TOPIC, store.name, queue) for queue in range(QUEUES)]
        rows: pa.Table = penstock.arrow.read(
            store, topic=TOPIC, start=dict.fromkeys(queues, low), end=dict.fromkeys(queues, high)
        ).read_all()
        with opened(open_files(archive), TOPIC) as target:
            staged = f"{STAGING}/{number}.parquet"
            (archive / STAGING).mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, archive / staged, compression="zstd")
            times = rows["store_timestamp"].to_pylist()
            from_ms, to_ms = (int(at.timestamp() * 1000) for at in (min(times), max(times)))
            spans = tuple(Span(store.name, queue, low, high) for queue in range(QUEUES))
            path = f"day=2026-11-16/part-{number}.parquet"
            size = (archive / staged).stat().st_size
            file = DataFile(path, "2026-11-16", rows.num_rows, size, from_ms, to_ms, spans)
            target.commit(target.state.after_chunk(spans, [file], [(staged, path)]))


def read(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    """The store as a table, with an archive before it if one is named."""
    reader = spark.read.format("penstock").option("columns", ",".join(COLUMNS))
    return reader.options(**options).option("topic", TOPIC).load(str(store))


if __name__ == "__main__":
    main(run)
