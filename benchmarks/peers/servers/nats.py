"""NATS with JetStream on files: from PATH, or built by `go install`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.peers.servers.server import (
    BUILD,
    Running,
    Server,
    Unavailable,
    answering,
    free_ports,
)

PACKAGE: Final = "github.com/nats-io/nats-server/v2@latest"


class Nats(Server):
    """One server, one stream per topic."""

    name = "nats"
    _program: str

    def prepare(self) -> str:
        bin_directory = BUILD / "bin"
        found = shutil.which("nats-server") or shutil.which("nats-server", path=str(bin_directory))
        if found is None:
            found = _install(bin_directory)
        self._program = found
        printed = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
        return printed.stdout.strip().rpartition("v")[2]

    @contextmanager
    def run(self, directory: Path, *, fsync: bool) -> Iterator[Running]:
        (port,) = free_ports(1)
        directory.mkdir(parents=True, exist_ok=True)
        conf = directory / "nats.conf"
        conf.write_text(
            json.dumps(
                {
                    "listen": f"127.0.0.1:{port}",
                    "jetstream": {
                        "store_dir": str(directory / "jetstream"),
                        # Its default is two minutes.
                        "sync_interval": "always" if fsync else "2m",
                    },
                }
            )
        )
        command = [self._program, "-c", str(conf)]
        # It greets every connection.
        with answering(command, directory, port, b"") as ready:
            yield Running({"nats": f"nats://127.0.0.1:{port}"}, directory, ready)


def _install(bin_directory: Path) -> str:
    go = shutil.which("go")
    if go is None:
        raise Unavailable("neither nats-server nor go, which would build it, is on PATH")
    done = subprocess.run(
        [go, "install", PACKAGE],
        env={**os.environ, "GOBIN": str(bin_directory)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Unavailable(f"go install {PACKAGE} failed: {done.stderr.strip()[-300:]}")
    return str(bin_directory / "nats-server")
