"""Name servers and brokers together: several of each, dead ones among them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.fake_clock import FakeClock
from tests.support.wire import Wire, json_body

from penstock.broker import Broker, BrokerConfig
from penstock.errors import LifecycleError, ListenFailed
from penstock.nameserver import NameServer, NameServerConfig
from penstock.protocol.bodies.registration import RegisterBrokerBody
from penstock.protocol.bodies.routes import TopicRouteData
from penstock.protocol.bodies.topics import TopicConfig, TopicConfigTable
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import decode_command, encode_command, reply
from penstock.protocol.frames import FrameDecoder
from penstock.protocol.headers import nameserver as asks
from penstock.protocol.headers.admin import UpdateTopic
from penstock.store import StoreConfig
from penstock.testing.eventually import eventually

StartServer = Callable[..., Awaitable[NameServer]]
SMALL = StoreConfig(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=6000,
    max_hash_slot_num=100,
    max_index_num=400,
)
REGISTER = asks.RegisterBroker("broker-a", "10.0.0.5:10911", "DefaultCluster", "10.0.0.5:10912", 0)
TOPICS = RegisterBrokerBody(TopicConfigTable({"T": TopicConfig("T"), "U": TopicConfig("U")}))
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def has_route(server: NameServer, topic: str = "T", brokers: int = 1) -> bool:
    route = server.routes.route(topic)
    return route is not None and len(route.queues) == brokers


def has_no_route(server: NameServer, topic: str = "T") -> bool:
    return server.routes.route(topic) is None


# Expiry


@pytest.mark.spec("S11")
async def test_a_silent_broker_is_dropped_after_two_minutes(start_server: StartServer) -> None:
    clock = FakeClock()
    server = await start_server(clock=clock)
    async with await Wire.connect(server.port) as broker:
        await broker.ok(RequestCode.REGISTER_BROKER, REGISTER, TOPICS)
        await clock.advance(119)
        assert has_route(server)
        await clock.advance(7)
        assert has_no_route(server)
        await eventually(lambda: broker.is_closed)


@pytest.mark.parametrize("sign", ["register", "heartbeat", "version"])
async def test_any_sign_of_life_counts(start_server: StartServer, sign: str) -> None:
    clock = FakeClock()
    server = await start_server(clock=clock)
    async with await Wire.connect(server.port) as broker:
        await broker.ok(RequestCode.REGISTER_BROKER, REGISTER, TOPICS)
        for _ in range(4):
            await clock.advance(100)
            if sign == "register":
                await broker.ok(RequestCode.REGISTER_BROKER, REGISTER, TOPICS)
            elif sign == "heartbeat":
                beat = asks.BrokerHeartbeat("DefaultCluster", "10.0.0.5:10911", "broker-a")
                await broker.ok(RequestCode.BROKER_HEARTBEAT, beat)
            else:
                ask = asks.QueryDataVersion("broker-a", "10.0.0.5:10911", "DefaultCluster", 0)
                version = TOPICS.topics.data_version
                await broker.ok(RequestCode.QUERY_DATA_VERSION, ask, version)
        assert has_route(server)


async def test_a_broker_may_ask_for_another_patience(start_server: StartServer) -> None:
    clock = FakeClock()
    server = await start_server(clock=clock)
    async with await Wire.connect(server.port) as broker:
        ask = asks.RegisterBroker(
            "broker-a", "10.0.0.5:10911", "C", "10.0.0.5:10912", 0, heartbeat_timeout_millis=1000
        )
        await broker.ok(RequestCode.REGISTER_BROKER, ask, TOPICS)
        await clock.advance(7)
        assert has_no_route(server)


async def test_a_clock_that_is_set_drops_no_broker(start_server: StartServer) -> None:
    clock = FakeClock()
    server = await start_server(clock=clock)
    async with await Wire.connect(server.port) as broker:
        await broker.ok(RequestCode.REGISTER_BROKER, REGISTER, TOPICS)
        clock.jump(86_400)
        await clock.advance(10)
        assert has_route(server)


@pytest.mark.spec("S11")
async def test_a_broker_whose_connection_ends_is_gone_at_once(server: NameServer) -> None:
    broker = await Wire.connect(server.port)
    await broker.ok(RequestCode.REGISTER_BROKER, REGISTER, TOPICS)
    assert has_route(server)
    await broker.close()
    await eventually(lambda: has_no_route(server))


async def test_a_broker_that_reconnected_stays_when_its_old_connection_ends(
    server: NameServer,
) -> None:
    old = await Wire.connect(server.port)
    await old.ok(RequestCode.REGISTER_BROKER, REGISTER, TOPICS)
    async with await Wire.connect(server.port) as new:
        await new.ok(RequestCode.REGISTER_BROKER, REGISTER, TOPICS)
        await old.close()
        await new.request(ROUTE, asks.GetRouteInfo("T"))
        await asyncio.sleep(0.05)
        assert has_route(server)


# With real brokers


def a_broker(root: Path, name: str, *addresses: str, **settings: object) -> Broker:
    config = BrokerConfig(listen_port=0, broker_name=name, **settings)  # type: ignore[arg-type]
    return Broker(config, root / name, store_config=SMALL, name_servers=addresses)


def dead_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.spec("S11")
async def test_a_new_topic_is_routable_at_every_name_server(
    start_server: StartServer, tmp_path: Path
) -> None:
    servers = [await start_server(), await start_server()]
    async with a_broker(tmp_path, "broker-a", *(s.address for s in servers)) as broker:
        for server in servers:
            assert has_route(server, "TBW102")
        async with await Wire.connect(broker.port) as wire:
            await wire.send("T")
        await eventually(lambda: all(has_route(server) for server in servers))
    await eventually(lambda: all(has_no_route(server) for server in servers))


async def test_a_dead_name_server_delays_no_broker(
    start_server: StartServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, dead = await start_server(), dead_address()
    async with a_broker(tmp_path, "broker-a", dead, server.address) as broker:
        async with await Wire.connect(broker.port) as wire:
            await wire.send("T")
        await eventually(lambda: has_route(server))
    lines = [r.getMessage() for r in caplog.records if dead in r.getMessage()]
    assert len([line for line in lines if line.startswith("not registered")]) == 1


async def test_a_name_server_that_comes_later_learns_everything(
    start_server: StartServer, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    clock = FakeClock()
    broker = Broker(
        BrokerConfig(listen_port=0),
        tmp_path / "store",
        store_config=SMALL,
        name_servers=[f"127.0.0.1:{port}"],
        clock=clock,
    )
    async with broker:
        server = await start_server(settings={"listen_port": port})
        for _ in range(10):
            await clock.advance(30)
            await asyncio.sleep(0.05)
            if not has_no_route(server, "TBW102"):
                break
        await eventually(lambda: has_route(server, "TBW102"))


async def test_two_brokers_share_the_queues_of_a_topic(server: NameServer, tmp_path: Path) -> None:
    async with (
        a_broker(tmp_path, "broker-a", server.address) as first,
        a_broker(tmp_path, "broker-b", server.address) as second,
        AsyncExitStack() as stack,
    ):
        for broker in (first, second):
            wire = await stack.enter_async_context(await Wire.connect(broker.port))
            await wire.send("T")
        await eventually(lambda: has_route(server, "T", brokers=2))
        asker = await stack.enter_async_context(await Wire.connect(server.port))
        data = json_body(TopicRouteData, await asker.ok(ROUTE, asks.GetRouteInfo("T")))
        addresses = {broker.broker_addrs[0] for broker in data.broker_datas}
        assert addresses == {first.address, second.address}


async def test_order_topics_of_the_name_server_reach_the_broker(
    server: NameServer, tmp_path: Path
) -> None:
    async with await Wire.connect(server.port) as wire:
        put = asks.PutKvConfig("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
        await wire.ok(RequestCode.PUT_KV_CONFIG, put)
    async with a_broker(tmp_path, "broker-a", server.address) as broker:
        async with await Wire.connect(broker.port) as wire:
            await wire.send("T")

        def is_ordered() -> bool:
            config = broker.state.topics.get("T")
            return config is not None and config.order

        await eventually(is_ordered)


# Lifecycle


async def test_a_port_in_use_is_named(server: NameServer) -> None:
    second = NameServer(NameServerConfig(listen_port=server.port))
    with pytest.raises(ListenFailed, match=str(server.port)):
        await second.start()


def test_routes_of_a_server_that_is_not_running_are_an_error() -> None:
    with pytest.raises(LifecycleError):
        _ = NameServer().routes


async def test_two_hundred_clients_come_and_go(server: NameServer) -> None:
    async def visit() -> None:
        async with await Wire.connect(server.port) as wire:
            assert (await wire.request(ROUTE, asks.GetRouteInfo("none"))).code == 17

    for _ in range(4):
        await asyncio.gather(*(visit() for _ in range(50)))


# Topics that tools create


async def test_a_topic_has_a_route_when_its_creation_is_answered(
    start_server: StartServer, tmp_path: Path
) -> None:
    servers = [await start_server(), await start_server()]
    addresses = [dead_address(), *(server.address for server in servers)]
    async with (
        a_broker(tmp_path, "broker-a", *addresses) as broker,
        await Wire.connect(broker.port) as wire,
    ):
        for number in range(5):
            ask = UpdateTopic(f"T{number}", "TBW102", 3, 3, 6, "SINGLE_TAG", False)
            await wire.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, ask)
            assert all(has_route(server, f"T{number}") for server in servers)


async def test_a_name_server_that_hangs_delays_a_creation_for_a_bounded_time(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    connections: list[asyncio.StreamWriter] = []
    answers = True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        decoder = FrameDecoder()
        while data := await reader.read(1 << 16):
            for frame in decoder.feed(data):
                if answers:
                    writer.write(encode_command(reply(decode_command(frame))))

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    broker = Broker(
        BrokerConfig(listen_port=0),
        tmp_path / "store",
        store_config=SMALL,
        name_servers=[f"127.0.0.1:{port}"],
        clock=clock,
    )
    async with broker, await Wire.connect(broker.port) as wire:
        answers = False
        ask = UpdateTopic("T", "TBW102", 3, 3, 6, "SINGLE_TAG", False)
        pending = wire.start(RequestCode.UPDATE_AND_CREATE_TOPIC, ask)

        async def is_answered() -> bool:
            await clock.advance(0.5)
            return pending.done()

        await eventually(is_answered)
        assert pending.result().code == 0
        for writer in connections:
            writer.close()
    listener.close()
    await listener.wait_closed()


async def test_a_broker_without_name_servers_creates_topics(tmp_path: Path) -> None:
    async with (
        a_broker(tmp_path, "broker-a") as broker,
        await Wire.connect(broker.port) as wire,
    ):
        ask = UpdateTopic("T", "TBW102", 3, 3, 6, "SINGLE_TAG", False)
        await wire.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, ask)
