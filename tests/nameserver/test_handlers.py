"""What a name server answers, over a socket."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from tests.support.registrations import encode_registration
from tests.support.request_types import REQUESTS
from tests.support.wire import Wire, body_of, json_body

from penstock.nameserver import NameServer
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.common import DataVersion, KvTable, TopicList
from penstock.protocol.bodies.config_text import ConfigText
from penstock.protocol.bodies.registration import (
    RegisterBrokerBody,
    body_crc32,
)
from penstock.protocol.bodies.routes import (
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from penstock.protocol.bodies.topics import TopicConfig, TopicConfigTable
from penstock.protocol.codes import REQUEST_NAMES, RequestCode, ResponseCode
from penstock.protocol.commands import Command, Language
from penstock.protocol.extensions import REGISTRATION_KEY
from penstock.protocol.headers import nameserver as asks
from penstock.protocol.headers.codec import HeaderField, encode_header, header_fields

StartServer = Callable[..., Awaitable[NameServer]]

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
BROKER = asks.RegisterBroker(
    broker_name="broker-a",
    broker_addr="10.0.0.5:10911",
    cluster_name="DefaultCluster",
    ha_server_addr="10.0.0.5:10912",
    broker_id=0,
)


def table(*names: str, counter: int = 1, queues: int = 4) -> RegisterBrokerBody:
    configs = {name: TopicConfig(name, queues, queues) for name in names}
    return RegisterBrokerBody(TopicConfigTable(configs, DataVersion(counter, 1_700_000_000_000, 0)))


async def register(
    wire: Wire,
    *names: str,
    broker: asks.RegisterBroker = BROKER,
    counter: int = 1,
    queues: int = 4,
) -> Command:
    body = table(*(names or ("T", "U")), counter=counter, queues=queues)
    return await wire.ok(RequestCode.REGISTER_BROKER, broker, body)


def another(**changes: object) -> asks.RegisterBroker:
    return msgspec.structs.replace(BROKER, **changes)


async def route(wire: Wire, topic: str = "T") -> TopicRouteData:
    return json_body(TopicRouteData, await wire.ok(ROUTE, asks.GetRouteInfo(topic)))


# Routes


@pytest.mark.spec("S11")
async def test_a_registered_topic_has_a_route(wire: Wire) -> None:
    await register(wire)
    found = await route(wire)
    assert [(q.broker_name, q.read_queue_nums, q.perm) for q in found.queue_datas] == [
        ("broker-a", 4, 6)
    ]
    assert found.broker_datas[0].broker_addrs == {0: "10.0.0.5:10911"}


@pytest.mark.parametrize("version", [63, 121, 317, 399, 401, 479, 513])
async def test_routes_are_compact_standard_json_for_every_client(
    server: NameServer, version: int
) -> None:
    async with await Wire.connect(server.port, version=version) as wire:
        await register(wire)
        await register(wire, broker=another(broker_id=1, broker_addr="10.0.0.6:10911"))
        body = body_of(await wire.ok(ROUTE, asks.GetRouteInfo("T")))
    # Go splits this by commas and colons: a blank would make broker 1 broker 0.
    assert b'"brokerAddrs":{"0":"10.0.0.5:10911","1":"10.0.0.6:10911"}' in body
    assert json.dumps(json.loads(body), separators=(",", ":")).encode() == body
    assert json.loads(body)["filterServerTable"] == {}
    assert b"null" not in body


@pytest.mark.parametrize(
    ("version", "only_standard", "ids"),
    [(317, None, b'{0:"10.0'), (317, True, b'{"0":"10.0'), (401, None, b'{"0":"10.0')],
)
async def test_the_elixir_client_gets_broker_ids_as_older_name_servers_write_them(
    server: NameServer, version: int, only_standard: bool | None, ids: bytes
) -> None:
    ask = asks.GetRouteInfo("T", only_standard)
    async with await Wire.connect(server.port) as java:
        await register(java)
        assert b'{"0":"10.0' in body_of(await java.ok(ROUTE, asks.GetRouteInfo("T")))
        async with await Wire.connect(
            server.port, language=Language.ERLANG, version=version
        ) as elixir:
            assert ids in body_of(await elixir.ok(ROUTE, ask))
            cluster = body_of(await elixir.ok(RequestCode.GET_BROKER_CLUSTER_INFO))
            assert (b'{0:"10.0' in cluster) == (version < 401)
        assert b'{"0":"10.0' in body_of(await java.ok(ROUTE, asks.GetRouteInfo("T")))


async def test_a_route_can_be_read_as_a_python_literal(server: NameServer, wire: Wire) -> None:
    await register(wire, broker=another(enable_acting_master=False))
    # pyrocketmq does so; it says that it is of version 1.
    async with await Wire.connect(server.port, language=Language.PYTHON, version=1) as python:
        found = ast.literal_eval(body_of(await python.ok(ROUTE, asks.GetRouteInfo("T"))).decode())
        cluster = body_of(await python.ok(RequestCode.GET_BROKER_CLUSTER_INFO)).decode()
    assert found["brokerDatas"][0]["brokerAddrs"] == {0: "10.0.0.5:10911"}
    listed = ast.literal_eval(cluster)["brokerAddrTable"]["broker-a"]
    assert listed["brokerAddrs"] == {0: "10.0.0.5:10911"}


async def test_a_route_has_every_field_the_rust_client_insists_on(
    server: NameServer, wire: Wire
) -> None:
    """rocketmq-client-rust 1.0.0 refuses a route, and so every send, that lacks one of them."""
    await register(wire, broker=another(enable_acting_master=False))
    async with await Wire.connect(server.port, language=Language.RUST) as rust:
        route = json.loads(body_of(await rust.ok(ROUTE, asks.GetRouteInfo("T"))))
        cluster = json.loads(body_of(await rust.ok(RequestCode.GET_BROKER_CLUSTER_INFO)))
    assert route.keys() >= {"queueDatas", "brokerDatas", "filterServerTable"}
    [queues] = route["queueDatas"]
    assert queues.keys() >= {
        "brokerName",
        "readQueueNums",
        "writeQueueNums",
        "perm",
        "topicSysFlag",
    }
    for broker in (*route["brokerDatas"], *cluster["brokerAddrTable"].values()):
        assert broker.keys() >= {"cluster", "brokerName", "brokerAddrs"}
        assert broker["enableActingMaster"] is False


async def test_a_topic_that_is_not_registered_is_17(wire: Wire) -> None:
    answer = await wire.request(ROUTE, asks.GetRouteInfo("none"))
    assert answer.code == 17
    assert answer.remark is not None
    assert answer.remark.startswith("No topic route info in name server for the topic: none")


async def test_two_brokers_share_a_topic(wire: Wire) -> None:
    await register(wire)
    await register(wire, broker=another(broker_name="broker-b", broker_addr="10.0.0.7:10911"))
    found = await route(wire)
    assert {queue.broker_name for queue in found.queue_datas} == {"broker-a", "broker-b"}
    assert len(found.broker_datas) == 2


async def test_a_route_follows_what_is_registered(wire: Wire) -> None:
    await register(wire)
    await route(wire)
    await register(wire, counter=2, queues=8)
    assert (await route(wire)).queue_datas[0].read_queue_nums == 8
    await register(wire, counter=2, queues=16)
    assert (await route(wire)).queue_datas[0].read_queue_nums == 8, "the version did not change"


async def test_the_order_of_a_topic_is_returned_only_where_it_is_enabled(
    start_server: StartServer,
) -> None:
    for enabled in (False, True):
        server = await start_server(settings={"order_message_enable": enabled})
        async with await Wire.connect(server.port) as wire:
            await register(wire)
            put = asks.PutKvConfig("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
            await wire.ok(RequestCode.PUT_KV_CONFIG, put)
            assert (await route(wire)).order_topic_conf == ("broker-a:4" if enabled else None)


# Registration


async def test_a_first_registration_of_one_topic_is_refused(wire: Wire) -> None:
    answer = await wire.request(RequestCode.REGISTER_BROKER, BROKER, table("T"))
    assert answer.code == 1
    assert answer.remark is not None
    assert answer.remark.startswith("register broker failed")
    await register(wire, "T", "U")
    await register(wire, "V", counter=2)
    assert len((await route(wire, "T")).queue_datas) == 1, "an increment adds"


async def test_a_slave_gets_the_address_of_its_master(wire: Wire) -> None:
    first = await register(wire)
    assert first.ext == {}
    slave = another(broker_id=1, broker_addr="10.0.0.6:10911")
    answer = await register(wire, broker=slave)
    assert answer.ext == {"haServerAddr": "10.0.0.5:10912", "masterAddr": "10.0.0.5:10911"}


async def test_a_compressed_registration_is_read_marked_or_not(server: NameServer) -> None:
    body = encode_registration(table("T", "U"), compressed=True, version=413)
    for number, compressed in enumerate((True, False)):
        async with await Wire.connect(server.port, version=413) as wire:
            name = f"broker-{number}"
            ask = another(
                broker_name=name,
                broker_addr=f"10.0.0.{number}:1",
                compressed=compressed,
                body_crc32=body_crc32(body),
            )
            await wire.ok(RequestCode.REGISTER_BROKER, ask, body)
            assert name in {queue.broker_name for queue in (await route(wire)).queue_datas}


@pytest.mark.parametrize(("compressed", "version"), [(False, 513), (True, 513), (False, 30)])
async def test_one_odd_topic_costs_no_other_its_route(
    server: NameServer, caplog: pytest.LogCaptureFixture, compressed: bool, version: int
) -> None:
    topics = {
        "Fine": TopicConfig("Fine", 4, 4),
        "Also": TopicConfig("Also", 4, 4),
        "Wide": TopicConfig("Wide", 100_000, 100_000),
        "Broken": TopicConfig("Broken", 4, 4, perm=1 << 40),
    }
    table = TopicConfigTable(topics, DataVersion(1, 1, 0))
    body = encode_registration(RegisterBrokerBody(table), compressed=compressed)
    if version == 30:
        body = encode_body(table)
    async with await Wire.connect(server.port, version=version) as wire:
        await wire.ok(RequestCode.REGISTER_BROKER, another(compressed=compressed), body)
        assert (await route(wire, "Fine")).queue_datas[0].read_queue_nums == 4
        assert (await route(wire, "Wide")).queue_datas[0].read_queue_nums == 65_536
        assert (await wire.request(ROUTE, asks.GetRouteInfo("Broken"))).code == 17
    (line,) = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert "broker=broker-a count=2 first=Wide" in line


@pytest.mark.parametrize("body", [b"{", b"\xff" * 20, b"[]", b"\x78\xda" + b"x" * 20])
async def test_a_registration_that_cannot_be_read_is_refused(wire: Wire, body: bytes) -> None:
    answer = await wire.request(RequestCode.REGISTER_BROKER, BROKER, body)
    assert answer.code == 1
    assert answer.remark is not None
    assert "RegisterBrokerBody" in answer.remark or "register broker failed" in answer.remark


async def test_a_body_with_another_checksum_is_refused(wire: Wire) -> None:
    ask = another(body_crc32=12345)
    answer = await wire.request(RequestCode.REGISTER_BROKER, ask, table("T", "U"))
    assert answer.code == 1
    assert answer.remark is not None
    assert "crc32 not match" in answer.remark


async def test_brokers_get_the_list_of_ordered_topics(wire: Wire) -> None:
    put = asks.PutKvConfig("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    await wire.ok(RequestCode.PUT_KV_CONFIG, put)
    assert json_body(KvTable, await register(wire)).table == {"T": "broker-a:4"}


async def test_with_a_key_only_brokers_that_have_it_may_register(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = await start_server(registration_key="k3y")
    registration = encode_header(BROKER)
    leaving = encode_header(
        asks.UnregisterBroker("broker-a", BROKER.broker_addr, BROKER.cluster_name, 0)
    )
    announced = encode_header(asks.RegisterTopic("V"))
    queues = TopicRouteData((QueueData("broker-a", 1, 1, 6, 0),))
    async with await Wire.connect(server.port) as wire:
        for wrong in (None, "", "k3y2", "é"):
            header = registration if wrong is None else {**registration, REGISTRATION_KEY: wrong}
            answer = await wire.request(RequestCode.REGISTER_BROKER, header, table("T", "U"))
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "--other-brokers" in (answer.remark or "")
        assert (await wire.request(ROUTE, asks.GetRouteInfo("T"))).code != 0
        # A peer that goes on must not fill the log.
        logged = [r.getMessage() for r in caplog.records if "broker refused" in r.getMessage()]
        assert [line.rpartition("=")[2] for line in logged] == ["1", "2", "4"]
        key = {REGISTRATION_KEY: "k3y"}
        await wire.ok(RequestCode.REGISTER_BROKER, registration | key, table("T", "U"))
        await wire.ok(RequestCode.REGISTER_TOPIC_IN_NAMESRV, announced | key, queues)
        await route(wire, "V")
        for code, header in (
            (RequestCode.REGISTER_TOPIC_IN_NAMESRV, encode_header(asks.RegisterTopic("W"))),
            (RequestCode.UNREGISTER_BROKER, leaving),
        ):
            answer = await wire.request(code, header, queues)
            assert answer.code == ResponseCode.NO_PERMISSION
        await route(wire, "T")
        assert (await wire.request(ROUTE, asks.GetRouteInfo("W"))).code != 0
        await wire.ok(RequestCode.UNREGISTER_BROKER, leaving | key)
        assert (await wire.request(ROUTE, asks.GetRouteInfo("T"))).code != 0


@pytest.mark.parametrize("compressed", [True, False])
async def test_others_are_served_while_a_large_registration_is_read(
    server: NameServer, compressed: bool
) -> None:
    names = [f"topic-{number:05d}" for number in range(8000)]
    body = table(*names)
    data = encode_registration(body, compressed=compressed)
    async with (
        await Wire.connect(server.port) as wire,
        await Wire.connect(server.port) as other,
    ):
        await register(other, broker=another(broker_name="other", broker_addr="h2:1"))
        header = another(compressed=compressed)
        large = wire.start(RequestCode.REGISTER_BROKER, header, data)
        served = 0
        while not large.done():
            await route(other)
            served += 1
        assert (await large).code == ResponseCode.SUCCESS
        assert served > 3
        await route(wire, names[-1])


async def test_a_broker_that_leaves_takes_its_routes_along(wire: Wire) -> None:
    await register(wire)
    leave = asks.UnregisterBroker("broker-a", "10.0.0.5:10911", "DefaultCluster", 0)
    await wire.ok(RequestCode.UNREGISTER_BROKER, leave)
    assert (await wire.request(ROUTE, asks.GetRouteInfo("T"))).code == 17
    await wire.ok(RequestCode.UNREGISTER_BROKER, leave)


async def test_a_broker_can_ask_whether_to_register(wire: Wire) -> None:
    ask = asks.QueryDataVersion("broker-a", "10.0.0.5:10911", "DefaultCluster", 0)
    version = DataVersion(1, 1_700_000_000_000, 0)
    unknown = await wire.ok(RequestCode.QUERY_DATA_VERSION, ask, version)
    assert unknown.ext == {"changed": "true"}
    assert body_of(unknown) == b""
    await register(wire)
    same = await wire.ok(RequestCode.QUERY_DATA_VERSION, ask, version)
    assert same.ext == {"changed": "false"}
    assert json_body(DataVersion, same) == version
    later = await wire.ok(RequestCode.QUERY_DATA_VERSION, ask, DataVersion(2, 0, 0))
    assert later.ext == {"changed": "true"}


# Lists


async def test_clusters_and_members_are_listed(wire: Wire) -> None:
    await register(wire)
    await register(wire, broker=another(broker_id=1, broker_addr="10.0.0.6:10911"))
    info = json_body(ClusterInfo, await wire.ok(RequestCode.GET_BROKER_CLUSTER_INFO))
    assert info.cluster_addr_table == {"DefaultCluster": ("broker-a",)}
    assert info.broker_addr_table["broker-a"].broker_addrs[1] == "10.0.0.6:10911"
    ask = asks.GetBrokerMemberGroup("DefaultCluster", "broker-a")
    group = await wire.ok(RequestCode.GET_BROKER_MEMBER_GROUP, ask)
    members = json_body(BrokerMemberGroup, group).broker_member_group
    assert members is not None
    assert set(members.broker_addrs) == {0, 1}


async def test_topics_are_listed(wire: Wire) -> None:
    await register(wire)
    everything = await wire.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert set(json_body(TopicList, everything).topic_list) == {"T", "U"}
    by_cluster = RequestCode.GET_TOPICS_BY_CLUSTER
    for cluster, names in (("DefaultCluster", {"T", "U"}), ("none", set())):
        answer = await wire.ok(by_cluster, asks.GetTopicsByCluster(cluster))
        assert set(json_body(TopicList, answer).topic_list) == names
    system = json_body(TopicList, await wire.ok(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS))
    assert {"DefaultCluster", "broker-a"} <= set(system.topic_list)
    assert system.broker_addr == "10.0.0.5:10911"


async def test_lists_of_nothing_are_empty_and_not_missing(wire: Wire) -> None:
    answer = await wire.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert body_of(answer) == b'{"topicList":[]}'


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (RequestCode.GET_UNIT_TOPIC_LIST, {"unit", "both"}),
        (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, {"sub", "both"}),
        (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {"sub"}),
    ],
)
async def test_topics_of_units_are_listed(wire: Wire, code: int, names: set[str]) -> None:
    configs = {
        name: TopicConfig(name, topic_sys_flag=flag)
        for name, flag in (("plain", 0), ("unit", 1), ("sub", 2), ("both", 3))
    }
    body = RegisterBrokerBody(TopicConfigTable(configs, DataVersion(1, 1, 0)))
    await wire.ok(RequestCode.REGISTER_BROKER, BROKER, body)
    assert set(json_body(TopicList, await wire.ok(code)).topic_list) == names


async def test_a_topic_can_be_deleted_and_registered(wire: Wire) -> None:
    await register(wire)
    data = await route(wire)
    await wire.ok(RequestCode.DELETE_TOPIC_IN_NAMESRV, asks.DeleteTopicInNamesrv("T"))
    assert (await wire.request(ROUTE, asks.GetRouteInfo("T"))).code == 17
    await wire.ok(RequestCode.REGISTER_TOPIC_IN_NAMESRV, asks.RegisterTopic("T"), data)
    assert (await route(wire)).queue_datas == data.queue_datas


async def test_write_permission_is_taken_and_given_back(wire: Wire) -> None:
    await register(wire)
    wiped = await wire.ok(RequestCode.WIPE_WRITE_PERM_OF_BROKER, asks.WipeWritePerm("broker-a"))
    assert wiped.ext == {"wipeTopicCount": "2"}
    assert (await route(wire)).queue_datas[0].perm == 4
    added = await wire.ok(RequestCode.ADD_WRITE_PERM_OF_BROKER, asks.AddWritePerm("broker-a"))
    assert added.ext == {"addTopicCount": "2"}
    assert (await route(wire)).queue_datas[0].perm == 6


# Texts


async def test_texts_are_kept_listed_and_deleted(wire: Wire) -> None:
    await wire.ok(RequestCode.PUT_KV_CONFIG, asks.PutKvConfig("N", "k", "v"))
    got = await wire.ok(RequestCode.GET_KV_CONFIG, asks.GetKvConfig("N", "k"))
    assert got.ext == {"value": "v"}
    listed = await wire.ok(RequestCode.GET_KVLIST_BY_NAMESPACE, asks.GetKvList("N"))
    assert json_body(KvTable, listed).table == {"k": "v"}
    await wire.ok(RequestCode.DELETE_KV_CONFIG, asks.DeleteKvConfig("N", "k"))
    for code, ask in (
        (RequestCode.GET_KV_CONFIG, asks.GetKvConfig("N", "k")),
        (RequestCode.GET_KVLIST_BY_NAMESPACE, asks.GetKvList("N")),
    ):
        answer = await wire.request(code, ask)
        assert answer.code == 22
        assert answer.remark


async def test_texts_survive_a_restart(start_server: StartServer, tmp_path: Path) -> None:
    first = await start_server(data=tmp_path)
    async with await Wire.connect(first.port) as wire:
        await wire.ok(RequestCode.PUT_KV_CONFIG, asks.PutKvConfig("N", "k", "v"))
    await first.stop()
    second = await start_server(data=tmp_path)
    async with await Wire.connect(second.port) as wire:
        got = await wire.ok(RequestCode.GET_KV_CONFIG, asks.GetKvConfig("N", "k"))
        assert got.ext == {"value": "v"}


async def test_a_text_that_cannot_be_saved_is_an_error(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = await start_server(data=tmp_path / "data")
    (tmp_path / "data").write_text("not a directory")
    async with await Wire.connect(server.port) as wire:
        put = asks.PutKvConfig("N", "k", "v")
        answer = await wire.request(RequestCode.PUT_KV_CONFIG, put)
        assert answer.code != 0
        assert answer.remark


# Settings


async def test_settings_are_shown_and_not_changed(wire: Wire) -> None:
    answer = await wire.ok(RequestCode.GET_NAMESRV_CONFIG)
    texts = decode_body(ConfigText, body_of(answer)).settings
    assert texts["scanNotActiveBrokerInterval"] == "5000"
    change = await wire.request(
        RequestCode.UPDATE_NAMESRV_CONFIG, body=b"kvConfigPath=/etc/passwd\n"
    )
    assert change.code == 16
    assert change.remark


# Bad input


def fields_of(code: int) -> list[HeaderField]:
    request = REQUESTS.get(code)
    if request is None or request.header is None:
        return []
    return header_fields(request.header)


HOSTILE = ["", "-1", "NaN", "9" * 30, "\x00", "../..", "x" * 70_000, "\U0001f42b", "a\nb"]
HOSTILE_BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b"[" * 50_000,
    b"\x78\xda\x00",
    b"1" * 999,
]


async def test_every_kind_of_nonsense_is_answered(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for code in REQUEST_NAMES:
        fields = fields_of(code)
        plausible = {
            field.wire: {"str": "name", "bool": "false"}.get(field.kind, "1") for field in fields
        }
        cases: list[tuple[dict[str, str] | None, bytes]] = [(None, b""), ({}, b"")]
        cases += [(dict.fromkeys(plausible, text), b"") for text in HOSTILE]
        cases += [(plausible, body) for body in HOSTILE_BODIES]
        for ext, body in cases:
            answer = await wire.request(code, ext, body)
            assert answer.code in (0, 1, 3, 14, 16, 17, 22, 29), (code, answer)
            if answer.code:
                assert answer.remark, code
        if any(field.is_required for field in fields):
            assert (await wire.request(code, {}, b"")).code != 0, REQUEST_NAMES[code]
    worse = [r for r in caplog.records if r.levelno >= logging.ERROR or r.exc_info]
    assert worse == []
    await register(wire, "T", "U", broker=another(broker_name="still-here"))
    assert await route(wire)


async def test_unknown_codes_are_refused(wire: Wire) -> None:
    answer = await wire.request(9999)
    assert (answer.code, answer.remark) == (3, " request type 9999 not supported")


async def test_a_binary_question_gets_a_binary_answer(wire: Wire) -> None:
    await register(wire)
    answer = await wire.request(ROUTE, asks.GetRouteInfo("T"), serializer=1)
    assert answer.serializer == 1
    assert answer.code == 0


async def test_a_cpp_client_gets_json(server: NameServer) -> None:
    async with await Wire.connect(server.port, language=Language.CPP, version=63) as wire:
        await register(wire)
        answer = await wire.ok(ROUTE, asks.GetRouteInfo("T"))
        assert answer.serializer == 0
        assert encode_body(decode_body(TopicRouteData, body_of(answer))) == body_of(answer)
