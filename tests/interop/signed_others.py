"""Remoting clients of other languages that sign their requests, with ``penstock up --auth``.

Two rows for each: with the right key it sends and receives, with a wrong one its send is refused
with code 16 and nothing is stored. The official gRPC clients have such rows in `grpc_clients`,
Java's in `signed_clients`.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from tests.interop.go_clients import client_version, environment, prepare_go
from tests.interop.node_clients import libraries, prepare_node
from tests.interop.programs import not_run, run_program
from tests.interop.results import FAIL, PASS, Cell
from tests.interop.servers import Cluster
from tests.interop.signed_clients import ADMIN_SECRET, SECRET, USER, guarded
from tests.interop.toolchain import BUILD, HERE, PROJECT, Unavailable

from penstock import Admin

SECTION: Final = "signed, other remoting clients"
SIGNED, WRONG_KEY = "signed_send_and_push", "signed_with_a_wrong_key"
NAMES: Final = (SIGNED, WRONG_KEY)
INSTALL_SECONDS: Final = 300
# The second form is that of the C++ client's log.
REFUSAL: Final = re.compile(r"CODE: 16 +DESC: check signature failed|check signature failed\.,16\b")
SCENARIOS: Final = {SIGNED: "signed", WRONG_KEY: "wrong_key"}


@dataclass(frozen=True, slots=True)
class Client:
    """A client, and how its program is called."""

    column: str
    prefix: str
    """Of the names of its scenarios."""
    command: Callable[[Cluster, str], list[str]]
    """The command without scenarios for a suffix of topics, or `Unavailable`."""
    env: Callable[[], dict[str, str]] = field(default=dict)


def _go(cluster: Cluster, suffix: str) -> list[str]:
    return [str(prepare_go()), cluster.namesrv, cluster.broker, suffix, "1"]


def _node(library: str, cluster: Cluster, suffix: str) -> list[str]:
    return [*prepare_node(), library, cluster.namesrv, cluster.broker, suffix, "1"]


def _cpp_place() -> Path:
    lock = PROJECT / "requirements" / "peers-cpp.lock"
    return BUILD / f"cpp-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"


def _cpp(cluster: Cluster, suffix: str) -> list[str]:
    place = _cpp_place()
    if not (place / ".done").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        lock = PROJECT / "requirements" / "peers-cpp.lock"
        command += ["--require-hashes", "--no-deps", "--upgrade", f"--target={place}", "-r"]
        run = subprocess.run(
            [*command, str(lock)],
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
        )
        if run.returncode != 0:
            reason = " ".join(run.stderr.split())[:300]
            raise Unavailable(f"the C++ client has no wheel for this machine: {reason}")
        (place / ".done").touch()
    return [sys.executable, str(HERE / "cpp" / "scenarios.py"), cluster.namesrv, suffix]


def _cpp_environment() -> dict[str, str]:
    """The binding, and a home directory for its logs."""
    home = BUILD / "cpp-home"
    home.mkdir(parents=True, exist_ok=True)
    return {"PYTHONPATH": str(_cpp_place()), "HOME": str(home)}


def clients() -> list[Client]:
    """The clients of the rows."""
    return [
        Client(f"go {client_version()}", "go", _go, environment),
        *(
            Client(f"{library} {version}", "node", partial(_node, library))
            for library, version in libraries().items()
        ),
        Client("C++ 1.0.1", "cpp", _cpp, _cpp_environment),
    ]


def run_others(directory: Path, names: Sequence[str]) -> Iterator[Cell]:
    """Run ``names`` with each client; yield a cell as each ends, or for each a skip."""
    if not names:
        return
    with guarded(directory, tls=False) as cluster:
        for client in clients():
            for row in names:
                try:
                    yield _run(cluster, client, row)
                except Unavailable as missing:
                    yield from not_run([row], SECTION, client.column, missing)


def _run(cluster: Cluster, client: Client, row: str) -> Cell:
    scenario = f"{client.prefix}_{SCENARIOS[row]}"
    suffix = client.column.split()[0].replace("+", "p")
    topic = f"topic-{scenario}-{suffix}"
    command = client.command(cluster, suffix)
    secret = "not the secret" if row == WRONG_KEY else SECRET
    env: Mapping[str, str] = {
        **client.env(),
        "INTEROP_ACCESS_KEY": USER,
        "INTEROP_SECRET_KEY": secret,
    }
    with Admin(namesrv=cluster.namesrv, access_key="admin", secret_key=ADMIN_SECRET) as admin:
        admin.create_topic(topic, 2)
        (cell,) = run_program([*command, scenario], [scenario], SECTION, client.column, env=env)
        stored = sum(one.max_offset for one in admin.topic_stats(topic))
    return judged(replace(cell, row=row), stored)


def judged(cell: Cell, stored: int) -> Cell:
    """The cell; with a wrong key it passes if its evidence is the refusal and nothing is stored."""
    if cell.status != PASS or cell.row != WRONG_KEY:
        return cell
    if stored:
        return replace(cell, status=FAIL, evidence=f"{stored} stored with a wrong key")
    if REFUSAL.search(cell.evidence) is None:
        return replace(cell, status=FAIL, evidence=f"another refusal: {cell.evidence}")
    return cell
