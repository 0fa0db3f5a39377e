"""What the source asks a cluster: the queues of topics, their first and last offsets, and the
offsets of groups.

Routes are cached for a while, and dropped when a broker cannot be reached. Requests about many
queues are sent together, on one connection a broker.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from penstock.client import requests
from penstock.client.cluster_access import ClusterAccess
from penstock.client.requests import Request, body_bytes
from penstock.errors import (
    InvalidArgument,
    NameserverUnavailable,
    PenstockError,
    ProtocolError,
    TopicNotFound,
)
from penstock.model import MessageQueue
from penstock.model.names import DLQ_PREFIX, RETRY_PREFIX
from penstock.model.route import MASTER_ID
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.common import KvTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import decode_header, encode_header
from penstock.protocol.headers.offsets import (
    EarliestStoreTimeResult,
    GetEarliestStoreTime,
)
from penstock.protocol.headers.pull import PullFlag, PullMessage
from penstock.protocol.records.pulled import messages_from_pull
from penstock.spark.connection_pool import ConnectionPool, RouteCache
from penstock.spark.source.options import ReadOptions

_T = TypeVar("_T")

ROUTE_SECONDS = 2.0
"""The maximum age of a route: a queue that was added is seen that much later."""


class Cluster:
    """The questions of the driver, and of each task, to a cluster."""

    def __init__(
        self, access: ClusterAccess, group: str, route_seconds: float | None = None
    ) -> None:
        self.access = access
        self._route_seconds = ROUTE_SECONDS if route_seconds is None else route_seconds
        self.pool = ConnectionPool.shared(access)
        self.group = group
        self._routes = RouteCache(self.pool, self._route_seconds)
        self._topics: tuple[float, list[str]] = (-math.inf, [])

    # --------------------------------------------------------------------------------- routes

    def forget_routes(self) -> None:
        """Ask for every route again before it is used."""
        self._routes.forget()

    def address(self, queue: MessageQueue) -> str:
        """Where the queue is served: the master, or a slave while there is none."""
        broker = self._routes.route(queue.topic).broker(queue.broker_name)
        if broker is None or not broker.addresses:
            raise TopicNotFound(
                f"no broker {queue.broker_name!r} in the route of topic {queue.topic!r}",
                expected="every broker that a queue was planned for",
                hint="is the broker running, and registered with the name server?",
            )
        return broker.addresses[min(broker.addresses)]

    def addresses(self, queues: Iterable[MessageQueue]) -> set[str]:
        """Where these queues are served, as far as that is known."""
        found: set[str] = set()
        for queue in queues:
            with contextlib.suppress(PenstockError):
                found.add(self.address(queue))
        return found

    def is_at_master(self, queue: MessageQueue) -> bool:
        """Whether `address` is the master's."""
        broker = self._routes.route(queue.topic).broker(queue.broker_name)
        return broker is not None and MASTER_ID in broker.addresses

    def queues(
        self, options: ReadOptions, failures: list[PenstockError] | None = None
    ) -> list[MessageQueue]:
        """The queues to read, as the cluster is now.

        With ``failures``, topics without a route are added to it instead of raising.
        """
        found: list[MessageQueue] = []
        for queue in options.assignment:
            with _collecting(failures):
                if queue not in self._routes.route(queue.topic).subscribe_queues(queue.topic):
                    raise InvalidArgument(
                        f"option assign names {queue}, which does not exist",
                        expected="queues of the topic's route",
                        hint=f"penstock topic show {queue.topic}",
                    )
                found.append(queue)
        topics = options.topics if options.pattern is None else self._matching(options.pattern)
        for topic in topics:
            with _collecting(failures):
                found += self._routes.route(topic).subscribe_queues(topic)
        return found

    def _matching(self, pattern: str) -> list[str]:
        """Topics whose whole name matches; retry and dead-letter topics if the pattern has a %."""
        wanted = re.compile(pattern)
        found = []
        now = time.monotonic()
        if now - self._topics[0] >= self._route_seconds:
            self._topics = (now, self.pool.topics())
        for name in self._topics[1]:
            topic = self.access.short_name(name)
            if self.access.long_name(topic) != name:
                continue  # another namespace's
            if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) and "%" not in pattern:
                continue
            if wanted.fullmatch(topic):
                found.append(topic)
        return found

    # -------------------------------------------------------------------------------- offsets

    def latest(
        self, queues: Iterable[MessageQueue], failures: list[PenstockError] | None = None
    ) -> dict[MessageQueue, int]:
        """One past the last message of each queue.

        With ``failures``, errors are added to it, and their queues left out.
        """
        return _offsets(self._ask(queues, requests.max_offset, failures), failures)

    def epochs(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """When the topic of each queue was last deleted, as a log position; 0: never.

        Only a master knows it: queues of which a slave answers are left out.
        """
        asked = [queue for queue in queues if self.is_at_master(queue)]
        return self._ask(
            asked, lambda queue: replace(requests.max_offset(queue), read=requests.epoch_of)
        )

    def earliest(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The first message of each queue."""
        return _offsets(self._ask(queues, requests.min_offset))

    def committed(
        self, queues: Iterable[MessageQueue], *, guessed: bool = True
    ) -> dict[MessageQueue, int]:
        """The group's offsets; queues in which it never committed are left out.

        Unless ``guessed`` is false, brokers answer 0 for a new group in a queue whose first message
        is still in memory.
        """
        or_zero = None if guessed else False
        return _offsets(
            self._ask(queues, lambda q: requests.committed(self.group, q, or_zero=or_zero))
        )

    def at_time(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        """The first message of each queue that was stored at that time or later."""
        queues = list(queues)
        found = _offsets(self._ask(queues, lambda q: requests.offset_at(q, timestamp_ms)))
        ends = self.latest(queues)
        for queue in queues:
            # For a time after the last message Apache's brokers answer that message, not the end.
            if found[queue] == ends[queue] - 1:
                stored = self._store_time(queue, found[queue])
                if stored is not None and stored < timestamp_ms:
                    found[queue] = ends[queue]
        return found

    def is_all_new(self, queue: MessageQueue) -> bool:
        """Whether every message of the queue was stored since its broker started."""
        address = self.address(queue)
        stored = self.pool.ask(address, _earliest_store_time(self._long(queue)))
        started = self.pool.ask(address, _started(queue))
        return started.isascii() and started.isdecimal() and 0 < int(started) < stored

    def _store_time(self, queue: MessageQueue, offset: int) -> int | None:
        answer = self.pool.exchange(self.address(queue), self.pull(queue, offset, count=1))
        if answer.code != ResponseCode.SUCCESS:
            return None
        return messages_from_pull(body_bytes(answer), queue.broker_name)[0].store_timestamp

    def commit(
        self, offsets: Mapping[MessageQueue, int], failures: list[PenstockError] | None = None
    ) -> list[MessageQueue]:
        """Commit offsets of the group; return the queues in which that succeeded.

        With ``failures``, errors are added to it, and the rest is committed.
        """
        # One commit to each offset table first, then the others; see `requests.offset_table`.
        first: dict[tuple[str, str], MessageQueue] = {}
        for queue in offsets:
            first.setdefault(requests.offset_table(queue), queue)
        moved = self._commit(first.values(), offsets, failures)
        others = set(offsets).difference(first.values())
        reached = [q for q in offsets if q in others and first[requests.offset_table(q)] in moved]
        return [*moved, *self._commit(reached, offsets, failures)]

    def _commit(
        self,
        queues: Iterable[MessageQueue],
        offsets: Mapping[MessageQueue, int],
        failures: list[PenstockError] | None,
    ) -> dict[MessageQueue, None]:
        wanted = {self._long(queue): offset for queue, offset in offsets.items()}
        return self._ask(queues, lambda q: requests.commit(self.group, q, wanted[q]), failures)

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count: int,
        tags: str = "*",
        max_bytes: int | None = None,
        hold_ms: int = 0,
        extra: Mapping[str, str] | None = None,
    ) -> Command:
        """A pull with its own subscription, so the group need not be connected."""
        header = PullMessage(
            self.group,
            self.access.long_name(queue.topic),
            queue.queue_id,
            offset,
            count,
            PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if hold_ms else 0),
            0,
            hold_ms,
            0,
            tags,
            "TAG",
            max_bytes,
        )
        return Command(RequestCode.PULL_MESSAGE, ext={**encode_header(header), **(extra or {})})

    def _long(self, queue: MessageQueue) -> MessageQueue:
        """The queue by the topic name that brokers use."""
        return queue._replace(topic=self.access.long_name(queue.topic))

    def _ask(
        self,
        queues: Iterable[MessageQueue],
        request: Callable[[MessageQueue], Request[_T]],
        failures: list[PenstockError] | None = None,
    ) -> dict[MessageQueue, _T]:
        """One request a queue, all of a broker together; ``request`` gets the brokers' name."""
        by_address: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            with _collecting(failures):
                by_address.setdefault(self.address(queue), []).append(queue)
        found: dict[MessageQueue, _T] = {}
        for address, asked in by_address.items():
            wanted = [request(self._long(queue)) for queue in asked]
            with _collecting(failures):
                answers = self.pool.call_many(address, [one.command() for one in wanted])
                for queue, one, answer in zip(asked, wanted, answers, strict=True):
                    with _collecting(failures):
                        found[queue] = one.result(answer, queue.broker_name)
        return found


def _earliest_store_time(queue: MessageQueue) -> Request[int]:
    return Request(
        code=RequestCode.GET_EARLIEST_MSG_STORETIME,
        about=str(queue),
        header=GetEarliestStoreTime(queue.topic, queue.queue_id),
        read=lambda answer: decode_header(EarliestStoreTimeResult, answer.ext).timestamp,
    )


def _started(queue: MessageQueue) -> Request[str]:
    """When the broker of a queue started, in ms, as text."""
    return Request(
        code=RequestCode.GET_BROKER_RUNTIME_INFO,
        about=str(queue),
        read=lambda answer: decode_body(KvTable, body_bytes(answer)).table.get("bootTimestamp", ""),
    )


@contextlib.contextmanager
def _collecting(failures: list[PenstockError] | None) -> Iterator[None]:
    """Add an error of the block to the list, if there is one.

    Without a name server everything else fails as well, so that error is always raised.
    """
    try:
        yield
    except NameserverUnavailable:
        raise
    except PenstockError as error:
        if failures is None:
            raise
        failures.append(error)


def _offsets(
    found: Mapping[MessageQueue, int | None], failures: list[PenstockError] | None = None
) -> dict[MessageQueue, int]:
    """The offsets of queues that have one."""
    offsets: dict[MessageQueue, int] = {}
    for queue, offset in found.items():
        with _collecting(failures):
            if offset is None:
                continue
            if offset < 0:
                raise ProtocolError(
                    f"offset {offset} of {queue} in an answer", expected="0 or more"
                )
            offsets[queue] = offset
    return offsets
