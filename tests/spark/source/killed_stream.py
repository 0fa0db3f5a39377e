"""A stream to files that hangs in the middle of its second batch, to be killed there."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from penstock.spark import session


def main(namesrv: str, output: str, checkpoint: str, marker: str) -> None:
    options = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    spark = session("killed", master="local[2,4]", config=options)
    df = (
        spark.readStream.format("penstock")
        .options(
            namesrv=namesrv,
            topic="orders",
            group="audit",
            startingOffsets="earliest",
            maxOffsetsPerTrigger="100",
        )
        .load()
        .select("body")
    )

    def hang(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            if context.getLocalProperty("streaming.sql.batchId") == "1":
                Path(marker).touch()
                time.sleep(3600)
            yield batch

    query = (
        df.mapInArrow(hang, df.schema)
        .writeStream.format("parquet")
        .option("path", output)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
