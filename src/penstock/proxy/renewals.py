"""Renewal by the server: messages of push consumers stay invisible while their client lives.

A push consumer states no invisible time. Its messages get a minute, and more each time that is
nearly over, up to three hours after their delivery. The client knows only its first receipt handle;
this table knows the newest one, and which is meant by the first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import PenstockError
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import decode_header, encode_header
from penstock.protocol.headers.pop import ChangeInvisibleTime, ChangeInvisibleTimeResult
from penstock.proxy.receipts import Receipt
from penstock.runtime.clock import Clock

if TYPE_CHECKING:
    from penstock.proxy.backend import Backend
    from penstock.proxy.clients import Client

log = logging.getLogger(__name__)

FIRST_SECONDS: Final = 60.0
ROUND_SECONDS: Final = 5.0
RELEASE_SECONDS: Final = 1.0
_AHEAD_MS: Final = 10_000
_STEPS: Final = (60.0, 180.0, 300.0, 600.0, 1800.0, 3600.0)
LONGEST_SECONDS: Final = 3 * 3600.0
_MAX_FAILURES: Final = 3
_TOGETHER: Final = 64
MAX_RENEWED: Final = 200_000


class Delivery(NamedTuple):
    """Whose message it is, where it was read."""

    client: Client
    group: str
    topic: str
    """The topic that was asked for."""


class _Key(NamedTuple):
    group: str
    topic: str
    broker_name: str
    flag: int
    queue_id: int
    offset: int
    pop_time: int


class Renewed:
    """One delivered message that is renewed."""

    __slots__ = (
        "changing",
        "delivery",
        "failures",
        "key",
        "popped_ms",
        "receipt",
        "retries",
        "times",
    )

    def __init__(self, delivery: Delivery, key: _Key, receipt: Receipt, retries: int) -> None:
        self.delivery = delivery
        self.key = key
        self.receipt = receipt
        """The newest one."""
        self.retries = retries
        """How often it was delivered before."""
        self.popped_ms = receipt.handle.pop_time
        self.times = 0
        self.failures = 0
        self.changing: asyncio.Future[None] | None = None
        """Done when a change that is under way has ended."""


async def change_receipt(
    delivery: Delivery, receipt: Receipt, seconds: float, *, is_suspended: bool = False
) -> Receipt:
    """Let a message become visible after ``seconds``; its new receipt."""
    client, group, topic = delivery
    handle = receipt.handle
    header = ChangeInvisibleTime(
        group,
        receipt.real_topic(group, topic),
        handle.queue_id,
        str(handle),
        handle.queue_offset,
        round(seconds * 1000),
        True if is_suspended else None,
    )
    ext = {**encode_header(header), "bname": handle.broker_name}
    command = Command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext=ext)
    answer = await client.demand(handle.broker_name, command)
    return receipt.changed(decode_header(ChangeInvisibleTimeResult, answer.ext))


async def make_visible(delivery: Delivery, receipts: Iterable[Receipt]) -> None:
    """Give back messages that their client does not finish; the delivery is not counted."""
    for receipt in receipts:
        try:
            await change_receipt(delivery, receipt, RELEASE_SECONDS, is_suspended=True)
        except PenstockError as error:
            # It becomes visible when its time is up.
            log.debug("message not given back receipt=%s error=%s", receipt, error)


class Renewals:
    """All messages that are renewed."""

    def __init__(self, backend: Backend, clock: Clock, *, longest: float = LONGEST_SECONDS) -> None:
        self._backend = backend
        self._clock = clock
        self._longest_ms = longest * 1000
        self._renewed: dict[_Key, Renewed] = {}
        self._has_logged_full = False

    def __len__(self) -> int:
        return len(self._renewed)

    def add(self, delivery: Delivery, receipt: Receipt, retries: int) -> None:
        """Renew a message from now on."""
        if len(self._renewed) >= MAX_RENEWED:
            if not self._has_logged_full:
                self._has_logged_full = True
                log.warning("messages are not renewed, too many are delivered max=%d", MAX_RENEWED)
            return
        key = _key(delivery.group, delivery.topic, receipt)
        self._renewed[key] = Renewed(delivery, key, receipt, retries)

    async def take(self, group: str, topic: str, receipt: Receipt) -> Renewed | None:
        """End the renewal of the message that a receipt is of; None if it is not renewed."""
        found = self._renewed.pop(_key(group, topic, receipt), None)
        if found is not None and found.changing is not None:
            await asyncio.wait((found.changing,))
        return found

    def find(self, group: str, topic: str, receipt: Receipt) -> Renewed | None:
        """The message that a receipt is of, if it is renewed."""
        return self._renewed.get(_key(group, topic, receipt))

    def drop(self, renewed: Renewed) -> None:
        """End the renewal of a message that is not being changed."""
        self._renewed.pop(renewed.key, None)

    def put_back(self, renewed: Renewed) -> None:
        """Go on with the renewal of a message that was taken, as it was not finished."""
        if not renewed.delivery.client.is_gone:
            self._renewed[renewed.key] = renewed

    async def release(self, client: Client) -> None:
        """Give back all messages of a client that is gone."""
        await self._release(lambda one: one.delivery.client is client)

    async def release_all(self) -> None:
        """Give back all messages: the endpoint ends."""
        await self._release(lambda one: True)

    async def _release(self, is_wanted: Callable[[Renewed], bool]) -> None:
        wanted = [one for one in self._renewed.values() if is_wanted(one)]
        for one in wanted:
            self._renewed.pop(one.key, None)
        for start in range(0, len(wanted), _TOGETHER):
            await asyncio.gather(
                *(
                    make_visible(one.delivery, (one.receipt,))
                    for one in wanted[start : start + _TOGETHER]
                )
            )

    # Rounds

    async def round(self) -> None:
        """Renew what is due."""
        limit = self._clock.time_ms() + _AHEAD_MS
        due = [one for one in self._renewed.values() if one.receipt.visible_ms <= limit]
        for start in range(0, len(due), _TOGETHER):
            await asyncio.gather(*(self._renew(one) for one in due[start : start + _TOGETHER]))

    async def _renew(self, one: Renewed) -> None:
        if one.key not in self._renewed:
            return
        is_over = self._clock.time_ms() - one.popped_ms >= self._longest_ms
        one.changing = asyncio.get_running_loop().create_future()
        try:
            if is_over:
                del self._renewed[one.key]
                group = await self._backend.group(one.delivery.group)
                await change_receipt(one.delivery, one.receipt, group.delay_after(one.retries + 3))
                log.info("renewal ended, the message is redelivered receipt=%s", one.receipt)
                return
            seconds = _STEPS[min(one.times, len(_STEPS) - 1)]
            one.receipt = await change_receipt(one.delivery, one.receipt, seconds)
            one.times += 1
            one.failures = 0
        except PenstockError as error:
            one.failures += 1
            if one.failures >= _MAX_FAILURES:
                self._renewed.pop(one.key, None)
                log.warning("renewal given up receipt=%s error=%s", one.receipt, error)
        finally:
            one.changing.set_result(None)
            one.changing = None


def _key(group: str, topic: str, receipt: Receipt) -> _Key:
    handle = receipt.handle
    return _Key(
        group,
        topic,
        handle.broker_name,
        handle.flag,
        handle.queue_id,
        handle.queue_offset,
        handle.pop_time,
    )
