"""Apache's clients of the 5.x series, which speak gRPC, with our endpoint and with Apache's.

Every client runs the same scenarios, each in topics of its own, at three places: ``penstock up``,
Apache's proxy in local mode, and ``penstock proxy`` in front of Apache's broker. Two rows need
servers of their own: users with TLS, and a restart under all clients at once.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.interop.grpc_programs import CLIENTS, GrpcClient
from tests.interop.programs import not_run, program_environment, run_program
from tests.interop.results import FAIL, NOT_APPLICABLE, PASS, Cell
from tests.interop.servers import Cluster, penstock_up
from tests.interop.signed_clients import ADMIN_SECRET, SECRET, USER, guarded
from tests.interop.toolchain import Unavailable

from penstock import Admin, Tls

SECTION: Final = "gRPC clients of 5.x"
SCENARIOS: Final = (
    "grpc_send_and_simple_consumer",
    "grpc_push",
    "grpc_push_retries",
    "grpc_fifo",
    "grpc_delay_and_recall",
    "grpc_transaction",
)
SIGNED, WRONG_KEY, OVER_TLS = "grpc_signed", "grpc_wrong_key", "grpc_signed_over_tls"
RESTART: Final = "grpc_restart"
GUARDED: Final = (SIGNED, WRONG_KEY, OVER_TLS)
TYPES: Final = {
    "NORMAL": "NORMAL",
    "PUSH": "NORMAL",
    "RETRY": "NORMAL",
    "FIFO": "FIFO",
    "DELAY": "DELAY",
    "TRANSACTION": "TRANSACTION",
    "RESTART": "NORMAL",
}
GROUPS: Final = ("simple", "push", "retry", "fifo", "delay", "transaction", "restart")
RESTART_SECONDS: Final = 50
_REFUSAL: Final = re.compile(
    "signature is wrong|failed to fetch topic|ProducerImpl.*has FAILED", re.IGNORECASE
)
SEND_AGAIN_SECONDS, CONSUME_AGAIN_SECONDS = 5.0, 10.0


class Difference(NamedTuple):
    """A failure of a scenario that is the server's own, by its text, and what is behind it."""

    failure: re.Pattern[str]
    why: str


@dataclass(frozen=True, slots=True)
class Place:
    """A server of gRPC: where its rows stand, and what is known to differ there."""

    section: str = SECTION
    creates_groups: bool = True
    differs: Mapping[tuple[str, str], Difference] = field(default_factory=dict)
    """By language and scenario."""

    def explained(self, language: str, cell: Cell) -> Cell:
        """The cell; a failure that is known here counts as not applicable."""
        known = self.differs.get((language, cell.row))
        if cell.status != FAIL or known is None or not known.failure.search(cell.evidence):
            return cell
        return replace(cell, status=NOT_APPLICABLE, evidence=known.why)


PENSTOCK: Final = Place()
APACHE: Final = Place(
    f"{SECTION}, Apache's proxy in local mode",
    creates_groups=False,
    differs={
        ("python", "grpc_send_and_simple_consumer"): Difference(
            re.compile('50001.*"settings" is null'),
            "the client polls before its settings are answered; Apache's proxy refuses that with "
            "50001, Penstock serves it",
        )
    },
)
BEFORE_APACHE: Final = Place(f"{SECTION}, penstock proxy before Apache", creates_groups=False)


def _prepare_cluster(
    cluster: Cluster, place: Place, suffix: str, access: Mapping[str, Any] | None = None
) -> None:
    """Create what clients of the API cannot create."""
    with Admin(namesrv=cluster.namesrv, **(access or {})) as admin:
        for kind, type_ in TYPES.items():
            admin.create_topic(f"{kind}_{suffix}", attributes={"message.type": type_})
        for group in GROUPS:
            if group == "fifo" or not place.creates_groups:
                admin.create_group(f"{group}_{suffix}", consume_message_orderly=group == "fifo")
        for broker in admin.cluster():
            admin.update_broker_config(broker.broker_name, {"recallMessageEnable": "true"})


def run_grpc(cluster: Cluster, names: Sequence[str], place: Place = PENSTOCK) -> Iterator[Cell]:
    """Run ``names`` with each client; yield a cell as each ends, or for each a skip."""
    for client in CLIENTS:
        if cluster.grpc is None:
            yield from not_run(names, place.section, client.column, "the broker serves no gRPC")
            continue
        yield from _lacking(client, names, place)
        suffix = f"{client.language}-{int(time.time()):x}"
        wanted = [name for name in names if name not in client.lacks]
        try:
            program = client.prepare()
        except Unavailable as missing:
            yield from not_run(wanted, place.section, client.column, missing)
            continue
        _prepare_cluster(cluster, place, suffix)
        command = [*program, cluster.grpc, suffix, *wanted]
        for cell in run_program(
            command, wanted, place.section, client.column, env={"PYTHONPATH": ""}
        ):
            yield place.explained(client.language, cell)


def _lacking(client: GrpcClient, names: Sequence[str], place: Place) -> Iterator[Cell]:
    for name in names:
        if name in client.lacks:
            reason = client.lacks[name]
            yield Cell(place.section, name, client.column, NOT_APPLICABLE, reason)


# Users and TLS


def run_guarded(directory: Path, names: Sequence[str]) -> Iterator[Cell]:
    """The first scenario with keys: the right one, a wrong one, and over TLS."""
    plain = [name for name in names if name in (SIGNED, WRONG_KEY)]
    if plain:
        with guarded(directory / "plain", tls=False) as cluster:
            for name in plain:
                yield from _run_signed(cluster, directory / "plain", name, {})
    if OVER_TLS in names:
        with guarded(directory / "tls") as cluster:
            authority = directory / "tls" / "data" / "tls" / "ca.pem"
            # Java and Go do not check certificates; Python and Node read their authorities here.
            env = {"INTEROP_TLS": "1", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority)}
            yield from _run_signed(cluster, directory / "tls", OVER_TLS, env)


def _run_signed(
    cluster: Cluster, directory: Path, row: str, env: Mapping[str, str]
) -> Iterator[Cell]:
    access: dict[str, Any] = {"access_key": "admin", "secret_key": ADMIN_SECRET}
    if row == OVER_TLS:
        access["tls"] = Tls(ca_file=directory / "data" / "tls" / "ca.pem")
    secret = "not the secret" if row == WRONG_KEY else SECRET
    env = {**env, "INTEROP_ACCESS_KEY": USER, "INTEROP_SECRET_KEY": secret, "PYTHONPATH": ""}
    scenario = SCENARIOS[0]
    assert cluster.grpc is not None, "the server of these rows serves gRPC"
    for client in CLIENTS:
        if row in client.lacks:
            yield from _lacking(client, [row], PENSTOCK)
            continue
        suffix = f"{row[5:]}-{client.language}"
        try:
            program = client.prepare()
        except Unavailable as missing:
            yield from not_run([row], SECTION, client.column, missing)
            continue
        _prepare_cluster(cluster, PENSTOCK, suffix, access)
        command = [*program, cluster.grpc, suffix, scenario]
        for cell in run_program(command, [scenario], SECTION, client.column, env=env):
            yield replace(_refused(cell) if row == WRONG_KEY else cell, row=row)


def _refused(cell: Cell) -> Cell:
    """With a wrong key the client must not start; three of the clients do not say why."""
    is_refusal = cell.status == FAIL and _REFUSAL.search(cell.evidence) is not None
    return replace(cell, status=PASS if is_refusal else FAIL)


# A restart under all clients


def run_restart(directory: Path) -> Iterator[Cell]:
    """Stop and start the server under all clients at once; sends and deliveries go on."""
    programs: list[tuple[GrpcClient, list[str]]] = []
    for client in CLIENTS:
        try:
            programs.append((client, client.prepare()))
        except Unavailable as missing:
            yield from not_run([RESTART], SECTION, client.column, missing)
    runs: list[_Run] = []
    with penstock_up(directory) as cluster:
        assert cluster.grpc is not None, "the server of this row serves gRPC"
        for client, program in programs:
            _prepare_cluster(cluster, PENSTOCK, client.language)
            runs.append(_Run([*program, cluster.grpc, client.language, RESTART]))
        for run in runs:
            run.wait_until_running()
        time.sleep(5)
    ports = (
        f"--grpc-port={cluster.grpc.rpartition(':')[2]}",
        f"--nameserver-port={cluster.namesrv.rpartition(':')[2]}",
        f"--broker-port={cluster.broker.rpartition(':')[2]}",
    )
    with penstock_up(directory, None, *ports):
        ready_ms = time.time() * 1000
        for (client, _), run in zip(programs, runs, strict=True):
            yield _judge(client, run, ready_ms)


class _Run:
    """A program that sends and receives while the server restarts."""

    def __init__(self, command: Sequence[str]) -> None:
        self._program = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=program_environment({"PYTHONPATH": "", "INTEROP_SECONDS": str(RESTART_SECONDS)}),
        )
        self._running = threading.Event()
        self._found: dict[str, Any] | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            if line.startswith("running"):
                self._running.set()
            if line.startswith("{"):
                self._found = json.loads(line)
        self._running.set()

    def wait_until_running(self) -> None:
        self._running.wait(60)

    def result(self) -> dict[str, Any] | None:
        self._reader.join(RESTART_SECONDS + 60)
        self._program.kill()
        self._program.wait()
        return self._found


def _judge(client: GrpcClient, run: _Run, ready_ms: float) -> Cell:
    found = run.result()
    if found is None or found["status"] == FAIL:
        said = "the program ended without a result" if found is None else found["evidence"]
        return Cell(SECTION, RESTART, client.column, FAIL, said)
    times = json.loads(found["evidence"])
    again = {
        what: min((at - ready_ms for at in times[what] if at > ready_ms), default=float("inf"))
        / 1000
        for what in ("sent", "got")
    }
    text = f"sends again after {again['sent']:.1f} s, deliveries after {again['got']:.1f} s"
    good = again["sent"] < SEND_AGAIN_SECONDS and again["got"] < CONSUME_AGAIN_SECONDS
    return Cell(SECTION, RESTART, client.column, PASS if good else FAIL, text, found["ms"])
