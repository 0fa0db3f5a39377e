"""Signed calls: who may do what through the endpoint."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.auth.servers import ADMIN, ADMIN_SECRET, APP, APP_SECRET, Guarded, guarded
from tests.proxy.lab import (
    GROUP,
    TOPIC,
    consumer_settings,
    message,
    producer_settings,
    topic_config,
)
from tests.support.fake_clock import FakeClock

from penstock.auth.failed_tries import FREE_TRIES, MAX_PAUSE_MS
from penstock.auth.model import Entry, UserStatus, UserType
from penstock.auth.user_file import UserFile
from penstock.auth.user_source import UserSource
from penstock.auth.users import new_user
from penstock.proxy.access import Access
from penstock.proxy.calls import Caller
from penstock.proxy.endpoint import Endpoint
from penstock.proxy.local_backend import LocalBackend
from penstock.proxy.statuses import Refused
from penstock.proxy.times import duration
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import Code
from penstock.remoting.file_stamps import FileStamp
from penstock.runtime.clock import SystemClock
from penstock.testing.eventually import eventually

DATE = "20260101T000000Z"
PUB = Entry.parse(f"Topic:{TOPIC}", ["Pub"])
SUB = Entry.parse(f"Topic:{TOPIC}", ["Sub"])
SUB_GROUP = Entry.parse(f"Group:{GROUP}", ["Sub"])


def signature(secret: str, date: str = DATE) -> str:
    return hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest()


def caller(name: str = APP, secret: str = APP_SECRET, client_id: str = "c", **more: Any) -> Caller:
    text = (
        f"MQv2-HMAC-SHA1 Credential={name}/region/Rocketmq, SignedHeaders=x-mq-date-time, "
        f"Signature={signature(secret)}"
    )
    return Caller(**{"client_id": client_id, "date_time": DATE, "authorization": text, **more})


@asynccontextmanager
async def running(data: Path, *entries: Entry) -> AsyncIterator[tuple[Guarded, Endpoint]]:
    async with guarded(data, *entries) as servers:
        servers.broker.state.topics.put(topic_config(queues=1))
        servers.broker.state.topics.put(topic_config("secret", queues=1))
        backend = LocalBackend(servers.broker)
        async with Endpoint(backend, SystemClock(), advertised=lambda: ("127.0.0.1", 1)) as one:
            yield servers, one


async def send(endpoint: Endpoint, who: Caller, topic: str = TOPIC) -> int:
    request = wire.SendMessageRequest(messages=[message(topic=topic)])
    return int((await endpoint.call("SendMessage", request, who)).status.code)


async def receive(endpoint: Endpoint, who: Caller, topic: str = TOPIC) -> Any:
    request = wire.ReceiveMessageRequest(
        group=wire.Resource(name=GROUP),
        message_queue=wire.MessageQueue(topic=wire.Resource(name=topic)),
        batch_size=1,
        invisible_duration=duration(30),
        long_polling_timeout=duration(0),
    )
    received = await endpoint.receive(request, who)
    return [wire.ReceiveMessageResponse.FromString(one) for one in received.responses]


def test_the_signature_of_the_reference() -> None:
    assert signature("12345678") == "744d438196af86606d44b8c9a7c8e0e0b2ffb22b"


async def test_calls_need_a_right_signature(tmp_path: Path) -> None:
    async with running(tmp_path, PUB) as (_, endpoint):
        upper = caller().authorization.replace(signature(APP_SECRET), signature(APP_SECRET).upper())
        assert await send(endpoint, caller()) == Code.OK
        assert await send(endpoint, caller(authorization=upper)) == Code.OK
        for who in (
            Caller(client_id="c"),
            caller(authorization=""),
            caller(authorization="MQv2-HMAC-SHA1 Credential=, Signature="),
            caller(secret="wrong"),
            caller("unknown"),
            caller(date_time="20260101T000001Z"),
            caller(date_time=""),
        ):
            assert await send(endpoint, who) == Code.UNAUTHORIZED
            (refused,) = await receive(endpoint, who)
            assert refused.status.code == Code.UNAUTHORIZED
            stream = await endpoint.open_stream(who)
            command = await stream.next()
            assert command is not None
            assert command.status.code == Code.UNAUTHORIZED
            assert await stream.next() is None


async def test_a_disabled_user_learns_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, PUB) as (servers, endpoint):
        request = wire.QueryRouteRequest(topic=wire.Resource(name=TOPIC))
        assert (await endpoint.call("QueryRoute", request, caller())).status.code == Code.OK
        servers.users.change(
            lambda users: users.with_user(replace(users.require(APP), status=UserStatus.DISABLE))
        )
        await servers.take_changes()
        answer = await endpoint.call("QueryRoute", request, caller())
        assert answer.status.code == Code.UNAUTHORIZED
        assert not answer.message_queues


async def test_the_rights_of_the_user_decide(tmp_path: Path) -> None:
    async with running(tmp_path, PUB, SUB, SUB_GROUP) as (_, endpoint):
        admin = caller(ADMIN, ADMIN_SECRET)
        assert await send(endpoint, caller()) == Code.OK
        assert await send(endpoint, caller(), "secret") == Code.UNAUTHORIZED
        assert await send(endpoint, admin, "secret") == Code.OK
        responses = await receive(endpoint, caller())
        assert responses[1].message.body == b"hello"
        (refused,) = await receive(endpoint, caller(), "secret")
        assert refused.status.code == Code.UNAUTHORIZED
        handle = responses[1].message.system_properties.receipt_handle
        ack = wire.AckMessageRequest(
            group=wire.Resource(name=GROUP),
            topic=wire.Resource(name=TOPIC),
            entries=[wire.AckMessageEntry(receipt_handle=handle)],
        )
        assert (await endpoint.call("AckMessage", ack, caller())).status.code == Code.OK
        ack.group.name = "others"
        assert (await endpoint.call("AckMessage", ack, caller())).status.code == Code.UNAUTHORIZED


async def test_a_group_needs_a_right(tmp_path: Path) -> None:
    async with running(tmp_path, PUB, SUB) as (_, endpoint):
        for settings, is_refused in (
            (producer_settings(TOPIC), False),
            (consumer_settings(), True),
        ):
            stream = await endpoint.open_stream(caller())
            command = wire.TelemetryCommand(settings=settings)
            await endpoint.take_command(stream, caller(), command)
            assert (stream.failure is not None) is is_refused


async def test_a_user_cannot_act_as_the_client_of_another_one(tmp_path: Path) -> None:
    async with running(tmp_path, PUB) as (_, endpoint):
        admin = caller(ADMIN, ADMIN_SECRET)
        assert await send(endpoint, admin) == Code.OK
        assert await send(endpoint, caller()) == Code.OK
        clients = endpoint.parts.clients.all()
        assert {one.signer.name for one in clients if one.signer is not None} == {ADMIN, APP}
        leaving = wire.NotifyClientTerminationRequest()
        answer = await endpoint.call("NotifyClientTermination", leaving, caller())
        assert answer.status.code == Code.OK
        assert len(endpoint.parts.clients) == 1


async def test_a_user_that_is_disabled_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, PUB) as (servers, endpoint):
        assert await send(endpoint, caller()) == Code.OK
        servers.users.change(lambda users: users.without_user(APP))
        await servers.take_changes()
        assert await send(endpoint, caller()) == Code.UNAUTHORIZED


@pytest.mark.parametrize("text", ["x" * 10_000, "Credential=a" * 1000, "Signature=" + "z" * 40])
async def test_odd_authorizations(tmp_path: Path, text: str) -> None:
    async with running(tmp_path, PUB) as (_, endpoint):
        assert await send(endpoint, caller(authorization=text)) == Code.UNAUTHORIZED


async def test_a_wall_clock_that_is_set_back_does_not_make_a_user_wait(tmp_path: Path) -> None:
    async with guarded(tmp_path, PUB) as servers:
        clock, users = FakeClock(), servers.broker.state.users
        access = Access(lambda: users, clock)
        for _ in range(FREE_TRIES):
            with pytest.raises(Refused):
                access.signer(caller(secret="wrong"))
        with pytest.raises(Refused):
            access.signer(caller())
        clock.jump(timedelta(hours=-1))
        await clock.advance(timedelta(milliseconds=2 * MAX_PAUSE_MS))
        signer = access.signer(caller())
        assert signer is not None
        assert signer.name == APP


async def test_a_user_that_another_process_made_is_known_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, PUB) as (servers, endpoint):
        users = servers.broker.state.users
        assert users is not None
        assert await send(endpoint, caller("late", ADMIN_SECRET)) == Code.UNAUTHORIZED
        # Not through the source of this process, which would know of it.
        late = new_user("late", 0, value=ADMIN_SECRET, type_=UserType.SUPER)
        UserFile(users.path).change(lambda known: known.with_user(late))
        assert users.users.get("late") is None
        assert await send(endpoint, caller("late", ADMIN_SECRET)) == Code.OK


async def test_a_stream_that_ends_while_users_are_looked_up(tmp_path: Path) -> None:
    async with running(tmp_path, PUB) as (_, endpoint):
        opening = [
            asyncio.ensure_future(endpoint.open_stream(caller("unknown"))) for _ in range(20)
        ]
        await asyncio.sleep(0)
        assert endpoint.open_streams() == 20
        for one in opening:
            one.cancel()
        await asyncio.wait(opening)
        assert endpoint.open_streams() == 0


class SlowFile(UserFile):
    """A user file that is looked at when the test allows it."""

    looks = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_free = threading.Event()
        self.is_free.set()

    def stamp(self) -> FileStamp | None:
        found = super().stamp()
        self.looks += 1
        self.is_free.wait(30)
        return found


async def test_callers_that_wait_share_a_look_at_the_users(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    UserFile(path).change(lambda users: users.with_user(new_user("first", 0, value="secret-1")))
    file = SlowFile(path)
    source = UserSource(file, SystemClock())
    await source.load()
    access = Access(lambda: source, SystemClock())
    looks = file.looks
    file.is_free.clear()
    early = [asyncio.ensure_future(access.has_news()) for _ in range(100)]
    await eventually(lambda: file.looks == looks + 1)
    late = new_user("late", 0, value="secret-2")
    UserFile(path).change(lambda users: users.with_user(late))
    # The look under way began before the user was made.
    after = [asyncio.ensure_future(access.has_news()) for _ in range(100)]
    after[0].cancel()
    await asyncio.sleep(0)
    file.is_free.set()
    assert await early[0] is False
    await asyncio.gather(*early[1:])
    assert await asyncio.gather(*after[1:]) == [True] * 99
    assert source.users.get("late") is not None
    assert file.looks == looks + 2
