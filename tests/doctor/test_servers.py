"""Name servers and brokers: each flaw made for real, and found."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.doctor.patients import GROUP, consuming, examine, only, shop
from tests.support.asking import put_topic
from tests.support.scripted import ScriptedCluster
from tests.support.stage import Stage, in_virtual_time

from penstock import aio, doctor
from penstock.doctor import Severity, Thresholds
from penstock.doctor.checks import servers
from penstock.doctor.gathering import gather_cluster
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.bodies.common import KvTable
from penstock.protocol.bodies.registration import RegisterBrokerBody
from penstock.protocol.bodies.routes import BrokerData, ClusterInfo
from penstock.protocol.bodies.topics import TopicConfigTable
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers import nameserver as asks
from penstock.remoting import Peer, Promise
from penstock.runtime.clock import SystemClock


class ShiftedClock(SystemClock):
    """The machine's clock, set wrong."""

    __slots__ = ("_by",)

    def __init__(self, by: float) -> None:
        self._by = by

    def time(self) -> float:
        return super().time() + self._by

    def time_ms(self) -> int:
        return super().time_ms() + round(self._by * 1000)


@in_virtual_time
async def test_a_broker_that_is_cut_off_is_reported_with_its_address() -> None:
    async with shop(brokers=2) as mq, consuming(mq):
        [_, second] = await mq.admin.cluster()
        mq.network.isolate(second.address.split(":")[0])
        report = await examine(mq)
        found = next(f for f in report.findings if f.cause == "broker-unreachable")
        assert found.severity is Severity.CRITICAL
        assert found.evidence["broker"] == "broker-b"
        assert second.address in found.what
        assert mq.namesrv in found.what
        # The other one was asked all the same.
        assert report.facts.cluster.masters.keys() == {"broker-a"}
        assert len(report.facts.members) == 1
        mq.network.heal()


async def test_a_name_server_that_is_gone_is_reported(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        first = await stage.name_server()
        second = await stage.name_server()
        await stage.broker(broker_ip1="127.0.0.1")
        both = [first.address, second.address]
        async with aio.Admin(namesrv=both) as admin:
            assert (await doctor.examine_cluster(admin)).is_healthy
            await second.stop()
            found = only(await doctor.examine_cluster(admin), "nameserver-unreachable")
        assert found.severity is Severity.WARNING
        assert found.evidence["nameserver"] == second.address
        assert found.evidence["answering"] == 1


async def test_without_any_name_server_that_is_all_there_is_to_say(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        server = await stage.name_server()
        address = server.address
        await server.stop()
        async with aio.Admin(namesrv=address) as admin:
            found = only(await doctor.examine_group(admin, GROUP), "nameserver-unreachable")
        assert found.severity is Severity.CRITICAL
        assert address in found.what


async def test_a_name_server_without_brokers_is_reported(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        server = await stage.name_server()
        async with aio.Admin(namesrv=server.address) as admin:
            found = only(await doctor.examine_cluster(admin), "no-broker")
        assert found.way_out[0] == f"penstock broker --namesrv {server.address}"


async def test_name_servers_that_disagree_are_reported(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        first = await stage.name_server()
        await stage.broker(broker_ip1="127.0.0.1")
        # The broker does not know this one.
        second = await stage.name_server()
        async with aio.Admin(namesrv=[first.address, second.address]) as admin:
            found = only(await doctor.examine_cluster(admin), "stale-registration")
        assert found.evidence["broker"] == "broker-a"
        said = found.evidence["said"]
        assert isinstance(said, dict)
        assert said[second.address] == "not registered"


async def test_an_entry_that_leads_to_another_broker_is_reported(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        server = await stage.name_server()
        broker = await stage.broker("broker-a", broker_ip1="127.0.0.1")
        # What is left of a broker that had this address before, and was killed.
        wire = await stage.connect(server)
        address = f"127.0.0.1:{broker.port}"
        header = asks.RegisterBroker("broker-old", address, "DefaultCluster", address, 0)
        await wire.ok(RequestCode.REGISTER_BROKER, header, RegisterBrokerBody(TopicConfigTable()))
        async with aio.Admin(namesrv=server.address) as admin:
            found = only(await doctor.examine_cluster(admin), "stale-registration")
        assert found.evidence["broker"] == "broker-old"
        assert found.evidence["answers_as"] == "broker-a"


@pytest.mark.parametrize("by", [3600.0, -90.0])
async def test_a_broker_whose_clock_is_wrong_is_reported(tmp_path: Path, by: float) -> None:
    async with Stage(tmp_path) as stage:
        server = await stage.name_server()
        stage.clock = ShiftedClock(by)
        await stage.broker(broker_ip1="127.0.0.1")
        async with aio.Admin(namesrv=server.address) as admin:
            found = only(await doctor.examine_cluster(admin), "clock-skew")
        ahead = found.evidence["ahead_seconds"]
        assert isinstance(ahead, float)
        assert abs(ahead - by) < 5
        assert ("ahead of" if by > 0 else "behind") in found.what


async def test_the_time_an_answer_took_makes_the_clock_less_certain() -> None:
    """It was on the way back all the time, so the broker seems to be behind by half of it."""
    took = 2.5

    def answer_late(peer: Peer, request: Command) -> Promise:
        age = "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"
        info = {"bootTimestamp": str(clock.time_ms()), "runtime": age}
        answer = Command(0, body=encode_body(KvTable(info)))
        promise = Promise()
        asyncio.get_running_loop().call_later(took, promise.resolve, answer)
        return promise

    clock = SystemClock()
    async with ScriptedCluster(clock) as cluster:
        broker = cluster.broker()
        info = ClusterInfo(
            {"broker-a": BrokerData("scripted", "broker-a", {0: broker.address})},
            {"scripted": ("broker-a",)},
        )
        cluster.nameserver.script[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda peer, request: (
            Command(0, body=encode_body(info))
        )
        broker.script[RequestCode.GET_BROKER_RUNTIME_INFO] = answer_late
        async with aio.Admin(namesrv=cluster.namesrv, timeout="60s") as admin:
            facts = await gather_cluster(admin)
    [found] = facts.brokers
    assert found.clock_ahead_ms is not None
    assert found.clock_ahead_ms < 0
    assert found.clock_precision_ms >= took * 1000 / 2
    limits = Thresholds(skew_ms=100)
    assert not list(servers.clock_skew(facts, limits))
    certain = replace(facts, brokers=(replace(found, clock_precision_ms=500),))
    assert list(servers.clock_skew(certain, limits))


async def test_a_broker_whose_disk_is_full_is_reported(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        server = await stage.name_server()
        await stage.broker(broker_ip1="127.0.0.1")
        async with aio.Admin(namesrv=server.address) as admin:
            used = (await doctor.examine_cluster(admin)).facts.brokers[0].disk_used
            assert used is not None
            limits = Thresholds(disk_used=used)
            found = only(await doctor.examine_cluster(admin, limits=limits), "disk-full")
            assert found.evidence == {"broker": "broker-a", "disk_used": used}
            roomy = Thresholds(disk_used=used + 0.1)
            assert (await doctor.examine_cluster(admin, limits=roomy)).findings == ()


async def test_a_message_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        server = await stage.name_server()
        broker = await stage.broker(broker_ip1="127.0.0.1")
        wire = await stage.connect(broker)
        await put_topic(wire, "T")
        for _ in range(3):
            await wire.send("T", b"x")
        log = tmp_path / "broker-a/commitlog/00000000000000000000"
        entry = broker.state.storage.store.entry("T", 0, 1)
        assert entry is not None
        with log.open("r+b") as file:
            file.seek(entry.log_position)
            file.write(b"\x7f")
        await wire.pull("g", "T", 1)
        async with aio.Admin(namesrv=server.address) as admin:
            found = only(await doctor.examine_cluster(admin), "store-damaged")
        assert "message 1 of topic 'T', queue 0, cannot be read" in found.what


async def test_a_clock_that_is_off_by_a_second_is_fine(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        server = await stage.name_server()
        stage.clock = ShiftedClock(1.5)
        await stage.broker(broker_ip1="127.0.0.1")
        async with aio.Admin(namesrv=server.address) as admin:
            assert (await doctor.examine_cluster(admin)).is_healthy
