"""A running stream is seen at its brokers, and the doctor does not miss its members."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.spark.source.brokers import create, numbered, produce

from penstock import aio, doctor
from penstock.cli.main import app
from penstock.doctor import GroupReport
from penstock.errors import InvalidArgument
from penstock.model.names import stream_group
from penstock.spark.source.options import parse_read
from penstock.spark.source.progress_metrics import offsets_behind_latest
from penstock.spark.source.readers import StreamReader
from penstock.testing.embedded import Embedded
from penstock.testing.eventually import eventually


def examined(mq: Embedded, group: str) -> GroupReport:
    async def examine() -> GroupReport:
        async with aio.Admin(namesrv=mq.namesrv) as admin:
            return await doctor.examine_group(admin, group)

    return asyncio.run(examine())


def test_the_doctor_calls_a_running_stream_healthy(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 2)
    produce(mq.namesrv, numbered("orders", range(10)))
    given = {"namesrv": mq.namesrv, "topic": "orders", "pollTimeoutMs": "0", "group": "audit"}
    reader = StreamReader(parse_read({**given, "startingOffsets": "earliest"}), ("body",), 2)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.latestOffset(end, ReadAllAvailable())
    asyncio.run(eventually(lambda: mq.admin.producers(stream_group("audit"))))
    report = examined(mq, "audit")
    assert report.is_healthy, report.findings
    assert len(report.facts.streams) == 1
    assert report.as_dict()["streams"] == 1
    reader.stop()
    asyncio.run(eventually(lambda: not mq.admin.producers(stream_group("audit"))))
    # It may be a job that runs every night: explained, and not called sick.
    between_runs = examined(mq, "audit")
    assert [finding.cause for finding in between_runs.findings] == ["no-members"]
    assert "never had members" in between_runs.findings[0].what
    assert between_runs.is_healthy


def test_jobs_without_a_group_are_no_group_of_the_users(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 2)
    reader = StreamReader(parse_read({"namesrv": mq.namesrv, "topic": "orders"}), ("body",), 2)
    produce(mq.namesrv, numbered("orders", range(4)))
    start = reader.initialOffset()
    for part in reader.partitions(start, reader.latestOffset(start, ReadAllAvailable())):
        list(reader.read(part))
    reader.latestOffset(start, ReadAllAvailable())
    reader.stop()
    assert mq.admin.groups() == []

    async def examine() -> doctor.ClusterReport:
        async with aio.Admin(namesrv=mq.namesrv) as admin:
            return await doctor.examine_cluster(admin)

    assert asyncio.run(examine()).is_healthy


def test_the_status_of_a_stream_is_shown_by_the_command_line(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 2)
    produce(mq.namesrv, numbered("orders", range(10)))

    def status(*words: str) -> list[dict[str, Any]]:
        arguments = ["spark", "status", *words, "--over", "0.1s", "--json"]
        done = CliRunner().invoke(app, [*arguments, "--namesrv", mq.namesrv])
        assert done.exit_code == 0, done.output
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    assert status() == []
    given = {"namesrv": mq.namesrv, "topic": "orders", "pollTimeoutMs": "0", "group": "audit"}
    reader = StreamReader(parse_read({**given, "startingOffsets": "earliest"}), ("body",), 2)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(6))
    reader.latestOffset(end, ReadAllAvailable())
    asyncio.run(eventually(lambda: mq.admin.streams("audit")))
    [row] = status()
    assert row == status("audit")[0]
    assert (row["group"], row["topics"], row["streams"], row["lag"]) == ("audit", ["orders"], 1, 4)
    assert row["rate"] == 0
    assert row["behind_since_ms"] <= row["last_ms"]
    # A part of the stream's progress as Spark reports it.
    source = {"endOffset": json.dumps(end), "latestOffset": json.dumps(reader.reportLatestOffset())}
    assert offsets_behind_latest({"sources": [source, {"endOffset": "7"}]}) == [
        {
            "minOffsetsBehindLatest": 2.0,
            "maxOffsetsBehindLatest": 2.0,
            "avgOffsetsBehindLatest": 2.0,
            "sumOffsetsBehindLatest": 4.0,
        }
    ]
    reader.stop()
    asyncio.run(eventually(lambda: not mq.admin.streams("audit")))
    assert status() == []
    assert [row["streams"] for row in status("audit")] == [0]


def test_what_is_no_progress_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="progress of type int"):
        offsets_behind_latest(7)  # type: ignore[arg-type]
