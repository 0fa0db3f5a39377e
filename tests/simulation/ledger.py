"""What is known of every message, and the promises checked with it. Plain code: no loop, no clock.

While the cluster runs:

- a handler gets nothing that was not sent (no phantoms);
- before an orderly group handles offset *n* of a queue, every offset below *n* was dealt with: a
  handler succeeded, or failed for the last time (a redelivery may go back, never skip forward);
- an orderly queue is in one handler at a time over all members of the group. One excuse: a broker
  that was started again has forgotten its locks, and the old owner may trust its own for
  `LOCK_TRUST` seconds more, so queues of that broker are not looked at for so long;
- a committed offset never passes a message that no handler has come back from.

And when all is over:

- every acknowledged message was handled with success by every group, or is among its dead letters
  (see `GroupLedger.missing` for what a power cut excuses);
- the dead letters hold only messages that failed there;
- every group stands at the end of every queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.model import MessageQueue, StoredMessage

LOCK_TRUST = 35.0
"""A holder trusts a lock for 30 s after its last renewal, and a call may have begun just before."""


class Broken(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class _Line:
    """How far one queue was dealt with by one group."""

    done: set[int] = field(default_factory=set)
    """Offsets dealt with, above ``front``."""
    front: int = 0
    """Everything below was dealt with."""

    def is_done(self, offset: int) -> bool:
        return offset < self.front or offset in self.done

    def deal_with(self, offset: int) -> None:
        if offset >= self.front:
            self.done.add(offset)
            while self.front in self.done:
                self.done.remove(self.front)
                self.front += 1


class GroupLedger:
    """What one consumer group did."""

    def __init__(self, name: str, *, orderly: bool, max_retries: int) -> None:
        self.name = name
        self._orderly = orderly
        self._max_retries = max_retries
        self.succeeded: dict[bytes, int] = defaultdict(int)
        self.failed: dict[bytes, int] = defaultdict(int)
        self._lines: dict[MessageQueue, _Line] = defaultdict(_Line)
        self._running: dict[MessageQueue, dict[int, str]] = defaultdict(dict)
        """Calls under way: a number of the call to the member that makes it."""
        self._calls = 0

    def begin(self, member: str, messages: list[StoredMessage], *, locks_are_safe: bool) -> int:
        """A handler is called; returns the number of the call."""
        queue = messages[0].queue
        line, running = self._lines[queue], self._running[queue]
        self._calls += 1
        if self._orderly:
            if running and locks_are_safe:
                raise Broken(
                    f"{self.name}: {member} handles {queue} while {sorted(running.values())} does"
                )
            offsets = [message.queue_offset for message in messages]
            # One that failed for the last time has left; its neighbours come again without it.
            gaps = set(range(offsets[0], offsets[-1])) - set(offsets)
            if offsets != sorted(set(offsets)) or not all(map(line.is_done, gaps)):
                raise Broken(f"{self.name}: {member} got {queue} with gaps: {offsets}")
            if offsets[0] > line.front:
                raise Broken(
                    f"{self.name}: {member} handles {queue} at {offsets[0]}, "
                    f"and {line.front} was not dealt with"
                )
        running[self._calls] = member
        return self._calls

    def end(self, call: int, queue: MessageQueue) -> None:
        """A handler came back, or its member died."""
        self._running[queue].pop(call, None)

    def succeed(self, messages: Iterable[StoredMessage]) -> None:
        for message in messages:
            self.succeeded[message.body] += 1
            self._lines[message.queue].deal_with(message.queue_offset)

    def fail(self, messages: Iterable[StoredMessage], *, is_given_up: bool) -> None:
        """A handler failed. Concurrently the message goes on elsewhere; in order it blocks."""
        for message in messages:
            self.failed[message.body] += 1
            if not self._orderly or is_given_up or message.reconsume_times >= self._max_retries:
                self._lines[message.queue].deal_with(message.queue_offset)

    def check_commit(self, queue: MessageQueue, committed: int) -> None:
        """A broker says where the group stands."""
        front = self._lines[queue].front
        if committed > front:
            raise Broken(
                f"{self.name}: {queue} was committed at {committed}, and {front} is unfinished"
            )

    def missing(
        self, acknowledged: Iterable[bytes], dead: dict[bytes, int], *, power_was_cut: bool = False
    ) -> list[bytes]:
        """Acknowledged messages that were neither handled nor given up.

        A broker does not flush before it answers a send-back, nor before it counts a delayed
        message as delivered (both as in RocketMQ): a power cut may take what failed before.
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
                raise Broken(f"{self.name}: {body!r} is a dead letter, but no handler failed")


class Ledger:
    """All groups, and what was sent."""

    def __init__(self) -> None:
        self.sent: dict[str, set[bytes]] = defaultdict(set)
        """By topic, also what was never acknowledged."""
        self.acknowledged: dict[str, set[bytes]] = defaultdict(set)
        self.groups: dict[str, GroupLedger] = {}

    def add_group(self, name: str, *, orderly: bool, max_retries: int) -> GroupLedger:
        group = self.groups[name] = GroupLedger(name, orderly=orderly, max_retries=max_retries)
        return group

    def check_known(self, message: StoredMessage) -> None:
        """A message that was never sent, or not to this topic, is a phantom."""
        if message.body not in self.sent[message.topic]:
            raise Broken(f"never sent: {message.body!r} to {message.topic}: {message}")
