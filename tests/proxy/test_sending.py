"""SendMessage and RecallMessage: what is refused, and what is stored of the rest."""

from __future__ import annotations

import hashlib
import random
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.lab import TOPIC, Lab, bodies, code_of, message
from tests.support.asking import all_records, properties
from tests.support.faulty_files import FaultyFiles, SimulatedDisk
from tests.support.stage import in_virtual_time

from penstock.proxy.queue_choice import choose_queue, jump_hash
from penstock.proxy.times import duration
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import Code, Encoding, MessageType

FIFO, DELAY, NORMAL, TRANSACTION = (
    MessageType.FIFO,
    MessageType.DELAY,
    MessageType.NORMAL,
    MessageType.TRANSACTION,
)
DAY_MS = 86_400_000


@pytest.mark.spec("G26", "G39")
@in_virtual_time
async def test_a_remoting_consumer_sees_what_was_sent(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1, kind="MIXED")
        sent = await lab.client().sent(
            b"body", tag="t", keys=("k1", "k2"), group="g", properties={"colour": "red"}
        )
        wire_ = await lab.remoting()
        (record,) = await all_records(wire_, TOPIC)
        found = properties(record)
        assert len(sent.message_id) == 34
        assert sent.transaction_id == sent.message_id
        assert record.body == b"body"
        assert found["UNIQ_KEY"] == sent.message_id
        assert found["TAGS"] == "t"
        assert found["KEYS"] == "k1 k2"
        assert found["__SHARDINGKEY"] == "g"
        assert found["PGROUP"] == TOPIC
        assert found["__BORNHOST"] == "a-host"
        assert found["colour"] == "red"
        assert record.queue_offset == sent.offset == 0


@pytest.mark.spec("G39")
@in_virtual_time
async def test_a_client_of_the_endpoint_sees_what_remoting_sends(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        wire_ = await lab.remoting()
        given = {"TAGS": "t", "KEYS": "a b", "UNIQ_KEY": "U1", "__SHARDINGKEY": "s", "x": "y"}
        await wire_.send(TOPIC, b"body", queue_id=0, properties=given)
        (got,) = await lab.client().messages()
        system = got.system_properties
        assert (got.body, got.topic.name) == (b"body", TOPIC)
        assert (system.message_id, system.tag, list(system.keys)) == ("U1", "t", ["a", "b"])
        assert system.message_group == "s"
        assert got.user_properties["x"] == "y"
        assert "TAGS" not in got.user_properties


def refusals() -> dict[str, tuple[Code, Any]]:
    return {
        "no body": (Code.MESSAGE_BODY_EMPTY, {"body": b""}),
        "body too large": (Code.MESSAGE_BODY_TOO_LARGE, {"body": bytes(4 * 1024 * 1024 + 1)}),
        "129 properties": (
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            {"properties": {f"k{i}": "v" for i in range(129)}},
        ),
        "16385 bytes": (
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            {"properties": {"k": "v" * 16_383}, "tag": "t"},
        ),
        "reserved": (Code.ILLEGAL_MESSAGE_PROPERTY_KEY, {"properties": {"TIMER_OUT_MS": "1"}}),
        "control": (Code.ILLEGAL_MESSAGE_PROPERTY_KEY, {"properties": {"k": "a\x01b"}}),
        "tag with a bar": (Code.ILLEGAL_MESSAGE_TAG, {"tag": "a|b"}),
        "blank tag": (Code.ILLEGAL_MESSAGE_TAG, {"tag": " "}),
        "blank key": (Code.ILLEGAL_MESSAGE_KEY, {"keys": ("a", " ")}),
        "blank id": (Code.ILLEGAL_MESSAGE_ID, {"message_id": ""}),
        "group of 64": (Code.ILLEGAL_MESSAGE_GROUP, {"group": "g" * 64}),
        "system topic": (Code.ILLEGAL_TOPIC, {"topic": "rmq_sys_wheel_timer"}),
        "unknown topic": (Code.TOPIC_NOT_FOUND, {"topic": "nowhere"}),
        "orphan": (
            Code.BAD_REQUEST,
            {
                "kind": TRANSACTION,
                "orphaned_transaction_recovery_duration": duration(3601),
            },
        ),
        "lite": (Code.ILLEGAL_LITE_TOPIC, {"lite_topic": "x"}),
    }


@pytest.mark.spec("G2", "G27", "G28", "G29", "G30", "G31", "G33")
@in_virtual_time
async def test_bad_messages_are_refused_with_their_code(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(kind="MIXED")
        client = lab.client()
        for name, (code, given) in refusals().items():
            answer = await client.send(**{"body": b"x", **given})
            assert (name, code_of(answer)) == (name, code)
            assert answer.status.message
        await client.sent(group="g" * 63)
        await client.sent(properties={f"k{i}": "v" for i in range(128)})
        await client.sent(properties={"k": "v" * 16_382}, tag="t")
        assert code_of(await client.call("SendMessage", wire.SendMessageRequest())) == (
            Code.MESSAGE_CORRUPTED
        )
        lab.topic("other")
        both = wire.SendMessageRequest(messages=[message(), message(topic="other")])
        assert code_of(await client.call("SendMessage", both)) == Code.MESSAGE_CORRUPTED


@pytest.mark.spec("G32")
@in_virtual_time
async def test_delivery_times(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(kind="DELAY")
        client = lab.client()
        now = lab.clock.time_ms()
        refused = await client.send(at_ms=now + DAY_MS + 1000)
        assert code_of(refused) == Code.ILLEGAL_DELIVERY_TIME
        await client.sent(b"past", at_ms=now - 1000)
        assert bodies(await client.messages()) == [b"past"]


@pytest.mark.spec("G34", "G35")
@in_virtual_time
async def test_the_type_of_a_message_must_fit_its_topic(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        client = lab.client()
        now = lab.clock.time_ms()
        kinds: dict[MessageType, dict[str, Any]] = {
            NORMAL: {},
            FIFO: {"group": "g"},
            DELAY: {"at_ms": now + 5000},
            TRANSACTION: {"kind": TRANSACTION},
        }
        for topic_type in kinds:
            lab.topic(topic_type.name, kind=topic_type.name)
            for kind, given in kinds.items():
                answer = await client.send(topic=topic_type.name, **given)
                wanted = Code.OK if kind is topic_type else Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
                assert (topic_type, kind, code_of(answer)) == (topic_type, kind, wanted)
        lab.topic("MIXED", kind="MIXED")
        lab.topic("PLAIN")
        for given in kinds.values():
            await client.sent(topic="MIXED", **given)
        await client.sent(topic="PLAIN")
        answer = await client.send(topic="PLAIN", kind=NORMAL, group="declared NORMAL")
        assert code_of(answer) == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert "FIFO" in answer.status.message


@pytest.mark.spec("G36")
def test_message_groups_choose_their_queue() -> None:
    chosen = {
        "a": (97, [0, 0, 0, 0]),
        "order-1": (-1207111310, [0, 3, 3, 3]),
        "key0": (3288497, [0, 1, 5, 5]),
        "key3": (3288500, [0, 1, 1, 15]),
        "用户": (954895, [0, 3, 3, 10]),
    }
    for group, (number, queues) in chosen.items():
        assert [jump_hash(number, count) for count in (1, 4, 8, 16)] == queues
        for count, queue in zip((1, 4, 8, 16), queues, strict=True):
            assert choose_queue(range(count), group, random.Random()) == queue


@pytest.mark.spec("G36", "G37")
@in_virtual_time
async def test_queues_of_sends(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=4, kind="MIXED")
        client = lab.client()
        for _ in range(3):
            await client.sent(b"in order", group="order-1", queue_id=2)
        state = lab.broker.state.storage
        assert [state.max_offset(TOPIC, queue) for queue in range(4)] == [0, 0, 0, 3]
        counts: Counter[int] = Counter()
        for _ in range(200):
            before = [state.max_offset(TOPIC, queue) for queue in range(4)]
            await client.sent(queue_id=1)
            after = [state.max_offset(TOPIC, queue) for queue in range(4)]
            counts.update(i for i in range(4) if after[i] > before[i])
        assert set(counts) == {0, 1, 2, 3}


@pytest.mark.spec("G38")
@in_virtual_time
async def test_several_messages_in_one_request(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=4)
        given = [message(b"%d" % i, keys=(f"k{i}",)) for i in range(3)]
        answer = await lab.client().call("SendMessage", wire.SendMessageRequest(messages=given))
        assert code_of(answer) == Code.OK
        assert [entry.message_id for entry in answer.entries] == [
            one.system_properties.message_id for one in given
        ]
        assert [entry.offset for entry in answer.entries] == [0, 1, 2]
        got = await lab.client().messages()
        assert bodies(got) == [b"0", b"1", b"2"]
        assert [one.system_properties.message_id for one in got] == [
            one.system_properties.message_id for one in given
        ]
        # Timer messages cannot be batched: they are sent one by one.
        lab.topic("later", queues=1, kind="DELAY")
        at_ms = lab.clock.time_ms() + 5000
        several = [message(b"%d" % i, topic="later", at_ms=at_ms) for i in range(2)]
        answer = await lab.client().call("SendMessage", wire.SendMessageRequest(messages=several))
        assert code_of(answer) == Code.OK
        assert all(entry.recall_handle for entry in answer.entries)


@pytest.mark.spec("G40")
@in_virtual_time
async def test_a_failed_write_is_an_error_and_nothing_can_be_read(tmp_path: Path) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Lab(tmp_path, files=files) as lab:
        lab.topic(queues=1)
        client = lab.client()
        await client.sent(b"first")
        files.disk.free_bytes = 0
        answer = await client.send(b"second")
        assert code_of(answer) == Code.INTERNAL_SERVER_ERROR
        files.disk.free_bytes = None
        await lab.clock.sleep(90)
        assert bodies(await client.messages()) == [b"first"]


@pytest.mark.spec("G46")
@in_virtual_time
async def test_compressed_bodies_are_delivered_inflated(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        text = b"again and " * 100
        await client.sent(zlib.compress(text), body_encoding=Encoding.GZIP)
        packer = zlib.compressobj(wbits=31)
        await client.sent(packer.compress(text) + packer.flush(), body_encoding=Encoding.GZIP)
        got = await client.messages()
        assert bodies(got) == [text, text]
        for one in got:
            assert one.system_properties.body_encoding == Encoding.IDENTITY
            digest = hashlib.md5(text, usedforsecurity=False).hexdigest().upper()
            assert one.system_properties.body_digest.checksum == digest
        broken = await client.send(b"\x1f\x8bnot gzip", body_encoding=Encoding.GZIP)
        assert code_of(broken) == Code.MESSAGE_CORRUPTED


@pytest.mark.spec("G62", "G63")
@in_virtual_time
async def test_delayed_messages_and_recall(tmp_path: Path) -> None:
    async with Lab(tmp_path, recall_message_enable=True) as lab:
        lab.topic(queues=1, kind="DELAY")
        client = lab.client()
        at_ms = lab.clock.time_ms() + 5000
        kept = await client.sent(b"kept", at_ms=at_ms)
        taken_back = await client.sent(b"taken back", at_ms=at_ms)

        async def recall(handle: str, topic: str = TOPIC) -> Any:
            return await client.call(
                "RecallMessage",
                wire.RecallMessageRequest(topic=wire.Resource(name=topic), recall_handle=handle),
            )

        answer = await recall(taken_back.recall_handle)
        assert code_of(answer) == Code.OK
        assert answer.message_id == taken_back.message_id
        lab.topic("other", kind="DELAY")
        assert code_of(await recall(kept.recall_handle, "other")) == Code.INTERNAL_SERVER_ERROR
        assert code_of(await recall("garbage")) == Code.INTERNAL_SERVER_ERROR
        assert await client.messages(wait=3) == []
        (got,) = await client.messages(wait=10)
        assert got.body == b"kept"
        assert got.system_properties.message_type == DELAY
        assert got.system_properties.delivery_timestamp.seconds == at_ms // 1000
        assert abs(lab.clock.time_ms() - at_ms) <= 2000
        assert code_of(await recall(kept.recall_handle)) == Code.INTERNAL_SERVER_ERROR
