"""Clients that stay for long: restarts of the server, and comings and goings, leave nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.proxy.fleet import Fleet, group_name
from tests.proxy.lab import TOPIC, topic_config

from penstock.broker import Broker, BrokerConfig
from penstock.proxy.grpc_servers import local_server
from penstock.proxy.server import GrpcServer
from penstock.runtime.clock import SystemClock
from penstock.testing.eventually import eventually

CLIENTS = 40
BEAT_SECONDS = 0.3
WAIT_SECONDS = 60
CYCLES = 3


def server(broker: Broker, port: int = 0) -> GrpcServer:
    return local_server(broker, SystemClock(), host="127.0.0.1", port=port)


async def settled(broker: Broker, running: GrpcServer) -> int:
    """How many tasks there are once every client has its stream and its poll."""
    held = broker.state.pop.held
    groups = [group_name(number) for number in range(CLIENTS)]
    await eventually(
        lambda: (
            running.endpoint.open_streams() == CLIENTS
            and all(held.count_at((TOPIC, group, -1)) == 1 for group in groups)
        ),
        WAIT_SECONDS,
    )
    # The clients and the producer.
    assert len(running.endpoint.parts.clients) <= CLIENTS + 1
    return len(asyncio.all_tasks())


@pytest.mark.spec("G67")
async def test_all_clients_go_on_after_restarts_and_leave_nothing(tmp_path: Path) -> None:
    async with Broker(BrokerConfig(listen_port=0), tmp_path) as broker:
        broker.state.topics.put(topic_config(queues=1))
        async with server(broker) as first:
            port = first.port
            fleet = Fleet(f"127.0.0.1:{port}", CLIENTS, BEAT_SECONDS)
            fleet.connect()
            await fleet.works(WAIT_SECONDS)
            tasks = await settled(broker, first)
        try:
            assert first.endpoint.open_streams() == 0
            async with server(broker, port) as second:
                await fleet.works(WAIT_SECONDS)
                for _ in range(CYCLES):
                    await fleet.leave()
                    await eventually(lambda: second.endpoint.open_streams() == 0, WAIT_SECONDS)
                    fleet.connect()
                    await fleet.works(WAIT_SECONDS)
                    await settled(broker, second)
                # Heartbeats come and go; one task left for each client and cycle would be more.
                await eventually(lambda: len(asyncio.all_tasks()) < tasks + CLIENTS, WAIT_SECONDS)
        finally:
            await fleet.close()
