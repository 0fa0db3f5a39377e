"""Redis with an append-only file, as the distribution packages it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.servers.server import Running, Server, Unavailable, answering, free_ports


class Redis(Server):
    """One server, one stream per topic."""

    name = "redis"
    _program: str

    def prepare(self) -> str:
        found = shutil.which("redis-server")
        if found is None:
            raise Unavailable("redis-server is not on PATH; Debian's package has that name")
        self._program = found
        printed = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
        return printed.stdout.partition("v=")[2].split()[0]

    @contextmanager
    def run(self, directory: Path, *, fsync: bool) -> Iterator[Running]:
        (port,) = free_ports(1)
        directory.mkdir(parents=True, exist_ok=True)
        conf = directory / "redis.conf"
        conf.write_text(
            f"bind 127.0.0.1\nport {port}\ndir {directory}\n"
            f'save ""\nappendonly yes\nappendfsync {"always" if fsync else "everysec"}\n'
            # Redis replaces its process title; the directory must stay in it.
            f'proc-title-template "{{title}} {directory}"\n'
        )
        with answering(
            [self._program, str(conf)], directory, port, b"*1\r\n$4\r\nPING\r\n"
        ) as ready:
            yield Running({"redis": f"redis://127.0.0.1:{port}"}, directory, ready)
