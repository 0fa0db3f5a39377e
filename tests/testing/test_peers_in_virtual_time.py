"""Real peers, a real server and real pools on the virtual loop, unchanged."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock.errors import RemotingError
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command, reply
from penstock.remoting import Peer, Pool, Server
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual
from penstock.testing.virtual_time.network import LAN, ROUGH, Conditions

BROKER, PORT = "10.0.0.1", 10911
ADDRESS = f"{BROKER}:{PORT}"
PEERS = 20
BEATS_PER_HOUR = 120


def answer(_peer: Peer, request: Command) -> Command:
    return reply(request)


async def heartbeats(loop: VirtualLoop, conditions: Conditions) -> tuple[int, int, str]:
    """An hour of heartbeats from twenty clients: answered, failed, and the digest of the trace."""
    loop.network.conditions = conditions
    with loop.network.host(BROKER):
        server = Server(answer, "0.0.0.0", PORT)
        await server.start()
    answered = failed = 0

    async def beat(pool: Pool) -> None:
        nonlocal answered, failed
        try:
            response = await pool.request(ADDRESS, Command(RequestCode.HEART_BEAT, body=b"{}"), 3.0)
            assert response.code == ResponseCode.SUCCESS
            answered += 1
        except RemotingError:
            failed += 1

    async def client(number: int) -> None:
        with loop.network.host(f"10.0.1.{number}"):
            pool = Pool(answer)
            for _ in range(BEATS_PER_HOUR):
                await beat(pool)
                await asyncio.sleep(30)
            await pool.close()

    async with asyncio.TaskGroup() as group:
        for number in range(PEERS):
            group.create_task(client(number))
    await server.stop()
    return answered, failed, loop.trace.digest()


def test_an_hour_of_heartbeats_between_twenty_peers_is_done_at_once() -> None:
    async def scenario(loop: VirtualLoop) -> tuple[int, int, str]:
        return await heartbeats(loop, LAN)

    begin = time.process_time()
    answered, failed, digest = run_virtual(scenario, seed=7)
    spent = time.process_time() - begin
    assert (answered, failed) == (PEERS * BEATS_PER_HOUR, 0)
    assert run_virtual(scenario, seed=7)[2] == digest
    assert run_virtual(scenario, seed=8)[2] != digest
    # The one bound on time, which the loop was built for. It is time of this process, which other
    # processes on the machine do not spend, and several times what is needed.
    assert spent < 2.0


@pytest.mark.parametrize("seed", range(5))
def test_heartbeats_over_a_rough_network_fail_now_and_then_and_repeatably(seed: int) -> None:
    async def scenario(loop: VirtualLoop) -> tuple[int, int, str]:
        return await heartbeats(loop, ROUGH)

    answered, failed, digest = run_virtual(scenario, seed=seed)
    assert answered + failed == PEERS * BEATS_PER_HOUR
    assert 0 < failed < answered
    assert run_virtual(scenario, seed=seed) == (answered, failed, digest)


def test_a_broker_that_is_cut_off_and_comes_back_is_found_again() -> None:
    async def scenario(loop: VirtualLoop) -> list[tuple[float, str]]:
        with loop.network.host(BROKER):
            server = Server(answer, "0.0.0.0", PORT)
            await server.start()
        outcome: list[tuple[float, str]] = []
        loop.call_later(95, loop.network.isolate, BROKER)
        loop.call_later(305, loop.network.heal)
        with loop.network.host("10.0.1.1"):
            pool = Pool(answer)
            for _ in range(20):
                asked_at = loop.time()
                try:
                    await pool.request(ADDRESS, Command(RequestCode.HEART_BEAT), 3.0)
                    outcome.append((asked_at, "answered"))
                except RemotingError as error:
                    outcome.append((asked_at, type(error).__name__))
                await asyncio.sleep(max(0.0, asked_at + 30 - loop.time()))
            await pool.close()
        await server.stop()
        return outcome

    outcome = run_virtual(scenario)
    assert {said for at, said in outcome if at < 95 or at > 330} == {"answered"}
    assert "answered" not in {said for at, said in outcome if 95 < at < 300}
