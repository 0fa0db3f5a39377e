"""The console with a login: each user has its own rights, for as long as its session lasts."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from tests.auth.servers import APP, APP_SECRET, guarded
from tests.console.browsing import HOME, Browser, browsing, text_of

from penstock import aio
from penstock.auth.model import Entry
from penstock.console import security

ORDERS = Entry.parse("Topic:orders", ["Sub", "Get"])


async def _enter(browser: Browser, secret: str) -> httpx.Response:
    page = await browser.client.get("/login")
    token = re.search(r'name="token" value="(\w+)"', page.text)
    assert token is not None
    fields = {"token": token[1], "user": APP, "secret": secret}
    return await browser.client.post("/login", data=fields, headers={"origin": HOME})


async def _is_let_in(browser: Browser) -> bool:
    return (await browser.client.get(browser.path("topics"))).status_code == 200


@pytest.mark.spec("A92")
async def test_a_user_of_the_console_has_its_own_rights(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("orders", 1)
            await admin.create_topic("payroll", 1)
        async with browsing(servers.name_server.address, login=True) as browser:
            assert not await _is_let_in(browser)
            assert (await _enter(browser, APP_SECRET)).status_code == 303
            page = await browser.read("topics")
            assert "orders" in page
            assert "payroll" not in page
            made = await browser.send("topics", "new", topic="mine", queues="1")
            assert "no permission" in text_of(made.text)
            assert "mine" not in servers.broker.state.topics


@pytest.mark.spec("A92")
async def test_sessions_end_and_wrong_logins_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        guarded(tmp_path, ORDERS) as servers,
        browsing(servers.name_server.address, login=True) as browser,
    ):
        assert (await _enter(browser, APP_SECRET)).status_code == 303
        token = await browser.token()
        cookies = dict(browser.client.cookies)
        left = await browser.client.post("/logout", data={"token": token}, headers={"origin": HOME})
        assert left.headers["location"] == "/login"
        # The cookie of the session that has ended is of no use.
        browser.client.cookies.update(cookies)
        assert not await _is_let_in(browser)
        browser.client.cookies.clear()
        assert (await _enter(browser, APP_SECRET)).status_code == 303
        assert await _is_let_in(browser)
        with monkeypatch.context() as later:
            later.setattr(security, "IDLE_SECONDS", -1.0)
            assert not await _is_let_in(browser)
        browser.client.cookies.clear()
        for _ in range(security.TRIES_PER_MINUTE):
            refused = await _enter(browser, "wrong")
            assert refused.status_code == 403
            assert "wrong" not in text_of(refused.text)
        # Not even the right secret, for now.
        limited = await _enter(browser, APP_SECRET)
        assert "too many attempts" in text_of(limited.text)
        assert not await _is_let_in(browser)
