"""The broker assigns queues: shares, modes, unknown strategies and groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.asking import put_topic
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire, json_body

from penstock.broker.pop.assignment import assigned
from penstock.model import MessageQueue
from penstock.model.queue_shares import average_share, circle_share
from penstock.protocol.bodies.common import RequestMode
from penstock.protocol.bodies.pop import QueryAssignment, QueueAssignments, SetRequestMode
from penstock.protocol.codes import RequestCode

POP, PULL = RequestMode.POP, RequestMode.PULL


async def ask(
    wire: Wire, client: str, topic: str = "T", group: str = "g", strategy: str = "AVG"
) -> list[tuple[str, int, RequestMode]] | None:
    body = QueryAssignment(topic, group, client, strategy)
    answer = await wire.ok(RequestCode.QUERY_ASSIGNMENT, body=body)
    found = json_body(QueueAssignments, answer).message_queue_assignments
    if found is None:
        return None
    return [(one.message_queue.broker_name, one.message_queue.queue_id, one.mode) for one in found]


@pytest.mark.spec("P74", "P76")
@in_virtual_time
async def test_a_group_that_pops_gets_one_entry_a_broker(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        await stage.name_server()
        first, second = await stage.broker("broker-a"), await stage.broker("broker-b")
        wire = await stage.connect(first)
        for broker in (first, second):
            await put_topic(await stage.connect(broker), "T", 4)
        await wire.heartbeat("me@1", consumer="g", topics=["T"])
        assert await ask(wire, "me@1") == [
            (name, queue_id, PULL) for name in ("broker-a", "broker-b") for queue_id in range(4)
        ]
        await wire.ok(RequestCode.SET_MESSAGE_REQUEST_MODE, body=SetRequestMode("T", "g", POP, 0))
        assert await ask(wire, "me@1") == [("broker-a", -1, POP), ("broker-b", -1, POP)]
        retry = await ask(wire, "me@1", "%RETRY%g")
        assert retry is not None
        assert {mode for _, _, mode in retry} == {PULL}
        assert await ask(wire, "me@1", strategy="ROOM") is None
        assert await ask(wire, "me@1", group="unknown") is None
        assert await ask(wire, "me@1", topic="unknown") is None
        assert await ask(wire, "stranger") == []


@pytest.mark.spec("P75")
def test_members_share_queues_with_their_neighbours() -> None:
    queues = [MessageQueue("T", "a", i) for i in range(8)]
    members = [f"m{i}" for i in range(4)]
    shares = [assigned(average_share, one, members, queues, POP, 1) for one in members]
    assert [len(share) for share in shares] == [4, 4, 4, 4]
    held = [entry.message_queue for share in shares for entry in share]
    assert all(held.count(queue) == 2 for queue in queues)
    few = [assigned(circle_share, one, members, queues[:3], POP, 1) for one in members]
    assert [[entry.message_queue.queue_id for entry in share] for share in few] == [
        [0], [1], [2], [0],
    ]  # fmt: skip
    alone = assigned(average_share, "m0", ["m0"], queues, POP, 1)
    assert [entry.message_queue.queue_id for entry in alone] == [-1]
