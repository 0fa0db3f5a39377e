"""RabbitMQ, as the distribution packages it, with durable queues.

It has no setting for syncing messages, so both durabilities use the same server.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.servers.server import Running, Server, Unavailable, answering, free_ports


class RabbitMq(Server):
    """One server, one queue per topic."""

    name = "rabbitmq"
    _program: str
    _mapper: str

    def prepare(self) -> str:
        # Debian keeps the server itself out of PATH, behind a wrapper that requires root.
        installed = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"))
        where = ":".join(map(str, installed)) or None
        found = shutil.which("rabbitmq-server", path=where)
        if found is None:
            raise Unavailable("rabbitmq-server is not installed; Debian's package has that name")
        mapper = shutil.which("epmd")
        if mapper is None:
            raise Unavailable("epmd, which comes with Erlang, is not on PATH")
        self._program, self._mapper = found, mapper
        return Path(found).resolve().parent.parent.name.rpartition("-")[2]

    @contextmanager
    def run(self, directory: Path, *, fsync: bool) -> Iterator[Running]:
        port, distribution, mapper = free_ports(3)
        directory.mkdir(parents=True, exist_ok=True)
        plugins = directory / "enabled_plugins"
        plugins.write_text("[].\n")
        env = {
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(mapper),
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_CONFIG_FILE": str(directory / "none"),
            # Ignored by Erlang, but it puts the directory on the command line.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-bench {directory}",
            # Signals must reach the server itself, not a shell around it.
            "RUNNING_UNDER_SYSTEMD": "1",
        }
        # A port mapper started by the node would keep running after it.
        mapping = [self._mapper, "-port", str(mapper), "-address", "127.0.0.1"]
        with (
            answering(mapping, directory / "epmd", mapper, b"\x00\x01n"),
            answering([self._program], directory, port, b"AMQP\x00\x00\x09\x01", env) as ready,
        ):
            address = f"amqp://guest:guest@127.0.0.1:{port}/"
            yield Running({"amqp": address}, directory, ready)
