"""Topics over the wire: created, changed, listed, deleted."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

import pytest
from tests.support.wire import Wire, body_of, json_body

from penstock.broker import Broker
from penstock.model import MessageQueue
from penstock.protocol.bodies.common import GroupList, TopicList
from penstock.protocol.bodies.stats import TopicStats
from penstock.protocol.bodies.topics import TopicConfig, TopicConfigList, TopicConfigTable
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.admin import (
    DeleteTopic,
    GetAllTopicConfig,
    GetTopicConfig,
    GetTopicStats,
    QueryTopicConsumers,
    UpdateTopic,
)
from penstock.protocol.headers.offsets import QueryConsumerOffset, UpdateConsumerOffset

MakeBroker = Callable[..., Awaitable[Broker]]
CREATE = RequestCode.UPDATE_AND_CREATE_TOPIC


def wanted(topic: str = "T", queues: int = 4, perm: int = 6, **more: object) -> UpdateTopic:
    ask = UpdateTopic(topic, "TBW102", queues, queues, perm, "SINGLE_TAG", False)
    for name, value in more.items():
        setattr(ask, name, value)
    return ask


async def config_of(wire: Wire, topic: str = "T") -> TopicConfig:
    return json_body(
        TopicConfig, await wire.ok(RequestCode.GET_TOPIC_CONFIG, GetTopicConfig(topic))
    )


# Creating and changing


async def test_a_topic_is_created_and_changed(wire: Wire) -> None:
    await wire.ok(CREATE, wanted(queues=6))
    config = await config_of(wire)
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (6, 6, 6)
    await wire.ok(CREATE, wanted(queues=8, perm=4, order=True, topic_sys_flag=1))
    config = await config_of(wire)
    assert (config.read_queue_nums, config.perm, config.order, config.topic_sys_flag) == (
        8, 4, True, 1,
    )  # fmt: skip


async def test_a_topic_is_on_the_disk_when_its_creation_is_answered(
    make_broker: MakeBroker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("store")
    broker = await make_broker(root)
    async with await Wire.connect(broker.port) as wire:
        await wire.ok(CREATE, wanted("kept"))
        assert '"kept"' in (root / "config" / "topics.json").read_text()


async def change_topic(wire: Wire, attributes: dict[str, str] | None, *, as_text: bool) -> Command:
    """Change a topic's attributes with code 17, or with 18."""
    if as_text:
        changes = (f"{k}={v}" if k.startswith("+") else k for k, v in (attributes or {}).items())
        return await wire.request(CREATE, wanted(attributes=",".join(changes)))
    body = TopicConfigList((TopicConfig("T", 4, 4, attributes=attributes),))
    return await wire.request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)


@pytest.mark.parametrize("as_text", [True, False], ids=["17", "18"])
async def test_attributes_are_added_changed_and_removed(wire: Wire, as_text: bool) -> None:
    for changes, expected in (
        (
            {"+message.type": "NORMAL", "+reserve.time": "-1"},
            {"message.type": "NORMAL", "reserve.time": "-1"},
        ),
        ({}, {"message.type": "NORMAL", "reserve.time": "-1"}),
        (
            {"-reserve.time": "", "+message.type": "FIFO", "+queue.type": "SimpleCQ"},
            {"message.type": "FIFO", "queue.type": "SimpleCQ"},
        ),
        ({"-reserve.time": ""}, {"message.type": "FIFO", "queue.type": "SimpleCQ"}),
        (
            {"+cleanup.policy": "DELETE", "-queue.type": ""},
            {"message.type": "FIFO", "cleanup.policy": "DELETE"},
        ),
    ):
        answer = await change_topic(wire, changes, as_text=as_text)
        assert (answer.code, answer.remark) == (0, None)
        assert (await config_of(wire)).attributes == expected


@pytest.mark.parametrize("as_text", [True, False], ids=["17", "18"])
@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"+unknown.attribute": "1"}, "one of cleanup.policy"),
        ({"+message.type": "ABNORMAL"}, "NORMAL or"),
        ({"+reserve.time": "-2"}, "-1 to 9223372036854775807"),
        ({"+reserve.time": "long"}, "-1 to 9223372036854775807"),
        ({"+reserve.time": ""}, "-1 to 9223372036854775807"),
        # Ways to store messages that this broker does not have.
        ({"+cleanup.policy": "COMPACTION"}, "expected DELETE"),
        ({"+queue.type": "BatchCQ"}, "expected SimpleCQ"),
        ({"message.type": "NORMAL"}, "+key"),
        ({"+message.type": "NORMAL", "-message.type": ""}, "twice"),
        ({"+": "x"}, "+key"),
        ({"-": ""}, "+key"),
    ],
)
async def test_attributes_that_make_no_sense_are_refused(
    broker: Broker, wire: Wire, changes: dict[str, str], remark: str, as_text: bool
) -> None:
    answer = await change_topic(wire, changes, as_text=as_text)
    assert answer.code == 29
    assert remark in (answer.remark or "")
    assert "T" not in broker.state.topics


async def test_attributes_may_be_sent_back_as_they_were_read(wire: Wire) -> None:
    await wire.ok(CREATE, wanted(attributes="+message.type=FIFO"))
    body = TopicConfigList((dataclasses.replace(await config_of(wire), perm=4),))
    await wire.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
    config = await config_of(wire)
    assert (config.perm, config.attributes) == (4, {"message.type": "FIFO"})


async def test_a_line_of_changes_that_cannot_be_read_is_refused(wire: Wire) -> None:
    for line in (
        "broken",
        "+message.type",
        "-message.type=NORMAL",
        "+reserve.time=1,+reserve.time=2",
    ):
        assert (await wire.request(CREATE, wanted(attributes=line))).code == 29
    await wire.ok(CREATE, wanted(attributes=" +message.type=FIFO , -reserve.time,"))
    assert (await config_of(wire)).attributes == {"message.type": "FIFO"}


async def test_an_unknown_filter_type_becomes_the_usual_one(wire: Wire) -> None:
    await wire.ok(CREATE, wanted(topic_filter_type="whatever"))
    assert (await config_of(wire)).topic_filter_type.value == "SINGLE_TAG"


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a/b", "../../etc", "a\x00b", "ümlaut", "t" * 128, "a@b", "a\nb", "T'; --"],
)
async def test_illegal_names_are_refused(wire: Wire, name: str) -> None:
    answer = await wire.request(CREATE, wanted(name))
    assert answer.code == 29
    assert answer.remark
    listed = TopicConfigList((TopicConfig(name, 4, 4),))
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    assert (await wire.request(code, body=listed)).code == 29


@pytest.mark.parametrize(
    "more",
    [
        {"queues": 0},
        {"queues": -1},
        {"queues": 1 << 20},
        {"queues": (1 << 31) - 1},
        {"perm": 8},
        {"perm": -1},
    ],
)
async def test_numbers_that_make_no_sense_are_refused(wire: Wire, more: dict[str, int]) -> None:
    answer = await wire.request(CREATE, wanted(**more))  # type: ignore[arg-type]
    assert answer.code == 29
    assert answer.remark is not None
    assert "expected" in answer.remark


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"])
async def test_system_topics_stay_as_they_are(wire: Wire, name: str) -> None:
    assert (await wire.request(CREATE, wanted(name))).code == 29
    delete = await wire.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic(name))
    assert delete.code == 29
    assert (await wire.request(RequestCode.GET_TOPIC_CONFIG, GetTopicConfig(name))).code == 0


async def test_a_name_of_the_systems_own_is_no_topic_for_users(broker: Broker, wire: Wire) -> None:
    # It could not be deleted any more.
    answer = await wire.request(CREATE, wanted("rmq_sys_mine"))
    assert answer.code == 29
    assert "conflict with system topic" in (answer.remark or "")
    assert "rmq_sys_mine" not in broker.state.topics
    many = TopicConfigList((TopicConfig("A", 2, 2), TopicConfig("rmq_sys_mine", 2, 2)))
    answer = await wire.request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=many)
    assert answer.code == 29
    assert "A" not in broker.state.topics


async def test_several_topics_are_created_together_or_not_at_all(
    broker: Broker, wire: Wire
) -> None:
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    bad = TopicConfigList((TopicConfig("A", 2, 2), TopicConfig("no good", 2, 2)))
    assert (await wire.request(code, body=bad)).code == 29
    assert "A" not in broker.state.topics
    await wire.ok(code, body=TopicConfigList((TopicConfig("A", 2, 2), TopicConfig("B", 3, 3))))
    assert (await config_of(wire, "B")).read_queue_nums == 3


# Listing


async def test_the_table_is_answered_whole_or_in_pages(broker: Broker, wire: Wire) -> None:
    code = RequestCode.GET_ALL_TOPIC_CONFIG
    whole = await wire.ok(code)
    assert whole.ext is None
    table = json_body(TopicConfigTable, whole)
    names = list(table.topic_config_table)
    assert "TBW102" in names
    assert table.mapping_data_version is not None
    assert table.topic_queue_mapping_detail_map == {}
    page = await wire.ok(code, GetAllTopicConfig(2, 3, ""))
    assert page.ext == {"totalTopicNum": str(len(names))}
    assert list(json_body(TopicConfigTable, page).topic_config_table) == names[2:5]
    beyond = await wire.ok(code, GetAllTopicConfig(10_000, 3, ""))
    assert json_body(TopicConfigTable, beyond).topic_config_table == {}


async def test_the_systems_topics_are_listed(wire: Wire) -> None:
    answer = await wire.ok(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    names = json_body(TopicList, answer).topic_list
    assert {"TBW102", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "DefaultCluster"} <= set(names)
    await wire.send("T")
    answer = await wire.ok(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    assert "T" not in json_body(TopicList, answer).topic_list


async def test_an_unknown_topic_is_17(wire: Wire) -> None:
    for code in (RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_TOPIC_STATS_INFO):
        answer = await wire.request(code, {"topic": "none"})
        assert answer.code == 17
        assert answer.remark is not None
        assert "none" in answer.remark


async def test_the_first_and_last_offsets_of_queues_are_returned(
    broker: Broker, wire: Wire
) -> None:
    await wire.ok(CREATE, wanted(queues=2))
    await wire.send("T")
    await wire.send("T")
    answer = await wire.ok(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStats("T"))
    table = json_body(TopicStats, answer).offset_table
    first = table[MessageQueue("T", "broker-a", 0)]
    assert (first.min_offset, first.max_offset) == (0, 2)
    assert first.last_update_timestamp == broker.state.storage.store.store_time_at("T", 0, 1)
    empty = table[MessageQueue("T", "broker-a", 1)]
    assert (empty.min_offset, empty.max_offset, empty.last_update_timestamp) == (0, 0, 0)
    assert body_of(answer).startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,')


async def test_groups_of_a_topic_are_listed_online_and_offline(wire: Wire) -> None:
    await wire.send("T")
    await wire.heartbeat("me@1", consumer="online", topics=["T"])
    commit = UpdateConsumerOffset("offline", "T", 0, 1)
    await wire.ok(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    answer = await wire.ok(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, QueryTopicConsumers("T"))
    assert sorted(json_body(GroupList, answer).group_list) == ["offline", "online"]


# Deleting


async def test_a_deleted_topic_is_gone_with_messages_and_offsets(
    broker: Broker, wire: Wire
) -> None:
    await wire.send("T")
    await wire.ok(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("cg", "T", 0, 1))
    await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("T"))
    assert (await wire.request(RequestCode.GET_TOPIC_CONFIG, GetTopicConfig("T"))).code == 17
    assert (await wire.pull("cg", "T", 0)).code == 17
    offset = await wire.request(
        RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset("cg", "T", 0)
    )
    assert offset.code == 22
    await wire.send("T", b"new life")
    answer = await wire.pull("cg", "T", 0)
    assert answer.ext is not None
    assert (answer.code, answer.ext["maxOffset"]) == (0, "1")


async def test_a_held_pull_of_a_deleted_topic_is_answered(wire: Wire) -> None:
    await wire.send("T")
    waiting = wire.start_pull("cg", "T", 1, hold_ms=15_000)
    await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("T"))
    async with asyncio.timeout(5):
        assert (await waiting).code == 17


@pytest.mark.parametrize("name", ["", "   "])
async def test_a_blank_topic_cannot_be_deleted(wire: Wire, name: str) -> None:
    assert (await wire.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic(name))).code == 29


async def test_deleting_what_is_not_there_is_no_error(wire: Wire) -> None:
    await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("none"))
    await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("../../etc/passwd"))


async def test_cleaning_requests_are_taken(wire: Wire) -> None:
    for code in (
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
    ):
        await wire.ok(code)


async def test_queues_that_no_table_knows_are_removed_when_asked(
    broker: Broker, wire: Wire
) -> None:
    await wire.send("T")
    await wire.send("U")
    broker.state.topics.remove("T")
    await wire.ok(RequestCode.CLEAN_UNUSED_TOPIC)
    assert {topic for topic, _ in broker.state.storage.store.queues()} == {"U"}
