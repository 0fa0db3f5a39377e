"""Many push consumers over real channels: each with its settings stream, heartbeats and a poll.

Every member is alone in its group, so a message that is sent once must reach all of them. A member
whose calls fail repeats them, as the official clients do.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio
from tests.proxy.lab import TOPIC, consumer_settings, message
from tests.proxy.raw_client import RawClient

from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import ClientType, Code
from penstock.testing.eventually import eventually

AGAIN_SECONDS = 0.2
POLL_SECONDS = 20
_BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)


def group_name(number: int) -> str:
    """The group of a member."""
    return f"fleet-{number}"


class Member:
    """One client."""

    def __init__(self, address: str, number: int, beat_seconds: float) -> None:
        self.beats = 0
        self.has_settings = False
        self.got: deque[bytes] = deque(maxlen=32)
        """What it has received and acknowledged."""
        self._group = group_name(number)
        self._beat_seconds = beat_seconds
        self._client = RawClient(address, f"member-{number}")
        self._tasks = [
            asyncio.ensure_future(_repeat(work)) for work in (self._stream, self._beat, self._poll)
        ]

    async def stop(self) -> None:
        """Leave without a word, as a client that was killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.channel.close()

    async def _stream(self) -> None:
        call = self._client.telemetry()
        try:
            settings = consumer_settings(group=self._group)
            await call.write(wire.TelemetryCommand(settings=settings))
            async for command in call:
                self.has_settings |= command.HasField("settings")
        finally:
            self.has_settings = False

    async def _beat(self) -> None:
        request = wire.HeartbeatRequest(
            group=wire.Resource(name=self._group), client_type=ClientType.PUSH_CONSUMER
        )
        answer = await self._client.call("Heartbeat", request)
        self.beats += answer.status.code == Code.OK
        await asyncio.sleep(self._beat_seconds)

    async def _poll(self) -> None:
        call = self._client.receive(POLL_SECONDS, POLL_SECONDS + 10, self._group)
        messages = [one.message async for one in call if one.HasField("message")]
        if not messages:
            return
        request = wire.AckMessageRequest(
            group=wire.Resource(name=self._group),
            topic=wire.Resource(name=TOPIC),
            entries=[
                wire.AckMessageEntry(
                    message_id=one.system_properties.message_id,
                    receipt_handle=one.system_properties.receipt_handle,
                )
                for one in messages
            ],
        )
        answer = await self._client.call("AckMessage", request)
        if answer.status.code == Code.OK:
            self.got.extend(one.body for one in messages)


async def _repeat(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await work()
        except _BROKEN:
            await asyncio.sleep(AGAIN_SECONDS)


class Fleet:
    """The members, and one producer."""

    def __init__(self, address: str, count: int, beat_seconds: float) -> None:
        self._address = address
        self._count = count
        self._beat_seconds = beat_seconds
        self._members: list[Member] = []
        self._sender = RawClient(address, "sender")
        self._sent = 0

    def connect(self) -> None:
        """Start all members."""
        self._members = [
            Member(self._address, number, self._beat_seconds) for number in range(self._count)
        ]

    async def leave(self) -> None:
        """End all members."""
        await asyncio.gather(*(member.stop() for member in self._members))
        self._members = []
        # The library ends a connection when the channel is collected, not when it is closed.
        gc.collect()

    async def close(self) -> None:
        await self.leave()
        await self._sender.channel.close()

    async def works(self, seconds: float) -> None:
        """Wait until each member has settings, a new heartbeat, and a message sent after that."""
        before = [member.beats for member in self._members]
        await eventually(
            lambda: all(
                member.has_settings and member.beats > beats
                for member, beats in zip(self._members, before, strict=True)
            ),
            seconds,
            interval=0.05,
        )
        self._sent += 1
        body = b"message %d" % self._sent
        await eventually(lambda: self._send(body), seconds, interval=0.05)
        await eventually(
            lambda: all(body in member.got for member in self._members), seconds, interval=0.05
        )

    async def _send(self, body: bytes) -> bool:
        request = wire.SendMessageRequest(messages=[message(body)])
        try:
            answer = await self._sender.call("SendMessage", request)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status.code == Code.OK)
