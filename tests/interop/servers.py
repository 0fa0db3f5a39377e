"""The servers of a run: Apache's or ours, as processes on loopback, stopped with the block.

Scenarios see a `Cluster`: two addresses and two names. The target selects the server behind each
address, so a name server of one kind can serve a broker of the other.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.interop.toolchain import PROJECT, QUICK, Toolchain

from penstock import Admin

READY_SECONDS = 120
PORTS = (10_000, 32_000)
CLUSTER_NAME = "DefaultCluster"
BROKER_NAME = "broker-a"
# Frequent transaction checks, so that a scenario sees one; no flow control while a cold JVM warms
# up; the rest is required by the scenarios.
BROKER_SETTINGS = {
    "autoCreateTopicEnable": "true",
    "enablePropertyFilter": "true",
    "transactionCheckInterval": "4000",
    "transactionTimeOut": "6000",
    "waitTimeMillsInSendQueue": "10000",
    "diskMaxUsedSpaceRatio": "99",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A name server and a broker that are ready."""

    namesrv: str
    broker: str
    cluster_name: str
    broker_name: str
    store: Path
    grpc: str | None = None
    """The endpoint of the 5.x clients."""
    is_penstock: bool = False
    """Whether the broker is ours."""


def free_port() -> int:
    """A free port whose neighbours two below (VIP) and one above (replication) are also free.

    It is below the range for outgoing connections: a JVM binds it only seconds later, and on a
    busy machine another connection could have taken it.
    """
    while True:
        port = random.randrange(*PORTS)
        if all(_is_free(port + step) for step in (-2, 0, 1)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@contextmanager
def process(
    command: list[str],
    log: Path,
    ready: str,
    env: Mapping[str, str] | None = None,
    *,
    kill: bool = False,
) -> Iterator[str]:
    """Run a server until the block ends; yield the line that reported it ready.

    With ``kill`` it is not stopped cleanly.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=PROJECT,
        )
    try:
        yield _wait_for(server, log, ready)
    finally:
        if kill:
            server.kill()
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_for(server: subprocess.Popen[bytes], log: Path, ready: str) -> str:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        for line in log.read_text(errors="replace").splitlines():
            if ready in line:
                return line
        if server.poll() is not None:
            tail = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(
                f"{log.stem} ended with {server.returncode} before it was ready:\n{tail}"
            )
        time.sleep(0.05)
    raise RuntimeError(f"{log.stem} was not ready after {READY_SECONDS} s; its output is in {log}")


def apache_home(directory: Path) -> dict[str, str]:
    """The environment for Apache's programs."""
    # 4.9 does not start without its log configuration files; empty ones disable logging.
    conf = directory / "home" / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("namesrv", "broker", "tools"):
        (conf / f"logback_{name}.xml").write_text("<configuration/>\n")
    return {"ROCKETMQ_HOME": str(directory / "home"), "NAMESRV_ADDR": ""}


def write_properties(path: Path, settings: Mapping[str, str]) -> Path:
    """Write a file in the format of broker.conf."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


@contextmanager
def apache_namesrv(
    toolchain: Toolchain, directory: Path, *, options: tuple[str, ...] = QUICK
) -> Iterator[str]:
    """Apache's name server; yields its address."""
    port = free_port()
    conf = write_properties(directory / "namesrv.conf", {"listenPort": str(port)})
    command = toolchain.command(
        "org.apache.rocketmq.namesrv.NamesrvStartup",
        "-c",
        str(conf),
        heap="256m",
        options=options,
    )
    with process(command, directory / "namesrv.log", "boot success", apache_home(directory)):
        yield f"127.0.0.1:{port}"


@contextmanager
def apache_broker(
    toolchain: Toolchain,
    directory: Path,
    namesrv: str,
    settings: Mapping[str, str] | None = None,
    *,
    heap: str = "768m",
    options: tuple[str, ...] = QUICK,
    kill: bool = False,
    access: Mapping[str, Any] | None = None,
    wait: float = READY_SECONDS,
) -> Iterator[Cluster]:
    """Apache's broker on ``directory/store``, registered with ``namesrv``.

    ``access`` is what our admin client needs where the servers ask for more than an address.
    """
    settings = {"listenPort": str(free_port()), "brokerName": BROKER_NAME, **(settings or {})}
    store = directory / "store"
    conf = _broker_conf(directory, namesrv, settings)
    command = toolchain.command(
        "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf), heap=heap, options=options
    )
    env = apache_home(directory)
    address, name = f"127.0.0.1:{settings['listenPort']}", settings["brokerName"]
    with process(command, directory / "broker.log", "boot success", env, kill=kill):
        wait_until_registered(namesrv, address, wait, **(access or {}))
        yield Cluster(namesrv, address, CLUSTER_NAME, name, store)


def _broker_conf(directory: Path, namesrv: str, settings: Mapping[str, str]) -> Path:
    store = directory / "store"
    return write_properties(
        directory / "broker.conf",
        {
            "brokerClusterName": CLUSTER_NAME,
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": namesrv,
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            **BROKER_SETTINGS,
            **settings,
        },
    )


@contextmanager
def apache_proxy(
    toolchain: Toolchain,
    directory: Path,
    settings: Mapping[str, str] | None = None,
    *,
    heap: str = "1g",
    options: tuple[str, ...] = QUICK,
) -> Iterator[Cluster]:
    """Apache's name server, and its proxy in local mode: broker and gRPC endpoint in one process.

    The toolchain is one of `prepare_proxy`.
    """
    store, env = directory / "store", apache_home(directory)
    port, grpc = free_port(), free_port()
    with apache_namesrv(toolchain, directory) as namesrv:
        named = {"listenPort": str(port), "brokerName": BROKER_NAME, **(settings or {})}
        conf = _broker_conf(directory, namesrv, named)
        proxy_conf = directory / "home" / "conf" / "rmq-proxy.json"
        endpoint = {
            "rocketMQClusterName": CLUSTER_NAME,
            "namesrvAddr": namesrv,
            "localServeAddr": "127.0.0.1",
            "grpcServerPort": grpc,
            "remotingListenPort": free_port(),
        }
        proxy_conf.write_text(json.dumps(endpoint))
        command = toolchain.command(
            "org.apache.rocketmq.proxy.ProxyStartup",
            *("-pm", "local", "-n", namesrv, "-bc", str(conf), "-pc", str(proxy_conf)),
            heap=heap,
            options=options,
        )
        with process(command, directory / "proxy.log", "startup successfully", env):
            address = f"127.0.0.1:{port}"
            wait_until_registered(namesrv, address)
            yield Cluster(namesrv, address, CLUSTER_NAME, BROKER_NAME, store, f"127.0.0.1:{grpc}")


@contextmanager
def penstock_proxy(directory: Path, cluster: Cluster, *arguments: str) -> Iterator[Cluster]:
    """``penstock proxy`` in front of a cluster."""
    command = [
        penstock_command(),
        "proxy",
        f"--namesrv={cluster.namesrv}",
        "--grpc-port=0",
        *arguments,
    ]
    with process(command, directory / "penstock-proxy.log", "grpc=") as line:
        yield replace(cluster, grpc=_ready_fields(line)["grpc"])


def wait_until_registered(
    namesrv: str, broker: str, wait: float = READY_SECONDS, **access: Any
) -> None:
    """Wait until the name server knows the broker at this address.

    Apache's 5.x reports that it has started even if it has not registered: it registers with the
    name servers it is connected to at that time, and connects on another thread. If the connection
    comes too late, on a busy machine, clients find the broker only 10 s later.
    """
    deadline = time.monotonic() + wait
    with Admin(namesrv=namesrv, **access) as admin:
        while broker not in {known.address for known in admin.cluster()}:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{namesrv} does not know the broker {broker} after {wait:g} s")
            time.sleep(0.02)


@contextmanager
def apache(
    toolchain: Toolchain,
    directory: Path,
    settings: Mapping[str, str] | None = None,
    *,
    heap: str = "768m",
    options: tuple[str, ...] = QUICK,
) -> Iterator[Cluster]:
    """Apache's name server and broker."""
    with (
        apache_namesrv(toolchain, directory) as namesrv,
        apache_broker(
            toolchain, directory, namesrv, settings, heap=heap, options=options
        ) as cluster,
    ):
        yield cluster


def penstock_command() -> str:
    """Our command line tool, from the environment this runs in."""
    return str(Path(sys.executable).with_name("penstock"))


def _ready_fields(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


@contextmanager
def penstock_nameserver(
    directory: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """``penstock nameserver``; yields its address."""
    command = [
        penstock_command(),
        "nameserver",
        f"--data={directory / 'data'}",
        f"--nameserver-port={free_port()}",
        *arguments,
    ]
    with process(command, directory / "penstock-nameserver.log", "ready namesrv=", env) as line:
        yield _ready_fields(line)["namesrv"]


@contextmanager
def penstock_broker(directory: Path, namesrv: str) -> Iterator[Cluster]:
    """``penstock broker``, registered with ``namesrv``."""
    command = [
        penstock_command(),
        "broker",
        f"--namesrv={namesrv}",
        f"--data={directory / 'data'}",
        f"--broker-port={free_port()}",
        f"--broker-name={BROKER_NAME}",
        f"--cluster={CLUSTER_NAME}",
    ]
    with process(command, directory / "penstock-broker.log", "ready broker=") as line:
        fields = _ready_fields(line)
        store = Path(fields["data"])
        yield Cluster(namesrv, fields["broker"], CLUSTER_NAME, BROKER_NAME, store, is_penstock=True)


@contextmanager
def penstock_up(
    directory: Path,
    settings: Mapping[str, str] | None = None,
    *arguments: str,
    env: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """``penstock up``: our name server and broker in one process."""
    conf = write_properties(directory / "broker.conf", settings or {})
    command = [
        penstock_command(),
        "up",
        f"--data={directory / 'data'}",
        f"--nameserver-port={free_port()}",
        f"--broker-port={free_port()}",
        f"--broker-name={BROKER_NAME}",
        f"--cluster={CLUSTER_NAME}",
        *([f"--config={conf}"] if settings else []),
        "--grpc-port=0",
        *arguments,
    ]
    with process(command, directory / "penstock.log", "ready namesrv=", env) as line:
        fields = _ready_fields(line)
        yield Cluster(
            fields["namesrv"],
            fields["broker"],
            CLUSTER_NAME,
            BROKER_NAME,
            Path(fields["data"]),
            fields.get("grpc"),
            is_penstock=True,
        )
