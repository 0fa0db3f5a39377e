"""What a page of another origin can do to a console: nothing."""

from __future__ import annotations

import pytest
from tests.console.browsing import HOME, Browser, browsing

from penstock.console.rates import AT_ONCE, MAX_BUCKETS, REQUESTS_PER_SECOND, Rates
from penstock.console.security import COOKIE, IDLE_SECONDS, SESSION_SECONDS, Login, Sessions
from penstock.testing.embedded import Embedded


@pytest.mark.spec("C24")
async def test_a_change_needs_a_token_an_origin_and_a_known_host(
    mq: Embedded, browser: Browser
) -> None:
    token = await browser.token()
    path = browser.path("topics", "new")
    fields = {"topic": "stolen", "queues": "1"}
    without = await browser.client.post(path, data=fields, headers={"origin": HOME})
    assert without.status_code == 403
    fields["token"] = token
    for headers, status in (
        ({"origin": "http://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        # Another port or name of the same domain.
        ({"sec-fetch-site": "same-site"}, 403),
        ({"host": "evil.example:8082", "origin": "http://evil.example:8082"}, 421),
    ):
        refused = await browser.client.post(path, data=fields, headers=headers)
        assert refused.status_code == status, headers
    looked = await browser.client.get(browser.path("topics"), headers={"host": "evil.example"})
    assert looked.status_code == 421
    assert "stolen" not in mq.admin.topics()
    made = await browser.client.post(path, data=fields, headers={"origin": HOME})
    assert made.status_code == 303
    assert "stolen" in mq.admin.topics()


async def test_a_token_of_another_session_is_refused(browser: Browser) -> None:
    token = await browser.token()
    browser.client.cookies.clear()
    refused = await browser.client.post(
        browser.path("topics", "new"),
        data={"topic": "other", "queues": "1", "token": token},
        headers={"origin": HOME},
    )
    assert refused.status_code == 403


def test_tokens_of_two_sessions_differ() -> None:
    sessions = Sessions()
    one, other = sessions.start(), sessions.start()
    assert sessions.is_token(one, sessions.token(one))
    assert not sessions.is_token(one, sessions.token(other))


@pytest.mark.parametrize(
    ("age", "idle", "is_alive"),
    [
        (SESSION_SECONDS - 60, IDLE_SECONDS - 60, True),
        (SESSION_SECONDS + 1, 0, False),
        (IDLE_SECONDS + 1, IDLE_SECONDS + 1, False),
    ],
)
def test_a_session_ends_when_it_is_idle_or_old(age: float, idle: float, is_alive: bool) -> None:
    sessions = Sessions()
    session = sessions.start({"local": Login("app", "secret")})
    session.made -= age
    session.used -= idle
    assert (sessions.find({COOKIE: session.key}) is session) == is_alive


@pytest.mark.spec("C22")
async def test_read_only_has_no_forms_and_no_changing_routes(mq: Embedded) -> None:
    mq.admin.create_topic("kept", queues=1)
    async with browsing(mq.namesrv, read_only=True) as browser:
        page = await browser.open("topics", "kept")
        assert "read-only" in page
        assert "/delete" not in page
        assert "New topic" not in await browser.open("topics")
        for path in (("topics", "new"), ("topics", "kept", "delete")):
            refused = await browser.send(*path, topic="x", queues="1", name="kept")
            assert refused.status_code == 404, path
    assert "kept" in mq.admin.topics()


async def test_every_answer_has_the_headers_that_keep_scripts_out(browser: Browser) -> None:
    for path in ("/", browser.path("topics"), "/static/console.js", "/nowhere"):
        headers = (await browser.client.get(path)).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


async def test_the_session_cookie_is_not_for_scripts_or_other_sites(browser: Browser) -> None:
    answer = await browser.client.get(browser.path("topics"))
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


async def test_a_form_that_is_too_large_is_not_read(browser: Browser) -> None:
    refused = await browser.client.post(
        browser.path("topics", "new"), content=b"x" * (6 << 20), headers={"origin": HOME}
    )
    assert refused.status_code == 413


def test_a_session_has_its_requests_a_second_and_some_at_once() -> None:
    rates = Rates()
    assert REQUESTS_PER_SECOND == 20
    assert [rates.wait("one", 100.0) for _ in range(int(AT_ONCE))] == [0.0] * int(AT_ONCE)
    assert rates.wait("one", 100.0) == pytest.approx(1 / REQUESTS_PER_SECOND)
    assert rates.wait("other", 100.0) == 0, "sessions do not share"
    # From then on as many pass as the seconds allow, however often it is tried.
    passed = sum(not rates.wait("one", 100 + step / 1000) for step in range(1, 5001))
    assert passed == pytest.approx(5 * REQUESTS_PER_SECOND, abs=1)
    # After a rest it is full again, and not more than full.
    assert sum(not rates.wait("one", 10_000.0) for _ in range(500)) == AT_ONCE


def test_the_number_of_those_who_are_counted_is_bounded() -> None:
    rates = Rates(at_once=1)
    assert rates.wait("busy", 0.0) == 0
    for number in range(3 * MAX_BUCKETS):
        rates.wait(f"visitor {number}", 0.0)
        assert rates.wait("busy", 0.0) > 0, "who asks all the time is not forgotten"
    assert len(rates._left) <= MAX_BUCKETS


async def _flood(browser: Browser, path: str, **headers: str) -> list[int]:
    return [(await browser.client.get(path, headers=headers)).status_code for _ in range(150)]


async def test_a_visitor_who_asks_too_often_waits_with_any_session(mq: Embedded) -> None:
    async with browsing(mq.namesrv) as browser:
        page = browser.path("settings")
        await browser.client.get(page)
        answers = await _flood(browser, page)
        assert answers[:50] == [200] * 50
        assert 429 in answers
        while (refused := await browser.client.get(page)).status_code != 429:
            pass
        assert int(refused.headers["retry-after"]) >= 1
        assert "20 requests a second" in refused.text
        assert "content-security-policy" in refused.headers
        # What a page is made of comes all the same.
        assert (await browser.client.get("/static/console.css")).status_code == 200
        # Neither a new session nor a made-up one is a fresh start: both count with the address.
        for cookie in ("", f"{COOKIE}=made-up"):
            browser.client.cookies.clear()
            answers = []
            for number in range(30):
                browser.client.cookies.clear()
                headers = {"cookie": f"{cookie}-{number}"} if cookie else {}
                answers.append((await browser.client.get(page, headers=headers)).status_code)
            assert 429 in answers


async def test_the_api_says_as_a_problem_that_there_were_too_many(mq: Embedded) -> None:
    async with browsing(mq.namesrv) as browser:
        path = "/api/v1/c/local/topics"
        assert 429 in await _flood(browser, path)
        while (refused := await browser.client.get(path)).status_code != 429:
            pass
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["status"] == 429
        assert "20 requests a second" in refused.json()["expected"]


async def test_the_api_gives_every_refusal_as_a_problem(mq: Embedded) -> None:
    async with browsing(mq.namesrv) as browser:
        for headers, status in (
            ({"host": "evil.example"}, 421),
            ({"origin": "http://evil.example"}, 403),
        ):
            refused = await browser.client.post(
                "/api/v1/c/local/topics/new", json={}, headers=headers
            )
            assert refused.status_code == status
            assert refused.headers["content-type"] == "application/problem+json"
            assert refused.json()["status"] == status
