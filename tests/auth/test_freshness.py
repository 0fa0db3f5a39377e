"""``penstockRequireFresh``: requests of administrators are taken once, for a short time only."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from tests.auth.servers import ADMIN, ADMIN_SECRET, APP, APP_SECRET, ask, guarded

from penstock import Message, aio
from penstock.auth import freshness
from penstock.auth.freshness import CODE_FIELD, TIME_FIELD, Freshness, stamps
from penstock.errors import NoPermission, SystemBusy
from penstock.protocol import acl
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command

NOW = 1_700_000_000_000


def fields(time_ms: int = NOW, code: int = 17, secret: str = "s") -> dict[str, str]:
    proof = acl.sign({}, b"", "u", secret)
    return {TIME_FIELD: str(time_ms), CODE_FIELD: str(code), **proof}


def spellings(signature: str) -> list[str]:
    """The texts that decode to the same bytes: the last two bits before the padding are free."""
    letters = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    last = letters.index(signature[-2])
    return [signature[:-2] + letters[last & ~3 | bits] + "=" for bits in range(4)]


@pytest.mark.spec("A89")
def test_old_future_repeated_and_other_requests_are_refused() -> None:
    fresh = Freshness()
    for wrong, text in (
        ({}, "no time"),
        ({TIME_FIELD: "٣"}, "no time"),
        (fields(NOW - 121_000), "121 s away"),
        (fields(NOW + 121_000), "121 s away"),
        (fields(code=215), "another code"),
    ):
        with pytest.raises(NoPermission, match=text):
            fresh.check(17, wrong, NOW)
    fresh.check(17, fields(NOW - 119_000), NOW)
    with pytest.raises(NoPermission, match="sent before"):
        fresh.check(17, fields(NOW - 119_000), NOW + 1)
    fresh.check(17, fields(secret="another"), NOW)


@pytest.mark.spec("A89")
def test_what_is_remembered_is_bounded_and_outlives_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(freshness, "MAX_REMEMBERED", 3)
    fresh = Freshness()
    for number in range(3):
        fresh.check(17, fields(NOW + 120_000, secret=str(number)), NOW)
    with pytest.raises(SystemBusy):
        fresh.check(17, fields(secret="more"), NOW)
    # As long as such a request is in its window, it is remembered.
    with pytest.raises(NoPermission, match="sent before"):
        fresh.check(17, fields(NOW + 120_000, secret="0"), NOW + 240_000)
    fresh.check(17, fields(NOW + 301_000, secret="more"), NOW + 301_000)
    assert len(fresh) == 1


def test_no_two_stamps_are_the_same() -> None:
    assert len({stamps.fields(17)[TIME_FIELD] for _ in range(1000)}) == 1000


@pytest.mark.spec("A89")
async def test_our_tools_work_and_others_get_a_hint(tmp_path: Path) -> None:
    async with guarded(tmp_path, requires_fresh=True) as servers:
        address = servers.broker.address
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("orders", 1)
            assert "orders" in await admin.topics()
        async with aio.Producer("p", **servers.as_admin) as producer:
            await producer.send(Message("orders", b"x"))
        # What mqadmin sends: a valid signature and no time.
        plain = Command(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "orders"})
        refused = await ask(address, plain, ADMIN, ADMIN_SECRET)
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "penstockRequireFresh=off" in (refused.remark or "")
        # A recorded question about a topic, sent as the request that deletes it.
        ext = {"topic": "orders", **stamps.fields(RequestCode.GET_TOPIC_STATS_INFO)}
        proof = acl.sign(ext, b"", ADMIN, ADMIN_SECRET)
        recorded = Command(RequestCode.DELETE_TOPIC_IN_BROKER, ext={**ext, **proof})
        assert "another code" in ((await ask(address, recorded, None)).remark or "")
        # A recorded deletion, sent again.
        ext = {"topic": "other", **stamps.fields(RequestCode.DELETE_TOPIC_IN_BROKER)}
        ext |= acl.sign(ext, b"", ADMIN, ADMIN_SECRET)
        answers = [
            await ask(address, Command(RequestCode.DELETE_TOPIC_IN_BROKER, ext=dict(ext)), None)
            for _ in range(2)
        ]
        assert [answer.code == ResponseCode.NO_PERMISSION for answer in answers] == [False, True]
        assert "orders" in servers.broker.state.topics


@pytest.mark.spec("A89")
async def test_a_signature_in_another_spelling_is_the_same_request(tmp_path: Path) -> None:
    async with guarded(tmp_path, requires_fresh=True) as servers:
        ext = {"topic": "other", **stamps.fields(RequestCode.DELETE_TOPIC_IN_BROKER)}
        ext |= acl.sign(ext, b"", ADMIN, ADMIN_SECRET)
        texts = spellings(ext[acl.SIGNATURE])
        assert ext[acl.SIGNATURE] in texts
        assert len(set(texts)) == 4
        taken = 0
        for text in texts:
            again = Command(RequestCode.DELETE_TOPIC_IN_BROKER, ext={**ext, acl.SIGNATURE: text})
            answer = await ask(servers.broker.address, again, None)
            taken += answer.code != ResponseCode.NO_PERMISSION
        assert taken == 1


@pytest.mark.spec("A89")
async def test_a_user_without_rights_does_not_use_up_what_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "MAX_REMEMBERED", 3)
    async with guarded(tmp_path, requires_fresh=True) as servers:
        code = RequestCode.DELETE_TOPIC_IN_BROKER
        for name, secret, is_refused in (
            *[(APP, APP_SECRET, True)] * 5,
            (ADMIN, ADMIN_SECRET, False),
        ):
            ext = {"topic": "other", **stamps.fields(code)}
            answer = await ask(servers.broker.address, Command(code, ext=ext), name, secret)
            assert answer.code != ResponseCode.SYSTEM_BUSY, answer.remark
            assert (answer.code == ResponseCode.NO_PERMISSION) is is_refused, answer.remark
