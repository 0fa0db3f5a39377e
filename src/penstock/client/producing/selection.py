"""Which queue a message goes to.

By default queues take turns, and a retry avoids the brokers that just failed. With fault latency
on, brokers that answered slowly or not at all are avoided for a while. A sharding key, a selector
function or an explicit queue overrides all of that.

Pure: random numbers and time are parameters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import InvalidArgument
from penstock.model import Message, MessageQueue
from penstock.model.java_hash import java_hash

QueueSelector: TypeAlias = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""A function of the user that chooses among the queues of a topic for a message."""

COUNTER_LIMIT = 2**31


class RoundRobin:
    """The turns of one topic; ``start`` is random, so that producers spread their load."""

    __slots__ = ("_turn",)

    def __init__(self, start: int) -> None:
        self._turn = start % COUNTER_LIMIT

    def next(self, queues: Sequence[MessageQueue], avoid: Collection[str] = ()) -> MessageQueue:
        """The next queue, if possible not on one of the brokers ``avoid``."""
        if avoid:
            for _ in queues:
                queue = self._step(queues)
                if queue.broker_name not in avoid:
                    return queue
        return self._step(queues)

    def next_where(
        self, queues: Sequence[MessageQueue], is_good: Callable[[MessageQueue], bool]
    ) -> MessageQueue | None:
        """The next queue for which ``is_good`` is true, if any."""
        for _ in queues:
            queue = self._step(queues)
            if is_good(queue):
                return queue
        return None

    def _step(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        self._turn = (self._turn + 1) % COUNTER_LIMIT
        return queues[self._turn % len(queues)]


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """How long a broker is avoided after a send of a given latency; both in seconds.

    A failed send counts as one of ``failure_latency``.
    """

    latencies: tuple[float, ...]
    pauses: tuple[float, ...]
    failure_latency: float

    def pause(self, latency: float) -> float:
        """The pause of the largest step that ``latency`` reaches, zero below the first."""
        step = bisect_right(self.latencies, latency)
        return self.pauses[step - 1] if step else 0.0


CURRENT_LATENCIES = LatencyTable(
    latencies=(0.05, 0.1, 0.55, 1.8, 3.0, 5.0, 15.0),
    pauses=(0.0, 0.0, 2.0, 5.0, 6.0, 10.0, 30.0),
    failure_latency=10.0,
)


@dataclass(slots=True)
class _Fault:
    available_at: float
    is_reachable: bool


class FaultLatency:
    """Brokers that were slow or unreachable, and until when to avoid them."""

    __slots__ = ("_faults", "_table")

    def __init__(self, table: LatencyTable = CURRENT_LATENCIES) -> None:
        self._table = table
        self._faults: dict[str, _Fault] = {}

    def sent(self, broker_name: str, latency: float, now: float) -> None:
        """Note an answered send."""
        pause = self._table.pause(latency)
        if pause == 0.0 and broker_name not in self._faults:
            return  # the usual case
        self._faults[broker_name] = _Fault(now + pause, is_reachable=True)

    def failed(self, broker_name: str, now: float, *, is_reachable: bool) -> None:
        """Note a failed send; ``is_reachable``: the broker refused it, so it is alive."""
        pause = self._table.pause(self._table.failure_latency)
        self._faults[broker_name] = _Fault(now + pause, is_reachable)

    def probed(self, broker_name: str, *, is_reachable: bool) -> None:
        """Note whether a suspected broker accepted a connection."""
        if fault := self._faults.get(broker_name):
            fault.is_reachable = is_reachable

    def suspects(self) -> list[str]:
        """Brokers that were unreachable and have not answered since."""
        # A copy in one step: blocking sends on other threads change the table at any time.
        return [name for name, fault in list(self._faults.items()) if not fault.is_reachable]

    def forget(self, known: set[str]) -> None:
        """Forget brokers that no route names any more."""
        for name in set(self._faults) - known:
            self._faults.pop(name, None)

    def is_available(self, broker_name: str, now: float) -> bool:
        fault = self._faults.get(broker_name)
        return fault is None or now >= fault.available_at

    def is_reachable(self, broker_name: str) -> bool:
        fault = self._faults.get(broker_name)
        return fault is None or fault.is_reachable


def select(
    turns: RoundRobin,
    queues: Sequence[MessageQueue],
    *,
    avoid: Collection[str] = (),
    faults: FaultLatency | None = None,
    now: float = 0.0,
) -> MessageQueue:
    """The next queue in turn: available ones first, then reachable ones, then any.

    Without ``faults`` only ``avoid``, the brokers of the attempts before, are skipped.
    """
    if faults is None:
        return turns.next(queues, avoid)

    def is_available(queue: MessageQueue) -> bool:
        return queue.broker_name not in avoid and faults.is_available(queue.broker_name, now)

    def is_reachable(queue: MessageQueue) -> bool:
        return queue.broker_name not in avoid and faults.is_reachable(queue.broker_name)

    return (
        turns.next_where(queues, is_available)
        or turns.next_where(queues, is_reachable)
        or turns.next(queues)
    )


def by_hash(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """The queue of all messages with ``key``, the same that a Java producer selects."""
    return queues[abs(java_hash(key)) % len(queues)]


def chosen(
    queue: MessageQueue | QueueSelector | None, queues: Sequence[MessageQueue], message: Message
) -> MessageQueue | None:
    """The queue that the caller or the sharding key demands; None for any."""
    if queue is None:
        return None if message.sharding_key is None else by_hash(queues, message.sharding_key)
    if isinstance(queue, MessageQueue):
        if queue.topic != message.topic:
            raise InvalidArgument(
                f"queue {queue} for a message of topic {message.topic!r}",
                expected="a queue of the message's topic",
            )
        return queue
    answer = queue(queues, message)
    if not isinstance(answer, MessageQueue):
        raise InvalidArgument(
            f"the queue selector returned {answer!r}",
            expected="one of the queues it was given",
        )
    return answer
