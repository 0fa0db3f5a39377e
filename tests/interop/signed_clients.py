"""Apache's Java client and mqadmin with our servers that require users and TLS.

The scenarios run as a user that is no super user and has all rights by one entry; mqadmin runs as
the administrator.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.interop import mqadmin, scenarios
from tests.interop.client_guarded import accounts_of_5
from tests.interop.mqadmin import NEWER, Row
from tests.interop.results import FAIL, PASS, Cell
from tests.interop.servers import Cluster, apache_broker, penstock_nameserver, penstock_up
from tests.interop.toolchain import QUICK, Toolchain

from penstock import Admin, Tls

SECTION = "signed, over TLS"
ADMIN_SECRET = "the secret of the administrator"
USER, SECRET = "interop", "the secret of the scenarios"
SCENARIOS = (
    "retry_to_success",
    "transaction",
    "send_sync",
    "send_async",
    "send_oneway",
    "send_batch",
    "push_concurrent",
    "push_orderly",
    "lite_pull_subscribe",
    "old_pull",
    "request_reply",
    "query_by_key",
    "consume_directly",
    "topic_delete",
)
_ALICE = "-n {ns} -b {broker} -u alice"
_RIGHTS = "-n {ns} -b {broker} -s User:alice"
COMMANDS: tuple[Row, ...] = (
    Row("createUser", f"createUser {_ALICE} -p pw-0123456789 -t Normal", r"success", only=NEWER),
    # The password is not shown.
    Row("getUser", f"getUser {_ALICE}", r"alice\s+null\s+Normal\s+enable", only=NEWER),
    Row("listUser", "listUser -n {ns} -b {broker} -f ali", r"alice\s+null\s+Normal", only=NEWER),
    Row("updateUser", f"updateUser {_ALICE} -s disable", r"success", only=NEWER),
    Row("getUser after update", f"getUser {_ALICE}", r"alice\s.*disable", only=NEWER),
    Row(
        "createAcl",
        f"createAcl {_RIGHTS} -r Topic:a,Topic:b -a Pub,Sub -i 10.0.0.0/8 -d Allow",
        r"success",
        only=NEWER,
    ),
    Row("getAcl", f"getAcl {_RIGHTS}", r"Topic:a\s.*(?s:.*)Topic:b\s", only=NEWER),
    Row("updateAcl", f"updateAcl {_RIGHTS} -r Topic:a -a Get -d Deny", r"success", only=NEWER),
    Row("listAcl", "listAcl -n {ns} -b {broker} -r Topic:a", r"Topic:a\s.*Deny", only=NEWER),
    Row("deleteAcl", f"deleteAcl {_RIGHTS} -r Topic:a", r"success", only=NEWER),
    Row("deleteUser", f"deleteUser {_ALICE}", r"success", only=NEWER),
    Row("clusterList", "clusterList -n {ns}", r"{cluster}\s+{broker_name}\s+0\s+{broker}\s+V"),
)
REGISTRATION = "signed: apache_broker_registers"
NAMES: tuple[str, ...] = (
    *(f"signed: {name}" for name in SCENARIOS),
    *(f"signed mqadmin: {row.row}" for row in COMMANDS),
    REGISTRATION,
)


@contextmanager
def guarded(directory: Path, *, tls: bool = True) -> Iterator[Cluster]:
    """``penstock up`` that takes signed requests only, with ``tls`` over TLS connections only."""
    directory.mkdir(parents=True, exist_ok=True)
    secret = directory / "admin.secret"
    secret.write_text(ADMIN_SECRET)
    options = ["--auth", f"--admin-secret-file={secret}"]
    if tls:
        options.append("--tls=auto")
    env = {"XDG_CONFIG_HOME": str(directory)}
    with penstock_up(directory, None, *options, env=env) as cluster:
        with Admin(
            namesrv=cluster.namesrv,
            access_key="admin",
            secret_key=ADMIN_SECRET,
            tls=Tls(ca_file=directory / "data" / "tls" / "ca.pem") if tls else None,
        ) as admin:
            admin.create_user(USER, SECRET)
            admin.grant(USER, ["*"], ["All"])
        yield cluster


def run_signed(
    toolchain: Toolchain, directory: Path, names: Sequence[str], column: str
) -> Iterator[Cell]:
    """Run ``names``; yield a cell as each ends."""
    if REGISTRATION in names:
        yield _registration(toolchain, directory / "registration", column)
    chosen = [name for name in SCENARIOS if f"signed: {name}" in names]
    rows = [row for row in COMMANDS if f"signed mqadmin: {row.row}" in names]
    if not chosen and not rows:
        return
    with guarded(directory) as cluster:
        # The client checks the certificate of the server, which is not its default.
        tls = (
            *("-Dtls.enable=true", "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true"),
            f"-Dtls.client.trustCertPath={directory / 'data' / 'tls' / 'ca.pem'}",
        )
        keys = (f"-Dinterop.accessKey={USER}", f"-Dinterop.secretKey={SECRET}")
        for cell in scenarios.run_scenarios(
            toolchain, cluster, chosen, f"{column} signed", options=(*QUICK, *tls, *keys)
        ):
            yield replace(cell, section=SECTION, row=f"signed: {cell.row}", column=column)
        if rows:
            yield from _run_commands(toolchain, cluster, directory, rows, column, tls)


def _registration(toolchain: Toolchain, directory: Path, column: str) -> Cell:
    """Apache's broker under our name server with users: 5.x signs, 4.9 is refused with a hint."""
    directory.mkdir(parents=True, exist_ok=True)
    secret = directory / "admin.secret"
    secret.write_text(ADMIN_SECRET)
    began = time.monotonic()
    env = {"XDG_CONFIG_HOME": str(directory)}
    signs = not toolchain.version.startswith("4.")
    settings = accounts_of_5(directory, "admin", ADMIN_SECRET) if signs else {}
    access = {"access_key": "admin", "secret_key": ADMIN_SECRET}
    status, evidence = PASS, "registered"
    try:
        with penstock_nameserver(
            directory, "--auth", f"--admin-secret-file={secret}", env=env
        ) as namesrv:
            log = directory / "penstock-nameserver.log"
            if signs:
                with apache_broker(toolchain, directory, namesrv, settings, access=access):
                    pass
            else:
                evidence = _refused_registration(toolchain, directory, namesrv, log)
    except (RuntimeError, AssertionError) as error:
        status, evidence = FAIL, str(error)
    spent = int((time.monotonic() - began) * 1000)
    return Cell(SECTION, REGISTRATION, column, status, evidence, spent)


def _refused_registration(toolchain: Toolchain, directory: Path, namesrv: str, log: Path) -> str:
    """Start a broker that cannot sign; return the line of our name server's log about it."""
    access = {"access_key": "admin", "secret_key": ADMIN_SECRET}
    try:
        with apache_broker(toolchain, directory, namesrv, access=access, wait=15):
            pass
    except RuntimeError:
        for line in log.read_text().splitlines():
            if "innerClientAuthenticationCredentials" in line:
                return line
    raise AssertionError("the broker was registered, or the log has no hint")


def _run_commands(
    toolchain: Toolchain,
    cluster: Cluster,
    directory: Path,
    rows: Sequence[Row],
    column: str,
    tls: tuple[str, ...],
) -> Iterator[Cell]:
    conf = directory / "tool" / "home" / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "tools.yml").write_text(f"accessKey: admin\nsecretKey: {ADMIN_SECRET}\n")
    tool = mqadmin.Mqadmin(toolchain, directory / "tool", (*QUICK, *tls))
    fields = {
        "ns": cluster.namesrv,
        "broker": cluster.broker,
        "cluster": cluster.cluster_name,
        "broker_name": cluster.broker_name,
    }
    try:
        for row in rows:
            cell = mqadmin.cell_of(tool, toolchain, row, fields, column)
            yield replace(cell, section=SECTION, row=f"signed mqadmin: {cell.row}")
    finally:
        tool.close()
