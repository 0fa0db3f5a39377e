"""Limits of single users: requests, bytes, creations."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.auth.servers import ADMIN, ADMIN_SECRET, APP, APP_SECRET, Guarded, ask, guarded
from tests.auth.test_request_rights import _SEND_V2

from penstock import Message, aio
from penstock.auth.failed_tries import FIRST_PAUSE_MS, FREE_TRIES
from penstock.auth.guard import Guard
from penstock.auth.model import Entry, User, UserLimits
from penstock.auth.user_file import UserFile
from penstock.auth.user_rates import UserRates
from penstock.auth.user_source import UserSource
from penstock.auth.users import new_user
from penstock.errors import StoreDamaged, SystemBusy
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.remoting import Pool, Server
from penstock.runtime.clock import SystemClock

REFUSED = ResponseCode.NO_PERMISSION
MINE = Entry.parse("Topic:mine*", ["Pub", "Sub", "Create"])


async def limit(servers: Guarded, limits: UserLimits, name: str = APP) -> None:
    servers.users.change(lambda users: users.with_user(replace(users.require(name), limits=limits)))
    await servers.take_changes()


def send(topic: str = "mine", body: bytes = b"x") -> Command:
    return Command(RequestCode.SEND_MESSAGE_V2, ext={**_SEND_V2, "b": topic}, body=body)


class Time:
    """Seconds that pass only in `advance`."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


def user(limits: UserLimits) -> User:
    return replace(new_user("app", 0), limits=limits)


def test_a_bucket_fills_up_with_time_and_not_beyond_a_second() -> None:
    clock = Time()
    rates, limited = UserRates(clock.now), user(UserLimits(requests=3))
    for pause in (0, 1, 100):
        clock.advance(pause)
        for _ in range(3):
            rates.check_request(limited, 0)
        with pytest.raises(SystemBusy, match=r"at most 3 requests a second"):
            rates.check_request(limited, 0)
    clock.advance(0.34)
    rates.check_request(limited, 0)
    with pytest.raises(SystemBusy):
        rates.check_request(limited, 0)
    rates.check_request(user(UserLimits()), 0)


def test_a_message_longer_than_the_bytes_of_a_second_is_paid_for_later() -> None:
    clock = Time()
    rates, limited = UserRates(clock.now), user(UserLimits(bytes=100))
    rates.check_request(limited, 350)
    for _ in range(2):
        with pytest.raises(SystemBusy, match=r"100 bytes a second"):
            rates.check_request(limited, 1)
        clock.advance(1.2)
    clock.advance(0.2)
    rates.check_request(limited, 1)


def test_changed_limits_count_at_once() -> None:
    clock = Time()
    rates = UserRates(clock.now)
    rates.check_request(user(UserLimits(requests=1)), 0)
    rates.check_request(user(UserLimits(requests=2)), 0)
    rates.check_creations(user(UserLimits(creations=1)), 1)
    with pytest.raises(SystemBusy, match=r"1 new topics and groups an hour"):
        rates.check_creations(user(UserLimits(creations=1)), 1)
    clock.advance(60)
    with pytest.raises(SystemBusy):
        rates.check_creations(user(UserLimits(creations=1)), 1)
    clock.advance(3540)
    rates.check_creations(user(UserLimits(creations=1)), 1)


async def test_requests_above_the_limit_are_refused_and_other_users_served(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path, MINE) as servers:
        address = servers.broker.address
        for _ in range(3):
            # The fast path has the user before it gets its limit.
            assert (await ask(address, send())).code == ResponseCode.SUCCESS
        await limit(servers, UserLimits(requests=1))
        codes = [(await ask(address, send())).code for _ in range(12)]
        assert codes[0] == ResponseCode.SUCCESS
        assert codes.count(ResponseCode.SYSTEM_BUSY) >= 1
        stored = servers.broker.state.storage.max_offset("mine", 0)
        assert stored == 3 + codes.count(ResponseCode.SUCCESS)
        refused = next(
            answer
            for answer in [await ask(address, send()) for _ in range(12)]
            if answer.code == ResponseCode.SYSTEM_BUSY
        )
        assert "User:app exceeds its limit" in (refused.remark or "")
        assert (await ask(address, send(), ADMIN, ADMIN_SECRET)).code == ResponseCode.SUCCESS
        lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert APP_SECRET not in str(lines)


async def test_limits_count_for_each_request_of_a_connection(tmp_path: Path) -> None:
    async with guarded(tmp_path, MINE) as servers, Pool(lambda peer, request: None) as pool:
        await limit(servers, UserLimits(requests=1))
        codes = [(await ask(servers.broker.address, send(), pool=pool)).code for _ in range(12)]
        assert codes[0] == ResponseCode.SUCCESS
        assert ResponseCode.SYSTEM_BUSY in codes


async def test_our_producer_waits_for_its_limit(tmp_path: Path) -> None:
    async with guarded(tmp_path, MINE) as servers:
        await limit(servers, UserLimits(requests=20))
        async with aio.Producer("p", **servers.as_user(), retries=20, send_timeout="60s") as one:
            for number in range(30):
                await one.send(Message("mine", str(number).encode()))


async def test_topics_above_the_limit_are_not_created(tmp_path: Path) -> None:
    async with guarded(tmp_path, MINE) as servers:
        await limit(servers, UserLimits(creations=2))
        address = servers.broker.address
        codes = [(await ask(address, send(f"mine-{number}"))).code for number in range(4)]
        assert codes == [0, 0, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY]
        assert "mine-2" not in servers.broker.state.topics
        # What exists is not created.
        assert (await ask(address, send("mine-1"))).code == 0


def test_limits_are_kept_in_the_file_and_mistakes_named(tmp_path: Path) -> None:
    file = UserFile(tmp_path / "auth.json")
    limits = UserLimits(connections=5, requests=100, bytes=1 << 20, creations=7)
    file.change(lambda users: users.with_user(user(limits)))
    assert file.load().require("app").limits == limits
    text = file.path.read_text()
    for wrong, said in (('"requestPerSecond"', "requestPerSecond"), ('"bytesPerSecond": 0', "'0'")):
        key = wrong.partition(":")[0].replace("requestPer", "requestsPer")
        broken = text.replace(f"{key}: {limits.bytes}", wrong).replace(key, wrong.partition(":")[0])
        file.path.write_text(broken)
        with pytest.raises(StoreDamaged, match=said):
            file.load()


class Stepping(SystemClock):
    """A wall clock that can be set."""

    ahead_ms = 0

    def time_ms(self) -> int:
        return super().time_ms() + self.ahead_ms


@pytest.mark.spec("A21")
async def test_a_clock_that_is_set_back_does_not_refuse_for_hours(tmp_path: Path) -> None:
    file = UserFile(tmp_path / "auth.json")
    file.change(lambda users: users.with_user(new_user(APP, 0, value=APP_SECRET)))
    clock = Stepping()
    async with UserSource(file, clock) as source:
        guard = Guard(source, {}, server="s", clock=clock)
        async with Server(guard.wrap(lambda peer, command: Command(0))) as server:
            address = f"127.0.0.1:{server.port}"
            for _ in range(FREE_TRIES):
                assert (await ask(address, Command(1), secret="wrong")).code == REFUSED
            clock.ahead_ms = -6 * 3600 * 1000
            # Asking earlier would make the pause longer.
            await asyncio.sleep(FIRST_PAUSE_MS / 1000 + 0.2)
            assert (await ask(address, Command(1))).code == ResponseCode.SUCCESS
