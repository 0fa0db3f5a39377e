"""Kafka: one node that is broker and controller, from the jars on Maven Central."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.peers.adapter import QUEUES
from benchmarks.peers.servers.server import (
    Running,
    Server,
    Unavailable,
    answering,
    class_path,
    free_ports,
)
from tests.interop.servers import write_properties

VERSION: Final = "4.1.1"
HEAP: Final = "-Xmx1g"  # as in its own start script
CLUSTER_ID: Final = "cGVuc3RvY2stYmVuY2gtMQ"
# ApiVersions, version 0, without a client id: the first request of every client.
QUESTION: Final = bytes.fromhex("0000000a 0012 0000 00000001 ffff")


class Kafka(Server):
    """Kafka in KRaft mode."""

    name = "kafka"
    _java: str
    _jars: str

    def __init__(self, partitions: int = QUEUES) -> None:
        self._partitions = partitions

    def prepare(self) -> str:
        java, maven = shutil.which("java"), shutil.which("mvn")
        if not java or not maven:
            raise Unavailable("java (17 or newer) and mvn must be on PATH")
        self._java, self._jars = java, class_path(maven, "kafka", VERSION)
        return VERSION

    @contextmanager
    def run(self, directory: Path, *, fsync: bool) -> Iterator[Running]:
        port, controller = free_ports(2)
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(directory / "logs"),
            "num.partitions": str(self._partitions),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **({"log.flush.interval.messages": "1"} if fsync else {}),
        }
        conf = write_properties(directory / "server.properties", settings)
        # A node is formatted once, so this is not part of its ready time.
        subprocess.run(
            self._command("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(conf)),
            check=True,
            capture_output=True,
        )
        command = self._command("kafka.Kafka", str(conf))
        with answering(command, directory, port, QUESTION) as ready:
            yield Running({"kafka": f"127.0.0.1:{port}"}, directory, ready)

    def _command(self, main: str, *arguments: str) -> list[str]:
        return [self._java, HEAP, "-XX:+UseG1GC", "-cp", self._jars, main, *arguments]
