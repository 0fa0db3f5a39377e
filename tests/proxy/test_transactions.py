"""Transactions through the endpoint."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.proxy.lab import TOPIC, Lab, bodies, code_of, producer_settings
from tests.support.paths import VECTORS
from tests.support.stage import in_virtual_time

from penstock.protocol.commands import decode_command
from penstock.protocol.frames import FrameDecoder
from penstock.proxy.halves import Halves
from penstock.proxy.handlers.transactions import recover_orphan
from penstock.proxy.wire.codes import ClientType, Code, MessageType, Resolution, Source

TRANSACTION = MessageType.TRANSACTION


@pytest.mark.spec("G64", "G66")
@in_virtual_time
async def test_commit_and_rollback(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1, kind="TRANSACTION")
        client = lab.client()
        committed = await client.sent(b"committed", kind=TRANSACTION)
        rolled_back = await client.sent(b"rolled back", kind=TRANSACTION)
        late = await client.sent(b"late", kind=TRANSACTION)
        assert await client.messages() == []
        for entry, resolution in (
            (committed, Resolution.COMMIT),
            (rolled_back, Resolution.ROLLBACK),
        ):
            for _ in range(2):
                assert code_of(await client.end(entry.transaction_id, resolution)) == Code.OK
        (got,) = await client.messages(wait=1, invisible=600)
        assert got.body == b"committed"
        assert got.system_properties.message_type == MessageType.NORMAL
        assert got.system_properties.message_id == committed.message_id
        opposite = await client.end(committed.transaction_id, Resolution.ROLLBACK)
        assert code_of(opposite) == Code.INTERNAL_SERVER_ERROR
        assert code_of(await client.end(" ", Resolution.COMMIT)) == Code.INVALID_TRANSACTION_ID
        assert code_of(await client.end("x", Resolution.COMMIT)) == Code.INVALID_TRANSACTION_ID
        assert code_of(await client.end("x", Resolution.UNSPECIFIED)) == Code.OK
        await lab.clock.sleep(60)
        assert code_of(await client.end(late.transaction_id, Resolution.COMMIT)) == Code.OK
        assert bodies(await client.messages(wait=1)) == [b"late"]


@pytest.mark.spec("G65")
@in_virtual_time
async def test_one_producer_is_asked_about_an_open_transaction(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1, kind="TRANSACTION")
        clients = [lab.client(f"c{i}") for i in range(2)]
        streams = [(await one.settle(producer_settings(TOPIC)))[0] for one in clients]
        sent = await clients[0].sent(b"orphan", kind=TRANSACTION, keys=("k",))
        for _ in range(7):
            await lab.clock.sleep(6)
            for one in clients:
                await one.heartbeat(ClientType.PRODUCER)
        for stream in streams:
            stream.end()
        commands = [await stream.next() for stream in streams]
        (command,) = [one for one in commands if one is not None]
        recover = command.recover_orphaned_transaction_command
        assert recover.transaction_id == sent.transaction_id
        assert recover.message.body == b"orphan"
        assert recover.message.topic.name == TOPIC
        assert list(recover.message.system_properties.keys) == ["k"]
        assert recover.message.system_properties.message_id == sent.message_id
        answer = await clients[1].end(
            recover.transaction_id, Resolution.COMMIT, source=Source.SERVER_CHECK
        )
        assert code_of(answer) == Code.OK
        assert bodies(await clients[0].messages(wait=1)) == [b"orphan"]


@pytest.mark.spec("G66")
@in_virtual_time
async def test_an_open_half_is_found_at_the_broker(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1, kind="TRANSACTION")
        client = lab.client()
        sent = await client.sent(b"x", kind=TRANSACTION)
        fresh = Halves(lab.endpoint.parts.backend)
        place = await fresh.find(TOPIC, sent.transaction_id)
        assert place is not None
        assert place == await lab.endpoint.parts.halves.find(TOPIC, sent.transaction_id)
        assert await fresh.find(TOPIC, "unknown") is None


@in_virtual_time
async def test_a_half_that_was_sent_twice_is_ended_by_its_newest_copy(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1, kind="TRANSACTION")
        client = lab.client()
        for _ in range(2):
            sent = await client.sent(b"twice", kind=TRANSACTION, message_id="the same")
        newest = await lab.endpoint.parts.halves.find(TOPIC, sent.transaction_id)
        fresh = Halves(lab.endpoint.parts.backend)
        assert newest is not None
        assert await fresh.find(TOPIC, sent.transaction_id) == newest
        assert newest.state_offset == 1
        assert code_of(await client.end(sent.transaction_id, Resolution.COMMIT)) == Code.OK
        assert bodies(await client.messages(wait=1)) == [b"twice"]


@pytest.mark.parametrize("release", ["4.9.7", "5.5.0"])
@in_virtual_time
async def test_a_question_of_an_apache_broker(tmp_path: Path, release: str) -> None:
    with gzip.open(VECTORS / f"frames-{release}.jsonl.gz", "rt", encoding="utf-8") as text:
        recorded = [json.loads(line) for line in text]
    frame = next(
        bytes.fromhex(line["frame_hex"])
        for line in recorded
        if line["request_code_name"] == "CHECK_TRANSACTION_STATE"
    )
    (bare,) = FrameDecoder().cut(frame)
    async with Lab(tmp_path) as lab:
        client = lab.client()
        stream, _ = await client.settle(producer_settings(TOPIC))
        parts = lab.endpoint.parts
        (known,) = parts.clients.all()
        recover_orphan(parts.halves, known, "broker-x", decode_command(bare))
        asked = await stream.next()
        assert asked is not None
        recover = asked.recover_orphaned_transaction_command
        topic = recover.message.topic.name
        assert not topic.startswith("RMQ_SYS")
        assert recover.transaction_id == recover.message.system_properties.message_id
        place = await parts.halves.find(topic, recover.transaction_id)
        assert place is not None
        assert place.broker_name == "broker-x"
