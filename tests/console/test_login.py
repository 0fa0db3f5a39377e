"""Login with users of the cluster: the broker decides."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.console.browsing import HOME, text_of

from penstock.client.cluster_access import ClusterAccess
from penstock.console.app import running_app
from penstock.console.options import ConsoleOptions
from penstock.runtime.child_process import ChildProcess

SECRET = "a-secret-of-the-admin"


@pytest.fixture
def namesrv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    ports = ["--nameserver-port", "0", "--broker-port", "0", "--console", "off"]
    command = [sys.executable, "-m", "penstock", "up", "--data", str(tmp_path / "data"), *ports]
    with ChildProcess([*command, "--auth", "--admin-secret-file", str(secret)]) as process:
        yield process.wait_for_line(r"^ready namesrv=(\S+) ", 60)[1]


@pytest.mark.spec("C25")
async def test_only_a_user_of_the_cluster_gets_in_and_guessing_is_slow(namesrv: str) -> None:
    options = ConsoleOptions(contexts={"local": ClusterAccess.of(namesrv)}, login=True)
    async with (
        running_app(options) as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=HOME) as client,
    ):
        away = await client.get("/c/local/topics")
        assert away.status_code == 303
        assert away.headers["location"] == "/login?next=/c/local/topics"
        page = await client.get(away.headers["location"])
        cookie = away.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        token = re.search(r'name="token" value="(\w+)"', page.text)
        assert token is not None

        async def enter(secret: str) -> httpx.Response:
            assert token is not None
            return await client.post(
                "/login?next=/c/local/topics",
                data={"token": token[1], "user": "admin", "secret": secret},
                headers={"origin": HOME},
            )

        wrong = await enter("wrong")
        assert wrong.status_code == 403
        assert "the cluster refused" in text_of(wrong.text)
        assert "wrong" not in str(wrong.headers)
        right = await enter(SECRET)
        assert right.status_code == 303
        assert right.headers["location"] == "/c/local/topics"
        shown = await client.get("/c/local/topics")
        assert shown.status_code == 200
        assert SECRET not in shown.text
        out = await client.post(
            "/logout",
            data={"token": re.findall(r'name="token" value="(\w+)"', shown.text)[0]},
            headers={"origin": HOME},
        )
        assert out.headers["location"] == "/login"
        assert (await client.get("/c/local/topics")).status_code == 303
        client.cookies.clear()
        page = await client.get("/login")
        token = re.search(r'name="token" value="(\w+)"', page.text)
        assert token is not None
        answers = [await enter("wrong") for _ in range(5)]
        assert "too many attempts" in text_of(answers[-1].text)
        assert "too many attempts" in text_of((await enter(SECRET)).text)
