"""Disks that are full, read-only or gone, and processes that have no descriptor left.

The broker refuses what it cannot store, confirms nothing that is lost, stays alive, and serves
again when there is room; a fault that leaves the content of the disk unknown ends with a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.faults.cluster import IS_LONG, Cluster, running
from tests.faults.traffic import PLAIN, PROBE, Traffic
from tests.support.asking import all_records, put_topic
from tests.support.popping import ack, pop, start_pop
from tests.support.proxy import FaultProxy
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.protocol.codes import ResponseCode
from penstock.store import OsFiles
from penstock.store.files import Buffer
from penstock.testing.eventually import eventually

pytestmark = pytest.mark.crash

ROUNDS = 5 if IS_LONG else 1
DISK = "24m"
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


def _has_namespaces() -> bool:
    """Whether a file system of a test's own can be mounted here."""
    try:
        tried = subprocess.run(
            [*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
        )
    except OSError:
        return False
    return tried.returncode == 0


needs_mounts = pytest.mark.skipif(
    not _has_namespaces(), reason="needs user namespaces, to mount a small disk"
)


def _on_small_disk(directory: Path) -> tuple[str, ...]:
    """Words that run a command with a small disk of its own at ``directory``."""
    directory.mkdir()
    script = f'mount -t tmpfs -o size={DISK} none "{directory}" && exec "$@"'
    return (*NAMESPACE, "sh", "-c", script, "sh")


def _seen_by(cluster: Cluster, path: Path) -> Path:
    """A path as the process of the cluster sees it."""
    return Path(f"/proc/{cluster.process.pid}/root{path}")


def _fill(path: Path) -> None:
    """Write until there is no room."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


async def _is_refused(cluster: Cluster) -> bool:
    """Whether the broker answers a send, and does not take it."""
    try:
        async with await Wire.connect(cluster.broker_port) as wire:
            answer = await wire.send(PROBE, b"probe")
    except OSError:
        return True  # An answer that relies on a failed write is withheld, with the connection.
    return answer.code not in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)


async def _is_served(cluster: Cluster) -> bool:
    return not await _is_refused(cluster)


@needs_mounts
async def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    disk, traffic = tmp_path / "disk", Traffic(1)
    with running(disk / "data", before=_on_small_disk(disk), config=tmp_path) as cluster:
        await traffic.make_topics(cluster)
        async with traffic.flowing(cluster):
            for _ in range(ROUNDS):
                await traffic.flow(100)
                filler = _seen_by(cluster, disk) / "filler"
                _fill(filler)
                await eventually(lambda: _is_refused(cluster), 30, interval=0.2)
                filler.unlink()
                await eventually(lambda: _is_served(cluster), 30, interval=0.2)
            await traffic.flow(100)
        await traffic.check(cluster)


class ReadOnlyFiles(OsFiles):
    """Real files on a disk that the kernel makes read-only when it has errors."""

    is_read_only = False

    def _refuse(self) -> None:
        if self.is_read_only:
            raise OSError(errno.EROFS, "read-only file system")

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        self._refuse()
        return super().write(descriptor, buffers, position)

    def create(self, path: str, size: int) -> int:
        self._refuse()
        return super().create(path, size)

    def rename(self, old: str, new: str) -> None:
        self._refuse()
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._refuse()
        super().remove(path)

    def clear(self, descriptor: int, start: int, end: int) -> None:
        self._refuse()
        super().clear(descriptor, start, end)


@in_virtual_time
async def test_a_disk_that_becomes_read_only_refuses_and_reads_on(tmp_path: Path) -> None:
    """Sends, timers, transactions and pops are refused; after a restart everything is there."""
    files = ReadOnlyFiles()
    half = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "0" * 32}
    confirmed = 0
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        for number in range(50):
            confirmed += (await wire.send("T", b"%d" % number)).code == ResponseCode.SUCCESS
        got = await pop(wire, count=8, invisible=60)
        files.is_read_only = True
        # An answer that relies on a failed write is withheld, and the connection is closed.
        with pytest.raises(OSError, match="closed the connection"):
            await wire.send("T", b"x")
        wire = await stage.connect(broker)
        answers = [
            await wire.send("T", b"x"),
            await wire.send("T", b"x", properties={"TIMER_DELAY_SEC": "5"}),
            await wire.send("T", b"x", properties=half),
            await start_pop(wire, count=1),
            await ack(wire, got[0]),
        ]
        assert ResponseCode.SUCCESS not in [answer.code for answer in answers]
        assert len(await all_records(wire, "T")) == confirmed
        await stage.clock.sleep(90)
    files.is_read_only = False
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        found = await all_records(wire, "T")
        assert [record.body for record in found] == [b"%d" % number for number in range(confirmed)]
        await stage.clock.sleep(90)
        assert sorted(one.body for one in await pop(wire)) >= sorted(one.body for one in got)
        assert (await wire.send("T", b"new")).code == ResponseCode.SUCCESS


async def test_a_data_directory_that_vanishes_takes_no_confirmed_message_with_it(
    tmp_path: Path,
) -> None:
    traffic = Traffic(3)
    with running(tmp_path / "data") as cluster:
        await traffic.make_topics(cluster)
        async with traffic.flowing(cluster):
            await traffic.flow(100)
            (tmp_path / "data").rename(tmp_path / "away")
            await eventually(lambda: _is_refused(cluster), 30, interval=0.2)
        await cluster.kill()
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        (tmp_path / "away").rename(tmp_path / "data")
        traffic.note_death()
        await cluster.begin()
        await traffic.check(cluster)


async def test_a_broker_without_descriptors_serves_those_it_has(tmp_path: Path) -> None:
    limit = ("sh", "-c", 'ulimit -n 96; exec "$@"', "sh")
    traffic = Traffic(4)
    with running(tmp_path / "data", before=limit) as cluster:
        await traffic.make_topics(cluster)
        async with traffic.flowing(cluster):
            await traffic.flow(100)
            idle = [await _idle(cluster) for _ in range(120)]
            await traffic.flow(50)
            for writer in filter(None, idle):
                writer.close()
            await eventually(lambda: _is_served(cluster), 30, interval=0.2)
            await traffic.flow(100)
        await traffic.check(cluster)


async def _idle(cluster: Cluster) -> asyncio.StreamWriter | None:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", cluster.broker_port)
    except OSError:
        return None
    return writer


async def test_half_open_connections_hold_up_no_other_client(tmp_path: Path) -> None:
    """Clients whose network is gone: the broker hears nothing, not even an end."""
    traffic = Traffic(5)
    with running(tmp_path / "data") as cluster:
        await traffic.make_topics(cluster)
        async with FaultProxy(("127.0.0.1", cluster.broker_port)) as proxy:
            wires = [await Wire.connect(proxy.port) for _ in range(8)]
            for number, wire in enumerate(wires):
                await wire.heartbeat(f"c{number}", consumer="half", topics=[PLAIN])
            for flow in (proxy.to_target, proxy.to_client):
                flow.stall()
            held = [wire.start_pull("half", PLAIN, 0, hold_ms=5_000) for wire in wires]
            sends = [asyncio.create_task(wire.send("lost", b"x")) for wire in wires]
            async with traffic.flowing(cluster):
                await traffic.flow(300)
            # The network comes back: what was on its way arrives, once.
            for flow in (proxy.to_target, proxy.to_client):
                flow.resume()
            answers = await asyncio.gather(*sends)
            assert [answer.code for answer in answers] == [0] * len(wires)
            await asyncio.wait(held, timeout=10)
            for wire in wires:
                await wire.close()
        async with await Wire.connect(cluster.broker_port) as wire:
            assert len(await all_records(wire, "lost")) == len(wires)
        await traffic.check(cluster)
