"""Locks of queues for orderly consumption, over a socket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.asking import ext, lock, unlock
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire, body_of, json_body

from penstock.broker import Broker
from penstock.model import MessageQueue
from penstock.protocol.bodies.clients import LockBatch, LockBatchReply
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.extensions import LOCK_LEASE, LOCK_OWNERS

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(4)]


@pytest.mark.spec("S147")
async def test_the_answer_is_exactly_what_the_member_holds(wire: Wire) -> None:
    assert await lock(wire, "g", "A", QUEUES[:3]) == set(QUEUES[:3])
    # Another member gets what is free, and nothing of the first one's.
    assert await lock(wire, "g", "B", QUEUES) == {QUEUES[3]}
    # The first renews, and is not given the other's.
    assert await lock(wire, "g", "A", QUEUES) == set(QUEUES[:3])
    assert await lock(wire, "g", "A", []) == set()


@pytest.mark.spec("S147")
async def test_a_client_cannot_release_the_lock_of_another(wire: Wire) -> None:
    await lock(wire, "g", "A", QUEUES[:2])
    await unlock(wire, "g", "B", QUEUES)
    assert await lock(wire, "g", "B", QUEUES[:2]) == set()
    await unlock(wire, "g", "A", QUEUES[:1])
    assert await lock(wire, "g", "B", QUEUES[:2]) == {QUEUES[0]}
    await unlock(wire, "unknown", "A", QUEUES)


@pytest.mark.spec("S127")
async def test_groups_lock_the_same_queue_independently(wire: Wire) -> None:
    assert await lock(wire, "g1", "A", QUEUES) == set(QUEUES)
    assert await lock(wire, "g2", "B", QUEUES) == set(QUEUES)
    await unlock(wire, "g1", "A", QUEUES)
    assert await lock(wire, "g2", "A", QUEUES) == set()


@pytest.mark.spec("S146")
@in_virtual_time
async def test_a_lock_that_is_not_renewed_can_be_taken_after_a_minute(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await lock(wire, "g", "A", QUEUES[:2])
        await stage.clock.sleep(59)
        assert await lock(wire, "g", "B", QUEUES[:2]) == set()
        assert await lock(wire, "g", "A", QUEUES[:1]) == {QUEUES[0]}
        await stage.clock.sleep(2)
        # The one that was renewed is still held.
        assert await lock(wire, "g", "B", QUEUES[:2]) == {QUEUES[1]}
        assert await lock(wire, "g", "A", QUEUES[:2]) == {QUEUES[0]}


@in_virtual_time
async def test_locks_that_are_not_renewed_are_removed(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        for number in range(50):
            # The topic does not exist; RocketMQ grants its locks all the same.
            queues = [MessageQueue(f"Unknown-{number}", "broker-a", 0), QUEUES[0]]
            assert await lock(wire, f"g{number}", "A", queues) == set(queues)
            assert await lock(wire, f"h{number}", "A", []) == set()
        assert len(broker.state.locks) == 100
        await stage.clock.sleep(50)
        await lock(wire, "g0", "A", QUEUES[:1])
        await stage.clock.sleep(25)
        assert len(broker.state.locks) == 1
        assert await lock(wire, "g0", "B", QUEUES[:1]) == set()


@pytest.mark.spec("S147")
async def test_a_lock_belongs_to_the_client_and_not_to_its_connection(
    wire: Wire, broker: Broker
) -> None:
    await lock(wire, "g", "A", QUEUES)
    await wire.close()
    async with await Wire.connect(broker.port) as again:
        assert await lock(again, "g", "B", QUEUES) == set()
        assert await lock(again, "g", "A", QUEUES) == set(QUEUES)


@in_virtual_time
async def test_the_locks_of_a_dead_member_of_ours_are_free_within_its_lease(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        dead, java, heir = [await stage.connect(broker) for _ in range(3)]
        for client, wire in (("A", dead), ("J", java), ("B", heir)):
            await wire.heartbeat(client, consumer="g", topics=["T"])
        ask = LockBatch("g", "A", tuple(QUEUES[:2]))
        answer = await dead.ok(RequestCode.LOCK_BATCH_MQ, {LOCK_LEASE: "6000"}, body=ask)
        assert ext(answer) == {LOCK_LEASE: "6000"}
        assert await lock(java, "g", "J", QUEUES[2:]) == set(QUEUES[2:])
        heir.requests.clear()
        await dead.close()
        await java.close()
        await stage.clock.sleep(5.9)
        assert await lock(heir, "g", "B", QUEUES) == set()
        noticed = len(heir.requests)
        await stage.clock.sleep(0.2)
        # A second notice of the change, because asking at the first one was in vain.
        assert [c.code for c in heir.requests[noticed:]] == [
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        ]
        # The member without a lease keeps RocketMQ's minute.
        assert await lock(heir, "g", "B", QUEUES) == set(QUEUES[:2])
        await stage.clock.sleep(60)
        assert await lock(heir, "g", "B", QUEUES) == set(QUEUES)


@in_virtual_time
async def test_a_member_that_connects_again_within_its_lease_keeps_its_locks(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        first = await stage.connect(broker)
        ask = LockBatch("g", "A", tuple(QUEUES))
        bound = {LOCK_LEASE: "6000"}
        await first.ok(RequestCode.LOCK_BATCH_MQ, bound, body=ask)
        await first.close()
        second = await stage.connect(broker)
        await stage.clock.sleep(5)
        await second.ok(RequestCode.LOCK_BATCH_MQ, bound, body=ask)
        # Open, and not renewed: a frozen member, which gets RocketMQ's minute.
        await stage.clock.sleep(55)
        other = await stage.connect(broker)
        assert await lock(other, "g", "B", QUEUES) == set()


@pytest.mark.parametrize(("asked", "applied"), [("1", "1000"), ("999999", "60000")])
async def test_a_lease_is_kept_within_its_range(wire: Wire, asked: str, applied: str) -> None:
    ask = LockBatch("g", "A", tuple(QUEUES))
    answer = await wire.ok(RequestCode.LOCK_BATCH_MQ, {LOCK_LEASE: asked}, body=ask)
    assert ext(answer) == {LOCK_LEASE: applied}


@pytest.mark.parametrize("text", ["-1", "six", "9" * 100, "\u0663"])
async def test_a_lease_that_is_no_number_is_refused(wire: Wire, text: str) -> None:
    ask = LockBatch("g", "A", tuple(QUEUES))
    answer = await wire.request(RequestCode.LOCK_BATCH_MQ, {LOCK_LEASE: text}, body=ask)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert LOCK_LEASE in (answer.remark or "")
    assert await lock(wire, "g", "B", QUEUES) == set(QUEUES)


async def test_an_answer_without_locks_still_has_the_list(wire: Wire) -> None:
    await lock(wire, "g", "A", QUEUES)
    answer = await wire.ok(RequestCode.LOCK_BATCH_MQ, body=LockBatch("g", "B", tuple(QUEUES)))
    assert body_of(answer) == b'{"lockOKMQSet":[]}'
    assert json_body(LockBatchReply, answer).locked == ()


@pytest.mark.spec("S147")
async def test_the_owners_of_refused_queues_are_named_beside_what_is_granted(wire: Wire) -> None:
    await lock(wire, "g", "A", QUEUES[:1])
    await lock(wire, "g", "B", QUEUES[1:2])
    ask = LockBatch("g", "C", tuple(QUEUES))
    answer = await wire.ok(RequestCode.LOCK_BATCH_MQ, body=ask)
    assert set(json_body(LockBatchReply, answer).locked) == set(QUEUES[2:])
    assert json.loads(ext(answer)[LOCK_OWNERS]) == {str(QUEUES[0]): "A", str(QUEUES[1]): "B"}
    answer = await wire.ok(RequestCode.LOCK_BATCH_MQ, body=LockBatch("g", "C", tuple(QUEUES[2:])))
    assert answer.ext is None, "nothing is refused"


async def test_unlocking_may_be_one_way(wire: Wire) -> None:
    await lock(wire, "g", "A", QUEUES)
    wire.oneway(RequestCode.UNLOCK_BATCH_MQ, body=LockBatch("g", "A", tuple(QUEUES)))
    assert await lock(wire, "g", "B", QUEUES) == set(QUEUES)


async def test_5x_fields_and_strange_order_are_understood(wire: Wire) -> None:
    body = (
        b'{"onlyThisBroker":false,"mqSet":[{"topic":"T","queueId":"2","brokerName":"broker-a"}],'
        b'"clientId":"A","consumerGroup":"g"}\n'
    )
    answer = await wire.ok(RequestCode.LOCK_BATCH_MQ, body=body)
    assert json_body(LockBatchReply, answer).locked == (QUEUES[2],)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b'{"mqSet":7}'])
async def test_a_body_that_is_none_is_refused_and_costs_nothing(wire: Wire, body: bytes) -> None:
    answer = await wire.request(RequestCode.LOCK_BATCH_MQ, body=body)
    assert answer.code != ResponseCode.SUCCESS
    assert await lock(wire, "g", "A", QUEUES) == set(QUEUES)
