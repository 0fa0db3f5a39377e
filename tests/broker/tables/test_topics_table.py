"""The table of topics: what a broker starts with, and what is kept of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.asking import all_records, put_topic
from tests.support.stage import Stage

from penstock.broker.tables.topics import (
    MAX_OTHER_TOPICS,
    MAX_TOPICS,
    Topics,
    system_topics,
    topic_config,
)
from penstock.errors import RequestRefused, TopicNotFound
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.registration import RegisterBrokerBody
from penstock.protocol.bodies.topics import MAX_QUEUES, TopicConfigTable
from penstock.protocol.codes import ResponseCode
from penstock.protocol.frames import MAX_FRAME_BYTES
from penstock.protocol.validation import MAX_TOPIC_LENGTH

FILE = "broker-a/config/topics.json"


def saved(root: Path) -> TopicConfigTable:
    return decode_body(TopicConfigTable, (root / FILE).read_bytes())


def make_topics(*, auto_create: bool = True) -> Topics:
    now = iter(range(1000, 100_000))
    return Topics(
        system=system_topics(
            "C", "b", auto_create=auto_create, template_queues=8, trace_topic=False
        ),
        now_ms=lambda: next(now),
        auto_create=lambda: auto_create,
    )


# What a broker starts with


async def test_a_new_broker_has_rocketmqs_system_topics(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(broker_cluster_name="C")
        topics = broker.state.topics
        expected = {
            "TBW102": (8, 7),
            "SELF_TEST_TOPIC": (1, 6),
            "BenchmarkTest": (1024, 6),
            "C": (16, 7),
            "broker-a": (1, 7),
            "OFFSET_MOVED_EVENT": (1, 6),
            "SCHEDULE_TOPIC_XXXX": (18, 6),
            "C_REPLY_TOPIC": (1, 6),
            "rmq_sys_REVIVE_LOG_C": (8, 6),
            "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
            "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
            "rmq_sys_wheel_timer": (1, 6),
        }
        for name, (queues, perm) in expected.items():
            config = topics.require(name)
            assert (config.write_queue_nums, config.perm) == (queues, perm), name
            assert topics.is_system(name)
        await broker.stop()
        # Apache's broker finds them on the disk, should it take the store over.
        assert expected.keys() <= saved(tmp_path).topic_config_table.keys()


async def test_without_auto_creation_there_is_no_template(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(auto_create_topic_enable=False)
        assert "TBW102" not in broker.state.topics


# What is kept


async def test_a_topic_is_on_the_disk_when_its_first_message_is_acknowledged(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        for number in range(3):
            name = f"auto-{number}"
            assert (await wire.send(name, default_topic_queue_nums=5)).code == 0
            config = saved(tmp_path).topic_config_table[name]
            assert (config.read_queue_nums, config.write_queue_nums) == (5, 5)


async def test_sends_of_one_turn_to_a_new_topic_all_wait_for_it_and_keep_their_order(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wires = [await stage.connect(broker) for _ in range(4)]
        for number in range(40):
            await wires[number % 4].send("T", str(number).encode())
        found = await all_records(wires[0], "T")
        assert [int(record.body) for record in found] == list(range(40))


async def test_topics_survive_a_restart(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 6, 3, perm=4, order=True)
        version = broker.state.topics.version
        await broker.stop()
        broker = await stage.broker()
        config = broker.state.topics.require("T")
        assert (config.read_queue_nums, config.write_queue_nums) == (6, 3)
        assert (config.perm, config.order) == (4, True)
        assert broker.state.topics.version.counter >= version.counter


async def test_a_topic_that_only_the_store_knows_is_taken_in(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await wire.send("T", b"kept", queue_id=2)
        await broker.stop()
        (tmp_path / FILE).unlink()
        (tmp_path / f"{FILE}.bak").unlink(missing_ok=True)
        broker = await stage.broker()
        wire = await stage.connect(broker)
        assert broker.state.topics.require("T").read_queue_nums == 3
        assert [r.body for r in await all_records(wire, "T", 2)] == [b"kept"]


async def test_a_damaged_table_gives_way_to_its_backup(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 5)
        await put_topic(wire, "U", 5)
        await broker.stop()
        (tmp_path / FILE).write_bytes(b"{")
        broker = await stage.broker()
        assert broker.state.topics.require("T").read_queue_nums == 5


async def test_one_odd_topic_of_a_table_costs_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(
        b'{"dataVersion":{"counter":7,"timestamp":1},"topicConfigTable":{'
        b'"Fine":{"readQueueNums":3,"writeQueueNums":2},'
        b'"Wide":{"readQueueNums":100000,"writeQueueNums":-1,"perm":4},'
        b'"Text":{"writeQueueNums":"100000"},'
        b'"Broken":{"perm":"all"},"None":7,"Null":null}}'
    )
    async with Stage(tmp_path) as stage:
        topics = (await stage.broker()).state.topics
        fine, wide, text = (topics.require(name) for name in ("Fine", "Wide", "Text"))
        assert (fine.read_queue_nums, fine.write_queue_nums) == (3, 2)
        assert (wide.read_queue_nums, wide.write_queue_nums, wide.perm) == (65_536, 0, 4)
        assert (text.read_queue_nums, text.write_queue_nums) == (16, 65_536)
        assert not {"Broken", "None", "Null"} & {topic.topic_name for topic in topics}
        assert topics.version.counter > 7
    logged = [r.getMessage() for r in caplog.records if r.getMessage().startswith("topic bounded")]
    assert len(logged) == 5
    assert "topic=Wide error=TopicConfig: readQueueNums is a number '100000'" in logged[0]


async def test_a_deleted_topic_is_gone_for_all(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 5)
        await wire.ok(215, {"topic": "T"})
        assert (await wire.pull("g", "T", 0)).code == ResponseCode.TOPIC_NOT_EXIST
        await broker.stop()
        assert "T" not in (await stage.broker()).state.topics


# The table by itself


def test_every_change_gives_the_table_a_new_version() -> None:
    topics = make_topics()
    seen = {topics.version}
    topics.put(topic_config("T", 1, 1))
    seen.add(topics.version)
    # The same once more is no change.
    topics.put(topic_config("T", 1, 1))
    seen.add(topics.version)
    topics.put(topic_config("T", 2, 2))
    seen.add(topics.version)
    topics.remove("T")
    seen.add(topics.version)
    assert not topics.remove("T")
    assert len(seen) == 4


def test_a_topic_of_its_own_may_be_the_template() -> None:
    topics = make_topics()
    topics.put(topic_config("mine", 3, 3, 7))
    made = topics.create_for_send("new", "mine", 100)
    assert (made.write_queue_nums, made.perm) == (3, 6)


@pytest.mark.parametrize("queues", [0, -4])
def test_a_topic_without_queues_is_not_made(queues: int) -> None:
    with pytest.raises(TopicNotFound):
        make_topics().create_for_send("new", "TBW102", queues)


def test_flags_of_a_retry_topic_are_added_and_never_lost() -> None:
    topics = make_topics()
    assert topics.ensure("%RETRY%g", 1).topic_sys_flag == 0
    assert topics.ensure("%RETRY%g", 4, sys_flag=2).topic_sys_flag == 2
    config = topics.ensure("%RETRY%g", 4)
    assert (config.topic_sys_flag, config.read_queue_nums) == (2, 1)


def test_order_topics_of_the_name_server_are_marked() -> None:
    topics = make_topics()
    topics.put(topic_config("T", 1, 1))
    topics.set_order({"T": "b:1", "nowhere": "b:1"})
    assert topics.require("T").order
    assert "nowhere" not in topics


def test_a_table_is_read_back_as_it_was_written() -> None:
    topics = make_topics()
    topics.put(topic_config("T", 3, 2, 4))
    again = make_topics()
    again.load(topics.dump())
    assert again.table() == topics.table()


# How many


def test_the_fullest_table_can_be_registered_in_one_frame() -> None:
    topics = make_topics()
    queues = MAX_QUEUES
    while len(topics) < MAX_OTHER_TOPICS:
        topics.put(topic_config(f"{len(topics)}-".ljust(MAX_TOPIC_LENGTH, "t"), queues, queues))
    with pytest.raises(RequestRefused, match=f"no room for topic T, .* at most {MAX_OTHER_TOPICS}"):
        topics.create_for_send("T", "TBW102", 4)
    assert "T" not in topics
    # What a group cannot do without has room of its own.
    while len(topics) < MAX_TOPICS:
        topics.ensure(f"%RETRY%{len(topics)}-".ljust(MAX_TOPIC_LENGTH, "g"), queues)
    with pytest.raises(RequestRefused, match=f"at most {MAX_TOPICS}"):
        topics.ensure("%DLQ%g", 1)
    body = encode_body(RegisterBrokerBody(topics.table()))
    assert len(body) < MAX_FRAME_BYTES - 64 * 1024
    # What is there may still be changed, and loaded again with all that a broker needs.
    topics.put(topic_config("TBW102", 2, 2))
    again = make_topics()
    again.load(topics.dump())
    assert len(again) == MAX_TOPICS


@pytest.mark.parametrize("name", ["bad\udcff", "two\nlines"])
async def test_queues_of_no_legal_topic_do_not_keep_the_table_from_being_saved(
    tmp_path: Path, name: str
) -> None:
    directory = tmp_path / "broker-a/consumequeue"
    (directory / name / "0").mkdir(parents=True)
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        assert name not in broker.state.topics
        wire = await stage.connect(broker)
        await put_topic(wire, "T")
        assert "T" in saved(tmp_path).topic_config_table
