"""Sharing queues: joining and leaving members, lost queues, limits of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.support.loop_clients import Bench, on_bench

from penstock.client.consuming.assignment import Configured
from penstock.client.settings import StartFrom
from penstock.model import MessageQueue, StoredMessage
from penstock.protocol.bodies.clients import ConsumerList
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.remoting.promise import Promise

GROUP = "billing"
RETRY = "%RETRY%billing"
PULL = RequestCode.PULL_MESSAGE
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
FIRST = StartFrom("first")


def ignore(message: StoredMessage) -> None:
    """A handler that is always done."""


def queues(*numbers: int, topic: str = "T", broker: str = "broker-a") -> set[MessageQueue]:
    return {MessageQueue(topic, broker, number) for number in numbers}


class Slow:
    """A handler with a chosen duration and a chosen result."""

    def __init__(self, seconds: float = 5.0, *, fails: bool = False) -> None:
        self.seconds = seconds
        self.fails = fails
        self.started: list[int] = []
        self.ended: list[int] = []

    async def __call__(self, message: StoredMessage) -> None:
        self.started.append(message.queue_offset)
        await asyncio.sleep(self.seconds)
        self.ended.append(message.queue_offset)
        if self.fails:
            raise ValueError("as chosen")


@pytest.mark.spec("S3", "S18")
@on_bench()
async def test_members_share_the_queues_and_take_over_from_who_leaves(bench: Bench) -> None:
    one = await bench.consumer(ignore, name="c1")
    await asyncio.sleep(3)
    assert one.assignment() == queues(0, 1, 2, 3)
    two = await bench.consumer(ignore, name="c2")
    bench.broker.notify_members_changed(GROUP)
    await asyncio.sleep(3)
    assert one.assignment() == queues(0, 1)
    assert two.assignment() == queues(2, 3)
    await one.stop()
    bench.broker.notify_members_changed(GROUP)
    await asyncio.sleep(3)
    assert two.assignment() == queues(0, 1, 2, 3)


@on_bench()
async def test_an_unannounced_change_is_noticed_within_the_period(bench: Bench) -> None:
    one = await bench.consumer(ignore, name="c1")
    await asyncio.sleep(3)
    await bench.consumer(ignore, name="c2")
    await asyncio.sleep(21)
    assert one.assignment() == queues(0, 1)


@pytest.mark.spec("S2", "S3")
@on_bench()
async def test_clustering_gives_each_message_to_one_and_broadcasting_to_all(
    bench: Bench, tmp_path: Path
) -> None:
    seen: list[tuple[str, bytes]] = []

    def recorder(name: str) -> Callable[[StoredMessage], None]:
        return lambda message: seen.append((name, message.body))

    for name in ("c1", "c2"):
        await bench.consumer(recorder(f"cluster {name}"), name=name)
        await bench.consumer(
            recorder(f"all {name}"),
            group="everyone",
            name=name,
            model="broadcasting",
            offsets_dir=tmp_path,
        )
    bench.broker.notify_members_changed(GROUP)
    await asyncio.sleep(25)
    for queue_id in range(4):
        bench.broker.put("T", queue_id, b"%d" % queue_id)
    await asyncio.sleep(2)
    bodies = [b"0", b"1", b"2", b"3"]
    assert sorted(body for name, body in seen if name.startswith("cluster")) == bodies
    assert {name for name, _ in seen if name.startswith("cluster")} == {"cluster c1", "cluster c2"}
    for name in ("all c1", "all c2"):
        assert sorted(body for who, body in seen if who == name) == bodies


@pytest.mark.spec("S21")
@on_bench(brokers=("broker-a", "broker-b"))
async def test_over_time_each_broker_is_asked_for_the_members(bench: Bench) -> None:
    await bench.consumer(ignore)
    await asyncio.sleep(20 * 20)
    for broker in bench.cluster.brokers.values():
        assert len(broker.asked(MEMBERS)) > 2


@pytest.mark.spec("S22")
@on_bench()
async def test_the_order_of_the_member_list_does_not_matter(bench: Bench) -> None:
    def reversed_list(peer: object, request: Command) -> Command:
        members = sorted(bench.broker.members[GROUP], reverse=True)
        return Command(ResponseCode.SUCCESS, body=encode_body(ConsumerList(tuple(members))))

    bench.broker.script[MEMBERS] = reversed_list
    one = await bench.consumer(ignore, name="c1")
    two = await bench.consumer(ignore, name="c2")
    await asyncio.sleep(25)
    assert (one.assignment(), two.assignment()) == (queues(0, 1), queues(2, 3))


@pytest.mark.spec("S26")
@on_bench()
async def test_only_configured_queues_are_pulled(bench: Bench) -> None:
    await bench.consumer(ignore, allocation=Configured(queues(1, 3)))
    await asyncio.sleep(3)
    pulled = {int(p.ext["queueId"]) for p in bench.broker.asked(PULL, topic="T")}
    assert pulled == {1, 3}


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
@on_bench()
async def test_a_users_strategy_that_fails_leaves_the_assignment_alone(
    bench: Bench, error: type[BaseException]
) -> None:
    class Moody:
        name = "MOODY"
        fails = False

        def assign(
            self,
            group: str,
            client_id: str,
            queues: Sequence[MessageQueue],
            members: Sequence[str],
        ) -> Sequence[MessageQueue]:
            if self.fails:
                raise error("not today")
            return queues[:2]

    moody = Moody()
    consumer = await bench.consumer(ignore, allocation=moody)
    await asyncio.sleep(3)
    assert consumer.assignment() == queues(0, 1)
    moody.fails = True
    await asyncio.sleep(25)
    assert consumer.assignment() == queues(0, 1)


@pytest.mark.spec("S29", "S79", "S89")
@pytest.mark.parametrize("fails", [False, True])
@on_bench()
async def test_results_for_a_lost_queue_count_for_nothing(bench: Bench, fails: bool) -> None:
    slow = Slow(10.0, fails=fails)
    bench.broker.put("T", 3, b"0", b"1")
    one = await bench.consumer(slow, name="c1", start_from=FIRST)
    await asyncio.sleep(2)
    assert slow.started == [0, 1]
    await bench.consumer(ignore, name="c2", start=False)
    bench.broker.members[GROUP]["127.0.0.1@c2"] = bench.broker.peers[0]
    bench.broker.notify_members_changed(GROUP)
    await asyncio.sleep(2)
    assert one.assignment() == queues(0, 1)
    bench.broker.forget()
    bench.broker.offsets.clear()
    await asyncio.sleep(20)
    assert slow.ended == [0, 1]
    assert not bench.broker.asked(PULL, queueId=3)
    assert not bench.broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert (GROUP, "T", 3) not in bench.broker.offsets
    assert MessageQueue("T", "broker-a", 3) not in one.state.offsets.snapshot()
    assert one.state.statistics.results_ignored == 2
    # The next owner counts them.
    assert one.state.statistics.totals("T") == (0, 0)


@pytest.mark.spec("S69")
@on_bench(topics={"T": 2})
async def test_messages_of_a_lost_queue_that_still_wait_are_not_handled(bench: Bench) -> None:
    slow = Slow(5.0)
    bench.broker.put("T", 1, *[b"x"] * 10)
    await bench.consumer(slow, name="c1", threads=2, start_from=FIRST)
    await asyncio.sleep(2)
    assert slow.started == [0, 1]
    bench.broker.members[GROUP]["127.0.0.1@c2"] = bench.broker.peers[0]
    bench.broker.notify_members_changed(GROUP)
    await asyncio.sleep(30)
    assert slow.started == [0, 1]


@pytest.mark.spec("S29")
@on_bench()
async def test_finished_messages_are_committed_when_their_queue_is_given_up(bench: Bench) -> None:
    bench.broker.put("T", 3, b"0", b"1", b"2")
    await bench.consumer(ignore, name="c1", start_from=FIRST)
    await asyncio.sleep(2)
    bench.broker.members[GROUP]["127.0.0.1@c2"] = bench.broker.peers[0]
    bench.broker.notify_members_changed(GROUP)
    await asyncio.sleep(2)
    commits = bench.broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET, topic="T", queueId=3)
    # Not one-way: the next owner must find it there.
    assert [(c.ext["commitOffset"], c.is_oneway) for c in commits] == [("3", False)]


@pytest.mark.spec("S42", "S43")
@on_bench()
async def test_limits_of_a_topic_are_divided_by_all_held_queues(bench: Bench) -> None:
    bench.cluster.add_topic(RETRY, 1)
    one = await bench.consumer(ignore, name="c1", topic_limit=100, topic_limit_mib=50)
    await asyncio.sleep(3)
    assert len(one.state.queues) == 5
    assert (one.state.limits.count, one.state.limits.size_mib) == (20, 10)
    await bench.consumer(ignore, name="c2", topic_limit=100)
    bench.broker.notify_members_changed(GROUP)
    await asyncio.sleep(3)
    assert len(one.state.queues) == 3
    assert one.state.limits.count == 33


@pytest.mark.spec("S128")
@on_bench(brokers=("broker-a", "broker-b"), topics={"T": 2})
async def test_queues_of_one_broker_do_not_wait_for_another_that_answers_nothing(
    bench: Bench,
) -> None:
    changes: list[frozenset[MessageQueue]] = []
    other = bench.cluster.broker("broker-b")
    other.script[RequestCode.QUERY_CONSUMER_OFFSET] = lambda peer, request: Promise()
    consumer = await bench.consumer(
        ignore, topic_limit=100, on_change=lambda topic, held: changes.append(held)
    )
    await asyncio.sleep(7)
    near, far = queues(0, 1), queues(0, 1, broker="broker-b")
    assert consumer.assignment() == near
    # Limits are shared and listeners called, though two queues are missing.
    assert changes == [near]
    assert consumer.state.limits.count == 50
    del other.script[RequestCode.QUERY_CONSUMER_OFFSET]
    await asyncio.sleep(8)
    assert consumer.assignment() == near | far
    assert changes == [near, near | far]
    assert consumer.state.limits.count == 25


@on_bench()
async def test_a_changed_assignment_is_sent_with_a_newer_subscription(bench: Bench) -> None:
    changes: list[tuple[str, int]] = []
    await bench.consumer(
        ignore, name="c1", on_change=lambda topic, held: changes.append((topic, len(held)))
    )
    await asyncio.sleep(3)
    versions = [
        subscription.sub_version
        for heartbeat in bench.broker.heartbeats
        for consumer in heartbeat.consumer_data_set
        for subscription in consumer.subscription_data_set
        if subscription.topic == "T"
    ]
    assert versions == sorted(versions)
    assert versions[-1] > versions[0]
    assert changes == [("T", 4)]
    # A pull never names a version that its broker has not heard of.
    for pull in bench.broker.asked(PULL, topic="T"):
        assert int(pull.ext["subVersion"]) <= versions[-1]


@on_bench()
async def test_a_member_the_broker_does_not_know_keeps_its_queues_for_a_round(
    bench: Bench,
) -> None:
    consumer = await bench.consumer(ignore)
    await asyncio.sleep(3)
    known = bench.broker.members[GROUP]
    known["127.0.0.1@other"] = known.pop("127.0.0.1@c1")
    bench.broker.forget()
    bench.broker.notify_members_changed(GROUP)
    await asyncio.sleep(0.5)
    assert consumer.assignment() == queues(0, 1, 2, 3)
    assert bench.broker.asked(RequestCode.HEART_BEAT)
    await asyncio.sleep(3)
    # Known again by its heartbeat, it shares with the other one.
    assert consumer.assignment() == queues(0, 1)


@on_bench()
async def test_a_member_that_stays_unknown_gives_its_queues_up(bench: Bench) -> None:
    consumer = await bench.consumer(ignore)
    await asyncio.sleep(3)
    bench.broker.script[MEMBERS] = lambda peer, request: Command(
        ResponseCode.SUCCESS, body=encode_body(ConsumerList(("127.0.0.1@other",)))
    )
    bench.broker.notify_members_changed(GROUP)
    await asyncio.sleep(5)
    assert consumer.assignment() == set()


@on_bench()
async def test_an_unknown_member_list_changes_nothing(bench: Bench) -> None:
    consumer = await bench.consumer(ignore)
    await asyncio.sleep(3)
    bench.broker.script[MEMBERS] = lambda peer, request: Command(
        ResponseCode.SYSTEM_ERROR, remark="who?"
    )
    await asyncio.sleep(30)
    assert consumer.assignment() == queues(0, 1, 2, 3)


@on_bench()
async def test_an_unsubscribed_topic_is_committed_before_it_is_given_up(bench: Bench) -> None:
    bench.broker.put("U", 0, b"x", b"y")
    consumer = await bench.consumer({"T": ignore, "U": ignore}, start_from=FIRST)
    await asyncio.sleep(2)
    consumer.unsubscribe("U")
    await asyncio.sleep(3)
    assert consumer.assignment() == queues(0, 1, 2, 3)
    assert bench.broker.offsets[GROUP, "U", 0] == 2


@on_bench()
async def test_a_topic_subscribed_later_is_consumed_without_a_restart(bench: Bench) -> None:
    seen: list[bytes] = []
    bench.broker.put("U", 0, b"x")
    consumer = await bench.consumer({"T": ignore}, start_from=FIRST)
    await asyncio.sleep(2)
    consumer.subscribe("U", lambda message: seen.append(message.body))
    await asyncio.sleep(3)
    assert seen == [b"x"]


@on_bench()
async def test_a_queue_not_pulled_for_two_minutes_is_taken_anew(bench: Bench) -> None:
    consumer = await bench.consumer(ignore)
    await asyncio.sleep(3)
    queue = MessageQueue("T", "broker-a", 0)
    lost = consumer.state.queues[queue]
    # What a lost pull loop looks like from outside.
    lost.last_pull_at -= 1000
    bench.broker.notify_members_changed(GROUP)
    await asyncio.sleep(3)
    assert lost.is_dropped
    assert consumer.state.queues[queue] is not lost
    assert consumer.assignment() == queues(0, 1, 2, 3)
