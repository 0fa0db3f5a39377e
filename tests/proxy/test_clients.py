"""The table of clients: any call makes an entry, and to end one costs the same among many."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from tests.proxy.lab import GROUP, TOPIC, Lab, consumer_settings, producer_settings
from tests.support.lines_run import lines_run
from tests.support.stage import in_virtual_time

from penstock.proxy import clients, halves
from penstock.proxy.backend import HalfPlace
from penstock.proxy.halves import Halves
from penstock.proxy.local_backend import LocalBackend
from penstock.proxy.receipts import Receipt
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import ClientType, Code


def known(lab: Lab, client_id: str) -> clients.Client | None:
    return lab.endpoint.parts.clients.find(lab.client(client_id).caller, None)


async def seen(lab: Lab, client_id: str) -> int:
    """A call of a client that may be no more than an id; the code of its answer."""
    answer = await lab.client(client_id).call("QueryRoute", wire.QueryRouteRequest())
    return int(answer.status.code)


@in_virtual_time
async def test_the_end_of_a_client_does_not_depend_on_the_others(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        costs: list[tuple[int, int]] = []
        for others in (10, 1000):
            for number in range(others):
                await seen(lab, f"other-{number}")
            stream, _ = await lab.client("one").settle(producer_settings(TOPIC))
            found = known(lab, "one")
            assert found is not None
            assert found.stream is stream
            ended = lines_run(functools.partial(lab.endpoint.close_stream, stream))
            assert found.stream is None
            removed = lines_run(functools.partial(lab.endpoint.parts.clients.remove, found))
            assert known(lab, "one") is None
            await found.leave()
            costs.append((ended, removed))
        assert costs[0] == costs[1]


@in_virtual_time
async def test_a_stream_that_is_not_the_newest_ends(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        first, _ = await lab.client().settle(producer_settings(TOPIC))
        second, _ = await lab.client().settle(producer_settings(TOPIC))
        found = known(lab, "c1")
        assert found is not None
        lab.endpoint.close_stream(first)
        assert found.stream is second
        lab.endpoint.close_stream(second)
        assert found.stream is None


@in_virtual_time
async def test_invented_ids_do_not_keep_clients_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MAX_CLIENTS", 20)
    async with Lab(tmp_path) as lab:
        lab.topic()
        stream, _ = await lab.client("with settings").settle(consumer_settings())
        await lab.client("with heartbeats").heartbeat(ClientType.PUSH_CONSUMER, GROUP)
        for number in range(100):
            assert await seen(lab, f"invented-{number}") != Code.TOO_MANY_REQUESTS
        table = lab.endpoint.parts.clients
        assert len(table) == 20
        assert not stream.is_ended
        assert {one.id for one in table.all()} == {
            "with settings",
            "with heartbeats",
            *(f"invented-{number}" for number in range(82, 100)),
        }
        _, answer = await lab.client("late").settle(producer_settings(TOPIC))
        assert answer is not None
        assert answer.status.code == Code.OK


@in_virtual_time
async def test_the_client_that_was_silent_the_longest_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MAX_CLIENTS", 3)
    async with Lab(tmp_path) as lab:
        for client_id in ("a", "b", "c", "a"):
            await seen(lab, client_id)
            await lab.clock.sleep(1)
        given_up = known(lab, "b")
        await seen(lab, "d")
        assert [one.id for one in lab.endpoint.parts.clients.all()] == ["c", "a", "d"]
        assert given_up is not None
        assert given_up.is_gone


@in_virtual_time
async def test_a_table_of_clients_that_are_registered_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MAX_CLIENTS", 3)
    async with Lab(tmp_path) as lab:
        for number in range(3):
            await lab.client(f"c{number}").settle(producer_settings(TOPIC))
        for number in range(2):
            assert await seen(lab, f"late-{number}") == Code.TOO_MANY_REQUESTS
        await lab.client("c1").leave()
        assert await seen(lab, "late") != Code.TOO_MANY_REQUESTS


@in_virtual_time
async def test_what_clients_say_of_themselves_is_bounded(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        assert await seen(lab, "x" * 256) == Code.BAD_REQUEST
        assert not len(lab.endpoint.parts.clients)
        longest = "x" * 255
        facts = {"language": "l" * 5000, "version": "v" * 5000}
        await lab.client(longest, **facts).call("QueryRoute", wire.QueryRouteRequest())
        found = known(lab, longest)
        assert found is not None
        assert (len(found.language), len(found.version)) == (255, 255)


@in_virtual_time
async def test_places_of_halves_have_a_bound_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halves, "MAX_BYTES", 5000)
    async with Lab(tmp_path) as lab:
        lab.topic()
        found = Halves(LocalBackend(lab.broker))
        place = HalfPlace("broker-a", 1, 2)
        ids = [f"{number}" * 1000 for number in range(9)]
        for one in (*ids, ids[-1]):
            found.remember(TOPIC, one, place)
        known = [one for one in ids if await found.find(TOPIC, one) is not None]
        assert known == ids[-4:]


@in_virtual_time
async def test_brokers_that_clients_invent_are_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic()
        lab.group()
        await lab.client().sent()
        (got,) = await lab.client().messages()
        handle = got.system_properties.receipt_handle
        name = Receipt.parse(handle).handle.broker_name
        answer = await lab.client().ack(handle.replace(name, "invented"))
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR
        assert "invented" not in caplog.text
