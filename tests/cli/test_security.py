"""``penstock up --auth --tls``, user, acl and cert, as a person uses them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.running import PENSTOCK

from penstock.runtime.child_process import ChildProcess

UP = (sys.executable, "-m", "penstock", "up", "--nameserver-port", "0", "--broker-port", "0")


class Person:
    """Runs commands in a directory and a home of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, "XDG_CONFIG_HOME": str(directory / "config")}
        self.environment.pop("NAMESRV_ADDR", None)

    def run(self, *arguments: str, code: int = 0, **environment: str) -> str:
        done = subprocess.run(
            [*PENSTOCK, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.directory,
            env={**self.environment, **environment},
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


@pytest.fixture
def secured(person: Person) -> Iterator[ChildProcess]:
    with ChildProcess(
        (*UP, "--auth", "--tls", "auto", "--data", "data"),
        directory=person.directory,
        environment=person.environment,
    ) as child:
        child.wait_for_line(r"^ready namesrv=(\S+).*$")
        yield child


@pytest.mark.spec("A60", "A64", "A77", "A81", "A82", "A85", "A86")
def test_from_nothing_to_a_user_over_tls(person: Person, secured: ChildProcess) -> None:
    person.run("topic", "create", "orders", "--queues", "1")
    made = json.loads(person.run("user", "create", "app", "--json"))
    person.run("acl", "grant", "app", "--produce", "orders")
    keys = {"PENSTOCK_ACCESS_KEY": "app", "PENSTOCK_SECRET_KEY": made["secret"]}
    contexts = json.loads((person.directory / "config/penstock/contexts.json").read_text())
    local = contexts["contexts"]["local"]
    there = ("--namesrv", local["namesrv"], "--tls-ca", local["tls_ca"])
    assert "Sent" in person.run("send", "orders", "hi", *there, **keys)
    refused = person.run("topic", "delete", "orders", "--yes", *there, code=1, **keys)
    assert "Delete on Topic:orders" in refused
    refused = person.run(
        "send",
        "orders",
        "hi",
        *there,
        code=1,
        PENSTOCK_ACCESS_KEY="app",
        PENSTOCK_SECRET_KEY="wrong",
    )
    assert "check signature failed" in refused
    assert "try: look for a mistake in the access key or its secret" in refused
    plain = person.run("send", "orders", "hi", "--namesrv", local["namesrv"], code=1, **keys)
    assert "Sent" not in plain
    assert made["secret"] not in (person.directory / "data/audit.jsonl").read_text()


@pytest.mark.spec("A68", "A86")
def test_the_secret_is_shown_once_and_files_are_private(person: Person) -> None:
    command = (*UP, "--auth", "--data", "data")
    shown = []
    for _ in range(2):
        with ChildProcess(
            command, directory=person.directory, environment=person.environment
        ) as child:
            child.wait_for_line(r"^ready .*$")
        # Both streams are read to their ends now: the secret is on the other one.
        shown.append(child.output)
    users = json.loads((person.directory / "data/auth.json").read_text())["users"]
    secret = users["admin"]["secrets"][0]["value"]
    assert [text.count(secret) for text in shown] == [1, 0]
    for name in ("data/auth.json", "data/audit.jsonl", "config/penstock/contexts.json"):
        assert (person.directory / name).stat().st_mode & 0o077 == 0, name


@pytest.mark.spec("A70")
def test_no_secret_is_in_arguments_logs_or_other_files(person: Person) -> None:
    with ChildProcess(
        (*UP, "--auth", "--data", "data", "--verbose"),
        directory=person.directory,
        environment=person.environment,
    ) as child:
        child.wait_for_line(r"^ready .*$")
        person.run("topic", "create", "orders")
        made = json.loads(person.run("user", "create", "app", "--json"))["secret"]
        wrong = {"PENSTOCK_ACCESS_KEY": "admin", "PENSTOCK_SECRET_KEY": "a-wrong-secret"}
        refused = person.run("user", "list", code=1, **wrong)
        assert "a-wrong-secret" not in refused
        arguments = b"".join(
            path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()
        )
    users = json.loads((person.directory / "data/auth.json").read_text())["users"]
    secrets = {one["value"] for user in users.values() for one in user["secrets"]}
    assert made in secrets
    # The first line of the first start shows that of the administrator, once.
    (first,) = [line for line in child.output.splitlines() if "shown only now" in line]
    rest = child.output.replace(first, "")
    for secret in secrets | {"a-wrong-secret"}:
        assert secret not in rest
        assert secret.encode() not in arguments
        for path in person.directory.rglob("*"):
            if path.is_file() and path.name not in ("auth.json", "contexts.json"):
                assert secret.encode() not in path.read_bytes(), path


@pytest.mark.spec("A16")
def test_a_first_start_that_fails_leaves_no_users_whose_secret_is_unknown(person: Person) -> None:
    def context() -> bool:
        return (person.directory / "config/penstock/contexts.json").exists()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        up = (*UP[3:], "--auth", "--data", "data", "--nameserver-port", port)
        assert "address already in use" in person.run(*up, code=1).lower()
    (person.directory / "other").mkdir()
    person.run(*UP[3:], "--auth", "--data", "data", "--tls", "other", code=1)
    assert not context()
    with ChildProcess(
        (*UP, "--auth", "--data", "data"),
        directory=person.directory,
        environment=person.environment,
    ) as child:
        child.wait_for_line(r"Its secret is shown only now")
        child.wait_for_line(r"^ready namesrv=(\S+).*$")
        assert context()
        person.run("user", "list")


def test_the_first_start_of_a_broker_alone_shows_the_secret_that_it_makes(person: Person) -> None:
    broker = ("broker", "--auth", "--data", "data", "--namesrv", "127.0.0.1:1", "--broker-port")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        person.run(*broker, str(taken.getsockname()[1]), code=1)
    assert not (person.directory / "data/auth.json").exists()
    with ChildProcess(
        (*UP[:3], *broker, "0"), directory=person.directory, environment=person.environment
    ) as child:
        child.wait_for_line(r"Its secret is shown only now")
        child.wait_for_line(r"^ready broker=(\S+).*$")


def test_a_start_without_auth_on_a_directory_with_users_is_refused(person: Person) -> None:
    with ChildProcess(
        (*UP, "--auth", "--data", "data"),
        directory=person.directory,
        environment=person.environment,
    ) as child:
        child.wait_for_line(r"^ready .*$")
    refused = person.run(*UP[3:], "--data", "data", code=1)
    assert "has users, but --auth is missing" in refused


@pytest.mark.spec("A76")
def test_other_machines_need_users_and_tls(person: Person) -> None:
    bind = (*UP[3:], "--bind", "0.0.0.0", "--advertise", "10.0.0.1", "--data", "data")
    assert "lacks users (--auth) and TLS" in person.run(*bind, code=1)
    text = person.run(*bind, "--auth", code=1)
    assert "lacks TLS for all connections" in text
    assert "users (--auth)" not in text
    assert "lacks TLS" in person.run(
        *bind, "--auth", "--tls", "auto", "--tls-mode", "permissive", code=1
    )
    assert "lacks users" in person.run(*bind, "--tls", "auto", code=1)


@pytest.mark.spec("A88")
def test_accounts_of_4x_are_imported(person: Person) -> None:
    with ChildProcess(
        (*UP, "--auth", "--data", "data"),
        directory=person.directory,
        environment=person.environment,
    ) as child:
        child.wait_for_line(r"^ready .*$")
    plain = person.directory / "plain_acl.yml"
    plain.write_text(
        "globalWhiteRemoteAddresses:\n  - 10.10.103.*\n"
        "accounts:\n"
        "  - accessKey: RocketMQ\n    secretKey: 12345678\n    whiteRemoteAddress:\n"
        "    admin: false\n    defaultTopicPerm: DENY\n    defaultGroupPerm: SUB\n"
        "    topicPerms:\n      - topicA=DENY\n      - topicB=PUB|SUB\n"
        "    groupPerms:\n      - groupA=DENY\n"
        "  - accessKey: rocketmq2\n    secretKey: 12345678\n    admin: true\n"
    )
    shown = person.run("acl", "import", "plain_acl.yml", "--data", "data")
    assert "globalWhiteRemoteAddresses is not taken over" in shown
    listed = person.run("acl", "list", "RocketMQ", "--data", "data")
    assert "topicB" in listed
    assert "Default" in listed
    checks = {
        ("Pub", "Topic:topicB"): 0,
        ("Pub", "Topic:topicA"): 1,
        ("Sub", "Group:any"): 0,
        ("Sub", "Group:groupA"): 1,
    }
    for (action, resource), code in checks.items():
        person.run("acl", "check", "RocketMQ", action, resource, "--data", "data", code=code)
    person.run("acl", "check", "rocketmq2", "Delete", "Topic:x", "--data", "data")
    plain.write_text(
        "accounts:\n  - accessKey: another\n    secretKey: s\n    topicPerms: [t=PBU]\n"
    )
    refused = person.run("acl", "import", "plain_acl.yml", "--data", "data", code=1)
    assert "permission 'PBU'" in refused


@pytest.mark.spec("A12")
def test_rotation_keeps_both_secrets(person: Person) -> None:
    with ChildProcess(
        (*UP, "--auth", "--data", "data"),
        directory=person.directory,
        environment=person.environment,
    ) as child:
        child.wait_for_line(r"^ready .*$")
        (person.directory / "new.secret").write_text("brand-new\n")
        person.run("user", "create", "app", "--data", "data")
        person.run(
            *("user", "rotate", "app", "--grace", "1h", "--data", "data"),
            *("--secret-file", "new.secret"),
        )
        shown = json.loads(person.run("user", "show", "app", "--data", "data", "--json"))
        assert shown["secrets"] == 2
        assert [line.partition(": ")[2][:7] for line in shown["last_used"]] == ["not yet"] * 2
        limit = ("user", "limit", "app", "--data", "data", "--json")
        person.run(*limit, "--requests", "500", "--connections", "20")
        person.run(*limit, "--requests", "400")
        shown = json.loads(person.run("user", "show", "app", "--data", "data", "--json"))
        assert (shown["requestsPerSecond"], shown["connections"]) == (400, 20)
        assert json.loads(person.run(*limit, "--none")) == {"name": "app"}
        assert "at least 1" in person.run(*limit, "--bytes", "0", code=2)
        assert "no user 'nosuch'" in person.run("user", "show", "nosuch", "--data", "data", code=1)


def test_certificates_are_not_replaced_by_accident(person: Person) -> None:
    made = json.loads(person.run("cert", "--dir", "tls", "--host", "127.0.0.1", "--json"))
    assert (person.directory / made["key"]).stat().st_mode & 0o077 == 0
    assert "exist already" in person.run("cert", "--dir", "tls", code=1)
    person.run("cert", "--dir", "tls", "--replace")
    assert "a host name or an address" in person.run("cert", "--dir", "t2", "--host", " ", code=1)


CONF = """authenticationEnabled=true
authorizationEnabled=true
initAuthenticationUser={"username":"rocketmq","password":"%s"}
innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"inner-secret-1"}
"""


@pytest.mark.spec("A67")
def test_the_users_of_a_broker_conf_are_made_once(person: Person) -> None:
    conf = person.directory / "broker.conf"
    up = (*UP, "--config", "broker.conf", "--data", "data")
    first = True
    for secret in ("first-secret-1", "later-secret-2"):
        conf.write_text(CONF % secret)
        with ChildProcess(up, directory=person.directory, environment=person.environment) as child:
            namesrv = child.wait_for_line(r"^ready namesrv=(\S+).*$")[1]
            rows = json.loads(
                person.run(
                    *("user", "list", "--json", "--namesrv", namesrv),
                    PENSTOCK_ACCESS_KEY="rocketmq",
                    PENSTOCK_SECRET_KEY="first-secret-1",
                )
            )
            assert {row["name"] for row in rows} >= {"rocketmq", "inner"}
        output = child.output
        assert "secret-" not in output
        assert ("user rocketmq exists with another secret, which stays" in output) is not first
        first = False


def test_accounts_of_4_x_are_not_forgotten_in_silence(person: Person) -> None:
    (person.directory / "broker.conf").write_text("aclEnable=true\n")
    refused = person.run(*UP[3:], "--config", "broker.conf", "--data", "data", code=1)
    assert "aclEnable=true, but this server has no users" in refused
    assert "penstock acl import" in refused


def test_rights_are_exported_and_imported(person: Person, secured: ChildProcess) -> None:
    person.run("user", "create", "app", PENSTOCK_NEW_SECRET="app-secret-1")
    person.run("acl", "grant", "app", "--produce", "orders", "--from", "10.0.0.0/8")
    before = person.run("acl", "list", "--json")
    exported = person.run("acl", "export")
    assert "app-secret-1" not in exported
    (person.directory / "rights.json").write_text(exported)
    person.run("acl", "revoke", "app", "--yes")
    person.run("acl", "import", "rights.json", "--data", "data")
    assert json.loads(person.run("acl", "list", "--json", "--data", "data")) == json.loads(before)
    (person.directory / "rights.json").write_text('{"format":1,"rights":{"User:app":[{}]}}')
    assert "penstock acl export" in person.run("acl", "import", "rights.json", code=1)
