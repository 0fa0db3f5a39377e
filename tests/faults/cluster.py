"""A name server and a broker in one process or in two, to be stopped, starved and killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.runtime.child_process import ChildProcess

IS_LONG: Final = bool(os.environ.get("PENSTOCK_LONG"))
SETTINGS: Final = """\
mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=4000
mappedFileSizeTimerLog=65536
maxHashSlotNum=1000
maxIndexNum=4000
flushConsumerOffsetInterval=200
transactionTimeOut=300
transactionCheckInterval=300
"""
"""Small files, so that rolling is as frequent as everything else."""
START_SECONDS: Final = 60.0


class Cluster:
    """``penstock up`` on one data directory, started as often as it takes."""

    def __init__(
        self,
        data: Path,
        *,
        settings: str = "",
        before: Sequence[str] = (),
        config: Path | None = None,
    ) -> None:
        """``before`` are words in front of the command; the file of settings is in ``config``."""
        self.data = data
        config = (config or data.parent) / "broker.conf"
        config.write_text(SETTINGS + settings)
        command: list[str | Path] = [*before, sys.executable, "-m", "penstock", "up"]
        command += ["--data", data, "--config", config, "--console", "off", "--grpc-port", "0"]
        command += ["--nameserver-port", "0", "--broker-port", "0"]
        self.process = ChildProcess(command)
        self.broker_port = self.names_port = self.grpc_port = 0

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.names_port}"

    def start(self) -> None:
        self.process.start()
        line = self.process.wait_for_line(
            r"^ready namesrv=\S+:(\d+) broker=\S+:(\d+) .*grpc=\S+:(\d+)", START_SECONDS
        )
        self.names_port, self.broker_port, self.grpc_port = map(int, line.groups())

    async def kill(self) -> None:
        """End it without a word."""
        await asyncio.to_thread(self.process.kill)

    async def begin(self) -> None:
        """Start it on what it left."""
        await asyncio.to_thread(self.start)

    async def restart(self) -> None:
        await self.kill()
        await self.begin()

    async def stop(self) -> None:
        """End it in an orderly way."""
        assert await asyncio.to_thread(self.process.terminate) == 0

    @property
    def has_failed(self) -> bool:
        """Whether it wrote the traceback of an error that it did not expect."""
        return "Traceback" in self.process.output


@contextmanager
def running(
    data: Path, *, settings: str = "", before: Sequence[str] = (), config: Path | None = None
) -> Iterator[Cluster]:
    cluster = Cluster(data, settings=settings, before=before, config=config)
    try:
        cluster.start()
        yield cluster
    finally:
        if cluster.process.starts:
            cluster.process.kill()


@contextmanager
def held(process: ChildProcess) -> Iterator[None]:
    """The process does not run: it has its memory, files and connections, and gets no time."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)
