"""What ``penstock bench`` measures, each test as one function of a cluster and a load."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from penstock import Message, Producer, PushConsumer, Receipt, StoredMessage
from penstock.client.cluster_access import ClusterAccess
from penstock.errors import RequestTimeout
from penstock.runtime.pacing import Pacer

PRODUCERS = "penstock_bench"
LINGER_SECONDS = 0.005
ONE_BY_ONE_AT_MOST = 2_000
END_TO_END_SECONDS = 3.0
STALL_SECONDS = 30.0
STAMPED = "stamped"
PROBE = "probe"

_STAMP = Struct(">d")


@dataclass(frozen=True, slots=True)
class Load:
    """How much of what."""

    topic: str
    messages: int
    size: int
    in_flight: int
    rate: float

    @property
    def group(self) -> str:
        """The consumer group of the tests; it goes with the topic."""
        return self.topic

    @property
    def body(self) -> bytes:
        return b"x" * self.size

    @property
    def one_by_one(self) -> int:
        return min(self.messages, ONE_BY_ONE_AT_MOST)

    @property
    def end_to_end(self) -> int:
        return max(1, min(self.messages, math.ceil(self.rate * END_TO_END_SECONDS)))


@dataclass(frozen=True, slots=True)
class Measured:
    """The outcome of one test; latencies in seconds, if it has any."""

    test: str
    messages: int
    seconds: float
    latencies: Sequence[float] = ()

    def row(self, size: int) -> dict[str, object]:
        """As it stands in the table."""
        rate = self.messages / self.seconds if self.seconds > 0 else math.inf
        ordered = sorted(self.latencies)
        return {
            "test": self.test,
            "messages": self.messages,
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(rate, 1),
            "megabytes_per_second": round(rate * size / 1e6, 3),
            "p50_ms": percentile_ms(ordered, 0.50),
            "p90_ms": percentile_ms(ordered, 0.90),
            "p99_ms": percentile_ms(ordered, 0.99),
            "max_ms": percentile_ms(ordered, 1.0),
        }


def percentile_ms(ordered: Sequence[float], share: float) -> float | None:
    """The least latency that ``share`` of all do not exceed, in ms; None without any."""
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1000, 3)


Advance = Callable[[int], None]
Run = Callable[[ClusterAccess, Load, Advance], Measured]


class Test(NamedTuple):
    """One line of the table."""

    name: str
    total: Callable[[Load], int]
    run: Run


def send_one_by_one(access: ClusterAccess, load: Load, advance: Advance) -> Measured:
    """Each send waits for its answer: the latency a request handler sees."""
    message = Message(load.topic, load.body)
    latencies = []
    with Producer(PRODUCERS, **access.as_keywords()) as producer:
        producer.send(message)  # Finds the brokers and connects.
        started = time.perf_counter()
        for _ in range(load.one_by_one):
            before = time.perf_counter()
            producer.send(message)
            latencies.append(time.perf_counter() - before)
            advance(1)
        seconds = time.perf_counter() - started
    return Measured("send, one at a time", load.one_by_one, seconds, latencies)


def send_in_flight(access: ClusterAccess, load: Load, advance: Advance) -> Measured:
    """Many sends under way at once."""
    return _submit("send, many in flight", access, load, advance, linger=0.0)


def send_lingering(access: ClusterAccess, load: Load, advance: Advance) -> Measured:
    """Sends that share requests: each waits a moment for company."""
    return _submit("send, lingering 5 ms", access, load, advance, linger=LINGER_SECONDS)


def _submit(
    test: str, access: ClusterAccess, load: Load, advance: Advance, *, linger: float
) -> Measured:
    message = Message(load.topic, load.body)
    latencies: list[float] = []
    with Producer(
        PRODUCERS, linger=linger, max_in_flight=load.in_flight, **access.as_keywords()
    ) as producer:
        producer.send(message)
        clock = time.perf_counter
        futures: list[Future[Receipt]] = []
        started = clock()
        for _ in range(load.messages):
            before = clock()
            future = producer.submit(message)
            future.add_done_callback(functools.partial(_note, latencies, before))
            futures.append(future)
            advance(1)
        for future in futures:
            future.result()
        seconds = clock() - started
    return Measured(test, load.messages, seconds, latencies)


def _note(latencies: list[float], before: float, _: Future[Receipt]) -> None:
    latencies.append(time.perf_counter() - before)


class _Handled:
    """Counts what a consumer gets, and knows when that is enough."""

    def __init__(self, wanted: int, advance: Advance) -> None:
        self._wanted = wanted
        self._advance = advance
        self._lock = threading.Lock()
        self.latencies: list[float] = []
        self.count = 0
        self.first = self.last = 0.0
        self.enough = threading.Event()

    def handle(self, message: StoredMessage) -> None:
        """A handler that does nothing."""
        now = time.perf_counter()
        with self._lock:
            if self.count == 0:
                self.first = now
            self.count += 1
            self.last = now
            self._advance(1)
            if self.count == self._wanted:
                self.enough.set()

    def handle_stamped(self, message: StoredMessage) -> None:
        """The same for bodies that say when they were sent."""
        latency = time.perf_counter() - _STAMP.unpack_from(message.body)[0]
        with self._lock:
            self.latencies.append(latency)
        self.handle(message)

    def wait(self, what: str) -> None:
        """Return when all have come; raise when nothing comes any more."""
        seen = -1
        while not self.enough.wait(STALL_SECONDS):
            if self.count == seen:
                raise RequestTimeout(
                    f"{what}: {self.count} of {self._wanted} messages came, and then none for "
                    f"{STALL_SECONDS:g} s"
                )
            seen = self.count


def consume_backlog(access: ClusterAccess, load: Load, advance: Advance) -> Measured:
    """A push consumer works off what the tests before have left."""
    handled = _Handled(_backlog(load), advance)
    consumer = PushConsumer(load.group, start_from="first", **access.as_keywords())
    consumer.on(load.topic)(handled.handle)
    with consumer:
        handled.wait("consume")
    # From the first message on: joining a group is not part of it.
    return Measured("consume a backlog", handled.count, handled.last - handled.first)


def _backlog(load: Load) -> int:
    # Each sending test sends one more to begin with.
    return load.one_by_one + 1 + 2 * (load.messages + 1)


def send_to_handler(access: ClusterAccess, load: Load, advance: Advance) -> Measured:
    """From the call of send to the handler, at a steady rate."""
    handled = _Handled(load.end_to_end, advance)
    padding = b"x" * (load.size - _STAMP.size)
    with Producer(PRODUCERS, **access.as_keywords()) as producer:
        queues = producer.queues(load.topic)
        probed = _Handled(len(queues), lambda count: None)

        def handle(message: StoredMessage) -> None:
            if message.tag == PROBE:
                probed.handle(message)
            else:
                handled.handle_stamped(message)

        consumer = PushConsumer(load.group, start_from="first", **access.as_keywords())
        # What the tests before have left may come again, and carries no time.
        consumer.on(load.topic, tags=f"{STAMPED} || {PROBE}")(handle)
        with consumer:
            # RocketMQ's clients pull a queue half a second after they got it, and so do ours. What
            # is sent before waits for that, which says nothing about messages that flow.
            for queue in queues:
                producer.send(Message(load.topic, load.body, tag=PROBE), queue=queue)
            probed.wait("the first of each queue")
            pacer = Pacer(load.rate)
            started = time.perf_counter()
            for _ in range(load.end_to_end):
                pacer.wait()
                body = _STAMP.pack(time.perf_counter()) + padding
                producer.submit(Message(load.topic, body, tag=STAMPED))
            handled.wait("end to end")
            seconds = time.perf_counter() - started
    name = f"send to handler, {load.rate:g}/s"
    return Measured(name, handled.count, seconds, handled.latencies)


TESTS = (
    Test("send, one at a time", lambda load: load.one_by_one, send_one_by_one),
    Test("send, many in flight", lambda load: load.messages, send_in_flight),
    Test("send, lingering", lambda load: load.messages, send_lingering),
    Test("consume a backlog", _backlog, consume_backlog),
    Test("send to handler", lambda load: load.end_to_end, send_to_handler),
)
