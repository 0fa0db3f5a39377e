"""Node clients of the remoting protocol from npm: ali-ons and its predecessor rocketmq.

``node/package.json`` lists the versions; npm uses its configured registry.
"""

from __future__ import annotations

import hashlib
import json
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

SECTION = "Node clients"
SOURCES = HERE / "node"
PARALLEL = 6
INSTALL_SECONDS = 600

# Longest first.
SCENARIOS = (
    "node_retry_to_success",
    "node_retry_to_dead_letters",
    "node_delay_levels",
    "node_push_rebalance",
    "node_transaction",
    "node_send_sync",
    "node_send_big",
    "node_send_too_big",
    "node_send_auto_create",
    "node_send_sharding_key",
    "node_push_concurrent",
    "node_push_tags",
    "node_push_sql92",
    "node_push_broadcast",
    "node_push_restart",
    "node_push_in_order",
)
PENSTOCK_LIMITS: dict[str, re.Pattern[str]] = {}


def libraries() -> dict[str, str]:
    """The packages under test and their versions."""
    wanted: dict[str, str] = json.loads((SOURCES / "package.json").read_text())["dependencies"]
    return wanted


def prepare_node() -> list[str]:
    """Install the packages; return the command that runs scenarios, or raise `Unavailable`."""
    node, npm = (_find(name) for name in ("node", "npm"))
    files = sorted(SOURCES.glob("*.js*"))
    digest = hashlib.sha256(b"".join(file.name.encode() + file.read_bytes() for file in files))
    place = BUILD / "node" / digest.hexdigest()[:12]
    if not (place / ".done").exists():
        place.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, place)
        _install(npm, place)
        (place / ".done").touch()
    return [node, str(place / "scenarios.js")]


def _find(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not on PATH; Node 18 or newer with npm is needed")
    return found


def _install(npm: str, place: Path) -> None:
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
    run = subprocess.run(
        command, cwd=place, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
    )
    if run.returncode != 0:
        reason = " ".join(run.stderr.split())[:300]
        raise Unavailable(f"npm could not install {', '.join(libraries())}: {reason}")


def run_node(
    cluster: Cluster,
    names: Sequence[str],
    *,
    limits: dict[str, re.Pattern[str]] | None = None,
) -> Iterator[Cell]:
    """Run ``names`` with each package; yield a cell as each ends, or for each a skip."""
    for library, version in libraries().items():
        column = f"{library} {version}"
        try:
            program = prepare_node()
        except Unavailable as missing:
            yield from not_run(names, SECTION, column, missing)
            continue
        suffix = f"{library}-{int(time.time()):x}"
        command = [*program, library, cluster.namesrv, cluster.broker, suffix, str(PARALLEL)]
        yield from run_program([*command, *names], names, SECTION, column, limits=limits)
