"""Small parts: tasks with an owner, hand-over between threads, leases, statistics, arguments."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.support.fake_clock import FakeClock

from penstock.client.arguments import session_settings, split, timestamp_ms
from penstock.client.cluster_access import ClusterAccess
from penstock.client.consuming.flow_control import Stop
from penstock.client.consuming.outcomes import ReturnType
from penstock.client.observing.statistics import ConsumerStatistics
from penstock.client.producing.receipts import Receipt, SendStatus
from penstock.client.session import session_registry
from penstock.client.session.loop_thread import LoopThread
from penstock.client.session.tasks import Tasks
from penstock.client.settings import SessionSettings
from penstock.errors import ConfigError, InvalidArgument, LifecycleError
from penstock.model import MessageQueue
from penstock.remoting.tls import Tls
from penstock.testing.eventually import eventually

RECEIPT = Receipt(SendStatus.OK, "1", "A", MessageQueue("T", "b", 0), 0)


# ------------------------------------------------------------------------------------- tasks


async def test_tasks_end_with_their_owner() -> None:
    tasks = Tasks("owner")
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("work")

    task = tasks.spawn(work(), "work")
    assert task is not None
    assert task.get_name() == "owner work"
    await asyncio.sleep(0)
    assert tasks.is_running("work")
    assert not tasks.is_running("play")
    await tasks.close()
    assert ended == ["work"]
    assert len(tasks) == 0
    assert tasks.spawn(work(), "too late") is None


async def test_a_failed_task_is_logged_and_affects_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = Tasks("owner")

    async def fails() -> None:
        raise ValueError("inside")

    async def lives() -> None:
        await asyncio.sleep(1000)

    tasks.spawn(fails(), "fails")
    tasks.spawn(lives(), "lives")
    await eventually(lambda: len(tasks) == 1)
    assert "task failed name=owner fails" in caplog.text
    await tasks.close()


async def test_a_task_may_close_its_own_owner() -> None:
    tasks = Tasks("owner")
    done = asyncio.Event()

    async def closes() -> None:
        await tasks.close()
        done.set()

    tasks.spawn(closes(), "closes")
    await asyncio.wait_for(done.wait(), 5)


# ---------------------------------------------------------------------------------- hand-over


# --------------------------------------------------------------------------------------- hosts


def test_a_loop_thread_runs_work_and_hands_back_results_and_errors() -> None:
    host = LoopThread("test host")

    async def work(value: int) -> int:
        await asyncio.sleep(0)
        if value < 0:
            raise ValueError("negative")
        return value * 2

    assert host.run(work(21)) == 42
    assert host.wait(host.start(work(1))) == 2
    with pytest.raises(ValueError, match="negative"):
        host.run(work(-1))
    called = threading.Event()
    host.call_soon(called.set)
    assert called.wait(5)

    async def blocks_on_itself() -> None:
        host.run(work(1))

    with pytest.raises(LifecycleError, match="wait for itself"):
        host.run(blocks_on_itself())
    host.close()
    with pytest.raises(LifecycleError, match="was stopped"):
        host.run(work(1))


async def test_a_loop_thread_can_be_awaited_from_another_loop() -> None:
    host = LoopThread("test host")

    async def where() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def nested() -> asyncio.AbstractEventLoop:
        return await host.await_(where())

    assert await host.await_(where()) is host.loop
    assert await host.await_(nested()) is host.loop
    host.close()


def test_closing_a_loop_thread_ends_what_runs_on_it() -> None:
    host = LoopThread("test host")
    ended = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    host.start(forever())
    host.run(asyncio.sleep(0))
    host.close()
    assert ended.is_set()


@pytest.mark.spec("S8")
def test_a_session_is_shared_by_name_server_and_client_id() -> None:
    def settings(client_id: str, nameserver: str = "127.0.0.1:1") -> SessionSettings:
        return SessionSettings(access=ClusterAccess.of(nameserver), client_id=client_id)

    one, two = session_registry.lease(settings("a")), session_registry.lease(settings("a"))
    other, elsewhere = (
        session_registry.lease(settings("b")),
        session_registry.lease(settings("a", "127.0.0.1:2")),
    )
    assert one.session is two.session
    assert len({id(lease.session) for lease in (one, other, elsewhere)}) == 3
    one.release()
    one.release()  # counted once
    assert not two.host.loop.is_closed()
    two.release()
    assert two.host.loop.is_closed()
    again = session_registry.lease(settings("a"))
    assert again.session is not one.session
    for lease in (again, other, elsewhere):
        lease.release()


# ---------------------------------------------------------------------------------- statistics


def test_statistics_tell_rates_averages_and_totals() -> None:
    statistics = ConsumerStatistics(FakeClock(), "billing")
    assert statistics.status("T").consume_ok_tps == 0
    statistics.pulled("T", 32, 0.02)
    statistics.pulled("T", 0, 0.04)
    statistics.consumed("T", 3, 1, 0.1)
    statistics.succeeded("T", 6, 2, 0.5)
    statistics.sample(10.0)
    status = statistics.status("T")
    assert status.pull_rt == pytest.approx(30)
    assert status.pull_tps == pytest.approx(3.2)
    assert status.consume_rt == pytest.approx(200)
    assert status.consume_ok_tps == pytest.approx(0.9)
    assert status.consume_failed_tps == pytest.approx(0.1)
    assert statistics.totals("T") == (9, 1)
    assert statistics.returns[ReturnType.SUCCESS] == 2
    assert statistics.item("CONSUME_OK_TPS", "T@billing").sum == 9
    statistics.flow_stops[Stop.SPAN] += 1


# ----------------------------------------------------------------------------------- arguments


def test_arguments_are_split_and_durations_read() -> None:
    access, rest = split({"tls": True, "heartbeat_interval": "1m", "pull_interval": 2})
    assert access == {"tls": True, "heartbeat_interval": 60.0}
    assert rest == {"pull_interval": 2.0}


def test_a_session_is_named_and_secured_by_arguments_else_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_TLS", "true")
    settings = session_settings("10.0.0.1:9876", "i", {"client_ip": "1.2.3.4", "unit": "u"})
    assert settings.client_id == "1.2.3.4@i@u"
    assert settings.access.tls == Tls()
    own = Tls(verify=False)
    assert session_settings("10.0.0.1:9876", "i", {"tls": own}).access.tls is own
    assert session_settings("10.0.0.1:9876", "i", {"tls": False}).access.tls is None
    monkeypatch.delenv("PENSTOCK_TLS")
    assert session_settings("10.0.0.1:9876", "i", {}).access.tls is None
    with pytest.raises(ConfigError, match="profile is 'x'"):
        session_settings("10.0.0.1:9876", "i", {"profile": "x"})


@pytest.mark.parametrize("time", ["", "20240230000000", "2024-13-01", None, -5, True, float("-1")])
def test_what_is_no_time_is_refused(time: object) -> None:
    with pytest.raises(InvalidArgument, match="not a time"):
        timestamp_ms(time)  # type: ignore[arg-type]
