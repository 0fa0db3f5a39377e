"""Which member of a group may consume a queue in order.

A lock belongs to a client id, not to a connection, and lives for a minute after it was taken or
renewed. It is kept in memory only, as in RocketMQ (RebalanceLockManager): after a restart the
members lock again.

As in RocketMQ, any queue can be locked for any group: a member may ask before the topic is there.
RocketMQ keeps all of them for ever; here expired locks are removed, and their number is bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from penstock.model import MessageQueue

log = logging.getLogger(__name__)

LOCK_SECONDS = 60.0
MAX_LOCKS = 1 << 18
"""More than the members of all groups need; bounds memory against invented names."""


class _Lock(NamedTuple):
    client_id: str
    renewed: float


class QueueLocks:
    """The locks of all groups; groups do not affect each other."""

    def __init__(self, lock_seconds: float = LOCK_SECONDS, max_locks: int = MAX_LOCKS) -> None:
        self._lock_seconds = lock_seconds
        self._max_locks = max_locks
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0
        self._has_logged_full = False

    def __len__(self) -> int:
        return self._count

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now: float
    ) -> list[MessageQueue]:
        """Take free and expired locks, renew own ones; return the queues that are held now."""
        locks = self._groups.get(group, {})
        held: list[MessageQueue] = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None and not self._has_room():
                continue
            if lock is None or lock.client_id == client_id or self._is_expired(lock, now):
                self._count += lock is None
                locks[queue] = _Lock(client_id, now)
                held.append(queue)
        if locks:
            self._groups[group] = locks
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the locks of this client; those of others stay."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            del self._groups[group]

    def owner(self, group: str, queue: MessageQueue, now: float) -> str | None:
        """The client id that holds a queue at the moment."""
        lock = self._groups.get(group, {}).get(queue)
        return None if lock is None or self._is_expired(lock, now) else lock.client_id

    def is_orderly(self, group: str, now: float) -> bool:
        """Whether the group holds any lock that has not expired."""
        locks = self._groups.get(group)
        return locks is not None and any(not self._is_expired(lock, now) for lock in locks.values())

    def drop_group(self, group: str) -> None:
        """Remove the locks of a deleted group."""
        self._count -= len(self._groups.pop(group, ()))

    def drop_expired(self, now: float) -> None:
        """Remove expired locks; called periodically."""
        for group, locks in list(self._groups.items()):
            for queue in [q for q, lock in locks.items() if self._is_expired(lock, now)]:
                del locks[queue]
                self._count -= 1
            if not locks:
                del self._groups[group]
        self._has_logged_full = False

    def _has_room(self) -> bool:
        if self._count < self._max_locks:
            return True
        if not self._has_logged_full:
            self._has_logged_full = True
            log.warning("queue locks refused, there are too many count=%d", self._count)
        return False

    def _is_expired(self, lock: _Lock, now: float) -> bool:
        return now - lock.renewed > self._lock_seconds
