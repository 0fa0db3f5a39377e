"""Stopping and starting: under load, with clients that wait, on what was there before."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.support.asking import all_records, commit, committed, ext, put_topic
from tests.support.stage import SMALL_STORE, Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker import Broker, BrokerConfig
from penstock.errors import ConfigError, LifecycleError, PenstockError, StoreLocked
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.clients import GetConsumerRunningInfo
from penstock.remoting.server import GO_AWAY_ABOVE_VERSION
from penstock.store import SYNC_FLUSH, StoreConfig
from penstock.testing.eventually import eventually

INFO = RequestCode.GET_CONSUMER_RUNNING_INFO


@pytest.mark.parametrize("store", [{}, {"flush_disk_type": SYNC_FLUSH}], ids=["async", "sync"])
async def test_a_broker_stops_cleanly_under_load(tmp_path: Path, store: dict[str, str]) -> None:
    acknowledged: dict[bytes, int] = {}

    async def produce(wire: Wire, queue_id: int) -> None:
        number = 0
        with contextlib.suppress(ConnectionError, TimeoutError):
            while not wire.is_closed:
                body = f"{queue_id}:{number}".encode()
                answer = await wire.send("T", body, queue_id=queue_id)
                if answer.code != ResponseCode.SUCCESS:
                    # A broker that stops sends its clients elsewhere.
                    break
                acknowledged[body] = int(ext(answer)["queueOffset"])
                number += 1

    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store=store)
        wires = [await stage.connect(broker) for _ in range(4)]
        await put_topic(wires[0], "T", 4)
        async with asyncio.TaskGroup() as group:
            for queue_id, wire in enumerate(wires):
                group.create_task(produce(wire, queue_id))
            await eventually(lambda: len(acknowledged) > 100)
            await broker.stop()
        # The signs of a clean stop: the next start need not search for the end of the log.
        assert not (tmp_path / "broker-a/abort").exists()
        broker = await stage.broker(store=store)
        wire = await stage.connect(broker)
        for queue_id in range(4):
            found = await all_records(wire, "T", queue_id)
            for record in found:
                offset = acknowledged.pop(record.body, record.queue_offset)
                assert offset == record.queue_offset
    assert acknowledged == {}


async def test_everything_goes_on_where_it_was(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        for round_ in range(3):
            broker = await stage.broker()
            wire = await stage.connect(broker)
            for number in range(5):
                answer = await wire.send("T", f"{round_}-{number}".encode())
                assert int(ext(answer)["queueOffset"]) == round_ * 5 + number
            if round_:
                assert await committed(wire, "g", "T") == round_ * 5
            await commit(wire, "g", "T", (round_ + 1) * 5)
            await broker.stop()


async def test_two_brokers_never_share_a_store(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        first = await stage.broker()
        with pytest.raises(StoreLocked):
            await stage.broker()
        assert first.is_running
        assert (await (await stage.connect(first)).send("T")).code == 0


async def test_a_broker_that_cannot_listen_leaves_its_store_free(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        first = await stage.broker()
        with pytest.raises(PenstockError):
            await stage.broker("broker-b", listen_port=first.port)
        await stage.broker("broker-b")


async def test_the_vip_port_is_two_below(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        async with await Wire.connect(broker.port - 2) as wire:
            assert (await wire.send("T")).code == ResponseCode.SUCCESS


async def test_a_store_keeps_its_sizes_and_refuses_others(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        await (await stage.connect(broker)).send("T")
        await broker.stop()
        other = dataclasses.replace(SMALL_STORE, mapped_file_size_commit_log=2 << 20)
        refused = Broker(BrokerConfig(listen_port=0), tmp_path / "broker-a", store_config=other)
        with pytest.raises(ConfigError):
            await refused.start()
        # Who says nothing about them gets them as they are.
        async with (
            Broker(
                BrokerConfig(listen_port=0), tmp_path / "broker-a", store_config=StoreConfig()
            ) as broker,
            await Wire.connect(broker.port) as wire,
        ):
            assert len(await all_records(wire, "T")) == 1


async def test_a_broker_that_does_not_run_says_so(tmp_path: Path) -> None:
    broker = Broker(BrokerConfig(listen_port=0), tmp_path)
    for name in ("state", "address", "port"):
        with pytest.raises(LifecycleError, match="not running"):
            getattr(broker, name)


@in_virtual_time
async def test_clients_of_a_stopping_broker_are_let_go_in_time(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wires = [await stage.connect(broker) for _ in range(3)]
        await put_topic(wires[0], "T")
        held = [wire.start_pull("g", "T", 0, hold_ms=15_000) for wire in wires]
        await eventually(lambda: len(broker.state.held) == 3)
        begin = stage.clock.monotonic()
        await broker.stop()
        answers = await asyncio.gather(*held)
        assert {answer.code for answer in answers} == {ResponseCode.PULL_NOT_FOUND}
        assert stage.clock.monotonic() - begin < 15
        await eventually(lambda: all(wire.is_closed for wire in wires))


@in_virtual_time
async def test_a_stop_that_waits_for_one_answer_does_not_wait_for_new_pulls(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        operator = await stage.connect(broker)
        # Clients up to this version get no GO_AWAY and continue as before.
        consumer = await stage.connect(broker, version=GO_AWAY_ABOVE_VERSION)
        await put_topic(operator, "T")
        await consumer.heartbeat("me@1", consumer="g", topics=["T"])
        held = consumer.start_pull("g", "T", 0, hold_ms=15_000)
        under_way = operator.start(INFO, GetConsumerRunningInfo("g", "me@1"))
        asked = await consumer.asked(INFO)
        begin = stage.clock.monotonic()
        stopping = asyncio.ensure_future(broker.stop())
        assert (await held).code == ResponseCode.PULL_NOT_FOUND
        again = consumer.start_pull("g", "T", 0, hold_ms=15_000)
        consumer.answer(asked, Command(0, body=b"{}"))
        assert (await under_way).code == ResponseCode.SUCCESS
        await stopping
        assert stage.clock.monotonic() - begin < 1
        with pytest.raises(ConnectionResetError):
            await again


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"broker_role": "SLAVE"}, "refuses sends brokerRole=SLAVE brokerId=0"),
        ({"broker_id": 1}, "refuses sends brokerRole=ASYNC_MASTER brokerId=1"),
        (
            {"broker_role": "SYNC_MASTER"},
            "without a slave's copy brokerRole=SYNC_MASTER brokerId=0",
        ),
        ({}, None),
    ],
    ids=["slave", "number", "sync", "alone"],
)
async def test_a_broker_says_once_that_it_replicates_nothing_where_it_is_asked_to(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    said: str | None,
) -> None:
    async with Stage(tmp_path) as stage:
        await stage.broker(**settings)
    warnings = [r.message for r in caplog.records if "nothing is replicated" in r.message]
    assert len(warnings) == (said is not None)
    assert all(str(said) in warning for warning in warnings)
