"""Signed sends on the fast path: served like on the plain path, and never without a signature."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import orjson
import pytest
from tests.auth.servers import APP, APP_SECRET, Guarded, ask, guarded

from penstock import aio
from penstock.auth.model import Entry, UserLimits, UserStatus, UserType
from penstock.auth.users import Users, new_secret, rotated
from penstock.broker import Broker, BrokerConfig
from penstock.protocol import acl
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.extensions import SHORT_RECEIPT
from penstock.remoting import Peer, Pool
from penstock.remoting.peer import fast_path_key

ORDERS = Entry.parse("Topic:orders", ["Pub"])
USUAL = {
    **{"a": "p", "b": "orders", "c": "TBW102", "d": "8", "e": "0", "f": "0", "g": "1700000000000"},
    **{"h": "0", "i": "KEYS\x01k\x02", "j": "0", "k": "false", "m": "false"},
}
MORE = {"n": "broker-a", "OnsChannel": "ALIYUN", acl.SECURITY_TOKEN: "t", SHORT_RECEIPT: "true"}
BODY = b"x"


def signed(ext: dict[str, str], body: bytes = BODY) -> dict[str, str]:
    return {**ext, **acl.sign(ext, body, APP, APP_SECRET)}


def header(ext: dict[str, str]) -> bytes:
    return orjson.dumps({"code": 310, "extFields": ext, "flag": 0, "opaque": 7, "version": 479})


def sent(ext: dict[str, str]) -> Command:
    return Command(RequestCode.SEND_MESSAGE_V2, ext=ext, body=BODY)


def fast(broker: Broker, ext: dict[str, str], body: bytes = BODY) -> bytes | None:
    """What the fast path answers to a request over the connection that is open."""
    return _fast_path(broker)(_peer(broker), header(ext), body)


def _fast_path(broker: Broker) -> Callable[[Peer, bytes, bytes], bytes | None]:
    return broker._dispatcher.fast_paths[fast_path_key(RequestCode.SEND_MESSAGE_V2)]


def _peer(broker: Broker) -> Peer:
    assert broker._server is not None
    return list(broker._server.peers)[-1]


async def _prepare(servers: Guarded, pool: Pool) -> None:
    async with aio.Admin(**servers.as_admin) as admin:
        await admin.create_topic("orders", 1)
        await admin.create_topic("other", 1)
    # The plain path serves the first request and then enables the fast path.
    assert (await ask(servers.broker.address, sent(USUAL), pool=pool)).code == 0


@pytest.mark.spec("A19")
async def test_what_clients_send_is_served_by_the_fast_path(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers, Pool(lambda peer, request: None) as pool:
        broker = servers.broker
        await _prepare(servers, pool)
        assert fast(broker, signed(USUAL)) is not None
        for field, value in MORE.items():
            assert fast(broker, signed({**USUAL, field: value})) is not None, field
        assert fast(broker, signed({**USUAL, **MORE})) is not None
        broker.state.storage.write()  # As the end of a loop turn does.
        assert broker.state.storage.max_offset("orders", 0) == 1 + 1 + len(MORE) + 1


def like(number: int, **changes: str) -> dict[str, str]:
    """Fields that differ in time and id only, but for ``changes``."""
    unique_id = f"7F0000013A2218B4AAC2{number:012X}"
    properties = f"TAGS\x01t\x02UNIQ_KEY\x01{unique_id}\x02WAIT\x01true\x02"
    return {**USUAL, **MORE, "g": str(1_700_000_000_000 + number), "i": properties, **changes}


def _never(data: bytes) -> object:
    raise AssertionError(f"decoded: {data!r}")


@pytest.mark.spec("A6", "A19", "A20")
async def test_a_header_that_is_known_is_served_only_with_its_own_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded(tmp_path, ORDERS) as servers, Pool(lambda peer, request: None) as pool:
        broker = servers.broker
        await _prepare(servers, pool)
        for number in range(3):
            assert fast(broker, signed(like(number))) is not None
        serve = _fast_path(broker)
        right = signed(like(7))
        with monkeypatch.context() as patched:
            # A bound method of the fast path.
            patched.setattr(serve.__self__, "_decode", _never)  # type: ignore[attr-defined]
            assert fast(broker, right) is not None
        proof = right[acl.SIGNATURE]
        wrong = [
            {**like(8), acl.ACCESS_KEY: APP, acl.SIGNATURE: proof},
            {**right, "g": "1700000000008"},
            {**right, "i": like(8)["i"]},
            {**right, "e": "1"},
            {**right, acl.SIGNATURE: proof[::-1]},
            {**right, acl.SIGNATURE: "=" * len(proof)},
            {**right, acl.SIGNATURE: " " * len(proof)},
            {**right, acl.SIGNATURE: "A" * 27 + "="},
            {**right, acl.SIGNATURE: signed(like(8))[acl.SIGNATURE]},
        ]
        for ext in wrong:
            assert fast(broker, ext) is None, ext
        assert fast(broker, right, b"y") is None
        assert fast(broker, right) is not None
        servers.users.change(lambda users: users.without_entries(APP))
        await servers.take_changes()
        assert fast(broker, right) is None


@pytest.mark.spec("A11", "A12", "A20")
async def test_a_known_header_is_not_served_with_a_secret_that_expires(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers, Pool(lambda peer, request: None) as pool:
        await _prepare(servers, pool)
        for number in range(3):
            assert fast(servers.broker, signed(like(number))) is not None
        now = servers.broker.state.clock.time_ms()
        servers.users.change(
            lambda users: users.with_user(
                rotated(users.require(APP), now, grace_ms=3_600_000, value="second-secret")
            )
        )
        await servers.take_changes()
        assert fast(servers.broker, signed(like(3))) is None
        assert (await ask(servers.broker.address, sent(USUAL), pool=pool)).code == 0
        assert fast(servers.broker, signed(like(3))) is None
        new = {**like(3), **acl.sign(like(3), BODY, APP, "second-secret")}
        assert fast(servers.broker, new) is not None


def _with(**changes: object) -> Callable[[Users], Users]:
    return lambda users: users.with_user(replace(users.require(APP), **changes))  # type: ignore[arg-type]  # fields of a user


@pytest.mark.spec("A20")
@pytest.mark.parametrize(
    ("change", "is_served_later"),
    [
        (lambda users: users.without_user(APP), False),
        (_with(status=UserStatus.DISABLE), False),
        (_with(secrets=(new_secret(0, "another-secret"),)), False),
        (_with(secrets=()), False),
        (_with(entries=(ORDERS, Entry.parse("Topic:orders", ["Pub"], "Deny"))), False),
        (_with(entries=(Entry.parse("Topic:orders", ["Pub"], sources=["10.1.2.3"]),)), False),
        (_with(entries=(Entry.parse("Topic:other", ["Pub"]),)), False),
        (_with(limits=UserLimits(requests=1_000)), False),
        (_with(entries=(Entry.parse("Topic:*", ["All"]),)), True),
        (_with(type=UserType.SUPER, entries=()), True),
    ],
)
async def test_no_change_of_a_user_leaves_a_known_header_as_it_was(
    tmp_path: Path, change: Callable[[Users], Users], is_served_later: bool
) -> None:
    async with guarded(tmp_path, ORDERS) as servers, Pool(lambda peer, request: None) as pool:
        broker = servers.broker
        await _prepare(servers, pool)
        for number in range(3):
            assert fast(broker, signed(like(number))) is not None
        # The connection may be closed by the change, and the fast path is asked all the same.
        peer, serve = _peer(broker), _fast_path(broker)
        servers.users.change(change)
        await servers.take_changes()
        assert serve(peer, header(signed(like(3))), BODY) is None
        if not peer.is_closed:
            await ask(broker.address, sent(USUAL), pool=pool)
        later = serve(peer, header(signed(like(4))), BODY)
        assert (later is not None) is is_served_later


@pytest.mark.spec("A6", "A19")
async def test_the_fast_path_serves_nothing_that_is_not_signed(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers, Pool(lambda peer, request: None) as pool:
        broker = servers.broker
        await _prepare(servers, pool)
        right = signed(USUAL)
        wrong = [
            USUAL,
            {**right, acl.SIGNATURE: ""},
            {**right, acl.SIGNATURE: "é" * 28},
            {**right, acl.SIGNATURE: right[acl.SIGNATURE][:-1]},
            {**right, acl.ACCESS_KEY: "admin"},
            {**right, acl.ACCESS_KEY: "unknown"},
            {**right, "added": "1"},
            {**right, "b": "other"},
            {key: value for key, value in right.items() if key != "k"},
            signed({**USUAL, "b": "other"}),
            *({**right, key: "1"} for key in USUAL if key != "b"),
            *({**right, key: "1"} for key in MORE),
        ]
        for ext in wrong:
            assert fast(broker, ext) is None, ext
        assert fast(broker, right, b"y") is None
        broker.state.storage.write()
        assert broker.state.storage.max_offset("orders", 0) == 1
        assert broker.state.storage.max_offset("other", 0) == 0
        # Every fast path that there is: none serves a request without a user.
        for fast_path in broker._dispatcher.fast_paths.values():
            assert fast_path(_peer(broker), header(USUAL), BODY) is None


@pytest.mark.spec("A20")
async def test_what_a_user_may_no_longer_do_leaves_the_fast_path(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers, Pool(lambda peer, request: None) as pool:
        await _prepare(servers, pool)
        assert fast(servers.broker, signed(USUAL)) is not None
        servers.users.change(lambda users: users.without_entries(APP))
        await servers.take_changes()
        assert fast(servers.broker, signed(USUAL)) is None
        refused = await ask(servers.broker.address, sent(USUAL), pool=pool)
        assert refused.code == ResponseCode.NO_PERMISSION


@pytest.mark.spec("A11", "A12")
async def test_a_secret_that_expires_is_checked_by_the_plain_path(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers, Pool(lambda peer, request: None) as pool:
        await _prepare(servers, pool)
        now = servers.broker.state.clock.time_ms()
        servers.users.change(
            lambda users: users.with_user(
                rotated(users.require(APP), now, grace_ms=3_600_000, value="second-secret")
            )
        )
        await servers.take_changes()
        assert (await ask(servers.broker.address, sent(USUAL), pool=pool)).code == 0
        assert fast(servers.broker, signed(USUAL)) is None
        new = {**USUAL, **acl.sign(USUAL, BODY, APP, "second-secret")}
        assert fast(servers.broker, new) is not None


@pytest.mark.spec("A93")
async def test_a_signature_costs_few_calls_and_nothing_without_users(tmp_path: Path) -> None:
    """The figure itself is that of ``python -m benchmarks.signed_sends``."""
    async with (
        guarded(tmp_path / "guarded", ORDERS) as servers,
        Pool(lambda peer, request: None) as pool,
    ):
        await _prepare(servers, pool)
        with_users, modules = _calls(servers.broker, signed(USUAL))
        assert "penstock.protocol.acl" in modules
    async with (
        Broker(BrokerConfig(listen_port=0), tmp_path / "open") as broker,
        Pool(lambda peer, request: None) as pool,
    ):
        for _ in range(2):  # The first one makes the topic.
            assert (await ask(broker.address, sent(USUAL), None, pool=pool)).code == 0
        without_users, modules = _calls(broker, USUAL)
        assert not {"penstock.protocol.acl", "penstock.auth.guard"} & modules
    # Two functions of ours, one look-up, and the hash functions: no second look at the header.
    assert with_users - without_users <= 14


def _calls(broker: Broker, ext: dict[str, str]) -> tuple[int, set[str]]:
    """How many functions one send calls, and in which modules."""
    fast_path, peer, data = _fast_path(broker), _peer(broker), header(ext)
    assert fast_path(peer, data, BODY) is not None
    count, modules = 0, set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1
            modules.add(str(frame.f_globals.get("__name__")))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        answer = fast_path(peer, data, BODY)
    finally:
        sys.setprofile(before)
    assert answer is not None
    return count, modules
