"""``penstock console``, and the console of ``penstock up``: real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.cli.running import fail
from tests.support.waiting import wait_for

from penstock.runtime.child_process import ChildProcess
from penstock.testing.embedded import Embedded

PENSTOCK = [sys.executable, "-m", "penstock"]
READY = r" console=(http://127\.0\.0\.1:(\d+)/) "


def up(data: Path, *more: str) -> ChildProcess:
    ports = ["--nameserver-port", "0", "--broker-port", "0"]
    return ChildProcess([*PENSTOCK, "up", "--data", str(data), *ports, *more])


def children(pid: int) -> list[int]:
    """The consoles that a process has started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    numbers = [number for task in tasks for number in task.read_text().split()]
    found = []
    for number in numbers:
        with contextlib.suppress(OSError):
            if "\0console\0" in Path(f"/proc/{number}/cmdline").read_text():
                found.append(int(number))
    return found


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


@pytest.mark.spec("C1")
def test_up_prints_the_address_and_starts_the_console_with_the_first_request(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with up(tmp_path, "--console", str(port)) as process:
            ready = process.wait_for_line(READY, 60)
            assert ready[2] != str(port)
            assert children(process.pid) == []
            assert "<title>Overview" in get(ready[1])
            [child] = children(process.pid)
            # A console that died starts again with the next request.
            os.kill(child, signal.SIGKILL)
            wait_for(lambda: children(process.pid) == [], 60)
            assert "<title>Topics" in get(f"{ready[1]}c/local/topics")
            assert process.terminate() == 0
        with pytest.raises(urllib.error.URLError):
            get(ready[1])


def test_up_without_a_console(tmp_path: Path) -> None:
    with up(tmp_path, "--console", "off", "--json") as process:
        ready = json.loads(process.wait_for_line(r'^\{"ready".*$', 60)[0])
        assert "console" not in ready


def test_the_parent_of_the_console_loads_nothing_of_it() -> None:
    program = (
        "import sys, penstock.cli.server_plan as plan; "
        "assert plan.is_installed(); "
        "print([m for m in ('starlette', 'uvicorn', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done


@pytest.mark.spec("C31")
def test_console_serves_any_cluster(cluster: Embedded, tmp_path: Path) -> None:
    cluster.admin.create_topic("shown", queues=1)
    command = [*PENSTOCK, "console", "--namesrv", cluster.namesrv, "--port", "0", "--read-only"]
    with ChildProcess([*command, "--base-path", "/mq"]) as process:
        address = process.wait_for_line(r"^ready console=(http://127\.0\.0\.1:\d+/mq/)$", 60)[1]
        page = get(f"{address}c/local/topics")
        assert ">shown</a>" in page
        assert 'href="/mq/c/local/topics/shown"' in page
        assert "read-only" in page
        assert process.terminate() == 0


@pytest.mark.spec("C1")
def test_a_missing_extra_is_named(cluster: Embedded) -> None:
    program = (
        "import sys, importlib.util as u; find = u.find_spec; "
        "u.find_spec = lambda name, *more: None if name == 'starlette' else find(name, *more); "
        "sys.argv = ['penstock', 'console']; "
        "from penstock.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'penstock[console]'" in done.stderr


def test_other_machines_need_a_login(cluster: Embedded) -> None:
    said = fail("console", "--bind", "0.0.0.0", "--port", "0")
    assert "--login" in said
    assert "'mq/'" in fail("console", "--base-path", "mq/")


def test_a_context_with_keys_asks_for_a_login(
    cluster: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    secret = tmp_path / "secret"
    secret.write_text("a-secret")
    keys = ["--access-key", "app", "--secret-key-file", str(secret)]
    add = [*PENSTOCK, "context", "add", "prod", "--namesrv", cluster.namesrv, *keys]
    subprocess.run(add, check=True, capture_output=True)
    command = [*PENSTOCK, "console", "--context", "prod", "--port", "0"]
    with ChildProcess(command) as process:
        assert process.wait_for_line(r"a login is needed.*: prod$", 60)
        address = process.wait_for_line(r"^ready console=(\S+)$", 60)[1]
        assert "Log in to prod" in get(f"{address}c/prod/topics")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(f"{address}api/v1/c/prod/topics")
    with ChildProcess([*command, "--insecure"]) as process:
        assert process.wait_for_line(r"every visitor has the rights .*: prod ", 60)
        address = process.wait_for_line(r"^ready console=(\S+)$", 60)[1]
        assert "<title>Topics" in get(f"{address}c/prod/topics")
    # A cluster without keys beside it is shown as before.
    command = [*PENSTOCK, "console", "--namesrv", cluster.namesrv, "--port", "0"]
    with ChildProcess(command) as process:
        address = process.wait_for_line(r"^ready console=(\S+)$", 60)[1]
        assert "<title>Topics" in get(f"{address}c/local/topics")
        assert "Log in to prod" in get(f"{address}c/prod/topics")


def test_keys_of_the_environment_do_not_lock_the_console_of_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ACCESS_KEY", "app")
    monkeypatch.setenv("PENSTOCK_SECRET_KEY", "a-secret")
    with up(tmp_path, "--console", "0") as process:
        ready = process.wait_for_line(READY, 60)
        assert "<title>Overview" in get(ready[1])


def test_the_console_of_a_cluster_with_users_asks_for_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with up(tmp_path / "data", "--console", "0", "--auth") as process:
        ready = process.wait_for_line(READY, 60)
        assert "Log in to local" in get(ready[1])
