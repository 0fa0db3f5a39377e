"""The fast path of sends and acknowledgements beside the plain one, which is its specification."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.proxy.lab import GROUP, TOPIC, Lab, LabClient, handle_of, message
from tests.support.asking import all_records, properties
from tests.support.stage import in_virtual_time

from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.pop import AckMessage
from penstock.proxy.handlers.finishing import ack_command
from penstock.proxy.receipts import Receipt
from penstock.proxy.renewals import Delivery
from penstock.proxy.times import duration, timestamp
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import Code, Encoding, MessageType

NOW_MS = 1_790_000_000_123

TAKEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "a tag and keys": {"tag": "t", "keys": ("k1", "ключ")},
    "properties": {"properties": {"colour": "красный", "empty": ""}},
    "born": {"born_timestamp": timestamp(NOW_MS)},
    "trace": {"trace_context": "00-abc"},
    "not a legal trace": {"trace_context": "\x01"},
    "fifo": {"group": "g", "kind": MessageType.FIFO},
    "priority": {"priority": 3, "kind": MessageType.PRIORITY},
    "zlib": {"body": b"no gzip", "body_encoding": Encoding.IDENTITY},
    "large": {"body": bytes(30_000)},
}
LEFT: dict[str, dict[str, Any]] = {
    "no body": {"body": b""},
    "no id": {"message_id": " "},
    "an id that cannot be stored": {"message_id": "a\x01b"},
    "a tag that is none": {"tag": "a|b"},
    "a lite topic": {"lite_topic": "x"},
    "a reserved property": {"properties": {"KEYS": "x"}},
    "a transaction": {
        "kind": MessageType.TRANSACTION,
        "orphaned_transaction_recovery_duration": duration(10),
    },
    "gzip": {"body": b"\x1f\x8b no gzip", "body_encoding": Encoding.GZIP},
    "too late": {"at_ms": NOW_MS * 2},
    "an unknown topic": {"topic": "unknown"},
    "a topic of the system": {"topic": "TBW102"},
    "another type": {"topic": "delayed"},
    "a topic that is not written": {"topic": "closed"},
}


def request(facts: dict[str, Any]) -> wire.SendMessageRequest:
    return wire.SendMessageRequest(messages=[message(**{"body": b"hello", **facts})])


async def prepared(lab: Lab) -> LabClient:
    """A client whose connection is open: the fast path opens none."""
    lab.topic(queues=1, kind="MIXED")
    lab.topic("ranked", queues=1, kind="PRIORITY")
    lab.topic("delayed", kind="DELAY")
    lab.topic("closed", perm=4)
    client = lab.client()
    assert await client.quick("SendMessage", request({})) is None
    await client.sent(b"first")
    return client


@pytest.mark.parametrize("name", TAKEN)
@in_virtual_time
async def test_what_the_fast_path_sends_is_stored_and_answered_alike(
    tmp_path: Path, name: str
) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab)
        topic = "ranked" if name == "priority" else TOPIC
        asked = request({"topic": topic, **TAKEN[name]})
        plain = await client.plain("SendMessage", asked)
        quick = await client.quick("SendMessage", asked)
        assert plain.status.code == Code.OK
        assert quick is not None
        (left,), (right,) = plain.entries, quick.entries
        assert right.offset == left.offset + 1
        right.offset = left.offset
        assert quick == plain
        first, second = (await all_records(await lab.remoting(), topic))[-2:]
        assert properties(first) == properties(second)
        for field in ("body", "sys_flag", "flag", "queue_id", "reconsume_times", "born_host"):
            assert getattr(first, field) == getattr(second, field)
        if "born_timestamp" in TAKEN[name]:
            assert first.born_timestamp == second.born_timestamp == NOW_MS


@pytest.mark.parametrize("name", LEFT)
@in_virtual_time
async def test_what_needs_more_is_left_to_the_plain_path(tmp_path: Path, name: str) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab)
        before = await all_records(await lab.remoting(), TOPIC)
        assert await client.quick("SendMessage", request(LEFT[name])) is None
        assert await all_records(await lab.remoting(), TOPIC) == before


@in_virtual_time
async def test_several_messages_none_and_bytes_that_are_no_request(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab)
        two = wire.SendMessageRequest(messages=[message(), message()])
        assert await client.quick("SendMessage", two) is None
        assert await client.quick("SendMessage", wire.SendMessageRequest()) is None
        assert await client.quick("AckMessage", wire.AckMessageRequest()) is None
        for serve in lab.endpoint.quick.by_name.values():
            assert not serve("c1", b"\xff\xff", lambda data: None)
            assert not serve("", b"", lambda data: None)


@in_virtual_time
async def test_a_refusal_of_the_broker_is_answered_alike(tmp_path: Path) -> None:
    # The broker takes less than the endpoint, which cannot know that.
    async with Lab(tmp_path, store={"max_message_size": 50}) as lab:
        client = await prepared(lab)
        asked = request({"body": bytes(100)})
        plain = await client.plain("SendMessage", asked)
        quick = await client.quick("SendMessage", asked)
        assert plain.status.code != Code.OK
        assert quick == plain


@in_virtual_time
async def test_an_answer_that_does_not_come(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab)
        known = lab.endpoint.parts.clients.known("c1")
        assert known is not None
        peer = known.open_peer(lab.broker.state.config.broker_name)
        assert peer is not None
        sent = asyncio.ensure_future(client.quick("SendMessage", request({})))
        await asyncio.sleep(0)
        peer.close("a test")
        answer = await sent
        assert answer is not None
        assert answer.status.code == answer.entries[0].status.code == Code.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize("is_renewed", [False, True])
@in_virtual_time
async def test_acknowledgements_end_messages_and_are_answered_alike(
    tmp_path: Path, is_renewed: bool
) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab)
        for number in range(3):
            await client.sent(b"%d" % number)
        found = await client.messages(renew=is_renewed, invisible=30)
        assert len(found) == 4
        answers: list[Any] = []
        for serve, one in zip(itertools.cycle((client.plain, client.quick)), found, strict=False):
            answers.append(await serve("AckMessage", acknowledgement(handle_of(one))))
        for answer, one in zip(answers, found, strict=True):
            assert answer.status.code == Code.OK
            (entry,) = answer.entries
            assert (entry.message_id, entry.receipt_handle) == ("m", handle_of(one))
            assert entry.status == answer.status
        assert len(lab.endpoint.parts.renewals) == 0
        await asyncio.sleep(200)
        assert await client.messages() == []


@in_virtual_time
async def test_acknowledgements_that_the_plain_path_refuses(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab)
        (one,) = await client.messages(invisible=10)
        handle = handle_of(one)
        other = wire.AckMessageRequest(
            group=wire.Resource(name="%ä"),
            topic=wire.Resource(name=TOPIC),
            entries=[wire.AckMessageEntry(receipt_handle=handle)],
        )
        assert await client.quick("AckMessage", other) is None
        assert await client.quick("AckMessage", acknowledgement("no handle")) is None
        await asyncio.sleep(11)
        assert await client.quick("AckMessage", acknowledgement(handle)) is None


@in_virtual_time
async def test_a_message_that_is_not_ended_is_renewed_further(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab)
        (one,) = await client.messages(renew=True)
        known = lab.endpoint.parts.clients.known("c1")
        assert known is not None
        peer = known.open_peer(lab.broker.state.config.broker_name)
        assert peer is not None
        ack = acknowledgement(handle_of(one))
        asked = asyncio.ensure_future(client.quick("AckMessage", ack))
        await asyncio.sleep(0)
        assert len(lab.endpoint.parts.renewals) == 0
        peer.close("a test")
        answer = await asked
        assert answer is not None
        assert answer.entries[0].status.code == Code.INTERNAL_SERVER_ERROR
        assert len(lab.endpoint.parts.renewals) == 1


@pytest.mark.parametrize("is_renewed", [False, True])
@in_virtual_time
async def test_an_acknowledgement_that_the_broker_refuses_is_answered_alike(
    tmp_path: Path, is_renewed: bool
) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab)
        await client.sent(b"second")
        one, two = await client.messages(renew=is_renewed, invisible=30)
        lab.broker.state.topics.remove(TOPIC)
        plain = await client.plain("AckMessage", acknowledgement(handle_of(one)))
        quick = await client.quick("AckMessage", acknowledgement(handle_of(two)))
        assert plain.status.code != Code.OK
        assert quick is not None
        plain.entries[0].receipt_handle = quick.entries[0].receipt_handle
        assert quick == plain
        assert len(lab.endpoint.parts.renewals) == 2 * is_renewed


@in_virtual_time
async def test_a_message_that_was_renewed_is_ended_by_its_first_receipt(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab)
        (one,) = await client.messages(renew=True)
        renewed = lab.endpoint.parts.renewals.find(GROUP, TOPIC, Receipt.parse(handle_of(one)))
        assert renewed is not None
        await asyncio.sleep(56)
        # The time of the first receipt is not over yet, but it is not the one that counts.
        assert renewed.times == 1
        answer = await client.quick("AckMessage", acknowledgement(handle_of(one)))
        assert answer is not None
        assert answer.status.code == Code.OK
        await asyncio.sleep(500)
        assert await client.messages() == []


@in_virtual_time
async def test_a_message_whose_renewal_is_under_way_is_left_to_the_plain_path(
    tmp_path: Path,
) -> None:
    async with Lab(tmp_path) as lab:
        client = await prepared(lab)
        (one,) = await client.messages(renew=True)
        receipt = Receipt.parse(handle_of(one))
        renewed = lab.endpoint.parts.renewals.find(GROUP, TOPIC, receipt)
        assert renewed is not None
        renewed.changing = asyncio.get_running_loop().create_future()
        ack = acknowledgement(handle_of(one))
        assert await client.quick("AckMessage", ack) is None
        renewed.changing = None
        assert await client.quick("AckMessage", ack) is not None


def acknowledgement(handle: str) -> wire.AckMessageRequest:
    return wire.AckMessageRequest(
        group=wire.Resource(name=GROUP),
        topic=wire.Resource(name=TOPIC),
        entries=[wire.AckMessageEntry(message_id="m", receipt_handle=handle)],
    )


def test_the_fields_of_an_acknowledgement_are_those_of_its_header() -> None:
    for text in (
        "7 1790000000000 60000 3 0 broker-a 2 9 4711",
        "7 1 2 3 1 b 2 9",
        "7 1 2 3 2 b 2 9",
    ):
        receipt = Receipt.parse(text)
        delivery = Delivery(Mock(), GROUP, TOPIC)
        handle = receipt.handle
        header = AckMessage(
            GROUP,
            receipt.real_topic(GROUP, TOPIC),
            handle.queue_id,
            " ".join(map(str, handle)),
            handle.queue_offset,
        )
        ext = {**encode_header(header), "bname": handle.broker_name}
        assert ack_command(delivery, receipt) == Command(RequestCode.ACK_MESSAGE, ext=ext)
