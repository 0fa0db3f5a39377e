"""The console's page of streams and archives."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.console.browsing import browsing
from tests.spark.source.brokers import create, numbered, produce

from penstock.model.names import stream_group
from penstock.spark.pipelines.archive.archive import archive
from penstock.spark.pipelines.archive.directory import load_existing
from penstock.spark.pipelines.files import open_files
from penstock.spark.source.options import parse_read
from penstock.spark.source.readers import StreamReader
from penstock.testing.embedded import Embedded
from penstock.testing.eventually import eventually


@pytest.mark.spec("C20")
def test_streams_and_archives_are_shown_with_what_they_lack(
    mq: Embedded, spark: SparkSession, tmp_path: Path
) -> None:
    create(mq.namesrv, "orders", 2)
    produce(mq.namesrv, numbered("orders", range(10)))
    archive(spark, "orders", tmp_path / "orders", namesrv=mq.namesrv)
    produce(mq.namesrv, numbered("orders", range(10, 14)))
    given = {"namesrv": mq.namesrv, "topic": "orders", "pollTimeoutMs": "0", "group": "audit"}
    reader = StreamReader(parse_read({**given, "startingOffsets": "earliest"}), ("body",), 2)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.latestOffset(end, ReadAllAvailable())
    asyncio.run(eventually(lambda: mq.admin.producers(stream_group("audit"))))
    state = load_existing(open_files(tmp_path / "orders"))

    async def look() -> None:
        shown = (str(tmp_path / "orders"), str(tmp_path / "nothing"))
        async with browsing(mq.namesrv, archives=shown) as browser:
            answer = (await browser.client.get("/api/v1/c/local/spark")).json()
            [stream] = answer["streams"]
            assert (stream["group"], stream["streams"]) == ("audit", 1)
            held, missing = answer["archives"]
            assert held["topic"] == state.topic
            assert held["rows"] == state.rows == 10
            assert held["behind"] == 14 - sum(state.next_offsets.values()) == 4
            assert held["files"] == len(state.files)
            assert held["bytes"] == sum(file.bytes for file in state.files)
            assert "there is no archive" in missing["problem"]
            text = await browser.read("spark")
            assert re.search(r"audit .*1 ", text)
            assert f"{tmp_path / 'orders'} orders 10 4 1 " in text, text
            assert f"penstock spark archive orders {tmp_path / 'orders'}" in text
            assert "there is no archive" in text
            group = await browser.read("groups", "audit")
            assert "stream" in group

    try:
        asyncio.run(look())
    finally:
        reader.stop()
