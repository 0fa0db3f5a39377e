"""Records the state of every message and checks the promises. Plain code: no loop, no clock.

While the cluster runs:

- a handler gets nothing that was not sent (no phantoms);
- before an orderly group handles offset *n* of a queue, every offset below *n* is settled: a
  handler succeeded, or failed for the last time (a redelivery may go back, never skip forward);
- at most one handler over all members of an orderly group processes a queue. One exception: a
  restarted broker has lost its locks, and the old owner may trust its own for another
  `LOCK_TRUST` seconds, so queues of that broker are not checked for that long;
- a committed offset never passes a message whose handler has not returned.

At the end of a run:

- every acknowledged message was handled successfully by every group, or is one of its dead letters
  (see `GroupLedger.missing` for the losses that a power cut permits);
- the dead letters contain only messages that failed in that group;
- the committed offset of every group is the end of every queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.model import MessageQueue, StoredMessage

LOCK_TRUST = 35.0
"""A holder trusts a lock for 30 s after its last renewal; a call may have begun just before."""


class Broken(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class _QueueProgress:
    """The progress of one group in one queue."""

    done: set[int] = field(default_factory=set)
    """Settled offsets above ``front``."""
    front: int = 0
    """Everything below is settled."""

    def is_done(self, offset: int) -> bool:
        return offset < self.front or offset in self.done

    def settle(self, offset: int) -> None:
        if offset >= self.front:
            self.done.add(offset)
            while self.front in self.done:
                self.done.remove(self.front)
                self.front += 1


class GroupLedger:
    """The activity of one consumer group."""

    def __init__(self, name: str, *, orderly: bool, max_retries: int) -> None:
        self.name = name
        self._orderly = orderly
        self._max_retries = max_retries
        self.succeeded: dict[bytes, int] = defaultdict(int)
        self.failed: dict[bytes, int] = defaultdict(int)
        self._progress: dict[MessageQueue, _QueueProgress] = defaultdict(_QueueProgress)
        self._running: dict[MessageQueue, dict[int, str]] = defaultdict(dict)
        """Maps the number of each running call to its member."""
        self._calls = 0

    def begin(self, member: str, messages: list[StoredMessage], *, locks_are_safe: bool) -> int:
        """Record the call of a handler; return the number of the call."""
        queue = messages[0].queue
        progress, running = self._progress[queue], self._running[queue]
        self._calls += 1
        if self._orderly:
            if running and locks_are_safe:
                raise Broken(
                    f"{self.name}: {member} handles {queue} while {sorted(running.values())} does"
                )
            offsets = [message.queue_offset for message in messages]
            # After its last failure a message is gone; the rest of its batch is redelivered.
            gaps = set(range(offsets[0], offsets[-1])) - set(offsets)
            if offsets != sorted(set(offsets)) or not all(map(progress.is_done, gaps)):
                raise Broken(f"{self.name}: {member} got {queue} with gaps: {offsets}")
            if offsets[0] > progress.front:
                raise Broken(
                    f"{self.name}: {member} handles {queue} at {offsets[0]}, "
                    f"and {progress.front} was not settled"
                )
        running[self._calls] = member
        return self._calls

    def end(self, call: int, queue: MessageQueue) -> None:
        """Record that a handler returned, or that its member died."""
        self._running[queue].pop(call, None)

    def succeed(self, messages: Iterable[StoredMessage]) -> None:
        for message in messages:
            self.succeeded[message.body] += 1
            self._progress[message.queue].settle(message.queue_offset)

    def fail(self, messages: Iterable[StoredMessage], *, is_given_up: bool) -> None:
        """Record a failure. A concurrent message is retried elsewhere; an orderly one blocks."""
        for message in messages:
            self.failed[message.body] += 1
            if not self._orderly or is_given_up or message.reconsume_times >= self._max_retries:
                self._progress[message.queue].settle(message.queue_offset)

    def check_commit(self, queue: MessageQueue, committed: int) -> None:
        """Check the offset that a broker reports for the group."""
        front = self._progress[queue].front
        if committed > front:
            raise Broken(
                f"{self.name}: {queue} was committed at {committed}, and {front} is unfinished"
            )

    def missing(
        self, acknowledged: Iterable[bytes], dead: dict[bytes, int], *, power_was_cut: bool = False
    ) -> list[bytes]:
        """Acknowledged messages that were neither handled nor given up.

        A broker does not flush before it answers a send-back, nor before it counts a delayed
        message as delivered (as in RocketMQ), so a power cut may lose messages that failed before.
        """
        return sorted(
            body
            for body in acknowledged
            if not self.succeeded.get(body)
            and body not in dead
            and not (power_was_cut and self.failed.get(body))
        )

    def check_dead_letters(self, dead: dict[bytes, int]) -> None:
        for body in dead:
            if not self.failed.get(body):
                raise Broken(f"{self.name}: {body!r} is a dead letter that never failed")


class Ledger:
    """All groups, and the messages that were sent."""

    def __init__(self) -> None:
        self.sent: dict[str, set[bytes]] = defaultdict(set)
        """By topic, including messages that were never acknowledged."""
        self.acknowledged: dict[str, set[bytes]] = defaultdict(set)
        self.groups: dict[str, GroupLedger] = {}

    def add_group(self, name: str, *, orderly: bool, max_retries: int) -> GroupLedger:
        group = self.groups[name] = GroupLedger(name, orderly=orderly, max_retries=max_retries)
        return group

    def check_known(self, message: StoredMessage) -> None:
        """Fail on a phantom: a message that was not sent, or was sent to another topic."""
        if message.body not in self.sent[message.topic]:
            raise Broken(f"{message.body!r} was never sent to {message.topic}: {message}")
