"""The fast path of polls beside the plain one, which is its specification."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.lab import (
    GROUP,
    Lab,
    LabClient,
    bodies,
    handle_of,
    poll_request,
    responses_of,
)
from tests.support.stage import in_virtual_time

from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import Code

_REVIVE_QUEUE = 3
TAKEN: dict[str, dict[str, Any]] = {
    "all": {},
    "renewed": {"renew": True},
    "few": {"count": 2},
    "more than are delivered": {"count": 100},
    "a tag": {"tags": "even"},
    "two tags": {"tags": "even || odd"},
    "SQL": {"sql": "a = '1'"},
    "another time": {"invisible": 100},
    "a queue, which limits nothing": {"queue_id": 0},
    "an attempt": {"attempt": "x"},
}
LEFT: dict[str, dict[str, Any]] = {
    "an orderly group": {"group": "orderly"},
    "an unknown topic": {"topic": "unknown"},
    "a topic of the system": {"topic": "TBW102"},
    "a group that cannot be": {"group": "%ä"},
    "too short": {"invisible": 1},
    "SQL without a text": {"sql": " "},
    "tags that are none": {"tags": "||"},
}


async def prepared(lab: Lab, messages: int = 40) -> LabClient:
    """A client whose connection is open: the fast path opens none."""
    lab.topic(queues=1)
    lab.group("orderly", consume_message_orderly=True)
    client = lab.client()
    for number in range(messages):
        tag = ("even", "odd")[number % 2]
        await client.sent(b"%d" % number, tag=tag, properties={"a": str(number % 3)})
    return client


def without_revive_queue(responses: list[wire.ReceiveMessageResponse]) -> list[Any]:
    """The responses; the queue where a receipt is noted changes from pop to pop."""
    for response in responses:
        if response.HasField("message"):
            items = handle_of(response.message).split(" ")
            items[_REVIVE_QUEUE] = "0"
            response.message.system_properties.receipt_handle = " ".join(items)
    return responses


@pytest.mark.parametrize("name", TAKEN)
@in_virtual_time
async def test_a_poll_that_finds_messages_is_answered_alike(tmp_path: Path, name: str) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab)
        plain = await client.plain_receive(group="first", **TAKEN[name])
        renewed = len(lab.endpoint.parts.renewals)
        found = await client.quick_poll(poll_request(group="second", **TAKEN[name]))
        assert found is not None
        assert found.received is not None
        quick = responses_of(found.received)
        assert len(plain) > 3
        assert without_revive_queue(quick) == without_revive_queue(plain)
        assert found.received.is_renewed is (renewed > 0)
        assert len(lab.endpoint.parts.renewals) == 2 * renewed
        for response in quick[1:-1]:
            answer = await client.ack(handle_of(response.message), group="second")
            assert answer.status.code == Code.OK
        await asyncio.sleep(200)
        left = await client.messages(group="second", **TAKEN[name])
        assert not {one.body for one in left} & {one.message.body for one in quick[1:-1]}


@pytest.mark.parametrize("name", LEFT)
@in_virtual_time
async def test_what_needs_more_is_left_to_the_plain_path(tmp_path: Path, name: str) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab, 1)
        assert await client.quick_poll(poll_request(**LEFT[name])) is None


@in_virtual_time
async def test_clients_and_bytes_that_are_not_known(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab, 1)
        assert await lab.client("another").quick_poll(poll_request()) is None
        polls = lab.endpoint.quick_polls
        for data in (b"", b"\xff\xff"):
            assert not polls.start(client.caller.client_id, data, None, lambda found: None)


@in_virtual_time
async def test_a_poll_that_finds_nothing_waits_on_the_plain_path(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab, 0)
        await client.sent(b"first")
        assert bodies(await client.messages(invisible=30)) == [b"first"]
        begun = lab.clock.monotonic()
        found = await client.quick_poll(poll_request(wait=5))
        assert found is not None
        assert found.received is None
        assert lab.clock.monotonic() == begun
        waiting = asyncio.ensure_future(lab.endpoint.receive_rest(found))
        await asyncio.sleep(1)
        await client.sent(b"second")
        (_, response, _) = responses_of(await waiting)
        assert response.message.body == b"second"
        assert lab.clock.monotonic() - begun == pytest.approx(1, abs=0.2)


@in_virtual_time
async def test_messages_that_a_client_does_not_get(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab, 0)
        # The hashes of these tags are equal.
        await client.sent(b"another", tag="BB")
        await client.sent(b"wanted", tag="Aa")
        found = await client.quick_poll(poll_request(tags="Aa"))
        assert found is not None
        assert found.received is None
        assert found.popped is not None
        _, response, _ = responses_of(await lab.endpoint.receive_rest(found))
        assert response.message.body == b"wanted"
        lab.group(retry_max_times=0)
        await asyncio.sleep(31)
        assert await client.messages() == []


@pytest.mark.parametrize("tags", ["*", "Aa"])
@in_virtual_time
async def test_a_poll_whose_client_is_gone_gives_its_messages_back(
    tmp_path: Path, tags: str
) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab, 0)
        await client.sent(b"one", tag="BB")
        found = await client.quick_poll(poll_request(tags=tags, renew=True))
        assert found is not None
        assert (found.received is None) is (tags == "Aa")
        lab.endpoint.abandon(found)
        await asyncio.sleep(3)
        assert len(lab.endpoint.parts.renewals) == 0
        (one,) = await client.messages()
        assert one.system_properties.delivery_attempt == 1


@in_virtual_time
async def test_a_broker_that_refuses_or_is_gone(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab, 1)
        plain = await client.plain_receive(sql="a >")
        found = await client.quick_poll(poll_request(sql="a >"))
        assert found is not None
        assert found.received is not None
        assert responses_of(found.received) == plain
        assert plain[0].status.code == Code.ILLEGAL_FILTER_EXPRESSION
        known = lab.endpoint.parts.clients.known("c1")
        assert known is not None
        peer = known.open_peer(lab.broker.state.config.broker_name)
        assert peer is not None
        asked = asyncio.ensure_future(client.quick_poll(poll_request()))
        await asyncio.sleep(0)
        peer.close("a test")
        found = await asked
        assert found is not None
        assert found.received is not None
        (status,) = responses_of(found.received)
        assert status.status.code == Code.INTERNAL_SERVER_ERROR
        assert await client.quick_poll(poll_request(group=GROUP)) is None
