"""The name server and the brokers of a simulated cluster, which can be stopped and killed."""

from __future__ import annotations

import dataclasses
import math
import random
import shutil
from pathlib import Path

from tests.simulation.dying import lose_host
from tests.support.faulty_files import FaultyFiles, SimulatedDisk
from tests.support.stage import SMALL_STORE

from penstock.broker import Broker, BrokerConfig
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import DLQ_PREFIX
from penstock.nameserver import NameServer, NameServerConfig
from penstock.protocol.records.pulled import messages_from_pull
from penstock.store import OS_FILES, FileLayer
from penstock.store.config import SYNC_FLUSH
from penstock.testing.clock import VirtualClock
from penstock.testing.virtual_time.loop import VirtualLoop

NAME_SERVER_HOST = "10.0.0.1"
NAME_SERVER = f"{NAME_SERVER_HOST}:9876"
BROKER_PORT = 10911


class NameServerSlot:
    """The name server, up or down."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._server: NameServer | None = None

    async def start(self) -> None:
        config = NameServerConfig(bind_host=NAME_SERVER_HOST, listen_port=9876)
        self._server = NameServer(config, clock=self._loop.clock)
        with self._loop.network.host(NAME_SERVER_HOST):
            await self._server.start()

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop()

    @property
    def is_up(self) -> bool:
        return self._server is not None


class BrokerSlot:
    """One broker: its address, its data, and the `Broker` while it runs.

    The store normally uses real files. With ``has_power_cuts`` it is on a simulated disk that
    loses unsynced data, and the broker flushes before it acknowledges; its tables remain real
    files, since each save is synced.
    """

    def __init__(
        self, loop: VirtualLoop, number: int, root: Path, *, has_power_cuts: bool = False
    ) -> None:
        self._loop = loop
        self.clock = VirtualClock(loop)
        """Of the machine: it survives a restart, and an operator may set it."""
        self.set_back_ms = 0
        """How far it was set back in all: what was due before that looks early behind it."""
        self.name = f"broker-{number}"
        self.host = f"10.0.1.{number}"
        self._data = root / self.name
        self._starts = 0
        self._disk = SimulatedDisk() if has_power_cuts else None
        self._chance = random.Random(f"disk {loop.seed} {number}")
        self.broker: Broker | None = None
        self.is_changing = False
        self.had_power_cut = False
        self.forgot_locks_at = -math.inf
        """The time of the last start at which other members may still have trusted their locks."""

    async def start(self) -> None:
        loop = self._loop
        config = BrokerConfig(
            broker_name=self.name,
            bind_host=self.host,
            listen_port=BROKER_PORT,
            recall_message_enable=True,
            mapped_file_size_timer_log=1 << 12,
        )
        files: FileLayer = OS_FILES
        store_config = SMALL_STORE
        if self._disk is not None:
            files = FaultyFiles(self._disk, self._chance)
            store_config = dataclasses.replace(SMALL_STORE, flush_disk_type=SYNC_FLUSH)
        broker = Broker(
            config,
            self._data,
            store_config=store_config,
            files=files,
            name_servers=[NAME_SERVER],
            clock=self.clock,
            chance=loop.random,
        )
        # A machine that is up again resets connections that it does not know.
        for connection in list(loop.network.connections.values()):
            if connection.server.host_name == self.host:
                connection.cut("client")
        with loop.network.host(self.host):
            await broker.start()
        if self._starts:
            self.forgot_locks_at = loop.time()
        self._starts += 1
        self.broker = broker

    def set_clock(self, by: float) -> None:
        """Set the clock ahead, or back if negative."""
        self.clock.jump(by)
        self.set_back_ms += max(0, round(-by * 1000))

    async def stop(self) -> None:
        """Stop in an orderly way, as an operator does."""
        broker, self.broker = self.broker, None
        if broker is not None:
            await broker.stop()

    async def kill(self, *, silent: bool) -> None:
        """Stop at once, without shutdown steps; the next start finds the files as they are now."""
        broker, self.broker = self.broker, None
        if broker is None:
            return
        lose_host(self._loop.network, self.host, silent=silent)
        as_it_was = self._data.with_suffix(".dead")
        shutil.copytree(self._data, as_it_was)
        if self._disk is not None:
            self._disk = self._disk.after_process_crash()
            if silent:
                self._disk = self._disk.after_machine_crash(self._chance)
                self.had_power_cut = True
        # Later writes of the dead broker go to files that are never read.
        await broker.stop()
        shutil.rmtree(self._data)
        as_it_was.rename(self._data)

    def dead_letters(self, group: str) -> list[StoredMessage]:
        """The messages in the dead-letter topic of a group."""
        return self.read_all(DLQ_PREFIX + group)

    def read_all(self, topic: str) -> list[StoredMessage]:
        """Every message of a topic, read from the store directly."""
        assert self.broker is not None, "the broker must be running"
        storage = self.broker.state.storage
        found: list[StoredMessage] = []
        for known, queue_id in storage.store.queues():
            offset, end = 0, storage.max_offset(known, queue_id)
            while known == topic and offset < end:
                result = storage.read(topic, queue_id, offset)
                for part in result.slices:
                    found += messages_from_pull(bytes(part), self.name)
                offset = result.next_offset
        return found

    def ends(self) -> dict[MessageQueue, int]:
        """The end of every queue."""
        assert self.broker is not None, "the broker must be running"
        storage = self.broker.state.storage
        return {
            MessageQueue(topic, self.name, queue_id): storage.max_offset(topic, queue_id)
            for topic, queue_id in storage.store.queues()
        }
