"""Groups over the wire: created, changed, listed, deleted; who is connected."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.support.wire import Wire, json_body

from penstock.broker import Broker
from penstock.broker.tables.groups import MAX_GROUPS, Groups
from penstock.errors import RequestRefused
from penstock.protocol.bodies.codec import encode_state
from penstock.protocol.bodies.common import (
    ConsumerConnections,
    GroupSubscription,
    MessageModel,
    ProducerConnections,
    ProducerTable,
    TopicList,
)
from penstock.protocol.bodies.groups import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from penstock.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command, Language
from penstock.protocol.headers.admin import (
    DeleteGroup,
    GetAllGroupConfig,
    GetConsumerConnections,
    GetGroupConfig,
    GetProducerConnections,
    QuerySubscription,
    QueryTopicsByConsumer,
)
from penstock.protocol.headers.offsets import (
    GetMaxOffset,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)

Connect = Callable[..., Awaitable[Wire]]
MakeBroker = Callable[..., Awaitable[Broker]]
CREATE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


async def group_of(wire: Wire, group: str) -> SubscriptionGroupConfig:
    answer = await wire.ok(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GetGroupConfig(group))
    return json_body(SubscriptionGroupConfig, answer)


async def test_a_group_is_created_and_changed(wire: Wire) -> None:
    await wire.ok(CREATE, body=SubscriptionGroupConfig("cg", retry_max_times=7, retry_queue_nums=2))
    config = await group_of(wire, "cg")
    assert (config.retry_max_times, config.retry_queue_nums) == (7, 2)
    assert config.consume_timeout_minute == 15
    await wire.ok(CREATE, body=SubscriptionGroupConfig("cg", consume_enable=False))
    assert not (await group_of(wire, "cg")).consume_enable


async def change_group(
    wire: Wire, attributes: dict[str, str] | None, *, in_list: bool, retry_max_times: int = 16
) -> Command:
    """Change a group's attributes with code 200, or with 225."""
    config = SubscriptionGroupConfig("cg", attributes=attributes, retry_max_times=retry_max_times)
    if in_list:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        return await wire.request(code, body=SubscriptionGroupList((config,)))
    return await wire.request(CREATE, body=config)


@pytest.mark.parametrize("in_list", [False, True], ids=["200", "225"])
async def test_attributes_of_a_group_are_added_changed_and_removed(
    wire: Wire, in_list: bool
) -> None:
    for changes, expected in (
        (
            {"+priority.factor": "7", "+lite.bind.topic": "T"},
            {"priority.factor": "7", "lite.bind.topic": "T"},
        ),
        ({"+priority.factor": "8"}, {"priority.factor": "8", "lite.bind.topic": "T"}),
        ({"-lite.bind.topic": ""}, {"priority.factor": "8"}),
    ):
        assert (await change_group(wire, changes, in_list=in_list)).code == 0
        assert (await group_of(wire, "cg")).attributes == expected
    # Who changes something else, a tool of 4.9 say, changes no attributes.
    assert (await change_group(wire, None, in_list=in_list, retry_max_times=3)).code == 0
    config = await group_of(wire, "cg")
    assert (config.retry_max_times, config.attributes) == (3, {"priority.factor": "8"})


@pytest.mark.parametrize("in_list", [False, True], ids=["200", "225"])
@pytest.mark.parametrize(
    "changes",
    [
        {"+unknown.attribute": "1"},
        {"+message.type": "NORMAL"},
        {"+priority.factor": "101"},
        {"+lite.bind.topic": ""},
        {"priority.factor": "7"},
        {"": "7"},
    ],
)
async def test_attributes_of_a_group_that_make_no_sense_are_refused(
    broker: Broker, wire: Wire, changes: dict[str, str], in_list: bool
) -> None:
    answer = await change_group(wire, changes, in_list=in_list)
    assert answer.code == 29
    assert "attribute" in (answer.remark or "")
    assert "cg" not in broker.state.groups


async def test_a_disabled_group_may_not_pull(wire: Wire) -> None:
    await wire.send("T")
    await wire.ok(CREATE, body=SubscriptionGroupConfig("cg", consume_enable=False))
    answer = await wire.pull("cg", "T", 0)
    assert (answer.code, answer.ext) == (16, {"forbiddenType": "2"})


async def test_the_table_of_another_broker_may_keep_a_group_from_a_topic(
    make_broker: MakeBroker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("store")
    (root / "config").mkdir()
    # Bit 2 is reading; the others forbid nothing here.
    table = SubscriptionGroupTable(
        {"cg": SubscriptionGroupConfig("cg")}, forbidden_table={"cg": {"T": 4, "U": 3}}
    )
    (root / "config" / "subscriptionGroup.json").write_bytes(encode_state(table))
    broker = await make_broker(root)
    async with await Wire.connect(broker.port) as wire:
        for topic in ("T", "U"):
            await wire.send(topic)
        answer = await wire.pull("cg", "T", 0)
        assert (answer.code, answer.ext) == (16, {"forbiddenType": "5"})
        assert "cg" in (answer.remark or "")
        assert (await wire.pull("cg", "U", 0)).code == 0
        assert (await wire.pull("other", "T", 0)).code == 0
        # A group of the same name that is made later is another one.
        await wire.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("cg"))
        assert (await wire.pull("cg", "T", 0)).code == 0


async def test_a_group_is_on_the_disk_when_its_creation_is_answered(
    make_broker: MakeBroker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("store")
    broker = await make_broker(root)
    async with await Wire.connect(broker.port) as wire:
        await wire.ok(CREATE, body=SubscriptionGroupConfig("kept"))
        assert '"kept"' in (root / "config" / "subscriptionGroup.json").read_text()


@pytest.mark.parametrize("name", ["", " ", "a b", "a@b", "../up", "g" * 121, "ü", "a\x01b"])
async def test_illegal_names_are_refused(broker: Broker, wire: Wire, name: str) -> None:
    answer = await wire.request(CREATE, body=SubscriptionGroupConfig(name))
    assert answer.code == 29
    assert answer.remark
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    both = SubscriptionGroupList((SubscriptionGroupConfig("fine"), SubscriptionGroupConfig(name)))
    assert (await wire.request(code, body=both)).code == 29
    assert "fine" not in broker.state.groups


async def test_more_retry_queues_than_a_topic_may_have_are_refused(
    broker: Broker, wire: Wire
) -> None:
    await wire.ok(CREATE, body=SubscriptionGroupConfig("most", retry_queue_nums=65_536))
    too_many = SubscriptionGroupConfig("cg", retry_queue_nums=65_537)
    both = SubscriptionGroupList((SubscriptionGroupConfig("fine"), too_many))
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    for answer in (await wire.request(CREATE, body=too_many), await wire.request(code, body=both)):
        assert answer.code == 29
        assert "65537 retry queues for cg; expected at most 65536" in (answer.remark or "")
    assert "cg" not in broker.state.groups
    assert "fine" not in broker.state.groups


async def test_several_groups_are_created_together(wire: Wire) -> None:
    await wire.ok(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        body=SubscriptionGroupList((SubscriptionGroupConfig("a"), SubscriptionGroupConfig("b"))),
    )
    assert (await group_of(wire, "b")).group_name == "b"


async def test_an_unknown_group_is_26(wire: Wire) -> None:
    answer = await wire.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GetGroupConfig("none"))
    assert answer.code == 26


async def test_the_table_is_answered_whole_or_in_pages(wire: Wire) -> None:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    whole = await wire.ok(code)
    assert whole.ext is None
    table = json_body(SubscriptionGroupTable, whole)
    names = list(table.subscription_group_table)
    assert "TOOLS_CONSUMER" in names
    assert table.forbidden_table == {}
    page = await wire.ok(code, GetAllGroupConfig(1, 2, ""))
    assert page.ext == {"totalGroupNum": str(len(names))}
    assert list(json_body(SubscriptionGroupTable, page).subscription_group_table) == names[1:3]


@pytest.mark.parametrize("word", ["cleanOffset", "removeOffset"])
async def test_a_group_is_deleted_with_or_without_its_offsets(wire: Wire, word: str) -> None:
    await wire.send("T")
    query = QueryConsumerOffset("cg", "T", 0, False)
    for clean, code in (("false", 0), ("true", 22)):
        await wire.ok(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("cg", "T", 0, 1))
        ext = {"groupName": "cg", word: clean}
        await wire.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)
        missing = await wire.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "cg"})
        assert missing.code == 26
        assert (await wire.request(RequestCode.QUERY_CONSUMER_OFFSET, query)).code == code


async def test_deleting_what_is_not_there_is_no_error(wire: Wire) -> None:
    await wire.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("none", True))


# Who is connected


async def test_the_members_of_a_group_are_listed(wire: Wire, connect: Connect) -> None:
    member = await connect(language=Language.GO, version=317)
    await member.heartbeat("me@1", consumer="cg", topics={"T": "a || b"})
    answer = await wire.ok(RequestCode.GET_CONSUMER_CONNECTION_LIST, GetConsumerConnections("cg"))
    found = json_body(ConsumerConnections, answer)
    (connection,) = found.connection_set
    assert connection.client_id == "me@1"
    assert connection.client_addr == member.address
    assert (connection.language, connection.version) == ("GO", 317)
    assert found.message_model is MessageModel.CLUSTERING
    assert found.subscription_table["T"].tags_set == ("a", "b")
    assert "%RETRY%cg" in found.subscription_table


async def test_a_group_without_members_is_offline(wire: Wire, connect: Connect) -> None:
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    assert (await wire.request(code, GetConsumerConnections("cg"))).code == 206


async def test_producers_are_listed(wire: Wire, connect: Connect) -> None:
    producer = await connect()
    await producer.heartbeat("p@1", producer="pg")
    answer = await wire.ok(RequestCode.GET_PRODUCER_CONNECTION_LIST, GetProducerConnections("pg"))
    (connection,) = json_body(ProducerConnections, answer).connection_set
    assert connection.client_addr == producer.address
    producers = json_body(ProducerTable, await wire.ok(RequestCode.GET_ALL_PRODUCER_INFO))
    assert [info.client_id for info in producers.data["pg"]] == ["p@1"]
    missing = await wire.request(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, GetProducerConnections("none")
    )
    assert missing.code == 1


# What they read


async def test_the_topics_of_a_group_are_those_it_committed_in(broker: Broker, wire: Wire) -> None:
    await wire.heartbeat("me@1", consumer="cg", topics=["T"])
    for topic in ("T", "%RETRY%cg"):
        await wire.send(topic)
        commit = UpdateConsumerOffset("cg", topic, 0, 1)
        await wire.ok(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    answer = await wire.ok(RequestCode.QUERY_TOPICS_BY_CONSUMER, QueryTopicsByConsumer("cg"))
    topics = json_body(TopicList, answer)
    assert (topics.topic_list, topics.broker_addr) == (("T",), broker.address)


async def test_the_subscription_of_a_group_is_returned_while_it_is_online(wire: Wire) -> None:
    ask = QuerySubscription("cg", "T")
    offline = await wire.ok(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, ask)
    assert json_body(GroupSubscription, offline).subscription_data is None
    await wire.heartbeat("me@1", consumer="cg", topics={"T": "a"})
    online = await wire.ok(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, ask)
    data = json_body(GroupSubscription, online).subscription_data
    assert data is not None
    assert data.sub_string == "a"


# For slaves


async def test_all_offsets_are_returned(wire: Wire) -> None:
    await wire.send("T")
    await wire.ok(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("cg", "T", 0, 1))
    table = json_body(ConsumerOffsetTable, await wire.ok(RequestCode.GET_ALL_CONSUMER_OFFSET))
    assert table.offset_table == {"T@cg": {0: 1}}
    assert table.data_version is not None


async def test_a_large_table_of_offsets_is_answered_beside_other_requests(
    wire: Wire, broker: Broker
) -> None:
    offsets = broker.state.offsets
    wanted = {f"T@g{number}": {0: number, 1: 2 * number} for number in range(20_000)}
    for key, queues in wanted.items():
        for queue_id, offset in queues.items():
            offsets.commit(key.partition("@")[2], "T", queue_id, offset, "test")
    async with await Wire.connect(broker.port) as other:
        asked = wire.start(RequestCode.GET_ALL_CONSUMER_OFFSET)
        await other.ok(RequestCode.GET_MAX_OFFSET, GetMaxOffset("T", 0))
        assert not asked.done(), "others are served in between"
        table = json_body(ConsumerOffsetTable, await asked)
    assert table.offset_table == wanted
    assert table.group_topic_map == {f"g{number}": ("T",) for number in range(20_000)}


async def test_the_progress_of_delays_is_returned(wire: Wire) -> None:
    answer = await wire.ok(RequestCode.GET_ALL_DELAY_OFFSET)
    assert json_body(DelayOffsetTable, answer).offset_table == {}


def test_a_broker_has_so_many_groups_and_no_more() -> None:
    groups = Groups(auto_create=lambda: True, now_ms=lambda: 1)
    for number in range(MAX_GROUPS - len(list(groups)) - 1):
        groups.find_or_create(f"g{number}")
    assert groups.find_or_create("last") is not None
    with pytest.raises(RequestRefused, match=f"no room for group more, .* at most {MAX_GROUPS}"):
        groups.find_or_create("more")
    assert groups.find_or_create("g1") is not None
    again = Groups(auto_create=lambda: True, now_ms=lambda: 1)
    again.load(groups.dump())
    assert "last" in again
