"""A group of Java's consumers: what they do not tell is said to be not known, and not guessed.

The answers are those of real Java consumers, recorded with RocketMQ 4.9.7 and 5.5.0.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
from collections.abc import Callable

import pytest
from tests.doctor.patients import GROUP, TOPIC, causes, connect, examine, send, shop
from tests.support.paths import VECTORS
from tests.support.stage import in_virtual_time

from penstock.doctor import GroupReport, Severity
from penstock.model import MessageQueue
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.running import ConsumerRunningInfo
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command

CLIENT = "127.0.0.1@push1"


@functools.cache
def recorded(release: str) -> ConsumerRunningInfo:
    """What a Java consumer of that release answered."""
    with gzip.open(VECTORS / f"frames-{release}.jsonl.gz", "rt") as lines:
        for line in lines:
            frame = json.loads(line)
            if frame["step"] == "admin.running_info" and frame["flag"] == 1:
                data = bytes.fromhex(frame["frame_hex"])
                header = int.from_bytes(data[4:8], "big") & 0xFF_FFFF
                return decode_body(ConsumerRunningInfo, data[8 + header :])
    raise AssertionError(f"no running info among the frames of {release}")


def as_here(
    info: ConsumerRunningInfo, now_ms: int, *, idle_ms: int = 1000, **changes: int
) -> ConsumerRunningInfo:
    """The same consumer, with the topic and the time of the test's cluster."""
    table = {
        MessageQueue(TOPIC, "broker-a", number): dataclasses.replace(
            held,
            last_pull_timestamp=now_ms,
            last_consume_timestamp=now_ms - idle_ms,
            last_lock_timestamp=now_ms,
            **changes,  # type: ignore[arg-type]  # all of them are numbers
        )
        for number, held in enumerate(list(info.mq_table.values())[:2])
    }
    wanted = [
        dataclasses.replace(data, topic=TOPIC)
        for data in info.subscription_set
        if data.sub_string != "*"
    ]
    properties = {**info.properties, "PROP_CONSUMER_START_TIMESTAMP": str(now_ms - 3_600_000)}
    return dataclasses.replace(
        info, properties=properties, mq_table=table, subscription_set=tuple(wanted)
    )


def examined(
    release: str,
    change: Callable[[ConsumerRunningInfo, int], ConsumerRunningInfo],
    tag: str,
    *,
    consumed: bool = True,
) -> GroupReport:
    """A cluster with one such member, looked at."""
    reports: list[GroupReport] = []

    @in_virtual_time
    async def run() -> None:
        async with shop() as mq, await connect(mq) as wire:
            await wire.heartbeat(CLIENT, consumer=GROUP, topics={TOPIC: "TagA || TagB"})
            await send(mq, 4, tag=tag)
            await mq.admin.reset_offsets(GROUP, TOPIC, "last" if consumed else "first")
            await mq.clock.advance("1m")
            await wire.heartbeat(CLIENT, consumer=GROUP, topics={TOPIC: "TagA || TagB"})
            body = encode_body(change(recorded(release), mq.clock.time_ms()))
            wire.serve(RequestCode.GET_CONSUMER_RUNNING_INFO, lambda request: Command(0, body=body))
            reports.append(await examine(mq))

    run()
    return reports[0]


@pytest.mark.parametrize("release", ["4.9.7", "5.5.0"])
def test_a_java_consumer_that_works_has_no_findings_and_some_unknowns(release: str) -> None:
    report = examined(release, as_here, "TagA")
    assert causes(report) == []
    [member] = report.facts.members
    assert (member.count_limit, member.mib_limit, member.span_limit) == (1000, 100, 2000)
    assert member.consume_timeout_seconds == 900.0
    assert member.model == "CLUSTERING"
    assert member.is_orderly is False
    assert any(f"whether member {CLIENT} (JAVA) is paused" in text for text in report.unknown)
    assert any("how long the handlers" in text for text in report.unknown)


def test_its_filter_is_tried_on_recent_messages() -> None:
    report = examined("5.5.0", as_here, "TagC")
    assert causes(report) == ["filter-matches-nothing"]
    assert report.findings[0].evidence["tags"] == {"TagC": 4}


def test_one_that_is_paused_shows_by_what_it_leaves_lying() -> None:
    report = examined("5.5.0", as_here, "TagA", consumed=False)
    assert causes(report) == ["not-pulled"]
    [finding] = report.findings
    assert finding.severity is Severity.CRITICAL
    assert finding.evidence["lag"] == 4
    assert "does not report whether it is" in finding.way_out[0]


def test_messages_that_are_not_finished_for_long_make_it_seem_stuck() -> None:
    def stuck(info: ConsumerRunningInfo, now_ms: int) -> ConsumerRunningInfo:
        return as_here(info, now_ms, idle_ms=300_000, cached_count=3)

    report = examined("5.5.0", stuck, "TagA")
    assert causes(report) == ["stuck-handler"]
    [finding] = report.findings
    assert finding.severity is Severity.WARNING
    assert finding.evidence["idle_seconds"] == 300.0
    assert "finished none for 5 min" in finding.what


@pytest.mark.parametrize(
    ("limit", "changes"),
    [
        ("count", {"cached_count": 1001}),
        ("size", {"cached_count": 5, "cached_mib": 101}),
        ("span", {"cached_count": 5, "cached_min_offset": 10, "cached_max_offset": 2011}),
    ],
)
def test_its_limits_are_compared_with_what_it_holds(limit: str, changes: dict[str, int]) -> None:
    def full(info: ConsumerRunningInfo, now_ms: int) -> ConsumerRunningInfo:
        return as_here(info, now_ms, **changes)

    report = examined("4.9.7", full, "TagA")
    assert set(causes(report)) == {"flow-control"}
    assert report.findings[0].evidence["limit"] == limit
    # How often it waited is unknown.
    assert report.findings[0].evidence["stops"] is None


def test_an_answer_that_makes_no_sense_is_not_known_and_breaks_nothing() -> None:
    def nonsense(info: ConsumerRunningInfo, now_ms: int) -> ConsumerRunningInfo:
        odd = {
            "penstock.longestRunning": "[1",
            "penstock.flowStops": "[]",
            "penstock.stoppedQueues": "7",
            "penstock.refusedLocks": '{"q": 1}',
            "penstock.clockMs": "9" * 40,
            "pullThresholdForQueue": "many",
            "PROP_CONSUMEORDERLY": "perhaps",
        }
        here = as_here(info, now_ms)
        return dataclasses.replace(here, properties={**here.properties, **odd})

    report = examined("5.5.0", nonsense, "TagA")
    [member] = report.facts.members
    assert causes(report) == []
    assert (member.longest, member.flow_stops, member.clock_ms) == (None, None, None)
    assert (member.count_limit, member.is_orderly) == (None, None)
