"""Apache's Go client (rocketmq-client-go, remoting), built with the Go toolchain, run like Java's.

Go downloads the client's modules from its configured proxy; ``go/go.mod`` lists the versions. Go's
own settings (GOPROXY, GOFLAGS, GOWORK) are respected.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.interop.programs import not_run, run_program
from tests.interop.results import Cell
from tests.interop.servers import Cluster
from tests.interop.toolchain import BUILD, HERE, Unavailable

SECTION = "Apache's Go client"
MODULE = "github.com/apache/rocketmq-client-go/v2"
SOURCES = HERE / "go"
PARALLEL = 8
BUILD_SECONDS = 600

# Longest first: the client finds its retry topic only after up to a minute.
SCENARIOS = (
    "go_retry_to_success",
    "go_retry_to_dead_letters",
    "go_delay_levels",
    "go_transaction",
    "go_retry_orderly_to_dead_letters",
    "go_push_rebalance",
    "go_push_orderly",
    "go_send_sync",
    "go_send_async",
    "go_send_oneway",
    "go_send_batch",
    "go_send_big",
    "go_send_too_big",
    "go_send_to_queue",
    "go_send_auto_create",
    "go_send_traced",
    "go_push_concurrent",
    "go_push_tags",
    "go_push_sql92",
    "go_push_broadcast",
    "go_push_restart",
    "go_push_start_positions",
    "go_pull_from",
    "go_pull_poll",
    "go_request_reply",
    "go_admin",
    "go_namespace",
)
PENSTOCK_LIMITS: dict[str, re.Pattern[str]] = {}


def client_version() -> str:
    """The version of the client in ``go.mod``."""
    found = re.search(rf"{re.escape(MODULE)} v(\S+)", (SOURCES / "go.mod").read_text())
    assert found is not None
    return found.group(1)


def prepare_go() -> Path:
    """Download the client, build the scenarios, return the program; or raise `Unavailable`."""
    go = shutil.which("go")
    if go is None:
        raise Unavailable("go is not on PATH; Go 1.21 or newer is needed")
    # Listing the packages reveals missing downloads; a later build failure is an error in our code.
    listed = _go([go, "list", "-deps", "-f", "{{.ImportPath}}", "."])
    if listed.returncode != 0:
        reason = " ".join(listed.stderr.split())[-300:]
        raise Unavailable(f"Go could not fetch {MODULE} {client_version()}: {reason}")
    program = BUILD / "go" / "scenarios"
    program.parent.mkdir(parents=True, exist_ok=True)
    built = _go([go, "build", "-buildvcs=false", "-o", str(program), "."])
    if built.returncode != 0:
        raise RuntimeError(f"go build failed:\n{built.stderr}")
    return program


def _go(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=SOURCES, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
    )


def environment() -> dict[str, str]:
    """The environment, with a directory for the offsets of broadcast consumers."""
    home = BUILD / "go" / "home"
    home.mkdir(parents=True, exist_ok=True)
    return {"HOME": str(home)}


def run_go(
    cluster: Cluster,
    names: Sequence[str],
    *,
    limits: dict[str, re.Pattern[str]] | None = None,
) -> Iterator[Cell]:
    """Run ``names`` in one process; yield a cell as each ends, or for each a skip."""
    column = f"go {client_version()}"
    try:
        program = prepare_go()
    except Unavailable as missing:
        yield from not_run(names, SECTION, column, missing)
        return
    suffix = f"{int(time.time()):x}"
    command = [str(program), cluster.namesrv, cluster.broker, suffix, str(PARALLEL), *names]
    yield from run_program(command, names, SECTION, column, limits=limits, env=environment())
