"""What the source asks a cluster: queues of topics, where they begin and end, where groups stand.

Routes are kept for a while; a broker that cannot be reached has them asked for anew. Requests about
many queues go out together, one connection a broker.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from penstock.model import MessageQueue, TopicRoute
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
from penstock.spark.source.options import ReadOptions
from penstock.spark.wire import Wire

_T = TypeVar("_T")

ROUTE_SECONDS = 2.0
"""How old a route may be: a queue that was added is seen that much later."""


class Cluster:
    """A cluster as the driver's half of a source, and each task, sees it."""

    def __init__(
        self, access: ClusterAccess, group: str, route_seconds: float | None = None
    ) -> None:
        self.access = access
        self._route_seconds = ROUTE_SECONDS if route_seconds is None else route_seconds
        self.wire = Wire.shared(access)
        self.group = group
        self._routes: dict[str, tuple[float, TopicRoute]] = {}
        self._topics: tuple[float, list[str]] = (-math.inf, [])

    # --------------------------------------------------------------------------------- routes

    def route(self, topic: str, *, fresh: bool = False) -> TopicRoute:
        """The route of a topic, not too old, or asked for right now."""
        known = self._routes.get(topic)
        now = time.monotonic()
        if known is not None and not fresh and now - known[0] < self._route_seconds:
            return known[1]
        route = self.wire.route(topic)
        self._routes[topic] = (now, route)
        return route

    def forget_routes(self) -> None:
        """Ask for every route again before it is used."""
        self._routes.clear()

    def address(self, queue: MessageQueue) -> str:
        """Where the queue is served: the master, or a slave while there is none."""
        broker = self.route(queue.topic).broker(queue.broker_name)
        if broker is None or not broker.addresses:
            raise TopicNotFound(
                f"no broker {queue.broker_name!r} in the route of topic {queue.topic!r}",
                expected="every broker that a queue was planned for",
                hint="is the broker running, and registered with the name server?",
            )
        return broker.addresses[min(broker.addresses)]

    def is_at_master(self, queue: MessageQueue) -> bool:
        """Whether `address` is that of the broker which takes the queue's messages."""
        broker = self.route(queue.topic).broker(queue.broker_name)
        return broker is not None and MASTER_ID in broker.addresses

    def queues(
        self, options: ReadOptions, failures: list[PenstockError] | None = None
    ) -> list[MessageQueue]:
        """The queues that are to be read, as the cluster is now.

        With ``failures`` topics without a route are noted there, and the others looked at.
        """
        found: list[MessageQueue] = []
        for queue in options.assignment:
            with _noting(failures):
                if queue not in self.route(queue.topic).subscribe_queues(queue.topic):
                    raise InvalidArgument(
                        f"option assign names {queue}, which does not exist",
                        expected="queues of the topic's route",
                        hint=f"penstock topic show {queue.topic}",
                    )
                found.append(queue)
        topics = options.topics if options.pattern is None else self._matching(options.pattern)
        for topic in topics:
            with _noting(failures):
                found += self.route(topic).subscribe_queues(topic)
        return found

    def _matching(self, pattern: str) -> list[str]:
        """Topics whose whole name matches; those of retries only where the pattern says so."""
        wanted = re.compile(pattern)
        found = []
        now = time.monotonic()
        if now - self._topics[0] >= self._route_seconds:
            self._topics = (now, self.wire.topics())
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

        With ``failures`` what cannot be asked is noted there, and its queues left out.
        """
        return _offsets(self._ask(queues, requests.max_offset, failures), failures)

    def earliest(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The first message of each queue."""
        return _offsets(self._ask(queues, requests.min_offset))

    def committed(
        self, queues: Iterable[MessageQueue], *, guessed: bool = True
    ) -> dict[MessageQueue, int]:
        """Where the group stands; queues in which it never committed are left out.

        Unless ``guessed`` is false, brokers say 0 for a new group in a queue whose first message
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
            # After the last message Apache's brokers name that one, not the place behind it.
            if found[queue] == ends[queue] - 1:
                stored = self._store_time(queue, found[queue])
                if stored is not None and stored < timestamp_ms:
                    found[queue] = ends[queue]
        return found

    def is_all_new(self, queue: MessageQueue) -> bool:
        """Whether every message of the queue was stored since its broker started."""
        address, about = self.address(queue), str(queue)
        first = GetEarliestStoreTime(self.access.long_name(queue.topic), queue.queue_id)
        answer = self.wire.call(address, RequestCode.GET_EARLIEST_MSG_STORETIME, first, about=about)
        stored = decode_header(EarliestStoreTimeResult, answer.ext).timestamp
        answer = self.wire.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, about=about)
        started = decode_body(KvTable, body_bytes(answer)).table.get("bootTimestamp", "")
        return started.isascii() and started.isdecimal() and 0 < int(started) < stored

    def _store_time(self, queue: MessageQueue, offset: int) -> int | None:
        answer = self.wire.exchange(self.address(queue), self.pull(queue, offset, count=1))
        if answer.code != ResponseCode.SUCCESS:
            return None
        return messages_from_pull(body_bytes(answer), queue.broker_name)[0].store_timestamp

    def commit(
        self, offsets: Mapping[MessageQueue, int], failures: list[PenstockError] | None = None
    ) -> list[MessageQueue]:
        """Move the group to these places; the queues in which it was moved.

        With ``failures`` what cannot be reached or refuses is noted there, and the rest moved.
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
        """A pull that brings its subscription along, so the group need not be connected."""
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
        """The queue under the topic name brokers know."""
        return queue._replace(topic=self.access.long_name(queue.topic))

    def _ask(
        self,
        queues: Iterable[MessageQueue],
        request: Callable[[MessageQueue], Request[_T]],
        failures: list[PenstockError] | None = None,
    ) -> dict[MessageQueue, _T]:
        """One request a queue, all of a broker's together; ``request`` gets the long name."""
        by_address: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            with _noting(failures):
                by_address.setdefault(self.address(queue), []).append(queue)
        found: dict[MessageQueue, _T] = {}
        for address, asked in by_address.items():
            wanted = [request(self._long(queue)) for queue in asked]
            with _noting(failures):
                answers = self.wire.call_many(address, [one.command() for one in wanted])
                for queue, one, answer in zip(asked, wanted, answers, strict=True):
                    with _noting(failures):
                        found[queue] = one.result(answer, queue.broker_name)
        return found


@contextlib.contextmanager
def _noting(failures: list[PenstockError] | None) -> Iterator[None]:
    """Note what fails within, where there is a list for it.

    Without a name server everything else fails as well, so that is not noted once for each.
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
    """The offsets that there are."""
    offsets: dict[MessageQueue, int] = {}
    for queue, offset in found.items():
        with _noting(failures):
            if offset is None:
                continue
            if offset < 0:
                raise ProtocolError(
                    f"offset {offset} of {queue} in an answer", expected="0 or more"
                )
            offsets[queue] = offset
    return offsets
