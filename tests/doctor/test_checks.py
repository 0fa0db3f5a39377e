"""Single checks on facts made by hand: what is close to a finding, and is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.doctor.patients import GROUP, TOPIC, queue

from penstock.doctor.checks import consuming, groups, offsets, servers
from penstock.doctor.checks.thresholds import Thresholds
from penstock.doctor.facts import (
    BrokerFacts,
    ClusterFacts,
    GroupFacts,
    HeldQueue,
    MemberFacts,
    NameserverFacts,
    QueueFacts,
    TopicFacts,
)
from penstock.model import TopicRoute
from penstock.model.route import BrokerRoute, QueueRoute
from penstock.protocol.bodies.groups import SubscriptionGroupConfig

LIMITS = Thresholds()
NOW = 1_800_000_000_000
HELD = HeldQueue(
    cached=0,
    cached_mib=0,
    cached_span=0,
    taken=0,
    is_locked=True,
    last_lock_ms=NOW,
    last_pull_ms=NOW - 600_000,
    last_consume_ms=NOW - 600_000,
)
BROKER = BrokerFacts("broker-a", 0, "127.0.0.1:10911", clock_ahead_ms=0)
ROUTE = TopicRoute(
    (QueueRoute("broker-a", 2, 2),),
    (BrokerRoute("broker-a", "DefaultCluster", {0: "127.0.0.1:10911"}),),
)
WAITING = QueueFacts(queue(0), 0, 10, 4, last_stored_ms=NOW - 600_000)


def cluster(broker: BrokerFacts = BROKER) -> ClusterFacts:
    return ClusterFacts((NameserverFacts("127.0.0.1:9876"),), (broker,))


def member(**changes: Any) -> MemberFacts:
    whole = MemberFacts(
        "127.0.0.1@1",
        "127.0.0.1:5",
        "PYTHON",
        ("broker-a",),
        queues={queue(0): HELD},
        is_orderly=True,
        started_ms=NOW - 600_000,
        asked_ms=NOW,
        is_paused=False,
    )
    return replace(whole, **changes)


def group(found: QueueFacts = WAITING, **changes: Any) -> GroupFacts:
    whole = GroupFacts(
        GROUP,
        NOW,
        cluster(),
        configs={"broker-a": SubscriptionGroupConfig(GROUP)},
        members=(member(),),
        topics=(TopicFacts(TOPIC, True, {"127.0.0.1:9876": ROUTE}, queues=(found,)),),
    )
    return replace(whole, **changes)


@pytest.mark.parametrize("is_young", [True, False])
def test_a_young_group_is_not_accused_of_having_no_offset(is_young: bool) -> None:
    started = NOW - LIMITS.settle_ms + (1 if is_young else -1)
    facts = group(replace(WAITING, committed=None), members=(member(started_ms=started),))
    assert bool(list(offsets.never_committed(facts, LIMITS))) is not is_young


@pytest.mark.parametrize("is_young", [True, False])
def test_a_young_member_is_not_accused_of_not_pulling(is_young: bool) -> None:
    started = NOW - LIMITS.settle_ms + (1 if is_young else 0)
    facts = group(members=(member(started_ms=started),))
    assert bool(list(consuming.not_pulled(facts, LIMITS))) is not is_young


@pytest.mark.parametrize("slow_ms", [0, 8000])
def test_a_slow_answer_is_not_taken_for_a_wrong_clock(slow_ms: int) -> None:
    # The broker's clock was read at some moment of the request, so it is known that well only.
    broker = replace(BROKER, clock_ahead_ms=LIMITS.skew_ms + 4000, clock_precision_ms=slow_ms // 2)
    assert bool(list(servers.clock_skew(cluster(broker), LIMITS))) is not bool(slow_ms)
    one = member(clock_ms=NOW + LIMITS.skew_ms + 4000)
    right = replace(BROKER, clock_precision_ms=slow_ms // 2)
    facts = group(members=(one,), cluster=cluster(right))
    assert bool(list(groups.member_clock_skew(facts, LIMITS))) is not bool(slow_ms)


@pytest.mark.parametrize("is_locked", [True, False])
def test_a_queue_that_waits_for_its_lock_is_not_called_not_pulled(is_locked: bool) -> None:
    held = replace(HELD, is_locked=is_locked)
    facts = group(members=(member(queues={queue(0): held}),))
    assert bool(list(consuming.not_pulled(facts, LIMITS))) is is_locked
    # It is another finding, and has another way out.
    assert bool(list(consuming.lock_held_elsewhere(facts, LIMITS))) is not is_locked


def test_offsets_past_the_end_are_explained_by_a_topic_made_anew() -> None:
    beyond = replace(WAITING, committed=50)
    [found] = offsets.beyond_last(group(beyond), LIMITS)
    assert "store replaced" in found.what
    assert list(offsets.topic_remade(group(beyond), LIMITS)) == []
    remade = group(replace(beyond, is_remade=True))
    [found] = offsets.topic_remade(remade, LIMITS)
    assert found.cause == "topic-remade"
    assert "deleted and created again" in found.what
    assert "10 messages are not delivered" in found.what
    assert list(offsets.beyond_last(remade, LIMITS)) == []
    # A group that consumes the new topic has nothing to do with the old one.
    assert list(offsets.topic_remade(group(replace(WAITING, is_remade=True)), LIMITS)) == []


def test_a_running_stream_takes_the_place_of_members() -> None:
    alone = group(members=())
    assert [f.cause for f in groups.no_members(alone, LIMITS)] == ["no-members"]
    assert list(groups.no_members(replace(alone, streams=("10.0.0.1@spark",)), LIMITS)) == []
