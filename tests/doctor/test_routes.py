"""Routes that cannot be read, and groups that are kept from a topic: made for real, and found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.doctor.patients import GROUP, TOPIC, causes, only, works
from tests.support.stage import Stage
from tests.support.wire import Wire

from penstock import aio, doctor
from penstock.doctor import GroupReport, Severity
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.remoting.peer import Peer
from penstock.remoting.promise import Promise
from penstock.remoting.server import Server
from penstock.testing.eventually import eventually

Change = Callable[[Command], Command]


@asynccontextmanager
async def in_front_of(port: int, change: Change) -> AsyncIterator[str]:
    """A name server that asks the real one, and changes what it says of a route."""
    tasks: set[asyncio.Task[None]] = set()
    async with await Wire.connect(port) as wire:

        async def ask(request: Command, promise: Promise) -> None:
            answer = await wire.request(request.code, dict(request.ext or {}), request.body)
            answer = Command(answer.code, ext=answer.ext, body=answer.body, remark=answer.remark)
            is_route = request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
            promise.resolve(change(answer) if is_route else answer)

        def serve(peer: Peer, request: Command) -> Promise:
            promise = Promise()
            task = asyncio.get_running_loop().create_task(ask(request, promise))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            return promise

        server = Server(serve)
        await server.start()
        try:
            yield f"127.0.0.1:{server.port}"
        finally:
            await server.stop()
            for task in tasks:
                task.cancel()


async def examined_through(tmp_path: Path, change: Change) -> GroupReport:
    """A group that consumes, seen through a name server that changes its routes."""
    async with Stage(tmp_path) as stage:
        server = await stage.name_server()
        await stage.broker(broker_ip1="127.0.0.1")
        async with aio.Admin(namesrv=server.address) as admin:
            await admin.create_topic(TOPIC, 1)
            consumer = aio.PushConsumer(GROUP, namesrv=server.address)
            consumer.on(TOPIC)(works)
            async with consumer:
                await eventually(consumer.assignment)
                assert causes(await doctor.examine_group(admin, GROUP)) == []
                async with (
                    in_front_of(server.port, change) as address,
                    aio.Admin(namesrv=address) as misled,
                ):
                    return await doctor.examine_group(misled, GROUP)


async def test_a_name_server_that_refuses_to_return_routes_is_reported(tmp_path: Path) -> None:
    def not_ready(answer: Command) -> Command:
        # What RocketMQ 5 says in its first seconds.
        return Command(ResponseCode.SYSTEM_ERROR, remark="name server not ready")

    found = only(await examined_through(tmp_path, not_ready), "route-unreadable")
    assert found.severity is Severity.CRITICAL
    assert "name server not ready" in found.what
    assert found.evidence == {"topic": TOPIC}


async def test_a_route_that_is_garbled_is_reported(tmp_path: Path) -> None:
    def garbled(answer: Command) -> Command:
        return Command(ResponseCode.SUCCESS, body=b"{not a route")

    only(await examined_through(tmp_path, garbled), "route-unreadable")


async def test_a_route_that_leads_nowhere_is_reported(tmp_path: Path) -> None:
    def without_addresses(answer: Command) -> Command:
        assert isinstance(answer.body, bytes)
        route = json.loads(answer.body)
        route["brokerDatas"] = []
        return Command(ResponseCode.SUCCESS, body=json.dumps(route).encode())

    found = only(await examined_through(tmp_path, without_addresses), "route-unreadable")
    assert found.evidence == {"topic": TOPIC, "brokers": ["broker-a"]}


@pytest.mark.parametrize("bits", [4, 0], ids=["forbidden", "allowed"])
async def test_a_group_that_is_kept_from_one_topic_is_reported(tmp_path: Path, bits: int) -> None:
    # Our broker has no request for it, and keeps what a store of RocketMQ's brings along.
    config = tmp_path / "broker-a" / "config"
    config.mkdir(parents=True)
    table = {
        "subscriptionGroupTable": {GROUP: {"groupName": GROUP}},
        "forbiddenTable": {GROUP: {TOPIC: bits}},
        "dataVersion": {"counter": 1, "timestamp": 1, "stateVersion": 0},
    }
    (config / "subscriptionGroup.json").write_text(json.dumps(table))
    async with Stage(tmp_path) as stage:
        server = await stage.name_server()
        await stage.broker(broker_ip1="127.0.0.1")
        async with aio.Admin(namesrv=server.address) as admin:
            await admin.create_topic(TOPIC, 1)
            consumer = aio.PushConsumer(GROUP, namesrv=server.address)
            consumer.on(TOPIC)(works)
            async with consumer:
                await eventually(consumer.assignment)
                report = await doctor.examine_group(admin, GROUP)
    assert causes(report) == (["consuming-disabled"] if bits else [])
    if bits:
        assert report.findings[0].evidence == {"topic": TOPIC, "brokers": ["broker-a"]}
