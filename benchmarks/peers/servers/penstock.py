"""Penstock: name server and broker in one process, as `penstock up` starts them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.servers.rocketmq_topics import make_topic
from benchmarks.peers.servers.server import Running, Server
from tests.interop.servers import penstock_up


class Penstock(Server):
    """Our own server."""

    name = "penstock"

    def prepare(self) -> str:
        return version("penstock")

    @contextmanager
    def run(self, directory: Path, *, fsync: bool) -> Iterator[Running]:
        began = time.perf_counter()
        flush = "--flush=sync" if fsync else "--flush=async"
        with penstock_up(directory, None, flush) as cluster:
            ready = time.perf_counter() - began
            yield Running({"remoting": cluster.namesrv}, directory, ready)

    def make_topic(self, running: Running, topic: str, group: str) -> None:
        make_topic(running.addresses["remoting"], topic, group)
