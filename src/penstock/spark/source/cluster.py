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
from typing import TYPE_CHECKING

from penstock.client.cluster_access import ClusterAccess
from penstock.client.session.calls import refusal
from penstock.errors import (
    InvalidArgument,
    NameserverUnavailable,
    NotFound,
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
    GetMaxOffset,
    GetMinOffset,
    OffsetResult,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from penstock.protocol.headers.pull import PullFlag, PullMessage
from penstock.protocol.records.pulled import messages_from_pull
from penstock.spark.source.options import ReadOptions
from penstock.spark.wire import Wire, body_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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

    def last_route(self, topic: str) -> TopicRoute | None:
        """The route as it was last seen, however old."""
        known = self._routes.get(topic)
        return None if known is None else known[1]

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
        code = RequestCode.GET_MAX_OFFSET
        found: dict[MessageQueue, int] = {}
        for queue, answer in self._ask(
            queues, code, lambda q, topic: GetMaxOffset(topic, q.queue_id), failures
        ):
            with _noting(failures):
                found[queue] = _offset(answer, code, queue)
        return found

    def earliest(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The first message of each queue."""
        code = RequestCode.GET_MIN_OFFSET
        return self._offsets(queues, code, lambda q, topic: GetMinOffset(topic, q.queue_id))

    def committed(
        self, queues: Iterable[MessageQueue], *, guessed: bool = True
    ) -> dict[MessageQueue, int]:
        """Where the group stands; queues in which it never committed are left out.

        Unless ``guessed`` is false, brokers say 0 for a new group in a queue whose first message
        is still in memory.
        """
        found: dict[MessageQueue, int] = {}
        for queue, answer in self._ask(
            queues,
            RequestCode.QUERY_CONSUMER_OFFSET,
            lambda q, topic: QueryConsumerOffset(
                self.group, topic, q.queue_id, None if guessed else False
            ),
        ):
            if answer.code != NotFound.code:
                found[queue] = _offset(answer, RequestCode.QUERY_CONSUMER_OFFSET, queue)
        return found

    def at_time(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        """The first message of each queue that was stored at that time or later."""
        queues = list(queues)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        found = self._offsets(
            queues, code, lambda q, topic: SearchOffset(topic, q.queue_id, timestamp_ms)
        )
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
        ahead, others = _in_commit_order(offsets)
        moved = self._commit(ahead, offsets, failures)
        reached = {(queue.broker_name, queue.topic) for queue in moved}
        others = [queue for queue in others if (queue.broker_name, queue.topic) in reached]
        return moved + self._commit(others, offsets, failures)

    def _commit(
        self,
        queues: list[MessageQueue],
        offsets: Mapping[MessageQueue, int],
        failures: list[PenstockError] | None,
    ) -> list[MessageQueue]:
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        moved = []
        for queue, answer in self._ask(
            queues,
            code,
            lambda q, topic: UpdateConsumerOffset(self.group, topic, q.queue_id, offsets[q]),
            failures,
        ):
            with _noting(failures):
                if answer.code != ResponseCode.SUCCESS:
                    about = f"group {self.group!r} in {queue}"
                    raise refusal(answer, code, queue.broker_name, about)
                moved.append(queue)
        return moved

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

    def _offsets(
        self,
        queues: Iterable[MessageQueue],
        code: int,
        header: Callable[[MessageQueue, str], DataclassInstance],
    ) -> dict[MessageQueue, int]:
        return {
            queue: _offset(answer, code, queue) for queue, answer in self._ask(queues, code, header)
        }

    def _ask(
        self,
        queues: Iterable[MessageQueue],
        code: int,
        header: Callable[[MessageQueue, str], DataclassInstance],
        failures: list[PenstockError] | None = None,
    ) -> list[tuple[MessageQueue, Command]]:
        """One request a queue, all of a broker's together; the header gets the brokers' name."""
        by_address: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            with _noting(failures):
                by_address.setdefault(self.address(queue), []).append(queue)
        answers: list[tuple[MessageQueue, Command]] = []
        for address, asked in by_address.items():
            commands = [
                Command(code, ext=encode_header(header(q, self.access.long_name(q.topic))))
                for q in asked
            ]
            with _noting(failures):
                answers += zip(asked, self.wire.call_many(address, commands), strict=True)
        return answers


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


def _in_commit_order(
    queues: Iterable[MessageQueue],
) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """One queue of each topic and broker, then the others.

    Apache's brokers make the table of a group and a topic with its first commit, and without a
    lock: of several at once all but one may get lost.
    """
    ahead: dict[tuple[str, str], MessageQueue] = {}
    others: list[MessageQueue] = []
    for queue in queues:
        if ahead.setdefault((queue.broker_name, queue.topic), queue) is not queue:
            others.append(queue)
    return list(ahead.values()), others


def _offset(answer: Command, code: int, queue: MessageQueue) -> int:
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer, code, queue.broker_name, str(queue))
    offset = decode_header(OffsetResult, answer.ext).offset
    if offset < 0:
        raise ProtocolError(f"offset {offset} of {queue} in an answer", expected="0 or more")
    return offset
