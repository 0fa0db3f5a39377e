"""A running stream is seen at its brokers, and the doctor does not miss its members."""

from __future__ import annotations

import asyncio

from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.source.brokers import create, numbered, produce

from penstock import aio, doctor
from penstock.doctor import GroupReport
from penstock.model.names import stream_group
from penstock.spark.source.options import parse_read
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
    assert [finding.cause for finding in examined(mq, "audit").findings] == ["no-members"]


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
