"""Apache RocketMQ 5.5.0: its name server, and its broker with the gRPC proxy in one process.

Remoting clients connect to the broker, gRPC clients to the proxy.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.peers.servers.rocketmq_topics import make_topic
from benchmarks.peers.servers.server import (
    BUILD,
    Running,
    Server,
    Unavailable,
    class_path,
    free_ports,
)
from tests.interop.servers import (
    BROKER_NAME,
    BROKER_SETTINGS,
    CLUSTER_NAME,
    apache_home,
    apache_namesrv,
    free_port,
    process,
    write_properties,
)
from tests.interop.toolchain import FAST, Toolchain

VERSION: Final = "5.5.0"
HEAP: Final = "2g"
READY: Final = "rocketmq-proxy startup successfully"


class Apache(Server):
    """Apache RocketMQ."""

    name = "apache"
    _toolchain: Toolchain

    def prepare(self) -> str:
        java, maven = shutil.which("java"), shutil.which("mvn")
        if not java or not maven:
            raise Unavailable("java (17 or newer) and mvn must be on PATH")
        jars = class_path(maven, "rocketmq", VERSION)
        self._toolchain = Toolchain(VERSION, java, jars, BUILD)
        return VERSION

    @contextmanager
    def run(self, directory: Path, *, fsync: bool) -> Iterator[Running]:
        began = time.perf_counter()
        with apache_namesrv(self._toolchain, directory, options=FAST) as namesrv:
            (grpc, remoting), env = free_ports(2), apache_home(directory)
            broker = write_properties(
                directory / "broker.conf",
                {
                    "brokerClusterName": CLUSTER_NAME,
                    "brokerName": BROKER_NAME,
                    "brokerId": "0",
                    "brokerIP1": "127.0.0.1",
                    "namesrvAddr": namesrv,
                    "listenPort": str(free_port()),
                    "storePathRootDir": str(directory / "store"),
                    "storePathCommitLog": str(directory / "store" / "commitlog"),
                    "flushDiskType": "SYNC_FLUSH" if fsync else "ASYNC_FLUSH",
                    **BROKER_SETTINGS,
                },
            )
            proxy = directory / "proxy.json"
            proxy.write_text(
                json.dumps(
                    {
                        "rocketMQClusterName": CLUSTER_NAME,
                        "namesrvAddr": namesrv,
                        "grpcServerPort": grpc,
                        "remotingListenPort": remoting,
                        "localServeAddr": "127.0.0.1",
                    }
                )
            )
            command = self._toolchain.command(
                "org.apache.rocketmq.proxy.ProxyStartup",
                *("-pm", "local", "-bc", str(broker), "-pc", str(proxy), "-n", namesrv),
                heap=HEAP,
                options=FAST,
            )
            with process(command, directory / "proxy.log", READY, env):
                ready = time.perf_counter() - began
                addresses = {"remoting": namesrv, "grpc": f"127.0.0.1:{grpc}"}
                yield Running(addresses, directory, ready)

    def make_topic(self, running: Running, topic: str, group: str) -> None:
        make_topic(running.addresses["remoting"], topic, group)
