"""Connections by address: made once, not too eagerly. Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from penstock.errors import ConnectFailed, InvalidArgument, LifecycleError, RequestTimeout
from penstock.protocol.commands import Command, reply
from penstock.remoting import Backoff, Limits, Peer, Pool, Server
from penstock.remoting.pool import MAX_FAILED_ADDRESSES
from penstock.testing.eventually import eventually
from penstock.testing.virtual_time.loop import run_virtual

ADDRESS = "127.0.0.1:10911"


def echo(_peer: Peer, request: Command) -> Command:
    return reply(request, body=request.body)


def virtually(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    run_virtual(main())


def now() -> float:
    return asyncio.get_running_loop().time()


async def attempt(pool: Pool) -> str:
    with pytest.raises(ConnectFailed) as caught:
        await pool.peer(ADDRESS)
    return str(caught.value)


# ------------------------------------------------------------------------------ the backoff rule


def test_the_delay_doubles_up_to_its_cap() -> None:
    backoff = Backoff(first=0.2, cap=3)
    delays = [backoff.delay(failures, 1.0) for failures in range(1, 8)]
    assert delays == pytest.approx([0.2, 0.4, 0.8, 1.6, 3, 3, 3])
    assert backoff.delay(10_000, 1.0) == 3


def test_half_of_the_delay_is_left_to_chance() -> None:
    backoff = Backoff(first=1, cap=8)
    assert backoff.delay(3, 0.0) == pytest.approx(2)
    assert backoff.delay(3, 0.5) == pytest.approx(3)
    assert backoff.delay(3, 1.0) == pytest.approx(4)


# ------------------------------------------------------------------------------------- the pool


def test_however_many_ask_at_once_one_connection_is_made() -> None:
    async def test() -> None:
        made: list[Peer] = []
        async with Server(echo, port=10911) as server, Pool(echo, on_connect=made.append) as pool:
            peers = await asyncio.gather(*(pool.peer(ADDRESS) for _ in range(100)))
            assert set(peers) == {pool.find(ADDRESS)}
            assert made == [peers[0]]
            assert len(server.peers) == 1
            assert pool.peers == {ADDRESS: peers[0]}

    virtually(test)


def test_one_who_gives_up_does_not_take_the_others_down() -> None:
    async def test() -> None:
        async with Server(echo, port=10911), Pool(echo) as pool:
            first = asyncio.ensure_future(pool.peer(ADDRESS))
            second = asyncio.ensure_future(pool.peer(ADDRESS))
            await asyncio.sleep(0)
            first.cancel()
            assert not (await second).is_closed
            assert first.cancelled()

    virtually(test)


def test_while_backing_off_callers_get_the_time_of_the_next_attempt_at_once() -> None:
    async def test() -> None:
        async with Pool(echo, chance=lambda: 1.0, backoff=Backoff(first=2, cap=60)) as pool:
            text = await attempt(pool)
            assert f"cannot connect to {ADDRESS}" in text
            assert "is the server up" in text
            started = now()
            text = await attempt(pool)
            assert now() == started
            assert "next attempt in 2.0 s, after 1 that failed" in text
            await asyncio.sleep(1.5)
            assert "next attempt in 0.5 s" in await attempt(pool)
            await asyncio.sleep(0.6)
            assert "cannot connect" in await attempt(pool)
            assert "next attempt in 4.0 s, after 2 that failed" in await attempt(pool)

    virtually(test)


def test_attempts_get_rarer_and_a_server_that_comes_back_is_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        tried: list[float] = []
        async with Pool(echo, chance=lambda: 1.0, backoff=Backoff(first=1, cap=8)) as pool:
            while now() < 60:
                if "cannot connect to" in await attempt(pool):
                    tried.append(now())
                await asyncio.sleep(0.1)
            gaps = [later - earlier for earlier, later in pairwise(tried)]
            assert gaps == pytest.approx([1, 2, 4, 8, 8, 8, 8, 8, 8], abs=0.25)
            async with Server(echo, port=10911):
                await asyncio.sleep(8)
                answer = await pool.request(ADDRESS, Command(34, body=b"back"), 3)
                assert answer.body == b"back"

    virtually(test)
    assert f"cannot connect address={ADDRESS} failures=1 retry_in=1.0 reason=" in caplog.text


def test_a_server_that_drops_connections_without_a_word_is_left_alone_for_a_while() -> None:
    async def test() -> None:
        limits = Limits(max_connections=1)
        async with Server(echo, port=10911, limits=limits), Pool(echo) as holder:
            await holder.request(ADDRESS, Command(34), 3)
            async with Pool(echo, chance=lambda: 1.0, backoff=Backoff(first=5)) as pool:
                refused = await pool.peer(ADDRESS)
                await eventually(lambda: refused.is_closed)
                await asyncio.sleep(0.1)
                text = await attempt(pool)
                assert "connection ended without an answer" in text
                assert "next attempt in" in text

    virtually(test)


def test_a_connection_that_served_well_is_made_anew_at_once() -> None:
    async def test() -> None:
        lost: list[Peer] = []
        async with (
            Server(echo, port=10911) as server,
            Pool(echo, on_disconnect=lost.append) as pool,
        ):
            await pool.request(ADDRESS, Command(34), 3)
            first = pool.find(ADDRESS)
            for peer in list(server.peers):
                peer.abort()
            await eventually(lambda: lost == [first])
            assert pool.find(ADDRESS) is None
            assert (await pool.request(ADDRESS, Command(34), 3)).code == 0

    virtually(test)


def test_a_connection_that_served_well_ends_the_count_of_failures() -> None:
    async def test() -> None:
        async with Pool(echo, chance=lambda: 1.0, backoff=Backoff(first=2, cap=60)) as pool:
            await attempt(pool)
            await asyncio.sleep(3)
            async with Server(echo, port=10911):
                await pool.request(ADDRESS, Command(34), 3)
            await eventually(lambda: pool.find(ADDRESS) is None)
            assert "cannot connect" in await attempt(pool)
            assert "next attempt in 2.0 s, after 1 that failed" in await attempt(pool)

    virtually(test)


def test_connecting_gives_up_in_time_and_counts_as_waiting_for_the_answer() -> None:
    async def test() -> None:
        network = asyncio.get_running_loop().network  # type: ignore[attr-defined]  # virtual
        network.partition(network.current_host, "10.0.0.9")
        async with Pool(echo, connect_timeout=3) as pool:
            started = now()
            with pytest.raises(ConnectFailed, match="no connection within 3 s"):
                await pool.peer("10.0.0.9:10911")
            assert now() - started == pytest.approx(3)

    virtually(test)


def test_time_spent_connecting_is_missing_for_the_answer() -> None:
    def silent(_peer: Peer, _request: Command) -> None:
        return None

    async def test() -> None:
        async with Server(silent, port=10911), Pool(silent) as pool:
            started = now()
            with pytest.raises(RequestTimeout):
                await pool.request(ADDRESS, Command(34), 2)
            assert now() - started == pytest.approx(2, abs=0.01)

    virtually(test)


def test_a_request_does_not_wait_for_a_connection_longer_than_for_its_answer() -> None:
    async def test() -> None:
        network = asyncio.get_running_loop().network  # type: ignore[attr-defined]  # virtual
        network.partition(network.current_host, "10.0.0.9")
        async with Pool(echo, connect_timeout=30) as pool:
            started = now()
            with pytest.raises(RequestTimeout, match=r"no connection to 10\.0\.0\.9:10911"):
                await pool.request("10.0.0.9:10911", Command(34), 2)
            assert now() - started == pytest.approx(2)

    virtually(test)


def test_a_text_that_is_no_address_is_refused() -> None:
    async def test() -> None:
        async with Pool(echo) as pool:
            with pytest.raises(InvalidArgument, match="host:port"):
                await pool.peer("broker-a")

    virtually(test)


def test_a_closed_pool_connects_no_more() -> None:
    async def test() -> None:
        async with Server(echo, port=10911) as server:
            pool = Pool(echo)
            peer = await pool.peer(ADDRESS)
            asked = asyncio.ensure_future(peer.request(Command(34, body=b"last"), 3))
            assert (await asked).body == b"last"
            await pool.close()
            await pool.close()
            assert peer.is_closed
            assert peer.close_reason == "the pool is closed"
            with pytest.raises(LifecycleError, match="the pool is closed"):
                await pool.peer(ADDRESS)
            await asyncio.sleep(0.1)
            assert not server.peers

    virtually(test)


def test_closing_while_connecting_tells_who_waits() -> None:
    async def test() -> None:
        network = asyncio.get_running_loop().network  # type: ignore[attr-defined]  # virtual
        network.partition(network.current_host, "10.0.0.9")
        pool = Pool(echo)
        waiting = asyncio.ensure_future(pool.peer("10.0.0.9:10911"))
        await asyncio.sleep(1)
        await pool.close()
        with pytest.raises(LifecycleError, match="the pool is closed"):
            await waiting

    virtually(test)


def test_the_memory_of_unreachable_addresses_is_bounded() -> None:
    async def test() -> None:
        async with Pool(echo) as pool:
            for port in range(1, MAX_FAILED_ADDRESSES + 100):
                with pytest.raises(ConnectFailed):
                    await pool.peer(f"127.0.0.1:{port}")
            assert len(pool._failures) == MAX_FAILED_ADDRESSES

    virtually(test)


def test_the_same_seed_gives_the_same_trace() -> None:
    async def conversation() -> None:
        async with Server(echo, port=10911), Pool(echo, chance=lambda: 0.5) as pool:
            await asyncio.gather(*(pool.request(ADDRESS, Command(34), 3) for _ in range(20)))

    def trace(seed: int) -> str:
        seen: list[str] = []

        async def main() -> None:
            await conversation()
            seen.append(asyncio.get_running_loop().trace.digest())  # type: ignore[attr-defined]

        run_virtual(main(), seed=seed)
        return seen[0]

    assert trace(1) == trace(1)


async def test_real_sockets_fail_with_the_address_and_the_reason() -> None:
    server = Server(echo)
    await server.start()
    address = f"127.0.0.1:{server.port}"
    await server.stop(0)
    async with Pool(echo) as pool:
        with pytest.raises(ConnectFailed, match=address):
            await pool.peer(address)
        with pytest.raises(ConnectFailed, match=r"no-such-host\.invalid"):
            await pool.peer("no-such-host.invalid:9876")
