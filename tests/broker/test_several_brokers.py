"""Several brokers under one name server: a topic's queues are spread over them."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
from pathlib import Path

import pytest
from tests.support.asking import all_records, lock, members, put_topic, route
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.errors import StoreLocked
from penstock.model import MessageQueue
from penstock.model.names import READ
from penstock.protocol.bodies.registration import RegisterBrokerBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.nameserver import RegisterBroker
from penstock.runtime.child_process import ChildProcess
from penstock.store import MessageStore
from penstock.testing.eventually import eventually


async def test_the_route_of_a_topic_shows_every_broker_that_has_it(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        a, b = await stage.broker("broker-a"), await stage.broker("broker-b")
        await put_topic(await stage.connect(a), "shared", 2)
        await put_topic(await stage.connect(b), "shared", 3)
        await put_topic(await stage.connect(b), "alone", 1)

        async def both() -> bool:
            found = await route(names, "shared")
            return found is not None and len(found.queues) == 2

        await eventually(both)
        shared = await route(names, "shared")
        assert shared is not None
        assert {q.broker_name: q.write_queues for q in shared.queues} == {
            "broker-a": 2,
            "broker-b": 3,
        }
        assert {p.broker_name: p.master for p in shared.brokers} == {
            "broker-a": a.address,
            "broker-b": b.address,
        }
        assert shared.publish_queues("shared") == [
            MessageQueue("shared", "broker-a", 0),
            MessageQueue("shared", "broker-a", 1),
            MessageQueue("shared", "broker-b", 0),
            MessageQueue("shared", "broker-b", 1),
            MessageQueue("shared", "broker-b", 2),
        ]
        alone = await eventually(lambda: route(names, "alone"))
        assert alone is not None
        assert [q.broker_name for q in alone.queues] == ["broker-b"]


async def test_brokers_know_nothing_of_each_other(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        await stage.name_server()
        wires = [await stage.connect(await stage.broker(name)) for name in ("broker-a", "broker-b")]
        for wire, body in zip(wires, (b"at a", b"at b"), strict=True):
            await wire.send("T", body)
        assert [[r.body for r in await all_records(w, "T")] for w in wires] == [
            [b"at a"],
            [b"at b"],
        ]
        await wires[0].heartbeat("c1", consumer="g", topics=["T"])
        assert await members(wires[0], "g") == ["c1"]
        assert await members(wires[1], "g") == []
        queue = MessageQueue("T", "broker-a", 0)
        assert await lock(wires[0], "g", "c1", [queue]) == {queue}
        assert await lock(wires[1], "g", "c2", [queue]) == {queue}


@pytest.mark.spec("S11")
@in_virtual_time
async def test_a_broker_that_dies_takes_only_its_own_queues_along(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        a, b = await stage.broker("broker-a"), await stage.broker("broker-b")
        for broker in (a, b):
            await put_topic(await stage.connect(broker), "T", 2)

        async def places() -> set[str]:
            found = await route(names, "T")
            return set() if found is None else {p.broker_name for p in found.brokers}

        async def has_both() -> bool:
            return await places() == {"broker-a", "broker-b"}

        await eventually(has_both)
        await a.stop()
        assert await places() == {"broker-b"}
        # It comes back with everything it had.
        await stage.broker("broker-a")
        assert await places() == {"broker-a", "broker-b"}


async def test_two_broker_processes_share_a_topic(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, "-m", "penstock", "up", "--brokers", "2"]
    command += ["--data", tmp_path, "--nameserver-port", "0", "--broker-port", "0"]
    with ChildProcess(command) as up:
        line = await asyncio.to_thread(
            up.wait_for_line,
            r"^ready namesrv=\S+:(\d+) broker=\S+:(\d+) broker=\S+:(\d+) "
            r"grpc=\S+ console=\S+ data=(\S+)$",
        )
        names_port, *broker_ports = (int(line[group]) for group in (1, 2, 3))
        async with await Wire.connect(names_port) as names:
            for port in broker_ports:
                async with await Wire.connect(port) as wire:
                    await put_topic(wire, "T", 4)
                    assert (await wire.send("T", str(port).encode(), queue_id=3)).code == 0

            async def both() -> bool:
                found = await route(names, "T")
                return found is not None and len(found.brokers) == 2

            await eventually(both)
            found = await route(names, "T")
            assert found is not None
            assert {q.broker_name for q in found.queues} == {"broker-a", "broker-b"}
            assert all(q.permission & READ for q in found.queues)
            masters = {place.master for place in found.brokers}
            assert masters == {f"127.0.0.1:{port}" for port in broker_ports}
            # Another broker of this name would redirect its clients.
            refusal = await names.request(
                RequestCode.REGISTER_BROKER,
                RegisterBroker("broker-a", "10.0.0.5:1", "DefaultCluster", "10.0.0.5:2", 0),
                RegisterBrokerBody(),
            )
            assert refusal.code == ResponseCode.NO_PERMISSION
        assert await asyncio.to_thread(up.terminate) == 0
    assert all((tmp_path / name / "commitlog").exists() for name in ("broker-a", "broker-b"))


async def test_broker_processes_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, "-m", "penstock", "up", "--brokers", "2"]
    command += ["--data", tmp_path, "--nameserver-port", "0", "--broker-port", "0"]
    with ChildProcess(command) as up:
        line = await asyncio.to_thread(up.wait_for_line, r"broker=\S+:(\d+) broker=\S+:(\d+) ")
        up.send_signal(signal.SIGKILL)
        for port in (int(line[1]), int(line[2])):
            await eventually(functools.partial(_is_gone, port), 30, interval=0.1)
        # Both stores are given back.
        for name in ("broker-a", "broker-b"):
            await eventually(functools.partial(_is_free, tmp_path / name), 30, interval=0.1)


async def _is_gone(port: int) -> bool:
    try:
        async with await Wire.connect(port):
            return False
    except OSError:
        return True


def _is_free(root: Path) -> bool:
    try:
        with MessageStore(root):
            return True
    except StoreLocked:
        return False
