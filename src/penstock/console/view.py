"""What the pages know about one cluster: answers with an age, asked for once for all readers.

A `View` owns the administrator. An answer is kept for some seconds; while a question is under way,
further readers wait for the same answer, so ten open tabs cause one request. An answer that took
long is kept longer: at most one fiftieth of the time is spent on asking, which bounds what an open
page costs a broker, however large its tables are. When no page is open, nothing is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from penstock import doctor
from penstock.admin import (
    BrokerAddress,
    Client,
    DeadLetterQueue,
    GroupLag,
    Partial,
    QueueRange,
    TopicRow,
)
from penstock.admin.admin import Admin
from penstock.admin.blocking import Admin as BlockingAdmin
from penstock.admin.reports import UserRight, UserRow
from penstock.client.cluster_access import ClusterAccess
from penstock.console.history import History
from penstock.errors import PenstockError

_T = TypeVar("_T")

Key = tuple[str, ...]
"""A question: its kind, then the names it is about."""

REQUEST_SECONDS = 2.5
PAGE_SECONDS = 3.0
"""What a page has not got by then is shown as unknown."""
page_deadline: ContextVar[float | None] = ContextVar("page_deadline", default=None)
"""When the page that is being made must be there, on the monotonic clock."""
AT_ONCE = 8
"""Questions about single rows under way at a time."""
SEARCHES_AT_ONCE = 2
MAX_ANSWERS = 4096
COST_SHARE = 50
FAILURE_SECONDS = 1.0

CLUSTER_SECONDS = 5.0
TABLE_SECONDS = 2.0
ROW_SECONDS = 2.0
PRODUCER_SECONDS = 5.0
DOCTOR_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Answer(Generic[_T]):
    """A value, or why there is none."""

    value: _T | None = None
    error: str | None = None

    @property
    def is_known(self) -> bool:
        return self.error is None


@dataclass(slots=True)
class _Kept:
    task: asyncio.Future[Any]
    asked: float
    ended: float | None = None
    failed: bool = False

    def is_fresh(self, now: float, seconds: float) -> bool:
        if self.ended is None:
            return True
        if self.failed:
            return now - self.ended < FAILURE_SECONDS
        return now - self.ended < max(seconds, COST_SHARE * (self.ended - self.asked))


@dataclass(slots=True)
class View:
    """One cluster as the pages see it."""

    name: str
    access: ClusterAccess
    admin: Admin = field(init=False)
    history: History = field(default_factory=History)
    asked: Counter[Key] = field(default_factory=Counter)
    """How often each question was put to the cluster."""
    _blocking: BlockingAdmin | None = None
    _kept: dict[Key, _Kept] = field(default_factory=dict)
    searches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SEARCHES_AT_ONCE))
    """Places of searches in all topics."""
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def __post_init__(self) -> None:
        self.admin = Admin(timeout=REQUEST_SECONDS, **self.access.as_keywords())

    @property
    def blocking(self) -> BlockingAdmin:
        """The same administrator for work that runs in a thread."""
        if self._blocking is None:
            self._blocking = BlockingAdmin(timeout=10, **self.access.as_keywords())
        return self._blocking

    async def close(self) -> None:
        """Release the connections."""
        for kept in self._kept.values():
            kept.task.cancel()
        if self._blocking is not None:
            await asyncio.to_thread(self._blocking.close)
        await self.admin.close()

    # ------------------------------------------------------------------------------- asking

    async def get(self, key: Key, seconds: float, ask: Callable[[], Awaitable[_T]]) -> _T:
        """The kept answer, if it is younger than ``seconds``; else ask, once for all callers."""
        now = time.monotonic()
        kept = self._kept.get(key)
        if kept is None or not kept.is_fresh(now, seconds):
            kept = _Kept(asyncio.ensure_future(ask()), now)
            self.asked[key] += 1
            kept.task.add_done_callback(functools.partial(_end, kept))
            self._kept.pop(key, None)
            self._kept[key] = kept
            self._forget()
        # One reader that goes away must not take the answer from the others.
        value: _T = await asyncio.shield(kept.task)
        return value

    def _forget(self) -> None:
        while len(self._kept) > MAX_ANSWERS:
            oldest = next(iter(self._kept))
            self._kept.pop(oldest)
            self.asked.pop(oldest, None)

    def forget(self, *words: str) -> None:
        """Ask anew for what begins with these words: it was changed by this console."""
        for key in [key for key in self._kept if key[0] in words]:
            kept = self._kept[key]
            if kept.ended is not None:
                del self._kept[key]

    async def attempt(self, asked: Awaitable[_T], seconds: float = PAGE_SECONDS) -> Answer[_T]:
        """An answer, or why there is none in time: in ``seconds``, and in the time of the page."""
        ends = page_deadline.get()
        if ends is not None:
            seconds = max(0.0, min(seconds, ends - time.monotonic()))
        try:
            async with asyncio.timeout(seconds):
                return Answer(await asked)
        except PenstockError as error:
            return Answer(error=str(error))
        except TimeoutError:
            return Answer(error="no answer in time")

    async def attempt_all(
        self, names: Iterable[str], ask: Callable[[str], Awaitable[_T]]
    ) -> dict[str, Answer[_T]]:
        """Ask about several rows, a few at a time, all within the time of a page."""
        wanted = list(names)
        deadline = time.monotonic() + PAGE_SECONDS
        ends = page_deadline.get()
        deadline = deadline if ends is None else min(deadline, ends)

        async def one(name: str) -> Answer[_T]:
            async with self._places:
                left = deadline - time.monotonic()
                if left <= 0:
                    return Answer(error="no answer in time")
                return await self.attempt(ask(name), left)

        answers = await asyncio.gather(*map(one, wanted))
        return dict(zip(wanted, answers, strict=True))

    # --------------------------------------------------------------------------- the answers

    async def cluster(self) -> list[BrokerAddress]:
        return await self.get(("cluster",), CLUSTER_SECONDS, self.admin.cluster)

    async def broker_info(self, broker: str) -> dict[str, str]:
        return await self.get(
            ("broker", broker), ROW_SECONDS, lambda: self.admin.broker_info(broker)
        )

    async def broker_config(self, broker: str) -> dict[str, str]:
        return await self.get(
            ("settings", broker), CLUSTER_SECONDS, lambda: self.admin.broker_config(broker)
        )

    async def topics(self) -> Partial[TopicRow]:
        return await self.get(("topics",), TABLE_SECONDS, self.admin.topic_table)

    async def topic_stats(self, topic: str) -> list[QueueRange]:
        return await self.get(("stats", topic), ROW_SECONDS, lambda: self.admin.topic_stats(topic))

    async def topic_groups(self, topic: str) -> list[str]:
        return await self.get(
            ("readers", topic), TABLE_SECONDS, lambda: self.admin.topic_groups(topic)
        )

    async def groups(self) -> list[str]:
        return await self.get(("groups",), TABLE_SECONDS, self.admin.groups)

    async def has_group(self, name: str) -> bool:
        """Whether there is a group; a name that is not in the kept list is asked for again."""
        if name in await self.groups():
            return True
        self.forget("groups")
        return name in await self.groups()

    async def find_topic(self, name: str) -> TopicRow | None:
        """The row of a topic; a name that is not in the kept table is asked for again."""
        for is_last in (False, True):
            for row in (await self.topics()).rows:
                if row.name == name:
                    return row
            if not is_last:
                self.forget("topics")
        return None

    async def lags(self) -> Partial[GroupLag]:
        """The lag of all groups; the history of what is watched grows with each answer."""

        async def ask() -> Partial[GroupLag]:
            table = await self.admin.lag_table()
            for row in table.rows:
                self.history.add(f"lag:{row.group}", row.lag + row.retries)
            return table

        return await self.get(("lags",), ROW_SECONDS, ask)

    async def group_lag(self, group: str) -> Partial[GroupLag]:
        async def ask() -> Partial[GroupLag]:
            table = await self.admin.lag_table([group])
            self.history.watch(f"lag:{group}")
            self.history.add(f"lag:{group}", table.rows[0].lag + table.rows[0].retries)
            return table

        return await self.get(("lags", group), ROW_SECONDS, ask)

    async def clients(self, group: str) -> list[Client]:
        return await self.get(
            ("clients", group), ROW_SECONDS * 2, lambda: self.admin.clients(group)
        )

    async def producers(self) -> Partial[tuple[str, Client]]:
        """Every connected producer with its group."""
        return await self.get(("producers",), PRODUCER_SECONDS, self.admin.all_producers)

    async def users(self) -> list[UserRow]:
        return await self.get(("users",), CLUSTER_SECONDS, self.admin.users)

    async def rights(self) -> list[UserRight]:
        return await self.get(("rights",), CLUSTER_SECONDS, self.admin.rights)

    async def dead_letter_groups(self) -> list[str]:
        return await self.get(("dead",), TABLE_SECONDS, self.admin.dead_letter_groups)

    async def dead_letter_queues(self, group: str) -> list[DeadLetterQueue]:
        return await self.get(
            ("dead", group), ROW_SECONDS, lambda: self.admin.dead_letter_queues(group)
        )

    async def pending_letters(self, group: str) -> int:
        """How many dead letters of a group are neither redriven nor put aside."""
        return sum(queue.pending for queue in await self.dead_letter_queues(group))

    async def examine(self, group: str) -> doctor.GroupReport:
        """The doctor's report about a group."""
        return await self.get(
            ("doctor", group), DOCTOR_SECONDS, lambda: doctor.examine_group(self.admin, group)
        )

    async def rates(self) -> tuple[float, float]:
        """Messages in and out a second, over all brokers."""
        masters = [row.broker_name for row in await self.cluster() if row.broker_id == 0]
        infos = await self.attempt_all(masters, self.broker_info)
        known = [answer.value for answer in infos.values() if answer.value is not None]
        came = sum(first_number(info.get("putTps")) for info in known)
        went = sum(first_number(info.get("getTransferredTps")) for info in known)
        for name, value in (("in", came), ("out", went)):
            self.history.watch(name)
            self.history.add(name, value)
        return came, went


def _end(kept: _Kept, task: asyncio.Future[Any]) -> None:
    kept.ended = time.monotonic()
    with contextlib.suppress(asyncio.CancelledError):
        # Also marks the exception as seen, where all readers have gone.
        kept.failed = task.exception() is not None


def first_number(text: str | None) -> float:
    """The first of the rates over 10 s, 1 min and 10 min that a broker reports as one text."""
    try:
        return float((text or "0").split()[0])
    except (ValueError, IndexError):
        return 0.0
