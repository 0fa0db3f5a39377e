"""Brokers and name servers: registered at once, again and again, and gone when silent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.asking import put_topic, route
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire, json_body

from penstock.nameserver import NameServer
from penstock.protocol.bodies.codec import encode_state
from penstock.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from penstock.protocol.bodies.routes import ClusterInfo
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.nameserver import GetRouteInfo
from penstock.remoting import Peer, Server
from penstock.testing.eventually import eventually
from penstock.testing.virtual_time.loop import VirtualLoop


async def has_route(wire: Wire, topic: str) -> bool:
    return await route(wire, topic) is not None


@pytest.mark.spec("S11")
async def test_a_new_topic_has_a_route_right_after_it_was_made(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        broker = await stage.broker()
        wire = await stage.connect(broker)
        assert await has_route(names, "TBW102")
        assert not await has_route(names, "T")
        await wire.send("T")
        found = await eventually(lambda: route(names, "T"))
        assert found is not None
        [queues], [place] = found.queues, found.brokers
        assert (queues.read_queues, queues.write_queues, queues.permission) == (4, 4, 6)
        assert (place.broker_name, place.addresses) == ("broker-a", {0: broker.address})
        await put_topic(wire, "U", 3)
        await eventually(lambda: has_route(names, "U"))


@pytest.mark.spec("S11")
async def test_a_topic_has_a_route_when_its_first_send_is_answered(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        wire = await stage.connect(await stage.broker())
        # Not eventually: a consumer that is started now asks once, and then a second later.
        for topic in ("T", "U", "V"):
            assert (await wire.send(topic)).code == 0
            assert await has_route(names, topic)


@pytest.mark.parametrize("levels", [10, 61])
async def test_a_topic_with_odd_settings_does_not_keep_the_others_from_being_registered(
    tmp_path: Path, levels: int
) -> None:
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        wire = await stage.connect(await stage.broker())
        odd = b'{"topicConfigList":[{"topicName":"Odd","x":%b}]}' % (b"[" * levels + b"]" * levels)
        await wire.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=odd)
        await wire.send("T")
        assert await has_route(names, "T")
        assert await has_route(names, "Odd")


async def test_a_group_that_wants_too_many_retry_queues_costs_no_registration(
    tmp_path: Path,
) -> None:
    table = SubscriptionGroupTable({"g": SubscriptionGroupConfig("g", retry_queue_nums=100_000)})
    file = tmp_path / "broker-a/config/subscriptionGroup.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(encode_state(table))
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await wire.heartbeat("c", consumer="g", topics=["T"])
        assert broker.state.topics.require("%RETRY%g").read_queue_nums == 65_536
        await wire.send("T")
        assert await has_route(names, "T")
        await broker.stop()
        assert "T" in (await stage.broker()).state.topics


@in_virtual_time
async def test_a_mute_name_server_delays_a_first_message_for_two_seconds(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        server = Server(lambda peer, command: Command(0), "127.0.0.1", 0)
        await server.start()
        broker = await stage.broker(namesrv_addr=f"127.0.0.1:{server.port}")
        wire = await stage.connect(broker)
        for peer in server.peers:
            peer.use_handler(lambda peer, command: None)
        begin = stage.clock.monotonic()
        assert (await wire.send("T")).code == 0
        assert 1 < stage.clock.monotonic() - begin < 3
        begin = stage.clock.monotonic()
        assert (await wire.send("T")).code == 0
        assert stage.clock.monotonic() - begin < 1
        await server.stop(0)


@pytest.mark.spec("S11")
@in_virtual_time
async def test_a_new_topic_is_known_long_before_the_next_round(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        wire = await stage.connect(await stage.broker())
        begin = stage.clock.monotonic()
        await wire.send("T")
        await eventually(lambda: has_route(names, "T"))
        # Rounds are half a minute apart; clients ask again within a second or so.
        assert stage.clock.monotonic() - begin < 1


@pytest.mark.spec("S11")
@in_virtual_time
async def test_a_broker_registers_at_its_start_and_every_half_minute(tmp_path: Path) -> None:
    heard: list[float] = []

    def note(peer: Peer, command: Command) -> Command:
        if command.code == RequestCode.REGISTER_BROKER:
            heard.append(stage.clock.monotonic() - begin)
        return Command(0)

    async with Stage(tmp_path) as stage:
        begin = stage.clock.monotonic()
        server = Server(note, "127.0.0.1", 0)
        await server.start()
        await stage.broker(namesrv_addr=f"127.0.0.1:{server.port}")
        await stage.clock.sleep(95)
        # One at the start, then one each round.
        assert [round(at / 30) for at in heard if at >= 5] == [1, 2, 3]
        assert all(abs(at - 30 * round(at / 30)) < 2 for at in heard)
        await server.stop(0)


async def test_servers_bound_to_a_name_are_reached(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        server = await stage.name_server(bind_host="localhost")
        names = await stage.connect(server)
        broker = await stage.broker(bind_host="localhost", namesrv_addr=server.address)
        wire = await stage.connect(broker)
        assert (await wire.send("T")).code == 0
        found = await route(names, "T")
        assert found is not None
        assert found.brokers[0].addresses == {0: broker.address}
        assert broker.address in (f"127.0.0.1:{broker.port}", f"[::1]:{broker.port}")


async def test_an_advertised_host_name_is_not_resolved(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(broker_ip1="localhost")
        wire = await stage.connect(broker)
        assert broker.address == f"localhost:{broker.port}"
        answer = await wire.send("T")
        # The id of a message has room for an address only.
        assert (answer.ext or {})["msgId"].startswith("7F000001")


@pytest.mark.spec("S11")
async def test_a_broker_that_stops_says_so(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        broker = await stage.broker()
        assert await has_route(names, "TBW102")
        await broker.stop()
        assert not await has_route(names, "TBW102")


@pytest.mark.spec("S11")
@in_virtual_time
async def test_a_silent_broker_loses_its_routes_after_two_minutes(tmp_path: Path) -> None:
    loop = _virtual_loop()
    async with Stage(tmp_path) as stage:
        with loop.network.host("10.0.0.1"):
            server = await stage.name_server(bind_host="10.0.0.1")
        names = await _connect_from("10.0.0.3", server)
        with loop.network.host("10.0.0.2"):
            await stage.broker(bind_host="10.0.0.2")
        for _ in range(20):
            await stage.clock.sleep(30)
            assert await has_route(names, "TBW102")
        # No connection is closed; the network just drops everything.
        loop.network.isolate("10.0.0.2")
        await stage.clock.sleep(85)
        assert await has_route(names, "TBW102")
        await stage.clock.sleep(50)
        assert not await has_route(names, "TBW102")
        loop.network.heal()
        await eventually(lambda: has_route(names, "TBW102"), 120, interval=1.0)
        await names.close()


def _virtual_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


async def _connect_from(host: str, server: NameServer) -> Wire:
    with _virtual_loop().network.host(host):
        return await Wire.connect(server.port, server.address.partition(":")[0])


@in_virtual_time
async def test_every_name_server_is_registered_with_and_a_dead_one_delays_nothing(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        first, second = await stage.name_server(), await stage.name_server()
        mute = Server(lambda peer, command: None, "127.0.0.1", 0)
        await mute.start()
        wires = [await stage.connect(server) for server in (first, second)]
        broker = await stage.broker(
            namesrv_addr=";".join(
                [first.address, f"127.0.0.1:{mute.port}", second.address, "127.0.0.1:1"]
            )
        )
        wire = await stage.connect(broker)
        begin = stage.clock.monotonic()
        await wire.send("T")
        for names in wires:
            await eventually(lambda names=names: has_route(names, "T"))  # type: ignore[misc]
        assert stage.clock.monotonic() - begin < 1
        await mute.stop(0)


@in_virtual_time
async def test_a_name_server_that_comes_late_is_found_in_the_next_round(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(namesrv_addr="127.0.0.1:9876")
        assert broker.is_running
        names = await stage.connect(await stage.name_server(listen_port=9876))
        assert not await has_route(names, "TBW102")
        await eventually(lambda: has_route(names, "TBW102"), 65, interval=1.0)


@in_virtual_time
async def test_a_name_server_that_restarts_learns_everything_again(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        server = await stage.name_server(listen_port=9876)
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await wire.send("T")
        await server.stop()
        await stage.clock.sleep(50)
        names = await stage.connect(await stage.name_server(listen_port=9876))
        await eventually(lambda: has_route(names, "T"), 65, interval=1.0)


async def test_the_route_says_what_the_broker_allows(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        wire = await stage.connect(await stage.broker(broker_permission=4))
        await put_topic(wire, "T", 1)
        found = await eventually(lambda: route(names, "T"))
        assert found is not None
        assert found.queues[0].permission == 4


async def test_clients_get_the_advertised_address(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        broker = await stage.broker(broker_ip1="192.0.2.7", bind_host="127.0.0.1")
        found = await route(names, "TBW102")
        assert found is not None
        assert found.brokers[0].master == f"192.0.2.7:{broker.port}" == broker.address


async def test_the_cluster_shows_masters_and_slaves(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        master = await stage.broker()
        slave = await stage.broker(
            broker_role="SLAVE", broker_id=1, root=tmp_path / "slave", broker_name="broker-a"
        )
        answer = await names.ok(RequestCode.GET_BROKER_CLUSTER_INFO)
        info = json_body(ClusterInfo, answer)
        assert info.broker_addr_table["broker-a"].broker_addrs == {
            0: master.address,
            1: slave.address,
        }


@pytest.mark.parametrize("topic", ["nowhere", "bad name", ""])
async def test_an_unknown_topic_has_no_route(tmp_path: Path, topic: str) -> None:
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        await stage.broker()
        answer = await names.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfo(topic))
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
